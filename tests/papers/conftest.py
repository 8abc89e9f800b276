"""Where the papers' program lies, and what its tests share."""

import functools
import json
import lzma
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from cases import BACKEND

# As when one of its scripts runs.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "papers"))
# It trains with TensorFlow.
collect_ignore_glob = [] if BACKEND == "tensorflow" else ["test_*"]


@pytest.fixture(scope="module")
def parse():
    """Set-up, method and options of two recipes and more flags."""
    from absl import flags
    from config import recipe_flags
    from recipe_cases import RECIPES

    def parsed(setup, loss="cross_entropy", *more):
        values = flags.FlagValues()
        recipe_flags.define(values)
        files = (RECIPES / "setups" / setup, RECIPES / "losses" / loss)
        values(["", *(f"--flagfile={path}.flags" for path in files), *more])
        return recipe_flags.read(values)

    return parsed


@pytest.fixture(scope="module")
def picture():
    from examples_with_boxes import smooth_image
    from recipe_cases import SIZE

    return smooth_image(np.random.default_rng(0), *SIZE)


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory, picture):
    """A folder with a little of each data set that TFDS does not know."""
    import recipe_cases
    import tensorflow_datasets as tfds
    from examples_with_boxes import write_voc

    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    lines = [
        json.dumps(
            {
                "split": "train" if place % 3 else "test",
                "label": "ab"[place % 2],
                "text": " ".join(random.choice(list("uvwxyz"), 30)),
            }
        )
        for place in range(24)
    ]
    with lzma.open(folder / "20news_bydate.jsonl.xz", "wt") as file:
        file.write("\n".join(lines))
    recipe_cases.write_segmentation(folder, picture)
    recipe_cases.write_tiny_imagenet(folder, picture)
    for place in range(recipe_cases.NUM_IMAGES):
        builder = tfds.builder("imagenet2012")
        names = builder.info.features["label"].names
        write_voc(
            folder / "boxes" / f"imagenet2012_{place}.xml",
            [(names[place % 3], (4, 3, 60, 70))],
            recipe_cases.SIZE,
        )
    return folder


@pytest.fixture(scope="module")
def detection_folder(tmp_path_factory):
    """Two data sets, with boxes and without, and runs of classifiers."""
    from detection_cases import classifier, store, write_run
    from nets.dense import dense

    folder = tmp_path_factory.mktemp("detection")
    store(folder, "boxed", {"train": (24, 0, 1), "validation": (8, 1, 1)})
    store(folder, "boxless", {"train": (3, 0, 0), "validation": (3, 1, 0)})
    store(folder, "plain", {"train": (3, 0, 1), "validation": (3, 1, 1)}, "x")
    write_run(folder / "runs" / "small", classifier())
    write_run(folder / "runs" / "grey", classifier((24, 24, 1)))
    write_run(folder / "runs" / "dense", classifier(build=dense))
    write_run(folder / "runs" / "unsaved", None)
    return folder


@pytest.fixture(scope="module")
def begun(detection_folder, parse):
    """Set-up, method and options of a small run; more flags change them."""

    def parsed(*more):
        setup, method, options = parse(
            "canvases_retinanet_small",
            "cross_entropy",
            "--data=canvases/boxed",
            f"--data_dir={detection_folder}",
            "--image_size=64",
            "--batch_size=4",
            "--epochs=2",
            "--steps_per_epoch=2",
            "--decay_epochs=1",
            "--verbose=0",
            *more,
        )
        return setup, method._replace(method="some"), options

    return parsed


@pytest.fixture(scope="module")
def nets_are_built_once():
    """Networks of one kind and size are one, and begin with its weights."""
    from nets import catalogue

    built = {}

    def once(build, *args, **options):
        key = build, args, tuple(sorted(options.items()))
        if key in built:
            model, weights = built[key]
            model.set_weights(weights)
        else:
            model = build(*args, **options)
            built[key] = model, model.get_weights()
        return model

    patch = pytest.MonkeyPatch()
    for nets in (catalogue.NETS, catalogue.SEGMENTERS):
        for name, build in nets.items():
            if name != "gpcn":
                patch.setitem(nets, name, functools.partial(once, build))
    yield
    patch.undo()


@pytest.fixture
def mocked(monkeypatch, picture):
    """TFDS with images of this test, also of data sets it does not know."""
    import tensorflow as tf
    import tensorflow_datasets as tfds
    from data import datasets, images, large_images, scenes
    from examples_with_boxes import coherent
    from recipe_cases import NUM_IMAGES

    known = datasets.tfds_builder

    def camvid_rows(**_):
        image = np.resize(picture, (180, 240, 3))
        mask = np.arange(180 * 240).reshape(180, 240, 1) % 12
        rows = {"image": [image] * 4, "segmentation_mask": [mask] * 4}
        return tf.data.Dataset.from_tensor_slices(rows)

    def builder(name, *args, **options):
        # Images with a class and a box each.
        if name == "tiny_imagenet_boxes":
            name = "caltech_birds2011"
        if name != "camvid":
            return known(name, *args, **options)
        info = types.SimpleNamespace(splits=("train", "val", "test"))
        return types.SimpleNamespace(info=info, as_dataset=camvid_rows)

    for module in (images, large_images, scenes):
        monkeypatch.setattr(module, "tfds_builder", builder)
    # Masks here have the values 0 and 1.
    ids = tuple(range(19))
    monkeypatch.setattr(scenes, "_CITYSCAPES_IDS", ids)
    counts = (1,) * NUM_IMAGES
    with tfds.testing.mock_data(as_dataset_fn=coherent(picture, counts)):
        yield

"""Set-ups train: a step of each, on a little of its data."""

import functools
import inspect

import evaluate
import keras
import numpy as np
import pytest
import tensorflow_datasets as tfds
from absl import app
from examples_with_boxes import write_voc
from nets import catalogue
from recipe_cases import (
    DETECTORS,
    NUM_IMAGES,
    SETUPS,
    SIZE,
    one_step,
    smaller,
    task_of,
)
from results import runs as run_results
from runs import images as image_tasks

pytestmark = pytest.mark.usefixtures("nets_are_built_once")
# One for each way to read data.
READERS = {
    "camvid_deeplabv3plus_small",
    "cifar10_resnet20_cpu",
    "digits_dense",
    "imagenet_mask_resnet50",
    "newsgroups20",
    "openimages_resnet50",
    "tiny_imagenet_resnet50",
}
TRAINED = [path for path in SETUPS if path not in DETECTORS]


def test_networks_take_the_options_of_their_setups(parse):
    for path in TRAINED:
        setup, *_ = parse(path.stem)
        build = {**catalogue.NETS, **catalogue.SEGMENTERS}[setup.net]
        while isinstance(build, functools.partial):
            # What a rule chooses by the image's size is passed on.
            inner = [x for x in build.args if callable(x)]
            build = inner[0] if inner else build.func
        known = inspect.signature(build).parameters
        for option in ("dropout", "weights"):
            given = getattr(setup, option)
            assert given is None or option in known, path.stem


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            path.stem, marks=() if path.stem in READERS else pytest.mark.slow
        )
        for path in TRAINED
    ],
)
def test_every_setup_takes_a_step(name, parse, mocked, data_sets):
    setup, method, options = parse(
        name,
        "cross_entropy",
        f"--data_dir={data_sets}",
        f"--annotations={data_sets / 'boxes'}",
        "--steps_per_epoch=1",
    )
    if setup.data not in ("tiny_imagenet", "voc2012", "newsgroups20"):
        options = options._replace(data_dir=None)
    if setup.objects is None or setup.data != "imagenet2012":
        options = options._replace(annotations=None)
    setup, task = task_of(smaller(setup), method, options)
    assert task.steps == 1
    loss, before, after = one_step(setup, method, options, task)
    assert 0 < loss < 50
    assert all(np.isfinite(weights).all() for weights in after)
    changed = [
        not np.array_equal(a, b) for a, b in zip(before, after, strict=True)
    ]
    assert np.mean(changed) > 0.5


@pytest.mark.parametrize("ending", ["", "_context", "_cutmix"])
def test_losses_of_objects_take_a_step(ending, parse, mocked, data_sets):
    setup, method, options = parse(
        "imagenet_boxes_resnet50",
        f"adaptive_label_smoothing{ending}",
        f"--annotations={data_sets / 'boxes'}",
        "--steps_per_epoch=1",
    )
    setup = smaller(setup)._replace(net="small_resnet")
    task = image_tasks.image_task(setup, method, options)
    loss, before, after = one_step(setup, method, options, task)
    assert 0 < loss < 50
    assert not np.array_equal(before[0], after[0])


def test_test_images_without_a_box_count(parse, mocked, tmp_path):
    name = tfds.builder("imagenet2012").info.features["label"].names[0]
    write_voc(tmp_path / "imagenet2012_0.xml", [(name, (4, 3, 60, 70))], SIZE)
    setup, method, options = parse(
        "imagenet_boxes_resnet50",
        "cross_entropy",
        f"--annotations={tmp_path}",
        "--batch_size=1",
    )
    setup = smaller(setup)._replace(batch_size=1)
    task = image_tasks.image_task(setup, method, options)
    assert task.steps == 1
    assert sum(len(labels) for _, labels in task.test) == NUM_IMAGES


@pytest.mark.parametrize(
    "name, channels",
    [("imagenet_v2", 3), ("imagenet_sketch", 3), ("imagenet_v2", 1)],
)
def test_other_images_come_as_the_network_takes_them(
    name, channels, parse, mocked
):
    setup, _, options = parse("imagenet_resnet50_lssc")
    model = keras.Sequential(
        [
            keras.Input((40, 40, channels)),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(1000),
        ]
    )
    data = evaluate.load(name, setup, options, model)
    labels, logits = run_results.predict(model, data)
    assert logits.shape == (NUM_IMAGES, 1000)
    assert labels.tolist() == [place % 3 for place in range(NUM_IMAGES)]


def test_other_images_of_files_may_have_labels_in_a_column(parse, tmp_path):
    path = tmp_path / "others.npz"
    images = np.zeros((5, 8, 8), "uint8")
    np.savez(path, test_images=images, test_labels=np.arange(5)[:, None])
    setup, _, options = parse("digits_dense")
    data = evaluate.load(str(path), setup, options, None)
    x, y = data[0]
    assert x.shape == (5, 8, 8, 1)
    assert y["label"].tolist() == list(range(5))


@pytest.mark.parametrize(
    "names",
    [
        ["validation.npz"],
        ["a/same.npz", "b/same.npz"],
        ["imagenet_v2/top", "imagenet_v2_top"],
    ],
)
def test_sets_of_one_name_are_not_evaluated_over_each_other(names):
    with pytest.raises(app.UsageError, match="must differ from each"):
        evaluate.parts_of(names)
    names = ["imagenet_v2/top", "imagenet_v2/threshold", "DIR/top.npz"]
    assert len(evaluate.parts_of(names)) == 3

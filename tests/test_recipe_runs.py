"""Every recipe trains: a step of each set-up, a step of each loss."""

import csv
import functools
import importlib
import inspect
import json
import lzma
import os
import subprocess
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest
from cases import BACKEND

if BACKEND != "tensorflow":
    pytest.skip("the examples train with TensorFlow", allow_module_level=True)
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import app
from absl import flags
from examples_with_boxes import coherent
from examples_with_boxes import smooth_image
from examples_with_boxes import write_voc
from file_writers import writer
from PIL import Image

import keras_calib

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "examples" / "recipes"
SETUPS = sorted(path.stem for path in (RECIPES / "setups").glob("*.flags"))
LOSSES = sorted(path.stem for path in (RECIPES / "losses").glob("*.flags"))
SIZE = (90, 120)
NUM_IMAGES = 8


@pytest.fixture(scope="module", autouse=True)
def examples():
    """The modules of the examples, by name."""
    sys.path.insert(0, str(ROOT / "examples"))
    yield importlib.import_module
    sys.path.remove(str(ROOT / "examples"))


@pytest.fixture(scope="module")
def parse(examples):
    """Set-up, method and options of two recipes and more flags."""
    recipe_flags = examples("recipe_flags")

    def parsed(setup, loss="cross_entropy", *more):
        values = flags.FlagValues()
        recipe_flags.define(values)
        files = (RECIPES / "setups" / setup, RECIPES / "losses" / loss)
        values(["", *(f"--flagfile={path}.flags" for path in files), *more])
        return recipe_flags.read(values)

    return parsed


@pytest.fixture(scope="module")
def picture():
    return smooth_image(np.random.default_rng(0), *SIZE)


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory, picture):
    """A folder with a little of each data set that TFDS does not know."""
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
    _write_segmentation(folder, picture)
    _write_tiny_imagenet(folder, picture)
    for place in range(NUM_IMAGES):
        builder = tfds.builder("imagenet2012")
        names = builder.info.features["label"].names
        write_voc(
            folder / "boxes" / f"imagenet2012_{place}.xml",
            [(names[place % 3], (4, 3, 60, 70))],
            SIZE,
        )
    return folder


def _write_segmentation(folder, picture):
    """VOC's, with images of two sizes."""
    names = [f"image_{place}" for place in range(NUM_IMAGES)]
    for part in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (folder / part).mkdir(parents=True)
    for place, name in enumerate(names):
        image = picture[: 60 + 10 * (place % 2)]
        mask = np.full(image.shape[:2], place % 21, "uint8")
        mask[:5] = 255
        Image.fromarray(image).save(folder / "JPEGImages" / f"{name}.jpg")
        _write_mask(mask, folder / "SegmentationClass" / f"{name}.png")
    for part in ("train", "trainaug", "val"):
        path = folder / "ImageSets" / "Segmentation" / f"{part}.txt"
        path.write_text("\n".join(names))


def _write_mask(mask, path):
    image = Image.fromarray(mask, mode="P")
    # Without one for all 256 it would be written with fewer bits.
    image.putpalette(list(range(256)) * 3)
    image.save(path)


def _write_tiny_imagenet(folder, picture):
    image = Image.fromarray(picture[:64, :64])
    rows = []
    for place in range(NUM_IMAGES):
        name = f"n{place % 2}"
        path = folder / "train" / name / "images" / f"{name}_{place}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
        rows.append(f"val_{place}.JPEG\t{name}\t0\t0\t62\t57")
    (folder / "val" / "images").mkdir(parents=True)
    for place in range(NUM_IMAGES):
        image.save(folder / "val" / "images" / f"val_{place}.JPEG")
    (folder / "val" / "val_annotations.txt").write_text("\n".join(rows))


@pytest.fixture(scope="module", autouse=True)
def nets_are_built_once(examples):
    """Networks of one kind and size are one, and begin with its weights."""
    catalogue = examples("nets.catalogue")
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
def mocked(monkeypatch, examples, picture):
    """TFDS with images of this test, and CamVid, which it does not know."""
    known = examples("datasets").tfds_builder

    def camvid_rows(**_):
        image = np.resize(picture, (180, 240, 3))
        mask = np.arange(180 * 240).reshape(180, 240, 1) % 12
        rows = {"image": [image] * 4, "segmentation_mask": [mask] * 4}
        return tf.data.Dataset.from_tensor_slices(rows)

    def builder(name, *args, **options):
        if name != "camvid":
            return known(name, *args, **options)
        info = types.SimpleNamespace(splits=("train", "val", "test"))
        return types.SimpleNamespace(info=info, as_dataset=camvid_rows)

    for module in ("image_sets", "large_images", "scene_sets"):
        monkeypatch.setattr(examples(module), "tfds_builder", builder)
    # Masks here have the values 0 and 1.
    ids = tuple(range(19))
    monkeypatch.setattr(examples("scene_sets"), "_CITYSCAPES_IDS", ids)
    counts = (1,) * NUM_IMAGES
    with tfds.testing.mock_data(as_dataset_fn=coherent(picture, counts)):
        yield


@pytest.mark.parametrize("name", SETUPS)
def test_networks_take_the_options_of_their_setups(name, parse, examples):
    setup, *_ = parse(name)
    catalogue = examples("nets.catalogue")
    build = {**catalogue.NETS, **catalogue.SEGMENTERS}[setup.net]
    while isinstance(build, functools.partial):
        # What a rule chooses by the image's size is passed on.
        inner = [x for x in build.args if callable(x)]
        build = inner[0] if inner else build.func
    if build.__name__ == "_vit":
        build = examples("nets.vit").vit_s16
    known = inspect.signature(build).parameters
    for option in ("dropout", "weights"):
        assert getattr(setup, option) is None or option in known
    segments = setup.task == "segmentation"
    assert (setup.net in catalogue.SEGMENTERS) == segments


def task_of(examples, setup, method, options):
    if setup.task == "segmentation":
        scenes = examples("scene_sets").load_scenes(setup, options)
        setup = setup._replace(ignore_class=scenes.void)
        scene_task = examples("scene_tasks").scene_task
        return setup, scene_task(scenes, setup, method, options)
    if setup.task == "text":
        sets = examples("text_sets").load_texts(
            options.data_dir, length=setup.sequence_length
        )
        sets = examples("image_sets").split(sets, setup.validation)
        return setup, examples("text_tasks").text_task(sets, setup, options)
    task = examples("image_tasks").image_task(setup, method, options)
    return setup, task


def one_step(examples, setup, method, options, task):
    """Loss of one step, weights before and after it."""
    model = examples("runs").build(task, setup, method, options)
    # Once only: tracing would take longer than the step.
    model.run_eagerly = True
    before = [v.numpy() for v in model.trainable_variables]
    batches = task.train(0)
    steps = None if hasattr(batches, "set_epoch") else 1
    history = model.fit(batches, steps_per_epoch=steps, verbose=0)
    after = [v.numpy() for v in model.trainable_variables]
    return history.history["loss"][0], before, after


# Of a set-up, what is too large for a test: its steps, its images where the
# network takes any, weights to fetch, convolutions with holes of 12 to 36
# pixels, which take TensorFlow 80 s without a GPU; and a warm-up, whose first
# rate is zero.
# All else is as published.
def smaller(setup):
    side = 72 if (setup.image_size or [0])[0] >= 224 else None
    return setup._replace(
        batch_size=2,
        validation=min(setup.validation, 0.25),
        weights=None,
        warmup_epochs=0,
        output_stride=16,
        image_size=[side] * len(setup.image_size) if side else setup.image_size,
        resize=side and 80,
        sequence_length=min(setup.sequence_length, 40),
    )


@pytest.mark.parametrize("name", SETUPS)
def test_every_setup_takes_a_step(name, parse, examples, mocked, data_sets):
    setup, method, options = parse(
        name,
        "cross_entropy",
        f"--data_dir={data_sets}",
        f"--annotations={data_sets / 'boxes'}",
        "--steps_per_epoch=1",
    )
    if not setup.data.startswith(("tiny", "voc2012", "newsgroups")):
        options = options._replace(data_dir=None)
    if setup.objects is None or setup.data != "imagenet2012":
        options = options._replace(annotations=None)
    setup, task = task_of(examples, smaller(setup), method, options)
    assert task.steps == 1
    loss, before, after = one_step(examples, setup, method, options, task)
    assert 0 < loss < 50
    assert all(np.isfinite(weights).all() for weights in after)
    changed = [
        not np.array_equal(a, b) for a, b in zip(before, after, strict=True)
    ]
    assert np.mean(changed) > 0.5


@pytest.fixture
def few_digits(monkeypatch, examples):
    """Twenty steps' worth of digits, of which 40 are to test on."""
    sets = examples("image_sets").load_images(
        types.SimpleNamespace(data="digits"), None
    )
    (x, y), (test_x, test_y) = sets.train, sets.test

    def few(num_classes=10):
        train, test = y[:400] < num_classes, test_y[:80] < num_classes
        return sets._replace(
            train=(x[:400][train], y[:400][train]),
            test=(test_x[:80][test], test_y[:80][test]),
            num_classes=num_classes,
        )

    runs = examples("runs")
    build = runs.build

    def eager(*args):
        model = build(*args)
        # Of so few steps, tracing would take most of the time.
        model.run_eagerly = True
        return model

    monkeypatch.setattr(runs, "build", eager)
    return few


@pytest.mark.parametrize("name", ["focal_schedule_531", "acls", "adafocal"])
def test_losses_ignore_void_pixels(name, parse, examples):
    setup, method, _ = parse("camvid_deeplabv3plus_small", name)
    setup = setup._replace(ignore_class=2)
    inputs = keras.Input((None, None, 3))
    outputs = keras.layers.Conv2D(2, 1)(inputs)
    losses = examples("recipe_losses")
    model = losses.build_model(method, setup, 4, inputs, outputs)
    model.compile("sgd", losses.build_loss(method, setup))
    random = np.random.default_rng(0)
    x = random.normal(size=(2, 4, 5, 3)).astype("float32")
    y = random.integers(3, size=(2, 4, 5))
    data = {"validation_data": (x, y)} if name == "adafocal" else {}
    history = model.fit(x, y, verbose=0, **data)
    assert np.isfinite(history.history["loss"][0])
    assert 0 < history.history["loss"][0] < 10


@pytest.mark.parametrize(
    "name", [loss for loss in LOSSES if not loss.startswith("adaptive")]
)
def test_every_loss_trains_and_is_measured(
    name, parse, examples, few_digits, tmp_path
):
    setup, method, options = parse(
        "digits_dense",
        name,
        "--batch_size=16",
        "--epochs=2",
        "--noexport",
        "--verbose=0",
        "--validation=0.25",
        "--steps_per_epoch=2",
        f"--workdir={tmp_path}",
    )
    sets = few_digits(2 if name == "cape" else 10)
    sets = examples("image_sets").split(sets, setup.validation)
    task = examples("image_tasks").array_task(sets, setup, method, options)
    row = examples("runs").run(task, setup, method, options)
    assert row["method"] == name
    assert row["epochs"] == 2
    assert not row["diverged"]
    assert 0 <= row["ece"] <= 1
    assert row["nll_ts"] > 0
    (folder,) = tmp_path.glob("digits_dense/*/seed0")
    names = {path.name for path in folder.iterdir()}
    assert {"log.csv", "results.csv", "test_predictions.npz"} <= names
    assert examples("run_results").read_row(folder) == pytest.approx(row)


def test_the_best_epoch_is_kept(parse, examples, few_digits, tmp_path):
    setup, method, options = parse(
        "digits_dense",
        "cross_entropy",
        "--batch_size=16",
        "--epochs=52",
        "--learning_rate=0.5",
        "--keep=best",
        "--validation=0.25",
        "--steps_per_epoch=1",
        "--noexport",
        "--verbose=0",
        f"--workdir={tmp_path}",
    )
    sets = examples("image_sets").split(few_digits(), 0.25)
    task = examples("image_tasks").array_task(sets, setup, method, options)
    task = task._replace(test=task.validation)
    row = examples("runs").run(task, setup, method, options)
    folder = examples("run_results").find_runs([tmp_path])[0]
    with open(folder / "log.csv", newline="") as file:
        logged = [float(e["cal_accuracy"]) for e in csv.DictReader(file)]
    assert len(logged) == 52
    assert row["accuracy"] == pytest.approx(max(logged))
    assert logged[-1] < max(logged)


def test_a_run_of_other_flags_is_kept(parse, examples, few_digits, tmp_path):
    common = [
        "--batch_size=16",
        "--epochs=1",
        "--steps_per_epoch=1",
        "--noexport",
        "--verbose=0",
        f"--workdir={tmp_path}",
    ]
    sets = examples("image_sets").split(few_digits(), 0.25)

    def train(*more):
        recipe = parse("digits_dense", "cross_entropy", *common, *more)
        task = examples("image_tasks").array_task(sets, *recipe)
        return examples("runs").run(task, *recipe)

    first = train()
    for resume in ("--resume", "--noresume"):
        with pytest.raises(ValueError, match="learning_rate.*0.3"):
            train("--learning_rate=0.3", resume)
    (folder,) = examples("run_results").find_runs([tmp_path])
    assert examples("run_results").read_row(folder)["nll"] == first["nll"]
    # The same flags train anew, to the same numbers.
    assert train()["nll"] == pytest.approx(first["nll"], rel=1e-5)


# With these the second epoch is worse than the first, and does not diverge.
WORSE = ["--schedule=steps", "--decay_epochs=1", "--decay_factor=8"]


@pytest.mark.parametrize("flags", [[], ["--keep=best", *WORSE]])
def test_a_killed_run_goes_on_to_the_same_end(
    parse, examples, few_digits, tmp_path, monkeypatch, flags
):
    sets = examples("image_sets").split(few_digits(), 0.25)

    def train(folder, *more):
        recipe = parse(
            "digits_dense",
            "cross_entropy",
            "--batch_size=16",
            "--epochs=2",
            "--noexport",
            "--verbose=0",
            f"--workdir={tmp_path / folder}",
            *flags,
            *more,
        )
        task = examples("image_tasks").array_task(sets, *recipe)
        return examples("runs").run(task, *recipe)

    whole = train("whole")
    if flags:
        folder = examples("run_results").find_runs([tmp_path])[0]
        with open(folder / "log.csv", newline="") as file:
            first, second = (
                float(e["cal_accuracy"]) for e in csv.DictReader(file)
            )
        assert second < first
    saved = keras_calib.ResumableBackup.on_epoch_end

    def killed(self, epoch, logs=None):
        saved(self, epoch, logs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(keras_calib.ResumableBackup, "on_epoch_end", killed)
        with pytest.raises(KeyboardInterrupt):
            train("killed")
    # Nobody takes the folder from a process that trains there.
    (backup,) = (tmp_path / "killed").rglob("backup.npz")
    recorded = (backup.parent / "flags.json").read_text()
    with writer("keep", backup.parent):
        for resume in ("--resume", "--noresume"):
            with pytest.raises(RuntimeError, match="one writer at a time"):
                train("killed", resume, "--learning_rate=9")
    assert (backup.parent / "flags.json").read_text() == recorded
    assert keras_calib.finished_epochs(backup) == 1
    rows = [train("killed", "--resume") for _ in range(2)]
    assert rows[0]["nll"] == pytest.approx(whole["nll"], rel=1e-5)
    # Of both epochs, also where none is left to train.
    assert rows[0]["seconds"] > 0
    assert rows[1] == rows[0]


def test_fine_tuning_trains_the_head_then_the_whole(
    parse, examples, few_digits, tmp_path
):
    setup, method, options = parse(
        "digits_dense",
        "acls",
        "--batch_size=16",
        "--epochs=1",
        "--learning_rate=0.01",
        "--noexport",
        "--verbose=0",
        f"--workdir={tmp_path}",
    )
    sets = examples("image_sets").split(few_digits(), 0.25)
    task = examples("image_tasks").array_task(sets, setup, method, options)
    model = keras.Model(*task.network())
    weights = [[v.numpy() for v in model.trainable_variables]]
    runs = examples("runs")
    train = runs.run

    def followed(*args, **extra):
        row = train(*args, **extra)
        weights.append([v.numpy() for v in model.variables])
        return row

    fine_tune = examples("fine_tune")
    patch = pytest.MonkeyPatch()
    patch.setattr(fine_tune, "run", followed)
    rows = fine_tune.fine_tune(
        model, task, setup, method, options, 1, begin_with="some"
    )
    patch.undo()
    assert {row["begin_with"] for row in rows} == {"some"}
    names = [row["method"] for row in rows]
    assert names == ["acls_tuned_head", "acls_tuned"]
    counted = model.trainable_variables
    assert len(counted) == len(weights[0])
    places = [[v is w for w in model.variables].index(True) for v in counted]
    moved = [
        [
            not np.array_equal(before, after)
            for before, after in zip(old, new, strict=True)
        ]
        for old, new in (
            (weights[0], [weights[1][p] for p in places]),
            ([weights[1][p] for p in places], [weights[2][p] for p in places]),
        )
    ]
    assert moved[0] == [False] * (len(counted) - 2) + [True, True]
    assert all(moved[1])
    # Another beginning is another run.
    other = {"begin_with": "other"}
    with pytest.raises(ValueError, match="'begin_with'"):
        fine_tune.fine_tune(model, task, setup, method, options, 1, **other)


# Several devices.


def start(script, recipe, workdir, *more):
    """A script on two logical devices, one epoch of two steps."""
    files = [f"--flagfile={RECIPES / path}.flags" for path in recipe]
    if files:
        files += ["--steps_per_epoch=2", "--verbose=0"]
    return subprocess.Popen(
        [
            sys.executable,
            ROOT / "examples" / f"{script}.py",
            *files,
            "--epochs=1",
            "--strategy=mirrored",
            "--logical_devices=2",
            f"--workdir={workdir}",
            *more,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


@pytest.mark.slow
def test_scripts_train_on_two_devices_to_their_last_file(
    examples, data_sets, tmp_path
):
    digits = ["setups/digits_dense", "losses/cross_entropy"]
    # Its plain batch normalizations differ between the devices.
    net = "--net=small_resnet"
    first = start("train_classifier", digits, tmp_path, net)
    running = [
        start(
            "train_segmentation",
            ["setups/camvid_deeplabv3plus_small", "losses/cross_entropy"],
            tmp_path,
            "--data=voc2012",
            "--validation=0",
            "--image_size=33",
            "--batch_size=4",
            f"--data_dir={data_sets}",
        ),
        start(
            "train_text",
            ["setups/newsgroups20", "losses/mbls"],
            tmp_path,
            "--validation=0.25",
            "--sequence_length=40",
            "--batch_size=4",
            "--train_vectors",
            f"--data_dir={data_sets}",
        ),
        start(
            "train_objectness",
            [],
            tmp_path / "objectness",
            "--width=2",
            "--method=CutMix",
            "--synchronized",
        ),
    ]
    errors = first.communicate()[1]
    assert first.returncode == 0, errors[-3000:]
    dense = tmp_path / "digits_dense"
    begun = f"--begin_with={dense / 'cross_entropy' / 'seed0'}"
    more = ("--noexport", "--head_epochs=0")
    running.append(start("fine_tune", digits, tmp_path, begun, *more))
    for script in running:
        errors = script.communicate()[1]
        assert script.returncode == 0, errors[-3000:]
    table = (tmp_path / "objectness" / "table.txt").read_text()
    assert "CutMix" in table
    results = examples("run_results")
    counts = {
        dense / "cross_entropy": 599,
        dense / "cross_entropy_tuned": 599,
        tmp_path / "newsgroups20" / "mbls": 8,
        tmp_path / "camvid_deeplabv3plus_small" / "cross_entropy": None,
    }
    for folder, count in counts.items():
        folder = folder / "seed0"
        assert not results.read_row(folder)["diverged"]
        labels, logits = results.read_predictions(folder, "test")
        # Each example once, not once for each device.
        assert len(labels) == len(logits) == (count or len(labels))
        if "tuned" not in str(folder):
            assert (folder / "model.keras").is_file()
            assert (folder / "serving" / "saved_model.pb").is_file()
    assert (folder / "confidence.png").stat().st_size > 10_000
    images, truth = examples("image_sets").load_images(
        types.SimpleNamespace(data="digits"), None
    )[2]
    folder = dense / "cross_entropy" / "seed0"
    labels, logits = results.read_predictions(folder, "test")
    np.testing.assert_array_equal(labels, truth)
    expected = results.load_network(folder)([images.astype("float32")])
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "size, count, logical, advice",
    [
        (12, 8, None, "=8 or --batch_size=16, or train on 6 with CUDA_VISI"),
        (12, 8, 8, "or train on 6 with --logical_devices=6"),
        (5, 8, None, "set --batch_size=8, or train on 5 with CUDA_VISIBLE_DE"),
        (7, 4, 4, "or train on one with --strategy=none"),
    ],
)
def test_a_batch_that_devices_cannot_share_is_refused(
    size, count, logical, advice, examples, monkeypatch
):
    strategies = examples("strategies")
    devices = types.SimpleNamespace(num_replicas_in_sync=count)
    monkeypatch.setattr(strategies, "mirrored", lambda logical: devices)
    strategies.check_batch_size(2 * count, "mirrored", logical)
    strategies.check_batch_size(size, "none")
    with pytest.raises(app.UsageError, match="`--batch_size` must") as error:
        strategies.check_batch_size(size, "mirrored", logical)
    assert advice in str(error.value)
    with pytest.raises(app.UsageError, match="with --strategy=mirrored"):
        strategies.check_batch_size(size, "none", 2)


@pytest.mark.parametrize(
    "name, channels",
    [("imagenet_v2", 3), ("imagenet_sketch", 3), ("imagenet_v2", 1)],
)
def test_other_images_come_as_the_network_takes_them(
    name, channels, parse, examples, mocked
):
    setup, _, options = parse("imagenet_resnet50_lssc")
    model = keras.Sequential(
        [
            keras.Input((40, 40, channels)),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(1000),
        ]
    )
    data = examples("evaluate").load(name, setup, options, model)
    labels, logits = examples("run_results").predict(model, data)
    assert logits.shape == (NUM_IMAGES, 1000)
    assert labels.tolist() == [place % 3 for place in range(NUM_IMAGES)]


def test_other_images_of_files_may_have_labels_in_a_column(
    parse, examples, tmp_path
):
    path = tmp_path / "others.npz"
    images = np.zeros((5, 8, 8), "uint8")
    np.savez(path, test_images=images, test_labels=np.arange(5)[:, None])
    setup, _, options = parse("digits_dense")
    data = examples("evaluate").load(str(path), setup, options, None)
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
def test_sets_of_one_name_are_not_evaluated_over_each_other(names, examples):
    with pytest.raises(app.UsageError, match="different ones"):
        examples("evaluate").parts_of(names)
    names = ["imagenet_v2/top", "imagenet_v2/threshold", "DIR/top.npz"]
    assert len(set(examples("evaluate").parts_of(names))) == 3


def test_test_images_without_a_box_count(parse, examples, mocked, tmp_path):
    name = tfds.builder("imagenet2012").info.features["label"].names[0]
    write_voc(tmp_path / "imagenet2012_0.xml", [(name, (4, 3, 60, 70))], SIZE)
    setup, method, options = parse(
        "imagenet_boxes_resnet50",
        "cross_entropy",
        f"--annotations={tmp_path}",
        "--batch_size=1",
    )
    setup = smaller(setup)._replace(batch_size=1)
    task = examples("image_tasks").image_task(setup, method, options)
    assert task.steps == 1
    assert sum(len(labels) for _, labels in task.test) == NUM_IMAGES


@pytest.mark.parametrize(
    "name", [loss for loss in LOSSES if loss.startswith("adaptive")]
)
def test_losses_of_objects_take_a_step(
    name, parse, examples, mocked, data_sets
):
    setup, method, options = parse(
        "imagenet_boxes_resnet50",
        name,
        f"--annotations={data_sets / 'boxes'}",
        "--steps_per_epoch=1",
    )
    setup = smaller(setup)._replace(net="small_resnet")
    task = examples("image_tasks").image_task(setup, method, options)
    loss, before, after = one_step(examples, setup, method, options, task)
    assert 0 < loss < 50
    assert not np.array_equal(before[0], after[0])


# Scenes.


def scenes_of(examples, images, masks, void=255):
    data = tf.data.Dataset.from_tensor_slices({"image": images, "mask": masks})
    return examples("scene_sets").Scenes(
        data, None, data, ["a", "b"], void, len(images)
    )


def marked_scenes(examples, count=5, size=(40, 60)):
    """Images whose pixels say what their mask says."""
    masks = np.random.default_rng(0).integers(0, 2, (count, *size, 1))
    masks = np.kron(masks[:, ::10, ::10], np.ones((1, 10, 10, 1), int))
    images = np.repeat(100 * masks, 3, axis=-1).astype("uint8")
    return scenes_of(examples, images, masks.astype("int32"))


@pytest.mark.parametrize("augment", ["crop", "crop_flip", "resized_crop"])
def test_masks_go_the_way_of_their_images(augment, parse, examples):
    setup, *_ = parse(
        "camvid_deeplabv3plus_small",
        "cross_entropy",
        f"--augment={augment}",
        "--image_size=50,50",
        "--batch_size=5",
        "--jitter=0",
    )
    scenes = marked_scenes(examples)
    batches = examples("scene_sets").training_batches(scenes, setup, seed=0)
    for images, masks in batches.take(3):
        assert images.shape == (5, 50, 50, 3) and masks.shape == (5, 50, 50)
        images, masks = images.numpy(), masks.numpy()
        void = masks == 255
        # Images of 40 x 60 are filled up to the height of a crop.
        assert (augment == "resized_crop") != bool(void.any())
        np.testing.assert_array_equal(images[void], 127.5)
        sure = ~void & ((images[..., 0] < 1) | (images[..., 0] > 99))
        assert sure.mean() > 0.6
        expected = images[sure][:, 0] > 50
        # Of a pixel on an edge, mask and image may be rounded apart.
        assert np.mean(masks[sure] == expected) > 0.99


def test_resumed_scenes_are_those_of_the_run_without_a_break(parse, examples):
    setup, *_ = parse(
        "camvid_deeplabv3plus_small", "cross_entropy", "--image_size=20,20"
    )
    setup = setup._replace(batch_size=2)
    scenes = marked_scenes(examples)
    training_batches = examples("scene_sets").training_batches

    def shown(first_epoch, skip, take):
        data = training_batches(scenes, setup, seed=3, first_epoch=first_epoch)
        return [x.numpy() for x, _ in data.skip(skip).take(take)]

    # Two steps an epoch: an image is left over, and begins the next one.
    whole = shown(0, 6, 2)
    np.testing.assert_array_equal(shown(3, 0, 2), whole)
    assert not np.array_equal(shown(2, 0, 2), whole)


def test_masks_of_sbd_are_taken_where_they_lie_beside_those_of_voc(
    parse, examples, picture, tmp_path
):
    _write_segmentation(tmp_path, picture)
    beside = tmp_path / "SegmentationClassAug"
    beside.mkdir()
    for place in range(NUM_IMAGES):
        mask = np.full((60, 120), 20, "uint8")
        _write_mask(mask, beside / f"image_{place}.png")

    def first_classes(name):
        setup, _, options = parse(name)
        options = options._replace(data_dir=str(tmp_path))
        scenes = examples("scene_sets").load_scenes(setup, options)
        parts = scenes.train, scenes.test
        return [
            np.unique(next(iter(part.as_numpy_iterator()))["mask"]).tolist()
            for part in parts
        ]

    assert first_classes("voc_deeplabv3_acls") == [[20], [0, 255]]
    assert first_classes("voc_deeplabv3_mbls") == [[0, 255], [0, 255]]


@pytest.mark.parametrize("flag", [{"validation": 0.1}, {"stratified": True}])
def test_the_lists_of_voc_are_not_split(flag, parse, examples):
    setup, _, options = parse("voc_deeplabv3_mbls")
    with pytest.raises(app.UsageError, match="`--validation` must be 0"):
        examples("scene_sets").load_scenes(setup._replace(**flag), options)


@pytest.mark.parametrize("name", ["crl", "cutmix"])
def test_methods_of_whole_images_are_refused_for_pixels(name, parse, examples):
    recipe = parse("camvid_deeplabv3plus_small", name)
    with pytest.raises(app.UsageError, match="`--method` must not mix"):
        examples("scene_tasks").scene_task(marked_scenes(examples), *recipe)


def test_ids_of_cityscapes_become_those_of_its_classes(examples):
    scene_sets = examples("scene_sets")
    mask = np.array([[[7], [33], [0], [11]]], "uint8")
    example = scene_sets._example(
        {
            "image_id": "a",
            "image_left": np.zeros((1, 4, 3), "uint8"),
            "segmentation_label": mask,
        },
        scene_sets._CITYSCAPES_IDS,
        255,
    )
    assert example["mask"].numpy().ravel().tolist() == [0, 18, 255, 2]
    assert example["image"].shape == (1, 4, 3)

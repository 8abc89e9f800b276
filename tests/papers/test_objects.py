"""Data whose objects are known: mixed, painted out, of chosen classes."""

import json
import sys
import types

import evaluate
import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import app, flags
from absl.testing import flagsaver
from data import class_maps, large_images
from recipe_cases import NUM_IMAGES, RECIPES, fake_runs, smaller
from results import comparisons
from results import objectness as pictures
from results import runs as run_results
from runs import images as image_tasks
from runs import objectness, training

BOXED = "imagenet_boxes_resnet50"


@pytest.fixture
def recipe(parse, mocked, data_sets):
    """A small set-up with boxes, a loss and options."""

    def made(loss="cross_entropy", setup=BOXED, *more):
        boxes = f"--annotations={data_sets / 'boxes'}"
        if "openimages" in setup:
            boxes = "--noexport"
        setup, method, options = parse(setup, loss, boxes, *more)
        setup = smaller(setup)._replace(net="small_resnet", batch_size=8)
        return setup, method, options

    return made


def smoothed(pairs, num_classes):
    """Equation 5 of Adaptive Label Smoothing, in float64."""
    labels, shares = pairs[:, 0].astype(int), pairs[:, 1].astype("float64")
    targets = np.repeat((1 - shares)[:, None] / (num_classes - 1), 1000, 1)
    targets[np.arange(len(labels)), labels] = shares
    return targets


def test_smoothed_labels_are_mixed_by_the_area_that_is_replaced(recipe):
    plain, mixed = (
        next(iter(image_tasks.image_task(*recipe(loss)).train(0)))
        for loss in (
            "adaptive_label_smoothing",
            "adaptive_label_smoothing_cutmix",
        )
    )
    (images, pairs), (changed, targets) = (
        [np.asarray(x) for x in batch] for batch in (plain, mixed)
    )
    own = smoothed(pairs, 1000)
    moved = (images != changed).any(-1)
    rows, columns = np.flatnonzero(moved.any((0, 2))), moved.any((0, 1))
    columns = np.flatnonzero(columns)
    window = (
        slice(None),
        slice(rows[0], rows[-1] + 1),
        slice(columns[0], columns[-1] + 1),
    )
    # From which image each rectangle is, as its pixels say.
    patches = images[window]
    other = [
        next(j for j, x in enumerate(patches) if np.array_equal(x, patch))
        for patch in changed[window]
    ]
    assert sorted(other) == list(range(8)) != other
    share = patches[0, ..., 0].size / images[0, ..., 0].size
    assert 0.01 < share < 0.99
    expected = (1 - share) * own + share * own[other]
    np.testing.assert_allclose(targets, expected, rtol=1e-4, atol=1e-6)


def test_losses_of_mixed_smoothed_labels_are_cross_entropy(recipe):
    setup, method, _ = recipe("adaptive_label_smoothing_cutmix")
    loss = training.build_loss(method, setup)
    assert isinstance(loss, keras.losses.CategoricalCrossentropy)
    # Those of small images in memory have no objects.
    sets = types.SimpleNamespace(train=(np.zeros((9, 4, 4, 1)), np.zeros(9)))
    with pytest.raises(app.UsageError, match="`--objects` must be boxes"):
        image_tasks.array_task(sets, setup, method, None)


class Answer:
    """A network that is as sure of class 0 as an image is bright."""

    def predict_on_batch(self, x):
        level = np.asarray(x).mean((1, 2))[:, :1] / 64
        return np.concatenate([level, np.zeros((len(level), 999))], axis=-1)


def test_confidence_is_compared_with_the_objectness_of_test_images(recipe):
    task = image_tasks.image_task(*recipe())
    found = training._deviation(Answer(), task.objects)
    confidences, shares = [], []
    for images, pairs in task.objects:
        logits = Answer().predict_on_batch(images)
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        confidences += (powers.max(-1) / powers.sum(-1)).tolist()
        shares += np.asarray(pairs)[:, 1].tolist()
    assert len(shares) == NUM_IMAGES and len(set(confidences)) == 1
    # A box of 56 x 67 of 90 x 120 pixels, most of it in the middle.
    assert all(0.3 < share < 0.7 for share in shares)
    expected = np.mean(np.abs(np.subtract(confidences, shares)))
    assert found == {"objectness_deviation": pytest.approx(expected, rel=1e-5)}
    assert training._deviation(Answer(), task.objects.take(0)) == {}


def test_objects_of_test_images_are_painted_over_by_the_mean(
    recipe, picture, data_sets
):
    setup, _, options = recipe()
    bare = large_images.context_batches(setup, options)
    ((images, labels),) = bare
    assert labels.numpy().tolist() == [place % 3 for place in range(NUM_IMAGES)]
    # The box reaches over the middle of the left half. Pixels are whole.
    hidden = np.asarray(images)[:, 36, 10:20]
    mean = np.broadcast_to(picture.mean((0, 1)), hidden.shape)
    np.testing.assert_allclose(hidden, mean, atol=0.51)
    assert np.ptp(np.asarray(images)[:, :, 60]) > 5
    for without in (
        setup._replace(objects=None),
        setup._replace(data="digits"),
    ):
        with pytest.raises(app.UsageError, match="`--context` needs a set-up"):
            large_images.context_batches(without, options)


def test_classes_are_merged_dropped_and_capped_as_files_say(recipe, tmp_path):
    builder = tfds.builder("open_images_v4")
    names = builder.info.features["bobjects"].feature["label"].names
    hierarchy = {
        "LabelName": "/m/0bl9f",
        "Subcategory": [
            {"LabelName": names[0], "Subcategory": [{"LabelName": names[7]}]},
            {"LabelName": names[1]},
            {"LabelName": names[2]},
        ],
    }
    (tmp_path / "hierarchy.json").write_text(json.dumps(hierarchy))
    path = tmp_path / "classes.json"
    path.write_text(
        json.dumps(
            {
                "hierarchy": "hierarchy.json",
                "merge": {names[1]: names[2]},
                "drop": [names[3]],
            }
        )
    )
    setup, method, options = recipe(
        "cross_entropy",
        "openimages_resnet50",
        f"--class_map={path}",
        "--cap_classes=4",
    )
    task = image_tasks.image_task(setup._replace(batch_size=2), method, options)
    # Boxes are of three classes in turn, of which the first is a parent.
    assert task.num_samples == 4
    labels = np.concatenate([y for _, y in task.test])
    # Two classes are left out, and one is merged into the first.
    assert labels.tolist() == [0] * 5
    _, outputs = task.network()
    assert outputs.shape[-1] == len(names) - 3
    # The hierarchy alone keeps its leaves.
    kept = class_maps.read_class_map(tmp_path / "hierarchy.json", names)
    assert kept.class_names == [name for name in names if name != names[0]]


@pytest.mark.parametrize(
    "content, rule",
    [
        (None, "must be a JSON file"),
        ("{", "must be a JSON file"),
        ("[]", "must hold an object"),
        ("{}", "with nothing"),
        ('{"merge": ["a"]}', r"with \['merge'\]"),
        ('{"leaves": []}', r"with \['leaves'\]"),
        ('{"hierarchy": "absent.json"}', "absent.json"),
        ('{"drop": ["dodo"]}', "must name classes.*dodo"),
        ('{"drop": ["a", "b"]}', "must leave at least one class"),
    ],
)
def test_a_class_map_that_is_none_is_refused(content, rule, tmp_path):
    path = tmp_path / "map.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises((app.UsageError, ValueError), match=rule):
        class_maps.read_class_map(path, ["a", "b"])


def test_classes_are_chosen_of_data_on_disk_alone(parse):
    recipe = parse("digits_dense", "cross_entropy", "--cap_classes=5")
    with pytest.raises(app.UsageError, match="read from disk"):
        image_tasks.image_task(*recipe)


def test_other_data_are_called_as_they_are_named():
    names = ["V2=imagenet_v2/top", "DIR/a.npz", "val=validation"]
    assert evaluate.parts_of(names, context=True) == {
        "V2": "imagenet_v2/top",
        "a": "DIR/a.npz",
        "val": "validation",
        "context": None,
    }
    for names, context in (
        ([], False),
        (["context=a"], True),
        (["V2=a", "V2=b"], False),
        (["test=a"], False),
    ):
        with pytest.raises(app.UsageError, match="`--on` must name at least"):
            evaluate.parts_of(names, context)


def test_a_run_is_evaluated_on_other_data_and_on_context(
    mocked, data_sets, tmp_path, monkeypatch
):
    (folder,) = fake_runs(tmp_path, {"cross_entropy": 1.0})[:1]
    inputs = keras.Input((72, 72, 3))
    pooled = keras.layers.GlobalAveragePooling2D()(inputs)
    keras.Model(inputs, keras.layers.Dense(1000)(pooled)).save(
        folder / "model.keras"
    )
    arguments = [
        "evaluate.py",
        str(folder),
        f"--flagfile={RECIPES}/setups/{BOXED}.flags",
        f"--annotations={data_sets / 'boxes'}",
        "--image_size=72",
        "--resize=80",
        "--batch_size=8",
        "--context",
        "--on=V2=imagenet_v2",
        "--on=val=validation",
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    # Scripts that other tests of this process imported want theirs.
    wanted = {"begin_with", "claims"} & set(flags.FLAGS)
    with flagsaver.flagsaver():
        left = flags.FLAGS([*arguments, *(f"--{name}=-" for name in wanted)])
        evaluate.main(left)
    (methods,) = comparisons.grouped([folder]).values()
    row = methods["cross_entropy"][0]
    assert row["nll_on_val"] == row["nll"]
    for place in ("V2", "context"):
        labels, logits = run_results.read_predictions(folder, place)
        assert labels.tolist() == [k % 3 for k in range(NUM_IMAGES)]
        shifted = logits.astype(float) - logits.max(-1, keepdims=True)
        confidence = 1 / np.exp(shifted).sum(-1)
        assert row[f"confidence_on_{place}"] == pytest.approx(
            confidence.mean(), rel=1e-5
        )
    assert row["confidence_on_V2"] != row["confidence_on_context"]


def small_data(count=16):
    random = np.random.default_rng(0)
    images = random.uniform(size=(count, 8, 8, 3)).astype("float32")
    pairs = np.stack([np.arange(count) % 3, random.uniform(size=count)], 1)
    one_hot = np.eye(3, dtype="float32")[np.arange(count) % 3]
    trained = []

    def train(seed, first_epoch, **_):
        trained.append((seed, first_epoch))
        return tf.data.Dataset.from_tensors((images, one_hot)).repeat()

    batches = tf.data.Dataset.from_tensors((images, pairs.astype("float32")))
    views = {"test": batches, "context": batches}
    return objectness.Data(train, views, 3, 1), trained, pairs


def test_kinds_of_labels_leave_runs_and_go_on(tmp_path, monkeypatch):
    def linear(shape, num_classes, width):
        layers = [keras.Input(shape), keras.layers.Flatten()]
        return keras.Sequential([*layers, keras.layers.Dense(num_classes)])

    monkeypatch.setattr(objectness, "small_resnet", linear)
    data, trained, pairs = small_data()
    names = objectness.Settings._fields
    settings = objectness.Settings(
        **dict.fromkeys(names, 0)
        | {"setup": "small", "net": "small", "width": 2, "size": 8}
        | {"epochs": 1, "learning_rate": 0.1}
    )
    how = {"workdir": tmp_path, "devices": ("none", None)}
    name = "adaptive, beta 1 + CutMix"
    row = objectness.run(settings, name, 3, data, resume=False, **how)
    assert trained == [(3, 0)]
    assert objectness.run(settings, name, 3, data, resume=True, **how) == row
    assert trained == [(3, 0)]
    folder = objectness.folder_of(tmp_path, settings, name, 3)
    assert folder == tmp_path / "small" / "adaptive_beta_1_CutMix" / "seed3"
    labels, logits = run_results.read_predictions(folder, "test")
    np.testing.assert_array_equal(labels, pairs[:, 0])
    powers = np.exp(logits.astype("float64"))
    confidence = powers.max(-1) / powers.sum(-1)
    expected = np.abs(confidence - pairs[:, 1]).mean()
    assert row["objectness_deviation"] == pytest.approx(expected, rel=1e-5)
    # A process that was killed before it measured trains no epoch again.
    (folder / "results.csv").unlink()
    again = objectness.run(settings, name, 3, data, resume=True, **how)
    assert trained[1:] == [(3, 1)] and again["nll"] == row["nll"]
    assert again["seconds"] == row["seconds"]
    other = settings._replace(width=4)
    with pytest.raises(ValueError, match="'width'"):
        objectness.run(other, name, 3, data, resume=True, **how)
    # One that diverges is counted, and has no measures.
    settings = settings._replace(learning_rate=1e38, epochs=3)
    lost = objectness.run(settings, name, 4, data, resume=False, **how)
    assert lost["diverged"] and "accuracy" not in lost
    row = run_results.read_row(folder)
    text = pictures.table(
        {
            name: {3: row | _context(row), 4: lost},
            "CutMix": {4: lost},
        }
    )
    assert text.splitlines()[0].startswith("mean of 2 seeds")
    assert text.splitlines()[2].endswith("(1 of 2)")
    assert text.splitlines()[3].split() == ["CutMix", "diverged"]


def _context(row):
    return {f"{name}_on_context": value for name, value in row.items()}

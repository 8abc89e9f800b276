"""Detectors on the backbones of classifiers: data, loss, boxes, measures."""

import json
import os
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import app
from data import canvases
from data import detection as boxes_data
from examples_with_boxes import squares
from nets import detector as detectors
from nets.dense import dense
from nets.small_resnet import small_resnet
from recipe_cases import PAPERS
from recipe_cases import RECIPES
from results import comparisons
from results import runs as run_results
from results.detections import average_precision
from runs import detection
from scipy import ndimage

import keras_calib

SMALL = detectors.DETECTORS["retinanet_small"]


def store(folder, name, parts, part="objects"):
    """Writes a TFDS data set of images with objects, or what is called so."""
    objects = {
        "bbox": tfds.features.BBoxFeature(),
        "label": tfds.features.ClassLabel(num_classes=5),
    }

    def rows(count, seed, boxes):
        made = squares(count, side=20, seed=seed)
        for place in range(count):
            yield {
                "image": made["image"][place],
                part: {
                    "bbox": made["boxes"][place][:boxes],
                    "label": made["label"][place : place + 1][:boxes],
                },
            }

    signature = {
        "image": tf.TensorSpec((20, 20, 3), "uint8"),
        part: {
            "bbox": tf.TensorSpec((None, 4), "float32"),
            "label": tf.TensorSpec((None,), "int64"),
        },
    }
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(20, 20, 3)),
                part: tfds.features.Sequence(objects),
            }
        ),
        split_datasets={
            split: tf.data.Dataset.from_generator(
                lambda options=options: rows(*options),
                output_signature=signature,
            )
            for split, options in parts.items()
        },
        data_dir=folder,
        disable_shuffling=True,
    )


def write_run(folder, model):
    """A run of a classifier, as a detector reads it."""
    folder.mkdir(parents=True)
    flags = {"method": "cutmix", "setup": "some_images"}
    (folder / "flags.json").write_text(json.dumps(flags))
    if model is not None:
        model.save(folder / "model.keras")


def classifier(shape=(24, 24, 3), build=small_resnet):
    keras.utils.set_random_seed(3)
    inputs = keras.Input(shape)
    scaled = keras.layers.Normalization(
        mean=[100.0] * shape[-1], variance=[3000.0] * shape[-1]
    )(inputs)
    options = {"width": 4} if build is small_resnet else {}
    return keras.Model(inputs, build(shape, 5, **options)(scaled))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two data sets, with boxes and without, and runs of classifiers."""
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
def begun(folder, parse):
    """Set-up, method and options of a small run; more flags change them."""

    def parsed(*more):
        setup, method, options = parse(
            "canvases_retinanet_small",
            "cross_entropy",
            "--data=canvases/boxed",
            f"--data_dir={folder}",
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


def trained(folder, setup, method, options):
    """Row of a run that begins with the small classifier, and its model."""
    data = boxes_data.load_boxes(setup, options)
    begin = folder / "runs" / "small"
    model = detection.detector(begin, setup, len(data.names), options)
    row = detection.run(model, data, setup, method, options, begin_with="small")
    return row, model


# Data.


def test_boxes_of_canvases_are_where_their_objects_are(monkeypatch):
    monkeypatch.setattr(
        canvases, "_background", lambda _, side: np.zeros((side, side, 3), "u1")
    )
    examples = []
    for place in range(30):
        image = np.zeros((20, 24, 3), "uint8")
        top, left, height, width = 3 + place % 5, 4 + place % 7, 7, 9
        image[top : top + height, left : left + width] = 255 if place else 0
        box = np.array([top, left, top + height, left + width])
        boxes = [box / [20, 24, 20, 24]] if place else np.zeros((0, 4))
        labels = np.full(len(boxes), place)
        examples.append({"image": image, "boxes": boxes, "labels": labels})
    made = canvases.make_canvases(examples, 96, seed=0)
    labels = np.concatenate([canvas["labels"] for canvas in made])
    assert sorted(labels) == list(range(1, 30))
    assert {len(canvas["labels"]) for canvas in made} >= {1, 2, 3}
    for canvas in made:
        # Islands of white, by their rows and columns.
        islands, _ = ndimage.label(canvas["image"][..., 0] > 127)
        found = sorted(
            [y.start, x.start, y.stop, x.stop]
            for y, x in ndimage.find_objects(islands)
        )
        assert len(found) == len(canvas["boxes"])
        if found:
            expected = sorted((96 * canvas["boxes"]).tolist())
            np.testing.assert_allclose(found, expected, atol=1.5)
    again = canvases.make_canvases(examples, 96, seed=0)
    other = canvases.make_canvases(examples, 96, seed=1)
    np.testing.assert_array_equal(made[3]["image"], again[3]["image"])
    assert not np.array_equal(made[3]["boxes"], other[3]["boxes"])


def test_images_come_fitted_flipped_and_filled_up(begun):
    setup, *_ = begun("--image_size=32")
    image = np.zeros((40, 80, 3), "uint8")
    image[10:20, 20:60] = 255
    row = {
        "image": image,
        "boxes": np.array([[0.25, 0.25, 0.5, 0.75]], "float32"),
        "labels": np.array([2], "int32"),
        "crowd": np.array([False]),
        "area": np.array([0.0], "float32"),
    }
    rows = tf.data.Dataset.from_tensors(row).repeat(4)
    data = boxes_data.Detections(rows, rows, ["a", "b", "c"], 4)
    shapes = set()
    for images, y in boxes_data.training_batches(data, setup, seed=0).take(8):
        assert images.shape == (4, 32, 32, 3)
        for shown, (box,), (label,) in zip(
            images.numpy(), y["boxes"].numpy(), y["labels"], strict=True
        ):
            assert label == 2
            # Half the size, on the upper half; its middle is the image's.
            np.testing.assert_array_equal(box[[0, 2]], [4, 8])
            inside = shown[4:8, int(box[1]) : int(box[3])]
            assert inside.min() > 250
            assert shown[:16].sum() == pytest.approx(inside.sum(), rel=0.01)
            assert (shown[16:] == 127.5).all()
            shapes.add(tuple(box))
    assert shapes == {(4.0, 8.0, 8.0, 24.0)}
    (_, truth), *_ = boxes_data.evaluation_batches(rows, 32, 4)
    np.testing.assert_allclose(truth["boxes"][0], [[10, 20, 20, 60]])
    np.testing.assert_allclose(truth["factors"][0], [2.5] * 4)


def test_flips_move_boxes_with_their_objects(folder, begun):
    setup, _, options = begun("--data=boxed", "--image_size=32")
    data = boxes_data.load_boxes(setup, options)
    batches = boxes_data.training_batches(data, setup, seed=0)
    middles = []
    for images, y in batches.take(12):
        pairs = zip(images.numpy(), y["boxes"].numpy(), strict=True)
        for image, (box,) in pairs:
            top, left, bottom, right = (round(float(x)) for x in box)
            inside = image[top + 1 : bottom - 1, left + 1 : right - 1]
            assert inside.min() > 200
            assert (image > 200).sum() < 3.3 * (bottom - top) * (right - left)
            middles.append((left + right) / 2)
    assert min(middles) < 12 and max(middles) > 20
    later = boxes_data.training_batches(
        data, setup, seed=0, first_epoch=2, steps=4
    )
    first, _ = next(iter(later))
    expected, _ = list(batches.take(9))[8]
    np.testing.assert_array_equal(first, expected)


# Loss and boxes, against NumPy.


def anchors_of(side):
    """Corners ymin, xmin, ymax, xmax; float64."""
    found = []
    for level in range(SMALL.levels[0], SMALL.levels[1] + 1):
        stride = 2**level
        for y in range(0, side, stride):
            for x in range(0, side, stride):
                for ratio in (0.5, 1.0, 2.0):
                    for scale in range(SMALL.num_scales):
                        size = int(
                            stride
                            * SMALL.anchor_size
                            * 2 ** (scale / SMALL.num_scales)
                        )
                        half = np.round(
                            [size * ratio**0.5 / 2, size / ratio**0.5 / 2]
                        )
                        found.append([*([y, x] - half), *([y, x] + half)])
    return np.array(found)


def overlaps(first, second):
    lower = np.maximum(first[:, None, :2], second[None, :, :2])
    upper = np.minimum(first[:, None, 2:], second[None, :, 2:])
    inner = np.prod(np.maximum(upper - lower, 0), axis=-1)
    areas = [np.prod(x[:, 2:] - x[:, :2], axis=1) for x in (first, second)]
    return inner / (areas[0][:, None] + areas[1][None] - inner)


def loss_of(boxes, labels, logits, deltas, anchors):
    """Sums of the focal loss and of absolute errors, and anchors found."""
    share = overlaps(anchors, boxes)
    best, at = share.max(1), share.argmax(1)
    found, known = best >= 0.5, (best >= 0.5) | (best < 0.4)
    targets = np.zeros_like(logits)
    targets[found, labels[at[found]]] = 1
    probs = 1 / (1 + np.exp(-logits))
    right = np.where(targets == 1, probs, 1 - probs)
    weights = np.where(targets == 1, 0.25, 0.75)
    focal = -weights * (1 - right) ** 2 * np.log(right)
    middles = [(x[:, :2] + x[:, 2:]) / 2 for x in (boxes[at], anchors)]
    sizes = [x[:, 2:] - x[:, :2] for x in (boxes[at], anchors)]
    moved = (middles[0] - middles[1]) / sizes[1]
    grown = np.log(sizes[0] / sizes[1])
    # x before y.
    wanted = np.concatenate([moved[:, ::-1], grown[:, ::-1]], axis=1)
    errors = np.abs(deltas - wanted)[found]
    return focal[known].sum() + errors.sum(), found.sum()


@pytest.fixture(scope="module")
def model(folder):
    network = run_results.load_network(folder / "runs" / "small")
    return detectors.build_detector(network, SMALL, 32, 5)


def test_loss_is_that_of_its_paper(model):
    random = np.random.default_rng(0)
    anchors = anchors_of(32)
    logits = random.normal(size=(2, len(anchors), 5))
    deltas = random.normal(size=(2, len(anchors), 4))
    # The second image has one object; the other row fills it up.
    boxes = np.array(
        [[[2, 3, 18, 17], [14, 6, 30, 28]], [[4, 12, 17, 26], [0, 0, 0, 0]]],
        "float64",
    )
    labels = np.array([[1, 4], [0, -1]])
    parts = [
        loss_of(boxes[0], labels[0], logits[0], deltas[0], anchors),
        loss_of(boxes[1, :1], labels[1, :1], logits[1], deltas[1], anchors),
    ]
    total, count = np.sum(parts, axis=0)
    assert count > 4
    kernels = [v for v in model.trainable_variables if v.regularizer]
    decay = sum(5e-4 * float((v.numpy() ** 2).sum()) for v in kernels)
    assert len(kernels) == 6
    loss = model.compute_loss(
        x=np.zeros((2, 32, 32, 3), "float32"),
        y={
            "boxes": keras.ops.convert_to_tensor(boxes, "float32"),
            "labels": keras.ops.convert_to_tensor(labels),
        },
        y_pred={"cls_logits": logits, "bbox_regression": deltas},
    )
    assert float(loss) == pytest.approx(total / count + decay, rel=1e-5)


def test_boxes_are_the_best_of_their_class(model, tmp_path):
    """Of the anchors, where nothing moves them."""
    weights = model.get_weights()
    heads = model.box_head, model.classification_head
    for head in heads:
        head.prediction_layer.kernel.assign(
            keras.ops.zeros_like(head.prediction_layer.kernel)
        )
    # The fifth of the six anchors at each place, as the class 3.
    bias = np.full((6, 5), -9.0)
    bias[4, 3] = 2.0
    heads[1].prediction_layer.bias.assign(bias.reshape(-1))
    images = np.zeros((1, 32, 32, 3), "float32")
    boxes, scores, labels, (count,) = (x.numpy() for x in model.detect(images))
    detection.export(model, tmp_path / "serving")
    model.set_weights(weights)
    archive = tf.saved_model.load(str(tmp_path / "serving"))
    served = archive.serve(images)
    np.testing.assert_allclose(served[0], boxes, atol=1e-4)
    np.testing.assert_array_equal(served[3], [count])
    boxes, scores = boxes[0, :count], scores[0, :count]
    assert count > 3
    assert set(labels[0, :count]) == {3}
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-2)), rtol=1e-5)
    expected = {tuple(box) for box in anchors_of(32)[4::6]}
    assert {tuple(np.round(box, 3)) for box in boxes} <= expected
    share = overlaps(boxes, boxes) - np.eye(count)
    assert share.max() <= 0.5


def test_backbone_sees_what_its_classifier_saw(folder):
    network = run_results.load_network(folder / "runs" / "small")
    model = detectors.build_detector(network, SMALL, 24 // 8 * 16, 5)
    images = np.random.default_rng(0).uniform(0, 255, (2, 48, 48, 3))
    inner = network.layers[-1]
    scaled = (images - 100) / np.sqrt(3000)
    # The same weights at another size: built anew, in the same order.
    whole = small_resnet((48, 48, 3), 5, width=4)
    whole.set_weights(inner.get_weights())
    found = detectors.stages(whole)
    assert list(found) == [2, 4, 8]
    scaled = scaled.astype("float32")
    expected = keras.Model(whole.inputs[0], list(found.values()))(scaled)
    (part,) = [x for x in model.backbone.layers if isinstance(x, keras.Model)]
    got = part(scaled)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    fixed = [x for x in part.layers if x.weights and not x.trainable]
    # Stem and first stage, and the normalizations of the others.
    kinds = [isinstance(x, keras.layers.Conv2D) for x in fixed]
    assert sum(kinds) == 3 and len(kinds) - sum(kinds) == 9


# Measures.


def found_in(*rows):
    boxes, scores = [row[:4] for row in rows], [row[4] for row in rows]
    return {
        "boxes": np.array(boxes).reshape(-1, 4),
        "scores": np.array(scores),
        "labels": np.zeros(len(rows)),
    }


def true_in(*boxes, crowd=()):
    count = len(boxes) + len(crowd)
    return {
        "boxes": np.array([*boxes, *crowd], "float64").reshape(-1, 4),
        "labels": np.zeros(count, int),
        "crowd": np.arange(count) >= len(boxes),
        "area": np.zeros(count),
    }


def test_precision_is_what_a_hand_computes():
    truth = [
        true_in((0, 0, 10, 10)),
        true_in((20, 30, 30, 40), crowd=[(50, 50, 90, 90)]),
        true_in(),
    ]
    found = [
        found_in((0, 0, 10, 10, 0.9)),
        # The overlap is 0.62; what lies in the crowd is not counted.
        found_in((20, 30, 26.2, 40, 0.8), (55, 55, 60, 60, 0.95)),
        found_in((1, 1, 5, 5, 0.1)),
    ]
    row = average_precision(truth, found, 2)
    # Of the recalls 0, 0.01 ... 1 those up to 0.5, above the overlap 0.6.
    half = 51 / 101
    expected = {"ap": 0.3 + 0.7 * half, "ap50": 1.0, "ap75": half}
    expected |= dict.fromkeys(("ar10", "ar"), 0.3 + 0.7 / 2)
    # The surest of the second image lies in the crowd.
    expected["ar1"] = 0.5
    expected |= {"ap_small": expected["ap"], "ar_small": expected["ar"]}
    # There is no larger object.
    assert row == pytest.approx(expected)
    assert list(row)[:4] == ["ap", "ap50", "ap75", "ap_small"]
    nothing = average_precision(truth, [found_in()] * 3, 2)
    assert nothing == dict.fromkeys(row, 0.0)
    assert run_results.rises("ap_small") and run_results.rises("ar")


def test_published_precision_stands_beside_a_run(folder):
    path = PAPERS / "results" / "published.csv"
    found = comparisons.read_published(path, "coco_retinanet_resnet50")
    assert found["cutmix_from_imagenet_mask_resnet50", "ap"] == "0.312"
    assert found["cutmix_from_imagenet_resnet50_als", "ap75"] == "0.353"
    assert found["cutmix_from_imagenet_mask_resnet50", "ar"] == "0.428"


# Runs.


@pytest.mark.slow
def test_a_detector_trains_on_coco(parse, picture, folder, tmp_path):
    """On its features, with a crowd, and an image without boxes."""
    counts = (1, 3, 0, 2, 1, 1)

    def rows(builder, split, **_):
        random = np.random.default_rng(0)
        spec = builder.info.features.get_tensor_spec()

        def generate():
            for place, count in enumerate(counts):
                corners = np.sort(random.uniform(size=(count, 2, 2)), axis=1)
                numbers = np.arange(count)
                yield {
                    "image": tf.io.encode_jpeg(picture[: 60 + place]).numpy(),
                    "image/filename": f"{place}.jpg",
                    "image/id": place,
                    "objects": {
                        "area": 100 + numbers,
                        "bbox": corners.reshape(count, 4).astype("float32"),
                        "id": numbers,
                        # All that the fifth has.
                        "is_crowd": np.full(count, place == 4),
                        "label": 70 + numbers,
                    },
                }

        spec = {**spec, "image": tf.TensorSpec((), "string")}
        return tf.data.Dataset.from_generator(generate, output_signature=spec)

    setup, method, options = parse(
        "coco_retinanet_resnet50",
        "cross_entropy",
        "--image_size=32",
        "--net=retinanet_small",
        "--batch_size=2",
        "--epochs=1",
        "--decay_epochs=1",
        "--verbose=0",
        f"--workdir={tmp_path}",
    )
    detection.check_setup(setup, method)
    with tfds.testing.mock_data(as_dataset_fn=rows):
        data = boxes_data.load_boxes(setup, options)
        assert (data.count, len(data.names)) == (4, 80)
        tests = list(data.test.as_numpy_iterator())
        assert [len(row["labels"]) for row in tests] == list(counts)
        assert tests[4]["crowd"].all() and tests[1]["area"][2] == 102
        row, _ = trained(folder, setup, method, options)
    assert row["epochs"] == 1 and not row["diverged"]
    assert 0 <= row["ap"] <= 1 and "ap_large" not in row
    assert run_results.read_row(
        tmp_path / "coco_retinanet_resnet50" / "cross_entropy" / "seed0"
    )["ap50"] == pytest.approx(row["ap50"])


@pytest.mark.slow
def test_a_run_on_two_devices_and_one_that_was_killed_are_that_on_one(
    begun, folder, tmp_path, monkeypatch
):
    recipe = RECIPES / "setups" / "canvases_retinanet_small.flags"
    script = subprocess.Popen(
        [
            sys.executable,
            PAPERS / "train_detection.py",
            f"--flagfile={recipe}",
            "--data=canvases/boxed",
            f"--data_dir={folder}",
            f"--begin_with={folder / 'runs' / 'small'}",
            *("--image_size=64", "--batch_size=4", "--epochs=2"),
            *("--steps_per_epoch=2", "--decay_epochs=1", "--verbose=0"),
            *("--strategy=mirrored", "--logical_devices=2"),
            f"--workdir={tmp_path / 'two'}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    parts = begun("--noexport", f"--workdir={tmp_path / 'one'}")
    row, model = trained(folder, *parts)
    # It begins with the same numbers.
    before = detection.detector(
        folder / "runs" / "small", parts[0], 5, parts[2]
    )
    moved = {
        new.path: not np.array_equal(new, old)
        for new, old in zip(
            model.trainable_variables, before.trainable_variables, strict=True
        )
    }
    assert all(moved.values()), moved

    parts = begun("--noexport", f"--workdir={tmp_path / 'killed'}")
    saved = keras_calib.ResumableBackup.on_epoch_end

    def killed(self, epoch, logs=None):
        saved(self, epoch, logs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(keras_calib.ResumableBackup, "on_epoch_end", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(folder, *parts)
    *parts, options = parts
    again, other = trained(folder, *parts, options._replace(resume=True))
    assert again["ap"] == pytest.approx(row["ap"], abs=1e-6)
    for one, two in zip(model.weights, other.weights, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)
    other = parts[0]._replace(learning_rate=0.5)
    with pytest.raises(ValueError, match="'learning_rate'"):
        trained(folder, other, parts[1], options)

    errors = script.communicate()[1]
    assert script.returncode == 0, errors[-3000:]
    (run,) = run_results.find_runs([tmp_path / "two"])
    assert run.parent.name == "cutmix_from_some_images"
    two = run_results.read_row(run)
    assert two["ap"] == pytest.approx(row["ap"], abs=1e-6)
    assert two["begin_with"] == str(folder / "runs" / "small")
    # Weights and momenta too.
    (one,) = (tmp_path / "one").rglob("backup.npz")
    with np.load(one) as one, np.load(run / "backup.npz") as two:
        arrays = [name for name in one if one[name].dtype == "float32"]
        assert len(arrays) > len(model.weights)
        for name in arrays:
            np.testing.assert_allclose(
                one[name], two[name], rtol=1e-4, atol=1e-6, err_msg=name
            )
    assert (run / "serving" / "saved_model.pb").is_file()


# Errors.


@pytest.mark.parametrize(
    "more, begin, words",
    [
        ((), "none", "`--begin_with` must be the folder of a run, with"),
        ((), "unsaved", "with model.keras"),
        ((), "grey", "must take RGB images"),
        ((), "dense", "features of stride 4. Received: strides []"),
        (("--data=boxless",), "small", "must have boxes of objects"),
        (("--data=canvases/boxless",), "small", "must have boxes of objects"),
        (("--data=plain",), "small", "a feature `objects`"),
        (("--data=nothing",), "small", "name of a TFDS image data set"),
        (("--batch_size=99", "--steps_per_epoch=0"), "small", "24 images"),
        (("--loss=MbLS",), "small", "must have no loss among its flags"),
        (("--mix=cutmix",), "small", "must have no loss among its flags"),
        (("--validation=0.1",), "small", "{'validation': 0.1}"),
        (("--keep=best",), "small", "{'keep': 'best'}"),
        (("--image_size=40",), "small", "a multiple of 16"),
        (("--image_size=32,48",), "small", "must be one number"),
        (("--augment=crop",), "small", "must be none or flip"),
        (("--net=resnet50",), "small", "must be one of ['retinanet'"),
    ],
)
def test_what_cannot_be_detected_with_is_refused_by_name(
    more, begin, words, begun, folder, tmp_path
):
    setup, method, options = begun(*more, f"--workdir={tmp_path}")
    method = method._replace(method="cross_entropy")
    begin = folder / "runs" / begin
    with pytest.raises(app.UsageError) as error:
        detection.check_setup(setup, method)
        detection.backbone_names(begin)
        data = types.SimpleNamespace(names=[*"abcde"])
        if more and more[0].startswith(("--data", "--batch")):
            if setup.data != "boxed" and "--batch" in more[0]:
                setup = setup._replace(data="boxed")
            data = boxes_data.load_boxes(setup, options)
        model = detection.detector(begin, setup, len(data.names), options)
        detection.run(model, data, setup, method, options)
    assert words in str(error.value)
    # Nothing half written.
    assert not list(tmp_path.iterdir())

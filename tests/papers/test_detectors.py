"""What detectors learn from and begin with, and what they are worth."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from data import canvases
from data import detection as boxes_data
from detection_cases import SMALL
from nets import detector as detectors
from nets.resnet import resnet50
from nets.small_resnet import small_resnet
from recipe_cases import PAPERS
from results import comparisons
from results import runs as run_results
from results.detections import average_precision
from runs import detection
from scipy import ndimage

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


def test_flips_move_boxes_with_their_objects(begun):
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
def model(detection_folder):
    network = run_results.load_network(detection_folder / "runs" / "small")
    return detectors.build_detector(network, SMALL, 32, 5)


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_loss_is_that_of_its_paper(precision, detection_folder, begun):
    *parts, options = begun("--image_size=32")
    options = options._replace(precision=precision)
    model = detection.detector(
        detection_folder / "runs" / "small", parts[0], 5, options
    )
    keras.config.set_dtype_policy("float32")
    random = np.random.default_rng(0)
    anchors = anchors_of(32)
    logits = random.normal(size=(2, len(anchors), 5))
    deltas = random.normal(size=(2, len(anchors), 4))
    # The second image has one object; the other row fills it up.
    boxes = np.array(
        [
            [[2.3, 3.1, 18.7, 17.2], [14.1, 6.4, 30.2, 28.3]],
            [[4.7, 12.1, 17.3, 26.2], [0, 0, 0, 0]],
        ],
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
    images = np.zeros((2, 32, 32, 3), "float32")
    assert model(images)["cls_logits"].dtype == precision.removeprefix("mixed_")
    loss = model.compute_loss(
        x=images,
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


def test_backbone_sees_what_its_classifier_saw(detection_folder):
    network = run_results.load_network(detection_folder / "runs" / "small")
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


@pytest.mark.slow
def test_the_detector_of_coco_has_as_many_weights_as_that_of_torchvision():
    """Of retinanet_resnet50_fpn, whose normalizations are not counted."""
    network = resnet50((224, 224, 3), 2)
    assert list(detectors.stages(network)) == [4, 8, 16, 32]
    pyramid = detectors.DETECTORS["retinanet"]
    model = detectors.build_detector(network, pyramid, 256, 91)
    counts = {True: 0, False: 0}
    for variable in model.variables:
        normalizes = variable.path.split("/")[0].endswith("_bn")
        counts[normalizes] += int(np.prod(variable.shape))
    assert counts[False] == 34_014_999
    learnt = [v.path for v in model.trainable_variables if "resnet" in v.path]
    assert {path[: len("resnet_conv3")] for path in learnt} == {
        f"resnet_conv{stage}" for stage in (3, 4, 5)
    }
    assert not [path for path in learnt if "_bn" in path]
    anchors = 9 * sum((256 // 2**k) ** 2 for k in range(3, 8))
    assert model.output["cls_logits"].shape == (None, anchors, 91)


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


def test_published_precision_stands_beside_a_run():
    name = "cutmix_from_imagenet_mask_resnet50"
    path = PAPERS / "results" / "published.csv"
    found = comparisons.read_published(path, "coco_retinanet_resnet50")
    assert found[name, "ap"] == "0.312"
    assert found["cutmix_from_imagenet_resnet50_als", "ap75"] == "0.353"
    assert found[name, "ar"] == "0.428"
    rows = {name: {0: {"diverged": False, "ap": 0.25, "ar": 0.5}}}
    text = comparisons.markdown(rows, ["ap", "ar"], found)
    assert "| 0.2500 [0.312] | 0.5000 [0.428] |" in text
    # Nothing of it is drawn, for want of an accuracy.
    assert not comparisons.paired_values(rows, name)

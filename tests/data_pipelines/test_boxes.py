"""Boxes, windows, masks and the share that objects cover."""

import numpy as np
import pytest
import tensorflow as tf

import keras_calib as kc


def random_boxes(rng, count, height, width):
    """Boxes with whole corners, some of them beyond the edges, some small."""
    y = np.sort(rng.integers(-9, height + 10, (count, 2)), axis=1)
    x = np.sort(rng.integers(-9, width + 10, (count, 2)), axis=1)
    if rng.random() < 0.5:
        y[:, 1] = y[:, 0] + rng.integers(0, 9, count)
        x[:, 1] = x[:, 0] + rng.integers(0, 9, count)
    return np.stack([y[:, 0], x[:, 0], y[:, 1], x[:, 1]], axis=1)


def painted(boxes, height, width):
    mask = np.zeros((height, width), bool)
    for ymin, xmin, ymax, xmax in np.maximum(boxes, 0):
        mask[ymin:ymax, xmin:xmax] = True
    return mask


def share(window, boxes):
    window, boxes = (np.asarray(x, "float32") for x in (window, boxes))
    return kc.data.objectness(window, boxes).numpy()


# Area of the union.


@pytest.fixture(scope="module")
def measure():
    return tf.function(
        kc.data.objectness,
        autograph=False,
        input_signature=[tf.TensorSpec([4]), tf.TensorSpec([None, 4])],
    )


def unions_are_those_of_painted_masks(measure, count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        height, width = rng.integers(5, 200, 2)
        boxes = random_boxes(rng, rng.integers(1, 101), height, width)
        expected = painted(boxes, height, width).mean()
        size = np.array([height, width] * 2)
        for scale in (1, size):
            got = measure(
                (np.array([0, 0, height, width]) / scale).astype("float32"),
                (boxes / scale).astype("float32"),
            )
            assert abs(got.numpy() - expected) <= 1e-6


def test_union_is_that_of_a_painted_mask(measure):
    unions_are_those_of_painted_masks(measure, 50)


@pytest.mark.slow
def test_union_is_that_of_a_painted_mask_over_2000_sets_of_boxes(measure):
    unions_are_those_of_painted_masks(measure, 2000)


def test_share_in_a_window_is_that_of_the_mask_in_it():
    rng = np.random.default_rng(1)
    for _ in range(15):
        height, width = rng.integers(20, 100, 2)
        boxes = random_boxes(rng, rng.integers(1, 20), height, width)
        top, left = rng.integers(0, 10, 2)
        bottom, right = rng.integers(11, 20, 2)
        part = painted(boxes, height, width)[top:bottom, left:right]
        window = [top, left, bottom, right]
        assert abs(share(window, boxes) - part.mean()) <= 1e-6
        mask = kc.data.boxes_to_mask(
            kc.data.crop_boxes(boxes, window), part.shape
        )
        np.testing.assert_array_equal(mask[..., 0].numpy(), part)
        from_mask = kc.data.objectness_from_mask(mask).numpy()
        assert abs(from_mask - part.mean()) <= 1e-6


def test_cropping_first_gives_the_same_area():
    rng = np.random.default_rng(2)
    window = np.array([10, 5, 60, 70])
    size = window[2:] - window[:2]
    for _ in range(20):
        boxes = random_boxes(rng, rng.integers(1, 30), 80, 90)
        area = kc.data.union_area(boxes, window).numpy()
        cropped = kc.data.crop_boxes(boxes, window)
        after = kc.data.union_area(cropped, [0, 0, *size]).numpy()
        np.testing.assert_allclose(after, area, rtol=1e-6)


def test_flips_and_resizes_change_no_share():
    rng = np.random.default_rng(3)
    boxes = random_boxes(rng, 12, 80, 90).astype("float64")
    expected = share([0, 0, 80, 90], boxes)
    mask = kc.data.boxes_to_mask(boxes, (80, 90)).numpy()
    for axis, direction in enumerate(("vertical", "horizontal")):
        flipped = kc.data.flip_boxes(boxes, (80, 90), direction)
        assert abs(share([0, 0, 80, 90], flipped) - expected) <= 1e-6
        again = kc.data.boxes_to_mask(flipped, (80, 90)).numpy()
        np.testing.assert_array_equal(again, np.flip(mask, axis))
    resized = kc.data.resize_boxes(boxes, (80, 90), (37, 411))
    assert abs(share([0, 0, 37, 411], resized) - expected) <= 1e-6


def test_many_images_at_once_are_each_by_itself():
    rng = np.random.default_rng(4)
    boxes = np.stack([random_boxes(rng, 7, 50, 60) for _ in range(5)])
    windows = np.array([[k, 0, 40 + k, 50] for k in range(5)])
    at_once = share(windows, boxes)
    one_by_one = [share(*pair) for pair in zip(windows, boxes, strict=True)]
    np.testing.assert_allclose(at_once, one_by_one, atol=1e-6)


def test_one_box_twice_covers_as_much_and_none_nothing():
    box, window = [[1.0, 2.0, 5.5, 9.25]], [0, 0, 8, 8]
    once, twice = share(window, box), share(window, box * 2)
    assert once == twice == np.float32(4.5 * 6 / 64)
    assert share(window, np.zeros((0, 4))) == 0
    assert share(window, [[9, 9, 10, 10]]) == 0


def test_only_boxes_of_the_classes_count():
    boxes = [[0, 0, 1, 1], [1, 1, 2, 2], [0, 1, 1, 2]]
    for classes, expected in (((0, 7), 0.5), ((), 0.0)):
        got = kc.data.objectness(
            [0, 0, 2, 2], boxes, classes=classes, box_labels=[0, 3, 7]
        )
        assert got.numpy() == expected


def test_float64_boxes_keep_their_precision():
    boxes = np.array([[0.0, 0.0, 1 / 3, 1 / 7], [0.1, 0.1, 0.2, 0.3]])
    got = kc.data.union_area(boxes, np.array([0.0, 0.0, 1.0, 1.0])).numpy()
    expected = 1 / 21 + 0.1 * (0.3 - 1 / 7)
    assert abs(got - expected) < 1e-15


# Masks.


def test_a_mask_is_within_a_pixels_perimeter_of_the_boxes():
    rng = np.random.default_rng(5)
    for _ in range(20):
        height, width = rng.integers(20, 80, 2)
        corners = np.sort(rng.uniform(0, 1, (1, 2, 2)), axis=1)
        box = corners.reshape(1, 4) * [height, width, height, width]
        exact = share([0, 0, height, width], box)
        mask = kc.data.boxes_to_mask(box, (height, width))
        perimeter = 2 * (box[0, 2] - box[0, 0] + box[0, 3] - box[0, 1] + 2)
        distance = abs(kc.data.objectness_from_mask(mask).numpy() - exact)
        assert distance <= perimeter / (height * width)


def test_touched_pixels_hold_every_box():
    box = [[1.2, 2.9, 3.1, 4.0]]
    centres = kc.data.boxes_to_mask(box, (5, 6))[..., 0].numpy()
    touched = kc.data.boxes_to_mask(box, (5, 6), touched=True)[..., 0].numpy()
    assert centres.sum() == 2 * 1
    np.testing.assert_array_equal(np.argwhere(touched).min(0), [1, 2])
    np.testing.assert_array_equal(np.argwhere(touched).max(0), [3, 3])
    empty = kc.data.boxes_to_mask([[2.5, 2.5, 2.5, 4.0]], (5, 6), touched=True)
    assert empty.numpy().sum() == 0


def test_values_of_a_mask_can_be_chosen():
    mask = np.array([[0, 1], [2, 2]])[..., None]
    for classes, area in ((None, 3), ((2,), 2), ((0, 2), 3)):
        assert kc.data.mask_area(mask, classes).numpy() == area
    assert kc.data.objectness_from_mask(mask, classes=(1,)).numpy() == 0.25
    assert kc.data.objectness_from_mask(mask == 1).numpy() == 0.25


# Bad input.


def test_what_is_no_box_or_window_is_refused():
    window, box = [0, 0, 1, 1], [[0, 0, 1, 1]]
    for wrong, boxes, rule in (
        (window, [[0, 0, np.nan, 1]], "finite"),
        (window, [[0, 0, np.inf, 1]], "finite"),
        (window, [[0.5, 0, 0.2, 1]], "ymin <= ymax"),
        (window, [0.5, 0, 0.2, 1], r"shape \(\.\.\., n, 4\)"),
        (window, [[0.5, 0, 0.2]], r"last axis.*boxes.shape=.*\[1, 3\]"),
        ([0, 0, 0, 1], box, "`window` must have a height"),
        ([0, 0, np.inf, 1], box, "`window` must have a height"),
    ):
        with pytest.raises(ValueError, match=rule):
            share(wrong, boxes)


def test_a_graph_refuses_the_same_when_it_runs(measure):
    boxes = tf.constant([[0.5, 0.0, 0.2, 1.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="ymin <= ymax"):
        measure(tf.constant([0.0, 0.0, 1.0, 1.0]), boxes)


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="given together"):
        kc.data.objectness([0, 0, 1, 1], [[0, 0, 1, 1]], classes=(1,))
    with pytest.raises(ValueError, match="`direction` must be one of"):
        kc.data.flip_boxes([0, 0, 1, 1], direction="diagonal")
    boxes = np.array([[0.0, 0.0, 2.0, 2.0], [0.0, np.nan, 1.0, 1.0]])
    with pytest.raises(
        ValueError, match=r"`boxes` must not contain NaN.*nan, 1"
    ):
        kc.data.boxes_to_mask(boxes, (5, 6))
    for shape in ((3, 3), (3, 3, 2), (0, 3, 1)):
        with pytest.raises(ValueError, match="`mask` must have"):
            kc.data.objectness_from_mask(np.zeros(shape))


def test_arrays_that_are_masked_are_refused():
    for refuse in (
        lambda x: kc.data.objectness(x, np.ones((1, 4))),
        lambda x: kc.data.objectness([0, 0, 4, 4], x),
        kc.data.objectness_from_mask,
    ):
        with pytest.raises(TypeError, match="must not be a masked array"):
            refuse(np.ma.ones((1, 4, 1)))

"""Image, boxes and mask through one crop, resize and flip."""

import numpy as np
import pytest
import tensorflow as tf
from examples_with_boxes import jpeg, smooth_image

import keras_calib as kc

SEEDS = [(0, k) for k in range(30)]
# Corners on pixels of an image of 60 x 80.
BOXES = np.array([[12, 24, 36, 64], [30, 40, 54, 80]]) / [60, 80, 60, 80]
SIZE = (60, 80)


@pytest.fixture(scope="module")
def image():
    return smooth_image(np.random.default_rng(0), *SIZE)


def example(image, **more):
    mask = kc.data.boxes_to_mask(BOXES * [*SIZE, *SIZE], SIZE)
    boxes = BOXES.astype("float32")
    return {"image": image, "boxes": boxes, "mask": mask, "name": "a", **more}


def pixels(crop):
    """The window in pixels, whole numbers."""
    window = np.asarray(crop["window"]) * [*SIZE, *SIZE]
    np.testing.assert_allclose(window, np.round(window), atol=1e-3)
    return np.round(window).astype(int)


# One crop for all.


@pytest.fixture(scope="module")
def crops(image):
    """Crops of 32 x 32 by seed, made in a graph."""
    run = tf.function(
        lambda seed: kc.data.random_resized_crop(example(image), 32, seed=seed),
        autograph=False,
    )
    return [
        {k: v.numpy() for k, v in run(tf.constant(s)).items()} for s in SEEDS
    ]


def test_boxes_and_mask_agree_in_every_crop(image, crops):
    for seed, crop in zip(SEEDS[:8], crops, strict=False):
        by_mask = kc.data.random_resized_crop(
            example(image), 32, seed=seed, objects="mask"
        )
        share = crop["objectness"]
        assert abs(by_mask["objectness"].numpy() - share) <= 1e-6
        # The moved boxes cover as much of the result.
        moved = kc.data.objectness([0.0, 0.0, 1.0, 1.0], crop["boxes"]).numpy()
        assert abs(moved - share) <= 1e-6
        # The resized mask and the moved boxes lie in the same place.
        drawn = kc.data.boxes_to_mask(crop["boxes"] * 32, (32, 32)).numpy()
        differing = np.mean(drawn != crop["mask"])
        assert differing <= 4 * 2 * 32 / 32**2 * 0.5
    assert len({bool(crop["flipped"]) for crop in crops[:8]}) == 2


def test_the_picture_shows_the_window(image):
    for seed in SEEDS[:8]:
        crop = kc.data.random_resized_crop(example(image), (24, 40), seed=seed)
        top, left, bottom, right = pixels(crop)
        part = image[top:bottom, left:right].astype("float32")
        if crop["flipped"]:
            part = part[:, ::-1]
        expected = tf.image.resize(part, (24, 40))
        # Half a pixel's difference by the order of resizing and flipping.
        np.testing.assert_allclose(crop["image"], expected, atol=1e-2)
        assert crop["image"].dtype == "float32"
        assert crop["image"].shape == (24, 40, 3)


def test_crops_differ_in_place_shape_and_side(crops):
    windows = np.array([pixels(crop) for crop in crops])
    assert len(np.unique(windows, axis=0)) > 25
    flips = np.mean([bool(crop["flipped"]) for crop in crops])
    assert 0.2 < flips < 0.8
    extent = windows[:, 2:] - windows[:, :2]
    ratio = extent[:, 1] / extent[:, 0]
    assert ratio.min() > 0.7 and ratio.max() < 1.4
    area = extent.prod(1) / (60 * 80)
    assert area.min() > 0.06 and area.min() < 0.3 and area.max() > 0.6


def test_the_same_seed_makes_the_same_crop_eagerly_and_in_a_graph(image, crops):
    crop = kc.data.random_resized_crop(example(image), 32, seed=SEEDS[3])
    for part in ("image", "boxes", "mask", "objectness", "window"):
        np.testing.assert_allclose(crop[part], crops[3][part], atol=1e-4)
    again = tf.constant(SEEDS[3], "int64")
    again = kc.data.random_resized_crop(example(image), 32, seed=again)
    np.testing.assert_array_equal(crop["window"], again["window"])


def test_without_flip_nothing_is_mirrored(image, crops):
    mirrored = [s for s, c in zip(SEEDS, crops, strict=True) if c["flipped"]]
    for seed in mirrored[:3]:
        crop = kc.data.random_resized_crop(
            example(image), 8, seed=seed, flip=False
        )
        assert not crop["flipped"]
        top, left, bottom, right = pixels(crop)
        part = image[top:bottom, left:right].astype("float32")
        expected = tf.image.resize(part, (8, 8))
        np.testing.assert_allclose(crop["image"], expected, atol=1e-2)


def test_scale_and_ratio_of_one_show_the_whole_of_a_square():
    square = np.zeros((40, 40, 3), "uint8")
    boxes = np.array([[0.0, 0.0, 0.5, 0.5]], "float32")
    crop = kc.data.random_resized_crop(
        {"image": square, "boxes": boxes}, 8, (1, 1), (1, 1), (0, 1)
    )
    np.testing.assert_allclose(crop["window"], [0, 0, 1, 1])
    assert crop["objectness"] == 0.25


def test_crops_are_wide_where_the_ratio_says_so(image):
    crop = kc.data.random_resized_crop(
        {"image": image}, 8, (0.2, 0.2), (2.0, 2.0), (0, 1)
    )
    top, left, bottom, right = pixels(crop)
    assert abs((right - left) - 2 * (bottom - top)) <= 2


def test_center_crop_shows_the_middle(image):
    crop = kc.data.center_crop(example(image, label=3, weight=0.5), 30, 0.5)
    np.testing.assert_array_equal(pixels(crop), [15, 25, 45, 55])
    np.testing.assert_allclose(crop["image"], image[15:45, 25:55], atol=1e-3)
    # What else an example has is kept.
    assert crop["label"] == 3 and crop["weight"] == 0.5
    assert crop["name"] == b"a"
    wide = kc.data.center_crop(example(image), (30, 40), 1.0)
    np.testing.assert_array_equal(pixels(wide), [0, 0, 60, 80])
    high = {"image": np.zeros((80, 60, 3), "uint8")}
    window = kc.data.center_crop(high, (30, 60), 1.0)["window"]
    window = window.numpy() * [80, 60, 80, 60]
    np.testing.assert_allclose(window, [25, 0, 55, 60], atol=1e-3)


def test_areas_of_crops_are_drawn_evenly_until_they_fit():
    for size, scale, ratio in (
        ((64, 64), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((60, 80), (0.3, 0.3), (1.0, 1.0)),
        ((40, 120), (0.5, 1.0), (3 / 4, 4 / 3)),
    ):
        areas_are_drawn_evenly(size, scale, ratio)


def areas_are_drawn_evenly(size, scale, ratio):
    image = tf.zeros([*size, 1])
    windows = tf.data.Dataset.range(400).map(
        lambda k: kc.data.random_resized_crop(
            {"image": image}, 2, scale, ratio, tf.stack([k, 7])
        )["window"]
    )
    windows = np.array(list(windows.as_numpy_iterator()))
    extent = (windows[:, 2:] - windows[:, :2]) * size
    got = extent.prod(-1) / np.prod(size)
    # The rule of ImageNet recipes.
    rng = np.random.default_rng(0)
    area = np.prod(size) * rng.uniform(*scale, (4000, 10))
    shape = np.exp(rng.uniform(*np.log(ratio), (4000, 10)))
    width = np.round(np.sqrt(area * shape))
    height = np.round(np.sqrt(area / shape))
    fits = (height > 0) & (height <= size[0]) & (width > 0) & (width <= size[1])
    first = np.arange(4000), fits.argmax(1)
    # Where none of ten fits, the largest with the ratio that is nearest.
    own = np.clip(size[1] / size[0], *ratio)
    largest = min(round(size[0] * own), size[1])
    largest *= min(round(size[1] / own), size[0])
    drawn = np.where(fits[first], (height * width)[first], largest)
    expected = drawn / np.prod(size)
    error = 4 * np.std(expected) / np.sqrt(len(got))
    assert abs(np.mean(got) - np.mean(expected)) <= error + 1e-6
    shape = extent[:, 1] / extent[:, 0]
    rounding = 1.1
    assert ratio[0] / rounding <= shape.min() <= shape.max()
    assert shape.max() <= ratio[1] * rounding


# Files and types.


def test_only_the_window_of_a_jpeg_is_decoded_and_it_is_the_same(image):
    data = jpeg(image)
    whole = tf.io.decode_jpeg(data)
    for seed in SEEDS[:4]:
        by_file = kc.data.random_resized_crop(example(data), 32, seed=seed)
        by_pixels = kc.data.random_resized_crop(example(whole), 32, seed=seed)
        np.testing.assert_array_equal(by_file["window"], by_pixels["window"])
        # Chroma is interpolated from neighbours that a crop may not have.
        distance = np.abs(by_file["image"] - by_pixels["image"])
        assert distance[3:-3, 3:-3].max() < 1e-3 and distance.mean() < 0.2


def test_other_image_files_are_read_too(image):
    expected = kc.data.center_crop(example(image), 16)["image"]
    png = tf.io.encode_png(image)
    for data in (png, png + b"more at the end"):
        got = kc.data.center_crop(example(data), 16)["image"]
        np.testing.assert_allclose(got, expected, atol=1e-3)


def test_a_file_that_is_no_image_is_named(image):
    for end in (0, 1, 10, -40):
        bad = {"image": jpeg(image)[:end], "name": "bad.jpg"}
        with pytest.raises(Exception, match=r"readable.*bad\.jpg") as raised:
            kc.data.center_crop(bad, 8)
        assert isinstance(raised.value, ValueError | tf.errors.OpError)
    data = tf.data.Dataset.from_tensors(bad).map(
        lambda e: kc.data.center_crop(e, 8)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"bad\.jpg"):
        list(data)


def test_boxes_and_masks_may_be_of_any_type(image):
    for boxes in ([[0, 0, 1, 1]], np.array([[0.0, 0.0, 1.0, 1.0]])):
        crop = kc.data.center_crop(
            {"image": image, "boxes": boxes}, np.int64(8)
        )
        assert crop["objectness"] == 1
        assert crop["objectness"].dtype == "float32"
    expected = kc.data.center_crop(example(image), 16)["objectness"]
    for kind in ("bool", "int32"):
        parts = example(image)
        parts["mask"] = tf.cast(parts["mask"], kind)
        crop = kc.data.center_crop(parts, 16, objects="mask")
        assert abs(crop["objectness"] - expected) < 1e-6


def test_an_example_without_objects_is_only_cropped(image):
    crop = kc.data.random_resized_crop({"image": image}, 8, seed=(0, 1))
    assert "objectness" not in crop
    assert crop["image"].shape == (8, 8, 3)


# Bad input.


def test_bad_arguments_are_refused(image):
    for options, rule in (
        ({"size": 0}, "`size` must be >= 1"),
        ({"size": (3, 4, 5)}, "`size` must be one integer or two"),
        ({"scale": (0.0, 1.0)}, r"`scale\[0\]` must be > 0"),
        ({"scale": (0.5, 0.2)}, r"`scale\[1\]` must be >= 0.5"),
        ({"scale": (0.5, 2.0)}, r"`scale\[1\]` must be <= 1"),
        ({"ratio": (1.0,)}, "`ratio` must be two numbers"),
        ({"seed": None}, "`seed` must be two integers"),
        ({"seed": 3}, "`seed` must be two integers"),
        ({"objects": "dots"}, "`objects` must be one of"),
    ):
        options = {"size": 8, "seed": (0, 1), **options}
        with pytest.raises(ValueError, match=rule):
            kc.data.random_resized_crop(example(image), **options)


def test_examples_that_do_not_fit_are_refused_by_name(image):
    one = {"image": image, "name": "b.jpg"}
    outside = np.array([[5.0, 5.0, 20.0, 30.0]], "float32")
    nan = np.array([[0.0, 0.0, np.nan, 1.0]], "float32")
    inverted = np.array([[0.5, 0.0, 0.2, 1.0]], "float32")
    labels = {"boxes": BOXES, "box_labels": np.array([2, 2])}
    for bad, options, rule in (
        ({}, {"objects": "mask"}, "must have 'mask': `objects`"),
        ({"mask": np.zeros(SIZE)}, {}, "`mask` must hold integers"),
        ({"mask": np.zeros((*SIZE, 1))}, {}, "`mask` must hold integers"),
        ({"boxes": BOXES}, {"classes": (1,)}, "must have 'box_labels'"),
        (labels, {"classes": 2}, "a sequence of class ids"),
        ({"mask": np.ones((60, 79, 1), int)}, {}, r"`mask` must have.*b\.jpg"),
        (
            {"boxes": BOXES, "image_size": np.array([80, 60])},
            {},
            r"size must be that of the annotation.*b\.jpg",
        ),
        ({"image": image[:0]}, {}, r"must have pixels.*b\.jpg"),
        ({"image": image[0]}, {}, "`image` must have shape"),
        ({"boxes": outside}, {}, r"Boxes must be.*example='b\.jpg'"),
        ({"boxes": nan}, {}, r"Boxes must be.*example='b\.jpg'"),
        ({"boxes": inverted}, {}, r"Boxes must be.*example='b\.jpg'"),
    ):
        with pytest.raises(ValueError, match=rule):
            kc.data.center_crop(one | bad, 8, **options)
    half = example(image, image_size=np.array([30, 40]))
    assert kc.data.center_crop(half, 8)["objectness"] > 0

"""Objects painted over: alone, or nothing but their context."""

import numpy as np
import pytest
import tensorflow as tf
from examples_with_boxes import make_examples, smooth_image

import keras_calib as kc
from keras_calib.data.painting import IMAGENET_MEAN, without_objects

# Corners on pixels of an image of 60 x 80.
BOXES = np.array([[12, 24, 36, 64], [30, 40, 54, 80]]) / [60, 80, 60, 80]
SIZE = (60, 80)
INSIDE = np.round(BOXES * [*SIZE, *SIZE]).astype(int)


@pytest.fixture(scope="module")
def image():
    return smooth_image(np.random.default_rng(0), *SIZE)


def example(image, *parts, **more):
    """An example with `boxes` or `mask` or both."""
    objects = {
        "boxes": BOXES.astype("float32"),
        "mask": kc.data.boxes_to_mask(BOXES * [*SIZE, *SIZE], SIZE),
    }
    objects = {part: objects[part] for part in parts}
    return {"image": image, "name": "a", **objects, **more}


def context_of(example, **options):
    rows = tf.data.Dataset.from_tensors(example)
    (bare,) = kc.data.context_examples(rows, **options)
    return bare


def test_painted_objects_leave_nothing_but_their_surroundings(image):
    bare = context_of(example(image, "boxes"), fill=(1.0, 2.4, 3.6))
    assert bare["context"]
    painted = image.copy()
    for ymin, xmin, ymax, xmax in INSIDE:
        painted[ymin:ymax, xmin:xmax] = [1, 2, 4]
    for seed in range(5):
        crop = kc.data.random_resized_crop(bare, 32, seed=(0, seed), flip=False)
        assert crop["objectness"] == 0
        window = np.round(crop["window"].numpy() * [*SIZE, *SIZE])
        top, left, bottom, right = window.astype(int)
        part = painted[top:bottom, left:right].astype("float32")
        expected = tf.image.resize(part, (32, 32))
        np.testing.assert_allclose(crop["image"], expected, atol=1e-2)


def test_a_mask_is_painted_over_like_boxes_and_emptied_too(image):
    bares = [
        context_of(example(image, *parts))
        for parts in (("boxes",), ("mask",), ("boxes", "mask"))
    ]
    for seed in range(3):
        crops = [
            kc.data.random_resized_crop(bare, 32, seed=(0, seed))
            for bare in bares
        ]
        for crop in crops:
            assert crop["objectness"] == 0
            np.testing.assert_allclose(
                crop["image"], crops[0]["image"], atol=1e-3
            )
    assert kc.data.center_crop(bares[2], 16, objects="mask")["objectness"] == 0


def test_each_object_is_left_alone_once(image):
    parts = example(image, "boxes", "mask", box_labels=np.array([4, 2]))
    rows = tf.data.Dataset.from_tensors(parts)
    data = kc.data.object_examples(rows, fill=(0.0, 0.0, 0.0))
    assert "mask" not in data.element_spec
    alone = list(data)
    assert [int(e["label"]) for e in alone] == [4, 2]
    for place, one in enumerate(alone):
        crop = kc.data.center_crop(one, SIZE, 1.0)
        expected = image.copy()
        ymin, xmin, ymax, xmax = INSIDE[1 - place]
        expected[ymin:ymax, xmin:xmax] = 0
        ymin, xmin, ymax, xmax = INSIDE[place]
        expected[ymin:ymax, xmin:xmax] = image[ymin:ymax, xmin:xmax]
        np.testing.assert_allclose(crop["image"], expected, atol=1e-3)
        np.testing.assert_allclose(one["boxes"][0], BOXES[place], atol=1e-6)


def test_the_context_of_an_object_left_alone_has_neither(image):
    parts = example(image, "boxes", box_labels=np.array([4, 2]))
    rows = tf.data.Dataset.from_tensors(parts)
    expected = kc.data.center_crop(context_of(parts), 32)["image"]
    for one in kc.data.context_examples(kc.data.object_examples(rows)):
        got = kc.data.center_crop(one, 32)["image"]
        np.testing.assert_allclose(got, expected, atol=1e-3)


def test_what_is_painted_over_stays_so(image):
    once = context_of(example(image, "mask"))
    twice = without_objects(once, IMAGENET_MEAN)
    first, second = (kc.data.center_crop(e, 16)["image"] for e in (once, twice))
    np.testing.assert_allclose(first, second)
    # A crop of a crop is not painted at the old place again.
    again = kc.data.center_crop(kc.data.center_crop(once, 60), 16)
    assert "painted_mask" not in again


def test_a_fill_must_fit_the_channels(image):
    grey = example(image[..., :1], "boxes")
    with pytest.raises(ValueError, match="`fill` must have one value"):
        kc.data.center_crop(context_of(grey), 8)
    bare = context_of(grey, fill=(90.0,))
    assert kc.data.center_crop(bare, 8)["image"].shape == (8, 8, 1)


def test_what_is_no_box_is_named_before_it_is_painted(image):
    bad = example(image, boxes=np.array([[0.5, 0, 0.2, 1]], "float32"))
    with pytest.raises(ValueError, match="Boxes must be.*example='a'"):
        kc.data.center_crop(context_of(bad), 8)


def test_objects_that_are_not_there_cannot_be_painted(image):
    plain = tf.data.Dataset.from_tensors({"image": image})
    with pytest.raises(ValueError, match="must have 'boxes'"):
        kc.data.object_examples(plain)
    with pytest.raises(ValueError, match="must have 'mask'"):
        kc.data.context_examples(plain)
    labels = {"box_labels": np.array([4, 2])}
    rows = tf.data.Dataset.from_tensors(example(image, "boxes", **labels))
    with pytest.raises(ValueError, match="must not have an index yet"):
        kc.data.object_examples(kc.data.with_index(rows))


def test_the_pixel_mean_is_that_of_all_pixels():
    rng = np.random.default_rng(0)
    images = [
        rng.integers(0, 256, (size, 7, 3)).astype("uint8") for size in (3, 9)
    ]
    data = make_examples([{"image": image} for image in images])
    pixels = np.concatenate([image.reshape(-1, 3) for image in images])
    np.testing.assert_allclose(
        kc.data.painting.pixel_mean(data), pixels.mean(0), rtol=1e-12
    )
    first = kc.data.painting.pixel_mean(data, max_examples=1)
    np.testing.assert_allclose(first, images[0].mean((0, 1)), rtol=1e-12)
    files = [{"image": tf.io.encode_png(image).numpy()} for image in images]
    got = kc.data.painting.pixel_mean(make_examples(files))
    np.testing.assert_allclose(got, pixels.mean(0), rtol=1e-12)
    with pytest.raises(ValueError, match="must have images"):
        kc.data.painting.pixel_mean(data.take(0))

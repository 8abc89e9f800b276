"""What is in the batches to train and evaluate on."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from examples_with_boxes import (
    CLASSES,
    arrays_of,
    make_examples,
    numbered_squares,
    smooth_image,
    square_batches,
    squares,
)

import keras_calib as kc
from keras_calib.data import pipelines
from keras_calib.data.crops import Cropped, Cropping
from keras_calib.inputs.options import filled


@pytest.fixture(scope="module")
@tf.autograph.experimental.do_not_convert
def pairs_of_squares():
    """Class ids and shares of an epoch of 40 squares, and their numbers."""
    return arrays_of(square_batches(labels="pairs"))[1:]


def soft_targets(batch, num_classes=CLASSES, **options):
    """What a pipeline makes of the parts of one batch."""
    how = pipelines.Batching(None, "soft", num_classes, None, **options)
    named = {"name": np.full(len(batch["label"]), "a"), **batch}
    rows = tf.data.Dataset.from_tensors(named)
    return rows.map(how.labels)


@pytest.mark.slow
def test_targets_are_those_of_the_lit_share_of_each_crop():
    images, pairs, index = arrays_of(square_batches(labels="pairs", seed=3))
    labels = squares(40, CLASSES)["label"]
    np.testing.assert_array_equal(pairs[:, 0], labels[index])
    lit = (images[..., 0] > 172).mean((1, 2))
    # Within half a pixel of the resized outline.
    assert np.abs(lit - pairs[:, 1]).max() < 0.1
    assert pairs[:, 1].min() == 0 and pairs[:, 1].max() > 0.5
    _, soft, again = arrays_of(
        square_batches(seed=3, beta=0.75, floor="uniform")
    )
    np.testing.assert_array_equal(again, index)
    expected = kc.losses.objectness_targets(
        labels[index], pairs[:, 1].astype("float64"), CLASSES, 0.75, "uniform"
    )
    np.testing.assert_allclose(soft, expected, atol=1e-6)


def test_batches_hold_the_share_that_one_crop_by_itself_has():
    rng = np.random.default_rng(0)
    rows = []
    for k, count in enumerate([1, 5, 3, 9, 2, 7]):
        corners = np.sort(rng.uniform(-0.1, 1.1, (count, 2, 2)), axis=1)
        rows.append(
            {
                "image": smooth_image(rng, 30 + k, 40 - k),
                "label": k % CLASSES,
                "boxes": corners.reshape(-1, 4),
                "box_labels": np.arange(count) % 3,
                "name": str(k),
            }
        )
    options = filled("crop", {"classes": (0, 2)}, Cropped)
    ratio = 3 / 4, 4 / 3
    cropping = Cropping.random(16, (0.08, 1.0), ratio, True, options)
    how = pipelines.Batching(cropping, "pairs", CLASSES, "boxes")

    def crop(place, example):
        seed = tf.stack([place, 1])
        # Through `augment`, shares are found one by one.
        alone = how.crop(example, seed, augment=lambda example: example)
        return how.crop(example, seed), alone

    (batches,) = make_examples(rows).repeat(2).enumerate().map(crop).batch(12)
    pairs, alone = map(how.labels, batches)
    np.testing.assert_allclose(pairs, alone, atol=1e-6)
    assert len(np.unique(pairs[:, 1])) > 8


def test_masks_give_the_shares_of_their_boxes(pairs_of_squares):
    rows = squares(40, CLASSES)
    size = rows["image"].shape[1:3]
    rows["mask"] = np.stack(
        [kc.data.boxes_to_mask(b * [*size, *size], size) for b in rows["boxes"]]
    )
    both = kc.data.with_index(tf.data.Dataset.from_tensor_slices(rows))
    by_mask = arrays_of(square_batches(both, labels="pairs", objects="mask"))
    for a, b in zip(pairs_of_squares, by_mask[1:], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_hard_labels_need_no_boxes_and_labels_no_index(pairs_of_squares):
    rows = squares(40, CLASSES)
    del rows["boxes"]
    plain = tf.data.Dataset.from_tensor_slices(rows)
    pairs, index = pairs_of_squares
    np.testing.assert_array_equal(pairs[:, 0], rows["label"][index])
    # In the same order.
    batches = square_batches(
        plain, labels="one_hot", preprocess=lambda x: x / 255.0
    )
    hard = []
    for x, y in batches:
        assert x.shape == (8, 16, 16, 3)
        assert 0.3 < float(tf.reduce_max(x)) <= 1
        hard.append(y)
    expected = np.eye(CLASSES)[pairs[:, 0].astype(int)]
    np.testing.assert_array_equal(np.concatenate(hard), expected)
    with pytest.raises(ValueError, match="must have 'boxes' or 'mask'"):
        square_batches(plain)


def test_context_examples_have_exactly_uniform_targets():
    dataset = numbered_squares(80)
    images, pairs, _ = arrays_of(
        square_batches(dataset, labels="pairs", context_share=0.3)
    )
    bare = pairs[:, 1] == -1
    assert 0.15 < bare.mean() < 0.45
    assert (pairs[~bare, 1] >= 0).all()
    # No white is left.
    assert images[bare].max() < 200
    labels = pairs[:, 0].astype(int)
    batch = {"label": labels, "objectness": pairs[:, 1], "context": bare}
    (soft,) = soft_targets(batch, beta=0.25)
    soft = soft.numpy()
    np.testing.assert_array_equal(soft[bare], np.float32(1 / CLASSES))
    assert (np.abs(soft[~bare] - 1 / CLASSES).max(-1) > 1e-3).all()
    # The loss reads the flag as the targets do.
    logits = np.random.default_rng(0).normal(size=soft.shape)
    got = kc.AdaptiveLabelSmoothing(0.25, from_logits=True)(pairs, logits)
    expected = keras.losses.CategoricalCrossentropy(from_logits=True)(
        soft, logits
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_targets_are_the_same_where_keras_computes_with_something_else(
    monkeypatch,
):
    # Then NumPy makes them: tensors of tf.data are none of Keras' backend.
    batch = {
        "label": np.array([0, 4, 2, 1]),
        "objectness": np.array([0.0, 0.3, 1.0, 0.5], "float32"),
        "context": np.array([False, False, False, True]),
    }
    options = {"beta": 0.25, "floor": "uniform"}
    (expected,) = soft_targets(batch, **options)
    monkeypatch.setattr(pipelines.backend, "backend", lambda: "jax")
    made = soft_targets(batch, **options)
    assert made.element_spec == tf.TensorSpec((4, CLASSES), "float32")
    np.testing.assert_allclose(next(iter(made)), expected, atol=1e-6)


def test_a_data_set_of_context_keeps_labels_for_evaluation():
    bare = kc.data.context_examples(numbered_squares(8))
    for x, y in kc.data.validation_pipeline(
        bare, 16, 8, CLASSES, labels="pairs"
    ):
        labels = squares(8, CLASSES)["label"][y["index"]]
        np.testing.assert_array_equal(y["label"][:, 0], labels)
        np.testing.assert_array_equal(y["label"][:, 1], 0)
        assert float(tf.reduce_max(x)) < 200


def test_training_on_a_data_set_of_context_has_uniform_targets():
    bare = numbered_squares(8).map(lambda one: {**one, "context": True})
    _, soft, _ = arrays_of(square_batches(bare))
    np.testing.assert_array_equal(soft, np.float32(1 / CLASSES))


def test_validation_shows_every_example_in_order():
    dataset = numbered_squares(20)
    _, ids, index = arrays_of(
        kc.data.validation_pipeline(dataset, 16, 8, CLASSES)
    )
    np.testing.assert_array_equal(index, np.arange(20))
    np.testing.assert_array_equal(ids, squares(20, CLASSES)["label"])
    _, pairs, _ = arrays_of(
        kc.data.validation_pipeline(
            dataset, 16, 8, CLASSES, labels="pairs", fraction=1.0
        )
    )
    boxes = squares(20, CLASSES)["boxes"][:, 0]
    area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    np.testing.assert_allclose(pairs[:, 1], area, rtol=1e-5)


@pytest.mark.parametrize(
    "antialias", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_batches_are_resized_as_one_crop_by_itself(antialias):
    rng = np.random.default_rng(0)
    image = rng.integers(256, size=(20, 20, 3)).astype("uint8")
    dataset = tf.data.Dataset.from_tensors({"image": image, "label": 0})
    options = {"interpolation": "bicubic", "antialias": antialias}
    expected = tf.image.resize(image, (9, 9), "bicubic", antialias=antialias)
    whole = kc.data.validation_pipeline(
        dataset, 9, 1, 2, fraction=1.0, **options
    )
    drawn = kc.data.training_pipeline(
        dataset,
        9,
        1,
        2,
        labels="ids",
        scale=(1.0, 1.0),
        ratio=(1.0, 1.0),
        flip=False,
        **options,
    )
    for pipeline in (whole, drawn):
        images, _ = next(iter(pipeline))
        np.testing.assert_allclose(images[0], expected, atol=1e-3)


def test_objectness_targets_are_mixed_with_their_images(pairs_of_squares):
    _, mixed, index = arrays_of(
        square_batches(mix=partial(kc.data.mixup, alpha=5))
    )
    pairs, again = pairs_of_squares
    np.testing.assert_array_equal(index, again)
    plain = kc.losses.objectness_targets(
        pairs[:, 0].astype(int), pairs[:, 1].astype("float64"), CLASSES
    )
    np.testing.assert_allclose(mixed.sum(-1), 1, rtol=1e-5)
    assert np.abs(mixed - plain).max() > 0.05
    # Each is a mixture of targets of its batch.
    for start in range(0, 40, 8):
        part = plain[start : start + 8]
        one = mixed[start : start + 8]
        assert (one <= part.max(0) + 1e-6).all()
        assert (one >= part.min(0) - 1e-6).all()


def test_context_is_made_of_examples_with_objects_of_the_classes_alone():
    row = squares(16, CLASSES)
    row["mask"] = np.full((16, 20, 20, 1), 2, "uint8")
    # In every second image, there is an object of class 1.
    row["mask"][::2, :10, :10] = 1
    del row["boxes"]
    whole = kc.data.with_index(tf.data.Dataset.from_tensor_slices(row))
    options = {"labels": "pairs", "context_share": 1.0, "classes": (1,)}
    images, pairs, index = arrays_of(
        square_batches(whole, fill=(0, 0, 0), **options)
    )
    there = index % 2 == 0
    np.testing.assert_array_equal(pairs[:, 1], np.where(there, -1, 0))
    black = np.mean(images == 0, axis=(1, 2, 3))
    assert black[there].min() < 1 and black[there].max() > 0.1
    assert black[~there].max() == 0


def test_an_example_without_a_box_is_never_context():
    example = {"image": np.zeros((4, 4, 3), "uint8")}
    for boxes, expected in (([], False), ([[0.0, 0.0, 0.5, 0.5]], True)):
        boxes = tf.reshape(tf.constant(boxes, "float32"), (-1, 4))
        shown = pipelines._some_context(
            {**example, "boxes": boxes}, 1.0, (0.0,) * 3, None, (0, 1)
        )
        assert bool(shown["context"]) == expected


def test_targets_are_never_below_0():
    # Of ten classes, 1 - (1 - 1/10) - 1/10 is less.
    batch = {"label": np.arange(10), "objectness": np.zeros(10, "float32")}
    (soft,) = soft_targets(batch, num_classes=10)
    soft = soft.numpy()
    assert soft.min() == 0 and soft.dtype == "float32"
    np.testing.assert_allclose(soft.sum(-1), 1, rtol=1e-6)


@pytest.mark.slow
def test_a_model_trains_on_them_and_confidence_follows_objectness():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES),
        ]
    )
    model.compile(
        "adam",
        kc.AdaptiveLabelSmoothing(from_logits=True),
        metrics=[kc.ObjectnessDeviation(from_logits=True)],
    )
    train = square_batches(
        tf.data.Dataset.from_tensor_slices(squares(80, CLASSES)),
        labels="pairs",
        context_share=0.2,
        epochs=None,
        preprocess=lambda x: x / 255.0 - 0.5,
    )
    with pytest.warns(UserWarning, match="`shuffle=True` was passed"):
        log = model.fit(train, steps_per_epoch=10, epochs=12, verbose=0).history
    assert log["objectness_deviation"][-1] < log["objectness_deviation"][0]
    assert log["loss"][-1] < log["loss"][0]


# Bad input.


def test_bad_arguments_are_refused():
    for options, rule in (
        ({"labels": "hard"}, "`labels` must be one of"),
        ({"beta": 2.0}, "`beta` must be <= 1"),
        ({"floor": "low"}, "`floor` must be one of"),
        ({"batch_size": 0}, "`batch_size` must be >= 1"),
        ({"num_classes": 1}, "`num_classes` must be >= 2"),
        ({"context_share": 1.5}, "`context_share` must be <= 1"),
        ({"jitter": -1.0}, "`jitter` must be >= 0"),
        ({"epochs": 0}, "`epochs` must be >= 1"),
        ({"first_epoch": -1}, "`first_epoch` must be >= 0"),
        ({"shuffle_buffer": 0}, "`buffer_size` must be >= 1"),
        ({"num_parallel_calls": 0}, "`num_parallel_calls` must be >= 1"),
        ({"labels": "ids", "context_share": 0.1}, "must not be 'ids'"),
        ({"labels": "ids", "mix": kc.data.cutmix}, "to be mixed"),
        ({"objects": "mask"}, "must have 'mask': `objects`"),
        ({"batch_size": 50}, "examples for a batch"),
    ):
        with pytest.raises(ValueError, match=rule):
            square_batches(**options)


def test_examples_that_cannot_be_labelled_are_refused():
    rows = squares(16, CLASSES)
    labels = rows.pop("label")
    with pytest.raises(ValueError, match="must have 'label'.*object_examples"):
        square_batches(tf.data.Dataset.from_tensor_slices(rows))
    for wrong in (labels + 0.9, np.eye(CLASSES)[labels]):
        data = tf.data.Dataset.from_tensor_slices({**rows, "label": wrong})
        with pytest.raises(ValueError, match="must be one class id"):
            square_batches(data)


def test_labels_out_of_range_are_named():
    rows = squares(16, CLASSES)
    rows["label"][3] = CLASSES
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    with pytest.raises(tf.errors.InvalidArgumentError, match="square 3"):
        list(square_batches(dataset, labels="ids"))
    del rows["name"]
    rows["label"][3] = -1
    dataset = kc.data.with_index(tf.data.Dataset.from_tensor_slices(rows))
    with pytest.raises(tf.errors.InvalidArgumentError, match="index 3"):
        list(kc.data.validation_pipeline(dataset, 16, 8, CLASSES))


def test_masks_of_another_size_are_named_by_pipelines_too():
    rows = squares(8, CLASSES)
    rows["mask"] = np.ones((8, 20, 7, 1), "uint8")
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    wrong = kc.data.validation_pipeline(
        dataset, 16, 8, CLASSES, labels="pairs", objects="mask"
    )
    # The check speaks before the crop of the mask, every time.
    for _ in range(5):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="square [0-7]"
        ):
            list(wrong)

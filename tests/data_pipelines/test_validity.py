"""Examples that cannot be what they say: left out, counted, named."""

import numpy as np
import pytest
import tensorflow as tf
from examples_with_boxes import jpeg, make_examples, squares

import keras_calib as kc

GREY = np.full((10, 20, 3), 90, "uint8")


def test_valid_examples_are_left_as_they_are():
    made = squares(10)
    data = tf.data.Dataset.from_tensor_slices(made)
    tally = kc.data.Tally()
    kept = list(kc.data.valid_examples(data, num_classes=5, tally=tally))
    assert len(kept) == 10 and sum(tally.counts().values()) == 0
    for place, row in enumerate(kept):
        assert set(row) == set(made)
        np.testing.assert_array_equal(row["boxes"], made["boxes"][place])
    # Files are decoded, and stay files.
    files = [{"image": jpeg(GREY), "label": 1, "name": "a"}]
    (kept,) = kc.data.valid_examples(make_examples(files))
    assert set(kept) == {"image", "label", "name"}
    assert kept["image"].dtype == tf.string


def test_labels_out_of_range_are_left_out():
    made = squares(4)
    made["label"][:] = [0, 4, 5, -1]
    made["box_labels"] = np.array([[0], [99], [0], [0]])
    data = tf.data.Dataset.from_tensor_slices(made)
    tally = kc.data.Tally()
    kept = kc.data.valid_examples(data, num_classes=5, tally=tally)
    assert [int(e["label"]) for e in kept] == [0]
    assert tally.counts()["bad label"] == 3
    assert len(list(kc.data.valid_examples(data))) == 4


def test_masks_of_another_size_and_empty_images_are_left_out():
    made = [
        {"image": GREY, "mask": np.zeros((10, 20, 1), "uint8"), "name": "a"},
        {"image": GREY, "mask": np.zeros((20, 10, 1), "uint8"), "name": "b"},
        {"image": GREY[:0], "mask": np.zeros((0, 20, 1), "uint8"), "name": "c"},
    ]
    tally = kc.data.Tally()
    kept = list(kc.data.valid_examples(make_examples(made), tally=tally))
    assert [row["name"] for row in kept] == [b"a"]
    assert tally.counts()["bad mask"] == tally.counts()["unreadable image"] == 1


def test_boxes_without_labels_or_of_another_shape_are_left_out():
    rows = squares(3)
    rows["box_labels"] = np.array([1, 2, 3])[:, None]
    rows["image_size"] = np.array([[20, 20], [10, 10], [20, 10]])
    data = tf.data.Dataset.from_tensor_slices(rows)
    tally = kc.data.Tally()
    kept = kc.data.valid_examples(data, tally=tally)
    assert [int(e["box_labels"][0]) for e in kept] == [1, 2]
    assert tally.names()["bad boxes"] == ["square 2"]
    uneven = data.map(lambda e: {**e, "box_labels": tf.range(2)}).take(1)
    assert not list(kc.data.valid_examples(uneven))


def test_errors_of_where_examples_come_from_are_not_skipped():
    rows = tf.data.Dataset.from_tensor_slices({"image": [jpeg(GREY)] * 9})
    short = rows.apply(tf.data.experimental.assert_cardinality(10))
    with pytest.raises(tf.errors.FailedPreconditionError):
        list(kc.data.valid_examples(short))

    def wrong(number):
        if number == 5:
            raise RuntimeError("of the user")
        return number

    failing = rows.enumerate().map(
        lambda place, row: {
            **row,
            "number": tf.numpy_function(wrong, [place], tf.int64),
        }
    )
    with pytest.raises(tf.errors.UnknownError, match="of the user"):
        list(kc.data.valid_examples(failing))


def test_good_examples_that_were_read_ahead_are_not_counted():
    rows = {"image": [jpeg(GREY)] * 64, "name": [str(k) for k in range(64)]}
    tally = kc.data.Tally()
    good = kc.data.valid_examples(
        tf.data.Dataset.from_tensor_slices(rows), tally=tally
    )
    assert len(list(good.prefetch(4).take(3))) == 3
    assert not any(tally.counts().values())
    assert not any(tally.names().values())

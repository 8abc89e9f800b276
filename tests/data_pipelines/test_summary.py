"""What `describe` says of a data set."""

import numpy as np
import pytest
import tensorflow as tf
from examples_with_boxes import make_examples, squares
from examples_with_boxes import rows_of_labels as rows

import keras_calib as kc
from keras_calib.data.validity import Cleaning, clean, policies

NAMES = ["animal", "cat", "kitten", "dog", "puppy", "car"]


def test_a_data_set_is_described(capsys):
    data = make_examples(rows([[1, 0, 2], [1], [], [3]]))
    summary = kc.data.describe(data, NAMES)
    assert summary.num_examples == 4 and summary.without_boxes == 1
    assert summary.num_boxes == 5 and summary.max_boxes == 3
    assert summary.counts == dict(zip(NAMES, [1, 2, 0, 1, 0, 0], strict=True))
    # All boxes lie in the first, a quarter of the image.
    assert abs(summary.mean_objectness - 0.25) < 1e-7
    printed = capsys.readouterr().out
    assert "kitten" in printed and "0.2500" in printed
    assert printed.strip() == str(summary)


def test_rows_kept_without_boxes_do_not_count_as_objects():
    how = policies("test", {"without_boxes": "keep"}, Cleaning)
    data = clean(make_examples(rows([[0], []])), how)
    data = data.enumerate().map(lambda place, e: {**e, "label": place})
    summary = kc.data.describe(data)
    assert summary.without_boxes == 1 and summary.counts == {0: 1, 1: 1}


def test_masks_are_described_too():
    masks = np.zeros((3, 4, 4, 1), "uint8")
    masks[1, :2], masks[2, 0] = 1, 2
    data = tf.data.Dataset.from_tensor_slices({"mask": masks})
    summary = kc.data.describe(data)
    assert summary.without_boxes == 1 and not summary.counts
    assert abs(summary.mean_objectness - 0.375) < 1e-7
    assert kc.data.describe(data, classes=(2,)).without_boxes == 2


def test_an_empty_data_set_or_a_label_without_a_name_is_refused():
    data = make_examples(rows([[1], [5]]))
    with pytest.raises(ValueError, match="must have examples"):
        kc.data.describe(data.take(0))
    assert kc.data.describe(data, NAMES[:3]).counts["(no class)"] == 1


def test_a_summary_tells_bad_boxes_and_equal_names(capsys):
    bad = rows([[1]])[0]
    bad["boxes"] = [[5.0, 5.0, 20.0, 30.0]]
    summary = kc.data.describe(make_examples([bad, *rows([[0], [2]])]), "aba")
    assert summary.bad_boxes == 1
    assert summary.counts == {"a (0)": 1, "b": 1, "a (2)": 1}
    assert abs(summary.mean_objectness - 0.25) < 1e-7
    assert "with bad boxes" in capsys.readouterr().out


def test_what_is_no_data_set_of_examples_is_refused():
    data = tf.data.Dataset.from_tensor_slices(squares(4))
    for wrong, rule in (
        (data.batch(2), "must be one class id"),
        (data.map(lambda e: (e, 1)), "must be dicts"),
        ([], "must be dicts"),
    ):
        with pytest.raises(ValueError, match=rule):
            kc.data.describe(wrong)
        with pytest.raises(ValueError, match=rule):
            kc.data.training_pipeline(wrong, 8, 2, 5)

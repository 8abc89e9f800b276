"""One reader of models on data sets: every form of data."""

import keras
import numpy as np
import pytest
from data_forms import COUNT, Batches, K, W, X, Y, forms, network

from keras_calib.inputs.options import ReadOptions
from keras_calib.predictions.batches import (
    batches_of,
    count_batches,
    predict_batches,
)
from keras_calib.predictions.outputs import read_as
from keras_calib.predictions.predictions import Predictions

portable = pytest.mark.portable


@portable
def test_every_form_of_data_is_read_as_its_arrays():
    model = network()
    outputs = keras.ops.convert_to_numpy(model(X))
    for arrays in ((X, Y), (X, Y, W)):
        for name, data in forms(*arrays):
            read = list(predict_batches(model, data(), batch_size=10))
            np.testing.assert_allclose(
                np.concatenate([batch.outputs for batch in read]),
                outputs,
                atol=1e-6,
                err_msg=name,
            )
            columns = [(batch.labels, batch.sample_weight) for batch in read]
            for column, expected in zip(
                zip(*columns, strict=True), (Y, W), strict=True
            ):
                if column[0] is None:
                    assert len(arrays) == 2
                    continue
                column = [keras.ops.convert_to_numpy(x) for x in column]
                np.testing.assert_array_equal(
                    np.concatenate(column), expected, err_msg=name
                )
            if "index" in name:
                index = np.concatenate([batch.index for batch in read])
                np.testing.assert_array_equal(index, np.arange(COUNT)[::-1])


def test_a_tuple_of_lists_of_strings_is_several_texts_of_each_example():
    texts = ["a", "b", "c"], ["d", "e", "f"]
    for data in ((texts, [0, 1, 0]), [(texts, [0, 1, 0])]):
        (batch,) = batches_of(data)
        assert isinstance(batch.inputs, tuple)
        assert [x.tolist() for x in batch.inputs] == [*texts]
    # A list of rows is one array, and so is a tuple of rows of numbers.
    for rows in (list(texts), ([1.0, 2.0], [3.0, 4.0])):
        (batch,) = batches_of((rows, [0, 1]))
        assert batch.inputs.shape == np.shape(rows)


def test_tuples_of_arrays_are_those_of_inputs_and_of_outputs():
    parts = [keras.Input(X.shape[1:], name=name) for name in "ab"]
    both = keras.layers.Concatenate()(parts)
    heads = [keras.layers.Dense(3, name=name)(both) for name in ("c", "d")]
    model = keras.Model(parts, heads)
    outputs = model.predict_on_batch([X, X + 1])[1]
    others = np.roll(Y, 1)
    x = X, X + 1
    for data in (
        (x, (Y, others)),
        (x, (Y, others), (W, W[::-1])),
        (list(x), [Y, others]),
        [(x, [Y, others])],
    ):
        read = list(predict_batches(model, data, 10, output="d"))
        columns = [(b.outputs, b.labels, b.sample_weight) for b in read]
        found, labels, weights = zip(*columns, strict=True)
        np.testing.assert_allclose(np.concatenate(found), outputs, atol=1e-5)
        np.testing.assert_array_equal(np.concatenate(labels), others)
        if len(data) == 3:
            np.testing.assert_array_equal(np.concatenate(weights), W[::-1])
    # Rows of labels of two classes, as many as there are examples.
    (batch,) = batches_of((X[:2], [[0, 1], [1, 0]]))
    assert batch.labels.shape == (2, 2)


def test_a_dict_of_one_output_is_that_output():
    one = network()
    model = keras.Model(one.input, {"kind": one.output})
    (batch,) = predict_batches(model, (X, Y), batch_size=COUNT)
    assert batch.outputs.shape == (COUNT, K)


def test_the_loss_says_what_does_not_count():
    assert read_as(network(ignore_class=255)).ignore_class == 255
    assert read_as(network(ignore_class=255), None, 7).ignore_class == 7
    assert read_as(network()).ignore_class is None
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy
    model.compile(loss=loss(from_logits=True, ignore_class=-1))
    assert read_as(model) == ReadOptions(True, ignore_class=-1)


def test_data_are_read_as_a_stream():
    seen = []

    def endless():
        while True:
            seen.append(1)
            yield X[:7], Y[:7]

    stream = predict_batches(network(), endless())
    for _ in range(3):
        next(stream)
    assert len(seen) == 3


BAD = {
    "no data set": (X, TypeError, "must be a tuple of arrays"),
    "a number": (3, TypeError, "must be a tuple of arrays"),
    "four parts": ((X, Y, W, W), TypeError, "must be a tuple of arrays"),
    "lengths": ((X, Y[:-1]), ValueError, "must have the same length"),
    "ragged": (([[1.0], [1.0, 2.0]], [0, 1]), ValueError, "of one length"),
    "no rows": ((np.float32(1.0), 0), TypeError, "one row for each example"),
    "a dict of labels": ((X, {"a": Y}), ValueError, "name one by `output`"),
    "examples": ([(X[0], Y[0])], ValueError, "give batches, not single"),
    "no labels": ([X], ValueError, "must give labels"),
    "no labels in arrays": ((X,), ValueError, "must give labels"),
    "no batches": ([], ValueError, "must have batches"),
    "empty arrays": ((X[:0], Y[:0]), ValueError, "must have batches"),
}


def test_what_is_no_data_set_is_refused():
    model = network()
    for data, error, rule in BAD.values():
        with pytest.raises(error, match=rule + r"[\s\S]*Received: "):
            len(Predictions.of_model(model, data, from_logits=True, verbose=0))


def test_batches_are_counted_where_that_is_possible():
    assert count_batches((X, Y), 10) == 6
    assert count_batches((X, Y), 10, 4) == 4
    assert count_batches(([1.0] * 20, [0] * 20), 32) == 1
    assert count_batches(Batches(X, Y)) == 6
    assert count_batches(Batches(X, Y), 32, 99) == 6
    assert count_batches(x for x in ()) is None

    class Endless(list):
        def cardinality(self):
            return -1

    endless = Endless()
    assert count_batches(endless, 32, 7) == 7
    with pytest.raises(ValueError, match="`steps` must be given"):
        count_batches(endless)

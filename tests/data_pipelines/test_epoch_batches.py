"""Arrays in memory as batches with an index."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

import keras_calib as kc


def noisy(x, labels, key):
    noise = tf.random.stateless_uniform(tf.shape(x["a"]), key)
    return {**x, "a": noise}, 10 * labels


def parts_of(batches):
    return [tf.nest.map_structure(np.asarray, batch) for batch in batches]


def test_arrays_come_in_the_order_of_epoch_batches_for_each_seed_and_epoch():
    x = {"a": np.arange(10.0)[:, None], "b": np.arange(10)}
    arrays = (x, np.arange(10) % 3)
    for drop, seed in ((True, 0), (False, 5), (False, None)):
        options = {
            "batch_size": 4,
            "sample_weight": np.arange(10) / 9,
            "seed": seed,
            "drop_remainder": drop,
        }
        expected = []
        batches = kc.data.EpochBatches(*arrays, **options)
        for epoch in range(3):
            batches.set_epoch(epoch)
            expected.append(parts_of(batches[i] for i in range(len(batches))))
        made = partial(kc.data.array_pipeline, *arrays, **options)
        whole = parts_of(made(epochs=3))
        endless = parts_of(made().take(3 * len(batches)))
        assert int(made(epochs=3).cardinality()) == len(whole)
        assert int(made().cardinality()) == tf.data.INFINITE_CARDINALITY
        # Training that goes on after two epochs.
        resumed = parts_of(made(first_epoch=2, epochs=1))
        for found, epochs in (
            (whole, expected),
            (endless, expected),
            (resumed, expected[2:]),
        ):
            there = [batch for epoch in epochs for batch in epoch]
            assert len(found) == len(there)
            for a, b in zip(found, there, strict=True):
                tf.nest.map_structure(np.testing.assert_array_equal, a, b)
        if seed is not None:
            # Epochs differ, and weights are those of their samples.
            orders = [e[0][1]["index"].tolist() for e in expected]
            assert orders[0] != orders[1] != orders[2]
            for _, y, weight in whole:
                np.testing.assert_array_equal(weight, y["index"] / 9)


def test_augmented_arrays_depend_on_seed_epoch_and_place_alone():
    x = {"a": np.zeros((6, 1), "float32"), "b": np.arange(6)}

    def shown(**options):
        batches = kc.data.array_pipeline(
            x, np.arange(6), batch_size=3, augment=noisy, **options
        )
        parts = parts_of(batches.take(2))
        for found, y in parts:
            np.testing.assert_array_equal(y["label"], 10 * y["index"])
            np.testing.assert_array_equal(found["b"], y["index"])
        return np.concatenate([found["a"][:, 0] for found, _ in parts])

    first = shown()
    assert len(set(first)) == 6
    tf.random.set_seed(7)
    np.testing.assert_array_equal(shown(num_parallel_calls=1), first)
    for other in (shown(seed=1), shown(first_epoch=1)):
        assert len(set(other)) == 6
        assert not set(other) & set(first)


def test_arrays_without_batches_are_refused():
    for arguments, message in (
        ({"batch_size": 5}, "samples for a batch"),
        ({"batch_size": 0}, "`batch_size` must be >= 1"),
        ({"first_epoch": -1}, "`first_epoch` must be >= 0"),
        ({"epochs": 0}, "`epochs` must be >= 1"),
        ({"num_parallel_calls": 0}, "`num_parallel_calls` must be >= 1"),
        ({"sample_weight": np.ones(3)}, "the same length"),
    ):
        with pytest.raises(ValueError, match=message):
            kc.data.array_pipeline(np.zeros((4, 2)), np.zeros(4), **arguments)

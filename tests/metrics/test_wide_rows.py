"""Rows as wide as a vocabulary, read in blocks, add the same sums."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.backend import row_gradients
from keras_calib.metrics.reading import read_batch
from keras_calib.numerics import exact_sums


@pytest.mark.portable
@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_of_rows_add_the_sums_of_all(weighted, monkeypatch):
    rng = np.random.default_rng(0)
    logits = 4.0 * rng.standard_normal((5, 7, 100)).astype("float32")
    labels = rng.integers(-1, 100, size=(5, 7)).astype("int32")
    weights = rng.integers(3, size=(5, 7)).astype("float32")
    metric = kc.CalibrationMetrics(from_logits=True, ignore_class=-1)
    batch, _ = read_batch(
        ops.convert_to_tensor(labels),
        ops.convert_to_tensor(logits),
        ops.convert_to_tensor(weights) if weighted else None,
        metric.options,
    )
    whole = ops.convert_to_numpy(metric._limbs(batch))
    monkeypatch.setattr(row_gradients, "_WIDE", 50)
    monkeypatch.setattr(row_gradients, "_MANY", 1000)
    if keras.backend.backend() == "jax":
        monkeypatch.setattr("jax.device_count", lambda: 1)
    assert row_gradients.is_wide(batch.outputs)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        blocks = tf.function(metric._limbs)(batch)
        found = [blocks, metric._limbs(batch)]
    else:
        found = [metric._limbs(batch)]
    assert whole.any()
    exact = exact_sums.to_float(whole)
    for limbs in found:
        # Losses are rounded by batch.
        sums = exact_sums.to_float(ops.convert_to_numpy(limbs))
        np.testing.assert_allclose(sums, exact, 1e-7)

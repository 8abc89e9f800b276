"""Rows as wide as a vocabulary, read in blocks, have the same metrics."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.backend import gradients
from keras_calib.metrics.reading import read_batch


@pytest.mark.parametrize(
    "weighted", [False, pytest.param(True, marks=pytest.mark.portable)]
)
def test_blocks_of_rows_have_the_values_of_all(weighted, monkeypatch):
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
    monkeypatch.setattr(gradients, "_WIDE", 50)
    monkeypatch.setattr(gradients, "_MANY", 1000)
    if keras.backend.backend() == "jax":
        monkeypatch.setattr("jax.device_count", lambda: 1)
    assert gradients.is_wide(batch.outputs)
    found = [metric._limbs(batch)]
    if keras.backend.backend() == "tensorflow" and weighted:
        import tensorflow as tf

        found.append(tf.function(metric._limbs, autograph=False)(batch))
    assert whole.any()
    flags = np.zeros(4, "int32")
    expected = metric._values_of(whole, flags)
    for limbs in found:
        values = metric._values_of(ops.convert_to_numpy(limbs), flags)
        np.testing.assert_allclose(values, expected, 1e-6)

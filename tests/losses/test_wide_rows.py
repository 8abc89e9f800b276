"""Rows as wide as a vocabulary, read in blocks, give the same losses."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.backend import row_gradients
from keras_calib.backend.gradients import value_and_grad


@pytest.mark.parametrize("name", ["LabelSmoothing", "ACLS", "FocalLoss", "DCA"])
def test_blocks_change_neither_value_nor_gradient(name, monkeypatch):
    rng = np.random.default_rng(0)
    logits = 4.0 * rng.standard_normal((19, 100))
    labels = ops.convert_to_tensor(rng.integers(100, size=19).astype("int32"))
    loss = getattr(kc, name)(from_logits=True)
    logits = ops.convert_to_tensor(logits.astype("float32"))
    whole = value_and_grad(lambda z: loss(labels, z), logits)
    monkeypatch.setattr(row_gradients, "_WIDE", 50)
    monkeypatch.setattr(row_gradients, "_MANY", 1000)
    if keras.backend.backend() == "jax":
        monkeypatch.setattr("jax.device_count", lambda: 1)
    assert row_gradients.is_wide(logits)
    blocks = value_and_grad(lambda z: loss(labels, z), logits)
    for one, other in zip(whole, blocks, strict=True):
        np.testing.assert_allclose(
            ops.convert_to_numpy(other), ops.convert_to_numpy(one), 1e-5, 1e-7
        )

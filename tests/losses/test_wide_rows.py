"""Rows as wide as a vocabulary, read in blocks, give the same losses."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.backend import gradients
from keras_calib.backend.gradients import value_and_grad
from keras_calib.backend.keras_internals import set_keras_mask


@pytest.fixture
def narrow(monkeypatch):
    """A function after which 50 classes and 1000 logits are many."""

    def lower():
        monkeypatch.setattr(gradients, "_WIDE", 50)
        monkeypatch.setattr(gradients, "_MANY", 1000)
        monkeypatch.setattr(gradients, "_OF_BLOCK", 300)
        if keras.backend.backend() == "jax":
            monkeypatch.setattr("jax.device_count", lambda: 1)

    return lower


def assert_same(actual, desired):
    for one, other in zip(actual, desired, strict=True):
        np.testing.assert_allclose(
            ops.convert_to_numpy(one), ops.convert_to_numpy(other), 1e-5, 1e-7
        )


@pytest.mark.parametrize("name", ["LabelSmoothing", "ACLS", "FocalLoss", "DCA"])
def test_blocks_change_neither_value_nor_gradient(name, narrow):
    rng = np.random.default_rng(0)
    logits = 4.0 * rng.standard_normal((19, 100))
    ids = rng.integers(100, size=19).astype("int32")
    # Each token rules out others.
    low = rng.random(logits.shape) < 0.2
    logits[low & (np.arange(100) != ids[:, None])] = -np.inf
    labels = ops.convert_to_tensor(ids)
    loss = getattr(kc, name)(from_logits=True)
    logits = ops.convert_to_tensor(logits.astype("float32"))
    whole = value_and_grad(lambda z: loss(labels, z), logits)
    narrow()
    assert gradients.is_wide(logits)
    assert_same(value_and_grad(lambda z: loss(labels, z), logits), whole)


def test_masked_tokens_of_blocks_may_hold_anything(narrow):
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((2, 10, 100)).astype("float32")
    labels = rng.integers(100, size=(2, 10)).astype("int32")
    masked = rng.random((2, 10)) < 0.3
    plain = kc.LabelSmoothing(from_logits=True)
    value, gradient = value_and_grad(
        lambda z: plain(labels[~masked], z), tokens[~masked]
    )
    expected = np.zeros_like(tokens)
    expected[~masked] = ops.convert_to_numpy(gradient)
    tokens[masked] = np.nan
    narrow()
    loss = kc.LabelSmoothing(from_logits=True, ignore_class=-1)
    ignored = np.where(masked, -1, labels)
    assert gradients.is_wide(tokens)
    assert_same(
        value_and_grad(lambda z: loss(ignored, z), tokens), (value, expected)
    )

    def with_keras_mask(z):
        set_keras_mask(z, ops.convert_to_tensor(~masked))
        return plain(labels, z)

    assert_same(value_and_grad(with_keras_mask, tokens), (value, expected))


def test_spatial_shares_are_read_in_blocks_too(narrow):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((1, 4, 5, 60)).astype("float32")
    labels = rng.integers(60, size=(1, 4, 5)).astype("int32")
    loss = kc.NACL(from_logits=True)
    whole = value_and_grad(lambda z: loss(labels, z), logits)
    narrow()
    assert gradients.is_wide(logits)
    assert_same(value_and_grad(lambda z: loss(labels, z), logits), whole)

"""Effective labels as NumPy, and how near they have to be."""

from functools import partial

import numpy as np
from cases import HAS_FLOAT64, array

import keras_calib as kc

# JAX computes in 32 bits.
DTYPE, TOLERANCE = ("float64", 1e-10) if HAS_FLOAT64 else ("float32", 2e-5)
cross_entropy = partial(kc.losses.label_smoothing, alpha=0.0)


def close(got, expected, tolerance=TOLERANCE):
    np.testing.assert_allclose(array(got), expected, rtol=0, atol=tolerance)


def effective(loss, labels, logits):
    """As NumPy; float64 wherever the backend has it."""
    logits = np.asarray(logits, DTYPE)
    found = kc.losses.effective_labels(loss, labels, logits)
    return [array(x) for x in vars(found).values()]


def same(got, expected, tolerance=TOLERANCE):
    for one, other in zip(got, expected, strict=True):
        close(one, other, tolerance)


def total(x):
    return np.sum(x, axis=-1, keepdims=True)

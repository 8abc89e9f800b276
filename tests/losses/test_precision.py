"""Losses of float64 logits are float64 to the last digits, on every backend."""

import contextlib

import numpy as np
import pytest
from cases import BACKEND, LOSSES, array, sample
from keras import ops

import keras_calib as kc

pytestmark = pytest.mark.portable


def wide():
    """JAX has float64 where it is asked for."""
    if BACKEND != "jax":
        return contextlib.nullcontext()
    import jax

    return jax.enable_x64(True)


# All of them are reduced by one function.
@pytest.mark.parametrize(
    "case", [x for x in LOSSES if not x.batch_coupled][::4], ids=str
)
def test_a_mean_has_the_digits_of_its_losses(case):
    labels, logits = sample(n=7, dtype="float64")
    with wide():
        given = case.labels(labels)
        logits = ops.convert_to_tensor(logits, dtype="float64")
        mean, each = (
            array(
                case.make(dtype="float64", reduction=reduction)(given, logits)
            )
            for reduction in ("sum_over_batch_size", None)
        )
    assert mean.dtype == each.dtype == np.float64
    np.testing.assert_allclose(mean, each.mean(), rtol=1e-14)


def test_pairs_have_all_digits():
    labels, logits = sample(n=7, dtype="float64")
    with wide():
        rows = np.eye(5)[labels]
        found = array(
            kc.losses.cpc(
                ops.convert_to_tensor(rows, dtype="float64"),
                ops.convert_to_tensor(logits, dtype="float64"),
                lambda1=0.0,
                lambda2=1.0,
            )
        )
    for y, z, value in zip(labels, logits, found, strict=True):
        others = np.delete(z, y)
        apart = others[:, None] - others
        pairs = np.logaddexp(0, apart)[~np.eye(4, dtype=bool)]
        exact = np.logaddexp.reduce(z) - z[y] + pairs.mean() / 2
        np.testing.assert_allclose(value, exact, rtol=1e-14)

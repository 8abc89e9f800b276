"""Derivatives of the gradients that losses have in closed form."""

import functools

import numpy as np
import pytest
from cases import BACKEND, HAS_FLOAT64, array, one_hot
from keras import ops

import keras_calib as kc
from keras_calib.backend.gradients import value_and_grad

RECORD = np.array([0.1, 0.9, 0.5, 0.3])
LOSSES = {
    "smoothing": kc.losses.label_smoothing,
    "cape": lambda _, z: kc.losses.cape_loss(RECORD, z, classes=np.full(4, 2)),
    "acls": functools.partial(
        kc.losses.acls, margin=1.0, lambda1=0.3, lambda2=0.5
    ),
    "focal": kc.losses.focal_loss,
    "flsd": kc.losses.flsd,
    "relaxation": kc.losses.label_relaxation,
    "penalty": kc.losses.confidence_penalty,
    "uniformity": kc.losses.uniformity_penalty,
    "brier": kc.losses.brier_loss,
    "crl": functools.partial(kc.losses.crl_margin, margin=1.0),
    "ranking": lambda _, z: kc.losses.correctness_ranking(z, RECORD),
    "cpc": kc.losses.cpc,
    "mmce": kc.losses.mmce,
    "mdca": kc.losses.mdca,
}


def second_derivative(function, z, v):
    """The Hessian of a scalar function times v, as each backend makes it."""
    z, v = map(ops.convert_to_tensor, (z, v))
    if BACKEND == "jax":
        import jax

        # Forward over reverse, as `jax.hessian`.
        return jax.jvp(jax.grad(function), (z,), (v,))[1]
    if BACKEND == "torch":
        import torch

        z.requires_grad_(True)
        (slope,) = torch.autograd.grad(function(z), z, create_graph=True)
        return torch.autograd.grad((slope * v).sum(), z)[0]
    import tensorflow as tf

    with tf.GradientTape() as outer:
        outer.watch(z)
        with tf.GradientTape() as inner:
            inner.watch(z)
            value = function(z)
        slope = inner.gradient(value, z)
    return outer.gradient(slope, z, output_gradients=v)


def batch():
    rng = np.random.default_rng(0)
    dtype = "float64" if HAS_FLOAT64 else "float32"
    logits = (rng.normal(size=(4, 5)) * 3).astype(dtype)
    return one_hot(np.arange(4), 5), logits, rng.normal(size=(4, 5))


# Of one sample, of a threshold, of the batch.
PORTABLE = ("acls", "flsd", "mdca")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=pytest.mark.portable) if x in PORTABLE else x
        for x in LOSSES
    ],
)
def test_second_derivatives_are_differences_of_gradients(name):
    labels, logits, v = batch()
    step, error = (1e-5, 1e-8) if HAS_FLOAT64 else (1e-3, 1e-3)

    def function(z):
        return ops.sum(LOSSES[name](labels, z))

    up, down = (
        array(value_and_grad(function, (logits + x).astype(logits.dtype))[1])
        for x in (step * v, -step * v)
    )
    found = second_derivative(function, logits, v.astype(logits.dtype))
    expected = (up - down) / (2 * step)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(array(found), expected, rtol=0, atol=error)


@pytest.mark.portable
@pytest.mark.skipif(BACKEND != "jax", reason="others have no such mode")
def test_jax_derives_forwards():
    import jax

    labels, logits, v = batch()
    for name in ("acls", "mdca", "mmce"):

        def function(z, name=name):
            return ops.sum(LOSSES[name](labels, z))

        _, gradient = value_and_grad(function, logits)
        (slope,) = jax.jvp(function, (logits,), (v.astype("float32"),))[1:]
        np.testing.assert_allclose(slope, np.sum(gradient * v), rtol=1e-5)

"""The variational fit of Gaussian process calibration, in float64.

TensorFlow Probability has the kernel, the Gaussians and their divergence.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from keras_calib.backend.errors import warn
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.backend.optional import tensorflow_probability as tfp

__all__ = ["Curve", "ScaledSamples", "fit_curve"]

# Log-normal priors keep amplitude, length scale and noise off 0 and
# infinity, where a few samples would put them: medians, and the standard
# deviations of the logs. They are in nats.
_MEDIANS = (1.0, 3.0, 0.1)
_SPREADS = (0.5, 0.3, 1.0)
# Relative to the variance of the kernel, so that its matrix has a factor.
_JITTER = 1e-6
# Below this log-probability the curve is that of the prior mean and an offset.
_DEEPEST = -30.0
_MOST_STEPS = 1000


class ScaledSamples(NamedTuple):
    """What a fit needs of the samples, float64."""

    temperature: float
    uniform_share: float
    log_probs: np.ndarray  # `(n, num_classes)`, of `smoothed_log_probs`
    labels: np.ndarray  # soft labels, `(n, num_classes)`
    weight: np.ndarray  # `(n,)`


class Curve(NamedTuple):
    """The posterior of h(u) = g(u) - u."""

    inducing: np.ndarray  # `(num_inducing,)`
    amplitude: float
    length: float
    mean: np.ndarray  # weights of the kernel at the inducing points
    root: np.ndarray  # the same for each direction of the posterior

    def at(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean of h `(n,)`, and a root of its covariance `(num, n)`."""
        gap = (u[:, None] - self.inducing) / self.length
        kernel = self.amplitude**2 * np.exp(-0.5 * gap * gap)
        return kernel @ self.mean, (kernel @ self.root).T


def fit_curve(samples: ScaledSamples, num_inducing: int, name: str) -> Curve:
    """Maximise the evidence lower bound; needs TensorFlow Probability."""
    # Where it is absent, the error names the extra that brings all.
    _ = tfp.math
    bound = _bound(num_inducing)
    x = samples.log_probs
    # Classes that are ruled out lie below all others.
    low, high = float(x.min(where=x > _DEEPEST, initial=0.0)), float(x.max())
    inducing = np.linspace(low, max(high, low + 1.0), num_inducing)
    data = (x, samples.labels, samples.weight, inducing)
    with tf.device("CPU:0"):
        given = [tf.constant(part, tf.float64) for part in data]

        def value_and_gradient(theta: np.ndarray) -> tuple:
            value, slope = bound(tf.constant(theta, tf.float64), *given)
            return float(value), slope.numpy()

        free = np.zeros(_num_variational(num_inducing))
        start = np.concatenate([np.log(_MEDIANS), free])
        found = minimize(
            value_and_gradient,
            start,
            jac=True,
            method="L-BFGS-B",
            options={
                "maxiter": _MOST_STEPS,
                "maxcor": 20,
                "gtol": 1e-5,
                "ftol": 1e-13,
            },
        )
        if found.nit >= _MOST_STEPS:
            warn(
                f"`{name}` did not converge: its last step is used. Take "
                "fewer inducing points, or more samples. Received: "
                f"steps={found.nit}"
            )
        parts = _parts(tf.constant(found.x), num_inducing)
        kernel = _kernel(*parts[:2])
        factor = _factor(kernel, tf.constant(inducing), parts).numpy()
    amplitude, length, _, mean, root = (part.numpy() for part in parts)
    weights = np.linalg.solve(factor.T, np.c_[mean, root])
    return Curve(
        inducing, float(amplitude), float(length), weights[:, 0], weights[:, 1:]
    )


def _num_variational(num_inducing: int) -> int:
    """Number of means, and of entries of a triangular root."""
    return num_inducing + num_inducing * (num_inducing + 1) // 2


def _parts(theta: Any, num_inducing: int) -> tuple:
    """Amplitude, length, noise, and mean and root of the whitened values."""
    amplitude, length, noise = tf.unstack(tf.exp(theta[:3]))
    mean = theta[3 : 3 + num_inducing]
    root = tfp.math.fill_triangular(theta[3 + num_inducing :])
    diagonal = tf.exp(tf.linalg.diag_part(root))
    return amplitude, length, noise, mean, tf.linalg.set_diag(root, diagonal)


def _kernel(amplitude: Any, length: Any) -> Any:
    return tfp.math.psd_kernels.ExponentiatedQuadratic(amplitude, length)


def _factor(kernel: Any, inducing: Any, parts: tuple) -> Any:
    """Cholesky factor of the covariance of g at the inducing points."""
    amplitude, _, noise = parts[:3]
    points = inducing[:, None]
    extra = noise**2 + _JITTER * amplitude**2
    matrix = kernel.matrix(points, points)
    diagonal = tf.linalg.diag_part(matrix) + extra
    return tf.linalg.cholesky(tf.linalg.set_diag(matrix, diagonal))


def _negative_bound(theta: Any, data: tuple, num: int) -> Any:
    """The negative evidence lower bound, less the logs of the priors.

    The expectation of log softmax is taken to second order about the mean.
    Classes of one sample keep their covariance, which has the rank of the
    inducing points: softmax ignores what they share.
    """
    x, labels, weight, inducing = data
    parts = _parts(theta, num)
    amplitude, length, noise, mean, root = parts
    kernel = _kernel(amplitude, length)
    factor = _factor(kernel, inducing, parts)
    n, num_classes = tf.shape(x)[0], tf.shape(x)[1]
    cross = kernel.matrix(inducing[:, None], tf.reshape(x, (-1, 1)))
    maps = tf.linalg.triangular_solve(factor, cross)
    shift = tf.linalg.matvec(maps, mean, transpose_a=True)
    latent = x + tf.reshape(shift, (n, num_classes))
    known = tf.reduce_sum(maps * maps, axis=0)
    rest = tf.nn.relu(amplitude**2 + noise**2 - known)
    rest = tf.reshape(rest, (n, num_classes))
    moved = tf.matmul(root, maps, transpose_a=True)
    moved = tf.reshape(moved, (num, n, num_classes))
    probs = tf.nn.softmax(latent)
    variance = tf.reduce_sum(moved * moved, axis=0) + rest
    centre = tf.reduce_sum(moved * probs, axis=-1)
    shared = tf.reduce_sum(centre * centre, axis=0)
    shared += tf.reduce_sum(probs * probs * rest, axis=-1)
    spread = tf.reduce_sum(probs * variance, axis=-1) - shared
    right = tf.reduce_sum(labels * tf.nn.log_softmax(latent), axis=-1)
    posterior = tfp.distributions.MultivariateNormalTriL(mean, root)
    prior = tfp.distributions.MultivariateNormalDiag(
        tf.zeros_like(mean), tf.ones_like(mean)
    )
    divergence = tfp.distributions.kl_divergence(posterior, prior)
    away = (theta[:3] - np.log(_MEDIANS)) / np.array(_SPREADS)
    expected = tf.reduce_sum(weight * (right - 0.5 * spread))
    return divergence - expected + 0.5 * tf.reduce_sum(away * away)


@functools.cache
def _bound(num_inducing: int) -> Callable:
    """Its value and gradient as a graph for any number of samples."""

    def value_and_gradient(theta, *data):
        def bound(theta):
            return _negative_bound(theta, data, num_inducing)

        return tfp.math.value_and_gradient(bound, theta)

    shapes = (
        [3 + _num_variational(num_inducing)],
        [None, None],
        [None, None],
        [None],
        [num_inducing],
    )
    signature = [tf.TensorSpec(shape, tf.float64) for shape in shapes]
    return tf.function(
        value_and_gradient, input_signature=signature, autograph=False
    )

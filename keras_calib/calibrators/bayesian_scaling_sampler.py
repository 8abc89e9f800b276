"""Draws from the posterior of vector and matrix scaling, in float64.

TensorFlow Probability has the sampler and its diagnostics.
"""

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import softmax

from keras_calib.backend.optional import tensorflow as tf
from keras_calib.backend.optional import tensorflow_probability as tfp
from keras_calib.calibrators.posterior import ScaledSamples

__all__ = ["Chains", "Draws", "sample_posterior"]

# Leapfrog steps begin with this size, in standard deviations.
_STEP_SIZE = 0.5
_ACCEPTANCE = 0.8
# Trees of 2^6 leapfrog steps; whitened, the posterior needs few.
_DEEPEST_TREE = 6
_MOST_STEPS, _TOLERANCE = 100, 1e-9


class Chains(NamedTuple):
    """How long to sample."""

    num_chains: int
    num_warmup: int
    num_samples: int
    seed: int


class Draws(NamedTuple):
    """Draws of the parameters, and what tells whether they converged."""

    values: np.ndarray  # `(num_chains * num_samples, num_classes, size)`
    r_hat: np.ndarray  # of each parameter
    effective: np.ndarray  # effective sample size of each parameter


def sample_posterior(
    samples: ScaledSamples, kind: str, chains: Chains
) -> Draws:
    """Draw changes of the map, one row of `(num_classes, size)` a class.

    Row k maps u_k and 1 to what is added to u_k, or u and 1 for a matrix. The
    sampler moves in coordinates in which the Laplace approximation at the
    mode is a standard Gaussian.
    """
    # Where it is absent, the error names the extra that brings all.
    _ = tfp.mcmc
    penalty = _penalty(samples.labels.shape[1], kind)
    mode = _mode(samples, kind, penalty)
    precision = _derivatives(mode, samples, kind, penalty)[1]
    factor = np.linalg.cholesky(precision)
    size = len(factor)
    root = solve_triangular(factor.T, np.eye(size))
    rng = np.random.default_rng(chains.seed)
    start = rng.standard_normal((chains.num_chains, size))
    with tf.device("CPU:0"):
        found = _sampler(kind)(
            *(
                tf.constant(part, tf.float64)
                for part in (
                    start,
                    mode.ravel(),
                    root,
                    penalty.ravel(),
                    samples.log_probs,
                    samples.labels,
                    samples.weight,
                )
            ),
            tf.constant(rng.integers(2**31, size=2), tf.int32),
            tf.constant(chains.num_warmup),
            tf.constant(chains.num_samples),
        )
    moved, r_hat, effective = (part.numpy() for part in found)
    values = mode.ravel() + moved.reshape(-1, size) @ root.T
    return Draws(values.reshape(-1, *mode.shape), r_hat, effective)


def _penalty(num_classes: int, kind: str) -> np.ndarray:
    """Half of the precision of the Gaussian prior, `(num_classes, size)`."""
    if kind == "vector":
        return np.full((num_classes, 2), float(num_classes))
    penalty = np.full((num_classes, num_classes + 1), float(num_classes))
    others = ~np.eye(num_classes, dtype=bool)
    penalty[:, :-1][others] *= num_classes - 1
    return penalty


def _features(log_probs: np.ndarray, kind: str) -> np.ndarray:
    """Features of each class, or the same of all, `(num, n, size)`."""
    one = np.ones((len(log_probs), 1))
    if kind == "matrix":
        return np.concatenate([log_probs, one], axis=-1)[None]
    return np.stack([np.c_[u, one] for u in log_probs.T])


def _derivatives(
    theta: np.ndarray, samples: ScaledSamples, kind: str, penalty: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and Hessian of the negative log posterior."""
    num_classes, size = theta.shape
    features = _features(samples.log_probs, kind)
    added = np.matmul(features, theta[:, :, None])[..., 0]
    probs = softmax(samples.log_probs + added.T, axis=-1)
    residual = samples.weight[:, None] * (probs - samples.labels)
    slope = np.matmul(residual.T[:, None], features)[:, 0]
    hessian = np.zeros((num_classes, size, num_classes, size))
    for i in range(num_classes):
        own = features[i % len(features)]
        for j in range(i + 1):
            other = features[j % len(features)]
            common = samples.weight * probs[:, i] * ((i == j) - probs[:, j])
            block = own.T @ (common[:, None] * other)
            hessian[i, :, j] = block
            hessian[j, :, i] = block.T
    hessian = hessian.reshape(theta.size, theta.size)
    slope = slope.ravel() + 2.0 * penalty.ravel() * theta.ravel()
    return slope, hessian + 2.0 * np.diag(penalty.ravel())


def _mode(samples: ScaledSamples, kind: str, penalty: np.ndarray) -> np.ndarray:
    """The mode of the posterior, which is convex, by Newton's method."""
    theta = np.zeros(penalty.shape)
    for _ in range(_MOST_STEPS):
        slope, hessian = _derivatives(theta, samples, kind, penalty)
        step = np.linalg.solve(hessian, slope)
        # Shorter steps far from the mode: what is left is the decrement.
        decrement = float(slope @ step)
        theta -= step.reshape(theta.shape) / (1.0 + np.sqrt(decrement))
        if decrement < _TOLERANCE:
            break
    return theta


def _log_posterior(place: Any, data: tuple, kind: str) -> Any:
    """Log density of each chain at whitened parameters `(chains, size)`."""
    mode, root, penalty, log_probs, labels, weight = data
    theta = mode + tf.matmul(place, root, transpose_b=True)
    u, labels = tf.transpose(log_probs), tf.transpose(labels)
    rows = tf.reshape(theta, (tf.shape(theta)[0], tf.shape(u)[0], -1))
    if kind == "vector":
        added = rows[:, :, :1] * u
    else:
        added = tf.matmul(rows[:, :, :-1], u)
    logits = u + added + rows[:, :, -1:]
    right = tf.reduce_sum(logits * labels, axis=1)
    right -= tf.reduce_logsumexp(logits, axis=1)
    prior = tf.reduce_sum(penalty * theta * theta, axis=-1)
    return tf.linalg.matvec(right, weight) - prior


@contextlib.contextmanager
def _quiet_casts() -> Iterator[None]:
    """Hides that TensorFlow warns of the real part of a Fourier transform."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


@functools.cache
def _sampler(kind: str) -> Callable:
    """NUTS with an adapted step size, as a graph for data of any shape."""

    def sample(start, *rest):
        data, (seed, num_warmup, num_samples) = rest[:-3], rest[-3:]
        kernel = tfp.mcmc.NoUTurnSampler(
            lambda x: _log_posterior(x, data, kind),
            step_size=tf.constant(_STEP_SIZE, tf.float64),
            max_tree_depth=_DEEPEST_TREE,
        )
        kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
            kernel,
            num_adaptation_steps=num_warmup,
            target_accept_prob=tf.constant(_ACCEPTANCE, tf.float64),
        )
        states = tfp.mcmc.sample_chain(
            num_samples,
            start,
            kernel=kernel,
            num_burnin_steps=num_warmup,
            trace_fn=None,
            seed=seed,
        )
        r_hat = tfp.mcmc.potential_scale_reduction(states, split_chains=True)
        with _quiet_casts():
            effective = tfp.mcmc.effective_sample_size(
                states, cross_chain_dims=1
            )
        return states, r_hat, effective

    ranks = (2, 1, 2, 1, 2, 2, 1)
    signature = [tf.TensorSpec([None] * rank, tf.float64) for rank in ranks]
    signature += [tf.TensorSpec([2], tf.int32)]
    signature += [tf.TensorSpec([], tf.int32)] * 2
    return tf.function(sample, input_signature=signature, autograph=False)

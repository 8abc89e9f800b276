"""Gaussian process calibration, with the kernels of TensorFlow Probability."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import keras
import numpy as np
from keras import ops
from scipy.optimize import minimize
from scipy.special import log_softmax

from keras_calib.backend.compiled import exact_products
from keras_calib.backend.errors import value_error, warn
from keras_calib.backend.late import tensorflow as tf
from keras_calib.backend.late import tensorflow_probability as tfp
from keras_calib.backend.progress import tick
from keras_calib.calibrators.affine import smoothed_log_probs, smoothing_of
from keras_calib.calibrators.base import Calibrator, FittedValue
from keras_calib.calibrators.fitted_layer import CalibratorOptions
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.separation import supported_samples
from keras_calib.inputs.checks import (
    check_above,
    check_at_most,
    check_flag,
    check_integer,
    generator,
)
from keras_calib.inputs.options import taken
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import is_ruled_out, logsumexp

# Knots of the table: on 30 nats they are 0.06 apart.
_NUM_KNOTS = 513
# Logits for a fit: further ones change little and take long.
_MOST = 2**18
# Logits of all draws that an interval holds at once.
_BLOCK = 2**22
# Stands for log 0 in fits, whose maps leave it far below.
_RULED_OUT = -1e9
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


class _Curve(NamedTuple):
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

    def knots(self, count: int) -> np.ndarray:
        """So many u at even distances over the range of the curve."""
        return np.linspace(self.inducing[0], self.inducing[-1], count)


class ProcessOptions(CalibratorOptions, total=False):
    """The values of the process, if you know them."""

    bounds: Any
    offsets: Any
    deviations: Any


@keras.saving.register_keras_serializable(package="keras_calib")
class GaussianProcessCalibration(Calibrator):
    """Gaussian process calibration: one smooth curve for all classes.

    Use it when a temperature is too stiff and held-out samples are few, or
    when you want an interval of each probability. It needs the extra `bayes`
    to fit, and nothing more to be used, saved or exported.

    u = log((1 - s) softmax(z / T) + s / K)
    q = softmax(g(u_1), ..., g(u_K))

    T is the optimum of `TemperatureScaling`, and s = 1 / (n + 1) for n
    samples. The latent g is a Gaussian process with prior mean u and the sum
    of an RBF and a white kernel. Its posterior is a variational Gaussian at
    inducing points, of the largest evidence lower bound. The layer
    interpolates a table of g - u, constant beyond its ends.

    Args:
        num_inducing_points: Number of inducing points, evenly over the range
            of u, at least 2.
        average: Whether to average the probabilities of `num_draws` draws of
            g. By default it takes the mean of g, which costs far less.
        num_draws: Number of draws of g, for `average` and for
            `credible_interval`, at least 2.
        seed: Seed of the draws.
        temperature: T, > 0, if you know it; None waits for `fit`.
        uniform_share: s, in (0, 1); goes with `temperature`.
        bounds: Least and largest u of the table `(2,)`; goes with
            `temperature`.
        offsets: Mean of g - u at even distances `(num_knots,)`; likewise.
        deviations: Root of the covariance of g there, `(rank, num_knots)`;
            likewise.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Raises:
        ImportError: On `fit`, without TensorFlow Probability: pip install
            'keras-calib[bayes]'.

    Example:

    >>> curve = GaussianProcessCalibration(
    ...     temperature=1.0,
    ...     uniform_share=1e-6,
    ...     bounds=[-3.0, 0.0],
    ...     offsets=[1.0, 0.0],
    ...     deviations=[[0.1, 0.0]],
    ... )
    >>> logits = keras.ops.convert_to_numpy(curve(np.log([[0.75, 0.25]])))
    >>> print(np.round(logits, 3))
    [[-0.192 -0.924]]

    Reference:
        Wenger, Kjellström and Triebel, Non-Parametric Calibration for
        Classification, AISTATS 2020, https://arxiv.org/abs/1906.04933

    Differs:
        The authors take logits or probabilities as they are, and the
        covariance of the classes of one sample as diagonal. Here u is scaled
        by T first, so that a constant added to the logits changes nothing,
        and the covariance is full. Priors on the parameters of the kernel
        keep the curve uncertain where samples are few.
    """

    needs_every_class = False
    temperature = FittedValue(rule="> 0 and finite")
    uniform_share = FittedValue(rule="> 0 and <= 1")
    bounds = FittedValue(2)
    offsets = FittedValue("num_knots")
    deviations = FittedValue("rank", "num_knots")

    def __init__(
        self,
        *,
        num_inducing_points: int = 16,
        average: bool = False,
        num_draws: int = 100,
        seed: int = 0,
        temperature: float | None = None,
        uniform_share: float | None = None,
        **kwargs: Unpack[ProcessOptions],
    ):
        given, rest = taken(kwargs, ProcessOptions, CalibratorOptions)
        check_integer("num_inducing_points", num_inducing_points, 2)
        check_flag("average", average)
        check_integer("num_draws", num_draws, 2)
        check_integer("seed", seed, 0)
        super().__init__(**rest)
        self._keep(
            num_inducing_points=num_inducing_points,
            average=average,
            num_draws=num_draws,
            seed=seed,
        )
        self.set_known(
            temperature=temperature, uniform_share=uniform_share, **vars(given)
        )
        if not self.fitted:
            return
        low, high = map(float, self.bounds)
        if not low < high:
            raise value_error("`bounds` must rise", bounds=[low, high])
        if len(self.offsets) < 2:
            raise value_error("`offsets` must have two knots or more", knots=1)

    def fit_samples(self, samples: FittingData) -> None:
        # Where it is absent, the error names the extra that brings all.
        _ = tfp.math
        samples = supported_samples(samples)
        smoothing = smoothing_of(samples)
        kept = samples.as_frequencies().subsampled(_MOST)
        kept = kept.rows(kept.counts())
        logits = kept.logits.astype("float64")
        u = smoothed_log_probs(logits, **smoothing)
        u[is_ruled_out(logits)] = _RULED_OUT
        data = u, kept.soft_labels(), kept.weights()
        curve = _fit_curve(*data, self.num_inducing_points, self.name)
        low, high = curve.inducing[[0, -1]]
        offsets, deviations = curve.at(curve.knots(_NUM_KNOTS))
        self.set_fitted(
            **smoothing,
            bounds=[low, high],
            offsets=offsets,
            deviations=deviations,
        )

    def map_logits(self, logits: Any) -> Any:
        if self.average:
            draws = self.logits_of_draws(logits)
            log_probs = draws - logsumexp(draws, keepdims=True)
            # Log of the mean of softmax.
            return logsumexp(log_probs, axis=-2) - math.log(self.num_draws)
        u = smoothed_log_probs(logits, self._temperature, self._uniform_share)
        return u + self._look_up(u, self._offsets)

    @exact_products
    def logits_of_draws(self, logits: Any) -> Any:
        """Logits of each draw `(..., num_draws, num_classes)`."""
        u = smoothed_log_probs(logits, self._temperature, self._uniform_share)
        rank = self._deviations.shape[0]
        noise = generator(self.seed).standard_normal((rank, self.num_draws))
        noise = ops.convert_to_tensor(noise.astype("float32"))
        table = ops.matmul(ops.transpose(self._deviations), noise)
        table = table + ops.expand_dims(self._offsets, -1)
        curves = ops.swapaxes(self._look_up(u, table), -1, -2)
        found = ops.expand_dims(u, -2) + curves
        low = ops.expand_dims(is_ruled_out(logits), -2)
        return ops.where(low, ops.full_like(found, _RULED_OUT), found)

    def credible_interval(
        self,
        logits: Any,
        level: float = 0.95,
        *,
        from_logits: bool | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return an interval of each calibrated probability.

        Use it to see how far few held-out samples determine a probability.
        The ends are quantiles over the draws from the posterior, so they
        speak of the map alone: not of a shift of the data.

        Args:
            logits: The model's outputs, as in a call.
            level: Posterior probability of each interval, in (0, 1].
            from_logits: Whether they are logits, as in a call.

        Returns:
            Lower and upper ends, float32 arrays of the shape of `logits`.

        Raises:
            RuntimeError: If it is called before `fit`.
            ValueError: If `level` is not in (0, 1].
        """
        check_above("level", level, 0.0)
        check_at_most("level", level, 1.0)
        logits, one_output = self.logits_for_interval(logits, from_logits)
        logits = to_numpy(logits).astype("float32")
        rows = logits.reshape(-1, logits.shape[-1])
        ends = ((1.0 - level) / 2.0, (1.0 + level) / 2.0)
        found = np.empty((2, *rows.shape), "float32")
        size = max(1, _BLOCK // (self.num_draws * rows.shape[-1]))
        for start in range(0, len(rows), size):
            block = slice(start, start + size)
            tensor = ops.convert_to_tensor(rows[block])
            draws = to_numpy(self.logits_of_draws(tensor))
            probs = np.exp(log_softmax(draws.astype("float64"), axis=-1))
            # Without bias for few draws.
            found[:, block] = np.quantile(probs, ends, axis=1, method="weibull")
        lower, upper = found.reshape(2, *logits.shape)
        if one_output:
            return lower[..., 1:], upper[..., 1:]
        return lower, upper

    def degrees_of_freedom(self, samples: FittingData) -> float:
        """The values of the curve at its inducing points, at most."""
        return float(self.num_inducing_points)

    def _look_up(self, u: Any, table: Any) -> Any:
        """Rows of a table, linear between knots, constant beyond them."""
        last = table.shape[0] - 1
        low, high = self._bounds[0], self._bounds[1]
        place = ops.clip((u - low) / (high - low), 0.0, 1.0) * last
        # NaN has no place in the table; its share stays NaN.
        known = ops.where(ops.equal(place, place), place, 0.0)
        left = ops.cast(ops.minimum(ops.floor(known), last - 1), "int32")
        share = place - ops.cast(left, place.dtype)
        if len(table.shape) == 2:
            share = ops.expand_dims(share, -1)
        before = ops.take(table, left, axis=0)
        after = ops.take(table, left + 1, axis=0)
        return before + share * (after - before)


def _fit_curve(
    u: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray,
    num_inducing: int,
    name: str,
) -> _Curve:
    """Maximise the evidence lower bound; needs TensorFlow Probability."""
    bound = _bound(num_inducing)
    # Classes that are ruled out lie below all others.
    low, high = float(u.min(where=u > _DEEPEST, initial=0.0)), float(u.max())
    inducing = np.linspace(low, max(high, low + 1.0), num_inducing)
    data = (u, labels, weight, inducing)
    with tf.device("CPU:0"):
        given = [tf.constant(part, tf.float64) for part in data]

        def value_and_gradient(theta: np.ndarray) -> tuple:
            tick()
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
        _, factor = _prior(tf.constant(inducing), parts)
    amplitude, length, _, mean, root = (part.numpy() for part in parts)
    weights = np.linalg.solve(factor.numpy().T, np.c_[mean, root])
    return _Curve(
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


def _prior(inducing: Any, parts: tuple) -> tuple[Any, Any]:
    """The kernel, and the Cholesky factor of g at the inducing points."""
    amplitude, length, noise = parts[:3]
    kernel = tfp.math.psd_kernels.ExponentiatedQuadratic(amplitude, length)
    points = inducing[:, None]
    extra = noise**2 + _JITTER * amplitude**2
    matrix = kernel.matrix(points, points)
    diagonal = tf.linalg.diag_part(matrix) + extra
    return kernel, tf.linalg.cholesky(tf.linalg.set_diag(matrix, diagonal))


def _negative_bound(theta: Any, data: tuple, num: int) -> Any:
    """The negative evidence lower bound, less the logs of the priors.

    The expectation of log softmax is taken to second order about the mean.
    Classes of one sample keep their covariance, which has the rank of the
    inducing points: softmax ignores what they share.
    """
    x, labels, weight, inducing = data
    parts = _parts(theta, num)
    amplitude, _, noise, mean, root = parts
    kernel, factor = _prior(inducing, parts)
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

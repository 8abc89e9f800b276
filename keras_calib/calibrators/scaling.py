"""Calibrators that scale logits."""

import math
import warnings
from typing import Any

import keras
import numpy as np

from keras_calib.calibrators.base import Calibrator
from keras_calib.checks import check_above
from keras_calib.checks import invalid
from keras_calib.inputs import Predictions
from keras_calib.inputs import read_arrays

__all__ = ["TemperatureScaling"]

# The search spans this factor to both sides of the spread of the logits.
_RANGE = 1e4
_TOLERANCE = 1e-8
# Rows in work at a time, so that float64 copies stay small.
_BLOCK = 2**22


@keras.saving.register_keras_serializable(package="keras_calib")
class TemperatureScaling(Calibrator):
    """Divides logits by one temperature, chosen by likelihood.

    T minimises mean_n -log softmax(z_n / T)_{y_n}, which is convex in 1/T
    and solved to a relative 1e-6 on every backend. The predicted class never
    changes. T above 1 means the model was overconfident.

    Args:
        temperature: A temperature that is known, > 0; None, the default,
            waits for `fit`.
        name: Name of the layer.
        **kwargs: `trainable` of `keras.layers.Layer`.

    Returns:
        On call with logits `(..., num_classes)`: logits of that shape,
        float32.

    Raises:
        RuntimeError: On call before `fit`.

    Example:

    >>> scaling = TemperatureScaling()
    >>> logits = [[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 0.0]]
    >>> round(scaling.fit([0, 0, 1, 1], logits).temperature, 4)
    3.641

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        section 4.2, https://arxiv.org/abs/1706.04599

    Differs:
        The released code takes a fixed number of L-BFGS steps and can stop
        short of the optimum.
    """

    def __init__(
        self,
        *,
        temperature: float | None = None,
        name: str = "temperature_scaling",
        **kwargs: Any,
    ):
        if temperature is not None:
            check_above("temperature", temperature, 0.0)
        super().__init__(name=name, **kwargs)
        self._temperature = self.add_weight(
            shape=(), initializer="ones", trainable=False, name="temperature"
        )
        if temperature is not None:
            self._temperature.assign(temperature)
            self._fitted = True

    @property
    def temperature(self) -> float:
        """The fitted temperature."""
        self.check_fitted()
        return float(keras.ops.convert_to_numpy(self._temperature))

    def fit(
        self, labels: Any, logits: Any, sample_weight: Any = None
    ) -> "TemperatureScaling":
        """Finds the temperature on held-out data and returns self.

        Args:
            labels: Class ids `(n, ...)` or one-hot or soft labels
                `(n, ..., num_classes)`.
            logits: Logits `(n, ..., num_classes)`, or `(n, ..., 1)` for the
                second of two classes.
            sample_weight: Weights of the shape of the class ids, or `(n,)`.

        Raises:
            ValueError: If shapes do not fit, there is no sample, or a logit
                is not finite.

        Warns:
            RuntimeWarning: If the likelihood has no optimum within a factor
                of 10,000 of the spread of the logits, as when every
                prediction is right; the nearer end is taken.
        """
        read = read_arrays(
            labels,
            logits,
            from_logits=True,
            sample_weight=sample_weight,
            name="logits",
        )
        if read.outputs.min() == -np.inf:
            raise ValueError(
                invalid("`logits` must be finite", minimum=-np.inf)
            )
        self._temperature.assign(_solve(read))
        self._fitted = True
        return self

    def get_config(self):
        temperature = self.temperature if self.fitted else None
        return {**super().get_config(), "temperature": temperature}

    def call(self, logits):
        """Logits divided by the temperature, shape `(..., num_classes)`."""
        self.check_fitted()
        return logits / self._temperature


def _solve(read: Predictions) -> float:
    """Newton's method on 1/T inside a bracket that always shrinks."""
    outputs = read.outputs
    spread = np.subtract(outputs.max(-1), outputs.min(-1), dtype="float64")
    spread = float(spread.mean())
    if spread == 0.0:
        return 1.0
    low, high = 1.0 / (spread * _RANGE), _RANGE / spread
    if _slopes(read, high)[0] < 0:
        return _warn_no_optimum(1.0 / high)
    if _slopes(read, low)[0] > 0:
        return _warn_no_optimum(1.0 / low)
    beta = min(max(1.0, low), high)
    for _ in range(200):
        slope, curvature = _slopes(read, beta)
        if slope > 0:
            high = beta
        else:
            low = beta
        proposal = beta - slope / curvature if curvature > 0 else low
        if not low < proposal < high:
            proposal = math.sqrt(low * high)
        if abs(proposal - beta) <= _TOLERANCE * beta:
            return 1.0 / proposal
        beta = proposal
    return 1.0 / beta


def _warn_no_optimum(end: float) -> float:
    warnings.warn(
        "The likelihood has no optimal temperature in the range that is "
        f"searched; its end is used. Received: temperature={end:.3g}",
        RuntimeWarning,
        stacklevel=4,
    )
    return end


def _slopes(read: Predictions, beta: float) -> tuple[float, float]:
    """First and second derivative of the summed NLL by 1/T, in float64.

    d/d beta = sum_n w_n (E_p[z] - z_y), d2/d beta2 = sum_n w_n Var_p[z],
    p = softmax(beta z).
    """
    first = second = 0.0
    rows = max(1, _BLOCK // read.outputs.shape[-1])
    for start in range(0, len(read.outputs), rows):
        part = slice(start, start + rows)
        z = read.outputs[part].astype("float64")
        # Measured from the largest: sums cancel least, and exp(0) is on top.
        z -= z.max(axis=-1, keepdims=True)
        labels = read.labels[part]
        if labels.ndim == 1:
            target = z[np.arange(len(z)), labels]
        else:
            target = np.sum(labels * z, axis=-1) / np.sum(labels, axis=-1)
        p = np.exp(beta * z)
        p /= p.sum(axis=-1, keepdims=True)
        mean = np.einsum("nk,nk->n", p, z)
        variance = np.einsum("nk,nk,nk->n", p, z, z) - mean * mean
        weight = 1.0 if read.weight is None else read.weight[part]
        first += float(np.sum(weight * (mean - target)))
        second += float(np.sum(weight * variance))
    return first, second

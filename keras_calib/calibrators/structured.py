"""Structured vector and matrix scaling."""

from functools import partial
from typing import Any

import keras
import numpy as np

from keras_calib.calibrators.affine import AffineCalibrator, check_square
from keras_calib.calibrators.affine_coordinates import without_ruled_out
from keras_calib.calibrators.base import fitted_array
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.separation import supported_samples
from keras_calib.calibrators.temperature import optimal_temperature
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.softmax import logsumexp, num_allowed

__all__ = [
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "smoothed_log_probs",
]


def smoothed_log_probs(
    logits: Any, temperature: Any, uniform_share: Any
) -> Any:
    """log((1 - s) softmax(z / T) + s / K) for s = `uniform_share`.

    K is the number of classes that are not ruled out. Others get 0.
    """
    xp = array_namespace(logits)
    scaled = logits / temperature
    probs = xp.exp(scaled - logsumexp(scaled, keepdims=True))
    uniform = uniform_share / num_allowed(logits)
    log_probs = xp.log((1.0 - uniform_share) * probs + uniform)
    return without_ruled_out(log_probs, logits)


class _Structured(AffineCalibrator):
    """Abstract: the affine map of log-probabilities after a temperature."""

    temperature = fitted_array("temperature", "The temperature T, a scalar.")
    uniform_share = fitted_array("uniform_share", "The share s of uniform.")
    bias = fitted_array("bias", "The fitted b, `(num_classes,)`.")

    def features(self, logits: Any) -> Any:
        """log((1 - s) softmax(z / T) + s / K) (array-agnostic)."""
        values = self._temperature, self._uniform_share
        if isinstance(logits, np.ndarray):
            values = self.temperature, self.uniform_share
        return smoothed_log_probs(logits, *values)

    def fit_samples(self, samples: FittingData) -> None:
        samples = supported_samples(samples)
        values = {
            "temperature": optimal_temperature(samples),
            "uniform_share": 1.0 / (samples.effective_count() + 1.0),
        }
        features = partial(smoothed_log_probs, **values)
        self.set_map(self.least(samples, features, 1.0), **values)

    def unit(self, samples: FittingData) -> float:
        """The temperature is in the features already."""
        return 1.0


@keras.saving.register_keras_serializable(package="keras_calib")
class StructuredVectorScaling(_Structured):
    """Structured vector scaling (SVS): a scale and a bias for each class.

    Use it first where there are more than two classes and a few hundred
    held-out samples or more: it gains over a temperature, and its ridge keeps
    it from overfitting. It can change the predicted class. First T is that of
    `TemperatureScaling`, and s = 1 / (n + 1) for n samples. Then each

    u_k = log((1 - s) softmax(z / T)_k + s / K)

    becomes (1 + v_k) u_k + b_k, where v and b minimise
    NLL + penalty (K / n) (sum_k v_k^2 + sum_k b_k^2), a convex problem.

    Args:
        penalty: Factor > 0 of the ridge, 1 as the authors advise; None fits
            without it.
        temperature: T > 0, if you know it; None waits for `fit`.
        uniform_share: s in (0, 1], if you know it; goes with `temperature`.
        scale: 1 + v `(num_classes,)`; goes with `temperature`.
        bias: b `(num_classes,)`; goes with `temperature`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> svs = StructuredVectorScaling(
    ...     temperature=2.0, uniform_share=0.01, scale=[1, 1], bias=[0, 0.5]
    ... )
    >>> logits = svs(np.array([[2.0, 0.0]]))
    >>> print(np.round(keras.ops.convert_to_numpy(logits), 3))
    [[-0.316 -0.805]]

    Reference:
        Berta et al., Structured Matrix Scaling for Multi-Class Calibration,
        AISTATS 2026, https://arxiv.org/abs/2511.03685
    """

    fitted_values = ("temperature", "uniform_share", "scale", "bias")
    scale = fitted_array("scale", "The fitted 1 + v, `(num_classes,)`.")
    diagonal = True

    def __init__(
        self,
        *,
        penalty: float | None = 1.0,
        temperature: float | None = None,
        uniform_share: float | None = None,
        scale: Any = None,
        bias: Any = None,
        name: str = "structured_vector_scaling",
        **kwargs: Any,
    ):
        super().__init__(penalty=penalty, name=name, **kwargs)
        self.set_known(
            temperature=temperature,
            uniform_share=uniform_share,
            scale=scale,
            bias=bias,
        )


@keras.saving.register_keras_serializable(package="keras_calib")
class StructuredMatrixScaling(_Structured):
    """Structured matrix scaling (SMS): a matrix kept close to a temperature.

    Use it where classes are confused with each other: in benchmarks of many
    data sets it has the lowest held-out NLL. Its ridge keeps it from
    overfitting where there are fewer samples than parameters; above a hundred
    classes `StructuredVectorScaling` is faster. It can change the predicted
    class. First T is that of `TemperatureScaling`, and s = 1 / (n + 1) for n
    samples. Then the vector of all

    u_k = log((1 - s) softmax(z / T)_k + s / K)

    becomes (I + diag(v) + M) u + b. Here v, b and M, which is 0 on its
    diagonal, minimise NLL + penalty (K / n) (sum v^2 + sum b^2 +
    (K - 1) sum M^2), a convex problem.

    Args:
        penalty: Factor > 0 of the ridge, 1 as the authors advise; None fits
            without it.
        temperature: T > 0, if you know it; None waits for `fit`.
        uniform_share: s in (0, 1], if you know it; goes with `temperature`.
        matrix: I + diag(v) + M `(num_classes, num_classes)`; goes with
            `temperature`.
        bias: b `(num_classes,)`; goes with `temperature`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> sms = StructuredMatrixScaling(
    ...     temperature=2.0,
    ...     uniform_share=0.01,
    ...     matrix=[[1.0, 0.0], [0.5, 1.0]],
    ...     bias=[0.0, 0.0],
    ... )
    >>> logits = sms(np.array([[2.0, 0.0]]))
    >>> print(np.round(keras.ops.convert_to_numpy(logits), 3))
    [[-0.316 -1.463]]

    Reference:
        Berta et al., Structured Matrix Scaling for Multi-Class Calibration,
        AISTATS 2026, https://arxiv.org/abs/2511.03685
    """

    fitted_values = ("temperature", "uniform_share", "matrix", "bias")
    matrix = fitted_array("matrix", "I + diag(v) + M.")

    def __init__(
        self,
        *,
        penalty: float | None = 1.0,
        temperature: float | None = None,
        uniform_share: float | None = None,
        matrix: Any = None,
        bias: Any = None,
        name: str = "structured_matrix_scaling",
        **kwargs: Any,
    ):
        super().__init__(penalty=penalty, name=name, **kwargs)
        check_square(matrix)
        self.set_known(
            temperature=temperature,
            uniform_share=uniform_share,
            matrix=matrix,
            bias=bias,
        )

"""Vector, matrix, Dirichlet and structured scaling: affine maps of logits."""

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.backend.compiled import exact_products
from keras_calib.calibrators.affine_solver import (
    Ridge,
    degrees_of_freedom,
    identity,
    least_affine,
    without_ruled_out,
)
from keras_calib.calibrators.base import Calibrator, FittedValue
from keras_calib.calibrators.fitted_layer import CalibratorOptions
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.separation import supported_samples
from keras_calib.calibrators.temperature import optimal_temperature
from keras_calib.inputs.checks import check_above, check_at_least
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.softmax import is_ruled_out, logsumexp, num_allowed


class _AffineCalibrator(Calibrator):
    """Abstract: an affine map of features of the logits, of least NLL.

    A ridge pulls it towards a temperature alone.
    """

    # Whether W is diagonal.
    diagonal = False
    # Of a fit with a ridge.
    _freedom: float | None = None
    lowers_nll = True

    def __init__(self, *, penalty: float | None, **kwargs: Any):
        if penalty is not None:
            check_above("penalty", penalty, 0.0)
        super().__init__(**kwargs)
        self._keep(penalty=None if penalty is None else float(penalty))
        # Only a ridge leaves the bias of an absent class finite.
        self.needs_every_class = penalty is None

    def features(self, logits: Any) -> Any:
        """What the matrix maps: the logits, 0 for -inf (array-agnostic)."""
        return without_ruled_out(logits, logits)

    def ridge(self, samples: FittingData, unit: float) -> Ridge | None:
        """The ridge towards `unit` times the identity; None for none."""
        if self.penalty is None:
            return None
        size, best = samples.num_classes, samples.logits.max(axis=0)
        count = size - np.count_nonzero(is_ruled_out(best))
        usual = self.penalty * count / samples.effective_count()
        if self.diagonal:
            strength, anchor = np.full((size, 1), usual), np.ones((size, 1))
        else:
            strength, anchor = np.full((size, size), usual), np.eye(size)
            strength[anchor == 0.0] *= count - 1
        bias = np.ones((size, 1))
        return Ridge(
            np.append(strength / unit**2, usual * bias, axis=1),
            np.append(anchor * unit, 0.0 * bias, axis=1),
        )

    def prepared(self, samples: FittingData) -> tuple[Callable, float, dict]:
        """Features, their factor that is a temperature alone, their values."""
        plain = type(self).features is _AffineCalibrator.features
        features = identity if plain else self.features
        return features, 1.0 / optimal_temperature(samples), {}

    def fit_samples(self, samples: FittingData) -> None:
        samples = supported_samples(samples)
        features, unit, others = self.prepared(samples)
        ridge = self.ridge(samples, unit)
        theta = least_affine(
            samples, features, unit, ridge, self.name, diagonal=self.diagonal
        )
        if self.diagonal:
            others["scale"] = theta[:, 0]
        else:
            others["matrix"] = theta[:, :-1]
        self.set_fitted(len(theta), bias=theta[:, -1], **others)
        self._freedom = ridge and degrees_of_freedom(
            samples, self.features, theta, ridge
        )

    @exact_products
    def map_logits(self, logits: Any) -> Any:
        features = self.features(logits)
        if self.diagonal:
            return features * self._scale + self._bias
        return ops.matmul(features, ops.transpose(self._matrix)) + self._bias

    def degrees_of_freedom(self, samples: FittingData) -> float:
        """The trace of the ridge's hat matrix, or the number of parameters."""
        own = super().degrees_of_freedom(samples)
        return own if self._freedom is None else self._freedom

    def num_parameters(self, num_classes: int) -> int:
        """Free parameters: only that of a temperature under a ridge."""
        if self.penalty is not None:
            return 1
        return num_classes * (2 if self.diagonal else num_classes + 1)


@keras.saving.register_keras_serializable(package="keras_calib")
class VectorScaling(_AffineCalibrator):
    """Vector scaling: each logit z_k becomes w_k z_k + b_k.

    Use it when classes are miscalibrated in different ways. It can change the
    predicted class. Write w_k = (1 + v_k) / T, with T from temperature
    scaling. For K classes and n samples, v and b then minimise

    NLL + penalty (K / n) (sum_k v_k^2 + sum_k b_k^2).

    Args:
        penalty: Factor > 0 of the ridge, 1 as Berta et al. advise; None fits
            without it, as Guo et al. do, which takes a few hundred samples of
            each class.
        scale: w `(num_classes,)`, if you know it; None waits for `fit`.
        bias: b `(num_classes,)`, if you know it; goes with `scale`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> scaling = VectorScaling(scale=[0.5, 1.0], bias=[0.0, 1.0])
    >>> print(np.asarray(scaling(np.array([[2.0, 3.0]]))))
    [[1. 4.]]

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        section 4.2, https://arxiv.org/abs/1706.04599; the ridge: Berta et
        al., Structured Matrix Scaling for Multi-Class Calibration, AISTATS
        2026, https://arxiv.org/abs/2511.03685
    """

    scale = FittedValue("num_classes")
    bias = FittedValue("num_classes")
    diagonal = True

    def __init__(
        self,
        *,
        penalty: float | None = 1.0,
        scale: Any = None,
        bias: Any = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        super().__init__(penalty=penalty, **kwargs)
        self.set_known(scale=scale, bias=bias)


@keras.saving.register_keras_serializable(package="keras_calib")
class MatrixScaling(_AffineCalibrator):
    """Matrix scaling: the logits z become W z + b.

    Use it when classes are confused with each other. It can change the
    predicted class. Write W = (I + diag(v) + M) / T, with T from temperature
    scaling and M 0 on its diagonal. For K classes and n samples, v, b and M
    then minimise

    NLL + penalty (K / n) (sum v^2 + sum b^2 + (K - 1) sum M^2).

    Args:
        penalty: Factor > 0 of the ridge, 1 as Berta et al. advise. None fits
            without it, as Guo et al. do: with K (K + 1) parameters it
            overfits, unless each class has thousands of samples.
        off_diagonal_penalty: Strength >= 0 of the penalty of Kull et al.,
            off_diagonal_penalty mean_{i != j} W_ij^2. If one of the two
            strengths is given, theirs replaces the ridge, and you choose both
            on other data from powers of ten.
        intercept_penalty: Strength >= 0 of theirs on mean_j b_j^2.
        matrix: W `(num_classes, num_classes)`, if you know it; None waits for
            `fit`.
        bias: b `(num_classes,)`, if you know it; goes with `matrix`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> scaling = MatrixScaling(matrix=[[1.0, 0.0], [0.5, 1.0]], bias=[0, 1])
    >>> print(np.asarray(scaling(np.array([[2.0, 3.0]]))))
    [[2. 5.]]

    Reference:
        Guo et al. and Berta et al., as for `VectorScaling`; the strengths:
        Kull et al., Beyond Temperature Scaling, NeurIPS 2019, section 3,
        https://arxiv.org/abs/1910.12656
    """

    matrix = FittedValue("num_classes", "num_classes")
    bias = FittedValue("num_classes")

    def __init__(
        self,
        *,
        penalty: float | None = 1.0,
        off_diagonal_penalty: float | None = None,
        intercept_penalty: float | None = None,
        matrix: Any = None,
        bias: Any = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        strengths = {
            "off_diagonal_penalty": off_diagonal_penalty,
            "intercept_penalty": intercept_penalty,
        }
        for key, value in strengths.items():
            if value is not None:
                check_at_least(key, value, 0.0)
                penalty = None
        super().__init__(penalty=penalty, **kwargs)
        self._keep(**strengths)
        self.set_known(matrix=matrix, bias=bias)

    def ridge(self, samples: FittingData, unit: float) -> Ridge | None:
        """The ridge, or the penalty of the two strengths towards 0."""
        given = self.off_diagonal_penalty, self.intercept_penalty
        if given == (None, None):
            return super().ridge(samples, unit)
        count = samples.num_classes
        strength = np.zeros((count, count + 1))
        strength[:, :-1] = (given[0] or 0.0) / (count * (count - 1))
        np.fill_diagonal(strength, 0.0)
        strength[:, -1] = (given[1] or 0.0) / count
        return Ridge(strength) if strength.any() else None


@keras.saving.register_keras_serializable(package="keras_calib")
class DirichletCalibration(MatrixScaling):
    """Dirichlet calibration: softmax of W log p + b.

    Use it as `MatrixScaling`, with the same fit and penalties. It maps
    log-probabilities, so a constant added to the logits of a sample changes
    nothing. The map has the right form if the probabilities of each class
    follow a Dirichlet distribution.

    Args:
        **kwargs: `penalty`, `off_diagonal_penalty`, `intercept_penalty`,
            `matrix`, `bias` and `name`, as in `MatrixScaling`.

    Example:

    >>> calibration = DirichletCalibration(matrix=[[2, 0], [0, 2]], bias=[0, 0])
    >>> logits = calibration(np.log([[0.75, 0.25]]))
    >>> probs = keras.ops.convert_to_numpy(keras.ops.exp(logits))
    >>> print(np.round(probs, 4))
    [[0.5625 0.0625]]

    Reference:
        Kull et al., Beyond Temperature Scaling: Obtaining well-calibrated
        multiclass probabilities with Dirichlet calibration, NeurIPS 2019,
        https://arxiv.org/abs/1910.12656

    Differs:
        The paper chooses two strengths on other data. By default the ridge of
        `MatrixScaling` takes their place.
    """

    def features(self, logits: Any) -> Any:
        """The features that the matrix maps: log p (array-agnostic)."""
        log_probs = logits - logsumexp(logits, keepdims=True)
        return without_ruled_out(log_probs, logits)


def smoothing_of(samples: FittingData) -> dict[str, Any]:
    """The temperature and the share of uniform of `smoothed_log_probs`."""
    return {
        "temperature": optimal_temperature(samples),
        "uniform_share": 1.0 / (samples.effective_count() + 1.0),
    }


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


class _Structured(_AffineCalibrator):
    """Abstract: the affine map of log-probabilities after a temperature."""

    temperature = FittedValue(rule="> 0 and finite")
    uniform_share = FittedValue(rule="> 0 and <= 1")

    def features(self, logits: Any) -> Any:
        """log((1 - s) softmax(z / T) + s / K) (array-agnostic)."""
        values = self._temperature, self._uniform_share
        if isinstance(logits, np.ndarray):
            values = self.temperature, self.uniform_share
        return smoothed_log_probs(logits, *values)

    def prepared(self, samples: FittingData) -> tuple[Callable, float, dict]:
        values = smoothing_of(samples)
        # The temperature is in the features already.
        return partial(smoothed_log_probs, **values), 1.0, values


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

    scale = FittedValue("num_classes")
    bias = FittedValue("num_classes")
    diagonal = True

    def __init__(
        self,
        *,
        penalty: float | None = 1.0,
        temperature: float | None = None,
        uniform_share: float | None = None,
        scale: Any = None,
        bias: Any = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        super().__init__(penalty=penalty, **kwargs)
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
    class. The features u of `StructuredVectorScaling` become

    (I + diag(v) + M) u + b

    Here v, b and M, which is 0 on its diagonal, minimise NLL +
    penalty (K / n) (sum v^2 + sum b^2 + (K - 1) sum M^2), a convex problem.

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

    matrix = FittedValue("num_classes", "num_classes")
    bias = FittedValue("num_classes")

    def __init__(
        self,
        *,
        penalty: float | None = 1.0,
        temperature: float | None = None,
        uniform_share: float | None = None,
        matrix: Any = None,
        bias: Any = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        super().__init__(penalty=penalty, **kwargs)
        self.set_known(
            temperature=temperature,
            uniform_share=uniform_share,
            matrix=matrix,
            bias=bias,
        )

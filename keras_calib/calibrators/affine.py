"""Vector, matrix and Dirichlet calibration: affine maps of the logits."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid
from keras_calib.backend.errors import value_error
from keras_calib.backend.errors import warn
from keras_calib.calibrators.affine_solver import least_affine
from keras_calib.calibrators.affine_solver import nll_and_residuals
from keras_calib.calibrators.base import Calibrator
from keras_calib.calibrators.base import fitted_array
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.inputs.checks import check_at_least
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.softmax import logsumexp

__all__ = ["DirichletCalibration", "MatrixScaling", "VectorScaling"]

# By chance the NLL gains about parameters / samples, in nats. Less than the
# first is harmless; a gain above the second times chance is real.
_LITTLE, _CLEARLY = 1e-3, 5.0


@keras.saving.register_keras_serializable(package="keras_calib")
class VectorScaling(Calibrator):
    """Vector scaling: each logit z_k becomes w_k z_k + b_k.

    Use it when classes are miscalibrated in different ways and each has a few
    hundred held-out samples. It can change the predicted class. w and b
    minimise the NLL, a convex problem. Softmax ignores the mean of b, so b
    sums to 0.

    Args:
        scale: w `(num_classes,)`, if you know it; None waits for `fit`.
        bias: b `(num_classes,)`, if you know it; goes with `scale`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> scaling = VectorScaling(scale=[0.5, 1.0], bias=[0.0, 1.0])
    >>> print(np.asarray(scaling(np.array([[2.0, 3.0]]))))
    [[1. 4.]]

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        section 4.2, https://arxiv.org/abs/1706.04599
    """

    fitted_values = ("scale", "bias")
    scale = fitted_array("scale", "The fitted w, `(num_classes,)`.")
    bias = fitted_array("bias", "The fitted b, `(num_classes,)`.")

    def __init__(
        self,
        *,
        scale: Any = None,
        bias: Any = None,
        name: str = "vector_scaling",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        self.set_known(scale=scale, bias=bias)

    def fit_samples(self, samples: FittingData) -> None:
        count = samples.num_classes
        nothing = np.zeros((count, 2))
        theta = least_affine(samples, lambda z: z, nothing, self.name)
        self.set_fitted(count, scale=theta[:, 0], bias=theta[:, 1])

    def calibrate(self, logits: Any) -> Any:
        return logits * self._scale + self._bias

    def num_parameters(self, num_classes: int) -> int:
        return 2 * num_classes


@keras.saving.register_keras_serializable(package="keras_calib")
class MatrixScaling(Calibrator):
    """Matrix scaling: the logits z become W z + b.

    Use it when classes are confused with each other and there is much
    held-out data. W and b minimise NLL
    + off_diagonal_strength mean_{i != j} w_ij^2
    + intercept_strength mean_j b_j^2, a convex problem. With num_classes
    (num_classes + 1) parameters it overfits easily: choose the strengths from
    powers of ten, on other data. It can change the predicted class.

    Args:
        off_diagonal_strength: Strength of the penalty on W off its diagonal,
            >= 0.
        intercept_strength: Strength of the penalty on b, >= 0.
        num_folds: Number of folds for a check against overfitting, which
            warns if the map does not help on samples left out of the fit; 0
            skips it. The check runs without strengths only, and only when the
            gain in NLL could be chance. It takes several times as long as the
            fit.
        matrix: W `(num_classes, num_classes)`, if you know it; None waits for
            `fit`.
        bias: b `(num_classes,)`, if you know it; goes with `matrix`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Warns:
        RuntimeWarning: On `fit`, if the folds show that the map does more
            harm than good on samples left out of the fit.

    Example:

    >>> scaling = MatrixScaling(matrix=[[1.0, 0.0], [0.5, 1.0]], bias=[0, 1])
    >>> print(np.asarray(scaling(np.array([[2.0, 3.0]]))))
    [[2. 5.]]

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        section 4.2, https://arxiv.org/abs/1706.04599; the regularisation:
        Kull et al., Beyond Temperature Scaling, NeurIPS 2019, section 3,
        https://arxiv.org/abs/1910.12656
    """

    fitted_values = ("matrix", "bias")
    matrix = fitted_array("matrix", "W `(num_classes, num_classes)`.")
    bias = fitted_array("bias", "The fitted b, `(num_classes,)`.")
    options = ("off_diagonal_strength", "intercept_strength", "num_folds")
    default_name = "matrix_scaling"

    def __init__(
        self,
        *,
        off_diagonal_strength: float = 0.0,
        intercept_strength: float = 0.0,
        num_folds: int = 5,
        matrix: Any = None,
        bias: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ):
        check_at_least("off_diagonal_strength", off_diagonal_strength, 0.0)
        check_at_least("intercept_strength", intercept_strength, 0.0)
        check_integer("num_folds", num_folds, 0)
        if num_folds == 1:
            raise value_error(
                "`num_folds` must be 0, or >= 2", num_folds=num_folds
            )
        super().__init__(name=name or self.default_name, **kwargs)
        self.num_folds = num_folds
        self.off_diagonal_strength = float(off_diagonal_strength)
        self.intercept_strength = float(intercept_strength)
        if matrix is not None and np.shape(matrix) != 2 * np.shape(matrix)[:1]:
            raise value_error(
                "`matrix` must be square", **{"matrix.shape": np.shape(matrix)}
            )
        self.set_known(matrix=matrix, bias=bias)

    def features(self, logits: Any) -> Any:
        """The features that the matrix maps: the logits (array-agnostic)."""
        return logits

    def fit_samples(self, samples: FittingData) -> None:
        count = samples.num_classes
        penalty = np.zeros((count, count + 1))
        penalty[:, :-1] = self.off_diagonal_strength / (count * (count - 1))
        np.fill_diagonal(penalty, 0.0)
        penalty[:, -1] = self.intercept_strength / count

        def fitted(part: FittingData) -> np.ndarray:
            return least_affine(part, self.features, penalty, self.name)

        theta = fitted(samples)
        self.set_fitted(count, matrix=theta[:, :-1], bias=theta[:, -1])
        if self.num_folds and not penalty.any():
            self._warn_if_overfitted(samples, theta, fitted)

    def _warn_if_overfitted(
        self, samples: FittingData, theta: np.ndarray, fitted: Callable
    ) -> None:
        """Warns if the map is worse than none on samples left out of the fit.

        Fits to folds take longer than the fit itself, so they run only if
        chance alone could give such a gain to so many parameters.
        """
        before, _ = self._nll(samples, None)
        after, _ = self._nll(samples, theta)
        by_chance = samples.num_classes**2 / samples.counts().sum()
        if by_chance < _LITTLE or before - after > _CLEARLY * by_chance:
            return
        fold = np.random.default_rng(0).integers(
            self.num_folds, size=len(samples.logits)
        )
        losses, weights = [], []
        with warnings.catch_warnings():
            # The fit to all samples has given these warnings already.
            warnings.simplefilter("ignore")
            for k in range(self.num_folds):
                inside = samples.rows(fold != k)
                left_out = samples.rows(fold == k)
                if not (inside.counts().any() and left_out.counts().any()):
                    return
                loss, weight = self._nll(left_out, fitted(inside))
                losses.append(loss)
                weights.append(weight)
        held_out = float(np.average(losses, weights=weights))
        if held_out > before:
            warn(
                invalid(
                    f"`{type(self).__name__}` has too many parameters for "
                    "these data: on samples that it is not fitted to, its "
                    "predictions are worse than without it. Take "
                    "`TemperatureScaling`, or a larger `off_diagonal_strength` "
                    "and `intercept_strength`",
                    nll_without_it=round(before, 4),
                    nll_on_other_samples=round(held_out, 4),
                )
            )

    def _nll(
        self, samples: FittingData, theta: np.ndarray | None
    ) -> tuple[float, float]:
        """Mean NLL of an affine map of the features, or of none; weight."""

        def of_block(block: FittingData) -> tuple:
            z = block.logits
            if theta is not None:
                z = self.features(z) @ theta[:, :-1].T + theta[:, -1]
            return nll_and_residuals(z, block)[0], block.weights().sum()

        loss, weight = samples.sums(of_block)
        return float(loss / weight), float(weight)

    def calibrate(self, logits: Any) -> Any:
        features = self.features(logits)
        return ops.matmul(features, ops.transpose(self._matrix)) + self._bias

    def num_parameters(self, num_classes: int) -> int:
        return num_classes * (num_classes + 1)


@keras.saving.register_keras_serializable(package="keras_calib")
class DirichletCalibration(MatrixScaling):
    """Dirichlet calibration: softmax of W log p + b.

    Use it as `MatrixScaling`, with the same fit and penalties. It maps
    log-probabilities, so a constant added to the logits of a sample changes
    nothing. The map has the right form if the probabilities of each class
    follow a Dirichlet distribution.

    Args:
        **kwargs: `off_diagonal_strength`, `intercept_strength`, `num_folds`,
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
    """

    default_name = "dirichlet_calibration"

    def features(self, logits: Any) -> Any:
        """The features that the matrix maps: log p (array-agnostic)."""
        return logits - logsumexp(logits, keepdims=True)

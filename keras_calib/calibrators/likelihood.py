"""Maximum likelihood: sums over held-out samples, and their optimum."""

import warnings
from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

from keras_calib.calibrators.fitting_data import FittingData

__all__ = [
    "least_convex",
    "nll_and_residuals",
    "warn_if_separated",
    "warn_not_converged",
]

# Of the gradient, where the curvature is about 1: the value is then within
# half its squared length of the optimum.
_GRADIENT = 1e-6
# A line search can end at the precision of the value.
_ACCEPTED = 1e-5


def nll_and_residuals(
    scaled: np.ndarray, block: FittingData
) -> tuple[float, np.ndarray]:
    """The summed NLL of a block and its gradient by the logits.

    Args:
        scaled: Calibrated logits `(n, num_classes)`, float64; overwritten.
        block: The samples that they belong to.

    Returns:
        `(sum of w_n NLL_n, w_n (p_n - y_n))`, nats.
    """
    scaled -= scaled.max(axis=-1, keepdims=True)
    rows = np.arange(len(scaled))
    hard = block.labels.ndim == 1
    target = None if hard else block.soft_labels()
    if hard:
        of_label = scaled[rows, block.labels]
    else:
        of_label = np.sum(target * scaled, axis=-1)
    np.exp(scaled, out=scaled)
    total = scaled.sum(axis=-1, keepdims=True)
    losses = np.log(total[:, 0]) - of_label
    scaled /= total
    if hard:
        scaled[rows, block.labels] -= 1.0
    else:
        scaled -= target
    if block.weight is None:
        return losses.sum(), scaled
    scaled *= block.weight[:, None]
    return block.weight @ losses, scaled


def least_convex(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    what: str,
    *,
    max_iterations: int,
    warn: bool,
) -> tuple[np.ndarray, bool]:
    """The minimum of a smooth convex function, by SciPy's L-BFGS-B.

    Args:
        function: Maps a point `(n,)` to its value and gradient; scaled so
            that the curvature is about 1 in every direction.
        start: Where to start.
        what: What is fitted, for the warning.
        max_iterations: When to stop.
        warn: Whether to warn if it did not converge.

    Returns:
        `(point, converged)`: whether the gradient is near 0 there.

    Warns:
        RuntimeWarning: If it is not, and `warn`.

    Reference:
        Byrd et al., A Limited Memory Algorithm for Bound Constrained
        Optimization, SIAM Journal on Scientific Computing 1995,
        https://doi.org/10.1137/0916069
    """
    found = minimize(
        function,
        start,
        jac=True,
        method="L-BFGS-B",
        options={
            "maxcor": 20,
            "maxiter": max_iterations,
            "maxfun": 2 * max_iterations,
            "ftol": 0.0,
            "gtol": _GRADIENT,
        },
    )
    slope = float(np.max(np.abs(found.jac)))
    converged = slope <= _ACCEPTED if warn else slope <= _GRADIENT
    if warn and not converged:
        warn_not_converged(what, iterations=found.nit, gradient=slope)
    return found.x, converged


def warn_not_converged(what: str, *, iterations: int, gradient: float) -> None:
    """Warns that a fit did not converge."""
    warnings.warn(
        f"The fit of {what} did not converge; the best values so far are "
        "used. There may be no optimum: fewer parameters, regularisation or "
        f"more samples help. Received: iterations={iterations}, "
        f"gradient={gradient:.1e}",
        RuntimeWarning,
        stacklevel=7,
    )


def warn_if_separated(
    loss: float, labels: np.ndarray, weight: np.ndarray | None, what: str
) -> None:
    """Warns if a fit puts every sample on the right side.

    Then larger parameters are always better, and there is no optimum; else
    one sample costs log 2 at least.

    Args:
        loss: Weighted mean of the NLL, nats.
        labels: Class ids or booleans `(n,)`, or soft labels: those that are
            not one-hot have an optimum.
        weight: `(n,)`, or None for ones.
        what: What was fitted.
    """
    least = 1.0 / len(labels)
    if weight is not None:
        least = weight[weight > 0].min() / weight.sum()
    if loss >= least * np.log(2.0):
        return
    soft = labels.ndim > 1 or labels.dtype.kind == "f"
    if not soft or np.all((labels == 0) | (labels == 1)):
        warnings.warn(
            f"The data have no optimal {what}: it puts every sample on the "
            "right side, and larger parameters are always better. Fewer "
            "parameters, regularisation or more samples help. Received: "
            f"loss={loss:.1e}",
            RuntimeWarning,
            stacklevel=6,
        )

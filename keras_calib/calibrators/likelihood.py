"""Maximum likelihood: sums over held-out samples, and fits without optimum."""

import numpy as np

from keras_calib.backend.errors import warn
from keras_calib.calibrators.fitting_data import FittingData

__all__ = ["nll_and_residuals", "warn_if_separated", "warn_not_converged"]


def nll_and_residuals(
    scaled: np.ndarray, block: FittingData
) -> tuple[float, np.ndarray]:
    """The summed NLL of a block and its gradient by the logits, overwritten."""
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


def warn_not_converged(what: str, *, iterations: int, gradient: float) -> None:
    """Warns that a fit did not converge."""
    warn(
        f"The fit of {what} did not converge; the best values so far are "
        "used. There may be no optimum: fewer parameters, regularisation or "
        f"more samples help. Received: iterations={iterations}, "
        f"gradient={gradient:.1e}"
    )


def warn_if_separated(
    loss: float, labels: np.ndarray, weight: np.ndarray | None, what: str
) -> None:
    """Warns if a fit of mean NLL `loss` puts every sample on the right side.

    Else one sample costs log 2 at least. Soft labels have an optimum.
    """
    least = 1.0 / len(labels)
    if weight is not None:
        least = weight[weight > 0].min() / weight.sum()
    if loss >= least * np.log(2.0):
        return
    soft = labels.ndim > 1 or labels.dtype.kind == "f"
    if not soft or np.all((labels == 0) | (labels == 1)):
        warn(
            f"The data have no optimal {what}: it puts every sample on the "
            "right side, and larger parameters are always better. Fewer "
            "parameters, regularisation or more samples help. Received: "
            f"loss={loss:.1e}"
        )

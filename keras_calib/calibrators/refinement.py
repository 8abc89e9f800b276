"""The loss that the best temperature leaves: what training has to refine."""

from typing import Any

from keras_calib.calibrators.fitting_data import FittingData, read_samples
from keras_calib.calibrators.temperature import least_nll

__all__ = ["refinement_nll", "split_nll"]


def refinement_nll(
    labels: Any,
    logits: Any,
    *,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """NLL after the best temperature, in float64.

    Use it to stop training or to compare networks that a temperature will
    calibrate afterwards. The NLL rises when a network becomes overconfident,
    although a temperature would repair it; this number does not. For training
    log `"refinement_nll"` with `CalibrationLogger`.

    min over T > 0 of mean_n -log softmax(z_n / T)_{y_n}

    What `nll` exceeds it by is the calibration part, which a temperature
    removes. It does not see what other calibrators could remove.

    Args:
        labels: Class ids `(n, ...)`, or one-hot or soft labels.
        logits: Logits `(n, ..., num_classes)`, or `(n, 1)` for the second of
            two classes.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
        ignore_class: Class id to leave out, or None.

    Returns:
        NLL in nats, at least 0, and at most the NLL of the logits and the log
        of the number of classes.

    Raises:
        ValueError: If shapes do not fit, there is no sample, or a value is
            out of range.

    Example:

    >>> logits = [[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 0.0]]
    >>> round(refinement_nll([0, 0, 1, 1], logits), 4)
    0.5623

    Reference:
        Berta, Holzmueller, Jordan and Bach, Rethinking Early Stopping: Refine,
        Then Calibrate, 2025, https://arxiv.org/abs/2501.19195
    """
    samples = read_samples(labels, logits, sample_weight, ignore_class)
    return split_nll(samples)[1]


def split_nll(samples: FittingData) -> tuple[float, float]:
    """Calibration and refinement part of the NLL, both >= 0."""
    before, after = least_nll(samples)
    return before - after, after

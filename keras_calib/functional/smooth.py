"""Calibration error smoothed by a kernel of the right width, without bins.

The kernel is a Gaussian on the confidence, reflected at 0 and 1. Cosines
diagonalise it: smoothing on a grid of [0, 1] is a cosine transform, a factor
per frequency, and a transform back.
"""

from typing import Any

from keras_calib.formulas.smooth import EXACT_CELLS
from keras_calib.formulas.smooth import smooth_error_of_points
from keras_calib.inputs.top_label import top_label

__all__ = [
    "smooth_ece",
]


def smooth_ece(
    labels: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Smooth calibration error of the predicted class, in float64.

    E(s) = integral over t in [0, 1] of |mean_n K_s(t, c_n) (c_n - a_n)|,
    with confidence c, correctness a and the reflected Gaussian kernel K_s of
    width s. smECE is the s with E(s) = s: no bins and nothing to choose, and
    within constant factors of the distance to the nearest predictions that
    are calibrated.

    Args:
        labels: As in `ece`, shape `(n, ...)`.
        probs: As in `ece`, shape `(n, ..., num_classes)`.
        from_logits: Whether `probs` are logits.
        sample_weight: As in `ece`.
        ignore_class: Class id that does not count.

    Returns:
        Error in [0, 1].

    Raises:
        ValueError: As `ece`.

    Example:

    >>> round(smooth_ece([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 3)
    0.208

    Reference:
        Blasiok and Nakkiran, Smooth ECE: Principled Reliability Diagrams via
        Kernel Smoothing, ICLR 2024, https://arxiv.org/abs/2309.12236

    Differs:
        The authors' package steps the width by 2^-10, samples E(s) at 200
        points, stops below 0.001, and counts confidences of exactly 0 and 1
        half; this solves E(s) = s to 1e-6 with all of them.
    """
    top = top_label(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    residual = top.confidence.astype("float64") - top.correct
    if top.weight is None:
        residual = residual / len(residual)
    else:
        residual = residual * (top.weight / top.weight.sum())
    return float(smooth_error_of_points(top.confidence, residual, EXACT_CELLS))

"""Calibration error, smoothed by a kernel in place of bins."""

from typing import Any, Unpack

from keras_calib.formulas.smooth import EXACT_CELLS, smooth_error_of_points
from keras_calib.inputs.options import ArrayOptions, reads_arrays
from keras_calib.inputs.top_label import event_of

__all__ = ["smooth_ece"]


@reads_arrays
def smooth_ece(
    labels: Any,
    probs: Any,
    *,
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> float:
    """Smooth calibration error, in float64.

    Use it when the result must not depend on a choice of bins. It is that of
    the predicted class, or with `mode="binary"` of the probability of the
    second of two classes, as in the authors' package.

    smECE = the width s at which E(s) = s, with
    E(s) = integral over t in [0, 1] of |mean_n K_s(t, c_n) (c_n - a_n)|

    Here c is the confidence, a the correctness and K_s the reflected Gaussian
    kernel of width s. In the mode `"binary"` c is the probability of the second
    class, and a whether the class is the second. The value is within constant
    factors of the distance to the nearest calibrated predictions.

    Args:
        labels, probs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        mode: `"top_label"` or `"binary"`, as in `ece`.
        **options: `from_logits`, `sample_weight`, `ignore_class` as in `ece`.

    Returns:
        Error in [0, 1].

    Example:

    >>> round(smooth_ece([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 3)
    0.208

    Reference:
        Blasiok and Nakkiran, Smooth ECE: Principled Reliability Diagrams via
        Kernel Smoothing, ICLR 2024, https://arxiv.org/abs/2309.12236

    Differs:
        The authors' package steps the width by 2^-10 on 200 points, stops
        below 0.001 and halves confidences of exactly 0 and 1. This function
        solves E(s) = s to 1e-6.
    """
    top = event_of(labels, probs, mode, **options)
    residual = top.confidence.astype("float64") - top.correct
    if top.weight is None:
        residual = residual / len(residual)
    else:
        residual = residual * (top.weight / top.weight.sum())
    return float(smooth_error_of_points(top.confidence, residual, EXACT_CELLS))

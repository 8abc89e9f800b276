"""Cumulative calibration error, without bins."""

from typing import Any, Unpack

from keras_calib.formulas.cumulative import (
    CumulativeDifferences,
    check_kind,
    cumulative_error,
    differences_of,
)
from keras_calib.inputs.options import ArrayOptions, reads_arrays
from keras_calib.inputs.top_label import counted, event_of

__all__ = ["cumulative_differences", "ecce"]


@reads_arrays
def cumulative_differences(
    labels: Any,
    probs: Any,
    *,
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> CumulativeDifferences:
    """Cumulative differences of confidence and correctness, in float64.

    Use it for the arrays behind `CumulativeDisplay` and `ecce`.

    C_k = (1/n) sum over the k least confident of (confidence_i - correct_i)

    Args:
        labels, probs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        mode: `"top_label"`, or `"binary"` as in `ecce`.
        **options: `from_logits`, `sample_weight`, `ignore_class` and `votes`
            as in `ece`.

    Returns:
        Shares, differences and a standard deviation. Predictions of equal
        confidence are one group.

    Example:

    >>> found = cumulative_differences([1, 0], [[0.8, 0.2], [0.6, 0.4]])
    >>> [round(float(x), 4) for x in found.difference]
    [-0.2, 0.2]

    Reference:
        Arrieta-Ibarra, Gujral, Tannen, Tygert and Xu, Metrics of Calibration
        for Probabilistic Predictions, JMLR 2022,
        https://jmlr.org/papers/v23/22-0658.html
    """
    top = counted(event_of(labels, probs, mode, **options))
    return differences_of(top.score, top.confidence, top.correct, top.weight)


@reads_arrays
def ecce(
    labels: Any,
    probs: Any,
    *,
    kind: str = "range",
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> float:
    """Estimated cumulative calibration error (ECCE), in float64.

    Use it when the result must not depend on bins, and with
    `calibration_test` for a p-value. With C_0 = 0 and

    C_k = (1/n) sum over the k least confident of (confidence_i - correct_i)

    the forms are ECCE-R = max_k C_k - min_k C_k and ECCE-MAD = max_k |C_k|.

    Predictions of equal confidence are one step of the sum. ECCE-R is the
    largest |sum of (confidence - correct)| / n over an interval of
    confidences, also known as the Kuiper calibration error. ECCE-MAD is the
    Kolmogorov-Smirnov calibration error, or KS error, of Gupta et al., for
    the predicted class. Both fall with sqrt(n) if the predictions are
    calibrated: ECCE-R is then about 1.6 sqrt(sum c (1 - c)) / n.

    Args:
        labels, probs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        kind: `"range"` for ECCE-R, `"maximum"` for ECCE-MAD.
        mode: `"top_label"` for the confidence of the predicted class,
            `"binary"` for the probability of the second of two classes, and
            whether the class is the second.
        **options: `from_logits`, `sample_weight`, `ignore_class` and `votes`
            as in `ece`. Weights multiply the terms, and their sum replaces n.

    Returns:
        Error in [0, 1].

    Raises:
        ValueError: If shapes do not fit, there is no sample, or a value is
            out of range.

    Example:

    >>> probs = [[0.8, 0.2], [0.6, 0.4]]
    >>> round(ecce([1, 0], probs), 4)
    0.4
    >>> round(ecce([1, 0], probs, kind="maximum"), 4)
    0.2

    Reference:
        Arrieta-Ibarra, Gujral, Tannen, Tygert and Xu, Metrics of Calibration
        for Probabilistic Predictions, JMLR 2022,
        https://jmlr.org/papers/v23/22-0658.html; KS error: Gupta et al.,
        Calibration of Neural Networks using Splines, ICLR 2021,
        https://arxiv.org/abs/2006.12800

    Differs:
        The papers take tied samples one by one, so that their order matters.
    """
    check_kind(kind)
    found = cumulative_differences(labels, probs, mode=mode, **options)
    return float(cumulative_error(found.difference, kind))

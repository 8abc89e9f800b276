"""Calibration errors of the predicted class, over bins of equal width.

They are exact functions of whole data sets in float64. The formulas are those
of the streaming metrics.
"""

from typing import Any, Unpack

from keras_calib.backend.errors import value_error
from keras_calib.formulas import binned_errors
from keras_calib.formulas.bins import (
    CLOSED,
    BinSums,
    bin_index,
    bin_sums,
    shifted_midpoints,
)
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.checks import MODES, check_in, check_integer
from keras_calib.inputs.options import ArrayOptions, reads_arrays
from keras_calib.inputs.top_label import event_of, top_of_arrays
from keras_calib.inputs.weights import are_frequency_weights
from keras_calib.numerics.softmax import Top1

__all__ = [
    "average_calibration_error",
    "debiased_calibration_error",
    "ece",
    "equal_width_bins",
    "mce",
    "rmsce",
]


def equal_width_bins(
    labels: Any,
    probs: Any,
    num_bins: int,
    closed: str = "right",
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> BinSums:
    """Sums of the equal-width bins of a whole data set."""
    top, votes = event_of(labels, probs, mode, **options), options.get("votes")
    return _bins_of(top, num_bins, closed, bool(votes))


def _bins_of(top: Top1, num_bins: int, closed: str, votes: bool) -> BinSums:
    check_integer("num_bins", num_bins, 1)
    check_in("closed", closed, CLOSED)
    index = bin_index(top.confidence, num_bins, closed)
    return bin_sums(
        top.confidence, top.correct, index, num_bins, top.weight, votes
    )


@reads_arrays
def ece(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    norm: str = "l1",
    closed: str = "right",
    convention: str = "mean",
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> float:
    """Expected calibration error (ECE) of a whole data set, in float64.

    Use it to see how far confidences are from accuracies on average, for
    predictions that fit in memory. `ECE` streams the same value.

    ECE = sum_b (n_b / N) |mean confidence_b - accuracy_b|

    The bins b have equal width in the confidence of the predicted class. With
    `mode="binary"` they are of the probability of the second of two classes,
    and its frequency takes the place of the accuracy. scikit-learn's
    `calibration_curve` and torchmetrics' `BinaryCalibrationError` use these.

    Args:
        labels: Class ids `(n, ...)`, or one-hot or soft labels
            `(n, ..., num_classes)`. The largest class of a soft label is the
            true class. With `votes=True`, counts or shares of annotators'
            votes `(n, ..., num_classes)`, which weigh correctness.
        probs: Probabilities `(n, ..., num_classes)`, or `(n, 1)` for the
            second of two classes.
        num_bins: Number of bins, at least 1.
        norm: `"l1"` is the formula above, `"l2"` that of `rmsce`, `"max"`
            that of `mce`.
        closed: `"right"` for bins (lo, hi], where the first also includes its
            lower edge. `"left"` for [lo, hi), where the last also includes
            its upper edge.
        convention: `"mean"` is the formula above. `"pycalib"` gives the
            numbers of that library, to compare with papers that print them.
            It is not 0 for a calibrated model. There are B bins [lo, hi) over
            [1 / K, 1], 100 by default in pycalib. Bin b has
            1 / K + 1 / (2 B) + b (1 - 1 / K - 1 / B) / (B - 1) in place of
            its mean confidence.
        mode: `"top_label"` for the predicted class, `"binary"` for the second
            of two classes, with outputs `(n, 1)` or `(n, 2)`.
        **options: `from_logits`, `sample_weight`, `ignore_class` and `votes`
            of `ArrayOptions`.

    Returns:
        ECE in [0, 1].

    Raises:
        ValueError: If shapes do not fit, there is no sample, or a value is
            out of range.

    Example:

    >>> round(ece([0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=10), 4)
    0.4

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        eq. 3, https://arxiv.org/abs/1706.04599; `"pycalib"`: Wenger et al.,
        Non-Parametric Calibration for Classification, AISTATS 2020, released
        code, https://github.com/JonathanWenger/pycalib

    Differs:
        In pycalib, K is the number of classes that occur among labels and
        predictions. Here it is the number of outputs.
    """
    check_in("norm", norm, binned_errors.NORMS)
    check_in("convention", convention, ("mean", "pycalib"))
    check_in("mode", mode, MODES)
    if mode == "binary" and convention != "mean":
        raise value_error(
            '`mode="binary"` needs `convention="mean"`', convention=convention
        )
    if convention == "mean":
        sums = equal_width_bins(
            labels, probs, num_bins, closed, mode, **options
        )
    else:
        check_integer("num_bins", num_bins, 1)
        check_in("closed", closed, CLOSED)
        read = standardize_arrays(labels, probs, **options)
        # pycalib compares accuracies with fixed numbers, one for each bin of
        # [1 / K, 1], and not with mean confidences.
        top, least = top_of_arrays(read), 1.0 / read.outputs.shape[-1]
        stated, index = shifted_midpoints(top.confidence, num_bins, least)
        sums = bin_sums(stated, top.correct, index, num_bins, top.weight)
    return float(binned_errors.calibration_error(sums, norm))


@reads_arrays
def mce(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    closed: str = "right",
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> float:
    """Maximum calibration error (MCE) of a whole data set, in float64.

    Use it when the worst bin matters. Bins of few samples decide it, so it
    grows with the number of bins.

    MCE = max_b |mean confidence_b - accuracy_b|, over bins that are not empty

    Args:
        labels, probs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        num_bins, closed, mode, **options: As in `ece`.

    Returns:
        MCE in [0, 1].

    Example:

    >>> round(mce([0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=10), 4)
    0.6

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        eq. 5, https://arxiv.org/abs/1706.04599
    """
    sums = equal_width_bins(labels, probs, num_bins, closed, mode, **options)
    return float(binned_errors.calibration_error(sums, "max"))


@reads_arrays
def rmsce(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    closed: str = "right",
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> float:
    """Root mean squared calibration error (RMSCE), in float64.

    Use it in place of `ece` when large gaps should weigh more than small ones.

    RMSCE = sqrt(sum_b (n_b / N) (mean confidence_b - accuracy_b)^2)

    The value is at least the ECE and at most the MCE of the same bins.

    Args:
        labels, probs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        num_bins, closed, mode, **options: As in `ece`.

    Returns:
        RMSCE in [0, 1].

    Example:

    >>> round(rmsce([0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=10), 4)
    0.4472

    Reference:
        Hendrycks et al., Deep Anomaly Detection with Outlier Exposure, ICLR
        2019, https://arxiv.org/abs/1812.04606

    Differs:
        The reference uses bins of equal mass, this function bins of equal
        width.
    """
    sums = equal_width_bins(labels, probs, num_bins, closed, mode, **options)
    return float(binned_errors.calibration_error(sums, "l2"))


@reads_arrays
def average_calibration_error(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    closed: str = "right",
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> float:
    """Mean of |confidence - accuracy| over bins that are not empty, in float64.

    Use it when rare confidences matter as much as common ones: each bin has the
    same weight, however few its samples.

    "ACE" also names two errors over bins of equal mass: that of the predicted
    class, here `adaptive_ece`, and that of all classes, here `classwise_ece`
    with `edges="mass"`.

    Args:
        labels, probs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        num_bins, closed, mode, **options: As in `ece`.

    Returns:
        Error in [0, 1].

    Example:

    >>> round(average_calibration_error([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.4

    Reference:
        Neumann et al., Relaxed Softmax: Efficient Confidence Auto-Calibration
        for Safe Pedestrian Detection, NeurIPS workshop 2018,
        https://openreview.net/forum?id=S1lG7aTnqQ
    """
    sums = equal_width_bins(labels, probs, num_bins, closed, mode, **options)
    return float(binned_errors.average_error(sums))


@reads_arrays
def debiased_calibration_error(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    closed: str = "right",
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> float:
    """Root mean squared calibration error, debiased, in float64.

    Use it with few samples per bin, where random labels alone raise `rmsce`.

    sqrt(max(0, sum_b (n_b / N) (gap_b^2 - acc_b (1 - acc_b) / (n_b - 1))))

    The second term is what the randomness of the labels adds to the squared
    gap on average. Bins of one sample add nothing. With fractional weights,
    n_b is the effective number (sum w)^2 / sum w^2. With `votes=True`, the
    variance of confidence - share of votes in bin b takes the place of
    acc_b (1 - acc_b).

    Args:
        labels, probs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        num_bins, closed, mode, **options: As in `ece`.

    Returns:
        Error in [0, 1].

    Example:

    >>> probs = [[0.9, 0.1]] * 4
    >>> round(debiased_calibration_error([0, 0, 0, 1], probs), 4)
    0.0
    >>> round(rmsce([0, 0, 0, 1], probs), 4)
    0.15

    Reference:
        Kumar et al., Verified Uncertainty Calibration, NeurIPS 2019,
        https://arxiv.org/abs/1909.10155

    Differs:
        The reference uses bins of equal mass, this function bins of equal
        width.
    """
    top = event_of(labels, probs, mode, **options)
    counts = are_frequency_weights(top.weight)
    if not counts:
        # So that no square is 0.
        top = top._replace(weight=top.weight / top.weight.max())
    sums = _bins_of(top, num_bins, closed, bool(options.get("votes")))
    return float(binned_errors.debiased_error(sums, counts))

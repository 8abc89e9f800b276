"""Calibration errors of the predicted class, over bins of equal width.

Exact functions of whole data sets in float64; the formulas, on sums per bin,
are those of the streaming metrics.
"""

from typing import Any
from typing import Unpack

from keras_calib.formulas import binned_errors
from keras_calib.formulas.bins import CLOSED
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.bins import bin_index
from keras_calib.formulas.bins import bin_sums
from keras_calib.formulas.bins import shifted_midpoints
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.options import ArrayOptions
from keras_calib.inputs.options import reads_arrays
from keras_calib.inputs.top_label import top_label
from keras_calib.inputs.top_label import top_of_arrays
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
    **options: Unpack[ArrayOptions],
) -> BinSums:
    """Bin sums of a whole data set."""
    return _bins_of(top_label(labels, probs, **options), num_bins, closed)


def _bins_of(top: Top1, num_bins: int, closed: str) -> BinSums:
    check_integer("num_bins", num_bins, 1)
    check_in("closed", closed, CLOSED)
    index = bin_index(top.confidence, num_bins, closed)
    return bin_sums(top.confidence, top.correct, index, num_bins, top.weight)


@reads_arrays
def ece(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    norm: str = "l1",
    closed: str = "right",
    convention: str = "mean",
    **options: Unpack[ArrayOptions],
) -> float:
    """Expected calibration error of a whole data set, in float64.

    ECE = sum_b (n_b / N) |mean confidence_b - accuracy_b|, over equal-width
    bins of the confidence of the predicted class.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels
            `(n, ..., num_classes)`, read as their largest class.
        probs: Probabilities `(n, ..., num_classes)`, or `(n, 1)` for the
            second of two classes.
        num_bins: Number of bins, at least 1.
        norm: `"l1"`, as above; `"l2"` or `"max"`, as `rmsce` and `mce`.
        closed: `"right"` for bins (lo, hi], the first with its lower edge;
            `"left"` for [lo, hi), the last with its upper edge.
        convention: `"mean"`, as above; `"pycalib"` for the numbers of that
            library, to compare with papers that print them: B bins over
            [1 / K, 1], always [lo, hi), and in place of the mean confidence
            of bin b the number 1 / K + 1 / (2 B) + b (1 - 1 / K - 1 / B)
            / (B - 1). It is not 0 for a calibrated model. Its own default is
            100 bins.
        **options: `from_logits`, `sample_weight` and `ignore_class` of
            `ArrayOptions`.

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
        pycalib takes for K the number of classes that occur among labels and
        predictions; here it is that of the outputs.
    """
    check_in("norm", norm, binned_errors.NORMS)
    check_in("convention", convention, ("mean", "pycalib"))
    if convention == "mean":
        sums = equal_width_bins(labels, probs, num_bins, closed, **options)
    else:
        check_integer("num_bins", num_bins, 1)
        check_in("closed", closed, CLOSED)
        read = standardize_arrays(labels, probs, **options)
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
    **options: Unpack[ArrayOptions],
) -> float:
    """Maximum calibration error of a whole data set, in float64.

    MCE = max_b |mean confidence_b - accuracy_b| over the bins that are not
    empty. Bins of few samples decide it: it grows with the number of bins.

    Args:
        labels, probs: `(n, ...)` and `(n, ..., num_classes)`, as in `ece`.
        num_bins, closed, **options: As in `ece`.

    Returns:
        MCE in [0, 1].

    Example:

    >>> round(mce([0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=10), 4)
    0.6

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        eq. 5, https://arxiv.org/abs/1706.04599
    """
    sums = equal_width_bins(labels, probs, num_bins, closed, **options)
    return float(binned_errors.calibration_error(sums, "max"))


@reads_arrays
def rmsce(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    closed: str = "right",
    **options: Unpack[ArrayOptions],
) -> float:
    """Root mean squared calibration error, in float64.

    RMSCE = sqrt(sum_b (n_b / N) (mean confidence_b - accuracy_b)^2). At
    least the ECE and at most the MCE of the same bins.

    Args:
        labels, probs: `(n, ...)` and `(n, ..., num_classes)`, as in `ece`.
        num_bins, closed, **options: As in `ece`.

    Returns:
        RMSCE in [0, 1].

    Example:

    >>> round(rmsce([0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=10), 4)
    0.4472

    Reference:
        Hendrycks et al., Deep Anomaly Detection with Outlier Exposure, ICLR
        2019, https://arxiv.org/abs/1812.04606

    Differs:
        The reference bins by equal mass; these bins are of equal width.
    """
    sums = equal_width_bins(labels, probs, num_bins, closed, **options)
    return float(binned_errors.calibration_error(sums, "l2"))


@reads_arrays
def average_calibration_error(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    closed: str = "right",
    **options: Unpack[ArrayOptions],
) -> float:
    """Mean of |confidence - accuracy| over bins that are not empty, in float64.

    Each bin counts alike, however few its samples. "ACE" also names two
    errors over bins of equal mass: of the predicted class (`adaptive_ece`),
    and of every class (`classwise_ece` with `edges="mass"`).

    Args:
        labels, probs: `(n, ...)` and `(n, ..., num_classes)`, as in `ece`.
        num_bins, closed, **options: As in `ece`.

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
    sums = equal_width_bins(labels, probs, num_bins, closed, **options)
    return float(binned_errors.average_error(sums))


@reads_arrays
def debiased_calibration_error(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    closed: str = "right",
    **options: Unpack[ArrayOptions],
) -> float:
    """Root mean squared calibration error, debiased, in float64.

    sqrt(max(0, sum_b (n_b / N) (gap_b^2 - acc_b (1 - acc_b) / (n_b - 1)))):
    `rmsce` without what the randomness of the labels adds on average. Bins
    of one sample add nothing. With weights that are not whole, n_b is the
    effective number (sum w)^2 / sum w^2.

    Args:
        labels, probs: `(n, ...)` and `(n, ..., num_classes)`, as in `ece`.
        num_bins, closed, **options: As in `ece`.

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
        The reference bins by equal mass; these bins are of equal width.
    """
    top = top_label(labels, probs, **options)
    sums = _bins_of(top, num_bins, closed)
    counts = are_frequency_weights(top.weight)
    return float(binned_errors.debiased_error(sums, counts))

"""Calibration errors of the predicted class, over bins or smoothed.

Exact functions of whole data sets in float64; the formulas, on sums per bin,
are those of the streaming metrics.
"""

from typing import Any
from typing import Unpack

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas import binned_errors
from keras_calib.formulas.bins import CLOSED
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.bins import bin_index
from keras_calib.formulas.bins import bin_sums
from keras_calib.formulas.equal_mass import interpolated_bins
from keras_calib.formulas.equal_mass import sorted_mass_error
from keras_calib.formulas.smooth import EXACT_CELLS
from keras_calib.formulas.smooth import smooth_error_of_points
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.options import ArrayOptions
from keras_calib.inputs.options import reads_arrays
from keras_calib.inputs.top_label import top_label
from keras_calib.inputs.weights import are_frequency_weights
from keras_calib.numerics.softmax import Top1

__all__ = [
    "adaptive_ece",
    "average_calibration_error",
    "debiased_calibration_error",
    "ece",
    "equal_width_bins",
    "mce",
    "rmsce",
    "smooth_ece",
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
        eq. 3, https://arxiv.org/abs/1706.04599
    """
    check_in("norm", norm, binned_errors.NORMS)
    sums = equal_width_bins(labels, probs, num_bins, closed, **options)
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
        labels, probs, num_bins, closed, **options: As in `ece`.

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
        labels, probs, num_bins, closed, **options: As in `ece`.

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
        labels, probs, num_bins, closed, **options: As in `ece`.

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
        labels, probs, num_bins, closed, **options: As in `ece`.

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


@reads_arrays
def adaptive_ece(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    edges: str = "mass",
    ties: str = "average",
    **options: Unpack[ArrayOptions],
) -> float:
    """Calibration error over bins of equal mass, in float64.

    As `ece`, with the samples sorted by confidence and cut into bins of equal
    weight, as nearly as whole samples allow.

    Args:
        labels, probs, num_bins: As in `ece`.
        edges: `"mass"`: every sample counts. `"interp"`: the edges of the
            papers' code, for parity with published tables, without weights.
            They are interpolated from the sorted confidences with (lo, hi]
            membership. That leaves out the smallest confidence and collapses
            where confidences tie.
        ties: For `edges="mass"`. `"average"`: samples of one confidence
            count as their mean; `"order"`: as sorted stably.
        **options: `from_logits`, `sample_weight`, `ignore_class`; see `ece`.

    Returns:
        Error in [0, 1].

    Example:

    >>> round(adaptive_ece([0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=2), 4)
    0.4

    Reference:
        Nguyen and O'Connor, Posterior Calibration and Exploratory Analysis
        for NLP Models, EMNLP 2015, https://arxiv.org/abs/1508.05154
    """
    check_integer("num_bins", num_bins, 1)
    check_in("edges", edges, ("mass", "interp"))
    check_in("ties", ties, ("average", "order"))
    top = top_label(labels, probs, **options)
    if edges == "mass":
        residual = top.confidence - top.correct
        return sorted_mass_error(
            top.score, residual, num_bins, weight=top.weight, ties=ties
        )
    if top.weight is not None:
        raise value_error('`sample_weight` needs `edges="mass"`', edges=edges)
    _, sums = interpolated_bins(top.confidence, top.correct, num_bins)
    return float(np.sum(np.abs(sums.residual)) / len(top.confidence))


@reads_arrays
def smooth_ece(
    labels: Any, probs: Any, **options: Unpack[ArrayOptions]
) -> float:
    """Smooth calibration error of the predicted class, in float64.

    smECE is the width s at which E(s) = s: no bins and nothing to choose.
    E(s) = integral over t in [0, 1] of |mean_n K_s(t, c_n) (c_n - a_n)|,
    with confidence c, correctness a and the reflected Gaussian kernel K_s of
    width s. It is within constant factors of the distance to the nearest
    calibrated predictions.

    Args:
        labels, probs, **options: As in `ece`.

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
        below 0.001 and halves confidences of exactly 0 and 1. This solves
        E(s) = s to 1e-6.
    """
    top = top_label(labels, probs, **options)
    residual = top.confidence.astype("float64") - top.correct
    if top.weight is None:
        residual = residual / len(residual)
    else:
        residual = residual * (top.weight / top.weight.sum())
    return float(smooth_error_of_points(top.confidence, residual, EXACT_CELLS))

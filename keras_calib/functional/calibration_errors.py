"""Calibration errors of the predicted class: over bins, smoothed, summed."""

from typing import Any, Unpack

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas import binned_errors, bins, cumulative
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.cumulative import CumulativeCurve
from keras_calib.formulas.smooth import EXACT_CELLS, smooth_error_of_points
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.checks import MODES, check_in, check_integer
from keras_calib.inputs.options import ArrayOptions
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.top_label import event_of, has_shares, top_of_arrays
from keras_calib.inputs.weights import are_binary, are_frequency_weights


def equal_width_bins(
    labels: Any,
    outputs: Any,
    num_bins: int,
    closed: str = "right",
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> BinSums:
    """Sums of the equal-width bins of a whole data set."""
    top = event_of(labels, outputs, mode, **options)
    return _bins_of(top, num_bins, closed, has_shares(labels, options))


def _bins_of(top: Outcomes, num_bins: int, closed: str, votes: bool) -> BinSums:
    check_integer("num_bins", num_bins, 1)
    check_in("closed", closed, bins.CLOSED)
    index = bins.bin_index(top.confidence, num_bins, closed)
    return bins.bin_sums(
        top.confidence, top.correct, index, num_bins, top.weight, votes
    )


def ece(
    labels: Any,
    outputs: Any = None,
    *,
    num_bins: int = 15,
    norm: str = "l1",
    closed: str = "right",
    bin_confidence: str = "mean",
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
            votes `(n, ..., num_classes)`, which weigh correctness. Or
            `Predictions`, which tell the outputs and options too.
        outputs: Probabilities `(n, ..., num_classes)`, or `(n, 1)` for the
            second of two classes. With `mode="binary"` also `(n,)`.
        num_bins: Number of bins, at least 1.
        norm: `"l1"` is the formula above, `"l2"` that of `rmsce`, `"max"`
            that of `mce`.
        closed: `"right"` for bins (lo, hi], where the first also includes its
            lower edge. `"left"` for [lo, hi), where the last also includes
            its upper edge.
        bin_confidence: `"mean"` is the formula above. `"pycalib"` gives the
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
    check_in("bin_confidence", bin_confidence, ("mean", "pycalib"))
    check_in("mode", mode, MODES)
    if mode == "binary" and bin_confidence != "mean":
        raise value_error(
            '`mode="binary"` needs `bin_confidence="mean"`',
            bin_confidence=bin_confidence,
        )
    if bin_confidence == "mean":
        sums = equal_width_bins(
            labels, outputs, num_bins, closed, mode, **options
        )
    else:
        check_integer("num_bins", num_bins, 1)
        check_in("closed", closed, bins.CLOSED)
        read = standardize_arrays(labels, outputs, **options)
        # pycalib compares accuracies with fixed numbers, one for each bin of
        # [1 / K, 1], and not with mean confidences.
        top, least = top_of_arrays(read), 1.0 / read.outputs.shape[-1]
        stated, index = bins.shifted_midpoints(top.confidence, num_bins, least)
        sums = bins.bin_sums(stated, top.correct, index, num_bins, top.weight)
    return float(binned_errors.calibration_error(sums, norm))


def mce(
    labels: Any,
    outputs: Any = None,
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
        labels, outputs, num_bins, closed, mode, **options: As in `ece`.

    Returns:
        MCE in [0, 1].

    Reference:
        That of `ece`, eq. 5.
    """
    sums = equal_width_bins(labels, outputs, num_bins, closed, mode, **options)
    return float(binned_errors.calibration_error(sums, "max"))


def rmsce(
    labels: Any,
    outputs: Any = None,
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
        labels, outputs, num_bins, closed, mode, **options: As in `ece`.

    Returns:
        RMSCE in [0, 1].

    Reference:
        Hendrycks et al., Deep Anomaly Detection with Outlier Exposure, ICLR
        2019, https://arxiv.org/abs/1812.04606

    Differs:
        The reference uses bins of equal mass, this function bins of equal
        width.
    """
    sums = equal_width_bins(labels, outputs, num_bins, closed, mode, **options)
    return float(binned_errors.calibration_error(sums, "l2"))


def average_calibration_error(
    labels: Any,
    outputs: Any = None,
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
    class, here `aece`, and that of all classes, here `classwise_ece`
    with `edges="mass"`.

    Args:
        labels, outputs, num_bins, closed, mode, **options: As in `ece`.

    Returns:
        Error in [0, 1].

    Reference:
        Neumann et al., Relaxed Softmax: Efficient Confidence Auto-Calibration
        for Safe Pedestrian Detection, NeurIPS workshop 2018,
        https://openreview.net/forum?id=S1lG7aTnqQ
    """
    sums = equal_width_bins(labels, outputs, num_bins, closed, mode, **options)
    return float(binned_errors.average_error(sums))


def debiased_calibration_error(
    labels: Any,
    outputs: Any = None,
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
        labels, outputs, num_bins, closed, mode, **options: As in `ece`.

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
    top = event_of(labels, outputs, mode, **options)
    counts = are_frequency_weights(top.weight)
    if not counts:
        # So that no square is 0.
        top = top._replace(weight=top.weight / top.weight.max())
    sums = _bins_of(top, num_bins, closed, has_shares(labels, options))
    return float(binned_errors.debiased_error(sums, counts))


def aece(
    labels: Any,
    outputs: Any = None,
    *,
    num_bins: int = 15,
    edges: str = "mass",
    ties: str = "average",
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> float:
    """Adaptive ECE: calibration error over bins of equal mass, in float64.

    Use it in place of `ece` when most confidences are close to 1: its bins lie
    where the predictions are.

    sum_b (n_b / N) |mean confidence_b - accuracy_b|

    The samples are sorted by confidence and cut into bins of equal weight, as
    nearly as whole samples allow.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        num_bins: Number of bins, at least 1.
        edges: `"mass"` uses every sample. `"interp"` uses the edges of the
            papers' code, for parity with published tables, without weights.
            They are interpolated between the sorted confidences, for bins
            (lo, hi]. This leaves out the smallest confidence, and bins vanish
            where confidences tie: the error is 0 if all do.
        ties: Order of equal confidences, for `edges="mass"`. With `"average"`
            each gets their mean, with `"order"` they keep their order.
        mode: `"top_label"` for the confidence of the predicted class,
            `"binary"` for the probability of the second of two, as in `ece`.
        **options: As in `ece`.

    Returns:
        Error in [0, 1].

    Example:

    >>> round(aece([0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=2), 4)
    0.4

    Reference:
        Nguyen and O'Connor, Posterior Calibration and Exploratory Analysis
        for NLP Models, EMNLP 2015, https://arxiv.org/abs/1508.05154
    """
    check_integer("num_bins", num_bins, 1)
    check_in("edges", edges, ("mass", "interp"))
    check_in("ties", ties, ("average", "order"))
    top = event_of(labels, outputs, mode, **options)
    if edges == "mass":
        residual = top.confidence - top.correct
        return bins.sorted_mass_error(
            top.score, residual, num_bins, weight=top.weight, ties=ties
        )
    if not are_binary(top.weight):
        raise value_error('`sample_weight` needs `edges="mass"`', edges=edges)
    top = top.counted()
    _, sums = bins.interpolated_bins(top.confidence, top.correct, num_bins)
    return float(np.sum(np.abs(sums.residual)) / len(top.confidence))


def smooth_ece(
    labels: Any,
    outputs: Any = None,
    *,
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> float:
    """Smooth calibration error, in float64.

    Use it when the result must not depend on a choice of bins.

    smECE = the width s at which E(s) = s, with
    E(s) = integral over t in [0, 1] of |mean_n K_s(t, c_n) (c_n - a_n)|

    Here c is the confidence, a the correctness and K_s the reflected Gaussian
    kernel of width s. With `mode="binary"`, as in the authors' package, c is
    the probability of the second class, and a whether the class is the second.
    The value is within constant factors of the distance to the nearest
    calibrated predictions.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        mode: `"top_label"` or `"binary"`, as in `ece`.
        **options: As in `ece`.

    Returns:
        Error in [0, 1].

    Reference:
        Blasiok and Nakkiran, Smooth ECE: Principled Reliability Diagrams via
        Kernel Smoothing, ICLR 2024, https://arxiv.org/abs/2309.12236

    Differs:
        The authors' package steps the width by 2^-10 on 200 points, stops
        below 0.001 and halves confidences of exactly 0 and 1. This function
        solves E(s) = s to 1e-6.
    """
    top = event_of(labels, outputs, mode, **options)
    residual = top.confidence.astype("float64") - top.correct
    if top.weight is None:
        residual = residual / len(residual)
    else:
        residual = residual * (top.weight / top.weight.sum())
    return float(smooth_error_of_points(top.confidence, residual, EXACT_CELLS))


def cumulative_differences(
    labels: Any,
    outputs: Any = None,
    *,
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> CumulativeCurve:
    """Cumulative differences of confidence and correctness, in float64.

    Use it for the arrays behind `CumulativeDisplay` and `ecce`, the C_k of its
    formulas.

    Args:
        labels, outputs, mode, **options: As in `ecce`.

    Returns:
        Shares, differences and a standard deviation. Predictions of equal
        confidence are one group.

    Example:

    >>> found = cumulative_differences([1, 0], [[0.8, 0.2], [0.6, 0.4]])
    >>> [round(float(x), 4) for x in found.difference]
    [-0.2, 0.2]

    Reference:
        That of `ecce`.
    """
    top = event_of(labels, outputs, mode, **options).counted()
    return cumulative.differences_of(
        top.score, top.confidence, top.correct, top.weight
    )


def ecce(
    labels: Any,
    outputs: Any = None,
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
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        kind: `"range"` for ECCE-R, `"maximum"` for ECCE-MAD.
        mode: `"top_label"` for the confidence of the predicted class,
            `"binary"` for the probability of the second of two classes, and
            whether the class is the second.
        **options: As in `ece`. Weights multiply the terms, and their sum
            replaces n.

    Returns:
        Error in [0, 1].

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
    check_in("kind", kind, cumulative.KINDS)
    found = cumulative_differences(labels, outputs, mode=mode, **options)
    return float(cumulative.cumulative_error(found.difference, kind))

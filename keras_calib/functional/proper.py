"""Proper scores of whole data sets, in float64."""

from functools import partial
from typing import Any, Unpack

import numpy as np

from keras_calib.formulas import binned_errors, proper
from keras_calib.formulas.binned_errors import Decomposition
from keras_calib.formulas.bins import CLOSED
from keras_calib.functional.calibration_errors import equal_width_bins
from keras_calib.functional.classwise import bins_of_classes
from keras_calib.inputs.batch import Batch, standardize_arrays
from keras_calib.inputs.checks import check_in, check_integer
from keras_calib.inputs.options import ArrayOptions
from keras_calib.inputs.rows import of_one_output


def nll(
    labels: Any,
    outputs: Any = None,
    *,
    clip: float | None = None,
    **options: Unpack[ArrayOptions],
) -> float:
    """Negative log-likelihood (NLL) of a whole data set, in float64.

    Use it to choose between models by one number, which measures calibration
    and accuracy together.

    NLL = mean_n -log p_y

    For soft labels it is the cross entropy.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        clip: Lower bound on probabilities, in (0, 1]. Published tables clip
            at 1e-15 or 1e-12, and None clips at 1e-37.
        **options: As in `ece`. Outputs may be `(n,)`, of the second of two
            classes.

    Returns:
        NLL in nats, >= 0.

    Example:

    >>> round(nll([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.5697

    Reference:
        That of `ece`, section 2.
    """
    proper.check_clip(clip)
    outputs = of_one_output(outputs, "outputs")
    read = standardize_arrays(labels, outputs, **options)
    losses = partial(proper.log_losses, clip=clip)
    return _mean(proper.losses_of_rows(losses, read, "float64"), read)


def brier_score(
    labels: Any, outputs: Any = None, **options: Unpack[ArrayOptions]
) -> float:
    """Brier score of a whole data set, in float64.

    Use it like `nll` to choose between models, when a few very wrong
    predictions should not dominate: a sample adds at most 2.

    mean_n sum_k (p_k - y_k)^2, summed over all classes

    With `votes=True` it is the mean over the votes of a sample. That exceeds
    the distance from the shares s by 1 - sum_k s_k^2, their disagreement.

    Args:
        labels, outputs, **options: As in `ece`. Outputs may be `(n,)`, of the
            second of two classes.

    Returns:
        Score in [0, 2], where 0 is best.

    Example:

    >>> round(brier_score([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.4

    Reference:
        Brier, Verification of Forecasts Expressed in Terms of Probability,
        Monthly Weather Review 78, 1950,
        https://doi.org/10.1175/1520-0493(1950)078<0001:VOFEIT>2.0.CO;2

    Differs:
        Some libraries call half of it the Brier score of two classes: the
        squared error of the probability of the second class.
    """
    outputs = of_one_output(outputs, "outputs")
    read = standardize_arrays(labels, outputs, **options)
    return _mean(proper.brier_losses_of_rows(read, "float64"), read)


def _mean(losses: np.ndarray, read: Batch) -> float:
    """Weighted mean of losses, in float64."""
    return float(np.average(losses, weights=read.weight))


def calibration_decomposition(
    labels: Any,
    outputs: Any = None,
    *,
    num_bins: int = 15,
    score: str = "brier_score",
    closed: str = "right",
    **options: Unpack[ArrayOptions],
) -> Decomposition:
    """Split a proper score into calibration and refinement, in float64.

    Use it to see how much of a score a calibrator can remove: the calibration
    part. The refinement part is what remains of a calibrated model.

    The event is that a prediction is correct, and its forecast is the mean
    confidence of the bin. The two parts add up to the mean score of these
    binned forecasts, not of the confidences themselves.

    With w_b the share of the samples in bin b, the parts are:

    - `"brier_score"`: sum_b w_b gap_b^2 and sum_b w_b acc_b (1 - acc_b).
    - `"nll"`: sum_b w_b KL(acc_b || confidence_b) and sum_b w_b H(acc_b), in
      nats.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        num_bins: Number of bins, at least 1.
        score: `"brier_score"`, the squared error, or `"nll"`, the log score.
        closed: `"right"` for bins (lo, hi], `"left"` for [lo, hi).
        **options: As in `ece`.

    Returns:
        `(calibration, refinement)`, both >= 0.

    Example:

    >>> probs = [[0.8, 0.2], [0.6, 0.4]]
    >>> calibration_decomposition([0, 1], probs, num_bins=1)
    Decomposition(calibration=0.04, refinement=0.25)

    Reference:
        Broecker, Reliability, Sufficiency, and the Decomposition of Proper
        Scores, Quarterly Journal of the Royal Meteorological Society 135,
        2009, https://arxiv.org/abs/0806.0813
    """
    sums = equal_width_bins(labels, outputs, num_bins, closed, **options)
    return binned_errors.decompose(sums, score)


def brier_decomposition(
    labels: Any,
    outputs: Any = None,
    *,
    num_bins: int = 15,
    closed: str = "right",
    **options: Unpack[ArrayOptions],
) -> proper.BrierComponents:
    """Murphy's decomposition of the Brier score of all classes, in float64.

    Use it to see why one Brier score is better than another: by calibration
    (reliability) or by telling samples apart (resolution).

    Brier = reliability - resolution + uncertainty
            + within_bin_variance - within_bin_covariance

    The bins b of a class k have equal width in p_k. Bin b holds a share w_b of
    the samples, with mean p_k of p_b and a share y_b of the class. In all
    samples the share of the class is y.

    - reliability: sum_k sum_b w_b (p_b - y_b)^2
    - resolution: sum_k sum_b w_b (y_b - y)^2
    - uncertainty: sum_k y (1 - y); for soft labels their variance
    - within_bin_variance: sum_k sum_b w_b Var_b(p_k)
    - within_bin_covariance: 2 sum_k sum_b w_b Cov_b(p_k, y_k)

    The parts add up exactly. `calibration_decomposition` is about the predicted
    class alone.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        num_bins: Number of bins of each class, at least 1.
        closed: `"right"` for bins (lo, hi], `"left"` for [lo, hi).
        **options: As in `ece`.

    Returns:
        Five floats, and `within_bins`, the variance less the covariance.
        Resolution less `within_bins` is the generalized resolution of
        Stephenson et al.

    Example:

    >>> probs = [[0.8, 0.2], [0.6, 0.4]]
    >>> found = brier_decomposition([0, 1], probs, num_bins=2)
    >>> print(f"{found.reliability:.2f}, {found.uncertainty:.2f}")
    0.08, 0.50

    Reference:
        Murphy, A New Vector Partition of the Probability Score, Journal of
        Applied Meteorology 1973; within bins: Stephenson, Coelho and Jolliffe,
        Two Extra Components in the Brier Score Decomposition, Weather and
        Forecasting 2008, https://doi.org/10.1175/2007WAF2006116.1
    """
    check_integer("num_bins", num_bins, 1)
    check_in("closed", closed, CLOSED)
    read = standardize_arrays(labels, outputs, **options)
    truth = read.labels
    bins = bins_of_classes(read, truth, num_bins, closed)
    uncertainty = None
    if truth.ndim == 2:
        # Each vote is a label of its own, whose squares sum to 1.
        squares = truth if read.votes else np.square(truth, dtype="float64")
        base = bins.positive.sum(axis=-1) / bins.total
        uncertainty = _mean(squares.sum(-1), read) - float(np.sum(base**2))
    squares_of_p = proper.losses_of_rows(
        proper.squared_probabilities, read, "float64"
    )
    return proper.brier_parts(
        bins.weight,
        bins.probability,
        bins.positive,
        _mean(proper.brier_losses_of_rows(read, "float64"), read),
        _mean(squares_of_p, read),
        uncertainty,
    )

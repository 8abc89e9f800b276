"""Calibration errors and score decompositions, from sums per bin.

All functions take `BinSums` `(num_bins,)` of NumPy or of tensors, and return
scalars, 0 if all bins are empty. In formulas w_b is the share of the weight in
bin b.

Derivation: docs/derivations.md, 'Binned errors', 'Votes'.
"""

from dataclasses import replace
from typing import Any

from keras_calib.formulas.bins import BinSums
from keras_calib.inputs.checks import check_in
from keras_calib.numerics.arrays import array_namespace, at_least, safe_divide
from keras_calib.numerics.results import Result
from keras_calib.numerics.softmax import PROBABILITY_FLOOR

NORMS = ("l1", "l2", "max")

# Two samples, with room for the rounding of float32.
_TWO_SAMPLES = 1.999


class Decomposition(Result):
    """A proper score of binned forecasts, in two parts that add up to it.

    Attributes:
        calibration: Cost of the gaps between mean confidence and accuracy. It
            is 0 if they are equal in every bin.
        refinement: Cost of the uncertainty inside bins. It is 0 if each bin
            is all correct or all wrong.
    """

    calibration: Any
    refinement: Any


def calibration_error(sums: BinSums, norm: str = "l1") -> Any:
    """Norm of the gaps: sum_b w_b |gap_b|, root mean square, or maximum."""
    check_in("norm", norm, NORMS)
    xp = array_namespace(sums.weight)
    if norm == "l1":
        # This form needs no division per bin.
        return safe_divide(xp.sum(xp.abs(sums.residual)), xp.sum(sums.weight))
    gap = sums.confidence_gap
    if norm == "max":
        return xp.max(xp.abs(gap))
    return xp.sqrt(_mean(sums, gap * gap))


def average_error(sums: BinSums) -> Any:
    """Mean of |gap| over the bins that are not empty."""
    xp = array_namespace(sums.weight)
    filled = xp.where(
        sums.weight > 0, xp.ones_like(sums.weight), xp.zeros_like(sums.weight)
    )
    return safe_divide(xp.sum(xp.abs(sums.confidence_gap)), xp.sum(filled))


def overconfidence_error(sums: BinSums) -> Any:
    """sum_b w_b confidence_b max(gap_b, 0)."""
    return _mean(
        sums, sums.mean_confidence * at_least(sums.confidence_gap, 0.0)
    )


def debiased_squared_error(sums: BinSums) -> Any:
    """sum_b w_b (gap_b^2 - acc_b (1 - acc_b) / (n_b - 1)), in [-1, 1].

    Bins of fewer than two samples add nothing. With weights n_b is the
    effective number of samples, weight^2 / squared_weight, an approximation.
    With votes, the variance of confidence - share stands for acc_b (1 - acc_b).
    """
    xp = array_namespace(sums.weight)
    count = safe_divide(sums.weight * sums.weight, sums.squared_weight)
    enough = count >= _TWO_SAMPLES
    freedom = xp.where(enough, count - 1.0, xp.ones_like(count))
    gap = sums.confidence_gap
    noise = sums.accuracy * _error_rate(sums)
    if sums.squared_residual is not None:
        noise = sums.residual_variance
    excess = gap * gap - noise / freedom
    return _mean(sums, xp.where(enough, excess, xp.zeros_like(excess)))


def debiased_error(sums: BinSums, frequency_weights: Any) -> Any:
    """Root of the positive part of `debiased_squared_error`.

    `frequency_weights` is a bool, or a bool tensor: whether weights are numbers
    of repeats. Each repeat is then a sample.
    """
    xp = array_namespace(sums.weight)
    squares = xp.where(frequency_weights, sums.weight, sums.squared_weight)
    squared_error = debiased_squared_error(
        replace(sums, squared_weight=squares)
    )
    return xp.sqrt(at_least(squared_error, 0.0))


def brier_decomposition(sums: BinSums) -> Decomposition:
    """Parts of the squared error of binned forecasts.

    The event is that the prediction is correct, and its forecast is the mean
    confidence of the bin.
    """
    gap = sums.confidence_gap
    return Decomposition(
        _mean(sums, gap * gap), _mean(sums, sums.accuracy * _error_rate(sums))
    )


def nll_decomposition(sums: BinSums) -> Decomposition:
    """Parts of the log score of binned forecasts, in nats.

    The event and its forecast are as in `brier_decomposition`. Forecasts of 0
    and 1 are clipped by 1e-37.
    """
    gap, right, wrong = sums.confidence_gap, sums.accuracy, _error_rate(sums)
    divergence = _relative_entropy(right, gap) + _relative_entropy(wrong, -gap)
    entropy = _entropy(right) + _entropy(wrong)
    return Decomposition(
        at_least(_mean(sums, divergence), 0.0), _mean(sums, entropy)
    )


def decompose(sums: BinSums, score: str) -> Decomposition:
    """Decompose `"brier_score"` or `"nll"` into floats, from NumPy sums."""
    check_in("score", score, tuple(_DECOMPOSITIONS))
    found = _DECOMPOSITIONS[score](sums)
    return Decomposition(float(found.calibration), float(found.refinement))


_DECOMPOSITIONS = {"brier_score": brier_decomposition, "nll": nll_decomposition}


def _error_rate(sums: BinSums) -> Any:
    return safe_divide(sums.weight - sums.correct, sums.weight)


def _mean(sums: BinSums, values: Any) -> Any:
    """Mean of one value per bin, by weight."""
    xp = array_namespace(sums.weight)
    return safe_divide(xp.sum(sums.weight * values), xp.sum(sums.weight))


def _entropy(share: Any) -> Any:
    """-share log(share), which is 0 at 0."""
    xp = array_namespace(share)
    empty = share <= 0
    return -share * xp.log(xp.where(empty, xp.ones_like(share), share))


def _relative_entropy(share: Any, gap: Any) -> Any:
    """share log(share / (share + gap)), 0 where `share` is 0."""
    xp = array_namespace(share)
    excess = safe_divide(gap, share)
    # log1p is accurate for small gaps, the floor is finite for large ones.
    near = xp.log1p(at_least(excess, -0.5))
    far = xp.log(at_least(1.0 + excess, PROBABILITY_FLOOR))
    log_ratio = xp.where(excess > -0.5, near, far)
    return -share * log_ratio

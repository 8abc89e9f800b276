"""Confidence intervals of binned calibration errors, from the bin sums alone.

Noise biases a binned error upwards, and resampling adds more bias: a bootstrap
interval misses the error of a calibrated model. So tests are inverted. A value
stays in the interval unless even the gaps most favourable to it make the
observed error improbable.

Derivation: docs/derivations.md, 'Intervals and guarantees', 'Votes'.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import chi2
from scipy.stats import norm as normal

from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.intervals import clopper_pearson, tail_of
from keras_calib.inputs.checks import check_in
from keras_calib.numerics.arrays import safe_divide, to_numpy

# Share of the lower tail for the simultaneous region of the gaps.
_REGION_SHARE = 0.2
# Prior predictions of a bin's accuracy: z^2 of 95 %.
_PRIOR = 3.84


class _Bins(NamedTuple):
    """Statistics of the bins that are not empty, arrays `(n,)`.

    Attributes:
        share: Coefficients of the error, which sum to 1.
        gap: Mean confidence minus accuracy.
        confidence: Mean confidence.
        accuracy: Share of correct predictions.
        count: Effective number of predictions.
        num_samples: Effective number of all predictions, which makes the
            shares random. Infinity for fixed shares.
        spread: Variance of confidence - share of votes. None for classes.
    """

    share: np.ndarray
    gap: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray  # type: ignore[assignment]  # hides tuple.count
    num_samples: float
    spread: np.ndarray | None = None

    def leverage(self) -> np.ndarray:
        """How much one prediction moves the error, `(n,)`; 1 / N with l1."""
        return self.share / self.count

    def variances(self) -> tuple[np.ndarray, np.ndarray]:
        """A small and a large estimate of the variance of each gap.

        The accuracy is drawn towards 1/2, or towards the confidence. With few
        predictions the two differ, and neither is ever 0 or 1.
        """
        variances = []
        for prior in (0.5, self.confidence):
            p = self.count * self.accuracy + _PRIOR * prior
            p = p / (self.count + _PRIOR)
            of_classes = np.maximum(p * (1.0 - p), 1e-12)
            variances += self._of_votes(of_classes)
        values = np.stack(variances) / self.count
        return values.min(axis=0), values.max(axis=0)

    def _of_votes(self, of_classes: np.ndarray) -> list[np.ndarray]:
        """Estimates of the variance of a sample, from that of classes."""
        if self.spread is None:
            return [of_classes]
        squares = self.count * self.spread
        more = np.maximum(self.count - 1.0, 0.0)
        prior = _PRIOR * np.average(of_classes, weights=self.count)
        total = np.sum(more * of_classes) + prior
        factor = (squares.sum() + prior) / total
        own = squares + _PRIOR * factor * of_classes
        own = np.maximum(own / (more + _PRIOR), 1e-12)
        # Bins without a dissent must not look sure, nor all of them.
        return [own, (factor + prior / total) * of_classes]

    def accuracy_ends(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Exact binomial interval of the accuracy of each bin, `(n,)`."""
        count, share = self.count, self.accuracy
        if self.spread is not None:
            # As many votes, independent, have a mean of the same variance.
            share = (count * share + 0.5 * _PRIOR) / (count + _PRIOR)
            count = share * (1.0 - share) / self.variances()[1]
        correct = np.minimum(self.accuracy * count, count)
        return clopper_pearson(correct, count, level=level)

    def share_variance(self, values: np.ndarray) -> float:
        """Variance of sum_b share_b values_b due to random shares."""
        mean = np.sum(self.share * values)
        square = np.sum(self.share * values**2)
        return max(float(square - mean**2), 0.0) / self.num_samples


def error_interval(
    sums: BinSums,
    *,
    norm: str = "l1",
    level: float = 0.95,
    dependence: float = 1.0,
) -> tuple[float, float]:
    """Confidence interval of a binned calibration error.

    It covers the error of the population over the same bins that are not empty.
    With gaps g_b and shares w_b, the errors are:

    - `"l1"`: sum_b w_b |g_b| (ECE, AECE).
    - `"l2"`: sqrt(sum_b w_b g_b^2) (RMSCE, the debiased error).
    - `"max"`: max_b |g_b| (MCE).
    - `"average"`: The mean of |g_b|.

    The estimate itself is biased and may lie above the interval. With weights,
    the effective number of predictions is used. The interval is (0, 1) without
    predictions. Labels that are votes have the variance between samples.
    `dependence` multiplies the variance of `"l1"`, of bins that are not
    independent.

    Reference:
        Berger and Boos, P Values Maximized over a Confidence Set for the
        Nuisance Parameter, JASA 1994,
        https://doi.org/10.1080/01621459.1994.10476836 (lower ends of
        `"l1"` and `"average"`); Kumar et al., Verified Uncertainty
        Calibration, NeurIPS 2019, https://arxiv.org/abs/1909.10155 (the
        debiased square that `"l2"` rests on)
    """
    check_in("norm", norm, ("l1", "l2", "max", "average"))
    tail = tail_of(level)
    bins, _ = _filled(sums)
    if not len(bins.share):
        return 0.0, 1.0
    if norm == "average":
        equal = np.full_like(bins.share, 1.0 / len(bins.share))
        bins = bins._replace(share=equal, num_samples=np.inf)
    if norm == "max":
        low, high = _largest(bins, tail)
    elif norm == "l2":
        low, high = _root_mean_square(bins, tail)
    else:
        low = _least_absolute(bins, tail, dependence)
        high = _most_absolute(bins, tail, dependence)
    return min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)


def accuracy_interval(
    sums: BinSums, *, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Exact binomial interval of the accuracy of each bin, `(num_bins,)`.

    With weights, the effective number of predictions is used. Labels that are
    votes have the variance between samples. It is (0, 1) in empty bins.
    """
    bins, filled = _filled(sums)
    ends = np.zeros(len(filled)), np.ones(len(filled))
    if filled.any():
        for end, values in zip(ends, bins.accuracy_ends(level), strict=True):
            end[filled] = values
    return ends


def _filled(sums: BinSums) -> tuple[_Bins, np.ndarray]:
    """Statistics of the bins that are not empty, and which these are."""
    weight, *values = (np.ravel(to_numpy(v, "float64")) for v in sums.parts())
    filled = weight > 0
    weight = weight[filled]
    confidence, correct, residual, squares, *of_votes = (
        v[filled] for v in values
    )
    spread = None
    for square in of_votes:
        spread = np.maximum(square / weight - (residual / weight) ** 2, 0.0)
    bins = _Bins(
        share=safe_divide(weight, weight.sum()),
        gap=residual / weight,
        confidence=np.clip(confidence / weight, 0.0, 1.0),
        accuracy=np.clip(correct / weight, 0.0, 1.0),
        count=weight**2 / squares,
        num_samples=float(safe_divide(weight.sum() ** 2, squares.sum())),
        spread=spread,
    )
    return bins, filled


def _folded_mean(x: np.ndarray | float) -> np.ndarray | float:
    """E |x + Z| of a standard normal Z, x >= 0."""
    return x * (2.0 * ndtr(x) - 1.0) + 2.0 * normal.pdf(x)


def _most_absolute(bins: _Bins, tail: float, dependence: float = 1.0) -> float:
    """The largest mean of |g_b| that the observed one does not rule out."""
    noise = bins.share * np.sqrt(bins.variances()[0])
    total, square = noise.sum(), dependence * np.sum(noise**2)
    drift = bins.share_variance(np.abs(bins.gap)) + _unseen_variance(bins)
    drift = dependence * drift
    # An error below that of noise alone must not shorten the interval.
    observed = np.sum(bins.share * np.abs(bins.gap))
    observed = max(observed, _folded_mean(0.0) * total)
    z = normal.isf(tail)

    def excess(x: float) -> float:
        mean = _folded_mean(x)
        variance = square * (1.0 + x * x - mean * mean) + drift
        return total * mean - z * np.sqrt(variance) - observed

    most = (observed + z * np.sqrt(square + drift)) / total + 1e-9
    x = brentq(excess, 0.0, most)
    return float(total * x) + _skewness_allowance(bins, tail)


def _least_absolute(bins: _Bins, tail: float, dependence: float) -> float:
    """The smallest mean of |g_b|: the larger of two lower limits."""
    noise = bins.share * np.sqrt(bins.variances()[1])
    spread, drift = np.sum(noise**2), bins.share_variance
    region = _REGION_SHARE * tail
    z = normal.isf((tail - region) / 2.0)
    reach = normal.isf(region / (2.0 * len(noise)))
    gap = np.abs(bins.gap)
    least = np.maximum(gap * bins.share / noise - reach, 0.0)
    bias = np.sum(noise * (_folded_mean(least) - least))
    by_bins = np.sum(bins.share * gap) - bias
    by_bins = by_bins - z * np.sqrt(dependence * (spread + drift(gap)))
    overall = np.abs(np.sum(bins.share * bins.gap))
    overall = overall - z * np.sqrt(dependence * (spread + drift(bins.gap)))
    return float(max(by_bins, overall))


def _root_mean_square(bins: _Bins, tail: float) -> tuple[float, float]:
    """Limits of the root mean square gap: its square is nearly chi-square."""
    squares = bins.share * bins.gap**2
    observed = float(squares.sum())
    drift = bins.share_variance(bins.gap**2)

    def limit(
        variance: np.ndarray, more: float, quantile: float, observed: float
    ) -> float:
        noise = bins.share * variance
        slope = np.sum(noise * squares) / max(squares.sum(), 1e-300)
        slope = 4.0 * (slope + more)
        base = 2.0 * np.sum(noise**2)

        def excess(square: float) -> float:
            # Distribution of the estimate if the true mean square is `square`.
            mean = noise.sum() + square
            spread = drift * min(square / observed, 1.0) ** 2
            spread = spread + base + slope * square
            degrees = 2.0 * mean**2 / spread
            return mean / degrees * chi2.ppf(quantile, degrees) - observed

        if excess(0.0) >= 0.0:
            return 0.0
        high = observed + noise.sum()
        while excess(high) < 0.0:
            high *= 2.0
        return float(np.sqrt(brentq(excess, 0.0, high)))

    small, large = bins.variances()
    low = limit(large, 0.0, 1.0 - tail, max(observed, 1e-300))
    observed = max(observed, float(np.sum(bins.share * small)))
    high = limit(small, _unseen_variance(bins), tail, observed)
    high = high + _skewness_allowance(bins, tail)
    # The root mean square is at least the mean, whose limit is safer with
    # hardly any errors.
    return low, max(high, _most_absolute(bins, tail))


def _largest(bins: _Bins, tail: float) -> tuple[float, float]:
    """Limits of the largest gap, from binomial intervals of each accuracy."""
    lowest, highest = bins.accuracy_ends(1.0 - 2.0 * tail)
    high = np.maximum(bins.confidence - lowest, highest - bins.confidence)
    lowest, highest = bins.accuracy_ends((1.0 - tail) ** (1.0 / len(high)))
    low = np.maximum(bins.confidence - highest, lowest - bins.confidence)
    return float(low.max()), float(high.max())


def _unseen_variance(bins: _Bins) -> float:
    """Variance of the errors, over all bins, that a sample may not show."""
    return 0.5 * _PRIOR * float(np.sum(bins.share * bins.leverage() ** 2))


def _skewness_allowance(bins: _Bins, tail: float) -> float:
    """Extra width that the skewness of few errors needs.

    It is (2 z^2 + 1) / 6 times skewness times standard error, the first term of
    Edgeworth's series, and at most 1.5 / N at 95 %.
    """
    noise = bins.share**2 * bins.variances()[1]
    third = noise * np.abs(1.0 - 2.0 * bins.accuracy) * bins.leverage()
    factor = (2.0 * normal.isf(tail) ** 2 + 1.0) / 6.0
    return float(factor * third.sum() / noise.sum())

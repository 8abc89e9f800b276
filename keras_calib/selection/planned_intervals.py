"""Labels for an interval of the ECE, and for a comparison of two networks."""

import math
from typing import Any

import numpy as np
from scipy.stats import nct, norm

from keras_calib.backend.errors import value_error
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums, bin_index, bin_sums
from keras_calib.formulas.intervals import tail_of
from keras_calib.inputs.checks import located
from keras_calib.numerics.arrays import as_array
from keras_calib.selection.choice import count_to_take
from keras_calib.selection.plan_tables import Plan

__all__ = ["plan_comparison", "plan_ece"]

# Bins of the ECE; draws of an interval; replicates of `compare`.
_NUM_BINS, _NUM_DRAWS, _NUM_REPLICATES = 15, 50, 400
# Populations that the pilot may have been, and draws of an interval of each.
_NUM_POPULATIONS, _FEW_DRAWS = 20, 10
_NUM_PAIRS = 20_000
_TAIL = 0.05
_FEWEST, _MOST_STEPS = 10, 12


def plan_ece(
    half_width: float,
    level: float,
    records: tuple[np.ndarray, np.ndarray, np.ndarray],
    pilot_size: int,
    max_samples: int,
) -> Plan:
    """Labels whose interval of the ECE has this half-width on average.

    `records` are confidences, correctness (or its probability) and shares.
    """
    confidence, correct, share = (as_array(x, "pilot") for x in records)
    index = bin_index(confidence, _NUM_BINS, "right")
    sums = bin_sums(confidence, correct, index, _NUM_BINS, share)
    count = max(pilot_size, 1e9 * (not pilot_size))
    # One prediction more, as right as its confidence, keeps rates off 0 and 1.
    rate = sums.accuracy * sums.weight * count + sums.mean_confidence
    rate = rate / (sums.weight * count + 1.0)
    rng = np.random.default_rng(0)

    def mean_half_width(
        n: float, weight: np.ndarray, rate: np.ndarray, draws: int = _NUM_DRAWS
    ) -> float:
        # The same draws for each n, so that the width falls steadily.
        state = np.random.default_rng(0)
        counts = state.multinomial(int(n), weight / weight.sum(), draws)
        right = state.binomial(counts, np.clip(rate, 0.0, 1.0))
        widths = []
        for k, c in zip(counts.astype("float64"), right, strict=True):
            stated = k * sums.mean_confidence
            drawn = BinSums(k, stated, c, stated - c, k)
            low, high = error_interval(drawn, level=level)
            widths.append(high - low)
        return 0.5 * float(np.mean(widths))

    samples = _scaled(
        lambda n: mean_half_width(n, sums.weight, rate), half_width, max_samples
    )
    if math.isinf(samples):
        reached = mean_half_width(max_samples, sums.weight, rate)
        raise value_error(
            "`max_samples` labels do not give an interval as narrow as `ece`: "
            f"raise it, or ask for `ece={math.ceil(1e4 * reached) / 1e4:g}`",
            ece=half_width,
            max_samples=max_samples,
        )
    ends = [samples]
    if pilot_size:
        for _ in range(_NUM_POPULATIONS):
            # A bootstrap of the pilot, and that the width falls as 1 / sqrt n.
            weight = rng.poisson(count * sums.weight)
            drawn = (rng.binomial(weight, rate) + rate) / (weight + 1.0)
            width = mean_half_width(samples, weight + 1e-9, drawn, _FEW_DRAWS)
            ends.append(samples * (width / half_width) ** 2)
    low, high = float(min(ends)), float(max(ends))
    return Plan(
        "ece",
        float(half_width),
        int(samples),
        low,
        high,
        level=level,
        pilot_size=pilot_size,
    )


def plan_comparison(
    difference: float,
    power: float,
    level: float,
    pilot: Any,
    disagreement: float | None,
    max_samples: int,
    rng: np.random.Generator,
) -> Plan:
    """Labels with which `compare` finds a difference of two means."""
    if (pilot is None) == (disagreement is None):
        raise value_error(
            "With `compare`, one of `pilot`, the values of both networks, and "
            "`disagreement` must be given",
            pilot=None if pilot is None else "given",
            disagreement=disagreement,
        )
    binary, count, spreads = True, 0, []
    if disagreement is not None:
        square = float(disagreement)
    else:
        a, b = _values(pilot)
        found = a - b
        count = len(found)
        binary = bool(np.isin(found, (-1.0, 0.0, 1.0)).all())
        # One more disagreement keeps a small pilot from hiding all.
        square = float((np.sum(binary * found**2) + 1.0) / (count + 1.0))
        if not binary:
            square = float(np.var(found, ddof=1)) + difference**2
        for _ in range(200):
            weight = rng.exponential(size=count)
            mean = np.average(found, weights=weight)
            centre = 0.0 if binary else mean
            drawn = np.average((found - centre) ** 2, weights=weight)
            spreads.append(drawn + (0.0 if binary else difference**2))
    if binary and not difference <= square <= 1.0:
        raise value_error(
            "`compare` must not exceed the share of samples on which the "
            "networks disagree, which is at most 1: two networks cannot "
            "differ by more",
            compare=difference,
            disagreement=square,
        )
    z = float(norm.isf(tail_of(level)))

    def fewest(square: float) -> float:
        square = max(square, difference if binary else 1e-300)
        return _bisected(
            lambda n: _power(difference, square, n, z, binary) >= power,
            max_samples,
        )

    samples = fewest(square)
    if math.isinf(samples):
        reached = difference
        while (
            reached < 1.0
            and _power(reached, max(square, reached), max_samples, z, binary)
            < power
        ):
            reached *= 1.02
        raise value_error(
            "`max_samples` labels do not show this difference with "
            f"probability `power`: raise it, or ask for "
            f"`compare={float(f'{reached:.2g}'):g}`",
            compare=difference,
            max_samples=max_samples,
        )
    low = high = samples
    if spreads:
        low, high = (
            fewest(float(np.quantile(spreads, q))) for q in (_TAIL, 1 - _TAIL)
        )
    return Plan(
        "compare",
        float(difference),
        int(samples),
        min(low, samples),
        max(high, samples),
        power=power,
        level=level,
        pilot_size=count,
    )


def _power(
    difference: float, square: float, n: int, z: float, binary: bool
) -> float:
    """Probability that the paired interval of `compare` leaves out 0.

    Its standard error is that of 400 replicates, with a relative error that
    a chi-square distribution of 399 degrees of freedom has.
    """
    degrees = _NUM_REPLICATES - 1
    if not binary:
        shift = difference * math.sqrt(n / (square - difference**2))
        return float(nct.sf(z, degrees, shift) + nct.cdf(-z, degrees, shift))
    rng = np.random.default_rng(0)
    shares = [(square + difference) / 2, (square - difference) / 2, 1 - square]
    better, worse, _ = rng.multinomial(n, shares, _NUM_PAIRS).T
    noise = np.sqrt(rng.chisquare(degrees, _NUM_PAIRS) / degrees)
    net, both = better - worse, better + worse
    error = np.sqrt(np.maximum(both - net**2 / n, 0.0)) * noise
    return float(np.mean(np.abs(net) > z * error))


def _values(pilot: Any) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(pilot, tuple | list) or len(pilot) != 2:
        raise value_error(
            "`pilot` must be the values of two networks with `compare`",
            pilot=type(pilot).__name__,
        )
    a, b = (as_array(x, "pilot", "float64") for x in pilot)
    if a.ndim != 1 or a.shape != b.shape or len(a) < _FEWEST:
        raise value_error(
            "`pilot` must be two arrays of one shape (n,) with `compare`, of "
            f"at least {_FEWEST} samples",
            shapes=(a.shape, b.shape),
        )
    bad = ~np.isfinite(a - b)
    if bad.any():
        raise value_error("`pilot` must be finite", **located(bad))
    if np.ptp(a - b) == 0.0 and a[0] != b[0]:
        raise value_error(
            "`pilot` must not have one difference throughout: such networks "
            "need no comparison",
            difference=float(a[0] - b[0]),
        )
    return a, b


def _bisected(reaches: Any, max_samples: int) -> float:
    """The fewest samples, to two digits, that reach a target; or infinity."""
    if not reaches(max_samples):
        return math.inf
    low, high = _FEWEST, max_samples
    while high > low + 1 and high > 1.01 * low:
        middle = int(math.sqrt(low * high))
        middle = min(max(middle, low + 1), high - 1)
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return float(min(count_to_take(high), max_samples))


def _scaled(width_of: Any, half_width: float, max_samples: int) -> float:
    """Samples, to two digits, whose half-width this is; or infinity.

    Widths fall nearly as 1 / sqrt(n), so few steps suffice.
    """
    count = float(min(max_samples, 1000))
    for _ in range(_MOST_STEPS):
        before, wanted = count, count * (width_of(count) / half_width) ** 2
        count = min(max(wanted, _FEWEST), max_samples)
        if abs(count - before) <= 0.01 * count:
            break
    if count == max_samples and wanted > 1.01 * count:
        return math.inf
    return float(min(count_to_take(count), max_samples))

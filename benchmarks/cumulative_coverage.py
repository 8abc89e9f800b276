"""Coverage of the intervals of the cumulative calibration error.

The table of `interval_coverage.py --only=cumulative`. Beside `ECCE.interval()`
it has the percentiles of a Poisson bootstrap, and the estimate with the 95 %
quantile of the range or the maximum of Brownian motion on both sides.
"""

from typing import Any, NamedTuple

import numpy as np
from reporting import markdown_table
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import beta

from keras_calib.formulas.cumulative import (
    KINDS,
    brownian_tail,
    cumulative_error,
)
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.metrics.registry import QUANTITIES
from keras_calib.metrics.states.composite import Readings
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.numerics import exact_sums

# Points of the populations, evenly spaced quantiles of the confidence.
_POINTS = (np.arange(400_000) + 0.5) / 400_000
_CONFIDENCES = {
    "middling": 0.1 + 0.9 * beta.ppf(_POINTS, 5.0, 1.2),
    "near 1": beta.ppf(_POINTS, 60.0, 0.6),
    "low": beta.ppf(_POINTS, 1.5, 6.0),
}
_CALIBRATIONS = ("calibrated", "T = 1.1", "T = 1.5", "T = 3", "both signs")
# Replicates of the bootstrap, and predictions up to which there is one.
_REPLICATES = 200
_BOOTSTRAPPED = 3_000
_SUMMARY = HistogramSummary()
_BANDS = {
    kind: brentq(lambda x, k=kind: brownian_tail(x, k) - 0.05, 0.5, 9.0)
    for kind in KINDS
}


class Draw(NamedTuple):
    """Predictions `(n,)` from a population: confidence, correct, weight."""

    confidence: np.ndarray
    correct: np.ndarray
    weight: np.ndarray | None


def accuracy_of(confidence: np.ndarray, calibration: str) -> np.ndarray:
    log_odds = logit(np.clip(confidence, 1e-9, 1.0 - 1e-9))
    if calibration == "both signs":
        # Underconfident below the median, overconfident above it.
        middle = np.median(log_odds)
        return expit(middle + (log_odds - middle) / 1.5)
    if calibration == "calibrated":
        return confidence
    return expit(log_odds / float(calibration.removeprefix("T = ")))


def draw(
    rng: np.random.Generator,
    n: int,
    confidence: np.ndarray,
    accuracy: np.ndarray,
    weights: str,
) -> Draw:
    i = rng.integers(0, len(_POINTS), n)
    correct = rng.random(n) < accuracy[i]
    weight = None
    if weights == "exponential":
        weight = rng.exponential(size=n) + 1e-3
    return Draw(confidence[i].astype("float32"), correct, weight)


def read(data: Draw) -> Readings:
    """The state of `ECCE` after two batches."""
    limbs: Any = 0
    middle = len(data.correct) // 2
    for part in (slice(middle), slice(middle, None)):
        records = Outcomes(
            score=logit(data.confidence[part].astype("float64")),
            correct=data.correct[part].astype("int32"),
            confidence=data.confidence[part],
            weight=None if data.weight is None else data.weight[part],
            mask=np.ones(len(data.correct[part]), bool),
        )
        limbs = exact_sums.add(limbs, _SUMMARY.update(records))
    return Readings(_SUMMARY, limbs, data.weight is None)


def intervals(readings: Readings, kind: str) -> tuple[float, tuple, tuple]:
    """Estimate, our interval and the band of a state."""
    quantity = QUANTITIES["ecce" if kind == "range" else "ecce_maximum"]
    error = float(quantity.value(readings, None))
    reach = _BANDS[kind] * readings.differences.deviation
    band = max(error - reach, 0.0), min(error + reach, 1.0)
    return error, quantity.interval(readings, None, 0.95), band


def bootstrap(
    data: Draw, kind: str, rng: np.random.Generator
) -> tuple[float, float]:
    order = np.argsort(data.confidence)
    residual = (data.confidence - data.correct)[order].astype("float64")
    weight = 1.0 if data.weight is None else data.weight[order]
    values = []
    for _ in range(_REPLICATES):
        counts = rng.poisson(size=len(order)) * weight
        walk = np.cumsum(counts * residual) / counts.sum()
        values.append(float(cumulative_error(walk, kind)))
    return tuple(np.quantile(values, [0.025, 0.975]))


def misses(ends: list, truth: float) -> tuple[float, float, float]:
    """Shares of intervals above and below the truth, and the mean width."""
    low, high = np.array(ends).T
    above, below = low > truth + 1e-9, high < truth - 1e-9
    return float(above.mean()), float(below.mean()), float(np.mean(high - low))


def cumulative_table(num_draws: int, seed: int) -> str:
    rows = []
    for accuracy, calibration, weights in _scenarios():
        confidence = _CONFIDENCES[accuracy]
        right = accuracy_of(confidence, calibration)
        walk = np.cumsum(confidence - right) / len(_POINTS)
        for n in (60, 300, 3_000, 30_000):
            rng = np.random.default_rng([seed, n])
            found: dict = {
                kind: {"interval": [], "band": [], "bootstrap": [], "of": []}
                for kind in KINDS
            }
            for i in range(num_draws):
                data = draw(rng, n, confidence, right, weights)
                readings = read(data)
                for kind, lists in found.items():
                    error, ours, band = intervals(readings, kind)
                    lists["of"].append(error)
                    lists["interval"].append(ours)
                    lists["band"].append(band)
                    if i < num_draws // 4 and n <= _BOOTSTRAPPED:
                        lists["bootstrap"].append(bootstrap(data, kind, rng))
            for kind, lists in found.items():
                truth = float(cumulative_error(walk, kind))
                above, below, width = misses(lists["interval"], truth)
                row = [f"{accuracy}, {calibration}{weights and ', weights'}"]
                row += [f"{n:,}", kind, f"{truth:.5f}"]
                row += [f"{np.mean(lists['of']):.5f}"]
                row += [f"{x:.3f}" for x in (1 - above - below, above, below)]
                row += [f"{width:.5f}"]
                for name in ("band", "bootstrap"):
                    if not lists[name]:
                        row += ["", ""]
                        continue
                    above, below, width = misses(lists[name], truth)
                    row += [f"{1 - above - below:.3f}", f"{width:.5f}"]
                rows.append(row)
                print(*row, flush=True)
    header = ["accuracy, calibration", "N", "kind", "truth", "mean estimate"]
    header += ["coverage", "too high", "too low", "mean width"]
    header += ["coverage of band", "width of band"]
    header += ["coverage of bootstrap", "width of bootstrap"]
    return markdown_table(header, rows)


def _scenarios() -> list[tuple[str, str, str]]:
    found = [("middling", x, "") for x in _CALIBRATIONS]
    found += [(a, x, "") for a in ("near 1", "low") for x in _CALIBRATIONS[::2]]
    more = ("calibrated", "T = 1.5")
    return found + [("middling", x, "exponential") for x in more]

"""What a plan says: its tables, and the same in words."""

import math
from typing import NamedTuple

import numpy as np

__all__ = ["LabelTable", "Plan", "SizeTable"]

# First digits of the sizes that are printed.
_PRINTED = (1, 2, 5)


class LabelTable(NamedTuple):
    """Labels that each coverage takes, arrays `(num_coverages,)`.

    Attributes:
        coverage: Share of the samples that the threshold accepts at least.
        samples: Fewest labels that certify such a threshold with probability
            `power`. Infinity for more than `max_samples`, NaN where the risk
            of the pilot is too high.
        low: Lower end of the interval of `samples`, as the pilot is finite.
        high: Its upper end. Plan for it if the pilot is small.
    """

    coverage: np.ndarray
    samples: np.ndarray
    low: np.ndarray
    high: np.ndarray


class SizeTable(NamedTuple):
    """What each number of labels certifies, arrays `(num_sizes,)`.

    Attributes:
        samples: Number of labels.
        power: Probability that some threshold is certified.
        assurance: The same, over what else the pilot may have been.
        coverage: Mean true coverage of the threshold, none counting as 0.
        low: Lower decile of this coverage.
        high: Upper decile of it.
    """

    samples: np.ndarray
    power: np.ndarray
    assurance: np.ndarray
    coverage: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Plan(NamedTuple):
    """A number of labels, and what they will show; `print` it for words.

    Attributes:
        kind: `"risk"`, `"ece"` or `"compare"`.
        target: The risk, the half-width or the difference.
        samples: Labels that reach the target. For a risk: with which some
            threshold is certified with probability `power`.
        low: Lower end of the 90 % interval of `samples`, as the pilot is
            finite; `samples` without a pilot.
        high: Upper end of this interval; infinity beyond `max_samples`.
        power: Probability to reach the target; None for a half-width, which
            is reached on average.
        delta: Probability that a guarantee fails; None without.
        method: `"ltt"` or `"sgr"`; None without a guarantee.
        level: Level of the interval to get; None for a risk.
        fewest: Fewest labels that can certify the risk, if all are correct:
            ln(delta) / ln(1 - risk), rounded up. None without a risk.
        best_coverage: Largest coverage at which the risk of the population
            is within the target; None without a risk.
        pilot_size: Number of samples of the pilot; 0 without.
        by_coverage: `LabelTable`, or None without a risk.
        by_samples: `SizeTable`, or None without a risk.
    """

    kind: str
    target: float
    samples: int
    low: float
    high: float
    power: float | None = None
    delta: float | None = None
    method: str | None = None
    level: float | None = None
    fewest: int | None = None
    best_coverage: float | None = None
    pilot_size: int = 0
    by_coverage: LabelTable | None = None
    by_samples: SizeTable | None = None

    def __str__(self) -> str:
        lines = [_aim(self)]
        if self.pilot_size:
            lines.append(
                f"The pilot of {self.pilot_size:,} samples leaves the range "
                f"{_number(self.low)} to {_number(self.high)} (90 %)."
            )
        if self.by_coverage is not None and self.by_samples is not None:
            lines += _risk_lines(self, self.by_coverage, self.by_samples)
        return "\n".join(lines)


def _aim(of: Plan) -> str:
    count = f"{of.samples:,} labels"
    if of.kind == "ece":
        return (
            f"{count} give an interval of the ECE of level {of.level:g} whose "
            f"half-width is {of.target:g} on average."
        )
    if of.kind == "compare":
        return (
            f"{count} show a difference of {of.target:g} with probability "
            f"{of.power:g}, at level {of.level:g}."
        )
    return (
        f"{count} certify a risk of {of.target:g} at some threshold with "
        f"probability {of.power:g} (delta {of.delta:g}, {of.method})."
    )


def _risk_lines(of: Plan, by: LabelTable, sizes: SizeTable) -> list[str]:
    lines = [
        f"Fewer than {of.fewest:,} cannot, even if all are correct.",
        f"The risk is within {of.target:g} up to coverage "
        f"{of.best_coverage:.3f}.",
        "",
        "coverage    labels   (90 % range)",
    ]
    for coverage, samples, low, high in zip(*by, strict=True):
        text = f"{coverage:8.3f}  {_number(samples):>8}"
        if not math.isnan(samples) and of.pilot_size:
            text += f"   ({_number(low)} to {_number(high)})"
        lines.append(text)
    lines += ["", "  labels    power  coverage  (80 % range)"]
    for samples, power, _, coverage, low, high in zip(*sizes, strict=True):
        if samples / 10.0 ** math.floor(math.log10(samples)) not in _PRINTED:
            continue
        text = f"{samples:8,.0f}  {power:7.3f}  {coverage:8.3f}"
        lines.append(f"{text}  ({low:.3f} to {high:.3f})")
    return lines


def _number(value: float) -> str:
    if math.isnan(value):
        return "never"
    return "too many" if math.isinf(value) else f"{value:,.0f}"

"""How many labels a guarantee takes."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.stats import norm

from keras_calib.backend.errors import value_error
from keras_calib.formulas.intervals import (
    binomial_p_value,
    binomial_upper_bound,
    check_inside,
)
from keras_calib.inputs.checks import check_integer, check_share, generator
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics.results import Result, text_table
from keras_calib.predictions.predictions import Predictions
from keras_calib.selection.certification import (
    Population,
    certified_coverage,
    of_calibrated,
    of_pilot,
)
from keras_calib.selection.choice import rounded_up
from keras_calib.selection.claims import first_rank
from keras_calib.selection.ladder import of_scores, read_outcomes

# Simulated selections at each size: most and fewest, the latter from this
# many labels on, as large samples differ less.
_MOST_DRAWS, _FEWEST_DRAWS, _LARGE = 1000, 400, 10_000
# Populations that the pilot may have been, and their draws at each size.
_NUM_POPULATIONS, _MOST_OTHERS = 40, 800
# Tails of intervals of labels and of coverages.
_TAIL, _DECILE = 0.05, 0.1
# Sizes are these times powers of ten; those of the other populations, and
# those that are printed.
_SIZES, _COARSE = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0)
_COVERAGES = tuple(i / 10 for i in range(1, 11))
# Draws that check an advice, steps by which it grows, and how many of them.
_NUM_DRAWS, _STEP, _MOST_STEPS = 400, 1.1, 40
_MOST_RISK = 0.99
# Probability at which errors of a pilot in excess of a risk are no chance.
_IMPROBABLE = 0.05
# Samples, over the fewest of a certificate, that tell whether a risk is met.
_ENOUGH = 3


class LabelTable(Result):
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

    def _shown(self) -> dict[str, Any]:
        ends = zip(self.low, self.high, strict=True)
        ranges = [
            f"({_number(low)} to {_number(high)})" if low < high else ""
            for low, high in ends
        ]
        return {
            "coverage": [f"{x:.3f}" for x in self.coverage],
            "labels": [_number(x) for x in self.samples],
            "(90 % range)": ranges,
        }


class SizeTable(Result):
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

    def _shown(self) -> dict[str, Any]:
        ends = zip(self.low, self.high, strict=True)
        columns = {
            "labels": [f"{x:,}" for x in self.samples],
            "power": [f"{x:.3f}" for x in self.power],
            "coverage": [f"{x:.3f}" for x in self.coverage],
            "(80 % range)": [f"({x:.3f} to {y:.3f})" for x, y in ends],
        }
        digits = self.samples / 10.0 ** np.floor(np.log10(self.samples))
        places = np.flatnonzero(np.isin(digits, _COARSE))
        return {name: [x[i] for i in places] for name, x in columns.items()}


class SampleSizePlan(Result):
    """A number of labels, and what they will show; print it for words.

    Attributes:
        risk: The risk to certify.
        samples: Labels with which some threshold is certified with
            probability `power`.
        low: Lower end of the 90 % interval of `samples`, as the pilot is
            finite; `samples` without a pilot.
        high: Upper end of this interval; infinity beyond `max_samples`.
        power: Probability to certify the risk.
        delta: Probability that the guarantee fails.
        fewest: Fewest labels that can certify the risk, if all are correct:
            ln(delta) / ln(1 - risk), rounded up.
        best_coverage: Largest coverage at which the risk of the population
            is within `risk`.
        pilot_size: Number of samples of the pilot; 0 without.
        by_coverage: `LabelTable`.
        by_samples: `SizeTable`.
    """

    risk: float
    samples: int
    low: float
    high: float
    power: float
    delta: float
    fewest: int
    best_coverage: float
    pilot_size: int
    by_coverage: LabelTable
    by_samples: SizeTable

    def __str__(self) -> str:
        tables = self._shown(), self.by_samples._shown()
        lines = [text_table(columns) for columns in tables]
        return "\n".join([self._note(), "", *lines[0], "", *lines[1]])

    def _columns(self) -> dict[str, Any]:
        return self.by_coverage._columns()

    def _shown(self) -> dict[str, Any]:
        return self.by_coverage._shown()

    def _note(self) -> str:
        lines = [
            f"{self.samples:,} labels certify a risk of {self.risk:g} at some "
            f"threshold with probability {self.power:g} (delta "
            f"{self.delta:g})."
        ]
        if self.pilot_size:
            lines.append(
                f"The pilot of {self.pilot_size:,} samples leaves the range "
                f"{_number(self.low)} to {_number(self.high)} (90 %)."
            )
        lines += [
            f"Fewer than {self.fewest:,} cannot, even if all are correct.",
            f"The risk is within {self.risk:g} up to coverage "
            f"{self.best_coverage:.3f}.",
        ]
        return "\n".join(lines)


def _number(value: float) -> str:
    if math.isnan(value):
        return "never"
    return "too many" if math.isinf(value) else f"{value:,.0f}"


def plan(
    *,
    risk: float,
    delta: float = 0.05,
    power: float = 0.8,
    pilot: Predictions | tuple[Any, Any] | None = None,
    accuracy: float | None = None,
    coverage: float = 1.0,
    coverages: Sequence[float] = _COVERAGES,
    sizes: Sequence[int] = (),
    max_samples: int = 100_000,
    seed: int = 0,
) -> SampleSizePlan:
    """Number of labels that a guarantee takes.

    Use it before labels are bought. It simulates the walk of
    `choose_threshold` on samples like those of the pilot:

    power(n, a) = P(a threshold of coverage >= a is certified on n labels)

    The pilot's error rate at each score is estimated from the gaps between its
    errors, so it is never 0. Such a plan holds for labels drawn as the pilot.

    Args:
        risk: Risk to certify, in (0, 1).
        delta: Probability that the guarantee may fail, in (0, 1).
        power: Probability of success, in (0, 1).
        pilot: `Predictions`; or `(scores, correct)`, both `(n,)`.
        accuracy: Without a pilot: that of a calibrated network, in (0, 1).
        coverage: Share of the surest predictions that have this accuracy.
        coverages: Coverages to plan for, in (0, 1].
        sizes: Further numbers of labels for the table.
        max_samples: Most labels to plan for.
        seed: Seed of the simulations.

    Returns:
        Plan.

    Raises:
        ValueError: If the risk is out of reach, or the pilot too small to
            tell. The error says what is within reach.

    Example:

    >>> found = plan(risk=0.05, accuracy=0.95, max_samples=1000)
    >>> found.fewest
    59

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052; Rubin, The Bayesian Bootstrap,
        Annals of Statistics 9, 1981, https://doi.org/10.1214/aos/1176345338
    """
    for name, value in (("risk", risk), ("delta", delta), ("power", power)):
        check_inside(name, value)
    check_integer("max_samples", max_samples, 1)
    rng = generator(seed)
    if (pilot is None) == (accuracy is None):
        raise value_error(
            "One of `pilot` and `accuracy` must be given",
            pilot=None if pilot is None else "given",
            accuracy=accuracy,
        )
    if accuracy is not None:
        check_inside("accuracy", accuracy)
        check_share("coverage", coverage, positive=True)
        assumed = others = of_calibrated(accuracy, coverage)
    else:
        found = of_scores(_rows_of(pilot, delta))
        assumed, others = of_pilot(found, _NUM_POPULATIONS, rng)
    a = np.array(sorted({float(x) for x in coverages}))
    for value in a:
        check_share("coverages", float(value), positive=True)
    for size in sizes:
        check_integer("sizes", size, 1)
    aim = _Aim(assumed, float(risk), delta, power, max_samples)
    return aim.planned(others, a, sizes, rng)


def _rows_of(pilot: Any, delta: float) -> Outcomes:
    """The rows of a pilot, in which infinite scores are the ends."""
    scores, correct = pilot, None
    if not isinstance(pilot, Predictions):
        is_pair = isinstance(pilot, tuple | list) and len(pilot) == 2
        if not is_pair or np.ndim(pilot[1]) != 1:
            raise value_error(
                "`pilot` must be `Predictions`, or (scores, correct) of shape "
                "(n,): labels and logits become `Predictions(labels, logits, "
                "from_logits=True)`",
                pilot=type(pilot).__name__,
            )
        scores, correct = pilot
    found = read_outcomes(scores, correct, delta=delta)
    return found._replace(score=np.nan_to_num(found.score))


class _Aim(NamedTuple):
    """A risk to certify of a population, and with what probability.

    A threshold counts if the pilot has as many samples above it as a
    certificate takes at least. Fewer say nothing: by luck some are right.
    """

    of: Population
    risk: float
    delta: float
    power: float
    max_samples: int

    @property
    def fewest(self) -> int:
        """Labels that certify the risk if all are correct."""
        return first_rank(self.risk, self.delta)

    @property
    def best_coverage(self) -> float:
        """The largest coverage whose error rate is within the risk, or 0."""
        within = self._counting(self.fewest) & (self.of.risk <= self.risk)
        return float(self.of.coverage[within].max(initial=0.0))

    def planned(
        self,
        others: Population,
        coverages: np.ndarray,
        more: Sequence[int],
        rng: np.random.Generator,
    ) -> SampleSizePlan:
        """The plan. `others` are what else the pilot may have been."""
        if self.fewest > self.max_samples:
            raise value_error(
                "`max_samples` must be at least the labels that this `risk` "
                f"takes even if all are correct, {self.fewest}",
                max_samples=self.max_samples,
                risk=self.risk,
            )
        if not (best := self.best_coverage):
            raise self._never()
        sizes = np.array(sorted({*self._sizes(_SIZES), *more}))
        # The least coverage of all stands for any threshold.
        asked = np.r_[1e-12, coverages]
        own = self._scan(self.of, sizes, _MOST_DRAWS, rng)
        power = np.array([(x > 0).mean() for x in own])
        samples = self._crossing(sizes, own, asked)
        if math.isinf(samples[0]):
            raise value_error(
                "`max_samples` labels do not certify any threshold with "
                "probability `power`: raise it, or ask for "
                f"`risk={self._advice():g}` or more",
                risk=self.risk,
                power=self.power,
                max_samples=self.max_samples,
                probability=float(power[-1]),
            )
        low, high, assurance = samples, samples, power
        if self.of.num_samples:
            coarse = np.array(sorted(self._sizes(_COARSE)))
            other = self._scan(others, coarse, _MOST_OTHERS, rng)
            # Draws go round the populations.
            each = [
                self._crossing(
                    coarse, [x[i::_NUM_POPULATIONS] for x in other], asked
                )
                for i in range(_NUM_POPULATIONS)
            ]
            assurance = np.interp(
                np.log(sizes), np.log(coarse), [(x > 0).mean() for x in other]
            )
            ranked = np.sort(np.stack(each), axis=0)
            least = round(_TAIL * (_NUM_POPULATIONS - 1))
            low = np.minimum(ranked[least], samples)
            high = np.maximum(ranked[-1 - least], samples)
        beyond = np.append(False, coverages > best)
        samples = np.where(beyond, np.nan, samples)
        return SampleSizePlan(
            self.risk,
            int(samples[0]),
            float(low[0]),
            float(high[0]),
            power=self.power,
            delta=self.delta,
            fewest=self.fewest,
            best_coverage=best,
            pilot_size=self.of.num_samples,
            by_coverage=LabelTable(coverages, samples[1:], low[1:], high[1:]),
            by_samples=SizeTable(
                sizes,
                power,
                assurance,
                np.array([x.mean() for x in own]),
                *np.transpose(
                    [np.quantile(x, [_DECILE, 1 - _DECILE]) for x in own]
                ),
            ),
        )

    def _sizes(self, digits: Sequence[float]) -> list[int]:
        """Sizes to simulate, from the fewest labels on."""
        powers = range(1, 2 + int(math.log10(self.max_samples)))
        found = {round(x * 10**k) for k in powers for x in digits}
        found |= {self.fewest, self.max_samples}
        return [x for x in found if self.fewest <= x <= self.max_samples]

    def _scan(
        self,
        of: Population,
        sizes: np.ndarray,
        most: int,
        rng: np.random.Generator,
    ) -> list[np.ndarray]:
        """Coverages that draws certify, `(draws,)` for each size."""
        draws = [_FEWEST_DRAWS if n > _LARGE else most for n in sizes]
        return [
            certified_coverage(of, int(n), self.risk, self.delta, number, rng)
            for n, number in zip(sizes, draws, strict=True)
        ]

    def _crossing(
        self, sizes: np.ndarray, found: list[np.ndarray], coverages: np.ndarray
    ) -> np.ndarray:
        """Labels from which on each coverage is certified often enough.

        Power is taken to rise with the number of labels, and to be a straight
        line in its logarithm from one size to the next.
        """
        samples = np.full(len(coverages), np.inf)
        for i, coverage in enumerate(coverages):
            power = np.array([(x >= coverage).mean() for x in found])
            power = isotonic_regression(power).x
            if not (reached := np.flatnonzero(power >= self.power)).size:
                continue
            k = reached[0]
            count = float(sizes[k])
            if k and power[k] > power[k - 1]:
                share = self.power - power[k - 1]
                share /= power[k] - power[k - 1]
                count = sizes[k - 1] * (sizes[k] / sizes[k - 1]) ** share
            count = max(rounded_up(count), self.fewest)
            samples[i] = min(count, self.max_samples)
        return samples

    def _never(self) -> ValueError:
        """The error of a risk that no threshold has."""
        of, advice = self.of, self._advice()
        enough = _ENOUGH * self.fewest
        known = self._counting(enough)
        if of.num_samples:
            accepted = of.num_samples * of.coverage[known]
            # Less the error that is added after the last.
            wrong = np.maximum(accepted * of.risk[known] - 1.0, 0.0)
            chance = binomial_p_value(np.floor(wrong), accepted, self.risk)
            if (chance < 1.0 - _IMPROBABLE).any():
                more = max(enough, 2 * of.num_samples)
                return value_error(
                    "`pilot` is too small to tell whether this `risk` is "
                    f"within reach: take one of {more} samples or more, or "
                    f"ask for a larger `risk`, such as {advice:g}",
                    risk=self.risk,
                    samples=of.num_samples,
                )
        best = np.flatnonzero(known)[np.argmin(of.risk[known])]
        return value_error(
            "`risk` is below that of every threshold, so that no number of "
            f"labels certifies it: ask for `risk={advice:g}` or more",
            risk=self.risk,
            **{
                "lowest risk": float(of.risk[best]),
                "at coverage": float(of.coverage[best]),
            },
        )

    def _counting(self, fewest: int) -> np.ndarray:
        """Thresholds with that many samples of the pilot, or with all."""
        if not self.of.num_samples:
            return np.ones(len(self.of.mass), bool)
        accepted = np.rint(self.of.num_samples * self.of.coverage)
        return accepted >= min(fewest, self.of.num_samples)

    def _advice(self) -> float:
        """A risk of two digits that `max_samples` labels certify.

        If the pilot's errors are as improbable as the upper end of their
        interval, the risk is still within reach. Simulation has the last word.
        """
        of, rates, max_samples = self.of, self.of.risk, self.max_samples
        known = self._counting(self.fewest)
        if of.num_samples:
            accepted = np.maximum(np.rint(of.num_samples * of.coverage), 1.0)
            wrong = np.clip(accepted * rates - 1.0, 0.0, accepted)
            rates = binomial_upper_bound(wrong, accepted)
            rates = np.maximum(rates, of.risk)
        spread = math.sqrt(2.0 * math.log(2.0 / self.delta))
        spread += max(float(norm.ppf(self.power)), 0.0)
        error = np.sqrt(rates / (max_samples * of.coverage))
        limit = float((rates + spread * error)[known].min())
        fewest = -math.log(self.delta / 2.0) / max_samples
        limit = min(max(limit, fewest, 1.01 * self.risk), _MOST_RISK)
        rng = np.random.default_rng(0)
        for _ in range(_MOST_STEPS):
            limit = min(rounded_up(limit), _MOST_RISK)
            options = limit, self.delta, _NUM_DRAWS, rng
            found = certified_coverage(of, max_samples, *options)
            if limit == _MOST_RISK or (found > 0).mean() > self.power:
                break
            limit *= _STEP
        return limit

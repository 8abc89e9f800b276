"""How many labels a guarantee, an interval or a comparison takes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from keras_calib.backend.errors import value_error
from keras_calib.functional.ranking import top_scored
from keras_calib.inputs.checks import (
    check_above,
    check_in,
    check_integer,
    check_number,
    generator,
)
from keras_calib.numerics.arrays import as_array
from keras_calib.selection.certification import certified_coverage
from keras_calib.selection.claims import first_rank
from keras_calib.selection.ladder import of_scores, read_outcomes
from keras_calib.selection.plan_reach import Reach, rounded_up
from keras_calib.selection.plan_tables import LabelTable, Plan, SizeTable
from keras_calib.selection.planned_intervals import plan_comparison, plan_ece
from keras_calib.selection.population import Population, of_calibrated, of_pilot

__all__ = ["plan"]

# Simulated selections at each size: most and fewest, the latter from this
# many labels on, as large samples differ less.
_MOST_DRAWS, _FEWEST_DRAWS, _LARGE = 1000, 400, 10_000
# Populations that the pilot may have been, and their draws at each size.
_NUM_POPULATIONS, _MOST_OTHERS = 40, 800
# Tails of intervals of labels and of coverages.
_TAIL, _DECILE = 0.05, 0.1
# Sizes are these times powers of ten; those of the other populations.
_SIZES, _COARSE = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0)
_COVERAGES = tuple(i / 10 for i in range(1, 11))


def plan(
    *,
    risk: float | None = None,
    ece: float | None = None,
    compare: float | None = None,
    delta: float = 0.05,
    power: float = 0.8,
    method: str = "ltt",
    level: float = 0.95,
    pilot: tuple[Any, Any] | None = None,
    from_logits: bool = True,
    accuracy: float | None = None,
    coverage: float = 1.0,
    disagreement: float | None = None,
    coverages: Sequence[float] = _COVERAGES,
    sizes: Sequence[int] = (),
    max_samples: int = 100_000,
    seed: int = 0,
) -> Plan:
    """Number of labels for a guarantee, an interval or a comparison.

    Use it before labels are bought. With `risk` it simulates the walk of
    `choose_threshold` on samples like those of the pilot:

    power(n, a) = P(a threshold of coverage >= a is certified on n labels)

    The pilot's error rate at each score is estimated from the gaps between its
    errors, so it is never 0. Such a plan holds for labels drawn as the pilot.

    Args:
        risk: Risk to certify, in (0, 1). One of `risk`, `ece` and `compare`.
        ece: Half-width that the interval of the ECE of 15 bins has on average.
        compare: Difference of two networks that `keras_calib.compare` must
            find, of the mean of a value of each sample, such as accuracy.
        delta: Probability that the guarantee may fail, in (0, 1).
        power: Probability of success, in (0, 1), of `risk` and `compare`.
        method: `"ltt"` or `"sgr"`, as in `choose_threshold`.
        level: Level of the interval to get, of `ece` and `compare`.
        pilot: `(labels, logits)` of shapes `(n,)` and `(n, num_classes)`; or
            `(scores, correct)`, both `(n,)`, for which `ece` needs
            confidences. For `compare`: the values of both networks `(n,)`,
            such as whether they were right.
        from_logits: Whether the pilot has logits, not probabilities.
        accuracy: Without a pilot: that of a calibrated network, in (0, 1).
        coverage: Share of the surest predictions that have this accuracy.
        disagreement: Without a pilot, for `compare`: share of the samples for
            which exactly one network is right.
        coverages: Coverages to plan for, in (0, 1].
        sizes: Further numbers of labels for the table.
        max_samples: Most labels to plan for.
        seed: Seed of the simulations.

    Returns:
        Plan.

    Raises:
        ValueError: If the target is out of reach, or the pilot too small to
            tell. The error says what is within reach.

    Example:

    >>> found = plan(compare=0.02, disagreement=0.08)
    >>> found.samples
    1600

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052; Rubin, The Bayesian Bootstrap,
        Annals of Statistics 9, 1981, https://doi.org/10.1214/aos/1176345338
    """
    targets = {"risk": risk, "ece": ece, "compare": compare}
    if sum(x is not None for x in targets.values()) != 1:
        raise value_error(
            "One of `risk`, `ece` and `compare` must be given", **targets
        )
    for name, value in (*targets.items(), ("delta", delta), ("power", power)):
        if value is not None:
            _check_inside(name, value)
    _check_inside("level", level)
    check_in("method", method, ("ltt",))
    check_integer("max_samples", max_samples, 1)
    rng = generator(seed)
    if compare is not None:
        return plan_comparison(
            compare, power, level, pilot, disagreement, max_samples, rng
        )
    if (pilot is None) == (accuracy is None):
        raise value_error(
            "One of `pilot` and `accuracy` must be given",
            pilot=None if pilot is None else "given",
            accuracy=accuracy,
        )
    if accuracy is not None:
        _check_inside("accuracy", accuracy)
        check_above("coverage", coverage, 0.0)
        if coverage > 1.0:
            raise value_error("`coverage` must be <= 1", coverage=coverage)
        assumed = of_calibrated(accuracy, coverage)
        others = assumed
        if ece is not None:
            shares, rates = assumed.mass, 1.0 - assumed.rate
            return plan_ece(ece, level, (rates, rates, shares), 0, max_samples)
    else:
        scores, correct = _records(pilot, from_logits, ece is not None)
        # A plan is about their order: infinite ones are the ends.
        ends = np.nan_to_num(scores, nan=np.nan)
        found = of_scores(read_outcomes(ends, correct))
        if ece is not None:
            shares = np.full(len(scores), 1.0 / len(scores))
            read = (scores, correct, shares)
            return plan_ece(ece, level, read, len(scores), max_samples)
        assumed, others = of_pilot(found, _NUM_POPULATIONS, rng)
    a = np.array(sorted({float(x) for x in coverages}))
    for value in a:
        check_number("coverages", value)
        if not 0.0 < value <= 1.0:
            raise value_error("`coverages` must be in (0, 1]", coverage=value)
    given = _Aim(float(risk or 0.0), delta, power, method, max_samples)
    for size in sizes:
        check_integer("sizes", size, 1)
    return given.planned(assumed, others, a, [*sizes], rng)


class _Aim:
    """A risk to certify, and with what probability."""

    def __init__(
        self,
        risk: float,
        delta: float,
        power: float,
        method: str,
        max_samples: int,
    ):
        self.risk, self.delta, self.power = risk, delta, power
        self.method, self.max_samples = method, max_samples
        self.fewest = first_rank(risk, delta)
        if self.fewest > max_samples:
            raise value_error(
                "`max_samples` must be at least the labels that this `risk` "
                f"takes even if all are correct, {self.fewest}",
                max_samples=max_samples,
                risk=risk,
            )

    def planned(
        self,
        of: Population,
        others: Population,
        coverages: np.ndarray,
        more: list[int],
        rng: np.random.Generator,
    ) -> Plan:
        reach = Reach(of, self.risk, self.delta, self.power, self.method)
        if not (best := reach.best_coverage):
            raise reach.never(self.max_samples)
        sizes = np.array(sorted({*self._sizes(_SIZES), *more}))
        # The least coverage of all stands for any threshold.
        asked = np.r_[1e-12, coverages]
        own = self._scan(of, sizes, _MOST_DRAWS, rng)
        power = np.array([(x > 0).mean() for x in own])
        samples = self._crossing(sizes, own, asked)
        if math.isinf(samples[0]):
            raise reach.too_many(self.max_samples, float(power[-1]))
        low, high, assurance = samples, samples, power
        if of.num_samples:
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
                np.log(sizes),
                np.log(coarse),
                [(x > 0).mean() for x in other],
            )
            ranked = np.sort(np.stack(each), axis=0)
            least = round(_TAIL * (_NUM_POPULATIONS - 1))
            low = np.minimum(ranked[least], samples)
            high = np.maximum(ranked[-1 - least], samples)
        beyond = np.append(False, coverages > best)
        samples = np.where(beyond, np.nan, samples)
        return Plan(
            "risk",
            self.risk,
            int(samples[0]),
            float(low[0]),
            float(high[0]),
            power=self.power,
            delta=self.delta,
            method=self.method,
            fewest=self.fewest,
            best_coverage=best,
            pilot_size=of.num_samples,
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
        options = self.risk, self.delta, self.method
        return [
            certified_coverage(
                of, int(n), *options, _FEWEST_DRAWS if n > _LARGE else most, rng
            )
            for n in sizes
        ]

    def _crossing(
        self,
        sizes: np.ndarray,
        found: list[np.ndarray],
        coverages: np.ndarray,
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
            samples[i] = max(rounded_up(count), self.fewest)
        return np.minimum(
            samples, np.where(np.isinf(samples), np.inf, self.max_samples)
        )


def _records(
    pilot: Any, from_logits: bool, confidences: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and correctness of a pilot in either form."""
    if not isinstance(pilot, tuple | list) or len(pilot) != 2:
        raise value_error(
            "`pilot` must be (labels, logits) or (scores, correct)",
            pilot=type(pilot).__name__,
        )
    first, second = (as_array(x, "pilot") for x in pilot)
    if second.ndim == 2:
        top = top_scored(first, second, "msp", from_logits=from_logits)
        return top.confidence if confidences else top.score, top.correct
    if second.ndim != 1:
        raise value_error(
            "`pilot` must be (labels, logits) of shapes (n,) and "
            "(n, num_classes), or (scores, correct) of shape (n,)",
            shapes=(first.shape, second.shape),
        )
    if confidences and not np.all((first >= 0) & (first <= 1)):
        raise value_error(
            "`pilot` must have confidences in [0, 1] with `ece`",
            minimum=float(first.min()),
            maximum=float(first.max()),
        )
    return first, second.astype("float64")


def _check_inside(name: str, value: Any) -> None:
    check_number(name, value)
    if not 0.0 < value < 1.0:
        raise value_error(
            f"`{name}` must be a number between 0 and 1", **{name: value}
        )

"""Thresholds on a score, for a target risk or coverage."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.special import rel_entr

from keras_calib.backend.errors import value_error
from keras_calib.formulas.costs import MeanCost, upper_bounds_of_means
from keras_calib.formulas.intervals import binomial_upper_bound
from keras_calib.formulas.operating_points import within_risk
from keras_calib.inputs.checks import check_above, check_in, check_share
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.softmax import sigmoid
from keras_calib.selection.candidates import Candidates, candidates
from keras_calib.selection.guarantees import METHODS, first_rank
from keras_calib.selection.reach import advice_on_risk, count_to_take

__all__ = [
    "ChosenThreshold",
    "Target",
    "ThresholdTable",
    "choose",
    "choose_threshold",
    "points_of",
    "table_of",
]

# Delta of bounds without a guarantee.
_USUAL_DELTA = 0.05
# Largest foreseeable number of samples, as a multiple of those there are.
_FURTHER = 20


class ChosenThreshold(NamedTuple):
    """A threshold with its coverage, risk and guarantee.

    Attributes:
        threshold: Least score to accept; -inf accepts everything. The
            default score of `SelectiveClassifier` is in log-odds,
            log(p / (1 - p)) of the confidence p.
        coverage: Accepted share of the data.
        risk: Share of errors among the accepted data.
        num_samples: Number of samples in the data.
        certified_risk: Upper bound of the true risk with probability 1 -
            `delta`; None without a guarantee.
        delta: Probability that the guarantee fails, or None.
        method: `"ltt"` or `"sgr"`, or None; with costs, how `fit` chose the
            threshold.
        confidence: The same threshold as a confidence in [0, 1], if the score
            is in log-odds; otherwise None. Near 1 only `threshold` is exact.
        cost: With costs, what the decisions cost on the data, a `MeanCost`.
        certified_cost: With costs, upper bound of the true mean cost of the
            accepted with probability 1 - `delta`; None without a guarantee.
        data_sha256: SHA-256 of the (score, correct) rows of the data in
            canonical order, set by a selector's fit with `delta`; else None.
        ranking_sha256: The same of counts alone, in order of the scores.
    """

    threshold: float
    coverage: float
    risk: float
    num_samples: int
    certified_risk: float | None = None
    delta: float | None = None
    method: str | None = None
    confidence: float | None = None
    cost: MeanCost | None = None
    certified_cost: float | None = None
    data_sha256: str | None = None
    ranking_sha256: str | None = None

    def __repr__(self) -> str:
        facts = {name: repr(value) for name, value in self._asdict().items()}
        del facts["data_sha256"], facts["ranking_sha256"]
        if self.cost is None:
            del facts["cost"], facts["certified_cost"]
        if self.confidence is not None:
            facts["threshold"] += " (log-odds)"
            facts["confidence"] += " (probability)"
        text = ", ".join(f"{name}={fact}" for name, fact in facts.items())
        return f"ChosenThreshold({text})"


class ThresholdTable(NamedTuple):
    """Coverage and risk of each threshold `(num_thresholds,)`, strictest first.

    With costs, mean costs of the accepted take the place of risks.

    Attributes:
        threshold: Least score to accept, midway between two scores of the
            data; the last is -inf.
        coverage: Accepted share of the data.
        risk: Share of errors among the accepted data.
        upper_bound: Exact binomial upper bound of the true risk at level 1 -
            `delta` (0.95 without delta), valid for a row chosen in advance.
            NaN if weights differ from 1. For costs, by Hoeffding and Bentkus.
        certified: True where the target risk is certified: with probability
            1 - `delta`, all these rows have a true risk of at most the target.
    """

    threshold: np.ndarray
    coverage: np.ndarray
    risk: np.ndarray
    upper_bound: np.ndarray
    certified: np.ndarray


class Target(NamedTuple):
    """Target of a threshold: risk or coverage, with or without guarantee."""

    risk: float | None
    coverage: float | None
    delta: float | None
    method: str

    def check(self) -> "Target":
        """Returns self; raises ValueError for values that are not allowed."""
        check_in("method", self.method, tuple(METHODS))
        if (self.risk is None) == (self.coverage is None):
            raise value_error(
                "One of `risk` and `coverage` must be given",
                risk=self.risk,
                coverage=self.coverage,
            )
        if self.coverage is not None:
            check_share("coverage", self.coverage, positive=True)
        else:
            check_share("risk", self.risk)
        if self.delta is not None:
            check_above("delta", self.delta, 0.0)
            if self.risk:
                check_above("risk", self.risk, 0.0)
            inside = self.risk is not None and 0.0 < self.risk < 1.0
            if not (inside and self.delta < 1.0):
                raise value_error(
                    "`delta` must be < 1 and needs a `risk` in (0, 1)",
                    delta=self.delta,
                    risk=self.risk,
                )
        return self

    def guarantee(self) -> dict[str, Any]:
        """What the facts of thresholds say of it; empty without one."""
        if self.risk is None or self.delta is None:
            return {}
        facts = {"certified_risk": float(self.risk), "method": self.method}
        return {**facts, "delta": float(self.delta)}

    def certified(
        self, found: Candidates, risk: float, delta: float
    ) -> np.ndarray:
        """Which thresholds are certified to have a risk of at most `risk`."""
        certify = METHODS[self.method]
        return certify(found.accepted, found.wrong, risk, delta)


def choose_threshold(
    scores: Any,
    correct: Any,
    *,
    risk: float | None = None,
    coverage: float | None = None,
    delta: float | None = None,
    method: str = "ltt",
    sample_weight: Any = None,
) -> ChosenThreshold:
    """The threshold with the largest coverage at a risk, or the reverse.

    Use it to abstain on units of your own: whole images, documents, patients.
    Samples with equal scores are accepted together.

    Args:
        scores: Scores `(...)`, higher = surer; `(n,)` with `delta`. Infinite
            ones are never accepted.
        correct: 1 for right and 0 for wrong predictions, shape `(...)`.
        risk: Largest allowed share of errors among the accepted.
        coverage: Least share to accept, in (0, 1]; instead of `risk`.
        delta: Probability that the guarantee may fail: P(a threshold is
            returned and its true risk exceeds `risk`) <= `delta`. It needs
            independent samples that chose nothing else. None bounds the risk
            on these samples only.
        method: With `delta`, `"ltt"` for Learn then Test, or `"sgr"` for a
            binary search over coverage, which mostly accepts less.
        sample_weight: Weights >= 0, of the shape of the scores or `(n,)`;
            with `delta` 1, or 0 for samples to leave out.

    Returns:
        ChosenThreshold.

    Raises:
        ValueError: If no threshold reaches the target, or values are out of
            range.

    Example:

    >>> chosen = choose_threshold([4, 3, 2, 1], [1, 1, 0, 1], risk=0.25)
    >>> chosen.coverage, chosen.risk
    (1.0, 0.25)

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500
    """
    target = Target(risk, coverage, delta, method).check()
    found = candidates(scores, correct, sample_weight, delta)
    return choose(found, target)[0]


def choose(
    found: Candidates, target: Target, log_odds: bool = False
) -> tuple[ChosenThreshold, np.ndarray]:
    """The best threshold for a target, and which are certified.

    `log_odds` is True if scores are log-odds of the confidence. Raises
    ValueError if no threshold reaches the target.
    """
    certified = np.zeros(len(found.threshold), bool)
    risk, delta = target.risk, target.delta
    if risk is not None and delta is not None:
        reached = certified = target.certified(found, risk, delta)
    elif risk is not None:
        reached = within_risk(found.wrong, found.accepted, risk)
    else:
        reached = found.covering(cast(float, target.coverage))
    if not reached.any():
        raise _not_reached(found, target)
    index = np.flatnonzero(reached)[0 if risk is None else -1]
    chosen = ChosenThreshold(
        *found.at(index),
        found.num_samples,
        **target.guarantee(),
    )
    if log_odds:
        cut = float(sigmoid(np.float64(chosen.threshold)))
        chosen = chosen._replace(confidence=cut)
    return chosen, certified


def _best_place(
    found: Candidates, certified: np.ndarray, target: Target
) -> int | None:
    """The place of the best of some candidates; None if none is within reach.

    With `delta` it is the last that is `certified`.
    """
    if target.delta is not None:
        reached = np.flatnonzero(certified)
        return int(reached[-1]) if len(reached) else None
    try:
        chosen, _ = choose(found, target)
    except ValueError:
        return None
    return int(np.flatnonzero(found.coverage == chosen.coverage)[0])


def points_of(
    found: Sequence[Candidates | None],
    certified: Iterable[np.ndarray],
    target: Target,
) -> Any:
    """Columns of the best: sizes, thresholds, coverages, risks; those of all.

    The threshold is inf where none is within reach, and for None, which has
    no samples.
    """
    rows: list[tuple] = []
    accepted = wrong = total = 0.0
    passed = iter(certified)
    for one in found:
        place = None if one is None else _best_place(one, next(passed), target)
        total += 0.0 if one is None else one.total
        if one is None or place is None:
            size = 0 if one is None else one.num_samples
            rows.append((size, np.inf, 0.0, 0.0))
            continue
        accepted += float(one.accepted[place])
        wrong += float(one.wrong[place])
        rows.append((one.num_samples, *one.at(place)))
    risk = safe_divide(np.float64(wrong), np.float64(accepted))
    return (*zip(*rows, strict=True), accepted / total, float(risk))


def table_of(
    found: Candidates,
    certified: np.ndarray,
    delta: float | None,
    largest_cost: float | None = None,
) -> ThresholdTable:
    """The table of all candidates, by errors or by costs up to the largest."""
    bounds = np.full(len(found.threshold), np.nan)
    level = 1.0 - (_USUAL_DELTA if delta is None else delta)
    if found.counts and largest_cost is not None:
        totals = found.wrong / largest_cost
        bounds = largest_cost * upper_bounds_of_means(
            totals, found.accepted, level=level
        )
    elif found.counts:
        bounds = binomial_upper_bound(found.wrong, found.accepted, level=level)
    return ThresholdTable(
        found.threshold, found.coverage, found.risk, bounds, certified
    )


def _not_reached(found: Candidates, target: Target) -> ValueError:
    """The error for a risk out of reach, which names one within reach."""
    limit, delta = target.risk, target.delta
    if limit is None or delta is None:
        best = int(np.argmin(found.risk))
        return value_error(
            "`risk` is below that of every threshold on these data: ask for "
            "a higher one",
            risk=limit,
            **{
                "lowest risk": float(found.risk[best]),
                "at coverage": float(found.coverage[best]),
            },
        )
    rule = "No threshold is certified to have this `risk`"
    needed = first_rank(limit, delta)
    if needed > found.num_samples:
        rule += f", which takes {needed} samples even if all are correct"
    data = "take more data"
    more = _enough_samples(found, limit, delta)
    if more is not None:
        data += f", about {more} samples like these"
    advice = advice_on_risk(
        lambda x: target.certified(found, x, delta), limit, found.coverage
    )
    return value_error(
        f"{rule}: {data}; or {advice}",
        risk=limit,
        delta=delta,
        method=target.method,
        samples=found.num_samples,
    )


def _enough_samples(found: Candidates, risk: float, delta: float) -> int | None:
    """About how many samples would certify the risk; None if too many.

    The estimate assumes the share of errors at each coverage found here. It
    uses the exponent of the binomial tail with half of `delta`, which a test
    at one coverage has.
    """
    # A few samples without an error do not prove a rate of 0.
    rate = (found.wrong + 0.5) / (found.accepted + 1.0)
    rate = np.minimum(rate, risk)
    exponent = rel_entr(rate, risk)
    exponent += rel_entr(1.0 - rate, 1.0 - risk)
    per_sample = float((exponent * found.coverage).max())
    needed = math.log(2.0 / delta)
    if needed > per_sample * _FURTHER * found.num_samples:
        return None
    return count_to_take(max(needed / per_sample, found.num_samples + 1.0))

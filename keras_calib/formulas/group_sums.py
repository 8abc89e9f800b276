"""Sums over the predictions of each group: people, sites, classes, levels.

The sums add batch by batch, and a group may turn up late.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.stats import hypergeom, norm, t

from keras_calib.backend.errors import value_error
from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.binned_intervals import (
    accuracy_interval,
    error_interval,
)
from keras_calib.formulas.bins import BinSums, bin_index, bin_sums
from keras_calib.formulas.intervals import (
    clopper_pearson,
    poisson_binomial_tails,
    tail_of,
)
from keras_calib.formulas.units import (
    clustered,
    effective_count,
    group_of,
    spread_of,
    sums_by_unit,
)
from keras_calib.numerics.arrays import safe_divide

# Cells of log-odds for the exact test: so wide, from the lowest on.
_CELLS, _WIDTH, _LOWEST = 128, 0.25, -8.0
# A normal tail is not accurate where many tests look, so the test is exact.
_EXACT_VARIANCE = 1e6
# Each takes 4 kB.
_MOST_GROUPS = 10_000


class Estimates(NamedTuple):
    """Values of groups with the ends of their intervals, arrays `(groups,)`."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


class GroupedSums:
    """Sums of the predictions of each group: a site, a class or the like.

    Derivation: docs/derivations.md, 'Intervals and guarantees'.

    Args:
        num_bins: Number of bins of the confidence, for calibration errors.
        votes: Whether predictions are right by a share of votes.
        num_groups: Number of groups that are known by their numbers, of which
            no test is wanted. None if they come with names.

    Attributes:
        names: Names of the groups, in the order in which they came.
    """

    def __init__(
        self,
        num_bins: int = 15,
        votes: bool = False,
        num_groups: int | None = None,
    ):
        self._num_bins, self._votes = num_bins, votes
        self.names = [str(k) for k in range(num_groups or 0)]
        self._places: dict[str, int] = {}
        count = len(self.names)
        # Those of `BinSums` and the squared residual.
        self._sums = np.zeros((6, count, num_bins))
        # Number, wrong and doubt of cells of similar confidence.
        cells = _CELLS if num_groups is None else 0
        self._cells = np.zeros((3, count, cells))
        # Number; weight, squared weight and wrong weight of the accepted.
        self._counts = np.zeros((4, count))
        # By group of units: weight, confidence and correctness of all, and
        # weight and correctness of the accepted. None while rows are units.
        self._by_unit: np.ndarray | None = None

    def add(
        self,
        names: Sequence[str] | None,
        code: np.ndarray,
        confidence: np.ndarray,
        correct: np.ndarray,
        weight: np.ndarray,
        accept: np.ndarray | None = None,
        unit: np.ndarray | None = None,
    ) -> np.ndarray:
        """Adds predictions `(n,)`; returns the place of the group of each.

        `code` is the place of each in `names`, or the number of its group.
        Only groups with a prediction get a place, in the order of `names`.
        `unit` has the numbers of units, of which predictions depend on each
        other.
        """
        place = code
        if names is not None:
            found = np.flatnonzero(np.bincount(code)).tolist()
            places = np.zeros(len(names), "int64")
            places[found] = [self._place(names[k]) for k in found]
            place = places[code]
            self._grow(len(self.names))
        index = place
        if self._num_bins > 1:
            index = bin_index(confidence, self._num_bins)
            index = index + place * self._num_bins
        confidence = confidence.astype("float64")
        sums = bin_sums(
            confidence,
            correct,
            index,
            len(self.names) * self._num_bins,
            weight,
            votes=True,
        )
        self._sums += np.reshape(sums.parts(), self._sums.shape)
        if self._cells.size:
            self._add_cells(place, confidence, correct)
        terms = [None]
        if accept is not None:
            kept = weight * accept
            terms += [kept, kept * weight, kept * (1.0 - correct)]
        for total, values in zip(self._counts, terms, strict=False):
            total += np.bincount(place, values, minlength=len(total))
        if unit is not None:
            kept = weight if accept is None else weight * accept
            values = [weight, weight * confidence, weight * correct]
            values += [kept, kept * correct]
            count = len(self.names)
            found = sums_by_unit(group_of(unit), place, count, *values)
            if self._by_unit is None:
                self._by_unit = np.zeros_like(found)
            self._by_unit += found
        return place

    def select(self, places: np.ndarray) -> "GroupedSums":
        """The groups at these places alone, in their order."""
        names = [self.names[k] for k in places]
        return self._changed(names, lambda sums: sums[:, places])

    def merged(self) -> "GroupedSums":
        """All groups as one."""
        return self._changed(["all"], lambda x: x.sum(axis=1, keepdims=True))

    def at_least(self) -> "GroupedSums":
        """Sums of each group together with all groups after it."""
        return self._changed(
            self.names, lambda sums: sums[:, ::-1].cumsum(axis=1)[:, ::-1]
        )

    @property
    def totals(self) -> BinSums:
        """Sums of each group, arrays `(groups,)`.

        Effective numbers are those of the gaps of units, where rows depend on
        each other.
        """
        return self._totals()

    def _totals(self, of_gap: bool = True) -> BinSums:
        sums = self._bin_sums(self._sums.sum(axis=-1))
        if self._by_unit is None:
            return sums
        return clustered(sums, self._by_unit[:3], of_gap=of_gap)

    @property
    def has_units(self) -> bool:
        """Whether predictions depend on each other in units."""
        return self._by_unit is not None

    @property
    def size(self) -> np.ndarray:
        """Number of predictions that count, `(groups,)`."""
        return self._counts[0]

    @property
    def effective(self) -> np.ndarray:
        """Effective number of predictions (sum w)^2 / sum w^2, `(groups,)`."""
        return safe_divide(self.totals.weight**2, self.totals.squared_weight)

    @property
    def accepted(self) -> np.ndarray:
        """Effective number of accepted predictions, `(groups,)`."""
        count = safe_divide(self._counts[1] ** 2, self._counts[2])
        if self._by_unit is None:
            return count
        weight, correct = self._by_unit[3:]
        risk = safe_divide(self._counts[3], self._counts[1])
        risk = np.clip(risk, 0.0, 1.0)
        return effective_count(risk * (1.0 - risk), correct, weight, count)

    @property
    def are_counts(self) -> bool:
        """Whether each prediction is one, without weights or votes."""
        sums = self.totals
        equal = np.array_equal(sums.weight, self.size)
        equal &= np.array_equal(sums.squared_weight, self.size)
        return equal and not self._votes and self._by_unit is None

    def accuracy(self, level: float) -> Estimates:
        """Accuracy, with the exact binomial interval."""
        return self._accuracy(self._totals(of_gap=False), level)

    def _accuracy(self, sums: BinSums, level: float) -> Estimates:
        return Estimates(sums.accuracy, *accuracy_interval(sums, level=level))

    def confidence_gap(self, level: float) -> Estimates:
        """Mean confidence less accuracy.

        Its interval is as far from it as that of the accuracy. It is wider
        where the confidences do not tell right predictions from wrong ones,
        as their own noise is then not part of that of the accuracy.
        """
        sums = self.totals
        accuracy, low, high = self._accuracy(sums, level)
        # A name of its own: the sums of classes have none.
        square = self._sums[5].sum(axis=-1)
        variance = safe_divide(square, sums.weight) - sums.confidence_gap**2
        more = np.maximum(variance - accuracy * (1.0 - accuracy), 0.0)
        drift = norm.isf(tail_of(level)) ** 2
        drift = drift * safe_divide(more, self.effective)
        if self._votes or self._by_unit is not None:
            drift = np.zeros_like(drift)
        below, above = np.hypot(high - accuracy, drift**0.5), (accuracy - low)
        above = np.hypot(above, drift**0.5)
        return Estimates(
            sums.confidence_gap,
            np.maximum(sums.confidence_gap - below, -1.0),
            np.minimum(sums.confidence_gap + above, 1.0),
        )

    def binned(self, norm: str, level: float) -> Estimates:
        """A binned calibration error of a norm of `calibration_error`."""
        rows = np.zeros((len(self.names), 3))
        alone = self._sums[4].sum(axis=-1)
        effect = safe_divide(self.totals.squared_weight, alone)
        for k in range(len(rows)):
            bins = self._bin_sums(self._sums[:, k])
            squares = bins.squared_weight * effect[k]
            bins = replace(bins, squared_weight=squares)
            value = calibration_error(bins, norm)
            rows[k] = value, *error_interval(bins, norm=norm, level=level)
        return Estimates(*rows.T)

    def coverage(self, level: float) -> Estimates:
        """Share of accepted predictions, with the exact interval."""
        weight = self.totals.weight
        share = safe_divide(self._counts[1], weight)
        return _share(np.minimum(share, 1.0), self.effective, level)

    def risk(self, level: float) -> Estimates:
        """Share of wrong predictions among the accepted, NaN without any."""
        _, weight, _, wrong = self._counts
        share = np.clip(safe_divide(wrong, weight), 0.0, 1.0)
        found = _share(share, self.accepted, level)
        return Estimates(*(np.where(weight > 0, x, np.nan) for x in found))

    def count_p_values(self) -> np.ndarray:
        """Two-sided p-values of the number of correct predictions.

        They are exact but for the confidences, which are averaged in cells.
        Where rows belong to units, Student tests their mean gap.

        If the model is calibrated, the wrong predictions of a group are a sum
        of trials of probability 1 - confidence.
        """
        if self._by_unit is not None:
            weight, confidence, correct = self._by_unit[:3]
            variance, num = spread_of(confidence - correct, weight)
            gap = np.abs(self.totals.confidence_gap)
            ratio = safe_divide(gap, np.sqrt(variance))
            p = 2.0 * t.sf(ratio, np.maximum(num - 1.0, 0.1))
            return np.where(variance > 0.0, p, 1.0)
        found = np.empty(len(self.names))
        for k, (number, wrong, doubt) in enumerate(self._cells.swapaxes(0, 1)):
            filled = number > 0
            tails = poisson_binomial_tails(
                round(float(wrong.sum())),
                doubt[filled] / number[filled],
                number[filled],
                exact_variance=_EXACT_VARIANCE,
            )
            found[k] = min(1.0, 2.0 * min(tails))
        return found

    def risk_p_values(self) -> np.ndarray:
        """Exact p-values of a higher risk than that of the other groups.

        Given all errors among the accepted, those of a group are
        hypergeometric if its risk is that of the others. This is Fisher's
        exact test. Where rows belong to units, Student tests the difference of
        the risks of the group and of the others.
        """
        if self._by_unit is not None:
            return self._risk_p_values_of_units(*self._by_unit[3:])
        accepted, wrong = np.rint(self._counts[[1, 3]])
        found = hypergeom.sf(wrong - 1.0, accepted.sum(), wrong.sum(), accepted)
        return np.where(accepted > 0, np.clip(found, 0.0, 1.0), np.nan)

    def _risk_p_values_of_units(
        self, weight: np.ndarray, correct: np.ndarray
    ) -> np.ndarray:
        wrong, risks, rest = weight - correct, [], []
        others = [x.sum(axis=1, keepdims=True) - x for x in (weight, wrong)]
        for w, bad in ((weight, wrong), others):
            risks.append(safe_divide(bad.sum(axis=0), w.sum(axis=0)))
            rest.append(safe_divide(bad - risks[-1] * w, w.sum(axis=0)))
        error = np.sqrt(np.sum((rest[0] - rest[1]) ** 2, axis=0))
        num = safe_divide(weight.sum(axis=0) ** 2, (weight**2).sum(axis=0))
        ratio = safe_divide(risks[0] - risks[1], error)
        found = np.where(
            error > 0.0, t.sf(ratio, np.maximum(num - 1.0, 0.1)), 1.0
        )
        return np.where(weight.sum(axis=0) > 0.0, found, np.nan)

    def _bin_sums(self, sums: np.ndarray) -> BinSums:
        return BinSums(*sums[: 6 if self._votes else 5])

    def _changed(self, names: list[str], change: Callable) -> "GroupedSums":
        """Other groups: `change` is of sums `(k, groups, ...)` along them."""
        found = GroupedSums(self._num_bins, self._votes)
        found.names = names
        found._places = {name: k for k, name in enumerate(names)}
        for field in ("_sums", "_cells", "_counts"):
            setattr(found, field, change(getattr(self, field)))
        if self._by_unit is not None:
            by_group = change(np.moveaxis(self._by_unit, 2, 1))
            found._by_unit = np.moveaxis(by_group, 1, 2)
        return found

    def _add_cells(
        self, place: np.ndarray, confidence: np.ndarray, correct: np.ndarray
    ) -> None:
        doubt = np.clip(1.0 - confidence, 1e-12, 1.0 - 1e-12)
        cell = (np.log1p(-doubt) - np.log(doubt) - _LOWEST) / _WIDTH
        cell = np.clip(cell, 0, _CELLS - 1).astype("int64") + place * _CELLS
        terms = (None, 1.0 - correct, doubt)
        for total, values in zip(self._cells, terms, strict=True):
            added = np.bincount(cell, values, minlength=total.size)
            total += added.reshape(total.shape)

    def _place(self, name: str) -> int:
        if name not in self._places:
            if len(self.names) >= _MOST_GROUPS:
                raise value_error(
                    "`groups` must be of fewer values: identifiers and "
                    "measurements are no groups, so join them first",
                    most=_MOST_GROUPS,
                )
            self._places[name] = len(self.names)
            self.names.append(name)
        return self._places[name]

    def _grow(self, count: int) -> None:
        if more := count - len(self.size):
            pads = ((0, 0), (0, more))
            self._counts = np.pad(self._counts, pads)
            self._sums = np.pad(self._sums, (*pads, (0, 0)))
            self._cells = np.pad(self._cells, (*pads, (0, 0)))
            if self._by_unit is not None:
                wide = ((0, 0), *pads)
                self._by_unit = np.pad(self._by_unit, wide)


def _share(share: np.ndarray, count: np.ndarray, level: float) -> Estimates:
    successes = np.minimum(share * count, count)
    return Estimates(share, *clopper_pearson(successes, count, level=level))

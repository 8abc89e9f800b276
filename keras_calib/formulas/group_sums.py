"""Sums over the predictions of each group: people, sites, classes, levels.

The sums add batch by batch, and a group may turn up late.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import hypergeom, norm

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

    def add(
        self,
        names: Sequence[str] | None,
        code: np.ndarray,
        confidence: np.ndarray,
        correct: np.ndarray,
        weight: np.ndarray,
        accept: np.ndarray | None = None,
    ) -> np.ndarray:
        """Adds predictions `(n,)`; returns the place of the group of each.

        `code` is the place of each in `names`, or the number of its group.
        Only groups with a prediction get a place, in the order of `names`.
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
        """Sums of each group, arrays `(groups,)`."""
        return self._bin_sums(self._sums.sum(axis=-1))

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
        return safe_divide(self._counts[1] ** 2, self._counts[2])

    @property
    def are_counts(self) -> bool:
        """Whether each prediction is one, without weights or votes."""
        sums = self.totals
        equal = np.array_equal(sums.weight, self.size)
        equal &= np.array_equal(sums.squared_weight, self.size)
        return equal and not self._votes

    def accuracy(self, level: float) -> Estimates:
        """Accuracy, with the exact binomial interval."""
        sums = self.totals
        return Estimates(sums.accuracy, *accuracy_interval(sums, level=level))

    def confidence_gap(self, level: float) -> Estimates:
        """Mean confidence less accuracy.

        Its interval is as far from it as that of the accuracy. It is wider
        where the confidences do not tell right predictions from wrong ones,
        as their own noise is then not part of that of the accuracy.
        """
        sums, (accuracy, low, high) = self.totals, self.accuracy(level)
        # A name of its own: the sums of classes have none.
        square = self._sums[5].sum(axis=-1)
        variance = safe_divide(square, sums.weight) - sums.confidence_gap**2
        more = np.maximum(variance - accuracy * (1.0 - accuracy), 0.0)
        drift = norm.isf(tail_of(level)) ** 2
        drift = drift * safe_divide(more, self.effective)
        if self._votes:
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
        for k in range(len(rows)):
            bins = self._bin_sums(self._sums[:, k])
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

        If the model is calibrated, the wrong predictions of a group are a sum
        of trials of probability 1 - confidence.
        """
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
        exact test.
        """
        accepted, wrong = np.rint(self._counts[[1, 3]])
        found = hypergeom.sf(wrong - 1.0, accepted.sum(), wrong.sum(), accepted)
        return np.where(accepted > 0, np.clip(found, 0.0, 1.0), np.nan)

    def _bin_sums(self, sums: np.ndarray) -> BinSums:
        return BinSums(*sums[: 6 if self._votes else 5])

    def _changed(self, names: list[str], change: Callable) -> "GroupedSums":
        """Other groups: `change` is of sums `(k, groups, ...)` along them."""
        found = GroupedSums(self._num_bins, self._votes)
        found.names = names
        found._places = {name: k for k, name in enumerate(names)}
        for field in ("_sums", "_cells", "_counts"):
            setattr(found, field, change(getattr(self, field)))
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


def _share(share: np.ndarray, count: np.ndarray, level: float) -> Estimates:
    successes = np.minimum(share * count, count)
    return Estimates(share, *clopper_pearson(successes, count, level=level))

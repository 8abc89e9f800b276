"""Sums over the predictions of each group of people, sites or the like.

The sums add batch by batch, and a group may turn up late.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import hypergeom, norm

from keras_calib.backend.errors import value_error
from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.binned_intervals import (
    accuracy_interval,
    error_interval,
)
from keras_calib.formulas.bins import BinSums, VoteBinSums, bin_index, bin_sums
from keras_calib.formulas.intervals import (
    clopper_pearson,
    poisson_binomial_tails,
    tail_of,
)
from keras_calib.numerics.arrays import safe_divide

__all__ = ["Estimates", "GroupedSums"]

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
    """Sums of the predictions of each value of one attribute.

    Derivation: docs/derivations.md, 'Intervals and guarantees'.

    Attributes:
        names: Names of the groups, in the order in which they came.
        size: Number of predictions that count, `(groups,)`.
    """

    def __init__(
        self, num_bins: int = 15, closed: str = "right", votes: bool = False
    ):
        self.names: list[str] = []
        self._places: dict[str, int] = {}
        self._num_bins, self._closed, self._votes = num_bins, closed, votes
        # Those of `BinSums` and the squared residual.
        self._sums = np.zeros((6, 0, num_bins))
        # Number, wrong and doubt of cells of similar confidence.
        self._cells = np.zeros((3, 0, _CELLS))
        # Weight, squared weight and wrong weight of the accepted.
        self._accepted = np.zeros((3, 0))
        self.size = np.zeros(0)

    def add(
        self,
        names: Sequence[str],
        code: np.ndarray,
        confidence: np.ndarray,
        correct: np.ndarray,
        weight: np.ndarray,
        accept: np.ndarray | None = None,
    ) -> None:
        """Adds predictions `(n,)`; `code` is the place of each in `names`."""
        place = np.array([self._place(x) for x in names], "int64")[code]
        self._grow(count := len(self.names))
        found = bin_sums(
            confidence,
            correct,
            place * self._num_bins
            + bin_index(confidence, self._num_bins, self._closed),
            count * self._num_bins,
            weight,
            votes=True,
        )
        self._sums += np.reshape(
            [*found, found.squared_residual], self._sums.shape
        )
        doubt = np.clip(1.0 - confidence.astype("float64"), 1e-12, 1.0 - 1e-12)
        cell = (np.log1p(-doubt) - np.log(doubt) - _LOWEST) / _WIDTH
        cell = np.clip(cell, 0, _CELLS - 1).astype("int64") + place * _CELLS
        for total, values in zip(
            self._cells, (None, 1.0 - correct, doubt), strict=True
        ):
            added = np.bincount(cell, values, minlength=total.size)
            total += added.reshape(total.shape)
        self.size += np.bincount(place, minlength=count)
        if accept is not None:
            kept = weight * accept
            for total, values in zip(
                self._accepted,
                (kept, kept * weight, kept * (1.0 - correct)),
                strict=True,
            ):
                total += np.bincount(place, values, minlength=count)

    def select(self, places: np.ndarray) -> "GroupedSums":
        """The groups at these places alone, in their order."""
        found = GroupedSums(self._num_bins, self._closed, self._votes)
        found.names = [self.names[k] for k in places]
        found._places = {name: k for k, name in enumerate(found.names)}
        found._sums = self._sums[:, places]
        found._cells = self._cells[:, places]
        found._accepted = self._accepted[:, places]
        found.size = self.size[places]
        return found

    def merged(self) -> "GroupedSums":
        """All groups as one."""
        found = GroupedSums(self._num_bins, self._closed, self._votes)
        found.names = ["all"]
        for name in ("_sums", "_cells", "_accepted"):
            total = getattr(self, name).sum(axis=1, keepdims=True)
            setattr(found, name, total)
        found.size = self.size.sum(keepdims=True)
        return found

    @property
    def effective(self) -> np.ndarray:
        """Effective number of predictions (sum w)^2 / sum w^2, `(groups,)`."""
        sums = self._totals()
        return safe_divide(sums.weight**2, sums.squared_weight)

    @property
    def accepted(self) -> np.ndarray:
        """Effective number of accepted predictions, `(groups,)`."""
        return safe_divide(self._accepted[0] ** 2, self._accepted[1])

    @property
    def are_counts(self) -> bool:
        """Whether each prediction is one, without weights or votes."""
        sums = self._totals()
        equal = np.array_equal(sums.weight, self.size)
        equal &= np.array_equal(sums.squared_weight, self.size)
        return equal and not self._votes

    def accuracy(self, level: float) -> Estimates:
        """Accuracy, with the exact binomial interval."""
        sums = self._totals()
        return Estimates(sums.accuracy, *accuracy_interval(sums, level=level))

    def gap(self, level: float) -> Estimates:
        """Mean confidence less accuracy.

        Its interval is as far from it as that of the accuracy. It is wider
        where the confidences do not tell right predictions from wrong ones,
        as their own noise is then not part of that of the accuracy.
        """
        sums, (accuracy, low, high) = self._totals(), self.accuracy(level)
        # A name of its own: the sums of classes have none.
        square = self._sums[5].sum(axis=-1)
        variance = safe_divide(square, sums.weight) - sums.gap**2
        more = np.maximum(variance - accuracy * (1.0 - accuracy), 0.0)
        drift = norm.isf(tail_of(level)) ** 2
        drift = drift * safe_divide(more, self.effective)
        if self._votes:
            drift = np.zeros_like(drift)
        below, above = np.hypot(high - accuracy, drift**0.5), (accuracy - low)
        above = np.hypot(above, drift**0.5)
        return Estimates(
            sums.gap,
            np.maximum(sums.gap - below, -1.0),
            np.minimum(sums.gap + above, 1.0),
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
        weight = self._totals().weight
        share = safe_divide(self._accepted[0], weight)
        return _share(np.minimum(share, 1.0), self.effective, level)

    def risk(self, level: float) -> Estimates:
        """Share of wrong predictions among the accepted, NaN without any."""
        weight, _, wrong = self._accepted
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
        accepted, wrong = np.rint(self._accepted[[0, 2]])
        found = hypergeom.sf(wrong - 1.0, accepted.sum(), wrong.sum(), accepted)
        return np.where(accepted > 0, np.clip(found, 0.0, 1.0), np.nan)

    def _bin_sums(self, sums: np.ndarray) -> BinSums:
        if self._votes:
            return VoteBinSums(*sums[:5], squared_residual=sums[5])
        return BinSums(*sums[:5])

    def _totals(self) -> BinSums:
        return self._bin_sums(self._sums.sum(axis=-1))

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
        more = count - len(self.size)
        if more:
            self.size = np.pad(self.size, (0, more))
            pads = ((0, 0), (0, more))
            self._accepted = np.pad(self._accepted, pads)
            self._sums = np.pad(self._sums, (*pads, (0, 0)))
            self._cells = np.pad(self._cells, (*pads, (0, 0)))


def _share(share: np.ndarray, count: np.ndarray, level: float) -> Estimates:
    successes = np.minimum(share * count, count)
    return Estimates(share, *clopper_pearson(successes, count, level=level))

"""Venn-Abers prediction: two probabilities, one of which is calibrated."""

import itertools
from typing import Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.calibrators.base import FittedValue
from keras_calib.calibrators.binning import entries_of
from keras_calib.calibrators.columns import ROWS, OneVsRest, log_odds_of_classes
from keras_calib.calibrators.fitted_layer import CalibratorOptions
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.numerics.softmax import is_ruled_out, num_allowed

# Smaller floats count as 0, as compiled code may round them.
_TINY = np.finfo("float32").tiny
_LARGEST = np.finfo("float32").max
# Backends round log-odds of three classes or more differently by so much,
# times 1 plus the log-odds. Those of two classes are a difference.
_ROUNDING = 2e-6


@keras.saving.register_keras_serializable(package="keras_calib")
class VennAbers(OneVsRest):
    """Inductive Venn-Abers prediction: a range of probabilities, and p.

    Use it for two classes with a thousand held-out samples or more, when you
    want a range for each prediction or no assumption on the form of the
    miscalibration. Add the new sample to the held-out ones, first with label
    0, then with label 1. Isotonic regression of each gives its value there:
    p0 and p1. Then

    p = p1 / (1 - p0 + p1), which lies in [p0, p1]

    If held-out and new samples are exchangeable, one of p0 and p1 is
    perfectly calibrated: P(y = 1 | p_y) = p_y. Which one is unknown, so the
    range that `interval` returns is no confidence interval: it often misses
    the true probability. As p is never 0 or 1, no single sample can cost an
    infinite loss. Predictions of equal p tie.

    A fit takes O(n log n) steps and keeps at most 2 n + 1 entries, each
    exactly what two new regressions would give. More than two classes are
    fitted one against the rest, then the p of a sample are normalised.
    Weights are frequencies: the new sample weighs 1.

    Args:
        upper_edges: Largest log-odds of each entry `(num_classes, size)`,
            ascending, if you know them, or one row for two classes; None waits
            for `fit`.
        p1: p1 of each entry, of that shape; goes with `upper_edges`.
        p0_complement: 1 - p0 of each entry, of that shape.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> logits = np.array([[0.0, -2], [0, -1], [0, -0.5], [0, 1], [0, 2]])
    >>> venn = VennAbers().fit([0, 0, 1, 0, 1], logits)
    >>> low, high = venn.interval([[0.0, 1.5]])
    >>> print(round(float(low[0, 1]), 4), round(float(high[0, 1]), 4))
    0.3333 1.0

    Reference:
        Vovk, Petej and Fedorova, Large-scale probabilistic predictors with
        and without guarantees of validity, NeurIPS 2015,
        https://arxiv.org/abs/1511.00213
    """

    upper_edges = FittedValue(ROWS, "size", ascends=True)
    p1 = FittedValue(ROWS, "size", rule="in [0, 1]")
    p0_complement = FittedValue(ROWS, "size", rule="in [0, 1]")

    def __init__(
        self,
        *,
        upper_edges: Any = None,
        p1: Any = None,
        p0_complement: Any = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        super().__init__(**kwargs)
        self.set_known(
            upper_edges=upper_edges, p1=p1, p0_complement=p0_complement
        )

    def fit_samples(self, samples: FittingData) -> None:
        super().fit_samples(samples.as_frequencies())

    def fit_column(self, samples: FittingData, *column: Any) -> tuple:
        room = _ROUNDING if samples.num_classes > 2 else 0.0
        scores, labels, weight = column
        return _table(scores, labels, weight, room)

    def interval(
        self, logits: Any, *, from_logits: bool | None = None
    ) -> tuple:
        """The lower and upper probability of each class.

        For the second of two classes they are p0 and p1. For more classes they
        are those of each class against the rest: they are not normalised, and
        the normalised p can lie outside.

        Args:
            logits: The model's outputs, as in a call.
            from_logits: Whether they are logits, as in a call.

        Returns:
            Two tensors of the shape of the logits, float32, in [0, 1].
        """
        logits, one_output = self.logits_for_interval(logits, from_logits)
        features = self.features(logits)
        if logits.shape[-1] != 2:
            ends = self.ends(features)
        else:
            p1, rest = self._look_up(features[..., 1:])
            low = ops.concatenate([1.0 - p1, 1.0 - rest], axis=-1)
            ends = low, ops.concatenate([rest, p1], axis=-1)
        # What logits alone decide is 0 or 1.
        ruled_out = is_ruled_out(logits)
        known = ops.logical_or(ruled_out, num_allowed(logits) == 1.0)
        decided = ops.cast(~ruled_out, "float32")
        low, high = (ops.where(known, decided, x) for x in ends)
        return (low[..., 1:], high[..., 1:]) if one_output else (low, high)

    def ends(self, features: Any) -> tuple[Any, Any]:
        """p0 and p1 of log-odds."""
        p1, rest = self._look_up(features)
        return 1.0 - rest, p1

    def features(self, logits: Any) -> Any:
        """The log-odds of each class."""
        return log_odds_of_classes(logits)

    def both_log_probs(self, features: Any) -> tuple[Any, Any]:
        p1, rest = self._look_up(features)
        log_total = ops.log(rest + p1)
        return ops.log(p1) - log_total, ops.log(rest) - log_total

    def degrees_of_freedom(self, samples: FittingData) -> float:
        """About the number of flat pieces of isotonic regressions."""
        problems = len(self.fitted_value("upper_edges"))
        return float(problems * samples.effective_count() ** (1.0 / 3.0))

    def _look_up(self, features: Any) -> list[Any]:
        """p1 and 1 - p0 of log-odds."""
        tiny = ops.abs(features) < float(_TINY)
        features = ops.where(tiny, ops.zeros_like(features), features)
        tables = self._p1, self._p0_complement
        return entries_of(features, self._upper_edges, *tables)


def _table(
    scores: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None,
    room: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Upper edges, p1 and 1 - p0 of the entries of one class.

    A new score is in one of 2 k + 1 places: before, between or after the k
    distinct scores, or equal to one of them up to `room`.
    """
    scores = np.where(np.abs(scores) < _TINY, np.float32(0), scores)
    points, index = np.unique(scores, return_inverse=True)
    last = points
    if room:
        # Rounding may have parted equal scores.
        near = room * (1.0 + np.abs(points))
        parted = np.r_[True, np.diff(points) > near[1:]]
        start = np.maximum.accumulate(np.arange(len(points)) * parted)
        cell = np.floor((points - points[start]) / near)
        parted[1:] |= cell[1:] != cell[:-1]
        index = (np.cumsum(parted) - 1)[index]
        points, last = points[parted], points[np.r_[parted[1:], True]]
    label = labels if weight is None else labels * weight
    total = np.bincount(index, weight)
    label = np.bincount(index, label)
    # A score without weight changes nothing.
    some = total > 0
    points, last, total, label = (x[some] for x in (points, last, total, label))
    p1 = _values(total, label)
    # With classes and order exchanged, 1 - p0 is what p1 was.
    rest = _values(total[::-1], (total - label)[::-1])[::-1]
    # A place ends at its score, or before the next one.
    edges = np.empty(2 * len(points) + 1, "float32")
    edges[1::2], edges[:-1:2], edges[-1] = points, _before(points), _LARGEST
    if room:
        middle = 0.5 * points[1:] + 0.5 * last[:-1]
        near = (room * (1.0 + np.abs(points))).astype("float32")
        edges[1::2] = np.minimum(last + near, np.r_[middle, _LARGEST])
        edges[:-1:2] = np.maximum(points - near, np.r_[-_LARGEST, middle])
    # No float32 lies between neighbours.
    some = np.r_[True, edges[1:] > edges[:-1]]
    edges, p1, rest = edges[some], p1[some], rest[some]
    last = np.r_[(p1[1:] != p1[:-1]) | (rest[1:] != rest[:-1]), True]
    return edges[last], p1[last], rest[last]


def _before(x: np.ndarray) -> np.ndarray:
    """The largest float32 below each, among those that are not subnormal."""
    below = np.nextafter(x, np.float32(-np.inf))
    small = np.abs(below) < _TINY
    return np.where(small & (x == 0), -_TINY, np.where(small, 0, below))


def _values(weight: np.ndarray, label: np.ndarray) -> np.ndarray:
    """p1 in each place.

    In the diagram of cumulated labels over cumulated weights, the points right
    of the new sample move by (1, 1). p1 is the slope of the segment of the
    lower convex hull that leads from the points on its left to those on its
    right. From place to place both ends move to the right only.
    """
    xs = [0.0, *np.cumsum(weight, dtype="float64").tolist()]
    ys = [0.0, *np.cumsum(label, dtype="float64").tolist()]
    num, after = len(xs), _hull_after(xs, ys)
    hull = [0]  # of the points on the left
    left = right = 0
    found = []
    # The place of each score, and the place after it.
    for first, joins in itertools.product(range(num), (False, True)):
        if joins and first:
            _add_to_hull(hull, xs, ys, first)
            left = min(left, len(hull) - 1)
        elif not (joins or first):
            continue
        right = max(right, first)
        while True:
            x, y = xs[hull[left]], ys[hull[left]]
            rise, run = ys[right] + 1.0 - y, xs[right] + 1.0 - x
            while (other := after[right]) < num:
                next_rise, next_run = ys[other] + 1.0 - y, xs[other] + 1.0 - x
                if next_rise * run > rise * next_run:
                    break
                right, rise, run = other, next_rise, next_run
            if left + 1 == len(hull):
                break
            other = hull[left + 1]
            if (ys[other] - y) * run >= rise * (xs[other] - x):
                break
            left += 1
        found.append(rise / run)
    return np.array(found)


def _add_to_hull(
    hull: list[int], xs: list[float], ys: list[float], i: int
) -> None:
    """Adds a point on the right to a lower hull, and drops points above it."""
    while len(hull) > 1:
        a, b = hull[-2], hull[-1]
        if (ys[b] - ys[a]) * (xs[i] - xs[b]) < (ys[i] - ys[b]) * (
            xs[b] - xs[a]
        ):
            break
        hull.pop()
    hull.append(i)


def _hull_after(xs: list[float], ys: list[float]) -> list[int]:
    """The next point on the lower hull of each point and those after it."""
    num = len(xs)
    after = [num] * num
    for i in range(num - 2, -1, -1):
        j = i + 1
        while (k := after[j]) < num:
            # Skip j unless it lies below the line from i to k.
            if (ys[j] - ys[i]) * (xs[k] - xs[j]) < (ys[k] - ys[j]) * (
                xs[j] - xs[i]
            ):
                break
            j = k
        after[i] = j
    return after

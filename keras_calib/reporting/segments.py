"""What a report says of dense predictions by image.

Images are the units here; so are volumes and sequences.
"""

from collections.abc import Sequence
from heapq import nlargest
from typing import Any

import numpy as np
from scipy.ndimage import maximum_filter, minimum_filter, uniform_filter
from scipy.stats import t

from keras_calib.formulas.intervals import Moments, mean_interval
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.row_blocks import RowFacts
from keras_calib.plots.display import as_picture
from keras_calib.reporting.groups import side_of_ends

# What has a distribution over images, of which 21 quantiles are told.
_DISTRIBUTIONS = ("error", "confidence_gap", "iou")
_QUANTILES = np.linspace(0.0, 1.0, 21)
# Values in [-1, 1] are counted in so many cells for each 1.
_CELLS = 10_000
# Pixels are at a boundary within so many rows and columns.
_DISTANCE = 2
# A region is a window of this share of each side, of so many pixels at most.
_SIDE, _LONGEST = 6, 48
# Of more classes the mean IoU has no interval, which takes 4 K^2 sums.
_MOST_CLASSES = 256


class SegmentEvaluation:
    """Gathers errors, gaps and IoU of images, and where they are worst.

    Intervals are those of `mean_interval` over images. A ratio of sums, such
    as the IoU of a class, is the mean of the ratios of images, weighted by
    their denominators. Memory does not grow with the number of images.

    Args:
        num_worst: How many of the worst images and regions to keep.
        num_classes: Number of classes.
        is_drawn: Whether pixels were drawn, so that none has neighbours.

    Attributes:
        worst: The images with most errors.
        regions: The worst window of an image each; `crop` has maps of it.
    """

    def __init__(self, num_worst: int, num_classes: int, is_drawn: bool):
        self.num_worst, self.num_classes = num_worst, num_classes
        self.is_drawn, self.num_units = is_drawn, 0
        self._cells = {x: np.zeros(2 * _CELLS + 1) for x in _DISTRIBUTIONS}
        self.worst: list[dict[str, Any]] = []
        self.regions: list[dict[str, Any]] = []
        self._sums: dict[str, Moments] = {}
        # Products of intersections and unions of an image, summed.
        self._products: Any = 0.0

    def add(
        self,
        label: np.ndarray,
        wrong: np.ndarray,
        facts: RowFacts,
        weight: np.ndarray,
        inputs: Any,
        lead: Sequence[int],
        first: int,
    ) -> None:
        """Adds pixels `(n,)` of images of the shape `lead`.

        `wrong` is a share if labels are votes. Inputs are images or ids of
        them. `first` is the number of the first image.
        """
        counted, size = weight > 0, (lead[0], self.num_classes)
        predicted, confidence = facts.predicted, facts.confidence
        label = np.where(counted, label, 0).astype("int64", copy=False)
        rows = np.stack([weight, weight * wrong, weight * confidence])
        image = np.arange(lead[0]).repeat(len(label) // lead[0]) * size[1]

        def by_class(k, x):
            sums = np.bincount(image + k, x, size[0] * size[1])
            return sums.reshape(size)

        given = [by_class(predicted, x) for x in rows]
        labels = by_class(label, weight)
        both = by_class(label, weight * (label == predicted))
        union = np.maximum(given[0] + labels - both, 0.0)
        iou = safe_divide(both, union)
        self._add("class_labels", labels, np.ones(size))
        self._add("class_iou", iou, union)
        self._add_part("class_", *given)
        if self.num_classes <= _MOST_CLASSES:
            pairs = np.concatenate([both, union], axis=-1)
            self._products = self._products + pairs.T @ pairs
        total, bad, sure = rows.reshape(3, lead[0], -1).sum(axis=-1)
        # An image weighs what its pixels do on average.
        unit = safe_divide(total, counted.reshape(lead[0], -1).sum(axis=-1))
        self.num_units += int(np.count_nonzero(total))
        iou = safe_divide(iou.sum(axis=-1), np.count_nonzero(union, axis=-1))
        found = safe_divide(bad, total), _gap(total, bad, sure), iou
        values = dict(zip(_DISTRIBUTIONS, found, strict=True))
        for name, x in values.items():
            self._add(name, x, unit)
            cells = np.rint((x + 1.0) * _CELLS).astype(int)
            self._cells[name] += np.bincount(cells, unit, 2 * _CELLS + 1)
        has_ids = getattr(inputs, "ndim", 0) == 1
        for i in np.flatnonzero(bad).tolist():
            row: dict[str, Any] = {k: float(x[i]) for k, x in values.items()}
            row |= {"place": first + i, "id": None}
            if has_ids:
                row["id"] = str(inputs[i])
            self._keep(self.worst, row, "error")
        if not self.is_drawn:
            maps = {
                "label": label,
                "predicted": predicted,
                "confidence": confidence,
                "wrong": np.where(counted, wrong, 0.0),
                "counted": counted,
            }
            maps = {k: x.reshape(lead) for k, x in maps.items()}
            self._add_boundary(maps, rows, unit)
            if self.num_worst:
                self._add_regions(maps, inputs, first)

    def _add(self, name: str, x: np.ndarray, weight: np.ndarray) -> None:
        new = Moments.of(x, weight, lambda y: y.sum(axis=0))
        known = self._sums.get(name, (0.0,) * len(new))
        self._sums[name] = Moments(*map(np.add, known, new))

    def _add_part(self, part: str, total: Any, bad: Any, sure: Any) -> None:
        self._add(f"{part}error", safe_divide(bad, total), total)
        self._add(f"{part}confidence", safe_divide(sure, total), total)
        self._add(f"{part}confidence_gap", _gap(total, bad, sure), total)

    def _keep(self, rows: list[dict], row: dict, key: str) -> None:
        """Keeps a row, if it is among the largest."""
        rows[:] = nlargest(self.num_worst, [*rows, row], key=lambda x: x[key])

    def _add_boundary(self, maps: dict, rows: np.ndarray, unit: Any) -> None:
        """Adds the pixels at a boundary of two labels, and the others."""
        label, counted = maps["label"], maps["counted"]
        size = (1, *[2 * _DISTANCE + 1] * (label.ndim - 1))
        # Pixels that do not count have no label to differ from.
        most = maximum_filter(np.where(counted, label, -1), size)
        least = np.where(counted, label, self.num_classes)
        near = (most > minimum_filter(least, size)).reshape(-1)
        at, inside = (
            (rows * x).reshape(3, len(label), -1).sum(axis=-1)
            for x in (near, ~near)
        )
        self._add_part("boundary_", *at)
        self._add_part("inside_", *inside)
        total = at[0] + inside[0]
        self._add("boundary_share", safe_divide(at[0], total), total)
        unit = unit * (at[0] > 0) * (inside[0] > 0)
        self._add("difference_of_gap", _gap(*at) - _gap(*inside), unit)

    def _add_regions(self, maps: dict, inputs: Any, first: int) -> None:
        """Keeps the worst window of each image, if it is among the worst."""
        # The least log loss of a wrong pixel of this confidence.
        surprise = -np.log(np.maximum(1.0 - maps["confidence"], 1e-7))
        score = maps["wrong"] * surprise.astype("float64")
        pairs = maps["label"] * self.num_classes + maps["predicted"]
        sides = np.array(score.shape[1:])
        size = np.minimum(np.clip(sides // _SIDE, 3, _LONGEST), sides)
        means = uniform_filter(score, (0, *size), mode="constant")
        for i, mean in enumerate(means):
            middle = np.array(np.unravel_index(mean.argmax(), sides))
            start = np.clip(middle - size // 2, 0, sides - size)
            window = (i, *map(slice, start, start + size))
            total = float(score[window].sum())
            full = len(self.regions) == self.num_worst
            if total <= (self.regions[-1]["score"] if full else 0.0):
                continue
            bad = maps["wrong"][window] > 0
            pair = np.bincount(pairs[window][bad], score[window][bad]).argmax()
            region = {
                "place": first + i,
                "start": start.tolist(),
                "stop": (start + size).tolist(),
                "score": total,
                "wrong": int(bad.sum()),
                "pixels": int(maps["counted"][window].sum()),
                "confidence": float(maps["confidence"][window][bad].mean()),
                "label": int(pair) // self.num_classes,
                "predicted": int(pair) % self.num_classes,
                "crop": _crop(maps, inputs, window),
            }
            self._keep(self.regions, region, "score")

    def results(self) -> dict[str, Any]:
        """Numbers of the images, with 95 % intervals over images."""
        found: dict[str, Any] = {
            name: dict(zip(("value", "low", "high"), ends, strict=True))
            for name, sums in self._sums.items()
            if not name.startswith("class_") and sums.weight
            for ends in [np.stack(self._estimate(name)).tolist()]
        }
        for name, cells in self._cells.items():
            counts = np.cumsum(cells)
            places = np.searchsorted(
                counts, np.maximum(counts[-1] * _QUANTILES, 1e-9)
            )
            found[name]["quantiles"] = (places / _CELLS - 1.0).tolist()
        return {
            "num_units": self.num_units,
            **found,
            "mean_iou": self._mean_iou(),
            "worst": self.worst,
            "regions": [
                {k: x for k, x in region.items() if k != "crop"}
                for region in self.regions
            ],
        }

    def classes(self) -> list[dict[str, Any]]:
        """All classes, those that differ most certainly first.

        Those that are never predicted come last, and numbers of nothing are
        None. All intervals of a column hold together (Bonferroni).
        """
        sums = {k[6:]: x for k, x in self._sums.items() if k[:6] == "class_"}
        weight = sums["error"].weight
        level = 1.0 - 0.05 / max(1, int(np.count_nonzero(weight)))
        columns = {"weight": weight, "wrong": sums["error"].total}
        columns["labels"] = sums["labels"].total
        for name in ("error", "confidence", "confidence_gap", "iou"):
            ends = [f"{name}_low", f"{name}_high"]
            if name == "error":
                ends = ["low", "high"]
            found = self._estimate(f"class_{name}", level)
            for column, x in zip((name, *ends), found, strict=True):
                columns[column] = np.where(sums[name].weight > 0, x, np.nan)
        rows: list[dict[str, Any]] = []
        for k, values in enumerate(np.stack([*columns.values()], 1).tolist()):
            told = [None if x != x else x for x in values]
            row: dict[str, Any] = dict(zip(columns, told, strict=True))
            low, high = row["confidence_gap_low"], row["confidence_gap_high"]
            side = "even"
            if row["weight"] and low is not None and high is not None:
                side = side_of_ends(low, high)
            rows.append({"group": k, **row, "side": side})
        return sorted(
            rows,
            key=lambda x: (
                not x["weight"],
                x["side"] == "even",
                -(x["low"] or 0.0),
            ),
        )

    def _estimate(self, name: str, level: float = 0.95) -> list[Any]:
        """Means over images, with the ends of their intervals."""
        sums, least = self._sums[name], -1.0 if name.endswith("gap") else 0.0
        ends = np.clip(mean_interval(sums, level=level), least, 1.0)
        return [sums.mean, *ends]

    def _mean_iou(self) -> dict[str, float | None]:
        """The mean IoU of classes, with its interval by the delta method."""
        sums, degrees = self._sums["class_iou"], self.num_units - 1
        number = max(1, np.count_nonzero(sums.weight))
        value, low, high = float(sums.mean.sum() / number), None, None
        if degrees > 0 and self.num_classes <= _MOST_CLASSES:
            slope = np.concatenate([np.ones_like(sums.mean), -sums.mean])
            slope = safe_divide(slope, np.tile(sums.weight, 2)) / number
            variance = max(slope @ self._products @ slope, 0.0)
            error = float(np.sqrt(variance * (1.0 + 1.0 / degrees)))
            reach = error * float(t.isf(0.025, degrees))
            low, high = max(0.0, value - reach), min(1.0, value + reach)
        return {"value": value, "low": low, "high": high}


def _gap(total: Any, bad: Any, sure: Any) -> Any:
    """Confidence less accuracy, of sums of weights, errors and confidences."""
    return safe_divide(sure - total + bad, total)


def _crop(
    maps: dict, inputs: Any, window: tuple
) -> dict[str, np.ndarray] | None:
    """Maps of a window and around it, wrong inside alone; None of sequences.

    A volume shows the slice in the middle.
    """
    lead = maps["label"].shape
    if len(lead) < 3:
        return None
    marked = np.zeros_like(maps["wrong"])
    marked[window] = maps["wrong"][window]
    start, stop = np.array([(x.start, x.stop) for x in window[1:]]).T
    flat = (window[0], *(start + stop)[:-2] // 2)
    low = np.clip(start - (stop - start) // 2, 0, None)
    crop = tuple(map(slice, low[-2:], (low + 2 * (stop - start))[-2:]))
    found = {k: x[flat][crop] for k, x in {**maps, "wrong": marked}.items()}
    if np.shape(inputs)[: len(lead)] == lead:
        image = np.nan_to_num(inputs[flat]).reshape(*lead[-2:], -1)[..., :3]
        if image.shape[-1] in (1, 3):
            image = as_picture("inputs", image).reshape(*lead[-2:], -1)
            found["image"] = image[crop]
    return {k: x.copy() for k, x in found.items()}

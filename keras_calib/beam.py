"""Streaming metrics on Apache Beam, for logs too long for one machine.

Rows wait and are summed once there are enough of them, as a sum of a single row
would cost milliseconds.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Unpack

import numpy as np

from keras_calib.backend.errors import type_error, value_error, warn
from keras_calib.inputs.batch import read_arrays
from keras_calib.inputs.checks import check_in, check_keys
from keras_calib.inputs.labels import are_allowed, flat_votes, shares_of_rows
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.rows import (
    both_classes,
    resembles_probabilities,
    usable_outputs,
)
from keras_calib.inputs.values import Rules
from keras_calib.metrics import table
from keras_calib.metrics.reading import max_rows, outcomes_of_rows
from keras_calib.metrics.states.composite import CompositeSummary
from keras_calib.metrics.states.records import split_rows
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import on_host

try:
    import apache_beam as beam
except ImportError as error:
    raise ImportError(
        "`keras_calib.beam` needs Apache Beam: pip install 'keras-calib[beam]'"
    ) from error

__all__ = ["CalibrationCombineFn", "CombineOptions"]

_WITHOUT_MEANING = (
    "axis",
    "jit_compile",
    "objectness",
    "pixels_per_image",
    "refresh_every",
    "seed",
)
_LARGEST_WEIGHT = 1e4
# Bytes that may wait; with 394 kB of sums an accumulator is below 1 MB.
_MAX_WAITING = 400_000
# Bytes that pickle adds for three small arrays.
_OVERHEAD = 300


class _Accumulator:
    """Sums of one bundle, which add to others of the same configuration."""

    def __init__(self):
        # As in `state_dict()`: int32 limbs, None before the first, and flags.
        self.sums = None
        self.flags = np.zeros(4, "int64")
        # Rows that are not yet summed, as tuples.
        self.waiting, self.waiting_bytes = [], 0

    def add_sums(self, sums: np.ndarray) -> None:
        """Adds limbs to the present ones."""
        if self.sums is not None:
            sums = sums + self.sums
        self.sums = exact_sums.normalize_limbs(sums)


class CombineOptions(table.TableOptions, total=False):
    """Arguments of `CalibrationMetrics`, which explains them."""

    num_bins: int
    closed: str
    risk: float
    accuracy: float
    coverage: float


class CalibrationCombineFn(beam.CombineFn):
    """All metrics of the predicted class as one Beam CombineFn.

    Use it for prediction logs too long for one machine, per key or globally,
    in one pass. The state is that of `keras_calib.CalibrationMetrics`: below
    1 MB with rows that wait, and merged by addition. An element is

    *   `(label, outputs)` or `(label, outputs, weight)`: a class id and the
        `(num_classes,)` logits or probabilities, or
    *   a batch of them, the fastest: `(n,)`, `(n, num_classes)` and `(n,)`, or
    *   with `top1=True` `(confidence, correct)` or `(confidence, correct,
        weight)`, each a number or `(n,)`, or
    *   a dict of these by name, and of nothing else.

    With `labels="votes"`, rows of votes `(num_classes,)`, counts or shares,
    take the place of class ids, and a share that of `correct`. One output
    stands for the second of two classes. Invalid rows are skipped and counted
    in `num_invalid`: NaN, infinity, no probability, an impossible label, a
    weight below 0 or above 1e4, None. Shapes that do not fit raise. Divide
    weights much below 1 by their mean, as sums are in units of 2^-30.

    Args:
        include: Names of the metrics, as in `keras_calib.CalibrationMetrics`.
        top1: Whether elements are top-1 records; `nll` and `brier_score` are
            NaN then. Defaults to `False`.
        output: `"values"`, the default, for a dict of floats by name. Or
            `"state"` for the argument of `load_state_dict` and `merge_state`
            of the Keras metric, which gives intervals, bounds and curves.
        **kwargs: `num_bins`, `closed`, `clip`, `risk`, `accuracy`,
            `coverage`, `resolution`, `prefix`, `from_logits`, `labels` and
            `ignore_class` of `keras_calib.CalibrationMetrics`.

    Returns:
        From `extract_output`, with `"values"`: a dict of floats by name, as
        `result()` of the Keras metric returns it. It also has `num_invalid`
        and `weight`, the sum of the valid weights.

    Raises:
        TypeError: If an argument of the Keras metric has no meaning here.
        ValueError: If a name is unknown or a number out of range. In the
            workers, if shapes do not fit.

    Example:

    >>> import apache_beam as beam
    >>> metrics = CalibrationCombineFn(include=["ece", "aurc"], num_bins=10)
    >>> rows = [(0, [0.8, 0.2]), (1, [0.6, 0.4])]
    >>> found = metrics.apply(rows)
    >>> {name: round(value, 4) for name, value in found.items()}
    {'ece': 0.4, 'aurc': 0.25, 'num_invalid': 0.0, 'weight': 2.0}
    >>> per_model = beam.CombinePerKey(metrics)

    Reference:
        CombineFn: https://beam.apache.org/documentation/programming-guide
    """

    def __init__(
        self,
        include: Any = None,
        *,
        top1: bool = False,
        output: str = "values",
        **kwargs: Unpack[CombineOptions],
    ):
        super().__init__()
        check_in("output", output, ("values", "state"))
        given: Any = kwargs
        for name in _WITHOUT_MEANING:
            if name in given:
                raise type_error(
                    f"`{name}` has no meaning for rows `(num_classes,)`",
                    **{name: given[name]},
                )
        self.top1 = top1
        self.output = output
        self._arguments = {"include": include, **given}
        # Wrong arguments must raise here, not in the workers.
        metric = self._metric()
        self._arguments["include"] = metric.include
        self.options = metric.options
        self.from_logits = metric.options.from_logits
        self.ignore_class = metric.options.ignore_class
        self.votes = metric.options.votes

    def create_accumulator(self) -> _Accumulator:
        return _Accumulator()

    def add_input(
        self, accumulator: _Accumulator, element: Any
    ) -> _Accumulator:
        row = self._read(element)
        accumulator.waiting.append(row)
        accumulator.waiting_bytes += row[1].nbytes + _OVERHEAD
        accumulator.waiting_bytes += 16 * row[0].size
        if accumulator.waiting_bytes > _MAX_WAITING:
            self._sum(accumulator)
        return accumulator

    def merge_accumulators(
        self, accumulators: Iterable[_Accumulator]
    ) -> _Accumulator:
        merged, sums = self.create_accumulator(), []
        for other in accumulators:
            if other.sums is not None:
                sums.append(other.sums)
            merged.flags += other.flags
            merged.waiting += other.waiting
            merged.waiting_bytes += other.waiting_bytes
            if merged.waiting_bytes > _MAX_WAITING:
                self._sum(merged)
        if sums:
            merged.add_sums(np.sum(sums, axis=0, dtype="int64"))
        return merged

    def compact(self, accumulator: _Accumulator) -> _Accumulator:
        self._sum(accumulator)
        return accumulator

    def extract_output(self, accumulator: _Accumulator) -> dict[str, Any]:
        metric = self._metric()
        accumulator = self.merge_accumulators([accumulator])
        self._sum(accumulator)
        state = metric.state_dict()
        state["flags"] = accumulator.flags
        if accumulator.sums is not None:
            state["sums"] = accumulator.sums.astype("int64")
        if self.output == "state":
            return state
        # The output holds the count, so the worker's log needs no warning.
        metric.load_state_dict(state)
        flags = np.append(0, state["flags"][1:])
        for text in metric._what_is_wrong(state["sums"], flags):
            warn(text)
        values = {name: float(x) for name, x in metric._result().items()}
        values[metric.prefix + "num_invalid"] = float(accumulator.flags[0])
        values[metric.prefix + "weight"] = float(metric.bins().weight.sum())
        return values

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_summary"}

    def _metric(self) -> table.CalibrationMetrics:
        return table.CalibrationMetrics(**self._arguments)

    @cached_property
    def _summary(self) -> CompositeSummary:
        return self._metric().summary

    def _read(self, element: Any) -> tuple[np.ndarray, ...]:
        """Truth `(n,)`, outputs `(n, columns)` and weight `(n,)` or one."""
        names = ("label", "outputs")
        if self.top1:
            names = ("correct", "confidence")
        if isinstance(element, dict):
            check_keys("element", element, (*names, "weight"), names)
            truth, outputs = (element[name] for name in names)
            weight = element.get("weight", 1.0)
        else:
            first, second, *rest = element
            truth, outputs = (second, first) if self.top1 else (first, second)
            weight = rest[0] if rest else 1.0
        # None becomes NaN, which is invalid.
        truth = np.asarray(truth, "float64")
        weight = np.asarray(weight, "float64")
        rows_of_votes = self.votes and not self.top1
        if outputs is None or not np.size(outputs):
            shape = truth.shape if rows_of_votes else (truth.size, 1)
            outputs = np.full(shape if truth.size else (0, 1), np.nan)
        with np.errstate(over="ignore"):
            outputs = np.asarray(outputs, "float32")
        num_columns = 1 if self.top1 else (outputs.shape or (0,))[-1]
        if rows_of_votes:
            truth = flat_votes(truth, outputs)
        else:
            truth = truth.reshape(-1)
        fits = outputs.size == len(truth) * num_columns
        if not fits or weight.size not in (1, len(truth)):
            each = "one number" if self.top1 else "one row"
            raise value_error(
                f"`{names[1]}` must hold {each} per `{names[0]}`, and "
                "`weight` one number per row or in all",
                weight=weight.shape,
                **{names[0]: truth.shape, names[1]: outputs.shape},
            )
        return truth, outputs.reshape(len(truth), num_columns), weight

    def _sum(self, accumulator: _Accumulator) -> None:
        """Adds the waiting rows to the sums."""
        by_width: dict[int, list] = {}
        for row in accumulator.waiting:
            by_width.setdefault(row[1].shape[1], []).append(row)
        accumulator.waiting, accumulator.waiting_bytes = [], 0
        for rows in by_width.values():
            truth = np.concatenate([row[0] for row in rows])
            outputs = np.concatenate([row[1] for row in rows])
            weight = np.concatenate(
                [np.broadcast_to(w.reshape(-1), len(t)) for t, _, w in rows]
            )
            if outputs.shape[1] == 1 and not self.top1:
                outputs = both_classes(outputs, self.from_logits)
            truth, usable, num_invalid = self._usable(truth, outputs, weight)
            accumulator.flags[0] += num_invalid
            if usable.any():
                arrays = (x[usable] for x in (truth, outputs, weight))
                self._add(accumulator, *arrays)

    def _usable(
        self, truth: np.ndarray, outputs: np.ndarray, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Truth, with shares of votes; a mask of rows; how many are invalid."""
        is_logits = self.from_logits and not self.top1
        usable = usable_outputs(outputs, is_logits)
        if self.votes and not self.top1:
            truth, are_votes = shares_of_rows(truth)
            usable &= are_votes
        else:
            most = 1 if self.top1 else outputs.shape[1] - 1
            usable &= (truth >= 0) & (truth <= most)
            usable &= self.votes | (truth == np.floor(truth))
        if is_logits:
            labels = truth
            if not self.votes:
                labels = np.where(usable, truth, 0.0).astype("int64")
            usable &= are_allowed(labels, outputs)
        usable &= (weight >= 0) & (weight <= _LARGEST_WEIGHT)
        counted = weight != 0
        if self.ignore_class is not None and not self.top1:
            counted &= truth != self.ignore_class
        return truth, usable & counted, int((counted & ~usable).sum())

    def _add(
        self,
        accumulator: _Accumulator,
        truth: np.ndarray,
        outputs: np.ndarray,
        weight: np.ndarray,
    ) -> None:
        """Adds valid rows to the sums."""
        summary: Any = self._summary
        flags = accumulator.flags
        weight = weight.astype("float32")
        flags[1] += (weight != np.floor(weight)).any()
        flags[2] += self.top1
        given: Any = None if (weight == 1.0).all() else weight
        if self.top1:
            outcomes = Outcomes(
                score=None,
                correct=truth.astype("float32" if self.votes else "int32"),
                weight=given,
                confidence=np.clip(outputs[:, 0], 0.0, 1.0),
                mask=np.ones(len(truth), "bool"),
            )
        else:
            flags[3] += self.from_logits and resembles_probabilities(outputs)
            labels = truth if self.votes else truth.astype("int64")
            batch = read_arrays(
                labels,
                outputs,
                None,
                self.options,
                rules=Rules(active=False),
                dtype="float32",
            )._replace(weight=given)
            outcomes = outcomes_of_rows(batch, summary.on_host)
        total = np.zeros(summary.shape, "int64")
        with np.errstate(all="ignore"):
            for part in split_rows(outcomes, max_rows(summary)):
                total += on_host(summary.update(part))
        accumulator.add_sums(total)

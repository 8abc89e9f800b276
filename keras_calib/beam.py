"""Streaming metrics on Apache Beam, for logs too long for one machine.

NumPy reduces rows to a few numbers. These are summed once there are enough of
them, as a sum of a single row would cost milliseconds.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Unpack

import numpy as np

from keras_calib.backend.errors import type_error, value_error, warn
from keras_calib.formulas.proper import (
    brier_losses,
    log_losses,
    summable_losses,
)
from keras_calib.inputs.checks import check_in, check_keys
from keras_calib.inputs.labels import are_allowed, flat_votes, shares_of_rows
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.rows import resembles_probabilities, usable_outputs
from keras_calib.metrics import table
from keras_calib.metrics.states.composite import CompositeSummary
from keras_calib.metrics.states.sums import MomentSummary
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import on_host
from keras_calib.numerics.softmax import is_wrong, top1

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
# Bytes that may wait; with 394 kB of sums an accumulator is below 0.5 MB.
_MAX_WAITING = 40_000
_MAX_REDUCED = 48_000
# Bytes that pickle adds for three small arrays.
_OVERHEAD = 300
# Keeps the temporary float64 arrays of a large element small.
_BLOCK = 2**16


class _Accumulator:
    """Sums of one bundle, which add to others of the same configuration."""

    def __init__(self):
        # As in `state_dict()`: int32 limbs, None before the first, and flags.
        self.sums = None
        self.flags = np.zeros(4, "int64")
        # Rows to sum, float32 `(columns, n)`, and tuples of rows to reduce.
        self.reduced, self.reduced_bytes = [], 0
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
    0.5 MB, and merged by addition. An element is

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
        self.from_logits = metric.options.from_logits
        self.ignore_class = metric.options.ignore_class
        self.votes = metric.options.votes
        self._losses = [
            x for x in ("nll", "brier_score") if x in metric.include
        ]

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
            self._reduce(accumulator)
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
            merged.reduced += other.reduced
            merged.reduced_bytes += other.reduced_bytes
            if merged.waiting_bytes > _MAX_WAITING:
                self._reduce(merged)
            elif merged.reduced_bytes > _MAX_REDUCED:
                self._sum(merged)
        if sums:
            merged.add_sums(np.sum(sums, axis=0, dtype="int64"))
        return merged

    def compact(self, accumulator: _Accumulator) -> _Accumulator:
        self._reduce(accumulator)
        return accumulator

    def extract_output(self, accumulator: _Accumulator) -> dict[str, Any]:
        metric = self._metric()
        accumulator = self.merge_accumulators([accumulator])
        self._reduce(accumulator)
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
        """The metric's summary, which takes precomputed losses."""
        parts = dict(self._metric().summary.parts)
        values = [
            lambda records, i=i: (records.rows[i], None)
            for i in range(len(self._losses))
        ]
        if values:
            parts["losses"] = MomentSummary(*values, needs_rows=True)
        summary = CompositeSummary(**parts)
        summary.votes = self.votes
        return summary

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

    def _reduce(self, accumulator: _Accumulator) -> None:
        """Reduces the waiting elements to a few numbers per row."""
        if not accumulator.waiting:
            return
        by_width: dict[int, list] = {}
        for row in accumulator.waiting:
            by_width.setdefault(row[1].shape[1], []).append(row)
        accumulator.waiting, accumulator.waiting_bytes = [], 0
        for width, rows in by_width.items():
            truth = np.concatenate([row[0] for row in rows])
            outputs = np.concatenate([row[1] for row in rows])
            if width == 1 and not self.top1:
                zeros = np.zeros_like(outputs)
                other = zeros if self.from_logits else 1 - outputs
                outputs = np.concatenate([other, outputs], axis=1)
            weight = np.concatenate(
                [np.broadcast_to(w.reshape(-1), len(t)) for t, _, w in rows]
            )
            size = max(1, _BLOCK // width)
            for start in range(0, len(truth), size):
                part = slice(start, start + size)
                columns, num_invalid = self._columns(
                    truth[part], outputs[part].astype("float64"), weight[part]
                )
                accumulator.flags[0] += num_invalid
                if self.from_logits and not self.top1:
                    rows = outputs[part]
                    accumulator.flags[3] += resembles_probabilities(rows)
                accumulator.reduced.append(columns)
                accumulator.reduced_bytes += columns.nbytes + _OVERHEAD
        if accumulator.reduced_bytes > _MAX_REDUCED:
            self._sum(accumulator)

    def _columns(
        self, truth: np.ndarray, outputs: np.ndarray, weight: np.ndarray
    ) -> tuple[np.ndarray, int]:
        """Columns for `_sum` of the valid rows; number of invalid ones."""
        num_classes = 2 if self.top1 else outputs.shape[1]
        is_logits = self.from_logits and not self.top1
        usable = usable_outputs(outputs, is_logits)
        if not self.votes:
            usable &= (truth >= 0) & (truth < num_classes)
            usable &= truth == np.floor(truth)
        elif self.top1:
            usable &= (truth >= 0) & (truth <= 1)
        else:
            truth, are_votes = shares_of_rows(truth)
            usable &= are_votes
        if is_logits:
            labels = truth
            if not self.votes:
                labels = np.where(usable, truth, 0.0).astype("int64")
            usable &= are_allowed(labels, outputs)
        usable &= (weight >= 0) & (weight <= _LARGEST_WEIGHT)
        counted = weight != 0
        if self.ignore_class is not None and not self.top1:
            counted &= truth != self.ignore_class
        num_invalid = int((counted & ~usable).sum())
        usable &= counted
        truth, outputs, weight = truth[usable], outputs[usable], weight[usable]
        if self.top1:
            confidence = np.clip(outputs[:, 0], 0.0, 1.0)
            correct = truth if self.votes else truth != 0
            columns = [weight, correct, confidence]
            return np.stack(columns).astype("float32"), num_invalid
        confidence, log_odds = top1(outputs, from_logits=is_logits)
        if self.votes:
            labels = truth
            correct = truth[np.arange(len(truth)), outputs.argmax(axis=-1)]
        else:
            labels = truth.astype("int64")
            correct = ~is_wrong(outputs, labels)
        columns = [weight, correct, confidence, log_odds]
        if "nll" in self._losses:
            clip = self._arguments.get("clip")
            nll = log_losses(labels, outputs, from_logits=is_logits, clip=clip)
            columns.append(summable_losses(nll))
        if "brier_score" in self._losses:
            brier = brier_losses(labels, outputs, from_logits=is_logits)
            if self.votes:
                brier += 1.0 - np.sum(np.square(labels), axis=-1)
            columns.append(brier)
        with np.errstate(over="ignore"):
            return np.stack(columns).astype("float32"), num_invalid

    def _sum(self, accumulator: _Accumulator) -> None:
        """Adds the reduced rows to the sums."""
        if not accumulator.reduced:
            return
        columns = np.concatenate(accumulator.reduced, axis=1)
        accumulator.reduced, accumulator.reduced_bytes = [], 0
        accumulator.flags[1] += (columns[0] != np.floor(columns[0])).any()
        accumulator.flags[2] += self.top1
        total = np.zeros(self._summary.shape, "int64")
        for start in range(0, columns.shape[1], exact_sums.MAX_BATCH):
            part = columns[:, start : start + exact_sums.MAX_BATCH]
            weight, correct, confidence, *rest = part
            outcomes = Outcomes(
                score=rest[0] if rest else None,
                correct=correct if self.votes else correct.astype("int32"),
                weight=None if (weight == 1.0).all() else weight,
                confidence=confidence,
                mask=np.ones(len(weight), "bool"),
                rows=rest[1:] or None,
            )
            with np.errstate(all="ignore"):
                total += on_host(self._summary.update(outcomes))
        accumulator.add_sums(total)

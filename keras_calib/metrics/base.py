"""The base of every streaming metric."""

import contextlib
import threading
import warnings
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import warn
from keras_calib.backend.keras_internals import set_direction
from keras_calib.backend.replicas import assign_sum
from keras_calib.backend.replicas import num_replicas
from keras_calib.backend.traced import is_traced
from keras_calib.inputs.batch import Batch
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.options import ReadOptions
from keras_calib.inputs.options import check_reading
from keras_calib.inputs.rows import as_logits_message
from keras_calib.inputs.rows import resembles_probabilities
from keras_calib.metrics.reading import is_empty
from keras_calib.metrics.reading import read_batch
from keras_calib.metrics.reading import read_scores
from keras_calib.metrics.registry import QUANTITIES
from keras_calib.metrics.registry import lost_order
from keras_calib.metrics.registry import mode_of
from keras_calib.metrics.state_dicts import SCHEMA
from keras_calib.metrics.state_dicts import check_state
from keras_calib.metrics.state_dicts import nan_if_lost
from keras_calib.metrics.state_dicts import state_of
from keras_calib.metrics.state_dicts import what_is_wrong
from keras_calib.metrics.states.composite import Readings
from keras_calib.metrics.states.records import split_rows
from keras_calib.metrics.states.records import top1_of_batch
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import value_if_eager
from keras_calib.numerics.softmax import Top1

__all__ = ["StreamingMetric"]

_INVALID, _FRACTIONAL, _WITHOUT_ROWS, _PROBABILITIES = range(4)
# Threads that update one metric take turns. One lock for all metrics: those
# that hold one of their own cannot be copied or pickled.
_LOCK = threading.RLock()


class StreamingMetric(keras.metrics.Metric):
    """Abstract: one pass over predictions into exact integer sums.

    The state is one int32 array of fixed size that merges by addition: any
    split, order and merge of the batches gives the same sums, on any number
    of replicas. Only losses and weights that are not whole are rounded by
    batch, to 2^-32 of the largest, and vector code may round a confidence
    across the edge of a bin. A subclass names a summary, what is summed.

    Labels may be class ids `(batch, ...)` or `(batch, ..., 1)`, or one-hot
    or soft labels `(batch, ..., num_classes)`, read as their largest class.
    Predictions are `(batch, ..., num_classes)`, or `(batch, ..., 1)` for the
    second of two classes. The value is 0 before any sample, NaN if none counts.

    Invalid samples raise an error in eager use: a prediction that is NaN,
    infinite or no probability, a row that does not sum to 1, an impossible
    label, a negative weight. Compiled code cannot raise. There they are left
    out and counted in `num_invalid`, and `result()` warns of them outside. It
    also warns, once, if what is read as logits looks like probabilities.

    Args:
        summary: Has `shape`, `needs_rows`, and `update(records)` to int32
            limbs of that shape.
        from_logits: Whether predictions are logits. Confidences that round
            to 1 in float32 differ only as logits. Defaults to `False`.
        axis: The axis of the classes. Defaults to `-1`.
        ignore_class: Class id of labels that do not count.
        objectness: Whether labels are pairs `(batch, ..., 2)` of class id
            and objectness, as `AdaptiveLabelSmoothing` takes; the metric
            reads the ids. Defaults to `False`.
        pixels_per_image: How many pixels of each image of dense predictions
            to read, drawn among those that count; the same for every model,
            whatever the order of the images. None, the default, for all.
        seed: Seed of that draw.
        name: Name of the metric.
        dtype: Dtype of the result.

    Raises:
        ValueError: On update, if shapes do not fit, and in eager use if
            values are out of range.

    Reference:
        Metrics as states that merge: https://github.com/google/CommonLoopUtils
    """

    # Its name in `QUANTITIES`, and by default its own.
    _quantity = ""
    # The largest value that there can be, or None.
    _largest: float | None = 1.0

    def __init__(
        self,
        summary: Any,
        *,
        from_logits: bool = False,
        axis: int = -1,
        ignore_class: int | None = None,
        objectness: bool = False,
        pixels_per_image: int | None = None,
        seed: int = 0,
        name: str | None = None,
        dtype: Any = None,
    ):
        check_reading(axis, ignore_class, from_logits)
        if pixels_per_image is not None:
            check_integer("pixels_per_image", pixels_per_image, 1)
        check_integer("seed", seed)
        super().__init__(name=name or self._quantity or None, dtype=dtype)
        set_direction(self, self.mode)
        self.summary = summary
        self.options = ReadOptions(
            from_logits, axis, ignore_class, objectness, pixels_per_image, seed
        )
        self.sums = self._add_sums("sums", summary.shape)
        # Places: `_INVALID` and those beside it.
        self.flags = self._add_sums("flags", (4,))
        self._has_warned = False
        self._arguments: tuple[str, ...] = ()

    @property
    def mode(self) -> str | None:
        """`"min"` where lower is better, `"max"` where higher is, or None."""
        return mode_of(self._quantity)

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds one batch.

        Args:
            y_true: Labels, see the class.
            y_pred: Predictions, see the class.
            sample_weight: `(batch,)` or of the shape of the class ids, >= 0.
                Whole numbers count as repeats. The largest of a batch must
                lie between 1e-3 and 1e4 (checked in eager use). Only ratios
                matter: divide by the mean. A sum of their squares beyond
                3.5e13 stays there, and `result()` warns of it.
        """
        batch, num_invalid = read_batch(
            y_true, y_pred, sample_weight, self.options
        )
        if is_empty(batch):
            return
        size = getattr(self.summary, "max_rows", exact_sums.MAX_BATCH)
        parts = map(top1_of_batch, split_rows(batch, size))
        self._add(parts, batch.weight, num_invalid, batch)

    def update_scores(self, confidence, correct, sample_weight=None):
        """Adds top-1 records, where a log keeps nothing more.

        Args:
            confidence: Probability of the predicted class in [0, 1], any
                shape; for a metric with another `score`, that score.
            correct: Whether the prediction is right, 0 or 1, the same shape.
            sample_weight: Weights of that shape, as in `update_state`.

        Raises:
            TypeError: If the metric needs the probabilities of all classes.
        """
        if self.summary.needs_rows:
            raise type_error(
                f"`{type(self).__name__}` needs the outputs of all "
                "classes: use `update_state`",
                method="update_scores",
            )
        records, num_invalid = read_scores(
            confidence,
            correct,
            sample_weight,
            is_confidence=getattr(self, "score", "msp") == "msp",
        )
        if records.score.shape[0] == 0:
            return
        parts = split_rows(records, exact_sums.MAX_BATCH)
        self._add(parts, records.weight, num_invalid)

    def result(self):
        """The value so far, a scalar tensor (or a dict of them)."""
        flags = value_if_eager(self.flags)
        if flags is not None:
            sums = ops.convert_to_numpy(self.sums)
            for text in self._what_is_wrong(flags[_INVALID], sums):
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        return self._result()

    def _result(self):
        if self._is_traced():
            return keras.tree.map_structure(
                lambda x: ops.cast(x, self.dtype), self._from_tensors()
            )
        # On the host: in float64, and faster than one by one on a device.
        value = self._known(*map(np.asarray, self._exact_sums()))
        return keras.tree.map_structure(
            lambda x: ops.convert_to_tensor(float(x), dtype=self.dtype), value
        )

    @property
    def num_invalid(self) -> int:
        """How many predictions could not count so far."""
        return int(ops.convert_to_numpy(self.flags)[_INVALID])

    def interval(self, level: float = 0.95) -> Any:
        """Confidence interval of the value, from the state alone.

        Predictions are taken as independent. With weights that differ it
        rests on the effective number of samples, and is approximate.

        Args:
            level: Probability to cover the population's value, in (0, 1).

        Returns:
            `(low, high)`.

        Raises:
            NotImplementedError: If there is none for this metric.
        """
        found = None
        if self._quantity in QUANTITIES:
            quantity = QUANTITIES[self._quantity]
            found = quantity.interval(self._read(), self, level)
        if found is None:
            raise NotImplementedError(
                f"`{type(self).__name__}` has no interval from its state"
            )
        return tuple(map(float, found))

    def merge_state(self, metrics: Iterable[Any]) -> None:
        """Adds what other metrics of the same configuration have seen.

        Args:
            metrics: Metrics of this class with equal `get_config()`, save
                for the name, or their `state_dict()`; or one of them.

        Raises:
            TypeError: If one is of another class; nothing is added then.
            ValueError: If a configuration differs; nothing is added then.
        """
        if isinstance(metrics, dict) or not isinstance(metrics, Iterable):
            metrics = [metrics]
        states = [self._checked(state_of(x, type(self))) for x in metrics]
        with _LOCK:
            own = self.state_dict()
            for state in states:
                own["sums"] += state["sums"]
                own["flags"] += state["flags"]
            self._assign(own)

    def state_dict(self) -> dict[str, Any]:
        """All that was summed, to store, send, add and merge.

        Returns:
            A dict: the int64 arrays `"sums"` and `"flags"` add, `"config"` must
            be equal for that, `"schema"` is the version of this layout.
        """
        return {
            "schema": SCHEMA,
            "config": self._comparable_config(),
            "sums": ops.convert_to_numpy(self.sums).astype("int64"),
            "flags": ops.convert_to_numpy(self.flags).astype("int64"),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces what was summed by a `state_dict()`, or a sum of some."""
        state = self._checked(state)
        with _LOCK:
            self._assign(state)

    def get_config(self):
        config = super().get_config() | self.options.of_metric()
        return config | {name: getattr(self, name) for name in self._arguments}

    def _keep(self, **arguments: Any) -> None:
        """Arguments as attributes, and in the configuration."""
        for name, value in arguments.items():
            setattr(self, name, value)
        self._arguments = (*self._arguments, *arguments)

    def _value(self, sums: Any, frequency_weights: Any) -> Any:
        """The value of int32 sums (array-agnostic).

        `frequency_weights`: whether weights are counts, a bool of that kind.
        """
        readings = self._readings(sums, frequency_weights)
        return QUANTITIES[self._quantity].value(readings, self)

    def _readings(self, sums: Any, frequency_weights: Any) -> Readings:
        return Readings(
            self.summary,
            sums,
            frequency_weights,
            # Each look at the variable takes time.
            num_invalid=lambda: self._seen_flags()[_INVALID],
            has_all_rows=lambda: self._seen_flags()[_WITHOUT_ROWS] == 0,
        )

    def _read(self) -> Readings:
        """What was summed so far, on the host."""
        return self._readings(*self._exact_sums())

    def _known(self, sums: Any, frequency_weights: Any) -> Any:
        """The value, or NaN if predictions came of which none counts."""
        value = self._value(sums, frequency_weights)
        return nan_if_lost(value, self._seen_flags()[_INVALID], sums)

    def _what_is_wrong(self, num_invalid: int, sums: np.ndarray) -> Any:
        yield from what_is_wrong(self.name, num_invalid, sums)
        names = getattr(self, "include", (self._quantity,))
        yield from lost_order(self, names, self._readings(sums, True))

    def _add(
        self,
        parts: Iterable[Top1],
        weight: Any,
        num_invalid: Any,
        batch: Batch | None = None,
    ) -> None:
        """Adds parts of a batch, or of records without rows."""
        fractional = looks_wrong = ops.zeros_like(num_invalid)
        if batch is not None and batch.from_logits:
            # Probabilities that are read as logits.
            looks_wrong = resembles_probabilities(batch.outputs)
            looks_wrong = ops.cast(looks_wrong, "int32")
        if weight is not None:
            odd = ops.any(ops.not_equal(weight, ops.floor(weight)))
            fractional = ops.cast(odd, "int32")
        flags = ops.stack(
            [
                num_invalid,
                fractional,
                ops.full_like(num_invalid, int(batch is None)),
                looks_wrong,
            ]
        )
        added = [self.summary.update(records) for records in parts]
        # Replicas have a state each.
        alone = num_replicas() > 1 or self._is_traced()
        with contextlib.nullcontext() if alone else _LOCK:
            sums = self.sums.value
            for limbs in added:
                sums = exact_sums.add(sums, limbs)
            # All is known before anything is stored.
            assign_sum(self.flags, self.flags + flags)
            assign_sum(self.sums, sums)

    def _exact_sums(self) -> tuple[np.ndarray, bool]:
        """Float64 sums on the host, and `frequency_weights`."""
        sums = ops.convert_to_numpy(self.sums)
        flags = ops.convert_to_numpy(self.flags)
        if flags[_PROBABILITIES] and not self._has_warned:
            self._has_warned = True
            warn(as_logits_message(f"y_pred` of `{self.name}"))
        return sums, int(flags[_FRACTIONAL]) == 0

    def _is_traced(self) -> bool:
        return is_traced(ops.convert_to_tensor(self.flags))

    def _from_tensors(self) -> Any:
        """The value while a graph is traced."""
        frequency_weights = ops.equal(self.flags[_FRACTIONAL], 0)
        return self._known(ops.convert_to_tensor(self.sums), frequency_weights)

    def _seen_flags(self) -> Any:
        """The flags, on the host where that is possible."""
        flags = value_if_eager(self.flags)
        return ops.convert_to_tensor(self.flags) if flags is None else flags

    def _comparable_config(self) -> dict[str, Any]:
        config = self.get_config()
        del config["name"], config["dtype"]
        return config

    def _checked(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state that belongs to this metric, in int64."""
        flags = np.asarray(state["flags"])
        if flags.shape == (3,):
            # The first versions had one less.
            state = {**state, "flags": np.append(flags, 0)}
        own = {"sums": self.sums, "flags": self.flags}
        shapes = {key: tuple(x.shape) for key, x in own.items()}
        check_state(state, self._comparable_config(), shapes)
        return {key: np.asarray(state[key], "int64") for key in own}

    def _assign(self, state: dict[str, Any]) -> None:
        assign_sum(self.sums, exact_sums.normalize_limbs(state["sums"]))
        flags = np.minimum(state["flags"], 2**31 - 1)
        assign_sum(self.flags, flags.astype("int32"))

    def _add_sums(self, name, shape):
        return self.add_variable(
            shape, "zeros", dtype="int32", aggregation="sum", name=name
        )

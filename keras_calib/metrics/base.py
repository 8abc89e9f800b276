"""The base class of all streaming metrics."""

import math
import threading
import warnings
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, Unpack

import numpy as np
from keras import ops

from keras_calib.backend.arguments import KeepsArguments
from keras_calib.backend.compiled import (
    read_later,
    run_by_xla,
    without_autograph,
)
from keras_calib.backend.errors import type_error, warn
from keras_calib.backend.keras_internals import (
    is_at_batch_end,
    logged_name,
    set_direction,
)
from keras_calib.backend.traced import is_traced
from keras_calib.inputs.batch import Batch
from keras_calib.inputs.checks import check_flag, check_integer
from keras_calib.inputs.given_metrics import tell_class
from keras_calib.inputs.options import ReadOptions, check_reading, filled
from keras_calib.inputs.rows import (
    as_logits_message,
    of_one_output,
    resembles_probabilities,
)
from keras_calib.metrics.reading import (
    add_limbs,
    add_on_host,
    is_empty,
    max_rows,
    read_batch,
    read_scores,
)
from keras_calib.metrics.registry import QUANTITIES, lost_order, mode_of
from keras_calib.metrics.state_dicts import (
    MergeableMetric,
    nan_if_lost,
    what_is_wrong,
)
from keras_calib.metrics.states.composite import Readings
from keras_calib.metrics.states.records import limbs_of_batch, split_rows
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import to_numpy, value_if_eager

_INVALID, _FRACTIONAL, _WITHOUT_ROWS, _PROBABILITIES = range(4)
# Keras may read values in threads.
_LOCK = threading.Lock()


class MetricOptions(TypedDict, total=False):
    """Options of every metric, as `StreamingMetric` explains them."""

    from_logits: Annotated[bool, False]
    axis: Annotated[int, -1]
    ignore_class: int | None
    objectness: Annotated[bool, False]
    pixels_per_image: int | None
    seed: Annotated[int, 0]
    refresh_every: int | None
    jit_compile: Annotated[bool, False]
    labels: Annotated[str, "classes"]
    name: str | None
    dtype: Any


class StreamingMetric(KeepsArguments, MergeableMetric):
    """Abstract base of metrics that stream exactly, in fixed memory.

    Use a subclass, such as `ECE` or `CalibrationMetrics`.

    The state is one int32 array of fixed size that merges by addition. Any
    split, order and merge of the batches gives the same sums, on any number of
    replicas. Only rounding differs: of losses and fractional weights by batch,
    to 2^-32 of the largest, and of a confidence at the edge of a bin.

    Labels are class ids `(batch, ...)` or `(batch, ..., 1)`, or one-hot or soft
    labels `(batch, ..., num_classes)`. The largest class of a soft label is the
    true class, except in `NLL` and `BrierScore`, which use all of it.
    Predictions are `(batch, ..., num_classes)`, or `(batch, ..., 1)` for the
    second of two classes. `NLL`, `BrierScore`, `Accuracy` and metrics with
    `mode="binary"` take `(batch,)` too. The value is 0 before any sample.

    Invalid samples raise an error in eager mode. In compiled code, which cannot
    raise, they are skipped and counted in `num_invalid`, and `result()` warns
    of them, and if logits look like probabilities. The value is NaN if all
    were invalid. A sample is so if its prediction is NaN, infinite or not a
    probability, or its row does not sum to 1. It also is if its weight is
    negative, its label impossible, or the logit of its label -inf.

    Args:
        summary: Object with the attributes `shape` and `needs_rows`, and a
            method `update(records)` that returns int32 limbs of that shape.
        from_logits: Whether predictions are logits. Confidences that round
            to 1 in float32 differ only as logits. Defaults to `False`.
        axis: Axis of the classes. Defaults to `-1`.
        ignore_class: Class id of the labels to leave out.
        objectness: Whether labels are pairs `(batch, ..., 2)` of class id,
            which the metric uses, and objectness. Defaults to `False`.
        pixels_per_image: Number of pixels to draw among those not ignored in
            each image of dense predictions. Every model and any order of the
            images gives the same draw. None, the default, takes all.
        seed: Seed of that draw. Defaults to `0`.
        refresh_every: Steps of `fit` and `evaluate` after which the logs of
            batches get a new value. None, the default, is at steps 1, 2, 4,
            ..., 32 and at every 32nd. Values of epochs are exact, and so is
            `result()`. Steps of your own, eager steps, torch and Keras before
            3.15 compute a new value at each step.
        jit_compile: Whether TensorFlow compiles the update by XLA inside a
            step that XLA does not compile as a whole. Use it for dense
            predictions. Each new shape compiles anew. Eager updates and other
            backends ignore it. Defaults to `False`.
        labels: `"classes"`, or `"votes"` for rows of annotators' votes, counts
            or shares. A prediction is then correct by its share of the votes.
            Defaults to `"classes"`.
        name: Name of the metric.
        dtype: Dtype of the result.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range. On update, if shapes, or
            in eager mode values, are invalid.

    Reference:
        Metrics as states that merge: https://github.com/google/CommonLoopUtils
    """

    # Key in `QUANTITIES` and of `metrics.get`, and the default name.
    _quantity = ""
    # Whether outputs `(batch,)` can only be those of the second of two classes.
    _takes_one_output = False
    # Upper limit of the value, or None.
    _largest: float | None = 1.0

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "_quantity" in vars(cls):
            tell_class(cls._quantity, cls)

    def __init__(self, summary: Any, **options: Unpack[MetricOptions]):
        given = filled("StreamingMetric", options, MetricOptions)
        check_reading(
            given.axis,
            given.ignore_class,
            given.from_logits,
            given.labels,
            given.objectness,
        )
        if given.pixels_per_image is not None:
            check_integer("pixels_per_image", given.pixels_per_image, 1)
        check_integer("seed", given.seed)
        check_flag("jit_compile", given.jit_compile)
        if given.refresh_every is not None:
            check_integer("refresh_every", given.refresh_every, 1)
        name = given.name or self._quantity or None
        super().__init__(name=name, dtype=given.dtype)
        set_direction(self, self.mode)
        self.summary = summary
        summary.votes = given.labels == "votes"
        own = "name", "dtype", "refresh_every"
        reading = {k: x for k, x in vars(given).items() if k not in own}
        self.options = ReadOptions(**reading)
        self._add_state()
        self._has_warned = False
        # Whether samples came that depend on each other.
        self._of_pixels = False
        self._keep(refresh_every=given.refresh_every)
        # By the name in the logs; a metric may have several.
        self._displays: dict[str, Display] = {}

    @property
    def mode(self) -> str | None:
        """`"min"` where lower is better, `"max"` where higher is, or None."""
        return mode_of(self._quantity)

    @property
    def modes(self) -> dict[str, str]:
        """Modes by the names of the values; those without one are left out.

        Callbacks such as `EarlyStopping("val_ece")` find them by themselves.
        """
        return {self.name: self.mode} if self.mode else {}

    @without_autograph
    def update_state(self, y_true, y_pred, sample_weight=None):
        """Add one batch.

        Args:
            y_true: Labels `(batch, ...)` or `(batch, ..., num_classes)`.
            y_pred: Predictions `(batch, ..., num_classes)`.
            sample_weight: Weights `(batch,)` or of the shape of the class
                ids, >= 0. Whole numbers are frequency weights. The largest of
                a batch must lie between 1e-3 and 1e4. Only ratios matter, so
                divide by the mean. Sums of squared weights stop at 3.5e13,
                and `result()` warns of it.
        """
        if self._takes_one_output or getattr(self.summary, "is_binary", False):
            y_pred = of_one_output(y_pred, self.options.names[1])
        given = y_true, y_pred, sample_weight
        if not add_on_host(self, *given):
            self._add_tensors(*given)
        if self.options.pixels_per_image != 1:
            self._of_pixels |= getattr(y_pred, "ndim", 0) > 2

    def _add_tensors(self, y_true: Any, y_pred: Any, weight: Any) -> None:
        batch, num_invalid = read_batch(y_true, y_pred, weight, self.options)
        if is_empty(batch):
            return
        limbs = [
            run_by_xla(self._limbs, part, only_if=self.options.jit_compile)
            for part in split_rows(batch, max_rows(self.summary))
        ]
        self._add(limbs, batch.weight, num_invalid, batch)

    def _limbs(self, batch: Batch) -> Any:
        return limbs_of_batch(batch, self.summary)

    @without_autograph
    def update_scores(self, confidence, correct, sample_weight=None):
        """Add top-1 records, from logs that lack the outputs of all classes.

        Args:
            confidence: Probability of the predicted class in [0, 1], or the
                `score` of the metric, of any shape.
            correct: Whether it is correct, 0 or 1, or its share of the votes.
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
            votes=self.options.votes,
        )
        if records.score.shape[0] == 0:
            return
        parts = split_rows(records, exact_sums.MAX_BATCH)
        limbs = list(map(self.summary.update, parts))
        self._add(limbs, records.weight, num_invalid)

    def reset_state(self):
        """Forget all samples."""
        self._displays.clear()
        super().reset_state()

    @without_autograph
    def result(self):
        """Return the value so far, a scalar tensor or a dict of them."""
        flags = value_if_eager(self.flags)
        if flags is not None:
            sums = ops.convert_to_numpy(self.sums)
            for text in self._what_is_wrong(sums, flags):
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        return self._result()

    def _result(self):
        if not is_traced(ops.convert_to_tensor(self.flags)):
            # On the host: in float64, and faster than one by one on a device.
            values = self._values_of(*self._state())
            return self._named([self._scalar(float(x)) for x in values])
        name = None if self.refresh_every == 1 else logged_name()
        if name is not None:
            # Only the logs get the value: the step need not compute it.
            later = read_later(
                self,
                name,
                StreamingMetric._logged,
                lambda: ops.concatenate([ops.ravel(self.sums), self.flags]),
            )
            if later is not None:
                return later
        variables = map(ops.convert_to_tensor, (self.sums, self.flags))
        return self._named([*map(self._scalar, self._values_of(*variables))])

    def _logged(self, name: str, state: Any) -> dict[str, float]:
        """Values for the logs of a step; state None is that of variables."""
        shape = tuple(self.sums.shape)

        def compute():
            if state is None:
                sums, flags = self._state()
            else:
                sums, flags = np.split(to_numpy(state), [math.prod(shape)])
            values = self._values_of(sums.reshape(shape), flags)
            named = self._named(values)
            return named if isinstance(named, dict) else {name: named}

        display = Display(self.refresh_every)
        return self._displays.setdefault(name, display).read(compute)

    def _values_of(self, sums: Any, flags: Any) -> list[Any]:
        """Values of a state: of arrays in float64, of tensors as tensors."""
        return self._values(self._readings(sums, flags))

    @property
    def num_invalid(self) -> int:
        """Number of invalid samples that were skipped so far."""
        return int(ops.convert_to_numpy(self.flags)[_INVALID])

    def interval(self, level: float = 0.95) -> Any:
        """Return a confidence interval of the value, from the state alone.

        It assumes independent predictions, and warns if there were pixels of
        images or tokens of sequences: a state of fixed size does not know
        which belong together. `evaluate(Predictions)` takes images as units,
        and `PerImage` has the mean over images. With unequal weights it uses
        the effective number of samples and is approximate.

        Args:
            level: Probability to cover the value of the population, in (0, 1).

        Returns:
            `(low, high)`, in the unit of the value.

        Raises:
            NotImplementedError: If this metric has no interval.
        """
        self._warn_of_pixels()
        quantity, found = QUANTITIES.get(self._quantity), None
        if quantity is not None:
            found = quantity.interval(self._read(), self, level)
        if found is None:
            raise NotImplementedError(
                f"`{type(self).__name__}` has no interval from its state"
            )
        return tuple(map(float, found))

    def _warn_of_pixels(self) -> None:
        if self._of_pixels:
            warn(
                f"`interval` of `{self.name}` takes each pixel or token as "
                "independent, and is too narrow: use `evaluate` with "
                "`Predictions`, which takes images as units, or `PerImage`"
            )

    def get_config(self):
        config = super().get_config() | self.options.of_metric()
        # `mode` of a Keras metric is the direction that is better. States
        # stored before there was a choice are those of the predicted class.
        is_binary = getattr(self.summary, "is_binary", False)
        own = {"mode": "binary"} if is_binary else {}
        return config | self._kept() | own

    def _value(self, readings: Readings) -> Any:
        """The value, or a list of them (array-agnostic)."""
        return QUANTITIES[self._quantity].value(readings, self)

    def _values(self, readings: Readings) -> list[Any]:
        """All values; NaN if samples came and all were invalid."""
        value = self._value(readings)
        value = nan_if_lost(value, readings.num_invalid, readings.sums)
        return value if isinstance(value, list) else [value]

    def _named(self, values: list[Any]) -> Any:
        """What `result` returns of the values."""
        return values[0]

    def _scalar(self, value: Any) -> Any:
        return ops.cast(ops.convert_to_tensor(value), self.dtype)

    def _readings(self, sums: Any, flags: Any) -> Readings:
        return Readings(
            self.summary,
            sums,
            flags[_FRACTIONAL] == 0,
            num_invalid=flags[_INVALID],
            has_all_rows=flags[_WITHOUT_ROWS] == 0,
        )

    def _read(self) -> Readings:
        """The readings of the state so far, on the host."""
        return self._readings(*self._state())

    def _what_is_wrong(self, sums: np.ndarray, flags: np.ndarray) -> Any:
        yield from what_is_wrong(self.name, flags[_INVALID], sums)
        names = getattr(self, "include", (self._quantity,))
        yield from lost_order(self, names, self._readings(sums, flags))

    def _add(
        self,
        added: list[Any],
        weight: Any,
        num_invalid: Any,
        batch: Batch | None = None,
    ) -> None:
        """Add the limbs of parts of a batch, or of top-1 records."""
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
        add_limbs(self, added, flags)

    def _state(self) -> tuple[np.ndarray, np.ndarray]:
        """Sums and flags on the host."""
        sums = ops.convert_to_numpy(self.sums)
        flags = ops.convert_to_numpy(self.flags)
        if flags[_PROBABILITIES] and not self._has_warned:
            self._has_warned = True
            given = self.options.names[1]
            warn(as_logits_message(f"{given}` of `{self.name}"))
        return sums, flags

    def _add_state(self):
        self._add_sums(self.summary.shape)


class Display:
    """What the logs of batches show of a metric under one name.

    Args:
        refresh_every: Steps between two refreshes. None for refreshes at steps
            1, 2, 4, ..., 32 and at every 32nd.
    """

    def __init__(self, refresh_every: int | None):
        self._refresh_every = refresh_every
        self._step = 0
        self._values: dict[str, float] = {}

    def read(self, compute: Callable[[], dict[str, Any]]) -> dict[str, float]:
        """Values for the callbacks of a batch, or new ones for all else."""
        with _LOCK:
            at_batch_end = is_at_batch_end()
            self._step += at_batch_end
            if not at_batch_end or not self._values or self._is_due():
                self._values = {k: float(x) for k, x in compute().items()}
            return self._values

    def _is_due(self) -> bool:
        if self._refresh_every is not None:
            return (self._step - 1) % self._refresh_every == 0
        return self._step % 32 == 0 or self._step & (self._step - 1) == 0

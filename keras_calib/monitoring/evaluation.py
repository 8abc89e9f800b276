"""One pass of a model over a data set: what a logger wants to know of it."""

import hashlib
import itertools
import warnings
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import keras
import numpy as np

from keras_calib.analysis.regularizers import RegularizerHistogram
from keras_calib.analysis.regularizers import flipped_share
from keras_calib.analysis.regularizers import regularizer_histogram
from keras_calib.backend.errors import invalid
from keras_calib.formulas.bins import BinSums
from keras_calib.inputs.checks import class_axis
from keras_calib.inputs.readers import split_objectness
from keras_calib.inputs.readers import standardize_labels
from keras_calib.losses import BatchCoupledLoss
from keras_calib.losses import PerSampleLoss
from keras_calib.numerics.arrays import to_numpy
from keras_calib.predictions.batches import Batch
from keras_calib.predictions.batches import predict_batches
from keras_calib.predictions.collect import labels_of
from keras_calib.predictions.outputs import to_model_logits

__all__ = [
    "DatasetEvaluator",
    "LoggedEpoch",
    "LoggerReading",
    "Measured",
    "Predicted",
    "flips",
]

# An update costs about as much for one prediction as for this many.
_BLOCK = 4096


class LoggerReading(NamedTuple):
    """How a model's labels and outputs are to be read.

    Attributes:
        from_logits: Whether outputs are logits.
        axis: The axis of their classes.
        ignore_class: Class id that does not count, or None.
        objectness: Whether labels are pairs of class id and objectness.
    """

    from_logits: bool
    axis: int
    ignore_class: int | None
    objectness: bool


class LoggedEpoch(NamedTuple):
    """What a `CalibrationLogger` found at the end of an epoch.

    Attributes:
        epoch: Its number, from 0.
        values: By the names that `logs` has them under.
        bins: What the bins of the reliability diagram hold, or None without
            a metric of equal-width bins.
        regularizer: Of the loss, or None without one.
    """

    epoch: int
    values: dict[str, float]
    bins: BinSums | None
    regularizer: RegularizerHistogram | None


class Predicted(NamedTuple):
    """The predicted classes of a data set.

    Attributes:
        classes: Class ids, the samples on the first axis; -1 where the
            label does not count.
        samples: What tells which samples these are: their numbers, or a
            digest of their labels in their order.
        distinct: Whether each sample has a number of its own.
    """

    classes: np.ndarray
    samples: np.ndarray
    distinct: bool


class Measured(NamedTuple):
    """What one pass has found.

    Attributes:
        values: Of the metrics, by name.
        bins: What the bins of the reliability diagram hold, or None.
        regularizer: Of the loss, or None.
        predicted: Or None.
    """

    values: dict[str, float]
    bins: BinSums | None
    regularizer: RegularizerHistogram | None
    predicted: Predicted | None


class DatasetEvaluator:
    """Measures what a model predicts on a data set.

    Args:
        metrics: Keras metrics, whose own state is left alone.
        diagram: A metric with `bins()`, one of these or another, or None.
        loss: The loss whose regulariser is measured, or None.
        reading: How labels and outputs are read.
        histogram: `num_bins` and `limits` of `regularizer_histogram`.
        remembers: Whether predicted classes are kept.
    """

    def __init__(
        self,
        metrics: list[keras.metrics.Metric],
        diagram: Any,
        loss: keras.losses.Loss | Callable | None,
        reading: LoggerReading,
        *,
        histogram: dict[str, Any],
        remembers: bool,
    ):
        self.metrics = metrics
        self.diagram = diagram
        self.loss = loss
        self.reading = reading
        self.histogram = histogram
        self.remembers = remembers
        # A loss of the whole batch is read for the batches as they come.
        self._by_block = isinstance(loss, PerSampleLoss) and not isinstance(
            loss, BatchCoupledLoss
        )

    def measure(
        self,
        model: keras.Model,
        data: Any,
        batch_size: int,
        num_batches: int | None = None,
        output: str | int | None = None,
    ) -> Measured:
        """One pass over the data set, or over its first batches.

        All is NaN, and None, with a warning, if the model predicts NaN or
        infinity.

        Raises:
            ValueError: If labels and outputs cannot be read.
        """
        run = _Run(self)
        batches = itertools.islice(
            predict_batches(model, data, batch_size, output=output),
            num_batches,
        )
        try:
            for block in _joined(run.follow(batches), self.reading.axis):
                run.add(block)
        except _NotFiniteError:
            warnings.warn(
                "The model predicts NaN or infinity: so are its metrics on "
                "this data set",
                RuntimeWarning,
                stacklevel=3,
            )
            return run.nothing()
        return run.result()


class _NotFiniteError(Exception):
    """There is nothing to measure."""


class _Run:
    """What one pass has seen so far."""

    def __init__(self, meter: DatasetEvaluator):
        self.meter = meter
        metrics = list(meter.metrics)
        if meter.diagram is not None and meter.diagram not in metrics:
            metrics.append(meter.diagram)
        self.states = [(x, x.stateless_reset_state()) for x in metrics]
        self.regularizer = None
        self.classes = []
        self.index = []
        self.digest = hashlib.blake2b()
        self.num_batches = 0

    def follow(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches without inputs, and what is to be seen of each."""
        meter = self.meter
        for batch in batches:
            self.num_batches += 1
            # Raises without.
            labels_of(batch)
            batch = _without_inputs(batch)
            class_axis(batch.outputs, meter.reading.axis, "outputs")
            valid = self._valid(batch)
            # False for NaN too; a logit of -inf rules a class out.
            finite = (batch.outputs < np.inf).all(axis=meter.reading.axis)
            if not finite[valid].all():
                raise _NotFiniteError
            if meter.remembers:
                self._remember(batch, valid)
            if meter.loss is not None and not meter._by_block:
                self._regularize(batch)
            yield batch

    def add(self, block: Batch) -> None:
        """Updates the metrics."""
        if self.meter._by_block:
            self._regularize(block)
        weight = block.sample_weight
        if weight is not None and not np.any(weight):
            # Metrics refuse a batch in which nothing counts.
            return
        self.states = [
            (
                metric,
                metric.stateless_update_state(
                    state, block.labels, block.outputs, weight
                ),
            )
            for metric, state in self.states
        ]

    def result(self) -> Measured:
        """All there is."""
        if not self.num_batches:
            raise ValueError(invalid("data must not be empty", batches=0))
        bins = None
        for metric, state in self.states:
            if metric is self.meter.diagram:
                pairs = zip(metric.variables, state, strict=True)
                with keras.StatelessScope(state_mapping=pairs):
                    bins = metric.bins()
        predicted = self._predicted() if self.meter.remembers else None
        return Measured(self._values(), bins, self.regularizer, predicted)

    def nothing(self) -> Measured:
        """The names of the values, each NaN."""
        values = dict.fromkeys(self._values(), float("nan"))
        return Measured(values, None, None, None)

    def _values(self) -> dict[str, float]:
        values = {}
        for metric, state in self.states[: len(self.meter.metrics)]:
            result = metric.stateless_result(state)
            if not isinstance(result, dict):
                result = {metric.name: result}
            for name, value in result.items():
                if name in values:
                    raise ValueError(
                        invalid(
                            "`metrics` must have names of their own", name=name
                        )
                    )
                values[name] = float(value)
        return values

    def _regularize(self, batch: Batch) -> None:
        reading, labels = self.meter.reading, batch.labels
        outputs, axis = batch.outputs, reading.axis
        if outputs.shape[axis] == 1 and reading.ignore_class is None:
            # Of one channel labels may be probabilities: rows of two.
            labels, _ = standardize_labels(labels, outputs, axis=axis)
            labels = np.moveaxis(to_numpy(labels), -1, axis)
        outputs = np.moveaxis(outputs, axis, -1)
        logits = to_numpy(to_model_logits(outputs, reading.from_logits))
        logits = np.moveaxis(logits, -1, axis)
        found = regularizer_histogram(
            self.meter.loss, labels, logits, **self.meter.histogram
        )
        if self.regularizer is not None:
            found = RegularizerHistogram(
                found.counts + self.regularizer.counts,
                found.edges,
                found.num_inactive + self.regularizer.num_inactive,
            )
        self.regularizer = found

    def _valid(self, batch: Batch) -> Any:
        """Where labels count, bool `(batch, ...)`; or an index of all."""
        reading, labels = self.meter.reading, batch.labels
        if reading.ignore_class is None:
            return Ellipsis
        if reading.objectness:
            labels, _, _ = split_objectness(labels, reading.ignore_class)
        _, valid = standardize_labels(
            labels,
            batch.outputs,
            axis=reading.axis,
            ignore_class=reading.ignore_class,
        )
        return to_numpy(valid)

    def _remember(self, batch: Batch, valid: Any) -> None:
        reading, outputs = self.meter.reading, batch.outputs
        axis = reading.axis
        if outputs.shape[axis] == 1:
            bound = 0.0 if reading.from_logits else 0.5
            found = np.squeeze(outputs, axis=axis) > bound
        else:
            found = outputs.argmax(axis=axis)
        dtype = np.min_scalar_type(-outputs.shape[axis] - 1)
        classes = np.full(found.shape, -1, dtype)
        classes[valid] = found[valid]
        self.classes.append(classes)
        self.digest.update(np.ascontiguousarray(batch.labels).tobytes())
        if batch.index is not None:
            self.index.append(batch.index)

    def _predicted(self) -> Predicted:
        alike = len({x.shape[1:] for x in self.classes}) == 1
        samples = np.frombuffer(self.digest.digest(), "uint8")
        if not alike:
            flat = [x.reshape(-1) for x in self.classes]
            return Predicted(np.concatenate(flat), samples, True)
        classes = np.concatenate(self.classes)
        if not self.index:
            return Predicted(classes, samples, True)
        index = np.concatenate(self.index)
        order = np.argsort(index, kind="stable")
        index = index[order]
        distinct = bool((index[1:] != index[:-1]).all())
        return Predicted(classes[order], index, distinct)


def flips(before: Predicted, after: Predicted) -> float:
    """The share of samples that are predicted as another class.

    NaN, with a warning, if these are not the same samples.
    """
    if not (before.distinct and after.distinct):
        problem = "numbers of samples repeat in its index"
    elif before.classes.shape != after.classes.shape:
        problem = "its size has changed"
    elif not np.array_equal(before.samples, after.samples):
        problem = "its samples or their order have changed"
    else:
        return flipped_share(before.classes, after.classes)
    warnings.warn(
        f"No prediction flips can be counted on this data set: {problem}. "
        'Read it in one order, or give its labels as {"label", "index"}.',
        RuntimeWarning,
        stacklevel=2,
    )
    return float("nan")


def _without_inputs(batch: Batch) -> Batch:
    weight = batch.sample_weight
    return batch._replace(
        inputs=None,
        labels=to_numpy(batch.labels),
        sample_weight=None if weight is None else to_numpy(weight),
    )


def _joined(batches: Iterable[Batch], axis: int) -> Iterator[Batch]:
    """Batches put together until they are worth an update."""
    waiting, count = [], 0
    for batch in batches:
        if waiting and _row_shapes(batch) != _row_shapes(waiting[0]):
            yield _concatenated(waiting)
            waiting, count = [], 0
        waiting.append(batch)
        count += batch.outputs.size // max(batch.outputs.shape[axis], 1)
        if count >= _BLOCK:
            yield _concatenated(waiting)
            waiting, count = [], 0
    if waiting:
        yield _concatenated(waiting)


def _row_shapes(batch: Batch) -> list:
    arrays = (batch.labels, batch.outputs, batch.sample_weight)
    return [None if x is None else x.shape[1:] for x in arrays]


def _concatenated(batches: list[Batch]) -> Batch:
    labels = np.concatenate([x.labels for x in batches])
    outputs = np.concatenate([x.outputs for x in batches])
    weight = None
    if batches[0].sample_weight is not None:
        weight = np.concatenate([x.sample_weight for x in batches])
    return Batch(None, labels, None, weight, outputs)

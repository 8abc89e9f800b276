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
from keras_calib.backend.errors import value_error
from keras_calib.formulas.bins import BinSums
from keras_calib.inputs.checks import class_axis
from keras_calib.inputs.options import ReadOptions
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
    "Measured",
    "Predicted",
    "flips",
]

# An update costs about as much for one prediction as for this many.
_BLOCK = 4096


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
        options: How labels and outputs are read.
        histogram: `num_bins` and `limits` of `regularizer_histogram`.
        remembers: Whether predicted classes are kept.
    """

    def __init__(
        self,
        metrics: list[keras.metrics.Metric],
        diagram: Any,
        loss: keras.losses.Loss | Callable | None,
        options: ReadOptions,
        *,
        histogram: dict[str, Any],
        remembers: bool,
    ):
        self.metrics = metrics
        self.diagram = diagram
        self.loss = loss
        self.options = options
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
    ) -> Measured:
        """One pass over the data set, or over its first batches.

        All is NaN, and None, with a warning, if the model predicts NaN or
        infinity.
        """
        self._start()
        batches = itertools.islice(
            predict_batches(
                model, data, batch_size, output=self.options.output
            ),
            num_batches,
        )
        try:
            for block in _joined(self._batches(batches), self.options.axis):
                self._add(block)
        except _NotFiniteError:
            warnings.warn(
                "The model predicts NaN or infinity: so are its metrics on "
                "this data set",
                RuntimeWarning,
                stacklevel=3,
            )
            values = dict.fromkeys(self._values(), float("nan"))
            return Measured(values, None, None, None)
        if not self._num_batches:
            raise value_error("data must not be empty", batches=0)
        predicted = self._predicted() if self.remembers else None
        return Measured(
            self._values(), self._bins(), self._regularizer, predicted
        )

    def _start(self) -> None:
        metrics = list(self.metrics)
        if self.diagram is not None and self.diagram not in metrics:
            metrics.append(self.diagram)
        self._states = [(x, x.stateless_reset_state()) for x in metrics]
        self._regularizer = None
        self._classes, self._index = [], []
        self._digest = hashlib.blake2b()
        self._num_batches = 0

    def _batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches without inputs, and what is to be seen of each."""
        for batch in batches:
            self._num_batches += 1
            weight = batch.sample_weight
            batch = batch._replace(
                inputs=None,
                labels=to_numpy(labels_of(batch)),
                sample_weight=None if weight is None else to_numpy(weight),
            )
            class_axis(batch.outputs, self.options.axis, "outputs")
            valid = self._valid(batch)
            # False for NaN too; a logit of -inf rules a class out.
            finite = (batch.outputs < np.inf).all(axis=self.options.axis)
            if not finite[valid].all():
                raise _NotFiniteError
            if self.remembers:
                self._remember(batch, valid)
            if not self._by_block:
                self._regularize(batch)
            yield batch

    def _add(self, block: Batch) -> None:
        if self._by_block:
            self._regularize(block)
        weight = block.sample_weight
        if weight is not None and not np.any(weight):
            # Metrics refuse a batch in which nothing counts.
            return
        given = block.labels, block.outputs, weight
        self._states = [
            (metric, metric.stateless_update_state(state, *given))
            for metric, state in self._states
        ]

    def _bins(self) -> BinSums | None:
        for metric, state in self._states:
            if metric is self.diagram:
                pairs = zip(metric.variables, state, strict=True)
                with keras.StatelessScope(state_mapping=pairs):
                    return metric.bins()
        return None

    def _values(self) -> dict[str, float]:
        values = {}
        for metric, state in self._states[: len(self.metrics)]:
            result = metric.stateless_result(state)
            if not isinstance(result, dict):
                result = {metric.name: result}
            for name, value in result.items():
                if name in values:
                    raise value_error(
                        "`metrics` must have names of their own", name=name
                    )
                values[name] = float(value)
        return values

    def _regularize(self, batch: Batch) -> None:
        if self.loss is None:
            return
        options, labels, outputs = self.options, batch.labels, batch.outputs
        axis = options.axis
        if outputs.shape[axis] == 1 and options.ignore_class is None:
            # Of one channel labels may be probabilities: rows of two.
            labels, _ = standardize_labels(labels, outputs, axis=axis)
            labels = np.moveaxis(to_numpy(labels), -1, axis)
        outputs = np.moveaxis(outputs, axis, -1)
        logits = to_numpy(to_model_logits(outputs, options.from_logits))
        logits = np.moveaxis(logits, -1, axis)
        found = regularizer_histogram(
            self.loss, labels, logits, **self.histogram
        )
        if (before := self._regularizer) is not None:
            found = RegularizerHistogram(
                found.counts + before.counts,
                found.edges,
                found.num_inactive + before.num_inactive,
            )
        self._regularizer = found

    def _valid(self, batch: Batch) -> Any:
        """Where labels count, bool `(batch, ...)`; or an index of all."""
        options, labels = self.options, batch.labels
        if options.ignore_class is None:
            return Ellipsis
        if options.objectness:
            labels, _, _ = split_objectness(labels, options.ignore_class)
        _, valid = standardize_labels(
            labels,
            batch.outputs,
            axis=options.axis,
            ignore_class=options.ignore_class,
        )
        return to_numpy(valid)

    def _remember(self, batch: Batch, valid: Any) -> None:
        outputs, axis = batch.outputs, self.options.axis
        if outputs.shape[axis] == 1:
            bound = 0.0 if self.options.from_logits else 0.5
            found = np.squeeze(outputs, axis=axis) > bound
        else:
            found = outputs.argmax(axis=axis)
        dtype = np.min_scalar_type(-outputs.shape[axis] - 1)
        classes = np.full(found.shape, -1, dtype)
        classes[valid] = found[valid]
        self._classes.append(classes)
        self._digest.update(np.ascontiguousarray(batch.labels).tobytes())
        if batch.index is not None:
            self._index.append(batch.index)

    def _predicted(self) -> Predicted:
        samples = np.frombuffer(self._digest.digest(), "uint8")
        if len({x.shape[1:] for x in self._classes}) > 1:
            flat = [x.reshape(-1) for x in self._classes]
            return Predicted(np.concatenate(flat), samples, True)
        classes = np.concatenate(self._classes)
        if not self._index:
            return Predicted(classes, samples, True)
        index = np.concatenate(self._index)
        order = np.argsort(index, kind="stable")
        index = index[order]
        distinct = bool((index[1:] != index[:-1]).all())
        return Predicted(classes[order], index, distinct)


class _NotFiniteError(Exception):
    """There is nothing to measure."""


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


def _joined(batches: Iterable[Batch], axis: int) -> Iterator[Batch]:
    """Batches put together until they are worth an update."""
    waiting, count, shapes = [], 0, None
    for batch in batches:
        arrays = batch.labels, batch.sample_weight, batch.outputs
        found = [None if x is None else x.shape[1:] for x in arrays]
        if waiting and (found != shapes or count >= _BLOCK):
            yield _concatenated(waiting)
            waiting, count = [], 0
        shapes = found
        waiting.append(arrays)
        count += batch.outputs.size // max(batch.outputs.shape[axis], 1)
    if waiting:
        yield _concatenated(waiting)


def _concatenated(rows: list[tuple]) -> Batch:
    labels, weight, outputs = (
        None if column[0] is None else np.concatenate(column)
        for column in zip(*rows, strict=True)
    )
    return Batch(None, labels, None, weight, outputs)

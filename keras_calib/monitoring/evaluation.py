"""Evaluation of a model on a data set, in one pass for all values."""

import dataclasses
import hashlib
import itertools
import warnings
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.calibrators.fitting_data import read_predictions
from keras_calib.calibrators.temperature import split_nll
from keras_calib.formulas.bins import BinSums
from keras_calib.functional.comparison import flipped_share
from keras_calib.inputs.checks import class_axis
from keras_calib.inputs.labels import standardize_labels
from keras_calib.inputs.options import ReadOptions
from keras_calib.losses import (
    BatchCoupledLoss,
    PerSampleLoss,
    RegularizerCounts,
    regularizer_histogram,
)
from keras_calib.metrics.reading import read_batch
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.results import Result
from keras_calib.predictions.batches import Examples, merged
from keras_calib.predictions.collect import ModelRun, labels_of, rows_that_count
from keras_calib.predictions.outputs import to_model_logits
from keras_calib.predictions.predictions import Predictions

# Parts of the NLL, which need the logits of the whole data set at once.
PARTS = ("calibration_nll", "refinement_nll")
# Numbers in a block, large as each update has a fixed cost.
_BLOCK = 2**22


class LoggedEpoch(Result):
    """Values that a `CalibrationLogger` measured at the end of an epoch.

    Attributes:
        epoch: Number of the epoch, from 0.
        values: Values by their names in `logs`.
        bins: Sums of the bins of the reliability diagram, or None without a
            metric of equal-width bins.
        regularizer: Histogram of the regulariser of the loss, or None without
            a loss.
    """

    epoch: int
    values: dict[str, float]
    bins: BinSums | None
    regularizer: RegularizerCounts | None


class Predicted(NamedTuple):
    """The predicted classes of a data set, -1 for ignored labels.

    `samples` are the numbers of the samples, or a digest of their labels;
    None if numbers repeat.
    """

    classes: np.ndarray
    samples: np.ndarray | None


@dataclasses.dataclass
class DatasetEvaluator:
    """Evaluates a model on a data set.

    It does not change the states of the metrics. `diagram` is a metric with
    `bins()`, one of `metrics` or another. `loss` is the one whose regulariser
    is measured, with the arguments `histogram` of `regularizer_histogram`.
    `parts` are those of `PARTS` to measure.
    """

    metrics: list[keras.metrics.Metric]
    diagram: Any
    loss: Any
    options: ReadOptions
    histogram: dict[str, Any]
    count_flips: bool
    parts: list[str]

    def measure(
        self, run: ModelRun, *, epoch: int = -1, num_batches: int | None = None
    ) -> tuple[LoggedEpoch, Predicted | None]:
        """One pass of a model over its data, or over their first batches.

        If the model predicts NaN or infinity, it warns and returns NaN for
        each value, and None for the rest.
        """
        shown = [*self.metrics]
        if self.diagram is not None and self.diagram not in shown:
            shown.append(self.diagram)
        self._states = [(x, x.stateless_reset_state()) for x in shown]
        self._regularizer: RegularizerCounts | None = None
        self._held: list[tuple] = []
        self._classes: list[np.ndarray] = []
        self._index: list[np.ndarray] = []
        self._digest = hashlib.blake2b()
        # Other losses may depend on the whole batch, so batches stay as given.
        self._by_block = isinstance(self.loss, PerSampleLoss)
        self._by_block &= not isinstance(self.loss, BatchCoupledLoss)
        batches = itertools.islice(run.examples(), num_batches)
        batches = (self._checked(x)._asdict() for x in batches)
        block = None
        try:
            for block in merged(batches, lambda x: x["outputs"].size / _BLOCK):
                self._add(Examples(**block))
        except _NotFiniteError:
            warnings.warn(
                "The model predicts NaN or infinity, so the logged values "
                "are NaN. Check the loss of this epoch, and lower the "
                "learning rate",
                RuntimeWarning,
                stacklevel=3,
            )
            values = dict.fromkeys([*self._values(), *self.parts], float("nan"))
            return LoggedEpoch(epoch, values, None, None), None
        if block is None:
            raise value_error("`data` must not be empty", batches=0)
        values = self._values() | self._values_of_parts()
        found = values, self._bins(), self._regularizer
        predicted = self._predicted() if self.count_flips else None
        return LoggedEpoch(epoch, *found), predicted

    def _checked(self, batch: Examples) -> Examples:
        """Does what needs single batches; returns the batch without inputs."""
        axis, weight = self.options.axis, batch.sample_weight
        batch = batch._replace(
            inputs=None,
            labels=to_numpy(labels_of(batch)),
            sample_weight=None if weight is None else to_numpy(weight),
        )
        class_axis(batch.outputs, axis, "outputs")
        counts = rows_that_count(batch, self.options)
        valid = Ellipsis if counts is None else counts
        # False for NaN too; -inf is allowed, as it rules a class out.
        if not (batch.outputs < np.inf).all(axis=axis)[valid].all():
            raise _NotFiniteError
        if self.count_flips:
            self._remember(batch, valid)
        if not self._by_block:
            self._regularize(batch)
        return batch

    def _add(self, block: Examples) -> None:
        if self._by_block:
            self._regularize(block)
        weight = block.sample_weight
        if weight is not None and not np.any(weight):
            # Metrics refuse a batch without any weight.
            return
        given = block.labels, block.outputs, weight
        if self.parts:
            self._held.append(_rows(*given, self.options))
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
        values: dict[str, float] = {}
        for metric, state in self._states[: len(self.metrics)]:
            result = metric.stateless_result(state)
            if not isinstance(result, dict):
                result = {metric.name: result}
            if both := sorted({*values} & {*result}):
                raise value_error(
                    "`metrics` must have different names: pass `name=`",
                    names=both,
                )
            values |= {name: float(value) for name, value in result.items()}
        return values

    def _values_of_parts(self) -> dict[str, float]:
        if not self._held:
            return dict.fromkeys(self.parts, 0.0)
        from_logits = self.options.from_logits
        p = Predictions.of_batches(self._held, from_logits=from_logits)
        found = dict(zip(PARTS, split_nll(read_predictions(p)), strict=True))
        return {name: found[name] for name in self.parts}

    def _regularize(self, batch: Examples) -> None:
        if self.loss is None:
            return
        options, labels, outputs = self.options, batch.labels, batch.outputs
        axis = options.axis
        counts = rows_that_count(batch, options)
        if outputs.shape[axis] == 1 and options.ignore_class is None:
            # One-channel labels may be probabilities, which become two classes.
            labels, _ = standardize_labels(
                labels, outputs, axis=axis, mask=counts
            )
            labels = np.moveaxis(to_numpy(labels), -1, axis)
        outputs = np.moveaxis(outputs, axis, -1)
        logits = to_model_logits(
            outputs, options.from_logits, counts, "outputs"
        )
        logits = to_numpy(logits)
        logits = np.moveaxis(logits, -1, axis)
        found = regularizer_histogram(
            self.loss, labels, logits, mask=counts, **self.histogram
        )
        if (before := self._regularizer) is not None:
            found = RegularizerCounts(
                found.counts + before.counts,
                found.edges,
                found.num_inactive + before.num_inactive,
            )
        self._regularizer = found

    def _remember(self, batch: Examples, valid: Any) -> None:
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
        classes = self._classes
        if len({x.shape[1:] for x in classes}) > 1:
            classes = [x.reshape(-1) for x in classes]
        elif self._index:
            index, classes = map(np.concatenate, (self._index, classes))
            order = np.argsort(index, kind="stable")
            index = index[order]
            distinct = (index[1:] != index[:-1]).all()
            return Predicted(classes[order], index if distinct else None)
        samples = np.frombuffer(self._digest.digest(), "uint8")
        return Predicted(np.concatenate(classes), samples)


class _NotFiniteError(Exception):
    """The model predicts NaN or infinity."""


def flips(before: Predicted, after: Predicted) -> float:
    """Share of samples whose predicted class changed.

    NaN, with a warning, if these are not the same samples.
    """
    if before.samples is None or after.samples is None:
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


def _rows(
    labels: Any, outputs: Any, weight: Any, options: ReadOptions
) -> tuple[np.ndarray | None, ...]:
    """Labels, outputs and weights of the rows of a block that count."""
    batch, _ = read_batch(labels, outputs, weight, options)
    keep = to_numpy(batch.mask)
    columns = batch.labels, batch.outputs, batch.weight
    return tuple(None if x is None else to_numpy(x)[keep] for x in columns)

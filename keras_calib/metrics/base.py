"""The base of every streaming metric."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib import exact_sums
from keras_calib.checks import class_axis
from keras_calib.checks import invalid
from keras_calib.inputs import Predictions
from keras_calib.inputs import check_reading
from keras_calib.inputs import possible_labels
from keras_calib.inputs import read_labels
from keras_calib.inputs import read_predictions
from keras_calib.inputs import split_objectness
from keras_calib.masks import keras_mask
from keras_calib.value_checks import check_weight_scale
from keras_calib.weights import broadcast_weight

__all__ = ["StreamingMetric"]


class StreamingMetric(keras.metrics.Metric):
    """Abstract: one pass over predictions into exact integer sums.

    The state is one int32 array of fixed size that merges by addition: any
    split, order and merge of the batches gives the same sums, on any number
    of replicas (but for a confidence that the backend's vector code rounds
    across the edge of a bin in one batch and not in another). A subclass
    names a summary (what is summed) and computes its value from the sums.

    Labels may be class ids `(batch, ...)` or `(batch, ..., 1)`, or one-hot
    or soft labels `(batch, ..., num_classes)`, read as their largest class.
    Predictions are `(batch, ..., num_classes)`, or `(batch, ..., 1)` for the
    second of two classes. The value is 0 before any sample, and NaN once a
    prediction that counts was NaN or (in compiled code, which cannot raise)
    a label impossible.

    Args:
        summary: Has `shape`, and `summarise(batch)` to int32 limbs of that
            shape.
        from_logits: Whether predictions are logits. Confidences that round
            to 1 in float32 are told apart only from logits. Defaults to
            `False`, as in Keras.
        axis: The axis of the classes. Defaults to `-1`.
        ignore_class: Class id of labels that do not count.
        objectness: Whether labels are pairs `(batch, ..., 2)` of class id
            and objectness, as `AdaptiveLabelSmoothing` takes; the metric
            reads the ids. Defaults to `False`.
        name: Name of the metric.
        dtype: Dtype of the result.

    Raises:
        ValueError: On update, if shapes do not fit, and in eager use if
            values are out of range.

    Reference:
        Metrics as states that merge: https://github.com/google/CommonLoopUtils
    """

    def __init__(
        self,
        summary: Any,
        *,
        from_logits: bool = False,
        axis: int = -1,
        ignore_class: int | None = None,
        objectness: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ):
        check_reading(axis, ignore_class)
        super().__init__(name=name, dtype=dtype)
        self.summary = summary
        self.from_logits = from_logits
        self.axis = axis
        self.ignore_class = ignore_class
        self.objectness = objectness
        self.sums = self._add_sums("sums", summary.shape)
        # How many predictions were NaN or labels impossible; how many weights
        # not whole.
        self.odd = self._add_sums("odd", (2,))

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds one batch.

        Args:
            y_true: Labels, see the class.
            y_pred: Predictions, see the class.
            sample_weight: `(batch,)` or of the shape of the class ids, >= 0.
                Whole numbers count as repeats. The largest of a batch must
                lie between 1e-3 and 1e4 (checked in eager use): only ratios
                matter, so divide by the mean where it does not.
        """
        batch = self._read(y_true, y_pred, sample_weight)
        for block in _blocks(batch):
            # Both are known before either is stored.
            odd = self.odd + _count_odd(block)
            sums = self.summary.summarise(block)
            self.odd.assign(odd)
            self.sums.assign(exact_sums.add(self.sums.value, sums))

    def result(self):
        """The value so far, a scalar tensor."""
        value = self._value(ops.convert_to_tensor(self.sums), self._whole())
        nan = ops.full_like(value, float("nan"))
        value = ops.where(ops.equal(self.odd[0], 0), value, nan)
        return ops.cast(value, self.dtype)

    def merge_state(self, metrics: Iterable["StreamingMetric"]) -> None:
        """Adds what other metrics of the same configuration have seen.

        Args:
            metrics: Metrics of this class with equal `get_config()`, save
                for the name; or one of them.

        Raises:
            TypeError: If one is of another class; nothing is added then.
            ValueError: If a configuration differs; nothing is added then.
        """
        metrics = list(metrics) if isinstance(metrics, Iterable) else [metrics]
        own = {**self.get_config(), "name": None}
        for metric in metrics:
            if type(metric) is not type(self):
                raise TypeError(
                    invalid(
                        f"`metrics` must be {type(self).__name__} metrics",
                        type=type(metric).__name__,
                    )
                )
            config = {**metric.get_config(), "name": None}
            if config != own:
                raise ValueError(
                    invalid(
                        "`metrics` must be of one configuration",
                        own=own,
                        other=config,
                    )
                )
        for metric in metrics:
            self.odd.assign(self.odd + metric.odd)
            self.sums.assign(exact_sums.add(self.sums.value, metric.sums.value))

    def get_config(self):
        return {
            **super().get_config(),
            "from_logits": self.from_logits,
            "axis": self.axis,
            "ignore_class": self.ignore_class,
            "objectness": self.objectness,
        }

    def _value(self, sums: Any, whole: Any) -> Any:
        """The value of int32 sums; `whole`: weights are counts so far."""
        raise NotImplementedError

    def _exact_sums(self) -> tuple[np.ndarray, bool]:
        """Sums and `whole` on the host, where formulas run in float64."""
        sums = ops.convert_to_numpy(self.sums)
        return sums, int(ops.convert_to_numpy(self.odd)[1]) == 0

    def _has_nan(self) -> bool:
        return int(ops.convert_to_numpy(self.odd)[0]) > 0

    def _whole(self) -> Any:
        return ops.equal(self.odd[1], 0)

    def _add_sums(self, name, shape):
        return self.add_variable(
            shape=shape,
            initializer="zeros",
            dtype="int32",
            aggregation="sum",
            name=name,
        )

    def _read(self, y_true, y_pred, sample_weight) -> Predictions:
        y_pred = ops.convert_to_tensor(y_pred)
        if self.objectness:
            y_true, _ = split_objectness(y_true, self.ignore_class)
        labels, valid = read_labels(
            y_true, y_pred, axis=self.axis, ignore_class=self.ignore_class
        )
        outputs = read_predictions(
            y_pred, from_logits=self.from_logits, axis=self.axis
        )
        outputs = ops.cast(outputs, "float32")
        num_classes = outputs.shape[-1]
        if len(labels.shape) == len(outputs.shape):
            labels = ops.cast(labels, "float32")
            labels = ops.reshape(labels, (-1, num_classes))
        else:
            labels = ops.reshape(labels, (-1,))
        if sample_weight is not None:
            weight = broadcast_weight(sample_weight, outputs)
            sample_weight = ops.reshape(ops.cast(weight, "float32"), (-1,))
            check_weight_scale(sample_weight)
        mask = keras_mask(y_pred, class_axis(y_pred, self.axis))
        if mask is not None:
            valid = mask if valid is None else ops.logical_and(valid, mask)
        if valid is not None:
            valid = ops.reshape(valid, (-1,))
        return Predictions(
            labels=labels,
            outputs=ops.reshape(outputs, (-1, num_classes)),
            from_logits=self.from_logits,
            weight=sample_weight,
            valid=valid,
            possible=possible_labels(labels, num_classes),
        )


def _count_odd(batch: Predictions) -> Any:
    """int32 `(2,)`: NaN or impossible, and weights that are not whole."""
    nan = ops.any(ops.isnan(batch.outputs), axis=-1)
    nan = ops.logical_or(nan, ops.logical_not(batch.possible))
    if batch.valid is not None:
        nan = ops.logical_and(nan, batch.valid)
    if batch.weight is None:
        fractional = ops.zeros_like(nan)
    else:
        nan = ops.logical_and(nan, batch.weight > 0)
        fractional = ops.not_equal(batch.weight, ops.floor(batch.weight))
    counts = ops.stack([nan, fractional])
    return ops.sum(ops.cast(counts, "int32"), axis=-1)


def _blocks(batch: Predictions) -> Iterable[Predictions]:
    """Parts small enough that sums of base-256 digits fit in int32."""
    count = batch.outputs.shape[0]
    if count is None or count <= exact_sums.MAX_BATCH:
        yield batch
        return
    for start in range(0, count, exact_sums.MAX_BATCH):
        part = slice(start, start + exact_sums.MAX_BATCH)
        fields = batch._asdict()
        del fields["from_logits"]
        yield batch._replace(
            **{k: None if v is None else v[part] for k, v in fields.items()}
        )

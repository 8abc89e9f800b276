"""Base class of models that record a value per training sample."""

from typing import Any, Unpack

import keras
from keras import backend, ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.keras_internals import in_stateless_scope
from keras_calib.backend.late import tensorflow as tf
from keras_calib.backend.replicas import num_replicas
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.labels import narrowed_ids
from keras_calib.inputs.weights import broadcast_weight
from keras_calib.numerics.arrays import as_numbers, shape_of, value_if_eager
from keras_calib.predictions.batches import split_index
from keras_calib.predictions.outputs import reads_logits, to_model_logits
from keras_calib.training.epoch_model import (
    EpochModel,
    KerasOptions,
    refuse_class_weight,
    refuse_several_outputs,
    without_index,
)


@keras.saving.register_keras_serializable(package="keras_calib")
class RecordingModel(EpochModel):
    """Abstract: a model that records a value of each training sample.

    Derive from it when your loss depends on how a sample did in earlier
    epochs. In training `y` is `{"label": labels, "index": numbers}`, with
    numbers in [0, num_samples) that stay with their samples; `with_index`
    adds them to a data set. Evaluation takes plain labels too. A number out
    of range is an error in eager mode, and makes the loss NaN in compiled
    code.

    Args:
        *args: Inputs and outputs, as `keras.Model` takes them.
        num_samples: Number of training samples.
        **kwargs: Other arguments of `keras.Model`.

    Raises:
        TypeError: If a class derives from two such models, each of which
            has a loss of its own.
        ValueError: In training, if `y` has no index, or `class_weight` is
            given: use `sample_weight`. On `train_on_batch` under several
            replicas, each of which would record the batch.

    Reference:
        Moon et al., Confidence-Aware Learning for Deep Neural Networks, ICML
        2020, section 3.3, https://arxiv.org/abs/2007.01458
    """

    def __init__(
        self, *args: Any, num_samples: int, **kwargs: Unpack[KerasOptions]
    ):
        check_integer("num_samples", num_samples, 1)
        _check_one_method(type(self))
        super().__init__(*args, **kwargs)
        self._keep(num_samples=num_samples)

    def begin_training(self, arguments: dict) -> None:
        super().begin_training(arguments)
        refuse_class_weight(arguments)
        data, y = arguments.get("x"), arguments.get("y")
        index = None
        if hasattr(data, "set_epoch"):
            index = getattr(data, "index", None)
        elif isinstance(y, dict):
            _, index = split_index(y)
        if index is not None:
            checked_index(index, self.num_samples)

    def train_on_batch(self, *args, **kwargs):
        """Trains as `keras.Model.train_on_batch` does, on one replica only."""
        strategy = getattr(self, "distribute_strategy", None)
        if strategy is not None and strategy.num_replicas_in_sync > 1:
            raise value_error(
                "`train_on_batch` must not be used under several replicas, "
                "each of which would record the whole batch: use `fit`",
                num_replicas=strategy.num_replicas_in_sync,
            )
        return super().train_on_batch(*args, **kwargs)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        labels, index = split_index(y)
        _, sample_weight = without_index(y, sample_weight)
        refuse_several_outputs(y_pred)
        if training and index is None:
            raise value_error(
                '`y` must be {"label": labels, "index": numbers of the '
                "samples} in training",
                y=type(y).__name__,
            )
        if not training:
            return self.evaluated_loss(x, labels, y_pred, sample_weight)
        index, known = checked_index(index, self.num_samples)
        loss = self.recorded_loss(x, labels, index, y_pred, sample_weight)
        if not self.postpones:
            self.remember_batch(y, y_pred, sample_weight)
        return ops.where(ops.all(known), loss, float("nan"))

    def remember_batch(self, y: Any, y_pred: Any, sample_weight: Any) -> None:
        super().remember_batch(y, y_pred, sample_weight)
        labels, index = split_index(y)
        _, sample_weight = without_index(y, sample_weight)
        self.remember(labels, index, ops.stop_gradient(y_pred), sample_weight)

    def recorded_loss(self, x, labels, index, y_pred, sample_weight):
        """The loss of a training batch, computed with the record."""
        raise NotImplementedError

    def remember(self, labels, index, y_pred, sample_weight):
        """Updates the record, the same on each replica."""

    def _seen(self, index, logits, sample_weight):
        """int32 numbers `(batch,)`, and which of them are to be recorded."""
        index, known = checked_index(index, self.num_samples)
        weight = weight_of_samples(sample_weight, logits)
        return index, ops.logical_and(weight > 0, known)

    def plain_loss(self, x, labels, y_pred, sample_weight):
        """The compiled loss of a training batch."""
        return super().compute_loss(
            x, labels, y_pred, sample_weight, training=True
        )

    def evaluated_loss(self, x, labels, y_pred, sample_weight):
        """The loss of a batch in evaluation."""
        return super().compute_loss(
            x, labels, y_pred, sample_weight, training=False
        )


def check_one_row_each(y_pred: Any) -> None:
    """Raises ValueError unless outputs are a row of classes per sample."""
    if len(y_pred.shape) != 2:
        raise value_error(
            "outputs must have shape (batch, num_classes): the record is of "
            "samples, not of pixels",
            **{"y_pred.shape": shape_of(y_pred)},
        )


def classified(model: keras.Model, y_pred: Any) -> Any:
    """Logits `(batch, num_classes)` from the outputs of a compiled model."""
    check_one_row_each(y_pred)
    return to_model_logits(y_pred, reads_logits(model), name="y_pred")


def weight_of_samples(sample_weight: Any, logits: Any) -> Any:
    """Weights `(batch,)`, 1 where none are given."""
    if sample_weight is None:
        return ops.ones_like(logits[:, 0])
    return ops.cast(broadcast_weight(sample_weight, logits), "float32")


def _check_one_method(cls: type) -> None:
    """Raises if two classes, neither derived from the other, record."""
    own = [c for c in cls.__mro__ if "recorded_loss" in vars(c)]
    own = [c for c in own if c is not RecordingModel]
    for later in own:
        if not issubclass(own[0], later):
            raise type_error(
                "a model must have only one base class that records samples: "
                "each brings a loss of its own",
                classes=[c.__name__ for c in (own[0], later)],
            )


def checked_index(index: Any, num_samples: int) -> tuple[Any, Any]:
    """int32 numbers `(batch,)`, 0 if out of range, and which are in range.

    Raises ValueError in eager mode if one is out of range.
    """
    given = as_numbers(index, "index")
    index = ops.reshape(narrowed_ids(given, num_samples), (-1,))
    known = index >= 0
    # In a graph a constant has values, and what is computed of it has none.
    values, right = value_if_eager(given), value_if_eager(known)
    if values is not None and right is not None and not right.all():
        raise value_error(
            "`index` must hold numbers in [0, num_samples)",
            minimum=int(values.min()),
            maximum=int(values.max()),
            num_samples=num_samples,
        )
    return ops.where(known, index, ops.zeros_like(index)), known


def read_at(record: Any, index: Any) -> Any:
    """The values `(batch,)` of a variable at an int32 index in range."""
    if _changes_in_place(record):
        # Reading a whole variable that changes in place would copy it.
        return record.value.sparse_read(index)
    return ops.take(ops.convert_to_tensor(record), index)


def add_at(record: Any, index: Any, values: Any) -> None:
    """Adds values `(batch,)` at an index, in which numbers may repeat."""
    values = ops.cast(values, record.dtype)
    if _changes_in_place(record):
        record.value.scatter_add(tf.IndexedSlices(values, index))
    else:
        record.assign(_added(ops.convert_to_tensor(record), index, values))


def set_at(record: Any, index: Any, values: Any, chosen: Any) -> None:
    """Sets values where `chosen`; repeated samples get their mean."""
    chosen = ops.cast(chosen, record.dtype)
    change = ops.cast(values, record.dtype) - read_at(record, index)
    # How many of the batch have the same number.
    group = ops.searchsorted(ops.sort(index), index)
    times = ops.take(_added(ops.zeros_like(chosen), group, chosen), group)
    add_at(record, index, chosen * change / ops.maximum(times, 1.0))


def _added(x: Any, index: Any, values: Any) -> Any:
    if backend.backend() == "tensorflow":
        return tf.tensor_scatter_nd_add(x, ops.expand_dims(index, -1), values)
    if backend.backend() == "jax":
        return x.at[index].add(values)
    return x.index_add(0, index, values)


def _changes_in_place(record: Any) -> bool:
    """Whether a few values change in place, as JAX does by itself."""
    if backend.backend() != "tensorflow" or num_replicas() > 1:
        return False
    value = record.value
    # A strategy of one replica mirrors the variable too.
    mirrored = isinstance(value, tf.distribute.DistributedValues)
    plain = isinstance(value, tf.Variable) and not mirrored
    return plain and not in_stateless_scope()

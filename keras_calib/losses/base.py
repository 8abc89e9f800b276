"""The base of every loss that is a sum over samples."""

import inspect
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_calib.backend.errors import invalid
from keras_calib.backend.keras_internals import keras_mask
from keras_calib.backend.replicas import num_replicas
from keras_calib.backend.replicas import sum_over_replicas
from keras_calib.inputs.checks import check_some_classes
from keras_calib.inputs.checks import class_axis
from keras_calib.inputs.options import check_reading
from keras_calib.inputs.readers import soft_labels
from keras_calib.inputs.readers import standardize_labels
from keras_calib.inputs.readers import standardize_predictions
from keras_calib.inputs.readers import valid_labels_mask
from keras_calib.inputs.rows import LOOSE_TOLERANCE
from keras_calib.inputs.rows import check_row_sums
from keras_calib.inputs.rows import sums_to_1
from keras_calib.inputs.rows import warn_by_operation
from keras_calib.inputs.rows import warn_of_probabilities
from keras_calib.inputs.values import is_integer
from keras_calib.inputs.weights import broadcast_weight
from keras_calib.numerics.arrays import as_numbers
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.arrays import value_if_eager
from keras_calib.numerics.softmax import to_logits

__all__ = ["PerSampleLoss", "check_hyperparameters", "mask_losses"]


class PerSampleLoss(keras.losses.Loss):
    """Abstract: a pure function of soft labels and logits, as a Keras loss.

    A subclass names its function and its hyperparameters once; reading of
    labels, weights, ignored classes and the configuration live here.

    Labels may be class ids `(batch, ...)` or `(batch, ..., 1)`, or one-hot
    or soft labels `(batch, ..., num_classes)`; they count as constants of
    the derivative. Predictions are `(batch, ..., num_classes)`, or
    `(batch, ..., 1)` for the second of two classes, read as the logits
    `[0, z]`. Computed in float32 under every precision policy.

    Under a distribution strategy a mean is that over the batch of all
    replicas, however unevenly labels that count are spread over them.

    Compiled code cannot raise. There an impossible label (an id out of
    range, a row that does not sum to 1) makes the loss NaN, and so do
    probabilities that do not sum to 1 within 0.03: above all the outputs of
    a model of logits whose loss lacks `from_logits=True`. On TensorFlow the
    last layer of the model tells, and is warned of once. In eager use both
    raise, and logits that look like probabilities are warned of once.

    Args:
        fn: `fn(labels, logits, **hyperparameters)`, soft labels and logits
            `(..., num_classes)` to losses `(...)`.
        from_logits: Whether predictions are logits. Probabilities are taken
            as the logits log p. Defaults to `False`, as in Keras.
        axis: The axis of the classes. Defaults to `-1`.
        ignore_class: Class id of labels that do not count, as 255 in
            segmentation; means divide by the number of labels that do.
        reduction: As in `keras.losses.Loss`.
        name: Name of the loss.
        dtype: `"float64"`, or anything else for float32: losses are not
            computed in half precision, which would round class ids too.
        **hyperparameters: Keyword arguments of `fn`.

    Raises:
        TypeError: If `fn` has no argument of the name of a hyperparameter,
            or `from_logits` is no bool; on call, if an array is masked,
            ragged, complex or not of numbers.
        ValueError: On call, if shapes do not fit, and in eager use if class
            ids are out of range or rows of labels or of probabilities do not
            sum to 1.

    Reference:
        Keras' own losses have the same two parts, a function and a class:
        https://keras.io/api/losses/
    """

    # A loss that a soft label would mean nothing to refuses it.
    needs_hard_labels = False
    # Labels are pairs of class id and objectness.
    takes_objectness = False
    # Labels bring a factor of the regulariser, which data sets do not have.
    needs_penalty_mask = False
    # Means are over the batch of all replicas.
    spans_replicas = True

    def __init__(
        self,
        fn: Callable,
        *,
        from_logits: bool = False,
        axis: int = -1,
        ignore_class: int | None = None,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: Any = None,
        **hyperparameters: Any,
    ):
        check_hyperparameters(fn, hyperparameters)
        check_reading(axis, ignore_class, from_logits)
        dtype = keras.dtype_policies.get(dtype or keras.config.floatx())
        is_double = dtype.compute_dtype == "float64"
        super().__init__(
            name=name,
            reduction=reduction,
            dtype="float64" if is_double else "float32",
        )
        self.fn = fn
        self.from_logits = from_logits
        self.axis = axis
        self.ignore_class = ignore_class
        self.hyperparameters = hyperparameters
        # Whether predictions were seen to be what `from_logits` says.
        self._has_seen_logits = False
        # Whether a traced graph was warned of.
        self._has_told = False

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_true = ops.convert_to_tensor(as_numbers(y_true, "y_true"))
        y_pred = ops.convert_to_tensor(as_numbers(y_pred, "y_pred"))
        if sample_weight is not None:
            sample_weight = ops.cast(
                broadcast_weight(sample_weight, y_pred, self.axis), self.dtype
            )
        check_some_classes("y_pred", y_pred)
        if is_integer(y_pred):
            y_pred = ops.cast(y_pred, self.dtype)
        y_pred, valid = self._valid(y_true, y_pred)
        if valid is not None:
            valid = ops.cast(valid, self.dtype)
        self._check_outputs(y_pred, _product(valid, sample_weight))
        if 0 in shape_of(y_pred) and num_replicas() == 1:
            # No samples; 0, in which the predictions still take part.
            standardize_labels(
                self.split_labels(y_true)[0], y_pred, axis=self.axis
            )
            losses = ops.cast(ops.sum(y_pred, axis=self.axis), self.dtype)
            is_whole = self.reduction in (None, "none")
            return losses if is_whole else ops.sum(losses)
        if num_replicas() > 1 and self.reduction not in (None, "none", "sum"):
            return self._mean_of_replicas(y_true, y_pred, valid, sample_weight)
        weight = sample_weight
        if valid is not None:
            weight = _product(self._valid_weight(valid), sample_weight)
        y_true = self._join(y_true, _product(valid, sample_weight))
        return super().__call__(y_true, y_pred, weight)

    def call(self, y_true, y_pred):
        """Losses of shape `(batch, ...)`; 0 where the label is ignored."""
        labels, beside = self.split_labels(y_true)
        labels, logits, valid, possible = self._read(labels, y_pred)
        if valid is not None:
            beside = {
                name: ops.where(valid, x, ops.zeros_like(x))
                for name, x in beside.items()
            }
        losses = self.fn(labels, logits, **beside, **self.hyperparameters)
        return mask_losses(losses, valid, possible)

    def split_labels(self, y_true):
        """Labels, and what travels with them as keyword arguments of `fn`."""
        return y_true, {}

    def get_config(self):
        return {
            **super().get_config(),
            "dtype": self.dtype,
            "from_logits": self.from_logits,
            "axis": self.axis,
            "ignore_class": self.ignore_class,
            **self.hyperparameters,
        }

    def _check_outputs(self, y_pred, weight):
        """Looks whether these are what `from_logits` says.

        In eager use at the values, in a graph at what made them.
        """
        if self.from_logits and self._has_seen_logits:
            return
        if self.axis not in (-1, len(y_pred.shape) - 1):
            y_pred = ops.moveaxis(y_pred, self.axis, -1)
        if not self._has_told:
            self._has_told = warn_by_operation(
                y_pred, "y_pred", self.from_logits
            )
        if self.from_logits:
            self._has_seen_logits = warn_of_probabilities(y_pred, "y_pred")
            return
        counts = None if weight is None else weight > 0
        check_row_sums(y_pred, "y_pred", counts)

    def _read(self, y_true, y_pred):
        """Soft labels, logits, where they count (or None), and can be."""
        labels, valid = standardize_labels(
            y_true, y_pred, axis=self.axis, ignore_class=self.ignore_class
        )
        logits = standardize_predictions(
            y_pred,
            from_logits=self.from_logits,
            axis=self.axis,
            counts=valid,
        )
        num_classes = logits.shape[-1]
        possible = valid_labels_mask(
            labels, num_classes, hard=self.needs_hard_labels
        )
        if not self.from_logits:
            if value_if_eager(possible) is None:
                # Rows that count were checked where that can be seen.
                possible = ops.logical_and(
                    possible, sums_to_1(logits, LOOSE_TOLERANCE)
                )
            logits = to_logits(logits)
        labels = soft_labels(labels, num_classes, logits.dtype)
        if valid is not None:
            # Not by weight 0 alone: an ignored NaN times 0 is NaN.
            shown = ops.expand_dims(valid, -1)
            logits = ops.where(shown, logits, ops.zeros_like(logits))
        return ops.stop_gradient(labels), logits, valid, possible

    def _valid(self, y_true, y_pred):
        """Predictions, and where they count by label and by Keras' mask."""
        valid = None
        if self.ignore_class is not None:
            labels, _ = self.split_labels(y_true)
            _, valid = standardize_labels(
                labels, y_pred, axis=self.axis, ignore_class=self.ignore_class
            )
        mask = keras_mask(y_pred, class_axis(y_pred, self.axis))
        if mask is not None:
            # Counted here, so Keras must not count it once more.
            valid = mask if valid is None else ops.logical_and(valid, mask)
            y_pred = ops.copy(y_pred)
        return y_pred, valid

    def _join(self, y_true, sample_weight):
        """What `call` gets as labels; one that needs weights adds them."""
        return y_true

    def _mean_of_replicas(self, y_true, y_pred, valid, sample_weight):
        """The mean over the batch of all replicas.

        Each returns its share, as Keras sums gradients. Keras itself takes
        the mean of the replicas' means, another number wherever labels that
        count, weights or examples are unevenly spread.
        """
        weight = _product(valid, sample_weight)
        y_true = self._join(y_true, weight)
        y_true, y_pred = keras.tree.map_structure(
            lambda x: ops.convert_to_tensor(x, dtype=self.dtype),
            (y_true, y_pred),
        )
        losses = ops.cast(self.call(y_true, y_pred), self.dtype)
        divisor = ops.ones_like(losses) if valid is None else valid
        if self.reduction == "mean_with_sample_weight" and weight is not None:
            divisor = weight
        total, count = sum_over_replicas(
            [ops.sum(_product(losses, weight)), ops.sum(divisor)]
        )
        return ops.divide_no_nan(total, count) / num_replicas()

    def _valid_weight(self, valid):
        """Weights that leave ignored labels out of sums and of means."""
        if self.reduction not in ("mean", "sum_over_batch_size"):
            return valid
        # Keras divides by the number of labels; by the valid ones here.
        count = ops.sum(ops.ones_like(valid))
        return valid * ops.divide_no_nan(count, ops.sum(valid))


def _product(x: Any, y: Any) -> Any:
    """The product of two tensors, of which None stands for ones."""
    if x is None or y is None:
        return x if y is None else y
    return x * y


def mask_losses(losses: Any, valid: Any, possible: Any) -> Any:
    """Losses, NaN where a label can not be and 0 where it does not count."""
    losses = ops.where(possible, losses, ops.full_like(losses, float("nan")))
    if valid is not None:
        losses = ops.where(valid, losses, ops.zeros_like(losses))
    return losses


def check_hyperparameters(fn: Callable, hyperparameters: dict) -> None:
    """Raises if a function has no such keyword arguments.

    Raises:
        TypeError: If it has not.
    """
    parameters = inspect.signature(fn).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = {p.name for p in parameters}
    unknown = sorted(set(hyperparameters) - known)
    if unknown:
        raise TypeError(
            invalid(
                f"{', '.join(f'`{name}`' for name in unknown)} must be an "
                f"argument of {getattr(fn, '__name__', fn)}",
                **{name: hyperparameters[name] for name in unknown},
            )
        )

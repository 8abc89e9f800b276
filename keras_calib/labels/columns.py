"""Several labels at once: targets and outputs `(batch, ..., labels)`.

Each label is a two-class problem of its own, of the one output `(..., 1)` that
every reader knows. Losses, metrics, calibrators and selectors read them here.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import backend, ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.keras_internals import keras_mask, set_keras_mask
from keras_calib.inputs.checks import check_integer, check_not_empty, check_rank
from keras_calib.inputs.labels import is_ignored
from keras_calib.inputs.values import Rule, Rules, as_check, is_integer
from keras_calib.inputs.weights import (
    read_masked,
    standardize_weights,
    weight_of_rows,
)
from keras_calib.numerics.arrays import (
    array_namespace,
    as_array,
    as_numbers,
    at_least_float32,
    cast,
    fits,
    safe_divide,
    shape_of,
)
from keras_calib.predictions.outputs import to_model_logits
from keras_calib.predictions.predictions import Predictions

# How the labels of an example become one confidence.
EXAMPLES = ("worst", "mean")

_MISSING = (
    "give missing labels a class of their own, such as -1, and name it in "
    "`ignore_class`, or give them a weight of 0"
)


class LabelColumns(NamedTuple):
    """Labels of a whole data set by column, as NumPy arrays.

    Attributes:
        labels: Labels in [0, 1], `(n, labels)`; 0 where they are missing.
        outputs: Logits or probabilities `(n, labels)`.
        weight: Weights `(n, labels)`, 0 where labels are missing; None for
            weights of 1 and no missing labels.
        present: False for missing labels, `(n, labels)`; None for none.
        lead: The axes before that of the labels, which rows are made of.
    """

    labels: np.ndarray
    outputs: np.ndarray
    weight: np.ndarray | None = None
    present: np.ndarray | None = None
    lead: tuple[int, ...] = ()

    @property
    def num_labels(self) -> int:
        """Number of columns."""
        return self.labels.shape[-1]

    def column(
        self, index: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Labels `(m,)`, outputs `(m, 1)` and weights `(m,)` that are there."""
        labels, outputs = self.labels[:, index], self.outputs[:, index, None]
        weight = None if self.weight is None else self.weight[:, index]
        if self.present is None:
            return labels, outputs, weight
        kept = self.present[:, index]
        if weight is not None:
            weight = weight[kept]
        return labels[kept], outputs[kept], weight

    def pooled(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The entries of all columns as one, in the form of `column`."""
        *tables, _ = self
        tall: list[Any] = [
            None if x is None else x.reshape(-1, 1) for x in tables
        ]
        return LabelColumns(*tall).column(0)


def as_entries(
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
    num_labels: int | None = None,
) -> tuple[Any, Any, Any]:
    """Labels `(batch, ..., labels)` and outputs `(batch, ..., labels, 1)`.

    Every entry is then a sample with one output, as losses and metrics read
    it. NumPy arrays stay such. A single label may lack its axis, and one of
    weight 0 may have any value. Weights may be `(batch,)` too.
    """
    mask = keras_mask(y_pred, len(getattr(y_pred, "shape", ())))
    y_true, y_pred = as_numbers(y_true, "y_true"), as_numbers(y_pred, "y_pred")
    y_true = _fitting(y_true, y_pred, num_labels, ("y_true", "y_pred"))
    if not is_integer(y_true):
        _check_known(y_true, sample_weight, "y_true")
    if sample_weight is not None:
        # Whoever reads the entries enforces the rules of weights.
        weight = standardize_weights(
            sample_weight, shape_of(y_pred), rules=Rules(False)
        )
        y_true = at_least_float32(y_true, "y_true")
        y_true = ops.where(ops.equal(weight, 0), ops.zeros_like(y_true), y_true)
    y_pred = array_namespace(y_pred).expand_dims(y_pred, -1)
    if mask is not None:
        y_pred = ops.convert_to_tensor(y_pred)
        mask = ops.broadcast_to(mask, ops.shape(y_pred)[:-1])
        set_keras_mask(y_pred, mask)
    return y_true, y_pred, sample_weight


def read_columns(
    labels: Any,
    outputs: Any,
    *,
    sample_weight: Any = None,
    ignore_class: int | None = None,
    num_labels: int | None = None,
    name: str = "outputs",
) -> LabelColumns:
    """Read a whole data set of several labels, each a column of its own.

    Outputs are `(n, ..., labels)`, and errors call them `name`; their values
    are left to those who read a column, `(n, 1)`. Labels are in [0, 1], or the
    ignored class, of that shape; a single one also `(n, ...)`. Weights are
    `(n,)` or `(n, ..., labels)`, and labels of weight 0 are missing.
    """
    labels = as_array(labels, "labels")
    outputs, sample_weight = read_masked(
        outputs, name, sample_weight, by_label=True
    )
    labels = _fitting(labels, outputs, num_labels, ("labels", name))
    check_not_empty(name, outputs)
    if ignore_class is not None:
        check_integer("ignore_class", ignore_class)
    *lead, size = outputs.shape
    weight = present = None
    if sample_weight is not None:
        weight = weight_of_rows(sample_weight, outputs.shape)
        weight = weight.reshape(-1, size)
        present = weight > 0
    labels, outputs = labels.reshape(-1, size), outputs.reshape(-1, size)
    if ignore_class is not None:
        shown = ~is_ignored(labels, ignore_class)
        present = shown if present is None else present & shown
    if present is not None:
        labels = np.where(present, labels, np.zeros_like(labels))
    _check_known(labels, None, "labels")
    inside = (labels >= 0) & (labels <= 1)
    if not inside.all():
        raise value_error(
            f"`labels` must lie in [0, 1] for each label; {_MISSING}",
            minimum=labels.min().item(),
            maximum=labels.max().item(),
        )
    if present is not None and present.all():
        present = None
    if present is not None:
        if not present.any():
            raise value_error(
                "`labels` must hold a label that is not missing",
                ignore_class=ignore_class,
            )
        if weight is not None:
            weight = np.where(present, weight, 0.0)
    return LabelColumns(labels, outputs, weight, present, tuple(lead))


def names_of(given: Predictions, names: Any) -> tuple[str, ...] | None:
    """Names of the labels: those that were given, or of the `Predictions`."""
    if names is None:
        names = check_class_names(given.class_names, None)
    return names


def columns_of(given: Predictions, names: Sequence[str] | None) -> LabelColumns:
    """The columns of logits of `Predictions`, of as many labels as names."""
    return read_columns(
        given.labels,
        given.logits,
        sample_weight=given.sample_weight,
        ignore_class=given.ignore_class,
        num_labels=None if names is None else len(names),
        name="logits",
    )


def over_labels(x: Any, counted: Any, example: str) -> Any:
    """The least or the mean of x over the labels that count, `(...)`.

    It is array-agnostic. An example without any such label gets 0. `example` is
    `"worst"` for the least or `"mean"`.
    """
    xp = array_namespace(x)
    if example == "mean":
        shown = xp.where(counted, x, xp.zeros_like(x))
        number = xp.sum(
            cast(counted, backend.standardize_dtype(shown.dtype)), axis=-1
        )
        return safe_divide(xp.sum(shown, axis=-1), number)
    shown = xp.where(counted, x, xp.full_like(x, float("inf")))
    least = xp.min(shown, axis=-1)
    some = xp.any(counted, axis=-1)
    return xp.where(some, least, xp.zeros_like(least))


def check_class_names(
    names: Sequence[str] | None, num_labels: int | None
) -> tuple[str, ...] | None:
    """Return names of the labels, which must differ and be one for each."""
    if names is None:
        return None
    alone = isinstance(names, str) or not isinstance(names, Sequence)
    if alone or not all(isinstance(name, str) for name in names):
        raise type_error(
            "`class_names` must be a list of strings", class_names=names
        )
    if len(set(names)) != len(names) or num_labels not in (None, len(names)):
        raise value_error(
            "`class_names` must be one name for each label, all different",
            class_names=list(names),
            num_labels=num_labels,
        )
    return tuple(names)


def check_label_weights(
    name: str, weights: Any, num_labels: int | None
) -> tuple[float, ...]:
    """Return weights of the labels: one for each, finite, >= 0, not all 0."""
    array = as_array(weights, name, "float64")
    right = array.ndim == 1 and num_labels in (None, len(array))
    with np.errstate(invalid="ignore"):
        right = right and bool(np.isfinite(array).all() and (array >= 0).all())
    if not right or not array.any():
        raise value_error(
            f"`{name}` must be one number for each label, finite, >= 0 and "
            "not all 0",
            **{name: array.tolist(), "num_labels": num_labels},
        )
    return tuple(array.tolist())


@as_check
def _check_known(labels: Any, weight: Any, name: str) -> Rule:
    """Labels must not be NaN, but where they have a weight of 0."""
    xp = array_namespace(labels)
    known = xp.equal(labels, labels)
    if weight is not None:
        weight = standardize_weights(
            weight, shape_of(labels), rules=Rules(False)
        )
        known = ops.logical_or(known, ops.equal(weight, 0))
        xp = ops

    def fail():
        raise value_error(
            f"`{name}` must not contain NaN: {_MISSING}",
            **{f"{name}.shape": shape_of(labels)},
        )

    return Rule(xp.all(known), fail)


def _fitting(
    labels: Any, outputs: Any, num_labels: int | None, names: tuple[str, str]
) -> Any:
    """Labels of the shape of outputs `(batch, ..., labels)`."""
    check_rank(names[1], outputs, 2, "(batch, ..., labels)")
    shape, given = shape_of(outputs), shape_of(labels)
    if num_labels is not None and shape[-1] not in (None, num_labels):
        raise value_error(
            f"`{names[1]}` must have `num_labels` labels",
            num_labels=num_labels,
            **{f"{names[1]}.shape": shape},
        )
    if shape[-1] == 1 and fits(given, shape[:-1]):
        labels, given = array_namespace(labels).expand_dims(labels, -1), shape
    if not fits(given, shape):
        raise value_error(
            f"`{names[0]}` must have the shape of `{names[1]}`, with 0 or 1 "
            "for each label; class ids of one label need no `MultiLabel`",
            **{f"{names[0]}.shape": given, f"{names[1]}.shape": shape},
        )
    return labels


def place_of_label(label: Any, names: Sequence[str]) -> int:
    """The column of a label, of its name or number."""
    if label in names:
        return list(names).index(label)
    is_number = type(label) is int or isinstance(label, np.integer)
    if not is_number or label not in range(len(names)):
        raise value_error(
            "`label` must be the number or name of a label",
            label=label,
            labels=list(names[:10]),
        )
    return int(label)


def label_logits(outputs: Any, from_logits: bool) -> Any:
    """A model's outputs `(batch, ..., labels)` as logits of each label.

    A probability p becomes log(p / (1 - p)), as that of one output does.
    """
    if from_logits:
        return ops.cast(outputs, "float32")
    outputs = ops.expand_dims(outputs, -1)
    pairs = to_model_logits(outputs, from_logits)
    return pairs[..., 1] - pairs[..., 0]

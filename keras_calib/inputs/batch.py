"""Labels, predictions and weights of a batch or a data set, in one form."""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.backend.keras_internals import keras_mask
from keras_calib.inputs import rows
from keras_calib.inputs.checks import check_flag, check_not_empty, class_axis
from keras_calib.inputs.options import ReadOptions, check_reading
from keras_calib.inputs.readers import (
    possible_labels,
    split_objectness,
    standardize_labels,
    standardize_predictions,
)
from keras_calib.inputs.values import (
    Rule,
    are_allowed,
    check_allowed,
    check_probabilities,
    has_values,
    is_integer,
)
from keras_calib.inputs.votes import standardize_votes
from keras_calib.inputs.weights import (
    broadcast_weight,
    read_masked,
    weight_of_rows,
)
from keras_calib.numerics.arrays import as_array, as_numbers, to_numpy
from keras_calib.numerics.row_blocks import RowFacts, block_slices, read_rows
from keras_calib.numerics.softmax import to_logits

__all__ = [
    "Batch",
    "both",
    "standardize",
    "standardize_arrays",
    "standardize_logits",
]


class Batch(NamedTuple):
    """Labels, predictions and weights after they were read and checked."""

    labels: Any  # int32 ids, or soft rows with the classes last
    outputs: Any  # logits or probabilities, classes last
    from_logits: bool
    weight: Any = None  # None for weights of 1
    mask: Any = None  # False for samples to leave out; None for none
    objectness: Any = None  # share of the image that the object covers
    label_mask: Any = None  # False for impossible labels; None if not checked
    facts: RowFacts | None = None  # of the outputs, if they were read
    votes: bool = False  # whether labels are shares of votes

    @property
    def counted(self) -> Any:
        """False for samples to leave out or of weight 0; None for none."""
        weight = self.weight
        return both(self.mask, None if weight is None else weight != 0)

    def with_logits(
        self, dtype: str, rules: list[Rule], hard: bool = False
    ) -> "Batch":
        """The batch for losses: logits, and labels as constants in range.

        Logits of samples that do not count stay as they are.
        """
        logits = self.outputs
        num_classes = logits.shape[-1]
        label_mask = possible_labels(
            self, rules, counts=self.counted, hard=hard
        )
        if not self.from_logits:
            if not has_values(logits):
                label_mask = ops.logical_and(label_mask, rows.sums_to_1(logits))
            logits = to_logits(logits)
        logits = ops.cast(logits, dtype)
        if is_integer(self.labels):
            # Devices differ in what they read at an impossible id.
            labels = ops.clip(self.labels, 0, num_classes - 1)
        else:
            labels = ops.cast(self.labels, dtype)
        weight = self.weight
        if weight is not None:
            weight = ops.cast(weight, dtype)
        return self._replace(
            labels=ops.stop_gradient(labels),
            outputs=logits,
            from_logits=True,
            weight=weight,
            label_mask=label_mask,
        )


def standardize(
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    options: ReadOptions,
    rules: list[Rule],
    *,
    skip_weightless: bool = False,
) -> Batch:
    """Read one batch `(batch, ...)` of a loss or metric.

    The rules of values are appended to `rules`, for the caller to `enforce`.
    With `skip_weightless`, samples of weight 0 may hold anything.
    """
    given = y_pred
    y_pred = ops.convert_to_tensor(as_numbers(y_pred, "y_pred"))
    axis = class_axis(y_pred, options.axis)
    objectness = weight = None
    if options.objectness:
        y_true, objectness, _ = split_objectness(
            y_true, options.ignore_class, rules
        )
    user_mask = counts = keras_mask(given, len(y_pred.shape) - 1)
    if sample_weight is not None:
        weight = broadcast_weight(sample_weight, y_pred, axis, rules)
        if skip_weightless:
            # Weights have a rule of their own.
            counts = both(counts, ops.not_equal(weight, 0))
    if options.votes:
        y_true = ops.convert_to_tensor(as_numbers(y_true, "y_true"))
    labels, mask = _read_labels(
        y_true,
        y_pred,
        options.votes,
        axis=axis,
        ignore_class=options.ignore_class,
        mask=counts,
        rules=rules,
    )
    outputs = standardize_predictions(
        y_pred,
        from_logits=options.from_logits,
        axis=axis,
        mask=both(mask, counts),
        rules=rules,
    )
    return Batch(
        labels,
        outputs,
        options.from_logits,
        weight,
        both(mask, user_mask),
        objectness,
        votes=options.votes,
    )


def _read_labels(
    labels: Any, outputs: Any, votes: bool, **options: Any
) -> tuple[Any, Any]:
    """Labels, and a mask of the ignored class or None."""
    if votes:
        return standardize_votes(labels, outputs, **options), None
    return standardize_labels(labels, outputs, **options)


def both(one: Any, other: Any) -> Any:
    """Logical and of two masks, where None is True everywhere."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.logical_and(one, other)
    return ops.logical_and(one, other)


def standardize_arrays(
    labels: Any,
    outputs: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
    name: str = "probs",
    drop: bool = True,
    refuse_probabilities: bool | None = False,
    votes: bool = False,
) -> Batch:
    """Read a whole data set as flat NumPy rows, in its own precision.

    Half precision becomes float32, and ids become int64.

    Args:
        labels: Class ids `(n, ...)`, or one-hot or soft labels
            `(n, ..., num_classes)`.
        outputs: Predictions `(n, ..., num_classes)`. Rows that Keras' mask
            leaves out weigh 0.
        from_logits: Whether `outputs` are logits.
        sample_weight: Weights `(n, ...)` or `(n,)`, or None.
        ignore_class: Class id of the rows to leave out, or None.
        name: Name of `outputs` in errors.
        drop: Whether to remove rows of the ignored class, which copies the
            others. If not, `mask` marks them.
        refuse_probabilities: Whether logits that look like probabilities
            raise an error instead of a warning. None looks for none.
        votes: Whether labels are rows of votes, which become shares.
    """
    check_flag("votes", votes)
    check_reading(-1, ignore_class, from_logits)
    labels = as_array(labels, "labels")
    outputs, sample_weight = read_masked(outputs, name, sample_weight)
    class_axis(outputs, -1, name)
    if outputs.dtype not in (np.float32, np.float64):
        outputs = outputs.astype("float32")
    check_not_empty(name, outputs)
    weight = counts = None
    lead = outputs.shape[:-1]
    if sample_weight is not None:
        weight = weight_of_rows(sample_weight, lead)
        counts = weight > 0
    read, valid = _read_labels(
        labels,
        outputs,
        votes,
        ignore_class=ignore_class,
        names=("labels", name),
        mask=None if counts is None else counts.reshape(lead),
    )
    if valid is not None:
        valid = to_numpy(valid).reshape(-1)
        counts = valid if counts is None else counts & valid
    outputs = outputs.reshape(-1, outputs.shape[-1])
    if len(read.shape) > len(lead):
        if not votes:
            # float64 labels are float32 tensors on JAX.
            read = labels if labels.shape == read.shape else to_numpy(read)
        read = read.reshape(-1, read.shape[-1])
        read = rows.without_harm(read, counts, False)
    else:
        read = to_numpy(read, "int64").reshape(-1)
    given, outputs = outputs, rows.both_classes(outputs, from_logits)
    facts = read_rows(outputs, from_logits=from_logits, log_odds=False)
    if not rows.is_sound(facts, from_logits):
        given = rows.without_harm(given, counts, from_logits)
        rows.check_no_nan(given, from_logits, name)
        if not from_logits:
            check_probabilities(given, name)
            rows.check_row_sums(given, name, counts)
        outputs = rows.both_classes(given, from_logits)
        facts = read_rows(outputs, from_logits=from_logits, log_odds=False)
    if from_logits:
        parts = block_slices(outputs)
        allowed = [are_allowed(read[part], outputs[part]) for part in parts]
        if not all(part.all() for part in allowed):
            allowed = np.concatenate(allowed)
            check_allowed(allowed, name, counts)
            # Rows that do not count: -inf times 0 is NaN.
            outputs = np.where(allowed[:, None], outputs, outputs.dtype.type(0))
            facts = read_rows(outputs, from_logits=True, log_odds=False)
    if from_logits and refuse_probabilities:
        rows.check_no_probabilities(given, name)
    elif from_logits and refuse_probabilities is not None:
        rows.warn_of_probabilities(given, name)
    if valid is not None and not valid.any():
        raise value_error(
            "`labels` must hold a class that is not ignored",
            ignore_class=ignore_class,
        )
    if valid is not None and drop:
        outputs, read, facts = outputs[valid], read[valid], facts.of(valid)
        weight = None if weight is None else weight[valid]
        valid = None
    if weight is not None and not weight.any():
        raise value_error("`sample_weight` must not be 0 everywhere", sum=0.0)
    return Batch(
        read, outputs, from_logits, weight, valid, facts=facts, votes=votes
    )


def standardize_logits(
    labels: Any,
    logits: Any,
    sample_weight: Any = None,
    ignore_class: int | None = None,
    *,
    drop: bool = True,
    refuse_probabilities: bool | None = True,
) -> Batch:
    """`standardize_arrays` for logits, which must not be probabilities."""
    return standardize_arrays(
        labels,
        logits,
        from_logits=True,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
        name="logits",
        drop=drop,
        refuse_probabilities=refuse_probabilities,
    )

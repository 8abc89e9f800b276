"""Labels, predictions and weights of a batch or a data set, in one form."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.keras_internals import keras_mask
from keras_calib.inputs import rows
from keras_calib.inputs.checks import (
    check_any_weight,
    check_flag,
    check_not_empty,
    class_axis,
)
from keras_calib.inputs.labels import (
    are_allowed,
    check_allowed,
    check_one_hot,
    check_soft_labels,
    split_objectness,
    standardize_labels,
)
from keras_calib.inputs.options import (
    ArrayOptions,
    GivenTogether,
    ReadOptions,
    check_classes,
    check_reading,
)
from keras_calib.inputs.values import SUM_TOLERANCE, Rules, both, has_values
from keras_calib.inputs.weights import (
    broadcast_weight,
    read_masked,
    weight_of_rows,
)
from keras_calib.numerics.arrays import (
    array_namespace,
    as_array,
    as_numbers,
    at_least_float32,
)
from keras_calib.numerics.row_blocks import block_slices, read_rows
from keras_calib.numerics.softmax import to_logits


class Batch(NamedTuple):
    """Labels, predictions and weights after they were read and checked."""

    labels: Any  # class ids, or soft rows with the classes last
    outputs: Any  # logits or probabilities, classes last
    from_logits: bool
    weight: Any = None  # None for weights of 1
    mask: Any = None  # False for samples to leave out; None for none
    objectness: Any = None  # share of the image that the object covers
    label_mask: Any = None  # False for impossible labels; None if not checked
    facts: Any = None  # `RowFacts` of the outputs, of rows of arrays
    label_facts: Any = None  # the same of soft labels
    votes: bool = False  # whether labels are shares of votes

    @property
    def counted(self) -> Any:
        """False for samples to leave out or of weight 0; None for none."""
        if self.weight is None:
            return self.mask
        return both(self.mask, self.weight != 0)

    def each(self, function: Callable[[Any], Any]) -> "Batch":
        """The batch of what a function makes of each array or tensor."""
        fields = self._asdict().items()
        return self._replace(
            **{k: function(x) for k, x in fields if hasattr(x, "shape")}
        )

    def flat(self) -> "Batch":
        """The batch as rows of samples (array-agnostic)."""
        lead = len(self.outputs.shape) - 1
        if lead == 1:
            return self
        xp = array_namespace(self.outputs)
        return self.each(lambda x: xp.reshape(x, (-1, *x.shape[lead:])))

    def possible_labels(
        self, rules: Rules, hard: bool = False, name: str = "y_pred"
    ) -> Any:
        """Mask of labels that can be, and that no logit of `name` rules out.

        Ids are in range. Rows sum to 1, and are one-hot if they must be `hard`.
        """
        labels, outputs = self.labels, self.outputs
        if len(labels.shape) < len(outputs.shape):
            right = ops.logical_and(labels >= 0, labels < outputs.shape[-1])
        else:
            distance = ops.abs(ops.sum(labels, axis=-1) - 1.0)
            distance = ops.maximum(distance, -ops.min(labels, axis=-1))
            if hard:
                largest = ops.abs(ops.max(labels, axis=-1) - 1.0)
                distance = ops.maximum(distance, largest)
                check_one_hot(distance, rules=rules)
            right = distance <= SUM_TOLERANCE
        if not self.from_logits:
            return right
        allowed = are_allowed(labels, outputs)
        check_allowed(allowed, name, self.counted, rules=rules)
        return ops.logical_and(right, allowed)

    def with_logits(
        self, dtype: str, rules: Rules, hard: bool = False
    ) -> "Batch":
        """The batch for losses: logits, and labels as constants in range.

        Logits of samples that do not count stay as they are.
        """
        labels, logits, weight = self.labels, self.outputs, self.weight
        label_mask = self.possible_labels(rules, hard)
        if not self.from_logits:
            if not has_values(logits):
                label_mask = ops.logical_and(label_mask, rows.sums_to_1(logits))
            logits = to_logits(logits)
        if len(labels.shape) < len(logits.shape):
            # Devices differ in what they read at an impossible id.
            labels = ops.clip(labels, 0, logits.shape[-1] - 1)
        else:
            labels = ops.cast(labels, dtype)
        return self._replace(
            labels=ops.stop_gradient(labels),
            outputs=ops.cast(logits, dtype),
            from_logits=True,
            weight=None if weight is None else ops.cast(weight, dtype),
            label_mask=label_mask,
        )


def standardize(
    labels: Any,
    outputs: Any,
    sample_weight: Any,
    options: ReadOptions,
    xp: Any = ops,
    *,
    rules: Rules | None = None,
) -> Batch:
    """Read labels, predictions and weights of any form: the one door.

    Samples of weight 0 may hold anything.

    Args:
        labels: Class ids `(batch, ...)` or with a 1 on the class axis, or
            one-hot or soft labels or votes `(batch, ..., num_classes)`, or
            pairs with objectness. With binary outputs also the probability,
            or the share of the votes, of the second class.
        outputs: Predictions `(batch, ..., num_classes)`.
        sample_weight: Weights `(batch, ...)` or `(batch,)`, or None.
        options: How they are read.
        xp: `keras.ops` for tensors, or NumPy for arrays. The values of their
            outputs and soft labels are left to `read_arrays`.
        rules: Rules to which those of the values are added, for the caller
            to `enforce` with others. None to check the values here.
    """
    given, from_logits, names = outputs, options.from_logits, options.names
    if xp is not np and isinstance(given, list | tuple):
        # They are not yet of Keras' floatx.
        outputs = as_numbers(given, names[1])
    outputs = at_least_float32(outputs, names[1], xp)
    axis = class_axis(outputs, options.axis, names[1])
    lead = list(outputs.shape)
    del lead[axis]
    mask = objectness = weight = None
    if xp is np:
        check_not_empty(names[1], outputs)
    elif not isinstance(given, np.ndarray):
        mask = keras_mask(given, len(lead))
    counts = mask
    if options.objectness:
        labels, objectness, _ = split_objectness(
            labels, options.ignore_class, rules
        )
    if sample_weight is not None:
        if xp is np:
            weight = weight_of_rows(sample_weight, tuple(lead), rules)
            weight = weight.reshape(lead)
        else:
            weight = broadcast_weight(sample_weight, outputs, axis, rules)
        # Weights have a rule of their own.
        counts = both(counts, weight != 0)
    labels, valid = standardize_labels(
        labels,
        outputs,
        axis=axis,
        ignore_class=options.ignore_class,
        votes=options.labels == "votes",
        names=names,
        mask=counts,
        rules=rules,
    )
    if axis != len(lead):
        outputs = xp.moveaxis(outputs, axis, -1)
    if xp is not np:
        if not from_logits:
            rows.check_probabilities(
                outputs, names[1], both(valid, counts), rules=rules
            )
        outputs = rows.both_classes(outputs, from_logits)
    return Batch(
        labels,
        outputs,
        from_logits,
        weight,
        both(valid, mask),
        objectness,
        votes=options.labels == "votes",
    )


def read_arrays(
    labels: Any,
    outputs: Any,
    sample_weight: Any,
    options: ReadOptions,
    *,
    rules: Rules | None = None,
    **reading: Any,
) -> Batch:
    """`standardize` arrays as rows, of both of two classes, with their facts.

    Rows that do not count become harmless, as NaN times 0 is NaN. `reading` is
    how facts are read, as in `read_rows`.
    """
    batch = standardize(
        labels, outputs, sample_weight, options, np, rules=rules
    ).flat()
    labels, given = batch.labels, batch.outputs
    label_facts = None
    if labels.ndim > 1 and not batch.votes:
        label_facts = read_rows(labels, from_logits=False, dtype="float32")
        if not rows.is_sound(label_facts, False, SUM_TOLERANCE):
            counts = batch.counted
            check_soft_labels(labels, options.names[0], counts, rules=rules)
            labels = rows.without_harm(labels, counts, False)
    batch = batch._replace(labels=labels, label_facts=label_facts)
    return with_rows(batch, given, options.names[1], rules, **reading)


def with_rows(
    batch: Batch, given: Any, name: str, rules: Rules | None, **reading: Any
) -> Batch:
    """A batch with other rows `(n, num_classes)`, checked, and their facts.

    Args:
        batch: Labels, weights and masks of these rows.
        given: Rows of which `batch.from_logits` tells the kind.
        name: Name of the rows in errors.
        rules: As in `standardize`.
        **reading: How facts are read, as in `read_rows`.
    """
    from_logits, counts = batch.from_logits, batch.counted
    reading["from_logits"] = from_logits
    outputs = rows.both_classes(given, from_logits)
    facts = read_rows(outputs, **reading)
    if not rows.is_sound(facts, from_logits):
        given = rows.without_harm(given, counts, from_logits)
        outputs = rows.both_classes(given, from_logits)
        facts = read_rows(outputs, **reading)
        rows.check_sound(given, facts, from_logits, name, counts, rules=rules)
    if from_logits:
        allowed = np.empty(len(outputs), bool)
        for part in block_slices(outputs):
            allowed[part] = are_allowed(batch.labels[part], outputs[part])
        if not allowed.all():
            check_allowed(allowed, name, counts, rules=rules)
            outputs = np.where(allowed[:, None], outputs, outputs.dtype.type(0))
            facts = read_rows(outputs, **reading)
    return batch._replace(outputs=outputs, facts=facts)


def standardize_arrays(
    labels: Any,
    outputs: Any = None,
    *,
    name: str = "outputs",
    drop: bool = True,
    refuse_probabilities: bool | None = False,
    **options: Unpack[ArrayOptions],
) -> Batch:
    """Read a whole data set as flat NumPy rows, in its own precision.

    Half precision becomes float32, and ids become int64.

    Args:
        labels: Class ids `(n, ...)`, or one-hot or soft labels
            `(n, ..., num_classes)`; or `Predictions`, in place of all that
            they tell.
        outputs: Predictions `(n, ..., num_classes)`. Rows that Keras' mask
            leaves out weigh 0.
        name: Name of `outputs` in errors.
        drop: Whether to remove rows of the ignored class, which copies the
            others. If not, `mask` marks them.
        refuse_probabilities: Whether logits that look like probabilities
            raise an error instead of a warning. None looks for none.
        **options: Those of `ArrayOptions`. Votes become shares.
    """
    if isinstance(labels, GivenTogether):
        check_classes(labels)
        labels, outputs, options = labels.arguments(outputs, options)
    elif outputs is None:
        raise type_error(
            f"`{name}` must be given beside `labels`, or `Predictions` in "
            "place of both",
            **{name: None},
        )
    from_logits = options.get("from_logits", False)
    ignore_class = options.get("ignore_class")
    votes = options.get("votes", False)
    check_flag("votes", votes)
    check_reading(-1, ignore_class, from_logits)
    labels = as_array(labels, "labels")
    outputs, sample_weight = read_masked(
        outputs, name, options.get("sample_weight")
    )
    batch = read_arrays(
        labels,
        outputs,
        sample_weight,
        ReadOptions(
            from_logits,
            ignore_class=ignore_class,
            labels="votes" if votes else "classes",
            names=("labels", name),
        ),
        log_odds=False,
    )
    if from_logits and refuse_probabilities:
        rows.check_no_probabilities(batch.outputs, name)
    elif from_logits and refuse_probabilities is not None:
        rows.warn_of_probabilities(batch.outputs, name)
    if batch.mask is not None and not batch.mask.any():
        raise value_error(
            "`labels` must hold a class that is not ignored",
            ignore_class=ignore_class,
        )
    batch = without_masked(batch) if drop else batch
    check_any_weight(batch.weight)
    return batch


def without_masked(batch: Batch) -> Batch:
    """A batch of arrays without the rows that its mask leaves out."""
    valid, facts = batch.mask, batch.facts
    if valid is None:
        return batch
    batch = batch._replace(mask=None).each(lambda x: x[valid])
    return batch._replace(facts=facts.of(valid))


# For logits, which must not be probabilities.
standardize_logits = functools.partial(
    standardize_arrays,
    from_logits=True,
    name="logits",
    refuse_probabilities=True,
)

"""What a loss adds to cross entropy, and the labels that it amounts to."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.gradients import value_and_grad
from keras_calib.backend.keras_internals import keras_mask
from keras_calib.inputs.checks import (
    check_above,
    check_integer,
    check_not_empty,
    check_number,
    check_rows,
    check_two_classes,
    class_axis,
)
from keras_calib.inputs.labels import soft_labels, standardize_labels
from keras_calib.inputs.rows import check_no_nan, warn_of_probabilities
from keras_calib.inputs.values import both, read_mask
from keras_calib.losses.base import PerSampleLoss
from keras_calib.losses.closed_forms import cross_entropy
from keras_calib.numerics.arrays import (
    as_numbers,
    at_least_float32,
    to_numpy,
    value_if_eager,
)
from keras_calib.numerics.results import Result
from keras_calib.numerics.softmax import to_logits
from keras_calib.predictions.outputs import setting_of

# A regulariser below this share of 1 + cross entropy is rounding.
_ROUNDING = 5e-7


class EffectiveTargets(Result):
    """The targets that a loss amounts to, read as label smoothing.

    Attributes:
        labels: q = p - g, the target towards which the loss pulls the
            prediction p, `(..., num_classes)`. Rows sum to 1 for a
            shift-invariant loss, but entries can lie outside [0, 1].
        predicted_smoothing: Label of the predicted class less its target,
            `(...)`.
        other_smoothing: Target of each other class less its label,
            `(..., num_classes)`; 0 for the predicted class.
    """

    labels: Any
    predicted_smoothing: Any
    other_smoothing: Any


class RegularizerCounts(Result):
    """Distribution over samples of the regulariser of a loss.

    Histograms of the same edges can be added count by count.

    Attributes:
        counts: Samples in each bin, int64 `(num_bins,)`. Values beyond the
            limits are in the first and the last bin.
        edges: Edges of the bins, in nats, `(num_bins + 1,)`.
        num_inactive: Samples with a regulariser of 0 up to rounding.
    """

    counts: np.ndarray
    edges: np.ndarray
    num_inactive: int

    def _columns(self) -> dict[str, Any]:
        edges = {"low": self.edges[:-1], "high": self.edges[1:]}
        return {**edges, "count": self.counts}

    @property
    def inactive_share(self) -> float:
        """Share of the samples with a regulariser of 0, NaN without samples."""
        count = int(self.counts.sum())
        return self.num_inactive / count if count else float("nan")


def effective_labels(
    loss: keras.losses.Loss | Callable, labels: Any, logits: Any
) -> EffectiveTargets:
    """The labels for which cross entropy would have the gradient of a loss.

    Use it to see how a loss smooths labels, and to compare losses. With p =
    softmax(logits) and g the gradient of the summed losses by the logits,
    cross entropy with the labels q = p - g has the same gradient. Reduction
    and sample weights do not enter.

    Args:
        loss: A loss of this package, another Keras loss, or a function of
            one-hot or soft labels and logits to losses `(...)`. A loss with
            `from_logits=False` gets softmax(logits).
        labels: Labels in any form that the loss takes, such as class ids
            `(...)`.
        logits: Logits `(..., num_classes)` of at least two classes, or with
            the classes on the `axis` of the loss.

    Returns:
        `EffectiveTargets` of float tensors, with the classes on the same axis
        as in `logits`. Ignored labels have q = p and no smoothing.

    Raises:
        TypeError: If `loss` is a name.
        ValueError: If shapes do not fit.

    Example:

    >>> import keras_calib
    >>> loss = keras_calib.LabelSmoothing(alpha=0.3, from_logits=True)
    >>> read = keras_calib.losses.effective_labels(loss, [0], [[2.0, 0.0, 1.0]])
    >>> [round(float(q), 4) for q in read.labels[0]]
    [0.8, 0.1, 0.1]
    >>> round(float(read.predicted_smoothing[0]), 4)
    0.2

    Reference:
        Park et al., ACLS, ICCV 2023, eq. 8, https://arxiv.org/abs/2308.11911

    Differs:
        Table 2 of the paper departs from the derivatives of the losses that
        it lists; this is the exact derivative.
    """
    per_sample, logits, axis, hard, valid = _read(loss, labels, logits)
    _, gradient = value_and_grad(lambda z: ops.sum(per_sample(z)), logits)
    gradient, logits = (ops.moveaxis(x, axis, -1) for x in (gradient, logits))
    targets = ops.softmax(logits, axis=-1) - gradient
    predicted = ops.one_hot(
        ops.argmax(logits, axis=-1), logits.shape[-1], dtype=logits.dtype
    )
    added = targets - hard
    if valid is not None:
        # A product would keep the NaN of an ignored sample.
        added = ops.where(valid[..., None], added, ops.zeros_like(added))
    others = (1.0 - predicted) * added
    return EffectiveTargets(
        ops.moveaxis(targets, -1, axis),
        -ops.sum(predicted * added, axis=-1),
        ops.moveaxis(others, -1, axis),
    )


def regularizer_histogram(
    loss: keras.losses.Loss | Callable,
    labels: Any,
    logits: Any,
    *,
    num_bins: int = 20,
    limits: tuple[float, float] = (0.0, 0.1),
    mask: Any = None,
) -> RegularizerCounts:
    """Distribution over samples of what a loss adds to cross entropy.

    Use it to see how strongly a loss regularises which share of the samples.
    The `inactive_share` of the result is that on which the condition of a loss
    such as `MbLS` or `ACLS` does not apply. The regulariser is the loss less
    the cross entropy of the labels. It is negative if the loss is smaller, as
    a focal loss is.

    Args:
        loss: A loss or function as `effective_labels` takes it.
        labels: Labels `(...)` or `(..., num_classes)`.
        logits: Logits `(..., num_classes)` of at least two classes.
        num_bins: Number of bins of equal width.
        limits: The lowest and the highest edge, in nats, to which values are
            clipped.
        mask: False for samples to leave out, of the shape of class ids.

    Returns:
        `RegularizerCounts` of the valid labels; a NaN is in no bin.

    Raises:
        ValueError: If shapes do not fit, or `limits` do not ascend.

    Example:

    >>> import keras_calib
    >>> loss = keras_calib.MbLS(margin=6.0, strength=0.01, from_logits=True)
    >>> logits = [[9.0, 0.0], [5.0, 0.0], [0.0, 99.0]]
    >>> drawn = keras_calib.losses.regularizer_histogram(
    ...     loss, [0, 0, 1], logits, num_bins=4)
    >>> drawn.counts.tolist(), round(drawn.inactive_share, 4)
    ([2, 0, 0, 1], 0.3333)

    Reference:
        Park et al., ACLS, ICCV 2023, fig. 3, https://arxiv.org/abs/2308.11911
    """
    check_integer("num_bins", num_bins, 1)
    low, high = limits
    check_number("limits[0]", low)
    check_above("limits[1]", high, low)
    per_sample, logits, axis, hard, valid = _read(loss, labels, logits, mask)
    losses = per_sample(logits)
    if not setting_of(loss, "from_logits", True):
        # The loss sees no more than the probabilities tell.
        logits = to_logits(ops.softmax(logits, axis=axis))
    fidelity = cross_entropy(hard, ops.moveaxis(logits, axis, -1))
    values = to_numpy(losses - fidelity, "float64")
    inactive = np.abs(values) <= _ROUNDING * (1.0 + to_numpy(fidelity))
    if valid is not None:
        values, inactive = (x[to_numpy(valid)] for x in (values, inactive))
    clipped = np.clip(values[~np.isnan(values)], low, high)
    counts, edges = np.histogram(clipped, bins=num_bins, range=(low, high))
    return RegularizerCounts(counts, edges, int(inactive.sum()))


def _read(loss, labels, logits, mask=None):
    """Function of logits to losses; logits, class axis, label rows, mask."""
    if not callable(loss):
        raise type_error(
            "`loss` must be a loss such as "
            "`keras.losses.CategoricalCrossentropy(from_logits=True)`, or "
            "a function of labels and logits; a name does not say whether "
            "it takes logits",
            loss=loss,
        )
    own = keras_mask(logits, len(getattr(logits, "shape", ())) - 1)
    logits = at_least_float32(logits)
    if (axis := setting_of(loss, "axis", -1)) is None:
        raise value_error("`loss` must have a class axis", loss=loss)
    axis = class_axis(logits, axis, "logits")
    check_not_empty("logits", logits)
    check_two_classes("logits", logits, axis)
    if mask is not None:
        mask = to_numpy(read_mask(mask))
        check_rows("mask", mask, ops.moveaxis(logits, axis, -1))
    if (mask := both(mask, own)) is not None:
        labels = _possible(labels, to_numpy(mask), axis, len(logits.shape))
    ids = labels
    if isinstance(loss, PerSampleLoss):
        ids, _ = loss.split_labels(labels)
    hard, valid = standardize_labels(
        ids,
        logits,
        axis=axis,
        ignore_class=setting_of(loss, "ignore_class"),
        names=("labels", "logits"),
    )
    valid = both(valid, mask)
    if (values := value_if_eager(ops.moveaxis(logits, axis, -1))) is not None:
        counted = Ellipsis if valid is None else to_numpy(valid)
        check_no_nan(values[counted], True, "logits")
        warn_of_probabilities(values, "logits")
    rows = soft_labels(hard, logits.shape[axis], logits.dtype)
    return _per_sample(loss, labels, rows, axis), logits, axis, rows, valid


def _possible(labels: Any, mask: np.ndarray, axis: int, rank: int) -> Any:
    """Labels, where those outside of the mask become one inside, if any is."""
    labels = np.array(to_numpy(labels))
    rows = np.moveaxis(labels, axis if labels.ndim == rank else -1, -1)
    rows[~mask] = rows[mask][0] if mask.any() else 0
    return labels


def _per_sample(loss, labels, hard, axis):
    """A function of logits to the losses `(...)`."""
    if not isinstance(loss, keras.losses.Loss):
        return lambda logits: loss(hard, logits)
    labels = ops.convert_to_tensor(as_numbers(labels, "labels"))
    if not isinstance(loss, PerSampleLoss):
        sparse = keras.losses.SparseCategoricalCrossentropy
        by_keras = type(loss).__module__.startswith("keras.")
        if by_keras and not isinstance(loss, sparse):
            # Most losses of Keras compare arrays of one shape.
            labels = ops.moveaxis(hard, -1, axis)
        # Keras casts labels too when a loss is called.
        labels = ops.cast(labels, hard.dtype)
    if setting_of(loss, "from_logits", True):
        return lambda logits: loss.call(labels, logits)
    return lambda logits: loss.call(labels, ops.softmax(logits, axis=axis))

"""Losses and confidences whose gradients are written by hand.

A closed form takes fewer passes over the logits than automatic
differentiation, and keeps the digits that a saturated softmax would lose.

Derivation: docs/derivations.md, 'Gradients of the losses'.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import backend, ops

from keras_calib.backend.compiled import subtract_at, take_at
from keras_calib.backend.gradients import (
    is_wide,
    with_gradient,
    with_gradient_by_rows,
)
from keras_calib.inputs.labels import soft_labels
from keras_calib.inputs.values import SUM_TOLERANCE, Rules
from keras_calib.inputs.weights import broadcast_weight
from keras_calib.numerics.arrays import at_least_float32, labels_like
from keras_calib.numerics.softmax import SoftmaxParts, allowed, softmax_parts

_MANY = 100


class _ClassIds(NamedTuple):
    """Class ids `(...)` in [0, num_classes), in place of one-hot labels."""

    ids: Any
    # False for rows of logits that must be read as zeros; None for none.
    mask: Any = None


def reads_ids(fn: Callable) -> Callable:
    """Mark a formula that takes `_ClassIds` as well as one-hot labels."""
    fn.reads_ids = True  # type: ignore[attr-defined]  # on a function
    return fn


def read_as(
    fn: Callable, labels: Any, logits: Any, mask: Any = None
) -> tuple[Any, Any]:
    """Labels and logits as `fn` takes them, with zeros for masked logits.

    A marked `fn` gets `_ClassIds` with the mask, others get rows.
    """
    if len(labels.shape) < len(logits.shape):
        if getattr(fn, "reads_ids", False):
            if mask is not None:
                mask = ops.broadcast_to(mask, ops.shape(labels))
            return _ClassIds(labels, mask), logits
        dtype = backend.standardize_dtype(logits.dtype)
        labels = soft_labels(labels, logits.shape[-1], dtype)
    return labels, shown(logits, mask)


def shown(logits: Any, mask: Any) -> Any:
    """Logits with zeros outside of a mask `(...)`, which may be None."""
    if mask is None:
        return logits
    # A weight of 0 is not enough, because NaN times 0 is NaN.
    mask = ops.expand_dims(mask, -1)
    return ops.where(mask, logits, ops.zeros_like(logits))


class Targets:
    """Label rows t of a formula, or class ids, which take less memory.

    With `alpha`, a number or `(..., 1)`, t is smoothed: that share of each
    label is spread evenly over the classes that are not ruled out. It may be a
    function of their number. A share of a label on a class that is ruled out
    becomes 0; `fault` tells where it is more than a tolerance.
    """

    def __init__(self, labels: Any, logits: Any, alpha: Any = None):
        self._ids = self._rows = None
        if isinstance(labels, _ClassIds):
            self._ids = labels.ids
        else:
            self._given = ops.stop_gradient(labels_like(labels, logits))
            self._rows = self._given * ops.stop_gradient(allowed(logits))
        self._num_classes = logits.shape[-1]
        self._dtype = backend.standardize_dtype(logits.dtype)
        self._alpha = alpha

    def fault(self) -> Any:
        """NaN for rows that give a class too much that is ruled out, else 0.

        It is `(...)`, or `()` for ids, which are checked before.
        """
        if self._rows is None:
            return ops.zeros((), dtype=self._dtype)
        share = ops.sum(self._given, axis=-1) - ops.sum(self._rows, axis=-1)
        zero = ops.zeros_like(share)
        return ops.where(share <= SUM_TOLERANCE, zero, float("nan"))

    def rows(self) -> Any:
        """Label rows `(..., num_classes)`, not smoothed."""
        if self._ids is None:
            return self._rows
        return ops.one_hot(self._ids, self._num_classes, dtype=self._dtype)

    def pick(self, x: Any) -> Any:
        """The entries of x that labels weigh: of ids one, `(..., 1)`."""
        if self._ids is None:
            return x
        return ops.expand_dims(take_at(x, self._ids), -1)

    def weigh(self, picked: Any) -> Any:
        """Labels times what `pick` returned."""
        return picked if self._ids is not None else self._rows * picked

    def place(self, weighed: Any) -> Any:
        """Rows `(..., num_classes)` of what `weigh` returned, else 0."""
        return weighed if self._ids is None else self.rows() * weighed

    def mean(self, x: Any) -> Any:
        """sum_k labels_k x_k, `(...)`, not smoothed."""
        return ops.sum(self.weigh(self.pick(x)), axis=-1)

    def log_probs(self, parts: SoftmaxParts) -> Any:
        """log p where labels weigh it, as `pick`."""
        return self.pick(parts.shifted) - parts.log_sum

    def cross_entropy(self, parts: SoftmaxParts) -> Any:
        """-sum_k t_k log p_k of labels that sum to 1, `(...)`."""
        log_sum = ops.squeeze(parts.log_sum, axis=-1)
        if self._ids is None:
            value = -ops.sum(self._rows * parts.log_probs, axis=-1)
        else:
            value = log_sum - take_at(parts.shifted, self._ids)
        if self._alpha is None:
            return value
        # ops.mean rounds float64 to float32 on torch.
        even = ops.sum(parts.kept, axis=-1)
        even = log_sum - even / ops.squeeze(parts.num_allowed, axis=-1)
        alpha = self._share(parts)
        if len(getattr(alpha, "shape", ())) > 0:
            alpha = ops.squeeze(alpha, axis=-1)
        return (1.0 - alpha) * value + alpha * even

    def _share(self, parts: SoftmaxParts) -> Any:
        alpha = self._alpha
        return alpha(parts.num_allowed) if callable(alpha) else alpha

    def subtract_from(self, x: Any, parts: SoftmaxParts | None = None) -> Any:
        """x - t, `(..., num_classes)`; smoothed targets need the softmax."""
        share: Any = 1.0
        if self._alpha is not None and parts is not None:
            alpha = self._share(parts)
            x = x - parts.allowed * (alpha / parts.num_allowed)
            share = 1.0 - alpha
        if self._ids is not None:
            return subtract_at(x, self._ids, share)
        return x - share * self._rows


def of_softmax(
    labels: Any,
    logits: Any,
    closed_form: Callable,
    alpha: Any = None,
    *beside: Any,
) -> Any:
    """Compute losses `(...)` with their gradient, in float32 or wider.

    `closed_form` maps `Targets` and `SoftmaxParts` to the losses and to a
    function that returns their derivative `(..., num_classes)`. `alpha` is the
    share of the labels to spread over the classes, a number or `(..., 1)`.
    Further tensors `(...)` are passed on. Rows as wide as a vocabulary are
    computed in blocks, so a closed form must take nothing else of the rows.
    """
    by_id = isinstance(labels, _ClassIds)
    mask = labels.mask if by_id else None
    if not by_id:
        # Those beside ids were read with them.
        logits = at_least_float32(logits)
    if not is_wide(logits):
        logits = shown(logits, mask)
        targets = Targets(labels, logits, alpha)
        values = with_gradient(
            lambda z: closed_form(targets, softmax_parts(z), *beside), logits
        )
        return values if by_id else values + targets.fault()
    rows = labels.ids if by_id else labels_like(labels, logits)
    share = alpha
    by_row = alpha if len(getattr(alpha, "shape", ())) > 0 else None

    def forward(logits, labels, mask, alpha, *beside):
        logits = shown(logits, mask)
        labels = _ClassIds(labels) if by_id else labels
        targets = Targets(labels, logits, share if alpha is None else alpha)
        values, gradient = closed_form(targets, softmax_parts(logits), *beside)
        return values + targets.fault(), gradient

    return _by_rows(forward, logits, rows, mask, by_row, *beside)


@reads_ids
def cross_entropy(labels: Any, logits: Any, alpha: Any = None) -> Any:
    """Cross entropy -sum_k labels_k log p_k of soft labels, `(...)` in nats.

    `alpha`, a number or `(..., 1)`, is the share of each label that is spread
    evenly over the classes.
    """

    def closed_form(targets, parts):
        value = targets.cross_entropy(parts)
        return value, lambda: targets.subtract_from(parts.probs, parts)

    return of_softmax(labels, logits, closed_form, alpha)


def _by_rows(forward: Callable, logits: Any, *beside: Any) -> Any:
    """`with_gradient_by_rows`, whatever the axes before those of the rows."""
    lead = ops.shape(logits)[:-1]
    flat = [
        x if x is None else ops.reshape(x, (-1, *x.shape[len(lead) :]))
        for x in (logits, *beside)
    ]
    return ops.reshape(with_gradient_by_rows(forward, *flat), lead)


def through_true_class(
    targets: Targets, parts: SoftmaxParts, slope: Any
) -> Any:
    """Turn `slope`, the derivative by log p_y, into that by the logits."""
    return targets.subtract_from(parts.probs) * ops.expand_dims(-slope, -1)


def flat_rows(labels: Any, logits: Any, sample_weight: Any) -> tuple:
    """Flatten labels, logits and weights to rows; no weights become ones.

    Ids keep their mask, which `top_probability` takes, and `shown`.
    """
    rows = at_least_float32(logits)
    if isinstance(labels, _ClassIds):
        parts = (x if x is None else ops.reshape(x, (-1,)) for x in labels)
        labels = _ClassIds(*parts)
    else:
        labels = labels_like(labels, rows)
        labels = ops.reshape(labels, (-1, rows.shape[-1]))
    logits = ops.reshape(rows, (-1, rows.shape[-1]))
    # A label that is ruled out makes the whole term NaN.
    fault = Targets(labels, logits).fault()
    if sample_weight is None:
        return labels, logits, ops.ones_like(logits[:, 0]) + fault
    # Not looked at, as those of a loss were before; NaN where it is none.
    weight = broadcast_weight(sample_weight, rows, rules=Rules(False))
    weight = ops.cast(ops.reshape(weight, (-1,)), logits.dtype)
    weight = ops.where(weight >= 0.0, weight, float("nan"))
    return labels, logits, weight + fault


def correctness(labels: Any, logits: Any) -> Any:
    """Label of the predicted class `(...)`: 1 if correct, 0 if wrong."""
    first = _first_true(ops.equal(logits, ops.max(logits, -1, keepdims=True)))
    if isinstance(labels, _ClassIds):
        right = ops.equal(ops.squeeze(first, axis=-1), labels.ids)
        return ops.cast(right, logits.dtype)
    right = ops.take_along_axis(labels, first, axis=-1)
    return ops.stop_gradient(ops.squeeze(right, axis=-1))


def mask_of(labels: Any) -> Any:
    """False for logits to read as zeros, `(...)`, or None for none."""
    return labels.mask if isinstance(labels, _ClassIds) else None


def top_probability(logits: Any, mask: Any = None) -> Any:
    """Largest probability of each row `(...)`, in (0, 1].

    Rows outside of `mask` are read as zeros.
    """

    def forward(logits, mask=None):
        logits = shown(logits, mask)
        parts = softmax_parts(logits)
        largest = ops.max(parts.probs, axis=-1, keepdims=True)

        def gradient():
            # 1 - p as a sum: it does not cancel where p is nearly 1.
            first = mark_first(ops.equal(parts.shifted, 0.0), largest.dtype)
            others = (1.0 - first) * parts.probs
            rest = ops.sum(others, axis=-1, keepdims=True)
            return largest * (first * rest - others)

        return ops.squeeze(largest, axis=-1), gradient

    logits = at_least_float32(logits)
    if not is_wide(logits):
        return with_gradient(forward, shown(logits, mask))
    return _by_rows(forward, logits, mask)


def _first_true(mask: Any) -> Any:
    """Index of the first True of each row, `(..., 1)`, int32."""
    last = mask.shape[-1] - 1
    # XLA runs argmax and conditionals more slowly, and minima of integers if
    # there are many classes. float32 holds every index below 2^24.
    dtype = "float32" if last >= _MANY else "int32"
    places = ops.arange(last + 1, dtype=dtype)
    places = ops.where(mask, places, ops.full_like(places, last))
    return ops.cast(ops.min(places, axis=-1, keepdims=True), "int32")


def mark_first(mask: Any, dtype: Any) -> Any:
    """Rows that are 1 at the first True of each row of `mask`, else 0."""
    first = ops.squeeze(_first_true(mask), axis=-1)
    return ops.one_hot(first, mask.shape[-1], dtype=dtype)

"""Labels as the formulas of losses read them; class ids stay ids."""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import backend, ops

from keras_calib.backend.compiled import subtract_at
from keras_calib.inputs.readers import soft_labels
from keras_calib.inputs.values import SUM_TOLERANCE, is_integer
from keras_calib.numerics.arrays import labels_like, take_at
from keras_calib.numerics.softmax import SoftmaxParts, allowed

__all__ = ["ClassIds", "Targets", "read_as", "reads_ids", "shown"]


class ClassIds(NamedTuple):
    """Class ids `(...)` in [0, num_classes), in place of one-hot labels."""

    ids: Any
    # False for rows of logits that must be read as zeros; None for none.
    mask: Any = None


def reads_ids(fn: Callable) -> Callable:
    """Mark a formula that takes `ClassIds` as well as one-hot labels."""
    fn.reads_ids = True  # type: ignore[attr-defined]  # on a function
    return fn


def read_as(
    fn: Callable, labels: Any, logits: Any, mask: Any = None
) -> tuple[Any, Any]:
    """Labels and logits as `fn` takes them, with zeros for masked logits.

    A marked `fn` gets `ClassIds` with the mask, others get rows.
    """
    if is_integer(labels):
        if getattr(fn, "reads_ids", False):
            if mask is not None:
                mask = ops.broadcast_to(mask, ops.shape(labels))
            return ClassIds(labels, mask), logits
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
        if isinstance(labels, ClassIds):
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
        value = -ops.sum(self.weigh(self.log_probs(parts)), axis=-1)
        if self._alpha is None:
            return value
        log_sum = ops.squeeze(parts.log_sum, axis=-1)
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

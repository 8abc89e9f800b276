"""Labels as the formulas of losses read them; class ids stay ids."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from keras import backend
from keras import ops

from keras_calib.inputs.readers import soft_labels
from keras_calib.inputs.values import is_integer
from keras_calib.numerics.arrays import labels_like
from keras_calib.numerics.softmax import SoftmaxParts

__all__ = ["ClassIds", "Targets", "form_for", "reads_ids"]


class ClassIds(NamedTuple):
    """Class ids `(...)` in [0, num_classes), in place of one-hot labels."""

    ids: Any


def reads_ids(fn: Callable) -> Callable:
    """Mark a formula that takes `ClassIds` as well as one-hot labels."""
    fn.reads_ids = True  # type: ignore[attr-defined]  # on a function
    return fn


def form_for(fn: Callable, labels: Any, logits: Any) -> Any:
    """Ids or rows as `fn` takes them: `ClassIds` if marked, else rows."""
    if not is_integer(labels):
        return labels
    if getattr(fn, "reads_ids", False):
        return ClassIds(labels)
    dtype = backend.standardize_dtype(logits.dtype)
    return soft_labels(labels, logits.shape[-1], dtype)


class Targets:
    """Label rows t of a formula, or class ids, which take less memory.

    With `alpha`, a number or `(..., 1)`, t is smoothed: that share of each
    label is spread evenly over the classes.
    """

    def __init__(self, labels: Any, logits: Any, alpha: Any = None):
        self._ids = self._rows = None
        if isinstance(labels, ClassIds):
            self._ids = labels.ids
        else:
            self._rows = ops.stop_gradient(labels_like(labels, logits))
        self._num_classes = logits.shape[-1]
        self._dtype = backend.standardize_dtype(logits.dtype)
        self._alpha = alpha

    def rows(self) -> Any:
        """Label rows `(..., num_classes)`, not smoothed."""
        if self._ids is None:
            return self._rows
        return ops.one_hot(self._ids, self._num_classes, dtype=self._dtype)

    def pick(self, x: Any) -> Any:
        """The entries of x that labels weigh: of ids one, `(..., 1)`."""
        if self._ids is None:
            return x
        return ops.take_along_axis(x, ops.expand_dims(self._ids, -1), axis=-1)

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
        even = ops.sum(parts.shifted, axis=-1) / self._num_classes
        even = log_sum - even
        alpha = self._alpha
        if len(getattr(alpha, "shape", ())) > 0:
            alpha = ops.squeeze(alpha, axis=-1)
        return (1.0 - alpha) * value + alpha * even

    def subtract_from(self, x: Any) -> Any:
        """x - t, `(..., num_classes)`."""
        if self._alpha is None:
            return x - self.rows()
        x = x - self._alpha / self._num_classes
        return x - (1.0 - self._alpha) * self.rows()

"""Softmax, log-odds and the predicted class, without overflow."""

from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.compiled import take_at
from keras_calib.backend.late import keras_module
from keras_calib.numerics.arrays import array_namespace, at_least, cast

ops = keras_module("keras.ops")

# log and 1/p stay finite in float32.
PROBABILITY_FLOOR = 1e-37
# Classes with such logits are ruled out: -inf, -1e30 and the least float32 are
# in use for it, also divided by a temperature. Logits of -1e9 are ordinary.
_RULED_OUT = -1e24
# Stands for such a logit where infinity would spoil sums.
FAR_BELOW = -1e25
# Stands for their distance from the largest; half its square is finite.
_LOWEST = -1e18


class SoftmaxParts(NamedTuple):
    """The softmax p of logits z, `(..., num_classes)`."""

    logits: Any
    largest: Any  # the largest z, `(..., 1)`
    shifted: Any  # z minus the largest, finite where z is -inf
    log_sum: Any  # log(sum(exp(shifted))), `(..., 1)`
    probs: Any

    @property
    def allowed(self) -> Any:
        """1 for classes that are not ruled out, else 0."""
        return allowed(self.logits)

    @property
    def kept(self) -> Any:
        """`shifted`, with 0 for classes that are ruled out."""
        return self.shifted * self.allowed

    @property
    def num_allowed(self) -> Any:
        """How many classes are not ruled out, `(..., 1)`."""
        return num_allowed(self.logits)

    @property
    def lowest(self) -> Any:
        """The smallest of `shifted` that is not ruled out, `(..., 1)`."""
        return ops.min(self.kept, axis=-1, keepdims=True)

    @property
    def log_probs(self) -> Any:
        """log p, finite where p rounds to 0."""
        return self.shifted - self.log_sum


def logsumexp(x: Any, axis: int = -1, keepdims: bool = False) -> Any:
    """log(sum(exp(x))) without overflow (array-agnostic)."""
    xp = array_namespace(x)
    top = xp.max(x, axis=axis, keepdims=True)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    total = xp.sum(xp.exp(x - top), axis=axis, keepdims=True)
    # The log of an empty sum is -inf, without a warning of NumPy.
    empty = total == 0
    value = xp.log(xp.where(empty, xp.ones_like(total), total)) + top
    value = xp.where(empty, xp.full_like(value, -np.inf), value)
    return value if keepdims else xp.squeeze(value, axis=axis)


def softmax_parts(logits: Any) -> SoftmaxParts:
    """Compute what losses need of the softmax, in few passes."""
    largest = ops.max(logits, axis=-1, keepdims=True)
    # 0 times infinity would be NaN for a class that is ruled out.
    shifted = at_least(logits - largest, _LOWEST)
    powers = ops.exp(shifted)
    total = ops.sum(powers, axis=-1, keepdims=True)
    probs = powers / total
    return SoftmaxParts(logits, largest, shifted, ops.log(total), probs)


def is_ruled_out(logits: Any) -> Any:
    """Mask of classes whose probability is exactly 0 (array-agnostic)."""
    # NumPy would warn of the bound in half precision, where it is -inf.
    with np.errstate(over="ignore"):
        return logits <= _RULED_OUT


def filled(logits: Any) -> Any:
    """The lowest other logit for those that are ruled out (array-agnostic)."""
    xp, low = array_namespace(logits), is_ruled_out(logits)
    if xp is np and not low.any():
        return logits
    largest = xp.max(logits, axis=-1, keepdims=True)
    lowest = xp.min(xp.where(low, largest, logits), axis=-1, keepdims=True)
    return xp.where(low, lowest, logits)


def allowed(logits: Any) -> Any:
    """1 for classes that are not ruled out, else 0 (array-agnostic)."""
    # Keras' `where` takes twice as long in TensorFlow as a product with this.
    return cast(logits > _RULED_OUT, logits.dtype)


def num_allowed(logits: Any) -> Any:
    """How many classes are not ruled out, `(..., 1)` (array-agnostic)."""
    return array_namespace(logits).sum(allowed(logits), axis=-1, keepdims=True)


def sigmoid(log_odds: Any) -> Any:
    """1 / (1 + exp(-log_odds)), without overflow (array-agnostic)."""
    xp = array_namespace(log_odds)
    e = xp.exp(-xp.abs(log_odds))
    return xp.where(log_odds >= 0, xp.ones_like(e), e) / (1.0 + e)


def to_logits(probs: Any, xp: Any = None) -> Any:
    """Logits log p, whose softmax is p, p >= 1e-37 (array-agnostic)."""
    xp = xp or array_namespace(probs)
    return xp.log(at_least(probs, PROBABILITY_FLOOR))


def top1(outputs: Any, *, from_logits: bool) -> tuple[Any, Any]:
    """Confidence and log-odds of the predicted class (array-agnostic).

    Derivation: docs/derivations.md, 'Log-odds map'.
    """
    xp = array_namespace(outputs)
    largest = xp.max(outputs, axis=-1)
    if not from_logits:
        # They come from the largest probability alone, so that ties stay.
        confidence = xp.clip(largest, 0.0, 1.0)
        return confidence, log_odds_of(confidence)
    # The largest minus the logsumexp of all others, some of which may equal
    # it. A shift by the second largest keeps the digits of large gaps.
    at_top = outputs == xp.expand_dims(largest, -1)
    ties = xp.sum(xp.array(at_top, dtype=outputs.dtype), axis=-1) - 1.0
    others = xp.where(at_top, xp.full_like(outputs, -np.inf), outputs)
    second = xp.where(ties > 0, largest, xp.max(others, axis=-1))
    second = xp.where(xp.isfinite(second), second, xp.zeros_like(second))
    total = xp.sum(xp.exp(others - xp.expand_dims(second, -1)), axis=-1)
    total = total + ties
    # Without another class the log-odds are infinite.
    alone = total == 0
    log_odds = xp.log(xp.where(alone, xp.ones_like(total), total))
    log_odds = largest - second - log_odds
    log_odds = xp.where(alone, xp.full_like(log_odds, np.inf), log_odds)
    return sigmoid(log_odds), log_odds


def is_wrong(outputs: Any, labels: Any) -> Any:
    """Whether the first of the largest outputs is not the label.

    It is array-agnostic.
    """
    if array_namespace(outputs) is np:
        return np.argmax(outputs, axis=-1) != labels
    # ops.argmax would cost several times as much as a maximum. Graphs compute
    # the maximum and its mask once for this function and for `top1`.
    largest = ops.expand_dims(ops.max(outputs, axis=-1), -1)
    at_top = outputs == largest
    label = ops.clip(labels, 0, outputs.shape[-1] - 1)
    is_less = take_at(outputs, label) < ops.squeeze(largest, axis=-1)
    classes = ops.arange(outputs.shape[-1], dtype="int32")
    earlier = ops.logical_and(classes < ops.expand_dims(label, -1), at_top)
    return ops.logical_or(is_less, ops.any(earlier, axis=-1))


def predicted_class(outputs: Any) -> Any:
    """The first of the largest outputs, int32 `(...)` (array-agnostic)."""
    if array_namespace(outputs) is np:
        return np.argmax(outputs, axis=-1)
    num_classes = outputs.shape[-1]
    classes = ops.arange(num_classes, dtype="int32")
    at_top = outputs == ops.max(outputs, axis=-1, keepdims=True)
    # NaN is never the largest.
    last = ops.full_like(classes, num_classes - 1)
    return ops.min(ops.where(at_top, classes, last), axis=-1)


def log_odds_of(confidence: Any, xp: Any = None) -> Any:
    """log(c / (1 - c)) of c in [0, 1], infinite at 1 (array-agnostic)."""
    xp = xp or array_namespace(confidence)
    one = confidence == 1.0
    inside = xp.where(one, xp.full_like(confidence, 0.5), confidence)
    log_odds = to_logits(inside, xp) - xp.log1p(-inside)
    return xp.where(one, xp.full_like(log_odds, np.inf), log_odds)

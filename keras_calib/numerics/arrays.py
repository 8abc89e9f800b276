"""Small numeric pieces that losses, scores, metrics and calibrators share.

Functions marked "either" run on NumPy arrays in float64 and on backend
tensors in float32: one formula, two precisions (see `namespace`).
"""

from typing import Any
from typing import NamedTuple

import keras
import numpy as np
from keras import backend
from keras import ops

from keras_calib.inputs.checks import check_numbers
from keras_calib.inputs.checks import fits
from keras_calib.inputs.checks import invalid
from keras_calib.inputs.checks import shape_of

__all__ = [
    "PROBABILITY_FLOOR",
    "SoftmaxParts",
    "TopOne",
    "as_array",
    "as_numbers",
    "at_least",
    "at_least_float32",
    "concrete",
    "cumsum",
    "is_wrong",
    "labels_like",
    "logsumexp",
    "namespace",
    "running_sum",
    "safe_divide",
    "sigmoid",
    "softmax_parts",
    "sum_products",
    "sum_slices",
    "to_logits",
    "to_numpy",
    "top1",
]


# log and 1/p stay finite in float32.
PROBABILITY_FLOOR = 1e-37

# Of a logit of -inf, less the largest: the square of its half is finite.
_LOWEST = -1e18

_BLOCK = 512


class TopOne(NamedTuple):
    """The predicted class of each sample.

    Attributes:
        confidence: Probability of that class `(n,)`, in [0, 1].
        log_odds: log(confidence / (1 - confidence)) `(n,)`; from logits it
            does not saturate where the confidence rounds to 1.
    """

    confidence: Any
    log_odds: Any


class SoftmaxParts(NamedTuple):
    """The softmax p of logits z, `(..., num_classes)`.

    Attributes:
        shifted: z less its largest entry, <= 0; finite where z is -inf.
        log_probs: log p, <= 0, finite where p rounds to 0.
        probs: p.
    """

    shifted: Any
    log_probs: Any
    probs: Any

    def cross_entropy(self, labels: Any) -> Any:
        """-sum_k labels_k log p_k of labels that sum to 1, `(...)`."""
        return -ops.sum(labels * self.log_probs, axis=-1)


def namespace(x: Any) -> Any:
    """The module to compute `x` with: NumPy for arrays, else keras.ops."""
    return np if isinstance(x, np.ndarray | np.generic) else ops


def to_numpy(x: Any, dtype: Any = None) -> np.ndarray:
    """A NumPy array from anything array-like, on any backend."""
    if not isinstance(x, np.ndarray):
        x = ops.convert_to_numpy(x) if hasattr(x, "shape") else np.asarray(x)
    return x if dtype is None else x.astype(dtype, copy=False)


def as_numbers(x: Any, name: str) -> Any:
    """The door of arrays: a NumPy array or tensor of real numbers.

    Arrays and tensors pass as they are. Variables become tensors; lists, and
    what has `__array__`, such as the columns of pandas, NumPy arrays.

    Args:
        x: Anything array-like.
        name: What the caller calls it, for errors.

    Returns:
        A NumPy array or a tensor.

    Raises:
        TypeError: If it is masked, ragged, complex, or not of numbers.
    """
    if isinstance(x, np.ndarray):
        check_numbers(name, x)
        return _native(np.asarray(x))
    if backend.is_keras_tensor(x):
        return x
    if ops.is_tensor(x) or isinstance(x, keras.Variable):
        check_numbers(name, x)
        x = x.value if isinstance(x, keras.Variable) else x
        x = ops.convert_to_tensor(x, sparse=False)
        # Keras leaves a variable of TensorFlow as it is.
        return x.read_value() if hasattr(x, "read_value") else x
    if isinstance(x, list | tuple) and x:
        check_numbers(name, x[0], of_part=True)
    if hasattr(x, "detach"):
        x = x.detach().cpu()
    try:
        array = np.asarray(x)
    except ValueError:
        # Rows of several lengths.
        array = np.empty((), object)
    except (NotImplementedError, RuntimeError, TypeError):
        # A list of tensors that have no values yet, or need a gradient.
        return ops.convert_to_tensor(x)
    check_numbers(name, array)
    return _native(array)


def _native(array: np.ndarray) -> np.ndarray:
    """In the byte order of the machine, which JAX and torch need."""
    if array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))


def as_array(x: Any, name: str, dtype: Any = None) -> np.ndarray:
    """`as_numbers`, as a NumPy array."""
    return to_numpy(as_numbers(x, name), dtype)


def concrete(x: Any) -> np.ndarray | None:
    """The value of `x`, or None while a graph is traced."""
    try:
        return np.asarray(ops.convert_to_numpy(x))
    except (NotImplementedError, TypeError, ValueError):
        return None


def at_least_float32(x: Any, name: str = "logits") -> Any:
    """Casts integers and half precision to float32; keeps float32 and 64.

    A squared hinge overflows float16 beyond logits of 250. Lists become what
    Keras makes of them.
    """
    listed = isinstance(x, list | tuple)
    x = as_numbers(x, name)
    if listed and namespace(x) is np:
        x = x.astype(backend.floatx())
    x = ops.convert_to_tensor(x)
    dtype = backend.standardize_dtype(x.dtype)
    return x if dtype in ("float32", "float64") else ops.cast(x, "float32")


def labels_like(labels: Any, logits: Any) -> Any:
    """Soft labels of the shape and in the dtype of a tensor of logits."""
    labels = as_numbers(labels, "labels")
    if not fits(shape_of(labels), shape_of(logits)):
        raise ValueError(
            invalid(
                "`labels` must be one-hot or soft, of the shape of `logits`",
                **{
                    "labels.shape": shape_of(labels),
                    "logits.shape": shape_of(logits),
                },
            )
        )
    return ops.cast(labels, logits.dtype)


def at_least(x: Any, bound: float) -> Any:
    """max(x, bound) in the dtype of `x` (either)."""
    if namespace(x) is np:
        return np.maximum(x, x.dtype.type(bound))
    if backend.backend() == "torch":
        # Its ops.maximum rounds float64 to float32.
        return ops.where(x < bound, ops.full_like(x, bound), x)
    return ops.maximum(x, bound)


def running_sum(x: Any) -> Any:
    """Sums over the first axis so far, in the dtype of `x`, `(n, columns)`.

    By blocks, whose sums are summed in turn: rounding errors grow with the
    root of n, not with n.
    """
    count = ops.shape(x)[0]
    rest = ops.zeros((-count % _BLOCK, x.shape[1]), dtype=x.dtype)
    blocks = ops.concatenate([x, rest], axis=0)
    blocks = ops.reshape(blocks, (-1, _BLOCK, x.shape[1]))
    inside = cumsum(blocks, axis=1)
    totals = inside[:, -1:]
    # Shifted, not less its own total: that can be much the larger.
    before = ops.concatenate([ops.zeros_like(totals[:1]), totals[:-1]], axis=0)
    before = cumsum(before, axis=0)
    return ops.reshape(inside + before, (-1, x.shape[1]))[:count]


def cumsum(x: Any, axis: int) -> Any:
    """Sums along an axis so far, in the dtype of `x` (either)."""
    if namespace(x) is np:
        return np.cumsum(x, axis=axis)
    if backend.backend() == "torch":
        # Its ops.cumsum rounds float64 to float32.
        return x.cumsum(axis)
    return ops.cumsum(x, axis=axis)


def sum_products(x: Any, y: Any) -> Any:
    """Sums of x y over the last axis (either).

    Args:
        x: Shape `(..., n)`.
        y: Shape `(n,)`, or any that broadcasts.

    Returns:
        Shape `(...)`, in the dtype of `x`.
    """
    xp = namespace(x)
    if len(y.shape) > 1 or xp is np or backend.backend() == "jax":
        return xp.sum(x * y, axis=-1)
    # A product with a matrix: compilers would compute y anew for each row of
    # x. In float64, which no device rounds to 10 bits; JAX has none.
    product = ops.matmul(ops.cast(x, "float64"), ops.cast(y, "float64"))
    return ops.cast(product, x.dtype)


def sum_slices(x: Any, ends: np.ndarray) -> Any:
    """Sums over slices of an array that lie side by side (either).

    Args:
        x: Shape `(n,)`.
        ends: Where each slice starts, and at last n; ascending integers
            `(num_slices + 1,)`.

    Returns:
        Shape `(num_slices,)`, in the dtype of `x`.
    """
    xp = namespace(x)
    if xp is ops and backend.backend() != "jax":
        places = np.arange(x.shape[-1])
        inside = (ends[:-1, None] <= places) & (places < ends[1:, None])
        inside = ops.convert_to_tensor(inside, dtype=x.dtype)
        return sum_products(inside, x)
    return xp.stack(
        [
            xp.sum(x[start:end])
            for start, end in zip(ends[:-1], ends[1:], strict=True)
        ]
    )


def safe_divide(numerator: Any, denominator: Any) -> Any:
    """Quotient, 0 where the denominator is 0 (either)."""
    xp = namespace(denominator)
    zero = denominator == 0
    quotient = numerator / xp.where(
        zero, xp.ones_like(denominator), denominator
    )
    return xp.where(zero, xp.zeros_like(quotient), quotient)


def logsumexp(x: Any, axis: int = -1, keepdims: bool = False) -> Any:
    """log(sum(exp(x))), finite for any finite `x`; -inf if all are (either)."""
    xp = namespace(x)
    top = xp.max(x, axis=axis, keepdims=True)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    total = xp.sum(xp.exp(x - top), axis=axis, keepdims=True)
    # An empty sum: log(0) without NumPy's warning.
    empty = total == 0
    value = xp.log(xp.where(empty, xp.ones_like(total), total)) + top
    value = xp.where(empty, xp.full_like(value, -np.inf), value)
    return value if keepdims else xp.squeeze(value, axis=axis)


def softmax_parts(logits: Any) -> SoftmaxParts:
    """What losses need of the softmax, in few passes over the logits."""
    shifted = logits - ops.max(logits, axis=-1, keepdims=True)
    # A class that is ruled out: 0 times infinity would be NaN.
    lowest = ops.full_like(shifted, _LOWEST)
    shifted = ops.where(shifted < _LOWEST, lowest, shifted)
    log_probs = ops.log_softmax(shifted, axis=-1)
    return SoftmaxParts(shifted, log_probs, ops.softmax(shifted, axis=-1))


def sigmoid(log_odds: Any) -> Any:
    """1 / (1 + exp(-log_odds)), without overflow (either)."""
    xp = namespace(log_odds)
    e = xp.exp(-xp.abs(log_odds))
    return xp.where(log_odds >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


def to_logits(probs: Any) -> Any:
    """Logits log p, so that softmax gives p; floored at 1e-37 (either)."""
    xp = namespace(probs)
    return xp.log(at_least(probs, PROBABILITY_FLOOR))


def top1(outputs: Any, *, from_logits: bool) -> TopOne:
    """Confidence and log-odds of the predicted class (either).

    Derivation: docs/derivations.md, 'Log-odds map'.

    Args:
        outputs: Logits or probabilities `(n, num_classes)`.
        from_logits: Which of the two.
    """
    xp = namespace(outputs)
    largest = xp.max(outputs, axis=-1)
    if not from_logits:
        # Of the largest probability alone, so that samples tie as given.
        confidence = xp.clip(largest, 0.0, 1.0)
        one = confidence == 1.0
        inside = xp.where(one, xp.full_like(confidence, 0.5), confidence)
        log_odds = to_logits(inside) - xp.log1p(-inside)
        log_odds = xp.where(one, xp.full_like(log_odds, np.inf), log_odds)
        return TopOne(confidence, log_odds)
    # The largest less the logsumexp of all others, of which some may equal
    # it. Shifted by the second largest, which resolves the largest gaps.
    at_top = outputs == xp.expand_dims(largest, -1)
    zeros, nothing = xp.zeros_like(outputs), xp.full_like(outputs, -np.inf)
    ties = xp.sum(xp.where(at_top, xp.ones_like(outputs), zeros), axis=-1)
    ties = ties - 1.0
    others = xp.where(at_top, nothing, outputs)
    second = xp.where(ties > 0, largest, xp.max(others, axis=-1))
    second = xp.where(xp.isfinite(second), second, xp.zeros_like(second))
    total = xp.sum(xp.exp(others - xp.expand_dims(second, -1)), axis=-1)
    total = total + ties
    # No other class is left: infinite, without NumPy's warning.
    alone = total == 0
    log_odds = xp.log(xp.where(alone, xp.ones_like(total), total))
    log_odds = largest - second - log_odds
    log_odds = xp.where(alone, xp.full_like(log_odds, np.inf), log_odds)
    return TopOne(sigmoid(log_odds), log_odds)


def is_wrong(outputs: Any, labels: Any) -> Any:
    """Where the first of the largest outputs is not the label (either).

    Args:
        outputs: Logits or probabilities `(n, num_classes)`.
        labels: Class ids `(n,)`; an id out of range may give anything.

    Returns:
        bool `(n,)`.
    """
    if namespace(outputs) is np:
        return np.argmax(outputs, axis=-1) != labels
    # Without ops.argmax, which costs several times a maximum.
    label = ops.expand_dims(ops.clip(labels, 0, outputs.shape[-1] - 1), -1)
    largest = ops.max(outputs, axis=-1, keepdims=True)
    of_label = ops.take_along_axis(outputs, label, axis=-1)
    classes = ops.arange(outputs.shape[-1], dtype="int32")
    earlier = ops.logical_and(classes < label, outputs >= largest)
    return ops.logical_or(
        ops.squeeze(of_label < largest, axis=-1), ops.any(earlier, axis=-1)
    )

"""Small numeric functions that losses, scores, metrics and calibrators share.

Functions marked "array-agnostic" run on NumPy arrays in float64, and on tensors
of the backend in float32. `array_namespace` makes this possible.
"""

import functools
import importlib
import itertools
import re
import types
from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.late import keras_module

keras = keras_module("keras")
backend = keras_module("keras.backend")
ops = keras_module("keras.ops")

_BLOCK = 512
# Codes of the dtypes of real numbers that every backend has a tensor of.
_PLAIN = frozenset("?bBhHiIlLqQefd")
_ARRAYS = np.ndarray | np.generic
# What is no tensor, and needs no Keras.
_OF_NUMPY = _ARRAYS | list | tuple | float | int


def array_namespace(x: Any) -> Any:
    """Module to compute with: NumPy for its arrays, else keras.ops."""
    return np if isinstance(x, _ARRAYS) else _keras_ops()


@functools.cache
def _keras_ops() -> Any:
    """The module itself, for comparisons by `is`."""
    return importlib.import_module("keras.ops")


@functools.cache
def host_math() -> Any:
    """NumPy, with logarithms of the backend, which rounds them otherwise."""

    def of_backend(function):
        return lambda x: on_host(function(ops.convert_to_tensor(x)))

    own = {x: of_backend(getattr(ops, x)) for x in ("arcsinh", "log", "log1p")}
    return types.SimpleNamespace(**{**vars(np), **own})


def to_numpy(x: Any, dtype: Any = None) -> np.ndarray:
    """Convert anything array-like, on any backend, to a NumPy array."""
    if not isinstance(x, np.ndarray):
        x = ops.convert_to_numpy(x) if hasattr(x, "shape") else np.asarray(x)
    return x if dtype is None else x.astype(dtype, copy=False)


def as_numbers(x: Any, name: str) -> Any:
    """Convert anything array-like to an array or tensor of real numbers."""
    # The usual arrays need no search for tensors, which takes 12 microseconds.
    if type(x) is np.ndarray and x.dtype.char in _PLAIN and x.dtype.isnative:
        return x
    if not isinstance(x, _OF_NUMPY):
        if backend.is_keras_tensor(x):
            return x
        if ops.is_tensor(x) or isinstance(x, keras.Variable):
            check_numbers(name, x)
            x = x.value if isinstance(x, keras.Variable) else x
            x = ops.convert_to_tensor(x, sparse=False)
            # Keras does not convert variables of TensorFlow.
            return x.read_value() if hasattr(x, "read_value") else x
    first = x[0] if isinstance(x, list | tuple) and x else x
    check_numbers(name, first, of_part=True)
    if hasattr(x, "detach"):
        x = x.detach().cpu()
    try:
        array = np.asarray(x)
    except ValueError:
        # Rows of several lengths.
        array = np.empty((), object)
    except (NotImplementedError, RuntimeError, TypeError):
        # The list holds tensors without values, or with gradients.
        return ops.convert_to_tensor(x)
    check_numbers(name, array)
    if array.dtype == np.longdouble:
        # Tensors have no such dtype.
        return array.astype("float64", copy=False)
    # JAX and torch need the byte order of the machine.
    if array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))


def as_array(x: Any, name: str, dtype: Any = None) -> np.ndarray:
    """Convert anything array-like to a NumPy array of real numbers."""
    if type(x) in (bool, float) or isinstance(x, np.generic):
        x = np.asarray(x)
    x = as_numbers(x, name)
    is_done = isinstance(x, np.ndarray) and dtype is None
    return x if is_done else to_numpy(x, dtype)


def on_host(x: Any) -> np.ndarray:
    """The values of an array or tensor, not copied if they are on the host."""
    if isinstance(x, np.ndarray):
        return x
    from keras_calib.backend.traced import host_array

    array = host_array(x)
    return to_numpy(x) if array is None else array


def value_if_eager(x: Any) -> np.ndarray | None:
    """Value of `x`, or None while a graph is traced."""
    try:
        return np.asarray(ops.convert_to_numpy(x))
    except (NotImplementedError, TypeError, ValueError):
        return None


def at_least_float32(x: Any, name: str = "logits", xp: Any = None) -> Any:
    """Convert to a float32 or float64 tensor; lists get Keras' floatx.

    Arrays stay such if `xp` is NumPy.
    """
    if xp is np:
        x = as_array(x, name)
        wide = x.dtype in (np.float32, np.float64)
        return x if wide else x.astype("float32")
    listed = isinstance(x, list | tuple)
    x = as_numbers(x, name)
    if isinstance(x, np.ndarray):
        # JAX would wrap integers that int32 cannot hold.
        if listed:
            x = x.astype(backend.floatx())
        elif x.dtype.kind in "biu":
            x = x.astype("float32")
    x = ops.convert_to_tensor(x)
    dtype = backend.standardize_dtype(x.dtype)
    return x if dtype in ("float32", "float64") else ops.cast(x, "float32")


def labels_like(labels: Any, logits: Any) -> Any:
    """Check that labels have the shape of logits, and cast to their dtype."""
    labels = as_numbers(labels, "labels")
    if not fits(shape_of(labels), shape_of(logits)):
        raise value_error(
            "`labels` must be one-hot or soft, of the shape of `logits`",
            **{
                "labels.shape": shape_of(labels),
                "logits.shape": shape_of(logits),
            },
        )
    return ops.cast(labels, logits.dtype)


def at_least(x: Any, bound: float) -> Any:
    """max(x, bound) in the dtype of `x` (array-agnostic)."""
    if isinstance(x, _ARRAYS):
        return np.maximum(x, x.dtype.type(bound))
    if backend.backend() == "torch":
        # ops.maximum rounds float64 to float32 on torch.
        return ops.where(x < bound, ops.full_like(x, bound), x)
    return ops.maximum(x, bound)


def cast(x: Any, dtype: str) -> Any:
    """Values in another dtype (array-agnostic)."""
    if isinstance(x, _ARRAYS):
        return x.astype(dtype, copy=False)
    return ops.cast(x, dtype)


def running_sum(x: Any) -> Any:
    """Cumulative sums over the first axis, by blocks (array-agnostic)."""
    xp = array_namespace(x)
    count = xp.shape(x)[0]
    rest = xp.zeros((-count % _BLOCK, x.shape[1]), dtype=x.dtype)
    blocks = xp.concatenate([x, rest], axis=0)
    blocks = xp.reshape(blocks, (-1, _BLOCK, x.shape[1]))
    inside = cumsum(blocks, axis=1)
    totals = inside[:, -1:]
    # Subtracting a block's own total could lose digits, so they are shifted.
    before = xp.concatenate([xp.zeros_like(totals[:1]), totals[:-1]], axis=0)
    before = cumsum(before, axis=0)
    return xp.reshape(inside + before, (-1, x.shape[1]))[:count]


def cumsum(x: Any, axis: int) -> Any:
    """Cumulative sums in the dtype of `x` (array-agnostic)."""
    if isinstance(x, np.ndarray):
        return np.cumsum(x, axis=axis)
    if backend.backend() == "torch":
        # ops.cumsum rounds float64 to float32 on torch.
        return x.cumsum(axis)
    return ops.cumsum(x, axis=axis)


def sum_products(x: Any, y: Any) -> Any:
    """Sums of x y over the last axis, in the dtype of x (array-agnostic)."""
    xp = array_namespace(x)
    if len(y.shape) > 1 or xp is np or backend.backend() == "jax":
        return xp.sum(x * y, axis=-1)
    # Compilers would compute y anew for each row of x, so this is a product
    # of matrices. Devices may round float32 to 10 bits, so it is in float64.
    product = ops.matmul(ops.cast(x, "float64"), ops.cast(y, "float64"))
    return ops.cast(product, x.dtype)


def sum_slices(x: Any, ends: np.ndarray) -> Any:
    """Sums of x `(n,)` over adjacent slices with these ends, ascending."""
    xp = array_namespace(x)
    if xp is not np and backend.backend() != "jax":
        places = np.arange(x.shape[-1])
        inside = (ends[:-1, None] <= places) & (places < ends[1:, None])
        inside = ops.convert_to_tensor(inside, dtype=x.dtype)
        return sum_products(inside, x)
    return xp.stack([xp.sum(x[a:b]) for a, b in itertools.pairwise(ends)])


def tanh(x: Any) -> Any:
    """Hyperbolic tangent of a tensor, in its dtype."""
    is_wide = backend.standardize_dtype(x.dtype) == "float64"
    if backend.backend() != "jax" or not is_wide:
        return ops.tanh(x)
    # ops.tanh rounds float64 to float32 on JAX.
    e = ops.expm1(-2.0 * ops.abs(x))
    y = -e / (2.0 + e)
    return ops.where(x < 0.0, -y, y)


def safe_divide(numerator: Any, denominator: Any) -> Any:
    """Quotient, 0 where the denominator is 0 (array-agnostic)."""
    xp = np if isinstance(denominator, _ARRAYS) else ops
    zero = denominator == 0
    quotient = numerator / xp.where(
        zero, xp.ones_like(denominator), denominator
    )
    return xp.where(zero, xp.zeros_like(quotient), quotient)


_REAL = re.compile(r"bool_?|u?int\d+|b?float\d+\w*|half|double")


def shape_of(x: Any) -> tuple:
    """Static shape as a tuple, where unknown sizes are None."""
    return tuple(x.shape)


def fits(shape: tuple, expected: tuple) -> bool:
    """Whether two static shapes can be equal; None fits anything."""
    return shape == expected or (
        len(shape) == len(expected)
        and all(
            None in pair or pair[0] == pair[1]
            for pair in zip(shape, expected, strict=True)
        )
    )


def check_numbers(name: str, x: Any, of_part: bool = False) -> None:
    """Raise TypeError unless an array holds real numbers.

    `of_part` checks no more than that it is no masked array.
    """
    kind = type(x).__name__
    if isinstance(x, np.ma.MaskedArray):
        raise type_error(
            f"`{name}` must not be a masked array: pass a plain array, "
            "and 0 in `sample_weight` where a sample must not count",
            type=kind,
        )
    if of_part:
        return
    dtype = getattr(x.dtype, "name", None) or str(x.dtype)
    dtype = "str" if dtype.startswith("str") else dtype
    is_ragged = kind == "RaggedTensor"
    if not is_ragged and _REAL.fullmatch(dtype.rpartition(".")[-1]):
        return
    rule = f"`{name}` must hold real numbers, not complex, ragged or others"
    if "label" in name or "true" in name:
        rule += "; map names to class ids, from 0 on"
    if name == "labels":
        rule += ", or give `Predictions` their `class_names`"
    raise type_error(rule, type=kind, dtype=dtype)

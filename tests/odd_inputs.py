"""Forms in which numbers come, and odd things in place of them."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops
from refusals import FORM

NAN, INF = float("nan"), float("inf")

# Forms in which the same numbers come.


class PandasLike:
    """What pandas and others are to NumPy."""

    def __init__(self, array):
        self._array = array
        self.shape = array.shape

    def __len__(self):
        return len(self._array)

    def __array__(self, dtype=None, copy=None):
        return np.array(self._array, dtype=dtype)


def _strided(x):
    if x.ndim == 1:
        return np.repeat(x, 2)[::2]
    wide = np.zeros((2 * len(x), *x.shape[1:-1], 2 * x.shape[-1]), x.dtype)
    wide[::2, ..., ::2] = x
    return wide[::2, ..., ::2]


def _read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def _with_gradient(x):
    """A tensor or variable through which a gradient would run."""
    if keras.backend.backend() == "torch":
        return ops.convert_to_tensor(x).requires_grad_(True)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.Variable(x)
    return ops.convert_to_tensor(x)


PREDICTION_FORMS = {
    "float16": lambda x: x.astype("float16"),
    "bfloat16": lambda x: ops.cast(x, "bfloat16"),
    "float64": lambda x: x.astype("float64"),
    "big-endian": lambda x: x.astype(">f4"),
    "Fortran": lambda x: np.asfortranarray(x),
    "strided": _strided,
    "reversed": lambda x: x[::-1].copy()[::-1],
    "read-only": _read_only,
    "list": lambda x: x.tolist(),
    "tuple of arrays": tuple,
    "tensor": ops.convert_to_tensor,
    "variable": keras.Variable,
    "with gradient": _with_gradient,
    "pandas": PandasLike,
}
LABEL_FORMS = {
    "uint8": lambda y: y.astype("uint8"),
    "int16": lambda y: y.astype("int16"),
    "float": lambda y: y.astype("float32"),
    "(n, 1)": lambda y: y[..., None],
    "one-hot": lambda y: np.eye(3)[y],
    "one-hot bool": lambda y: np.eye(3, dtype=bool)[y],
    "one-hot int": lambda y: np.eye(3, dtype="int32")[y],
    "list": lambda y: y.tolist(),
    "tensor": ops.convert_to_tensor,
    "big-endian": lambda y: y.astype(">i8"),
    "pandas": PandasLike,
    "variable": lambda y: keras.Variable(y, dtype="int32", trainable=False),
    "reversed": lambda y: y[::-1].copy()[::-1],
}
WEIGHT_FORMS = {
    "ints": lambda w: w.astype("int32"),
    "list": lambda w: w.tolist(),
    "(n, 1)": lambda w: w[..., None],
    "float16": lambda w: w.astype("float16"),
    "tensor": lambda w: ops.convert_to_tensor(w.astype("float32")),
}


# What is no number, or not where it should be.


def _first(x, value):
    x = x.astype("float64")
    x[(0,) * x.ndim] = value
    return x


def _ragged(x):
    rows = x.tolist()
    rows[0] = rows[0][:-1] if isinstance(rows[0], list) else [rows[0]]
    return rows


ODD_ARRAYS = {
    "masked": lambda x: np.ma.array(x, mask=_first(x, 99) == 99),
    "masked nowhere": lambda x: np.ma.array(x),
    "complex": lambda x: x + 1j,
    "strings": lambda x: x.astype(str),
    "objects": lambda x: x.astype(object),
    "ragged": _ragged,
    "None": lambda x: None,
    "dates": lambda x: x.astype("int64").astype("datetime64[s]"),
    "bytes": lambda x: x.astype("S"),
    "dict": lambda x: {"x": x},
    "one number": lambda x: 0.5,
    "too short": lambda x: x[:-1],
    "too long": lambda x: np.concatenate([x, x[:1]]),
}
ODD_LABELS = {
    "id too large": lambda y: np.where(y == 1, 3, y),
    "id -1": lambda y: np.where(y == 1, -1, y),
    "id 255 of uint8": lambda y: np.where(y == 1, 255, y).astype("uint8"),
    "half an id": lambda y: y + 0.5,
    "id NaN": lambda y: _first(y, NAN),
    "id inf": lambda y: _first(y, INF),
    "(n, 2)": lambda y: np.stack([y, y], axis=-1),
    "one-hot of two": lambda y: np.eye(2)[y % 2],
    "one-hot of four": lambda y: np.eye(4)[y],
    "several classes": lambda y: np.ones((*y.shape, 3)) - [0, 0, 1],
    "no class": lambda y: np.zeros((*y.shape, 3)),
    "rows below 0": lambda y: np.eye(3)[y] * 3 - 2 / 3,
}
# Ids of no class: a cast to int32 or float32 would make classes of them.
WIDE_IDS = {
    "2^31": ("int64", 2**31),
    "2^32": ("int64", 2**32),
    "2^33 + 1": ("int64", 2**33 + 1),
    "-2^32": ("int64", -(2**32)),
    "2^32 without sign": ("uint64", 2**32),
    "2^63": ("uint64", 2**63),
    "2^32 as a float": ("float64", 2.0**32),
    "almost 1": ("float64", 1.0000001),
    "2^32 as an object": ("object", 2**32),
    "2^32 as text": ("str", 2**32),
}


def with_wide_id(labels: np.ndarray, kind: str) -> np.ndarray:
    """The same labels, but where they were as the last."""
    dtype, value = WIDE_IDS[kind]
    changed = labels == labels.flat[-1]
    if dtype == "str":
        return np.where(changed, value, labels).astype(str)
    wide = labels.astype(dtype)
    wide[changed] = value
    return wide


ODD_PREDICTIONS = {
    "NaN": lambda x: _first(x, NAN),
    "all NaN": lambda x: np.full_like(x, NAN),
    "infinite": lambda x: _first(x, INF),
    "without the classes": lambda x: x[..., 0],
    "no classes": lambda x: x[..., :0],
}
ODD_PROBS = {
    "logits": lambda p: np.log(p) * 3,
    "half": lambda p: p * 0.5,
    "sigmoids": lambda p: 1 - p * 0.5,
    "mass missing": lambda p: np.where(p == p.max(-1, keepdims=True), p, 0),
    "off by 0.04": lambda p: p * 1.04,
    "percent": lambda p: 100 * p,
    "-inf": lambda p: _first(p, -INF),
    "below 0": lambda p: p - 0.5 * np.cos(np.pi * np.arange(p.shape[-1])),
}
ODD_WEIGHTS = {
    "negative": lambda w: _first(w, -1.0),
    "NaN": lambda w: _first(w, NAN),
    "infinite": lambda w: _first(w, INF),
    "a column for each class": lambda w: np.ones((*w.shape, 3)),
}


def numbers(result: Any) -> np.ndarray:
    """All numbers that are somewhere in a result, float64 `(m,)`."""
    found = list(_numbers(result, 0))
    return np.concatenate(found) if found else np.zeros(0)


def _numbers(x, depth):
    if x is None or isinstance(x, str | bytes) or callable(x) or depth > 6:
        return
    if isinstance(x, dict):
        for value in x.values():
            yield from _numbers(value, depth + 1)
    elif isinstance(x, list | tuple):
        for value in x:
            yield from _numbers(value, depth + 1)
    elif hasattr(x, "shape") or isinstance(x, int | float | np.number):
        array = np.asarray(ops.convert_to_numpy(x))
        if array.dtype.kind in "biuf" or "float" in array.dtype.name:
            yield array.astype("float64").reshape(-1)
    elif hasattr(x, "__dict__"):
        yield from _numbers(vars(x), depth + 1)


def outcome(call: Callable) -> tuple[Any, list[str]]:
    """Numbers or an exception, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = numbers(call())
        except Exception as error:
            found = error
    told = [str(w.message) for w in caught if w.category is RuntimeWarning]
    return found, told


def is_error(found: Any) -> bool:
    return isinstance(found, Exception)


def of_house(found: Any) -> bool:
    """Whether this is an error in the words of the house."""
    known = isinstance(found, ValueError | TypeError | RuntimeError)
    return known and FORM.search(str(found)) is not None


def shown(found: Any) -> str:
    if is_error(found):
        return f"{type(found).__name__}: {str(found)[:160]}"
    return str(found[:4])

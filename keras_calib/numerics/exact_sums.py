"""Sums that stay exact at any size, in int32 on every backend.

Sums are kept in three int32 limbs of radix 2^24, in units of 2^-30. They are
exact, do not depend on order or batches, and merge by addition. Sums up to 2^45
fit; larger ones stop there, and `is_saturated` finds them. In a batch values
are cut into base-256 digits, whose integer sums are exact up to 2^23 values.
NumPy arrays are summed by NumPy, to the same limbs.

Sums by key and of rows are over the last axis. Axes before it are kept, each
with a scale of its own.

Derivation: docs/derivations.md, 'Exact sums'.
"""

from typing import Any

import numpy as np
from keras import backend, ops

from keras_calib.backend.compiled import sums_of_segments
from keras_calib.numerics.arrays import array_namespace, cast, cumsum

NUM_LIMBS = 3
MAX_BATCH = 2**22
_LIMB_BITS = 24
_UNIT_BITS = 30
_POWERS = 2.0 ** np.arange(-60, 61)
# The highest limb of a sum that left its range. The sum over 15 replicas fits
# in int32. Up to 31 replicas it is negative, which `is_saturated` finds too.
_SATURATED = 2**27


def add(state: Any, addition: Any) -> Any:
    """Add two int32 limb arrays `(3, ...)`, and move up the carries.

    Each limb of `addition` must be below 2^30, the highest below 1.6e9.
    """
    return normalize_limbs(state + addition)


def normalize_limbs(limbs: Any) -> Any:
    """Move up carries, so that lower limbs are < 2^24 (array-agnostic)."""
    xp, mask = array_namespace(limbs), 2**_LIMB_BITS - 1
    low, middle, high = (limbs[i] for i in range(NUM_LIMBS))
    middle = middle + xp.right_shift(low, _LIMB_BITS)
    high = high + xp.right_shift(middle, _LIMB_BITS)
    high = xp.minimum(high, _SATURATED)
    low, middle = xp.bitwise_and(low, mask), xp.bitwise_and(middle, mask)
    limbs = xp.stack([low, middle, high], axis=0)
    return limbs.astype("int32") if xp is np else limbs


def is_saturated(limbs: np.ndarray) -> np.ndarray:
    """Mask of the sums that left their range, of NumPy limbs `(3, ...)`."""
    return (limbs[-1] >= _SATURATED) | (limbs[-1] < 0)


def count_by_key(keys: Any, num_keys: int) -> Any:
    """Count int32 keys `(n,)` by key; key `num_keys` is dropped."""
    if isinstance(keys, np.ndarray):
        return _counted(keys, None, num_keys).astype("int32")
    return _integer_sum(ops.ones_like(keys), keys, num_keys)


def limbs_from_counts(counts: Any) -> Any:
    """Limbs `(3, ...)` of integer counts."""
    return _to_limbs_shifted(counts, _UNIT_BITS)


def power_of_two_above(values: Any) -> Any:
    """The smallest power of two >= the largest of a row, at least 2^-60."""
    xp, powers = array_namespace(values), _POWERS.astype("float32")
    if xp is ops:
        powers = ops.convert_to_tensor(powers)
    largest = xp.max(values, axis=-1, keepdims=True)
    below = xp.sum(cast(powers < largest, "int32"), axis=-1)
    # exp2 and pow are not exact on every backend, hence the table.
    return xp.take(powers, xp.minimum(below, len(_POWERS) - 1))


def sum_by_key(
    values: Any,
    keys: Any,
    num_keys: int,
    *,
    scale: Any = None,
    num_digits: int | None = None,
) -> Any:
    """Limbs `(3, num_keys)` of the sum of `values` over each key.

    Values lie in `[0, scale]`, with `scale` a power of two. Each is rounded
    once, to `num_digits` base-256 digits. The default is scale 1 with the three
    digits of float32. Key `num_keys` is dropped. n is at most 2 `MAX_BATCH`.
    Values and keys `(m, n)` give `(3, m, num_keys)`, of a scale for each row.
    """
    num_digits = num_digits or (3 if scale is None else 4)
    if scale is None and array_namespace(values) is np:
        # All digits at once: float64 holds their sums.
        whole = np.round(values * 2.0 ** (8 * num_digits))
        totals = _counted(keys, whole, num_keys)
        shift = _UNIT_BITS - 8 * num_digits
        return _to_limbs_shifted(
            np.left_shift(totals.astype("int64"), shift), 0
        )
    if scale is None:
        bits, num_digits = _fewest_digits(values.shape[-1], num_digits)
        return sum(
            _to_limbs_shifted(
                _integer_sum(digit, keys, num_keys),
                _UNIT_BITS - bits * position,
            )
            for position, digit in enumerate(
                _digits(values, num_digits, bits), start=1
            )
        )
    xp = array_namespace(values)
    digits = _digits(values / xp.expand_dims(scale, -1), num_digits)
    sums = [_integer_sum(digit, keys, num_keys) for digit in digits]
    units = _times(_units(xp, num_digits), scale)
    return _to_limbs(xp.stack(sums), xp.expand_dims(units, -1))


def sum_rows(values: Any) -> Any:
    """Limbs `(3, ..., m)` of the sums of rows `(..., m, n)` of values >= 0."""
    xp = array_namespace(values)
    # One value of this size saturates the sum.
    values = xp.minimum(values, float(_POWERS[-1]))
    scale = power_of_two_above(values)
    digits = _digits(values / xp.expand_dims(scale, -1), 4)
    if xp is np:
        sums = np.stack([x.sum(axis=-1, dtype="int32") for x in digits])
        return _to_limbs(sums, _times(_units(xp, 4), scale))
    digits = xp.stack(digits)
    if values.shape[-1] is None:
        digits = ops.cast(digits, "int64")
    sums = xp.sum(digits, axis=-1)
    return _to_limbs(sums, _times(_units(xp, 4), scale))


def column_digits(values: Any) -> Any:
    """Integer sums `(2, columns)` of base-4096 digits of values in [0, 1]."""
    if array_namespace(values) is np:
        return _column_digits(values)
    digits = _digits(values, 2, bits=12)
    if values.shape[0] is None:
        digits = [ops.cast(digit, "int64") for digit in digits]
    return ops.stack([ops.sum(digit, axis=0) for digit in digits])


def _column_digits(values: np.ndarray) -> np.ndarray:
    """The same for NumPy, in fewer passes over the values."""
    high = values * np.float32(2.0**12)
    low = np.rint(high * np.float32(2.0**12)).astype("int32")
    high = high.astype("int32")
    low -= np.left_shift(high, 12)
    return np.stack([x.sum(axis=0, dtype="int32") for x in (high, low)])


def digits_by_key(values: Any, keys: Any, num_keys: int) -> Any:
    """Integer sums `(2, num_keys)` of base-4096 digits over each key."""
    digits = _digits(values, 2, bits=12)
    sums = [_integer_sum(digit, keys, num_keys) for digit in digits]
    return array_namespace(values).stack(sums)


def limbs_of_digits(sums: Any, scale: Any) -> Any:
    """Limbs `(3, m)` of base-4096 digit sums `(2, m)` times `scale`."""
    xp = array_namespace(sums)
    units = scale * _units(xp, 2, bits=12)
    return _to_limbs(sums, xp.expand_dims(units, -1))


def to_float(limbs: Any, dtype: str = "float32") -> Any:
    """Numbers of limbs, in float64 for NumPy limbs (array-agnostic)."""
    if array_namespace(limbs) is np:
        limbs = limbs.astype("float64")
    else:
        limbs = ops.cast(limbs, dtype)
    value = limbs[0] * 2.0**-_UNIT_BITS
    value = value + limbs[1] * 2.0 ** (_LIMB_BITS - _UNIT_BITS)
    return value + limbs[2] * 2.0 ** (2 * _LIMB_BITS - _UNIT_BITS)


def of_floats(values: np.ndarray) -> np.ndarray:
    """Limbs `(3, n)`, in float64, of which `to_float` is `values`."""
    limbs = np.zeros((NUM_LIMBS, *values.shape))
    limbs[0] = values * 2.0**_UNIT_BITS
    return limbs


def sum_before(limbs: Any) -> Any:
    """Sum of all earlier cells of limbs along the last axis (array-agnostic).

    It is computed in float64. JAX, which has none, uses integers of 12 bits,
    for n below 2^19.
    """
    xp = array_namespace(limbs)
    if xp is ops and backend.backend() == "jax":
        return _sum_before_in_integers(limbs)
    values = to_float(limbs, "float64")
    # Subtracting a cell's own value could lose digits, so they are shifted.
    before = xp.concatenate(
        [xp.zeros_like(values[..., :1]), values[..., :-1]], axis=-1
    )
    before = cumsum(before, axis=-1)
    return before if xp is np else ops.cast(before, "float32")


def _sum_before_in_integers(limbs: Any) -> Any:
    limbs = add(limbs, ops.zeros_like(limbs))
    half = _LIMB_BITS // 2
    parts = ops.concatenate(
        [ops.bitwise_and(limbs, 2**half - 1), ops.right_shift(limbs, half)],
        axis=0,
    )
    running = ops.cast(ops.cumsum(parts, axis=-1) - parts, "float32")
    total = 0.0
    # The smallest parts are added first.
    for position in range(NUM_LIMBS):
        for part, shift in ((position, 0), (position + NUM_LIMBS, half)):
            exponent = _LIMB_BITS * position + shift - _UNIT_BITS
            total = total + running[part] * 2.0**exponent
    return total


def _digits(values: Any, num_digits: int, bits: int = 8) -> list[Any]:
    """Digits of `bits` bits of values in [0, 1], the last one rounded."""
    xp, digits = array_namespace(values), []
    for position in range(1, num_digits + 1):
        values = values * 2.0**bits
        last = position == num_digits
        digit = xp.round(values) if last else xp.floor(values)
        values = values - digit
        digits.append(cast(digit, "int32"))
    return digits


def _fewest_digits(count: int | None, num_digits: int) -> tuple[int, int]:
    """Bits and number of the digits that stand for some of base 256.

    One digit does if its sum fits: that over an unknown count has 64 bits.
    """
    bits = 8 * num_digits
    if count is None or count << bits < 2**31:
        return bits, 1
    return 8, num_digits


def _units(xp: Any, num_digits: int, bits: int = 8) -> Any:
    units = 2.0 ** (_UNIT_BITS - bits * np.arange(1, num_digits + 1))
    units = units.astype("float32")
    return units if xp is np else ops.convert_to_tensor(units)


def _times(units: Any, scale: Any) -> Any:
    """Units `(digits,)` times scales `(...)`, `(digits, ...)`."""
    xp = array_namespace(units)
    return xp.reshape(units, (-1,) + (1,) * len(scale.shape)) * scale


def _by_row(values: Any, keys: Any, num_keys: int) -> tuple[Any, Any]:
    """Flat values and keys of rows `(m, n)`, where rows share no key."""
    xp = array_namespace(keys)
    first = xp.arange(keys.shape[0], dtype=keys.dtype) * (num_keys + 1)
    keys = xp.reshape(keys + xp.expand_dims(first, -1), (-1,))
    return None if values is None else xp.reshape(values, (-1,)), keys


def _counted(keys: np.ndarray, values: Any, num_keys: int) -> np.ndarray:
    """Sums in float64, which are exact, over each key of NumPy rows."""
    size = num_keys + 1
    if keys.ndim > 1:
        values, flat = _by_row(values, keys, num_keys)
        sums = np.bincount(flat, values, minlength=len(keys) * size)
        return sums.reshape(len(keys), size)[:, :num_keys]
    return np.bincount(keys, values, minlength=size)[:num_keys]


def _integer_sum(values: Any, keys: Any, num_keys: int) -> Any:
    """Sums of int32 values over each key, in int64 if n is unknown."""
    if array_namespace(keys) is np:
        return _counted(keys, values, num_keys).astype("int32")
    if len(keys.shape) > 1:
        rows, size = keys.shape[0], num_keys + 1
        is_known = keys.shape[-1] is not None
        values, keys = _by_row(values, keys, num_keys)
        if not is_known:
            values = ops.cast(values, "int64")
        sums = _integer_sum(values, keys, rows * size - 1)
        # The last key of the last row is dropped already.
        sums = ops.concatenate([sums, ops.zeros_like(sums[:1])], axis=0)
        return ops.reshape(sums, (rows, size))[:, :num_keys]
    if backend.backend() == "torch":
        # segment_sum adds in float32 on torch, whatever the dtype.
        sums = ops.bincount(keys, weights=values, minlength=num_keys + 1)
        return ops.cast(sums[:num_keys], "int32")
    if values.shape[0] is None:
        # TensorFlow only: callers cannot cut it into blocks of MAX_BATCH.
        values = ops.cast(values, "int64")
    return sums_of_segments(values, keys, num_keys + 1)[:num_keys]


def _to_limbs_shifted(sums: Any, shift: int) -> Any:
    """Limbs of sums times 2^shift, 0 <= shift < 48, in integers for speed."""
    xp = array_namespace(sums)
    if shift < _LIMB_BITS:
        keep = _LIMB_BITS - shift
        low = xp.bitwise_and(sums, 2**keep - 1) * 2**shift
        rest = xp.right_shift(sums, keep)
        # The rest is below 2^24 for int32 sums, and larger for int64.
        middle = xp.bitwise_and(rest, 2**_LIMB_BITS - 1)
        high = xp.right_shift(rest, _LIMB_BITS)
    else:
        low = xp.zeros_like(sums)
        keep = 2 * _LIMB_BITS - shift
        middle = xp.bitwise_and(sums, 2**keep - 1)
        middle = middle * 2 ** (shift - _LIMB_BITS)
        high = xp.right_shift(sums, keep)
    limbs = xp.stack([low, middle, high])
    return limbs.astype("int32") if xp is np else ops.cast(limbs, "int32")


def _to_limbs(sums: Any, units: Any) -> Any:
    """Exact limbs of sums times units, powers of two, over the first axis."""
    xp = array_namespace(sums)
    if xp is np and units.shape[-1] == 1 < sums.shape[-1]:
        # Few keys of a batch have a sum.
        flat = sums.reshape(len(sums), -1)
        used = np.flatnonzero(flat.any(axis=0))
        if len(used) < flat.shape[-1]:
            limbs = np.zeros((NUM_LIMBS, flat.shape[-1]), "int32")
            of_row = units.reshape(len(units), -1)[:, used // sums.shape[-1]]
            limbs[:, used] = _to_limbs(flat[:, used], of_row)
            return limbs.reshape(NUM_LIMBS, *sums.shape[1:])
    is_wide = backend.standardize_dtype(sums.dtype) == "int64"
    num_parts = 3 if is_wide else 2
    parts = [
        xp.bitwise_and(xp.right_shift(sums, 16 * i), 65535)
        for i in range(num_parts)
    ]
    units = xp.concatenate(
        [units * 65536.0**i for i in range(num_parts)], axis=0
    )
    rest = cast(xp.concatenate(parts, axis=0), "float32") * units
    high = xp.floor(rest * 2.0 ** (-2 * _LIMB_BITS))
    rest = rest - high * 2.0 ** (2 * _LIMB_BITS)
    middle = xp.floor(rest * 2.0**-_LIMB_BITS)
    low = xp.round(rest - middle * 2.0**_LIMB_BITS)
    # At most 12 of these are added, so int32 holds the sum. `add` cuts it.
    high = xp.minimum(high, float(_SATURATED))
    return xp.sum(cast(xp.stack([low, middle, high]), "int32"), axis=1)

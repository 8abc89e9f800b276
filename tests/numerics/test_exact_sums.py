"""Integer limbs: running sums, carries and saturation."""

import numpy as np
import pytest
from cases import array
from keras import ops

from keras_calib.numerics import exact_sums

pytestmark = pytest.mark.portable


def test_running_sums_keep_small_cells_beside_large_ones():
    rng = np.random.default_rng(0)
    # Of cells of 2^-30 to 2^41, each the sum of two.
    sizes = [[int(2**x) for x in rng.uniform(0, 71, 500)] for _ in range(4)]
    cells = np.array(sizes, dtype=object).reshape(2, 2, 500)
    limbs = np.stack([cells >> 24 * i & 2**24 - 1 for i in range(3)])
    limbs = limbs.astype("int32").sum(axis=1)
    cells = cells.sum(axis=0)
    for some_limbs, some_cells in ((limbs, cells), (limbs[:, 0], cells[0])):
        before = exact_sums.sum_before(ops.convert_to_tensor(some_limbs))
        exact = np.cumsum(some_cells, axis=-1) - some_cells
        exact = exact.astype("float64") / 2**30
        np.testing.assert_allclose(array(before), exact, rtol=1e-6)


def test_sums_by_key_are_those_of_whole_numbers():
    rng = np.random.default_rng(0)
    # Multiples of 2^-24 up to 1, and of 2^-20 up to 16: nothing is rounded.
    units = rng.integers(0, 2**24 + 1, 300)
    keys = rng.integers(0, 6, 300).astype("int32")
    expected = np.bincount(keys, units, 6)[:5]
    for scale in (None, 16.0):
        values = units / 2**24 * (scale or 1.0)
        limbs = exact_sums.sum_by_key(
            ops.convert_to_tensor(values.astype("float32")),
            ops.convert_to_tensor(keys),
            5,
            scale=None if scale is None else ops.convert_to_tensor(scale),
        )
        found = exact_sums.to_float(array(limbs)) * 2**24 / (scale or 1.0)
        np.testing.assert_array_equal(found, expected)
    counts = exact_sums.count_by_key(ops.convert_to_tensor(keys), 5)
    limbs = array(exact_sums.limbs_from_counts(counts))
    found = exact_sums.to_float(limbs)
    np.testing.assert_array_equal(found, np.bincount(keys, minlength=6)[:5])


def test_carries_go_up_and_stop_at_the_largest_sum():
    top = 2**24 - 1
    state = np.array([[top, top], [top, top], [5, 2**27 - 1]], "int32")
    one = np.array([[1, 1], [0, 0], [0, 0]], "int32")
    added = exact_sums.add(*map(ops.convert_to_tensor, (state, one)))
    expected = [[0, 0], [0, 0], [6, 2**27]]
    np.testing.assert_array_equal(array(added), expected)
    wide = state.astype("int64") + one
    np.testing.assert_array_equal(exact_sums.normalize_limbs(wide), expected)
    found = exact_sums.is_saturated(array(added))
    np.testing.assert_array_equal(found, [False, True])
    again = exact_sums.add(added, ops.convert_to_tensor(state))
    np.testing.assert_array_equal(array(again)[2], [11, 2**27])

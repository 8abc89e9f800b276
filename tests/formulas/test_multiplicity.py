"""Adjusted p-values, and the largest difference of many estimates."""

import numpy as np
import pytest
from scipy.stats import false_discovery_control

from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.functional.group_table import (
    benjamini_hochberg,
    holm,
    largest_difference,
)


def test_holm_adjusts_as_by_hand():
    found = holm([0.04, np.nan, 0.01, 0.03, 0.9])
    np.testing.assert_allclose(found, [0.09, np.nan, 0.04, 0.09, 0.9])
    # A later step never falls below an earlier one, and none exceeds 1.
    np.testing.assert_allclose(holm([0.4, 0.6, 0.5]), [1.0, 1.0, 1.0])


def test_benjamini_hochberg_agrees_with_scipy():
    p_values = np.random.default_rng(0).random(200) ** 3
    found = benjamini_hochberg(np.r_[np.nan, p_values])
    assert np.isnan(found[0])
    expected = false_discovery_control(p_values)
    np.testing.assert_allclose(found[1:], expected, rtol=1e-12)


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
def test_p_values_outside_of_0_and_1_are_refused(adjust):
    assert adjust([]).shape == (0,)
    for wrong in ([-0.1], [1.1], [[0.5]]):
        with pytest.raises(ValueError, match="`p_values` must be"):
            adjust(wrong)


@pytest.mark.parametrize("shares", [[0.9] * 2, [0.5] * 8, [0.97, 0.9, 0.8]])
def test_the_largest_difference_is_covered(shares):
    rng, count, covered = np.random.default_rng(1), 60, 0
    pairs = len(shares) * (len(shares) - 1) / 2
    for _ in range(1000):
        right = rng.binomial(count, shares)
        ends = clopper_pearson(right, count, level=1.0 - 0.05 / pairs)
        _, low, high = largest_difference(right / count, *ends)
        covered += low <= max(shares) - min(shares) <= high
    # 95 %, less three standard errors of the simulation.
    assert covered >= 930

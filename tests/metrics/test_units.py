"""Sums by unit: what they add up to, and the tests of paired changes."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import keras_calib as kc
from keras_calib.formulas.risk_coverage import aurc_of_groups
from keras_calib.formulas.units import (
    NUM_GROUPS,
    clustered,
    effective_count,
    group_of,
    spread_of,
)
from keras_calib.metrics.paired import paired_p_values
from keras_calib.metrics.states.units import UnitSums

TABLE = kc.CalibrationMetrics(include=["ece"])


def stages(rng, n, factors):
    """Columns of stages whose log-odds are multiplied, for right answers."""
    score = np.abs(rng.normal(1.5, 1.0, n))
    right = rng.random(n) < expit(score)
    found = []
    for factor in factors:
        confidence = expit(factor * score)
        of_label = np.where(right, confidence, 1.0 - confidence)
        found.append(
            {
                "score": factor * score,
                "confidence": confidence,
                "correct": right.astype("float64"),
                "nll": -np.log(of_label),
            }
        )
    return found


def summed(unit, weight, columns, parts=1):
    sums = UnitSums(len(columns), 15, ("nll",))
    for rows in np.array_split(np.arange(len(unit)), parts):
        own = [{k: x[rows] for k, x in stage.items()} for stage in columns]
        sums.add(unit[rows], weight[rows], own)
    return sums


def test_each_of_few_units_is_a_group_and_many_are_spread_evenly():
    first = np.arange(NUM_GROUPS)
    assert np.array_equal(group_of(first), first)
    count = np.bincount(group_of(np.arange(100_000)), minlength=NUM_GROUPS)
    # Poisson numbers of a mean of 389.
    assert abs(count - count.mean()).max() < 5.0 * count.mean() ** 0.5


def test_sums_are_those_of_the_rows_whatever_the_batches():
    rng = np.random.default_rng(0)
    columns = stages(rng, 3000, (1.0, 2.0))
    unit, weight = rng.integers(0, 40, 3000), rng.integers(1, 4, 3000) * 1.0
    one, many = (summed(unit, weight, columns, k) for k in (1, 7))
    for stage, own in enumerate(columns):
        for name in ("confidence", "correct", "nll"):
            key = {"confidence": "mean_confidence", "correct": "accuracy"}
            key = key.get(name, name)
            total = np.bincount(unit, weight * own[name], NUM_GROUPS)
            found = one.total(key, stage)
            np.testing.assert_allclose(found, total, rtol=2e-6)
            np.testing.assert_allclose(many.total(key, stage), found, rtol=1e-9)
        whole = kc.CalibrationMetrics(include=["aurc", "ece"])
        whole.update_scores(own["confidence"], own["correct"], weight)
        value = float(whole.result()["aurc"])
        groups = one.readings(stage).groups
        assert value == pytest.approx(aurc_of_groups(groups), rel=2e-3)
        assert groups.mass.sum() == pytest.approx(weight.sum())


def test_a_mean_difference_is_tested_as_pairs_of_rows_are():
    rng = np.random.default_rng(1)
    columns = stages(rng, 200, (1.0, 1.2))
    columns[1]["correct"] = (rng.random(200) < 0.8).astype("float64")
    found = paired_p_values(
        summed(np.arange(200), np.ones(200), columns),
        ["accuracy", "nll"],
        TABLE,
        (0, 1),
    )
    for name, key in (("accuracy", "correct"), ("nll", "nll")):
        test = stats.ttest_rel(columns[1][key], columns[0][key])
        assert found[name] == pytest.approx(test.pvalue, rel=1e-4)


def test_rows_of_a_unit_count_once():
    rng = np.random.default_rng(2)
    columns = stages(rng, 100, (1.0, 1.3))
    alone = summed(np.arange(100), np.ones(100), columns)
    again = [{k: np.tile(x, 5) for k, x in c.items()} for c in columns]
    unit = np.tile(np.arange(100), 5)
    five = summed(unit, np.ones(500), again)
    names = ["accuracy", "confidence_gap", "nll", "ece", "ecce"]
    one, other = (
        paired_p_values(x, names, TABLE, (0, 1)) for x in (alone, five)
    )
    assert one == pytest.approx(other, rel=1e-3)


def test_equal_stages_do_not_differ():
    rng = np.random.default_rng(3)
    sums = summed(np.arange(300), np.ones(300), stages(rng, 300, (1.0, 1.0)))
    names = ["accuracy", "nll", "confidence_gap", "ece", "aece", "mce", "aurc"]
    assert {*paired_p_values(sums, names, TABLE, (0, 1)).values()} == {1.0}


def test_a_gap_is_better_if_it_is_nearer_to_zero():
    # Twice the log-odds of a calibrated model, or half: both are worse.
    rng = np.random.default_rng(4)
    columns = stages(rng, 5000, (1.0, 2.0, 0.5))
    sums = summed(np.arange(5000), np.ones(5000), columns)
    names = ["confidence_gap", "ece"]
    for other in (1, 2):
        found = paired_p_values(sums, names, TABLE, (0, other))
        assert max(found.values()) < 1e-6
    # Gaps of both signs and like sizes are equally far from 0.
    confidence = columns[0]["confidence"]
    for k, shift in ((1, 0.05), (2, -0.05)):
        columns[k]["confidence"] = np.clip(confidence + shift, 0.0, 1.0)
        del columns[k]["score"]
    sums = summed(np.arange(5000), np.ones(5000), columns[1:])
    found = paired_p_values(sums, ["confidence_gap"], TABLE, (0, 1))
    assert found["confidence_gap"] > 0.05


def test_the_variance_of_a_ratio_and_its_effective_number():
    rng = np.random.default_rng(5)
    weight = rng.integers(50, 150, (60, 1)).astype("float64")
    share = rng.beta(20, 5, (60, 1))
    variance, num = spread_of(share * weight, weight)
    # The jackknife of the ratio is nearly the same.
    total, size = (share * weight).sum(), weight.sum()
    left = (total - share * weight) / (size - weight)
    jackknife = 59 / 60 * np.sum((left - left.mean()) ** 2)
    assert variance[0] == pytest.approx(jackknife, rel=0.05)
    assert num[0] == pytest.approx(size**2 / (weight**2).sum())
    mean = total / size
    own = effective_count(
        np.array([mean * (1 - mean)]), share * weight, weight, size[None]
    )
    assert 1.0 < own[0] < size


def test_units_of_one_row_leave_the_numbers_of_bins_nearly_as_they_are():
    rng = np.random.default_rng(6)
    (column,) = stages(rng, 50_000, (1.0,))
    sums = summed(np.arange(50_000), np.ones(50_000), [column])
    readings = sums.readings()
    found = clustered(readings.bins, sums.by_bin())
    filled = readings.bins.weight > 1000
    ratio = found.squared_weight[filled] / readings.bins.weight[filled]
    # Of 256 groups a variance is known to about 9 %, beside Student's factor.
    assert np.all(ratio >= 1.0) and np.all(ratio < 1.4)

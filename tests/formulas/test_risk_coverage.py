"""Formulas of ranked groups: bounds, slopes, and tensors in float32."""

import numpy as np
import pytest
from keras import ops
from scored import tied_data
from streams import compiled

from keras_calib.formulas import risk_coverage
from keras_calib.formulas.risk_coverage import (
    RankedGroups,
    aurc_of_groups,
    coverage_at_risk_of_groups,
    failure_fpr95_of_groups,
    risk_at_coverage_of_groups,
)


def group_values(groups, **order):
    return {
        "aurc": risk_coverage.aurc_of_groups(groups, **order),
        "eaurc": risk_coverage.eaurc_of_groups(groups, **order),
        "naurc": risk_coverage.normalized_aurc_of_groups(groups, **order),
        "augrc": risk_coverage.augrc_of_groups(groups, **order),
        "auroc": risk_coverage.failure_auroc_of_groups(groups, **order),
        "fpr95": failure_fpr95_of_groups(groups, 0.7, **order),
        "coverage": coverage_at_risk_of_groups(groups, 0.25, **order),
        "risk": risk_at_coverage_of_groups(groups, 0.5, **order),
    }


def group_bounds(groups):
    """Lower and upper values over the orders inside groups."""
    best = group_values(groups, order="best")
    worst = group_values(groups, order="worst")
    low, high = best | {}, worst | {}
    for name in ("auroc", "coverage"):
        low[name], high[name] = worst[name], best[name]
    return {name: (low[name], high[name]) for name in best}


def group_samples(correct, score, slope=0.0):
    """Groups of samples, surest first, by hand."""
    mass, wrong = [], []
    for value in sorted(set(score), reverse=True):
        mass.append(float(np.sum(score == value)))
        wrong.append(float(np.sum((score == value) & ~correct)))
    mass, wrong = np.array(mass), np.array(wrong)
    mixed = (wrong > 0) & (wrong < mass)
    return RankedGroups.of(mass, wrong, np.where(mixed, slope, 0.0))


def values_without_ties(correct):
    """Every quantity of samples in this order, surest first."""
    score = -np.arange(len(correct), dtype=float)
    return group_values(group_samples(correct, score))


@pytest.mark.parametrize("seed", range(2))
def test_bounds_hold_for_every_order_and_are_attained(seed):
    correct, score = tied_data(seed)
    rng = np.random.default_rng(seed)
    bounds = group_bounds(group_samples(correct, score))
    for slope in (-1 / 3, 0.0, 1 / 3):
        values = group_values(group_samples(correct, score, slope))
        for name, value in values.items():
            low, high = bounds[name]
            assert low - 1e-12 <= value <= high + 1e-12, name
    for _ in range(50):
        order = rng.permutation(len(score))
        order = order[np.argsort(-score[order], kind="stable")]
        for name, value in values_without_ties(correct[order]).items():
            low, high = bounds[name]
            assert low - 1e-12 <= value <= high + 1e-12, name
    best = values_without_ties(correct[np.lexsort((~correct, -score))])
    worst = values_without_ties(correct[np.lexsort((correct, -score))])
    for name, (low, high) in bounds.items():
        if name in ("auroc", "coverage"):
            low, high = high, low
        assert abs(best[name] - low) < 1e-12, name
        if name != "coverage":
            assert abs(worst[name] - high) < 1e-12, name
    # Real ties are what coverage is at its lowest.
    tied = coverage_at_risk_of_groups(group_samples(correct, score), 0.25)
    assert bounds["coverage"][0] == tied


def test_slope_is_that_of_a_risk_linear_in_the_score():
    # 1e6 places in one group, of risk 0.3 + k (u - 1/2) at place u.
    rate, k, n = 0.3, 0.5, 1_000_000
    u = (np.arange(n) + 0.5) / n
    risk = rate + k * (u - 0.5)
    slope = k / 12 / (rate * (1 - rate))
    one = [np.array([v]) for v in (n, rate * n, 0.0, 0.0, slope)]
    values = group_values(RankedGroups(*one))
    accepted = risk[: n // 2].sum() / (n // 2)
    assert abs(values["risk"] - accepted) < 1e-9
    wrong_above = np.cumsum(risk) - risk / 2
    auroc = 1 - np.sum((1 - risk) * wrong_above) / (
        risk.sum() * (1 - risk).sum()
    )
    assert abs(values["auroc"] - auroc) < 1e-9
    area = np.sum(np.cumsum(risk) - risk / 2) / n**2
    assert abs(values["augrc"] - area) < 1e-9
    # The same cell, after 250,000 predictions of which 20,000 are wrong.
    late = [np.array([v]) for v in (n, rate * n, 250_000.0, 20_000.0, slope)]
    area = np.mean((20_000 + wrong_above) / (250_000 + n * u))
    for counts in (True, False):
        value = risk_coverage.aurc_of_groups(RankedGroups(*late, counts))
        assert abs(value - area) < 1e-6


def test_the_slope_correction_stays_within_the_orders_of_a_group():
    # In closed form for one group of mass m after n, up to slope 1/3.
    for n in (0, 1, 30, 1000):
        for m in (2, 10, 10_000):
            wrong = np.unique(np.linspace(1, m - 1, 5).astype(int))
            for q in wrong.astype("float64"):
                for slope in (-1 / 3, 1 / 3):
                    arrays = [np.array([v]) for v in (m, q, n, 0.0, slope)]
                    for whole in (True, False):
                        group = RankedGroups(*arrays, whole)
                        value = aurc_of_groups(group)
                        low = aurc_of_groups(group, "best")
                        high = aurc_of_groups(group, "worst")
                        assert low - 1e-9 <= value <= high + 1e-9


def random_groups(seed, scale, n=64):
    rng = np.random.default_rng(seed)
    mass = np.floor(rng.gamma(0.3, scale / n, n))
    wrong = rng.binomial(mass.astype(int), np.linspace(0.01, 0.5, n))
    slope = np.where((wrong > 0) & (wrong < mass), 0.2, 0.0)
    return RankedGroups.of(mass, wrong.astype(float), slope)


def as_tensors(groups):
    arrays = [ops.convert_to_tensor(v, "float32") for v in groups[:5]]
    return RankedGroups(
        *arrays, ops.convert_to_tensor(groups.frequency_weights)
    )


@pytest.fixture(scope="module")
def all_of():
    """Every formula, compiled once."""

    def run(groups):
        groups = RankedGroups(*groups)
        return group_values(groups), group_bounds(groups)

    return compiled(run, by_xla=False)


@pytest.mark.portable
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2))]
)
def test_float32_tensors_agree_with_float64(all_of, seed):
    for scale in (1e3, 1e5, 1e8):
        for whole in (True, False):
            groups = random_groups(seed, scale)
            groups = groups._replace(frequency_weights=whole)
            got_values, got_bounds = all_of(tuple(as_tensors(groups)))
            values = group_values(groups)
            bounds = group_bounds(groups)
            for name in values:
                got = [got_values[name], *got_bounds[name]]
                np.testing.assert_allclose(
                    [float(ops.convert_to_numpy(v)) for v in got],
                    [values[name], *bounds[name]],
                    rtol=1e-5,
                    atol=1e-7,
                    err_msg=f"{name} {scale} {whole}",
                )


@pytest.mark.portable
def test_empty_tensors_give_zero_and_no_information(all_of):
    zeros = as_tensors(RankedGroups(*(np.zeros(64) for _ in range(5))))
    values, _ = all_of(tuple(zeros))
    for name, value in values.items():
        expected = 0.5 if name == "auroc" else 0.0
        assert float(ops.convert_to_numpy(value)) == expected, name

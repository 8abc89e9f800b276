"""Measures against a hyperparameter: which runs, and Page's test."""

import numpy as np
import pytest
from absl import app
from results import trends


def row(method, options, seed, aurc, **more):
    return {
        "method": method,
        "options": options,
        "seed": seed,
        "diverged": False,
        "aurc": aurc,
        **more,
    }


def smoothed(alphas=(0.1, 0.2), seeds=3, method="label_smoothing"):
    """AURC rises by a tenth of alpha, and 0.01 with each seed."""
    methods = {
        f"{method} [alpha={alpha}]": {
            seed: row(method, f"alpha={alpha}", seed, 0.1 * alpha + 0.01 * seed)
            for seed in range(seeds)
        }
        for alpha in alphas
    }
    zero = {s: row("cross_entropy", "", s, 0.01 * s) for s in range(seeds)}
    return {"digits": methods | {"cross_entropy": zero}}


def rows_of(setups, at_zero="cross_entropy"):
    return trends.rows_of(setups, "alpha", "label_smoothing", at_zero)


def test_page_sums_the_weighted_ranks_over_all_orders():
    # One order of six for each of three seeds, on both sides.
    assert trends.page([[1, 2, 3]] * 3) == ("rises", pytest.approx(2 / 216))
    assert trends.page([[3, 2, 1]] * 3) == ("falls", pytest.approx(2 / 216))
    # L is 27 here; of the 36 pairs of orders one has 28 and four have 27.
    found = trends.page([[1, 2, 3], [1, 3, 2]])
    assert found == ("rises", pytest.approx(2 * 5 / 36))
    assert trends.page([[1, 2, 3]]) is None
    assert trends.page([[1, 2], [1, 2]]) is None


def test_runs_are_ordered_by_value_and_cross_entropy_is_zero(tmp_path):
    setups = smoothed(alphas=(0.2, 0.1))
    methods = setups["digits"]
    methods["acls"] = {0: row("acls", "alpha=0.3", 0, 1.0)}
    last = methods["label_smoothing [alpha=0.2]"]
    last[9] = row("label_smoothing", "alpha=0.2", 9, 7.0, tuned="ece")
    last[2]["diverged"] = True
    # Of the folder that a run of another name has.
    methods["ls"] = {3: row("label_smoothing_0.1", "alpha=0.1", 3, 0.04)}
    values = rows_of(setups)["digits"]
    assert {v: sorted(own) for v, own in values.items()} == {
        0.0: [0, 1, 2],
        0.1: [0, 1, 2, 3],
        0.2: [0, 1],
    }
    found = trends.summaries(values, ["aurc", "aurc_norm"])
    assert list(found) == ["aurc"] and found["aurc"]["seeds"] == [0, 1]
    assert found["aurc"]["trend"] == ("rises", pytest.approx(2 / 36))
    lines = trends.markdown("alpha", values, found).splitlines()
    std = np.std([0, 0.01, 0.02], ddof=1)
    assert lines[2] == f"| 0 | 3 | 0.0100 ± {std:.4f} |"
    assert lines[-1] == "| trend | | rises, p = 0.056 |"
    trends.draw("alpha", {"digits": found}, tmp_path / "trends.png")
    assert (tmp_path / "trends.png").stat().st_size > 5_000


def test_own_runs_of_zero_go_before_those_of_cross_entropy():
    values = rows_of(smoothed(alphas=(0.0, 0.1)))["digits"]
    assert {own["method"] for own in values[0.0].values()} == {
        "label_smoothing"
    }
    assert list(rows_of(smoothed(), at_zero=None)["digits"]) == [0.1, 0.2]


def test_runs_that_differ_in_more_are_refused():
    setups = smoothed()
    other = row("label_smoothing_others", "alpha=0.3 spread=others", 0, 0.2)
    setups["digits"]["others"] = {0: other}
    with pytest.raises(app.UsageError, match="differ in alpha and seed alone"):
        rows_of(setups)
    other["options"] = "alpha=0.10"
    with pytest.raises(app.UsageError, match="differ in value or seed"):
        rows_of(setups)
    with pytest.raises(app.UsageError, match="have beta="):
        trends.rows_of(setups, "beta", "label_smoothing", None)

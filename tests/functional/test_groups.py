"""Metrics by group."""

import functools
import json

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.formulas import bootstrap
from keras_calib.formulas.intervals import Moments, mean_interval

FUNCTIONS = {
    "mean_confidence": kc.functional.mean_confidence,
    "ece": kc.ece,
    "mce": kc.functional.mce,
    "rmsce": kc.functional.rmsce,
    "brier_score": kc.brier_score,
    "nll": kc.nll,
    "aurc": kc.aurc,
    "augrc": kc.functional.augrc,
    "failure_auroc": kc.functional.failure_auroc,
}
NAMES = ("accuracy", "confidence_gap", *FUNCTIONS)


@pytest.fixture(scope="module")
def data():
    """Labels, probabilities, sexes and sites of 400 samples."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([2.0, 0.7, 0.5], 400)
    labels = (rng.random(400)[:, None] > probs.cumsum(axis=-1)).sum(axis=-1)
    sex = rng.choice(["f", "m"], 400)
    site = np.where(np.arange(400) < 10, 7, rng.integers(0, 3, 400))
    return labels, probs, sex, site


def test_a_table_has_what_functions_say_of_each_group(data, monkeypatch):
    labels, probs, sex, site = data
    # Intervals of ranks are not asked for here.
    few = functools.partial(bootstrap.poisson_interval, num_draws=10)
    monkeypatch.setattr(bootstrap, "poisson_interval", few)
    found = kc.by_group(
        labels,
        probs,
        groups={"sex": sex, "site": site},
        metrics=NAMES,
        intersections=True,
    )
    names = found.table["group"].tolist()
    assert names[:7] == ["f", "m", "0", "1", "2", "7", "f & 0"]
    both = np.array([f"{a} & {b}" for a, b in zip(sex, site, strict=True)])
    known = {"sex": sex, "site": site.astype(str), "sex & site": both}
    confidence = probs.max(axis=-1)
    for row in found.rows:
        part = known[row["attribute"]] == row["group"]
        assert row["size"] == part.sum()
        if row["too_few"]:
            assert row["size"] < 30
            assert (
                row["p_value"]
                is row["ece"]
                is row["confidence_gap_low"]
                is None
            )
            continue
        own = labels[part], probs[part]
        for name, function in FUNCTIONS.items():
            assert row[name] == pytest.approx(function(*own), rel=1e-9), name
        right = own[1].argmax(axis=-1) == own[0]
        assert row["accuracy"] == pytest.approx(right.mean())
        low, high = kc.formulas.intervals.clopper_pearson(
            right.sum(), right.size
        )
        assert row["accuracy_low"] == pytest.approx(low)
        assert row["accuracy_high"] == pytest.approx(high)
        gap = confidence[part].mean() - right.mean()
        assert row["confidence_gap"] == pytest.approx(gap)
        assert row["confidence_gap_low"] <= gap - (high - right.mean()) + 1e-12
        metric = kc.CalibrationMetrics(["ece", "brier_score", "nll"])
        metric.update_state(*own)
        for name, ends in metric.interval().items():
            got = row[f"{name}_low"], row[f"{name}_high"]
            np.testing.assert_allclose(got, ends, atol=2e-5)
        test = kc.functional.calibration_test(
            *own, statistic="chi2", num_bins=1
        )
        assert row["p_value"] == pytest.approx(test.p_value, rel=0.02)
        values = confidence[part]
        powers = (values.sum(), part.sum(), values.sum())
        squares, cubes = (values**2).sum(), (values**3).sum()
        moments = Moments(part.sum(), *powers, squares, squares, cubes)
        ends = mean_interval(moments, unseen=(0.0, 1.0))
        got = row["mean_confidence_low"], row["mean_confidence_high"]
        np.testing.assert_allclose(got, np.clip(ends, 0, 1))
    assert found.overall["ece"] == pytest.approx(kc.ece(labels, probs))


def test_every_form_of_input_gives_the_same_table(data):
    labels, probs, sex, _ = data
    plain = kc.by_group(
        labels, probs, groups=sex, metrics=("ece", "confidence_gap")
    ).rows
    top1 = kc.by_group(
        kc.Predictions(
            correct=probs.argmax(axis=-1) == labels,
            confidence=probs.max(axis=-1),
            groups=sex.astype(object),
        ),
        metrics=("ece", "confidence_gap"),
    )
    padded = kc.by_group(
        np.r_[labels, -1],
        np.concatenate([probs, probs[:1]]),
        groups=[*sex, "x"],
        metrics=("ece", "confidence_gap"),
        ignore_class=-1,
    )
    dense = kc.by_group(
        labels.reshape(200, 2),
        probs.reshape(200, 2, 3),
        groups=sex.reshape(200, 2),
        metrics=("ece", "confidence_gap"),
    )
    for other in (top1, padded, dense):
        for row, same in zip(other.rows, plain, strict=True):
            assert row["group"] == same["group"]
            assert row["confidence_gap"] == pytest.approx(
                same["confidence_gap"]
            )
            assert row["p_holm"] == pytest.approx(same["p_holm"])
    weighted = kc.by_group(
        labels,
        probs,
        groups=sex,
        metrics=("ece",),
        statistic=None,
        sample_weight=np.full(400, 2.0),
    )
    assert "p_value" not in weighted.table
    assert weighted.rows[0]["ece"] == pytest.approx(plain[0]["ece"])


def test_votes_are_tested_as_the_test_of_votes_does(data):
    labels, probs, sex, _ = data
    votes = np.eye(3, dtype=int)[labels] * 2 + np.eye(3, dtype=int)[0]
    found = kc.by_group(votes, probs, groups=sex, metrics=("ece",), votes=True)
    part = sex == "f"
    expected = kc.functional.calibration_test(
        votes[part], probs[part], statistic="chi2", num_bins=1, votes=True
    )
    assert found.rows[0]["p_value"] == expected.p_value
    ece = kc.ece(votes[part], probs[part], votes=True)
    assert found.rows[0]["ece"] == pytest.approx(ece)


def test_another_statistic_is_that_of_the_test(data):
    labels, probs, sex, _ = data
    found = kc.by_group(labels, probs, groups=sex, statistic="spiegelhalter")
    part = sex == "m"
    expected = kc.functional.calibration_test(
        labels[part], probs[part], statistic="spiegelhalter"
    )
    assert found.rows[1]["p_value"] == pytest.approx(expected.p_value)


def test_risk_among_accepted_is_held_against_the_other_groups():
    right = np.r_[np.ones(180), np.zeros(20), np.ones(120), np.zeros(80)]
    confidence = np.tile(np.linspace(0.5, 1.0, 200), 2)
    accept = np.arange(400) % 2 == 0
    found = kc.by_group(
        kc.Predictions(correct=right, confidence=confidence),
        groups=["a"] * 200 + ["b"] * 200,
        accept=accept,
    )
    first, second = found.rows
    assert (first["coverage"], first["risk"]) == (0.5, 0.1)
    assert second["risk"] == 0.4
    assert second["risk_p_holm"] < 1e-4 < 0.9 < first["risk_p_holm"]
    (largest,) = [x for x in found.largest if x.metric == "risk"]
    assert (largest.highest, largest.lowest) == ("b", "a")
    assert 0.0 < largest.low < largest.value < largest.high


def test_calibrated_groups_are_rarely_blamed_together():
    rng = np.random.default_rng(3)
    blamed = outside = apart = 0
    group = np.repeat(np.arange(40), 100)
    for _ in range(60):
        confidence = 0.5 + 0.5 * rng.beta(5.0, 0.5, len(group))
        right = rng.random(len(group)) < confidence
        found = kc.by_group(
            kc.Predictions(correct=right, confidence=confidence),
            groups=group,
            metrics=("confidence_gap",),
            simultaneous=True,
        )
        blamed += bool((found.table["p_holm"] <= 0.05).any())
        outside += bool((found.table["confidence_gap_low"] > 0).any())
        (largest,) = found.largest
        # The true gaps are 0, and so is their largest difference.
        apart += largest.low > 0.0
    # At 5 %, 60 tables have more than 8 with a probability of 1 %.
    assert max(blamed, outside, apart) <= 8


def test_the_result_prints_and_travels(data, tmp_path):
    labels, probs, sex, site = data
    found = kc.by_group(labels, probs, groups={"sex": sex, "site": site})
    text = repr(found)
    assert "too few" in text
    assert "Largest difference of accuracy by sex" in text
    assert json.loads(json.dumps(found.to_dict()))["rows"] == found.rows
    written = found.to_csv(tmp_path / "groups.csv")
    lines = (tmp_path / "groups.csv").read_text().splitlines()
    assert lines == written.splitlines()
    assert len(lines) == len(found) + 1
    assert "nan" not in written
    odd = {"=1": ["@cmd"] * 4 + ["-1"] * 4}
    written = kc.by_group([0, 1] * 4, [[0.6, 0.4]] * 8, groups=odd, min_count=2)
    cells = [line.split(",")[:2] for line in written.to_csv().splitlines()]
    assert cells[1:] == [["'=1", "-1"], ["'=1", "'@cmd"]]


BAD = {
    "lengths": ({"groups": ["a"] * 3}, "must have a group for each sample"),
    "none": ({"groups": ["a", None, "b", "b"]}, "name what is missing"),
    "nan": ({"groups": [1.0, np.nan, 2.0, 2.0]}, "name what is missing"),
    "names": ({"groups": ["a", np.nan, "b", "b"]}, "name what is missing"),
    "joined": (
        {
            "groups": {"x": ["a & b", "a"] * 2, "y": ["c", "b & c"] * 2},
            "intersections": True,
        },
        "must be told apart",
    ),
    "empty": ({"groups": ["a", "", "b", "b"]}, "name what is missing"),
    "measured": ({"groups": [1.5, 1.0, 2.0, 2.0]}, "cut a measurement"),
    "attributes": ({"groups": {}}, "must have an attribute"),
    "size": ({"min_count": 0}, "`min_count` must be >= 1"),
    "level": ({"level": 1.0}, "`level` must be < 1"),
    "metric": ({"metrics": ("auc",)}, "`metrics` must be one of"),
    "statistic": ({"statistic": "hl"}, "`statistic` must be one of"),
    "accept": ({"accept": [1, 0]}, "`accept` must be True or False"),
    "weights": ({"sample_weight": [2.0] * 4}, "`statistic` must be None"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_arguments_are_named(case):
    wrong, message = BAD[case]
    given = {"groups": ["a", "a", "b", "b"], **wrong}
    with pytest.raises(ValueError, match=message):
        kc.by_group([0, 1, 0, 1], [[0.6, 0.4]] * 4, **given)


def test_wrong_records_and_too_many_groups_are_named():
    log = kc.Predictions(correct=[0.5], confidence=[0.9])
    with pytest.raises(ValueError, match="`correct` must be 0 or 1 for a test"):
        kc.by_group(log, groups=["a"])
    with pytest.raises(ValueError, match="`metrics` must be one of"):
        kc.by_group(log, groups=["a"], metrics="nll", statistic=None)
    with pytest.raises(TypeError, match="`groups` must be given"):
        kc.by_group(log, statistic=None)
    with pytest.raises(TypeError, match="must be names or whole numbers"):
        kc.by_group(log, groups=[1j], statistic=None)
    with pytest.raises(ValueError, match="must be of fewer values"):
        kc.by_group([0] * 10001, [[0.9, 0.1]] * 10001, groups=range(10001))

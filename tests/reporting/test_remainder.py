"""What calibration leaves is judged beside the size of its fit."""

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

import keras_calib as kc
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.temperature import optimal_temperature
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import bin_index, bin_sums
from keras_calib.metrics.gap_estimates import GapEstimate, gap_estimate
from keras_calib.reporting.groups import StageGroups
from keras_calib.reporting.remainder import remainder, worse_classes
from keras_calib.reporting.verdict import judged, verdict


def margins(n, rng):
    """Confidences of a calibrated model of two classes, and outcomes."""
    margin = np.abs(3.0 * rng.standard_normal(n))
    return margin, rng.random(n) < expit(margin)


def fitted_temperature(margin, correct):
    z = np.stack([margin, np.zeros(len(margin))], axis=-1)
    samples = FittingData(np.where(correct, 0, 1), z)
    return optimal_temperature(samples)


def stage(confidence, correct):
    """Mean gap and ECE with their intervals, and the sums of bins."""
    order, one = np.argsort(confidence), np.ones(len(correct))
    confidence, correct = confidence[order], correct[order].astype(float)
    gap = gap_estimate(one, 1.0 - correct, 1.0 - confidence)
    bins = bin_sums(confidence, correct, bin_index(confidence, 15), 15)
    low, high = error_interval(bins)
    value = float(np.abs(bins.residual).sum() / len(correct))
    return (gap, {"value": value, "low": low, "high": high}), bins


def answered(now, left):
    """The verdict on a model that was far off before."""
    gap = GapEstimate(0.2, 0.19, 0.21, None)
    ece = {"value": 0.2, "low": 0.1, "high": 0.3}
    return verdict((gap, ece), now, left)


def test_what_a_fit_leaves_by_chance_is_nobodys_fault():
    rng, blamed, unaware, off = np.random.default_rng(0), 0, 0, 0
    for _ in range(60):
        temperature = fitted_temperature(*margins(200, rng))
        fit = kc.TemperatureScaling(temperature=temperature, num_samples=200)
        margin, correct = margins(10_000, rng)
        now, bins = stage(expit(margin / temperature), correct)
        left = remainder(*now, bins, fit)
        answer = answered(now, left)["answer"]
        blamed += not answer.startswith(("Yes", "Mended", "Calibration did"))
        off += judged(*now, left)["kind"] != "even"
        unknown = remainder(*now, bins, kc.TemperatureScaling())
        answer = answered(now, unknown)["answer"]
        unaware += not answer.startswith("Yes")
    # Of 2 % there are more than 5 once in 1,000 such tests.
    assert blamed <= 5 and off <= 5
    assert unaware > 30


@pytest.mark.parametrize("bend", [0.0, 0.1])
def test_more_than_a_fit_leaves_is_told(bend):
    rng = np.random.default_rng(1)
    margin, _ = margins(10_000, rng)
    confidence = expit(margin)
    # Gaps of both signs, or of one.
    side = np.where(confidence > np.median(confidence), 1.0, -1.0)
    share = confidence - bend * side if bend else expit(margin / 1.3)
    now, bins = stage(confidence, rng.random(10_000) < share)
    for size in (50, 5_000):
        fit = kc.TemperatureScaling(temperature=1.0, num_samples=size)
        left = remainder(*now, bins, fit)
        found = answered(now, left)
        if size == 50:
            assert found["answer"].startswith("Mended: what is left")
            assert "is what 50 rows leave; 500 would" in found["answer"]
            continue
        begin = "Only on average" if bend else "No, not even after"
        assert found["answer"].startswith(begin)
        assert found["advice"].startswith("A fit on 5,000 rows leaves less")
    assert left.reach == pytest.approx(1.96 * 0.3 / 5_000**0.5, rel=0.3)


def test_units_judge_units():
    rng = np.random.default_rng(2)
    confidence = expit(margins(300, rng)[0])
    now, bins = stage(confidence, rng.random(300) < confidence - 0.05)
    left = remainder(*now, bins, kc.TemperatureScaling(num_samples=100))
    fit = kc.TemperatureScaling(num_samples=5_000, num_units=100)
    same = remainder(*now, bins, fit, num_units=300, unit="images")
    assert same.told == "100 images"
    assert same[2:] == left[2:]
    # Without units of the data, its rows are told beside those of the fit.
    assert remainder(*now, bins, fit)[2:] == left[2:]
    alone = kc.TemperatureScaling(num_samples=5_000)
    few = remainder(*now, bins, alone, num_units=20)
    assert few.few_tested and few.told == "5,000 rows"
    assert few.reach == pytest.approx(left.reach / 50**0.5)


def rows_of(confidence, correct, num_classes=5):
    """Rows of classes 0 to 4 with 100 predictions each, as class 1."""
    groups = StageGroups(num_classes)
    n = len(correct)
    for k in range(num_classes):
        c = np.full(n, confidence if k == 1 else 0.9)
        groups.add(c, np.full(n, k), correct.astype(float), np.ones(n))
    return groups.classes()


@pytest.mark.parametrize(("was", "now"), [(0.9, 0.7), (0.7, 0.9), (0.8, 0.81)])
def test_a_class_is_worse_where_an_exact_test_says_so(was, now):
    middle = 0.5 * (was + now)
    for right in range(101):
        correct = np.arange(100) < right
        found = worse_classes(rows_of(was, correct), rows_of(now, correct))
        below = binom.cdf(right, 100, middle)
        above = binom.sf(right - 1, 100, middle)
        p_value = below if now > was else above
        worse = p_value < 0.025 / 5 and abs(now - right / 100) > 0.01
        assert [x["group"] for x in found] == [1] * int(worse)
        for x in found:
            gaps = was - right / 100, now - right / 100
            assert (x["before"], x["value"]) == pytest.approx(gaps)
            assert x["low"] <= x["value"] <= x["high"]


def test_a_class_of_other_rows_is_worse_if_the_intervals_lie_apart():
    right = np.arange(100) < 70
    before = rows_of(0.72, np.arange(99) < 70)
    assert worse_classes(before, rows_of(0.8, right)) == []
    (found,) = worse_classes(before, rows_of(0.999, right))
    assert found["group"] == 1


@pytest.mark.usefixtures("words_alone")
def test_the_page_names_the_class_that_a_temperature_makes_worse():
    rng = np.random.default_rng(5)

    def draw(n):
        z = 6.0 * rng.standard_normal((n, 10))
        needed = np.where(z.argmax(-1) == 4, 0.7, 2.0)[:, None]
        return (z / needed + rng.gumbel(size=z.shape)).argmax(-1), z

    fit = kc.TemperatureScaling().fit(*draw(1_000))
    p = kc.Predictions(*draw(4_000), from_logits=True)
    results = kc.report(p, calibrator=fit, verbose=0).results["model"]
    told = results["verdict"]
    assert "But calibration made it worse for class 4, from -" in told["answer"]
    assert "StructuredVectorScaling" in told["advice"]
    (worse,) = told["worse_classes"]
    assert worse["name"] == "class 4" and worse["value"] < -0.12
    sentences = results["calibrated_verdict"]["sentences"]
    assert "fitted on 1,000 rows" in sentences[2]
    assert sentences[3].startswith("Calibration took class 4 from -")

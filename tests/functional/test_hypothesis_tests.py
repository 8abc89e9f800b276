"""Tests of calibration."""

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binom, chi2, kstest, norm

import keras_calib as kc
from keras_calib.functional.hypothesis_tests import calibration_test

WITHOUT_BINS = ("spiegelhalter", "ecce_range", "ecce_maximum")
STATISTICS = ("ece", "chi2", *WITHOUT_BINS)


def two_classes(n, temperature, rng):
    """Labels, and probabilities that are too sharp by `temperature`."""
    confidence = 0.5 + 0.5 * rng.beta(5.0, 1.2, n)
    accuracy = expit(logit(confidence) / temperature)
    labels = (rng.random(n) > accuracy).astype("int32")
    return labels, np.stack([confidence, 1.0 - confidence], axis=1)


@pytest.mark.parametrize(
    ("statistic", "draws"),
    [
        *((name, 100) for name in WITHOUT_BINS),
        *(
            pytest.param(name, 200, marks=pytest.mark.slow)
            for name in STATISTICS
        ),
    ],
)
def test_p_values_are_uniform_and_power_grows(statistic, draws):
    rng = np.random.default_rng(7)
    rejected = []
    for temperature in (1.0, 1.15, 1.4):
        p_values = [
            calibration_test(
                *two_classes(1000, temperature, rng),
                statistic=statistic,
                num_draws=199,
                seed=i,
            ).p_value
            for i in range(draws)
        ]
        if temperature == 1.0:
            assert kstest(p_values, "uniform").pvalue > 1e-3
        rejected.append(np.mean(np.array(p_values) <= 0.05))
    assert rejected[0] <= binom.isf(1e-3, draws, 0.05) / draws
    assert rejected[1] > rejected[0] + 0.1
    assert rejected[2] > 0.8


def test_statistics_of_a_small_case_by_hand():
    confidence = np.array([0.6, 0.7, 0.8, 0.9])
    correct = np.array([1.0, 0.0, 1.0, 1.0])
    probs = np.stack([confidence, 1 - confidence], axis=1)
    labels = (1 - correct).astype("int32")
    tests = {
        name: calibration_test(labels, probs, statistic=name, num_bins=2)
        for name in STATISTICS
    }
    assert tests["ece"].statistic == pytest.approx(
        kc.ece(labels, probs, num_bins=2)
    )
    # All four in one bin, where confidence and accuracy agree.
    assert tests["chi2"].statistic == pytest.approx(0)
    assert tests["chi2"].p_value == pytest.approx(1)
    many = calibration_test(
        np.tile(labels, 40),
        np.tile(probs, (40, 1)),
        statistic="chi2",
        num_bins=2,
    )
    gaps = 40 * np.array([1 - 1.3, 2 - 1.7])
    variances = 40 * np.array([0.24 + 0.21, 0.16 + 0.09])
    value = np.sum(gaps**2 / variances)
    assert many.statistic == pytest.approx(value)
    assert many.p_value == pytest.approx(chi2.sf(value, 2))
    lean = 1 - 2 * confidence
    z = np.sum((correct - confidence) * lean)
    z /= np.sqrt(np.sum(lean**2 * confidence * (1 - confidence)))
    assert tests["spiegelhalter"].statistic == pytest.approx(z)
    p_value = 2 * norm.sf(abs(z))
    assert tests["spiegelhalter"].p_value == pytest.approx(p_value)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_certain_predictions(statistic):
    sure = np.tile([1.0, 0.0], (50, 1))
    right = calibration_test(np.zeros(50, int), sure, statistic=statistic)
    assert right.p_value == 1.0
    wrong = calibration_test(np.ones(50, int), sure, statistic=statistic)
    assert wrong.p_value < 0.002


def test_ece_is_resampled_in_blocks_that_do_not_matter(monkeypatch):
    data = two_classes(1000, 1.1, np.random.default_rng(8))
    whole = calibration_test(*data, num_draws=300)
    monkeypatch.setattr("keras_calib.functional.hypothesis_tests._BLOCK", 7000)
    assert calibration_test(*data, num_draws=300) == whole


def test_calibration_test_reads_as_the_metrics_do():
    labels, probs = two_classes(300, 1.2, np.random.default_rng(9))
    plain = calibration_test(labels, probs)
    logits = np.log(probs)
    from_logits = calibration_test(labels, logits, from_logits=True)
    assert from_logits.p_value == plain.p_value
    more = np.r_[labels, np.full(50, -1)]
    padded = np.r_[probs, probs[:50]]
    assert calibration_test(more, padded, ignore_class=-1) == plain
    with pytest.raises(ValueError, match=r"`sample_weight` must be None"):
        calibration_test(labels, probs, sample_weight=np.full(300, 2))
    with pytest.raises(ValueError, match=r"`statistic` must be one of"):
        calibration_test(labels, probs, statistic="hl")
    with pytest.raises(ValueError, match="`seed` must be >= 0"):
        calibration_test(labels, probs, num_draws=9, seed=-1)


@pytest.mark.parametrize(
    ("n", "doubt", "draws"),
    [
        (60, 0.1, 40),
        pytest.param(60, 0.1, 200, marks=pytest.mark.slow),
        pytest.param(300, 0.01, 200, marks=pytest.mark.slow),
    ],
)
def test_chi_square_keeps_its_level_with_few_errors(n, doubt, draws):
    rng = np.random.default_rng(0)
    rejected = 0
    for _ in range(draws):
        c = np.clip(1 - doubt * rng.exponential(size=n), 0.5, 1 - 1e-6)
        labels = (rng.random(n) > c).astype(int)
        probs = np.stack([c, 1 - c], axis=-1)
        test = calibration_test(labels, probs, statistic="chi2")
        rejected += test.p_value < 0.01
    assert rejected <= binom.isf(1e-3, draws, 0.015)
    # What is clearly wrong is still found.
    labels = (rng.random(n) > 0.5).astype(int)
    assert calibration_test(labels, probs, statistic="chi2").p_value < 0.01

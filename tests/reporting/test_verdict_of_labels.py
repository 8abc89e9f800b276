"""The verdict on several labels calls none off that chance explains."""

import numpy as np
import pytest
from scipy.stats import norm

from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.temperature import optimal_temperature
from keras_calib.formulas.bins import bin_index, bin_sums
from keras_calib.metrics.gap_estimates import GapEstimate, gap_estimate
from keras_calib.reporting.verdict_of_labels import (
    MISTAKE,
    label_verdict,
    side_of,
)

ROW = {
    "label": "car",
    "count": 100,
    "positives": 50,
    "prevalence": 0.5,
    "confidence_gap": 0.0,
    "side": "even",
    "ece": 0.03,
    "nll": 0.5,
    "base_nll": 0.6,
}
OVER = {**ROW, "label": "dog", "side": "over", "confidence_gap": 0.024}
SMALL = {**OVER, "ece": 0.01, "confidence_gap": 0.0004}
FEW = {**ROW, "label": "owl", "side": "few"}


@pytest.mark.parametrize(
    ("rows", "repaired", "answer", "kind"),
    [
        ([ROW] * 3, False, "Yes, as far as these data show", "even"),
        ([FEW], False, "These data cannot say", "few"),
        (
            [ROW, ROW, FEW, OVER],
            False,
            "Yes for 2 of 4 labels; 1 is off: dog (2.4 points too high).",
            "over",
        ),
        (
            [ROW, ROW, {**OVER, "side": "under"}],
            True,
            "Yes, after calibration, for 2 of 3 labels; 1 is off: dog (2.4 "
            "points too low).",
            "under",
        ),
        ([ROW, OVER], False, "No: 1 of 2 labels is off: dog", "over"),
        ([OVER], True, "No, not even after calibration: 1 label is", "over"),
        (
            [ROW, ROW, SMALL],
            False,
            "Yes for 2 of 3 labels; 1 is a little off: dog (0.04 points",
            "over",
        ),
        ([SMALL], False, "Nearly: 1 label is a little off", "over"),
    ],
)
def test_answer(rows, repaired, answer, kind):
    found = label_verdict(rows, repaired)
    assert found["answer"].startswith(answer)
    assert found["kind"] == kind


def drawn(n, rng, num_labels=10):
    def normals():
        own = rng.standard_normal((n, num_labels))
        return 0.7 * (own + rng.standard_normal((n, 1)))

    logits = np.linspace(-3.0, 0.5, num_labels) + 1.5 * normals()
    labels = norm.cdf(normals()) < 1.0 / (1.0 + np.exp(-logits))
    return labels.astype(int), logits


def sides(labels, logits, fitted=None):
    """How labels are off; intervals that surely have 0 are left out."""
    found, level = [], 1.0 - MISTAKE / labels.shape[1]
    for y, z in zip(labels.T, logits.T, strict=True):
        order, one = np.argsort(z), np.ones(len(z))
        y, p = y[order], 1.0 / (1.0 + np.exp(-z[order]))
        value = np.mean(p - y)
        gap = GapEstimate(value, -1.0, 1.0, None)
        if abs(value) * len(y) > 1.5 * np.sqrt(np.sum(p * (1.0 - p))):
            gap = gap_estimate(one, 1.0 - y, 1.0 - p, level=level)
        bins = bin_sums(p, y, bin_index(p, 15), 15)
        found.append(side_of(gap, bins, level, fitted))
    return found


def test_what_a_small_fit_leaves_is_no_fault():
    labels, logits = drawn(20_000, np.random.default_rng(0))
    for shift in (0.2, -0.2):
        off = sides(labels, logits + shift)
        assert off == ["over" if shift > 0 else "under"] * 10
        assert sides(labels, logits + shift, 100) == ["even"] * 10
        assert sides(labels, logits + shift, 10**6) == off
    # Right on average, too sure at both ends.
    rng = np.random.default_rng(1)
    logits = 1.5 * rng.standard_normal((20_000, 1))
    labels = rng.random(logits.shape) < 1.0 / (1.0 + np.exp(-logits))
    assert sides(labels.astype(int), 2.0 * logits) == ["bent"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fitted", "n", "most"),
    [(None, 1000, 0.05), (300, 3000, 0.02), (1000, 1000, 0.02)],
)
def test_calibrated_labels_are_rarely_called_off(fitted, n, most):
    rng, called = np.random.default_rng(0), 0
    for _ in range(400):
        scale = 1.0
        if fitted is not None:
            labels, logits = drawn(fitted, rng)
            given = zip(labels.T, 2.0 * logits.T, strict=True)
            pairs = ((y, np.stack([0.0 * z, z], -1)) for y, z in given)
            scale = [2.0 / optimal_temperature(FittingData(*x)) for x in pairs]
        labels, logits = drawn(n, rng)
        called += {*sides(labels, scale * logits, fitted)} > {"even"}
    assert called / 400 <= most + 2.5 * np.sqrt(most / 400)

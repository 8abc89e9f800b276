"""Several risks at once: validity by simulation, power and refusals."""

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

import keras_calib as kc

DELTA = 0.1


def draw(rng, n, shift=2.0):
    """Scores N(+-shift / 2, 1) of positives and negatives alike in number."""
    labels = rng.integers(0, 2, n)
    return rng.normal(shift * (labels - 0.5), 1.0), labels


def truth(threshold, shift=2.0):
    """True values at thresholds."""
    recall = ndtr(shift / 2 - threshold)
    fallout = ndtr(-shift / 2 - threshold)
    precision = recall / (recall + fallout)
    return {
        "precision": precision,
        "recall": recall,
        "coverage": (recall + fallout) / 2,
        "risk": 1 - precision,
        "false_positive_rate": fallout,
    }


def kept(name, value, target):
    less = name in ("risk", "false_positive_rate")
    return value <= target if less else value >= target


@pytest.mark.parametrize(
    ("targets", "step"),
    [
        # At threshold 0 precision and recall are 0.841.
        ({"precision": 0.84, "recall": 0.84}, 0),
        ({"precision": 0.8, "recall": 0.8}, 0),
        ({"risk": 0.16, "coverage": 0.5}, 0),
        ({"recall": 0.8, "false_positive_rate": 0.16, "coverage": 0.4}, 0),
        # Tied scores, at a target that a threshold just misses.
        ({"recall": 0.84, "false_positive_rate": 0.3}, 0.5),
    ],
)
def test_all_true_values_keep_their_targets(targets, step):
    rng = np.random.default_rng(0)
    fits, wrong = 200, 0
    for _ in range(fits):
        try:
            scores, labels = draw(rng, 600)
            if step:
                scores = np.floor(scores / step) * step
            found = kc.control_risks(scores, labels, targets, delta=DELTA)
        except ValueError:
            continue
        cuts = found.thresholds[found.valid]
        true = truth(np.ceil(cuts / step) * step if step else cuts)
        wrong += not all(
            np.all(kept(name, true[name], target))
            for name, target in targets.items()
        )
    assert wrong / fits <= DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / fits)


def test_more_data_sets_pass_than_by_bonferroni_over_a_grid():
    rng = np.random.default_rng(1)
    targets = {"precision": 0.8, "recall": 0.8}
    grid = np.linspace(-2.5, 2.5, 100)
    ours = theirs = 0
    for _ in range(60):
        scores, labels = draw(rng, 800)
        accepted = scores[:, None] >= grid
        hits = accepted[labels == 1].sum(0)
        wrong = accepted[labels == 0].sum(0)
        positives = labels.sum()
        p_value = np.maximum(
            binom.cdf(wrong, hits + wrong, 0.2),
            binom.cdf(positives - hits, positives, 0.2),
        )
        theirs += np.any(p_value <= DELTA / len(grid))
        try:
            kc.control_risks(scores, labels, targets, delta=DELTA)
            ours += 1
        except ValueError:
            pass
    assert ours >= theirs + 5


def test_estimates_and_p_values_are_those_of_the_threshold():
    scores, labels = draw(np.random.default_rng(2), 1000)
    targets = {
        "precision": 0.75,
        "recall": 0.75,
        "coverage": 0.3,
        "false_positive_rate": 0.3,
    }
    found = kc.control_risks(scores, labels, targets)
    accepted = scores >= found.threshold
    hits = np.sum(accepted & (labels == 1))
    assert found.coverage == accepted.mean()
    expected = {
        "precision": hits / accepted.sum(),
        "recall": hits / labels.sum(),
        "coverage": accepted.mean(),
        "false_positive_rate": accepted[labels == 0].mean(),
    }
    assert found.estimates == pytest.approx(expected)
    place = np.flatnonzero(found.thresholds == found.threshold)[0]
    misses = labels.sum() - hits
    np.testing.assert_allclose(
        found.p_values["recall"][place],
        binom.cdf(misses, labels.sum(), 0.25),
        rtol=1e-9,
    )
    assert place == np.flatnonzero(found.valid)[-1]
    strict = kc.control_risks(scores, labels, targets, prefer="precision")
    assert strict.estimates["precision"] >= found.estimates["precision"]
    assert strict.coverage <= found.coverage
    selector = kc.SelectiveClassifier(threshold=found.threshold)
    assert selector.threshold == pytest.approx(found.threshold, rel=1e-6)


def test_what_is_out_of_reach_is_refused_with_what_is_in_reach():
    scores, labels = draw(np.random.default_rng(3), 500)
    targets = {"precision": 0.9, "recall": 0.9}
    with pytest.raises(ValueError, match=r"precision alone.*at coverage"):
        kc.control_risks(scores, labels, targets)
    for bad, message in (
        ({}, "at least one"),
        ({"f1": 0.5}, "`targets` must be"),
        ({"recall": 1.0}, "`recall` must be < 1"),
    ):
        with pytest.raises(ValueError, match=message):
            kc.control_risks(scores, labels, bad)
    with pytest.raises(TypeError, match="must be a dict"):
        kc.control_risks(scores, labels, ["recall"])

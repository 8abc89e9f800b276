"""Several risks at once: validity by simulation, power and refusals."""

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

import keras_calib as kc
from keras_calib.formulas.bounded_means import (
    accepted_p_values,
    first_rank_by_betting,
)
from keras_calib.selection.claims import places_by_betting
from keras_calib.selection.families import walk

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
        "cost": (1 - precision) / 2,
    }


def costs(rng, labels):
    """What a wrong acceptance costs, 1/2 in the mean."""
    return (1 - labels) * rng.random(len(labels))


def kept(name, value, target):
    less = name in ("risk", "false_positive_rate", "cost")
    return value <= target if less else value >= target


@pytest.mark.parametrize(
    ("limits", "step"),
    [
        # At threshold 0 precision and recall are 0.841.
        ({"precision": 0.84, "recall": 0.84}, 0),
        ({"precision": 0.8, "recall": 0.8}, 0),
        ({"risk": 0.16, "coverage": 0.5}, 0),
        ({"recall": 0.8, "false_positive_rate": 0.16, "coverage": 0.4}, 0),
        # At threshold 0 the mean cost of the accepted is 0.0793.
        ({"recall": 0.8, "cost": 0.08}, 0),
        ({"cost": 0.08, "coverage": 0.4, "recall": 0.7}, 0.5),
        # Tied scores, at a target that a threshold just misses.
        ({"recall": 0.84, "false_positive_rate": 0.3}, 0.5),
    ],
)
def test_all_true_values_keep_their_targets(limits, step):
    rng = np.random.default_rng(0)
    fits, wrong = 60 if "cost" in limits else 200, 0
    for _ in range(fits):
        try:
            scores, labels = draw(rng, 600)
            if step:
                scores = np.floor(scores / step) * step
            losses = {"cost": costs(rng, labels)} if "cost" in limits else None
            found = kc.selection.control_risks(
                scores, labels, limits, delta=DELTA, losses=losses
            )
        except ValueError:
            continue
        cuts = found.table().threshold[found.table().certified]
        true = truth(np.ceil(cuts / step) * step if step else cuts)
        wrong += not all(
            np.all(kept(name, true[name], target))
            for name, target in limits.items()
        )
    assert wrong / fits <= DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / fits)


def test_more_data_sets_pass_than_by_bonferroni_over_a_grid():
    rng = np.random.default_rng(1)
    limits = {"precision": 0.8, "recall": 0.8}
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
            kc.selection.control_risks(scores, labels, limits, delta=DELTA)
            ours += 1
        except ValueError:
            pass
    assert ours >= theirs + 5


def test_estimates_and_p_values_are_those_of_the_threshold():
    scores, labels = draw(np.random.default_rng(2), 1000)
    limits = {
        "precision": 0.75,
        "recall": 0.75,
        "coverage": 0.3,
        "false_positive_rate": 0.3,
    }
    found = kc.selection.control_risks(scores, labels, limits)
    accepted = scores >= found.threshold
    hits = np.sum(accepted & (labels == 1))
    assert found.coverage == accepted.mean()
    expected = {
        "precision": hits / accepted.sum(),
        "recall": hits / labels.sum(),
        "coverage": accepted.mean(),
        "false_positive_rate": accepted[labels == 0].mean(),
    }
    assert found.facts["estimates"] == pytest.approx(expected)
    place = np.flatnonzero(found.table().threshold == found.threshold)[0]
    misses = labels.sum() - hits
    np.testing.assert_allclose(
        found.facts["p_values"]["recall"][place],
        binom.cdf(misses, labels.sum(), 0.25),
        rtol=1e-9,
    )
    assert place == np.flatnonzero(found.table().certified)[-1]
    strict = kc.selection.control_risks(
        scores, labels, limits, prefer="precision"
    )
    before = found.facts["estimates"]["precision"]
    assert strict.facts["estimates"]["precision"] >= before
    assert strict.coverage <= found.coverage
    selector = kc.SelectiveClassifier(threshold=found.threshold)
    assert selector.threshold == pytest.approx(found.threshold, rel=1e-6)


@pytest.mark.parametrize(
    ("limits", "parts"),
    [
        ({"recall": 0.75, "coverage": 0.4}, 1),
        ({"recall": 0.75, "coverage": 0.4, "false_positive_rate": 0.3}, 2),
    ],
)
def test_recall_and_coverage_share_a_level(limits, parts):
    """Of two sets of bad thresholds one holds the other."""
    scores, labels = draw(np.random.default_rng(4), 800)
    found = kc.selection.control_risks(scores, labels, limits, delta=DELTA)
    levels = [found.facts["p_values"][name] <= DELTA / parts for name in limits]
    np.testing.assert_array_equal(
        found.table().certified, np.all(levels, axis=0)
    )
    # At another share the thresholds would be others.
    levels = [
        found.facts["p_values"][name] <= DELTA / (parts + 1) for name in limits
    ]
    assert np.any(found.table().certified != np.all(levels, axis=0))


def test_precision_and_risk_share_a_level():
    scores, labels = draw(np.random.default_rng(5), 800)
    one = kc.selection.control_risks(scores, labels, {"precision": 0.8})
    two = kc.selection.control_risks(
        scores, labels, {"precision": 0.8, "risk": 0.3}
    )
    np.testing.assert_array_equal(one.table().certified, two.table().certified)


def test_walks_begin_where_the_coverage_is_certified():
    """So errors among the surest cost no part of `delta`."""
    n, level = 400, 0.025
    labels = np.ones(n)
    labels[:40:4] = 0.0
    # 200 of 400 certify 0.45 at 0.025; their 10 errors 0.1 at 0.014.
    scores = np.linspace(1.0, 0.0, n)
    limits = {"risk": 0.1, "coverage": 0.45}
    found = kc.selection.control_risks(scores, labels, limits, delta=2 * level)
    kept_by_coverage = found.facts["p_values"]["coverage"] <= level
    first = np.flatnonzero(kept_by_coverage)[0]
    assert level / 4 < found.facts["p_values"]["risk"][first] <= level
    assert found.table().certified[first]


def test_a_loss_is_tested_by_its_mean_over_the_accepted():
    rng = np.random.default_rng(6)
    scores, labels = draw(rng, 200)
    losses = {"cost": costs(rng, labels)}
    limits = {"recall": 0.6, "cost": 0.25}
    found = kc.selection.control_risks(scores, labels, limits, losses=losses)
    accepted = scores >= found.threshold
    assert found.facts["estimates"]["cost"] == pytest.approx(
        losses["cost"][accepted].mean()
    )
    order = np.argsort(-scores)
    rank = first_rank_by_betting(0.25, 0.0125)
    expected = accepted_p_values(
        losses["cost"][order], np.arange(rank, 201), 0.25, delta=0.0125
    )
    np.testing.assert_allclose(
        found.facts["p_values"]["cost"][rank - 1 :], expected
    )
    places, first, shares = places_by_betting(
        np.arange(1, 201), 0.25, 0.025, 1, 2**0.5
    )
    walked = np.zeros(200, bool)
    walked[places] = walk(
        found.facts["p_values"]["cost"][places], first, shares
    )
    recalled = found.facts["p_values"]["recall"] <= 0.025
    np.testing.assert_array_equal(found.table().certified, walked & recalled)
    # Whole numbers as scores, of which numpy would wrap the minus.
    whole = (10 * scores + 100).astype("uint8")
    tied = kc.selection.control_risks(whole, labels, limits, losses=losses)
    assert tied.facts["estimates"]["cost"] == pytest.approx(
        losses["cost"][whole >= tied.threshold].mean()
    )


@pytest.mark.parametrize(
    ("losses", "error", "message"),
    [
        ({"cost": [0.0, 1.5]}, ValueError, "divide them and their limit"),
        ({"cost": [0.0]}, ValueError, "one value per score"),
        ({"price": [0.0, 1.0]}, ValueError, "target by its name"),
        ({"risk": [0.0, 1.0]}, ValueError, "none of a quantity"),
        ([0.0, 1.0], TypeError, "dict of arrays"),
    ],
)
def test_losses_that_say_nothing_are_refused(losses, error, message):
    limits = {"risk": 0.5, "cost": 0.5}
    with pytest.raises(error, match=message):
        kc.selection.control_risks([0.1, 0.2], [1, 0], limits, losses=losses)


def test_what_is_out_of_reach_is_refused_with_what_is_in_reach():
    scores, labels = draw(np.random.default_rng(3), 500)
    limits = {"precision": 0.9, "recall": 0.9}
    with pytest.raises(ValueError, match=r"precision alone.*at coverage"):
        kc.selection.control_risks(scores, labels, limits)
    for bad, message in (
        ({}, "at least one"),
        ({"f1": 0.5}, "`limits` must be"),
        ({"recall": 1.0}, "`recall` must be < 1"),
    ):
        with pytest.raises(ValueError, match=message):
            kc.selection.control_risks(scores, labels, bad)
    with pytest.raises(TypeError, match="must be a dict"):
        kc.selection.control_risks(scores, labels, ["recall"])

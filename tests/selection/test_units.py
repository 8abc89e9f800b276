"""Thresholds for units as a whole, such as images: mean losses in [0, 1]."""

import contextlib

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.formulas.costs import upper_bounds_of_means

RNG = np.random.default_rng(0)
# Images of 6 x 5 pixels, from sure to unsure; the first row has no label.
HARD = RNG.beta(1, 4, 120)
LABELS = RNG.integers(0, 3, (120, 6, 5))
LOGITS = RNG.normal(size=(120, 6, 5, 3))
SEEN = RNG.random((120, 6, 5)) > 0.6 * HARD[:, None, None]
LOGITS += (SEEN * 6.0 * (1 - HARD)[:, None, None])[..., None] * np.eye(3)[
    LABELS
]
LABELS[:, 0] = 255
LABELS[7] = 255
HOW = {"from_logits": True, "ignore_class": 255}
IMAGES = kc.Predictions(LABELS, LOGITS, **HOW)
TARGET = {"risk": 0.11, "delta": 0.1}


def by_hand():
    """Mean confidence of all pixels, and the share of the valid ones wrong."""
    probs = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=-1, keepdims=True)
    score = probs.max(axis=-1).mean(axis=(1, 2))
    wrong = (LOGITS.argmax(axis=-1) != LABELS)[:, 1:].mean(axis=(1, 2))
    return np.delete(score, 7), np.delete(wrong, 7)


def test_images_have_the_mean_confidence_and_the_share_of_wrong_pixels():
    score, wrong = by_hand()
    found = kc.choose_threshold(IMAGES, units=True, **TARGET)
    alone = kc.choose_threshold(score, cost=wrong, **TARGET)
    assert 0.3 < found.coverage < 1.0
    assert found.threshold == pytest.approx(alone.threshold, rel=1e-6)
    assert (found.coverage, found.num_samples) == (alone.coverage, 119)
    assert found.risk == pytest.approx(wrong[score >= found.threshold].mean())
    assert (found.method, found.limit, found.delta) == ("betting", 0.11, 0.1)
    bentkus = kc.choose_threshold(
        IMAGES, units=True, method="hoeffding_bentkus", risk=0.14, delta=0.1
    )
    assert (bentkus.coverage < 0.7, bentkus.method) == (
        True,
        "hoeffding_bentkus",
    )
    # Which pixels have no label is unknown in use, also where it is class 0.
    first = kc.Predictions(
        np.where(LABELS == 255, 0, 1), LOGITS, from_logits=True, ignore_class=0
    )
    half = kc.choose_threshold(first, units=True, coverage=0.5)
    kept = np.sort(score)[::-1]
    assert kept[59] > half.threshold > kept[60]


def test_units_may_be_named_and_their_rows_in_any_order():
    wrong = RNG.random((40, 8)) < RNG.beta(1, 5, (40, 1))
    score = RNG.normal(size=(40, 8)) - 3.0 * wrong.mean(axis=1, keepdims=True)
    weight = RNG.integers(1, 4, (40, 8)).astype(float)
    target = {"risk": 0.25, "delta": 0.2}
    expected = kc.choose_threshold(
        np.average(score, axis=1, weights=weight),
        cost=np.average(wrong, axis=1, weights=weight),
        **target,
    )
    order = RNG.permutation(320)
    names = np.repeat([f"patient {k}" for k in range(40)], 8)
    rows = (x.reshape(-1)[order] for x in (score, ~wrong))
    found = kc.choose_threshold(
        *rows,
        units=names[order],
        sample_weight=weight.reshape(-1)[order],
        **target,
    )
    dense = kc.choose_threshold(
        score, ~wrong, units=True, sample_weight=weight, **target
    )
    for one in (found, dense):
        assert one.threshold == pytest.approx(expected.threshold)
        assert one.coverage == expected.coverage < 1.0
    p = kc.Predictions(
        correct=~wrong.reshape(-1),
        confidence=1 / (1 + np.exp(-score.reshape(-1))),
        units=names,
    )
    told = kc.choose_threshold(p, units=True, **target)
    own = kc.choose_threshold(p, units=np.arange(320) // 8, **target)
    assert told.num_samples == 40
    assert told == own


def test_a_cost_of_images_takes_the_place_of_wrong_pixels():
    iou = kc.functional.per_image("mean_iou", IMAGES, average=False)
    found = kc.choose_threshold(
        IMAGES, cost=1 - iou, units=True, risk=0.35, delta=0.1
    )
    score, _ = by_hand()
    alone = kc.choose_threshold(
        score, cost=1 - np.delete(iou, 7), risk=0.35, delta=0.1
    )
    assert found.coverage == alone.coverage > 0.0
    priced = kc.choose_threshold(
        IMAGES, cost=1 - iou, units=True, max_cost=0.35, delta=0.1
    )
    assert (priced.kind, priced.coverage) == ("costs", alone.coverage)


def test_bounds_of_shares_are_those_of_means():
    chosen = kc.choose_threshold(IMAGES, units=True, coverage=0.5)
    table = chosen.table()
    count = np.arange(1, 120)
    bounds = upper_bounds_of_means(table.risk * count, count, level=0.95)
    np.testing.assert_allclose(table.upper_bound, bounds)
    assert chosen.method is None


def promises(n, fits, delta, limit, loss_of, seed=0):
    """The share of fits that certify losses just above the limit."""
    rng = np.random.default_rng([seed, n])
    failed = 0
    for _ in range(fits):
        loss = loss_of(1.001 * limit, n, rng)
        with contextlib.suppress(ValueError):
            kc.choose_threshold(
                rng.normal(size=n), cost=loss, risk=limit, delta=delta
            )
            failed += 1
    return failed / fits


def skewed(mean, n, rng):
    return rng.beta(0.15, 0.15 * (1 / mean - 1), n)


def whole(mean, n, rng):
    return (rng.random(n) < mean).astype(float)


def test_a_promise_of_images_fails_about_as_often_as_it_may():
    share = promises(40, 150, 0.3, 0.2, whole)
    allowed = 0.3 + 2 * np.sqrt(0.3 * 0.7 / 150)
    # In other units all or none would be certified.
    assert 0.1 < share <= allowed


@pytest.mark.slow
@pytest.mark.parametrize("loss_of", [skewed, whole])
@pytest.mark.parametrize("n", [60, 200, 1000])
def test_promises_of_images_hold_at_the_limit(n, loss_of):
    fits = 600
    share = promises(n, fits, 0.1, 0.15, loss_of)
    assert share <= 0.1 + 2 * np.sqrt(0.1 * 0.9 / fits)


SCORES = np.linspace(0.5, 1.0, 30)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"correct": SCORES, "risk": 0.1}, r"shares go to `choose_threshold"),
        ({"cost": 2 * SCORES, "risk": 0.1}, "between 0 and `largest_cost`"),
        ({"cost": SCORES, "correct": SCORES, "risk": 0.1}, "`correct` must be"),
        (
            {"cost": SCORES, "groups": SCORES > 0.7, "risk": 0.1},
            "`groups` must",
        ),
        ({"cost": SCORES, "max_cost": 0.1, "risk": 0.1}, "`risk` must be None"),
        ({"correct": SCORES > 0, "max_cost": 0.1}, "`cost` or `units` must"),
        ({"correct": SCORES > 0, "method": "betting", "risk": 0.1}, "`method`"),
        (
            {"cost": SCORES, "method": "ltt", "risk": 0.1},
            "`method` must be one",
        ),
        (
            {"cost": 0 * SCORES, "risk": 0.02, "delta": 0.1},
            "which takes 129 sam",
        ),
        ({"cost": SCORES, "units": [1, 2], "risk": 0.1}, "`units` must have"),
        ({"cost": SCORES / 9, "risk": 0.1, "delta": 0.1}, "ask for `risk=0.2"),
    ],
)
def test_what_is_no_share_or_no_target_is_refused(options, match):
    with pytest.raises(ValueError, match=match):
        kc.choose_threshold(SCORES, **options)

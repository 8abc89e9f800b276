"""Guarantees at another prior and for mixtures of groups.

In the simulations the risk at the target is just above the limit at every
threshold, while the data themselves have a risk below it.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from ladders import fixed_sequence

import keras_calib as kc
from keras_calib.formulas.shifted_risk import (
    class_weights,
    largest_bet,
    log_evidence,
    subsample_of,
)
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.selection.claims import starts_at
from keras_calib.selection.ladder import counts_at
from keras_calib.selection.shift import (
    MixtureTarget,
    PriorTarget,
    fixed_thresholds,
    tenth_of,
)

RISK, DELTA = 0.05, 0.05
N = np.arange(2000)
OPTIONS = {"risk": RISK, "delta": DELTA}


def made_up(seed, num_classes=3, size=900, rate=0.02):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, size)
    scores = np.round(rng.normal(size=size), 2)
    correct = rng.random(size) > rate * (1 + labels) * np.exp(-scores)
    return scores, correct, labels


def test_evidence_is_the_product_of_the_bets_on_each_sample():
    scores, correct, labels = made_up(0)
    prior = np.array([0.6, 0.3, 0.1])
    weight = class_weights(np.bincount(labels), prior)
    np.testing.assert_allclose(weight[labels].mean(), 1.0)
    largest = largest_bet(weight, RISK)
    bets = np.array([0.1, 1.0]) * largest
    thresholds = np.array([0.5, -np.inf])
    kind = 2 * labels + ~correct
    counts = counts_at(scores, kind, 6, thresholds)
    found = log_evidence(counts[:, ::2], counts[:, 1::2], weight, bets, RISK)
    for place, threshold in enumerate(thresholds):
        accept = scores >= threshold
        z = (~correct - RISK) * accept
        product = math.prod(1.0 - bets[place] * weight[labels] * z)
        np.testing.assert_allclose(found[place], math.log(product), rtol=1e-9)


def test_evidence_of_two_samples_has_a_mean_of_at_most_one_under_the_null():
    # All outcomes of one sample of each class, whose risks vary.
    prior, count = np.array([0.8, 0.2]), np.array([1, 1])
    weight = class_weights(count, prior)
    bet = np.array([largest_bet(weight, RISK)])
    for first in np.linspace(0.0, RISK / 0.8, 9):
        second = (RISK - 0.8 * first) / 0.2
        mean = 0.0
        for wrong in np.ndindex(2, 2):
            wrong = np.array([wrong])
            chance = np.prod(
                np.where(wrong[0], [first, second], [1 - first, 1 - second])
            )
            evidence = log_evidence(1 - wrong, wrong, weight, bet, RISK)
            mean += chance * np.exp(evidence[0])
        assert mean <= 1.0 + 1e-12


def test_a_subsample_is_nearly_always_filled():
    prior, count = np.array([0.5, 0.3, 0.2]), np.array([400, 90, 500])
    found = subsample_of(count, prior, 0.05)
    draws = np.random.default_rng(0).multinomial(found.size, prior, 20_000)
    filled = (draws <= count).all(axis=1).mean()
    assert found.chance - 0.005 <= filled
    assert subsample_of(count, prior, 0.05).size < 300 < count.sum()
    more = np.random.default_rng(0).multinomial(found.size + 25, prior, 20_000)
    assert (more <= count).all(axis=1).mean() < 0.95


def test_counts_starts_and_tenth_are_those_of_loops():
    scores, _, labels = made_up(1)
    tenth = tenth_of(labels, 3)
    sizes = np.bincount(labels)
    np.testing.assert_array_equal(
        np.bincount(labels[tenth]), np.rint(sizes / 10)
    )
    thresholds, coverage = fixed_thresholds(
        Outcomes(scores[tenth], np.ones(tenth.sum()))
    )
    shares = [(scores[tenth] >= one).mean() for one in thresholds]
    np.testing.assert_allclose(coverage, shares)
    assert thresholds[-1] == -np.inf and (np.diff(thresholds) < 0).all()
    counts = counts_at(scores, labels, 3, thresholds)
    for threshold, row in zip(thresholds, counts, strict=True):
        expected = np.bincount(labels[scores >= threshold], minlength=3)
        np.testing.assert_array_equal(row, expected)
    coverage = np.arange(1, 101) / 100
    places, shares = starts_at(
        300 * coverage, coverage, lambda level: -30 * math.log10(level), 0.1
    )
    # 39 of 300 at delta / 2, with a margin of 1.2.
    assert places.tolist() == [15, 31, 63]
    np.testing.assert_allclose(shares, [0.05, 0.025, 0.025])
    assert starts_at(10 * coverage, coverage, lambda level: 9.5, 0.1)[
        0
    ].tolist() == [99]
    assert not len(starts_at(coverage, coverage, lambda level: 2.0, 0.1)[0])


@pytest.mark.parametrize("method", ["subsampling", "betting"])
def test_a_risk_above_the_limit_at_the_prior_is_rarely_certified(method):
    # Class 1 errs more: 0.03 on the data, 0.0505 at the prior.
    rates = np.array([0.01, 0.0505 / 0.8 - 0.0025])
    prior = np.array([0.2, 0.8])
    false = plain = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        labels = (rng.random(800) < 0.35).astype(int)
        correct = rng.random(800) >= rates[labels]
        scores = rng.normal(size=800)
        target = PriorTarget(prior, RISK, DELTA, method, seed)
        test = target.test(Outcomes(scores, correct, group=labels))
        false += test.certified(RISK).any()
        order = np.argsort(-scores)
        wrong = np.cumsum(~correct[order])
        plain += fixed_sequence(N[:800] + 1, wrong, RISK, DELTA).any()
    # At most 5 %, with three standard errors; the plain threshold is wrong.
    assert false <= 200 * 0.05 + 3 * math.sqrt(200 * 0.05 * 0.95)
    assert plain > 100


def test_one_bad_group_is_rarely_certified():
    false = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        groups = np.repeat([0, 1, 2], [100, 300, 800])
        rates = np.array([0.0505, 0.0, 0.01])
        correct = rng.random(1200) >= rates[groups]
        target = MixtureTarget(RISK, DELTA, seed)
        test = target.test(
            Outcomes(
                rng.normal(size=1200),
                correct,
                group=groups,
                names=(0, 1, 2),
            )
        )
        false += test.certified(RISK).any()
    assert false <= 200 * 0.05 + 3 * math.sqrt(200 * 0.05 * 0.95)


def test_facts_are_those_of_the_target():
    scores, correct, labels = made_up(2, size=3000, rate=0.01)
    prior = np.array([0.6, 0.4, 0.0])
    found = kc.selection.choose_threshold_for_prior(
        scores, correct, labels, target_prior=prior, **OPTIONS
    )
    accept = scores >= found.threshold
    share = [accept[labels == k].mean() for k in (0, 1)]
    wrong = [(accept & ~correct)[labels == k].mean() for k in (0, 1)]
    np.testing.assert_allclose(found.coverage, prior[:2] @ share)
    np.testing.assert_allclose(
        found.risk, (prior[:2] @ wrong) / (prior[:2] @ share)
    )
    assert found.num_samples == (labels < 2).sum()
    assert "the true risk at the target prior is at most 0.05" in repr(found)
    mixed = kc.selection.choose_threshold_for_mixtures(
        scores, correct, labels, **OPTIONS
    )
    accept = scores >= mixed.threshold
    risks = [1 - correct[accept & (labels == k)].mean() for k in range(3)]
    np.testing.assert_allclose(mixed.group_risk, risks)
    assert mixed.facts["worst_group"] == np.argmax(risks)
    assert "no mixture of the groups has a true risk above 0.05" in repr(mixed)


REFUSED = {
    "a class without samples": (
        lambda: kc.selection.choose_threshold_for_prior(
            -N, N < 1990, N % 2, target_prior=[0.4, 0.4, 0.2], **OPTIONS
        ),
        "missing=[2]",
    ),
    "a class with too few samples": (
        lambda: kc.selection.choose_threshold_for_prior(
            -N, N < 2000, N // 1990, target_prior=[0.2, 0.8], **OPTIONS
        ),
        "take about 54 of class 1",
    ),
    "a risk out of reach at the prior": (
        lambda: kc.selection.choose_threshold_for_prior(
            -N, N % 9 > 0, N % 2, target_prior=[0.8, 0.2], **OPTIONS
        ),
        "ask for `risk=0.1",
    ),
    "a group with too few samples": (
        lambda: kc.selection.choose_threshold_for_mixtures(
            -N, N < 2000, N // 1950, **OPTIONS
        ),
        "at least 65 samples",
    ),
    "a risk out of reach of a group": (
        lambda: kc.selection.choose_threshold_for_mixtures(
            -N, (N % 9 > 0) | (N % 2 > 0), N % 2, **OPTIONS
        ),
        "hardest group=0",
    ),
    "no delta": (
        lambda: kc.selection.choose_threshold_for_prior(
            -N, N > 0, N % 2, target_prior=[0.5, 0.5], risk=0.1, delta=None
        ),
        "`delta` must be given",
    ),
    "labels beyond the prior": (
        lambda: kc.selection.choose_threshold_for_prior(
            -N, N > 0, N % 3, target_prior=[0.5, 0.5], **OPTIONS
        ),
        "classes of `target_prior`",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_certified_is_refused(case):
    call, words = REFUSED[case]
    with pytest.raises(ValueError) as error:
        call()
    assert words in str(error.value)


def logits_of(seed, size=2000):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, size)
    return labels, rng.normal(size=(size, 3)) + 4.0 * np.eye(3)[labels]


@pytest.mark.portable
def test_a_selector_takes_the_threshold_of_its_records():
    labels, logits = logits_of(0)
    prior = [0.6, 0.3, 0.1]
    correction = kc.PriorCorrection([1 / 3] * 3, prior)
    selector = kc.SelectiveClassifier(calibrator=correction)
    selector.fit(labels, logits, target_prior=prior, seed=1, **OPTIONS)
    answer = selector(logits)
    score, label = (np.asarray(answer[k]) for k in ("score", "label"))
    records = score, label == labels
    found = kc.selection.choose_threshold_for_prior(
        *records, labels, target_prior=prior, seed=1, **OPTIONS
    )
    assert replace(selector.chosen, confidence=None) == found
    again = kc.SelectiveClassifier().fit_scores(
        *records, labels=labels, target_prior=prior, seed=1, **OPTIONS
    )
    assert again.chosen == selector.chosen
    groups = np.where(labels > 0, "b", "a")
    mixed = kc.SelectiveClassifier(calibrator=correction)
    mixed.fit(labels, logits, groups=groups, one_threshold=True, **OPTIONS)
    found = kc.selection.choose_threshold_for_mixtures(
        *records, groups, **OPTIONS
    )
    assert replace(mixed.chosen, confidence=None) == found
    assert mixed.groups == ()
    # Served without a group.
    assert np.asarray(mixed(logits)["accept"]).mean() == found.coverage
    for one in (selector, mixed):
        copy = kc.SelectiveClassifier.from_config(one.get_config())
        assert copy.chosen == one.chosen
        assert copy.threshold == np.float32(one.chosen.threshold)
        assert len(one.chosen.table().risk) > 1
    with pytest.warns(RuntimeWarning, match="corrects to another prior"):
        selector.fit(labels, logits, target_prior=[0.2, 0.4, 0.4], **OPTIONS)


def test_rows_that_tune_do_not_choose():
    labels, logits = logits_of(1)
    groups = labels % 2
    selector = kc.SelectiveClassifier(calibrator=kc.TemperatureScaling())
    options = {**OPTIONS, "tune_fraction": 0.25}
    selector.fit(labels, logits, target_prior=[0.5, 0.3, 0.2], **options)
    assert selector.chosen.num_samples == 1500
    selector = kc.SelectiveClassifier(calibrator=kc.TemperatureScaling())
    options |= {"groups": groups, "one_threshold": True, "ignore_class": 2}
    selector.fit(labels, logits, **options)
    assert sum(selector.chosen.group_samples) == selector.chosen.num_samples


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target_prior": [0.5, 0.5]}, "a share for each class"),
        ({"one_threshold": True}, "needs `groups`"),
        ({"target_prior": [1.0, 0, 0], "groups": [0] * 2000}, "exclude"),
        ({"target_prior": [1.0, 0, 0], "method": "ltt"}, "`method` must be"),
        ({"target_prior": [1.0, 0, 0], "coverage": 0.5}, "`coverage` must"),
        (
            {"target_prior": [1.0, 0, 0], "sample_weight": [2.0] * 2000},
            "`sample_weight` must be 1",
        ),
    ],
)
def test_a_selector_refuses_what_is_not_guaranteed(options, words):
    labels, logits = logits_of(0)
    with pytest.raises(ValueError, match=words):
        kc.SelectiveClassifier().fit(labels, logits, **OPTIONS, **options)


def test_what_is_for_the_data_of_the_fit_alone_refuses_shifted_guarantees():
    labels, logits = logits_of(0)
    selector = kc.SelectiveClassifier()
    selector.fit(labels, logits, target_prior=[0.5, 0.3, 0.2], **OPTIONS)
    with pytest.raises(ValueError, match="not for `target_prior`"):
        kc.exporting.save_records(selector, "x.npz")
    with pytest.raises(ValueError, match="give `risk`"):
        kc.Monitor(selector)

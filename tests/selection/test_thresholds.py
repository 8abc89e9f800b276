"""Targets, what they refuse, and the table of thresholds."""

import re

import numpy as np
import pytest
from cases import array
from scipy.special import expit
from selection_data import noisy

import keras_calib as kc


def test_tied_samples_are_accepted_together():
    scores, correct = [3, 2, 2, 2, 1], [1, 1, 0, 1, 0]
    chosen = kc.choose_threshold(scores, correct, coverage=0.3)
    assert (chosen.coverage, chosen.risk) == (0.8, 0.25)
    chosen = kc.choose_threshold(scores, correct, risk=0.2)
    assert (chosen.coverage, chosen.risk) == (0.2, 0.0)
    assert chosen.threshold == 2.5


def test_neighbouring_floats_are_told_apart():
    one = np.float32(1.0)
    # The middle of two neighbours rounds to the even one, above or below.
    for other in (np.float32(0), np.float32(2)):
        scores = np.sort([one, np.nextafter(one, other)])[::-1]
        chosen = kc.choose_threshold(scores, [1, 0], risk=0.0)
        assert list(scores >= np.float32(chosen.threshold)) == [True, False]


def test_an_unreachable_risk_names_what_could_be_had():
    labels, logits = noisy(signal=0.5)
    selector = kc.SelectiveClassifier().fit(labels, logits, risk=0.3)
    before = selector.threshold, selector.chosen
    with pytest.raises(ValueError, match="takes 2995 samples") as error:
        selector.fit(labels, logits, risk=0.001, delta=0.05)
    words = re.search(
        r"ask for `risk=(.*?)`, .* be (.*?) here", str(error.value)
    )
    lowest, coverage = (float(word) for word in words.groups())
    assert (selector.threshold, selector.chosen) == before
    other = kc.SelectiveClassifier()
    other.fit(labels, logits, risk=lowest, delta=0.05)
    assert abs(other.chosen.coverage - coverage) < 1e-3
    # Rounded to two digits, and no more than that.
    with pytest.raises(ValueError, match="No threshold is certified to"):
        other.fit(labels, logits, risk=lowest - 0.01, delta=0.05)
    with pytest.raises(ValueError, match="lowest risk=0.3333333333333333"):
        selector.fit_scores([3.0, 2.0, 1.0], [0, 1, 1], risk=0.1)
    assert (selector.threshold, selector.chosen) == before


def test_a_risk_out_of_reach_says_how_many_samples_would_do():
    # Right with log-odds of 3 more than of the score that decides.
    rng = np.random.default_rng(0)
    scores = rng.normal(2.0, 2.0, 200_000)
    correct = rng.random(200_000) < 1.0 / (1.0 + np.exp(-1.5 * scores))
    options = {"risk": 0.02, "delta": 0.05}
    with pytest.raises(ValueError, match="at least [0-9]+ samples") as error:
        kc.choose_threshold(scores[:300], correct[:300], **options)
    enough = int(re.search(r"at least (\d+) samples", str(error.value))[1])
    assert 300 < enough <= 6000
    found = kc.choose_threshold(scores[:enough], correct[:enough], **options)
    assert found.risk < 0.02
    # No number of samples helps where the surest are wrong too often.
    few = correct[:50_000] & (rng.random(50_000) < 0.5)
    with pytest.raises(ValueError, match="No threshold") as error:
        kc.choose_threshold(scores[:50_000], few, **options)
    assert "samples like these" not in str(error.value)


BAD_TARGETS = (
    ({}, "One of `risk` and `coverage`"),
    ({"risk": 0.1, "coverage": 0.5}, "One of `risk` and `coverage`"),
    ({"coverage": 0.0}, "`coverage` must be > 0"),
    ({"coverage": 1.1}, "`coverage` must be <= 1"),
    ({"risk": -0.1}, "`risk` must be >= 0"),
    ({"risk": 1.1}, "`risk` must be <= 1"),
    ({"risk": 0.1, "delta": 0.0}, "`delta` must be > 0"),
    ({"risk": 0.1, "delta": 1.0}, "`delta` must be < 1"),
    ({"risk": 0.1, "delta": 5e-324}, "`delta` must not be so near 0"),
    ({"risk": 5e-324, "delta": 0.1}, "`risk` must not be so near 0"),
    ({"risk": 0.0, "delta": 0.1}, "needs a `risk`"),
    ({"coverage": 0.5, "delta": 0.1}, "needs a `risk`"),
    ({"risk": 0.1, "method": "best"}, "`method` must be None"),
    ({"risk": 0.1, "tune_fraction": 0.0}, "`tune_fraction` must be > 0"),
    ({"risk": 0.1, "tune_fraction": 1.0}, "rows on both sides"),
)


def test_bad_targets_are_refused():
    labels, logits = noisy(n=50)
    selector = kc.SelectiveClassifier()
    for options, message in BAD_TARGETS:
        with pytest.raises(ValueError, match=message):
            selector.fit(labels, logits, **options)
        assert not selector.fitted, options


def test_bad_data_are_refused():
    labels, logits = noisy(n=50)
    selector = kc.SelectiveClassifier()
    bad = np.where(logits > 6, np.nan, logits)
    with pytest.raises(ValueError, match="`logits` must not contain NaN"):
        selector.fit(labels, bad, risk=0.1)
    with pytest.raises(ValueError, match="`logits` must have shape"):
        selector.fit(labels, logits[:, 0], risk=0.1, delta=0.1)
    with pytest.raises(ValueError, match="`logits` must not be empty"):
        selector.fit(labels[:0], logits[:0], risk=0.1)
    for tuned in (None, 0.5):
        with pytest.raises(ValueError, match="`labels` must"):
            selector.fit(labels[:9], logits, risk=0.1, tune_fraction=tuned)
    with pytest.raises(ValueError, match="`scores` must not be NaN"):
        kc.choose_threshold([1.0, np.nan], [1, 0], risk=0.1)
    with pytest.raises(ValueError, match="must have one shape"):
        kc.choose_threshold([1.0, 2.0], [1], risk=0.1)
    with pytest.raises(ValueError, match="`correct` must be 0 or 1"):
        kc.choose_threshold([1.0, 2.0], [1, 2], risk=0.1)
    with pytest.raises(ValueError, match="one value per sample"):
        kc.SelectiveClassifier(score=lambda z: z).fit(labels, logits, risk=0.1)
    with pytest.raises(ValueError, match="`score` must be"):
        kc.SelectiveClassifier(score="entropy")
    with pytest.raises(ValueError, match="one score if `threshold`"):
        kc.SelectiveClassifier(score=["msp", "gini"], threshold=0.0)
    assert not selector.fitted


def test_rows_of_one_unit_are_refused_with_the_way_to_promise_units():
    scores = np.ones((5, 2, 2))
    with pytest.raises(ValueError, match=r"by `choose_threshold\(..., units"):
        kc.choose_threshold(scores, scores, risk=0.1, delta=0.1)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([-1.0, 1.0, 1.0], "finite and >= 0"),
        ([np.nan, 1.0, 1.0], "finite and >= 0"),
        ([np.inf, 1.0, 1.0], "finite and >= 0"),
        ([0.0, 0.0, 0.0], "must not be 0 everywhere"),
        ([1.0, 1.0], "must have the shape"),
    ],
)
def test_bad_weights_of_scores_are_refused(weight, message):
    data, options = ([3.0, 2.0, 1.0], [0, 1, 1]), {"sample_weight": weight}
    with pytest.raises(ValueError, match=message):
        kc.choose_threshold(*data, coverage=0.5, **options)
    selector = kc.SelectiveClassifier()
    with pytest.raises(ValueError, match=message):
        selector.fit_scores(*data, coverage=0.5, **options)
    assert not selector.fitted


def test_one_weight_per_image_counts_for_its_scores():
    rng = np.random.default_rng(0)
    scores, correct = rng.random((20, 30)), rng.random((20, 30)) < 0.9
    weight = rng.random(20)
    each = np.repeat(weight[:, None], 30, axis=1)
    for form in (weight, weight[:, None], weight.tolist()):
        found, expected = (
            kc.choose_threshold(scores, correct, risk=0.1, sample_weight=w)
            for w in (form, each)
        )
        assert found == expected


@pytest.mark.parametrize("n", [12, 100_000])
def test_fractional_weights_reach_their_targets_as_counts_do(n):
    scores, correct = -np.arange(n), np.arange(n) % 4 > 0
    weight = np.full(n, 0.3)
    for target in (
        {"coverage": 0.25},
        {"coverage": 0.5},
        {"coverage": 1.0},
        {"risk": 0.25},
        {"risk": 1.0},
    ):
        counted = kc.choose_threshold(scores, correct, **target)
        weighed = kc.choose_threshold(
            scores, correct, sample_weight=weight, **target
        )
        assert weighed.threshold == counted.threshold, target
        for name in ("threshold", "coverage", "risk"):
            np.testing.assert_allclose(
                getattr(weighed, name), getattr(counted, name), rtol=1e-12
            )
        assert weighed.coverage <= 1.0


def test_a_threshold_in_log_odds_says_the_same_cut_as_a_confidence():
    labels, logits = noisy(n=400)
    selector = kc.SelectiveClassifier().fit(labels, logits, coverage=0.7)
    chosen = selector.chosen
    answers = selector(logits)
    accept = np.asarray(answers["accept"])
    confidence = np.asarray(answers["confidence"])
    np.testing.assert_array_equal(accept, confidence >= chosen.confidence)
    assert np.any(accept != (confidence >= chosen.threshold))
    told = f"threshold {chosen.threshold:.4g} in log-odds "
    assert f"{told}(confidence {chosen.confidence:.4g})" in repr(chosen)
    again = kc.SelectiveClassifier.from_config(selector.get_config())
    assert again.chosen == chosen
    every = kc.SelectiveClassifier().fit(labels, logits, coverage=1.0).chosen
    assert (every.threshold, every.confidence) == (-np.inf, 0.0)
    # Other scores are no confidence, and neither are scores of one's own.
    other = kc.SelectiveClassifier(score="max_logit")
    assert other.fit(labels, logits, coverage=0.7).chosen.confidence is None
    assert "log-odds" not in repr(other.chosen)
    found = kc.choose_threshold([2.0, 1.0], [1, 0], coverage=0.5)
    assert found.confidence is None


def test_the_table_lists_every_threshold():
    labels, logits = noisy()
    selector = kc.SelectiveClassifier().fit(labels, logits, risk=0.05)
    table = selector.chosen.table()
    curve = kc.functional.risk_coverage_curve(labels, logits, from_logits=True)
    np.testing.assert_allclose(table.coverage, curve.coverage, rtol=1e-12)
    np.testing.assert_allclose(table.risk, curve.risk, rtol=1e-12)
    scores = array(selector(logits)["score"])
    for row in (0, 100, 700, len(table.threshold) - 1):
        share = np.mean(scores >= table.threshold[row])
        assert abs(share - table.coverage[row]) < 1e-12
    assert not table.certified.any()
    _, upper = kc.formulas.intervals.clopper_pearson(
        np.round(table.risk * table.coverage * 1000),
        np.round(table.coverage * 1000),
        level=0.9,
    )
    np.testing.assert_allclose(table.upper_bound, upper, rtol=1e-12)


def test_the_table_marks_what_is_certified():
    labels, logits = noisy(n=3000)
    selector = kc.SelectiveClassifier()
    selector.fit(labels, logits, risk=0.03, delta=0.1)
    table = selector.chosen.table()
    last = np.flatnonzero(table.certified)[-1]
    assert table.threshold[last] == selector.threshold
    assert np.all(table.upper_bound[table.certified] <= 0.03)
    weight = 1.0 + np.arange(3000) % 2
    selector.fit(labels, logits, risk=0.03, sample_weight=weight)
    assert np.isnan(selector.chosen.table().upper_bound).all()


def test_the_table_is_printed_around_the_chosen_row():
    confidence = np.linspace(0.5, 1.0, 400)
    chosen = kc.choose_threshold(confidence, confidence > 0.7, risk=0.1)
    table = chosen.table()
    (row,) = np.flatnonzero(table.chosen)
    assert table.threshold[row] == chosen.threshold
    (line,) = (x for x in str(table).split("\n") if x.endswith("chosen"))
    assert line.split()[1] == f"{chosen.coverage:.4g}"
    for count in (1, 20):
        few = kc.choose_threshold(confidence[-count:], [1] * count, risk=0.1)
        assert str(few.table()).count("False") == min(count, 15)
        assert str(few.table()).count("chosen") == 1


@pytest.mark.parametrize("near", [1.0, 0.0])
def test_printed_thresholds_accept_what_they_are_for(near):
    rng = np.random.default_rng(0)
    scores = np.abs(near - 10.0 ** rng.uniform(-9, -6, 300))
    groups = np.arange(300) % 3
    chosen = kc.choose_threshold(
        scores, scores > 0, groups=groups, coverage=0.5
    )
    alone = kc.choose_threshold(scores, scores > 0, coverage=0.5)
    (told,) = re.findall("threshold ([^,]*),", repr(alone))
    assert (scores >= float(told)).mean() == alone.coverage
    told = [float(x.split()[2]) for x in repr(chosen).split("\n")[-3:]]
    assert len({*told}) == 3
    for k, threshold in enumerate(told):
        share = (scores[groups == k] >= threshold).mean()
        assert share == chosen.group_coverage[k]


def test_a_choice_says_that_its_threshold_is_in_log_odds():
    labels, logits = noisy(n=300)
    p = kc.Predictions(labels, logits, from_logits=True)
    groups = np.arange(300) % 2
    choose = kc.selection
    for chosen in (
        kc.choose_threshold(p, risk=0.03),
        choose.choose_threshold_for_mixtures(
            p, None, groups, risk=0.5, delta=0.1
        ),
        choose.choose_threshold_for_prior(
            p,
            target_prior=np.full(p.num_classes, 1 / p.num_classes),
            risk=0.5,
            delta=0.1,
        ),
        choose.control_risks(p, limits={"risk": 0.5}),
    ):
        assert "in log-odds (confidence" in repr(chosen)
        assert chosen.confidence == expit(chosen.threshold)
    of_confidence = kc.Predictions(labels, p.probs, from_logits=False)
    assert kc.choose_threshold(of_confidence, risk=0.3).confidence is None

"""The guarantee for all groups at once, and thresholds by group from records.

In the simulations a group is either without errors, or its risk is just above
the limit at every threshold, so that every certificate of it is false.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ladders import fixed_sequence, ladder_of, ranked
from scipy.stats import binom

import keras_calib as kc
from keras_calib.selection.choice import Choice
from keras_calib.selection.claims import first_rank, starts
from keras_calib.selection.families import each

RISK, DELTA = 0.05, 0.05


def made_up(rng, size, rate, *, tied=False):
    """The ladder of one group, whose errors are rarer among the surest."""
    scores = rng.integers(0, 9, size) if tied else rng.normal(size=size)
    share = np.argsort(np.argsort(-scores)) / size
    correct = rng.random(size) >= 2.0 * rate * share
    return ranked(scores.astype("float64"), correct)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    size=st.integers(1, 3000),
    tied=st.booleans(),
)
def test_one_group_is_certified_as_without_groups(seed, size, tied):
    one = made_up(np.random.default_rng(seed), size, 0.04, tied=tied)
    (found,), *_ = each([one], RISK, DELTA)
    expected = fixed_sequence(one.accepted, one.loss, RISK, DELTA)
    np.testing.assert_array_equal(found, expected)


def slow_walk(one, waiting):
    """Threshold after threshold, with the level that each rank brings."""
    waiting, level, certified = dict(waiting), 0.0, []
    for accepted, wrong in zip(one.accepted, one.loss, strict=True):
        for rank in [r for r in waiting if r <= accepted]:
            level += waiting.pop(rank)
        passes = 0.0 < level >= binom.cdf(wrong, accepted, RISK)
        certified.append(passes)
        level = level if passes else 0.0
    return certified


def slow_certified(found, delta):
    """Groups complete one after the other, and the others share their part."""
    for count in range(len(found), 0, -1):
        large = sorted(found, key=lambda x: -x.size)[:count]
        least = first_rank(RISK, delta / count)
        if large[-1].size >= least:
            break
    else:
        return [[False] * len(one.threshold) for one in found]
    parts = {}
    for one in large:
        ranks, shares = starts(one.size, RISK, delta / count)
        parts[id(one)] = ranks, shares / (delta / count)
    done = set()
    while True:
        level = delta / max(count - len(done), 1)
        results = {
            id(one): slow_walk(one, zip(ranks, level * shares, strict=True))
            for one in large
            for ranks, shares in [parts[id(one)]]
        }
        ended = {
            id(one)
            for one in large
            for ranks, _ in [parts[id(one)]]
            if all(results[id(one)][np.searchsorted(one.accepted, ranks[0]) :])
        }
        if ended == done or len(ended) == count == len(done):
            nothing = {id(one): [False] * len(one.threshold) for one in found}
            results = nothing | results
            return [results[id(one)] for one in found]
        done = ended


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    tied=st.booleans(),
)
def test_the_walks_are_the_loop_over_groups_and_thresholds(seed, sizes, tied):
    rng = np.random.default_rng(seed)
    rates = rng.choice([0.0, 0.01, 0.03, 0.08], len(sizes))
    found = [
        made_up(rng, size, rate, tied=tied)
        for size, rate in zip(sizes, rates, strict=True)
    ]
    # Two groups of one size: which is tested does not matter to the oracle.
    certified, *_ = each(found, RISK, 0.2)
    if len(set(sizes)) == len(sizes):
        assert [x.tolist() for x in certified] == slow_certified(found, 0.2)


def records(*groups):
    """Scores and correctness, surest first, and the place of each group."""
    scores = np.concatenate([-np.arange(len(x)) for x in groups])
    places = np.repeat(np.arange(len(groups)), [len(x) for x in groups])
    return scores, np.concatenate(groups), places


def test_a_group_that_is_certified_as_a_whole_passes_its_share_on():
    # Of 130 samples with 2 errors the p-value is 0.0395: above delta / 2.
    other = np.ones(130)
    other[[109, 129]] = 0.0
    options = {"risk": RISK, "delta": DELTA}
    for first, coverage in ((np.ones(200), 1.0), (np.zeros(200), 129 / 130)):
        found = kc.choose_threshold(*records(first, other), **options)
        assert found.group_coverage[1] == coverage


def test_a_group_that_answers_nothing_says_why():
    options = {"risk": RISK, "delta": DELTA}
    scores, correct, places = records(*(np.ones(n) for n in (73, 66, 5)))
    found = kc.choose_threshold(scores, correct, places, **options)
    assert found.facts["tested"] == (True, False, False)
    reasons = repr(found).splitlines()[-2:]
    assert "too few samples for a share of delta" in reasons[0]
    assert "fewer than 59 samples" in reasons[1]
    weight = (places > 0) * 1.0
    names = np.array([b"a", b"b", b"c"], object)[places]
    found = kc.choose_threshold(
        scores, correct, names, risk=0.1, sample_weight=weight
    )
    assert found.group == ("b", "c")
    found = replace(found, group_samples=(0, 5), threshold=(np.inf, 0.5))
    assert "rejects everything: no samples" in repr(found)


def test_groups_that_nothing_could_certify_cost_the_others_nothing():
    # 59 samples without an error pass at 0.05, and 72 at 0.025.
    options = {"risk": RISK, "delta": DELTA}
    assert (first_rank(RISK, DELTA), first_rank(RISK, DELTA / 2)) == (59, 72)
    groups = [np.ones(60), *[np.ones(20)] * 50]
    found = kc.choose_threshold(*records(*groups), **options)
    assert found.threshold == (-np.inf, *[np.inf] * 50)
    assert found.facts["min_count"] == 59
    assert "fewer than 59 samples" in repr(found)
    assert "and 36 more" in repr(found)
    with pytest.raises(ValueError, match="takes 59 samples even if all"):
        kc.choose_threshold(*records(*groups[1:]), **options)
    with pytest.raises(ValueError, match="more data or fewer groups"):
        kc.choose_threshold(*records(np.zeros(80), np.zeros(90)), **options)


FITS = 60
ALLOWED = DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / FITS)


def false_rate(easy, hard, joint):
    """Share of fits in which a group just above the limit gets a threshold."""
    rng = np.random.default_rng([easy, hard])
    size, false = 150, 0
    rates = np.array([0.0] * easy + [1.002 * RISK] * hard)
    for _ in range(FITS):
        correct = rng.random((easy + hard, size)) >= rates[:, None]
        found = [ladder_of(x) for x in correct]
        parts = [found] if joint else [[one] for one in found]
        certified = [
            passed.any()
            for part in parts
            for passed in each(part, RISK, DELTA).masks
        ]
        false += any(certified[easy:])
    return false / FITS


@pytest.mark.parametrize(("easy", "hard"), [(0, 12), (6, 6), (11, 1)])
def test_the_guarantee_holds_for_all_groups_at_once(easy, hard):
    assert false_rate(easy, hard, joint=True) <= ALLOWED


def test_certified_rows_hold_where_only_the_surest_samples_are_bad():
    # Such a group is good as a whole, but its strict thresholds are not.
    rng = np.random.default_rng(7)
    size, bad, risk = 2000, 127, 0.1
    rates = np.where(np.arange(size) < bad, 1.005 * risk, 0.0)
    limit = np.searchsorted(-np.cumsum(rates) / np.arange(1, size + 1), -risk)
    assert limit == bad
    false = 0
    for _ in range(FITS):
        correct = rng.random((20, size)) >= rates
        found = [ladder_of(x) for x in correct]
        certified, *_ = each(found, risk, DELTA)
        false += any(passed[:bad].any() for passed in certified)
    assert false / FITS <= ALLOWED


def test_guarantees_of_each_group_alone_are_none_for_all():
    # What the shares are for: the same simulation without them.
    assert false_rate(0, 12, joint=False) > 0.15


def test_thresholds_from_records_are_those_of_each_group():
    rng = np.random.default_rng(3)
    scores = np.round(rng.normal(size=900), 1)
    correct = rng.random(900) < 1.0 / (1.0 + np.exp(-2.0 * scores))
    weight = rng.integers(0, 3, 900)
    sites = np.array(["north", "Süd", "x"])[rng.integers(0, 3, 900)]
    for target in ({"risk": 0.2}, {"coverage": 0.4}):
        found = kc.choose_threshold(
            scores, correct, sites, sample_weight=weight, **target
        )
        assert found.group == ("Süd", "north", "x")
        assert found.limit is found.delta is found.method is None
        accept = np.zeros(900, bool)
        for place, name in enumerate(found.group):
            of = sites == name
            alone = kc.choose_threshold(
                scores[of], correct[of], sample_weight=weight[of], **target
            )
            assert (alone.threshold, alone.coverage, alone.risk) == (
                found.threshold[place],
                found.group_coverage[place],
                found.group_risk[place],
            )
            assert found.group_samples[place] == alone.num_samples
            accept |= of & (scores >= alone.threshold)
        total = (weight * accept).sum()
        assert abs(found.coverage - total / weight.sum()) < 1e-12
        wrong = (weight * accept * ~correct).sum()
        assert abs(found.risk - wrong / total) < 1e-12


def test_images_take_one_group_each_and_pixels_their_own():
    rng = np.random.default_rng(5)
    scores = rng.normal(size=(6, 5, 5))
    correct = rng.random(scores.shape) < 0.8
    groups = np.array([3, 1, 3, 1, 3, 3])
    by_row = kc.choose_threshold(scores, correct, groups, coverage=0.5)
    by_pixel = kc.choose_threshold(
        scores, correct, np.tile(groups[:, None, None], (1, 5, 5)), coverage=0.5
    )
    assert by_row == by_pixel
    assert by_row.group_samples == (50, 100)


def test_a_group_without_weight_is_no_group_and_a_bad_one_is_rejected():
    found = kc.choose_threshold(
        [3.0, 2.0, 1.0, 0.0],
        [1, 1, 0, 1],
        [7, 7, 8, 9],
        sample_weight=[1, 1, 1, 0],
        risk=0.1,
    )
    assert found.group == (7, 8)
    assert found.threshold == (-np.inf, np.inf)
    assert found.group_samples == (2, 1)
    assert found.accepts == (True, False)
    assert found.coverage == 2 / 3


def test_the_text_of_thresholds_says_who_answers_and_why_not():
    found = Choice(
        (0.25, np.inf, np.inf),
        0.27,
        0.02,
        920,
        limit=0.05,
        delta=0.1,
        method="ltt",
        kind="groups",
        group=("a", "b", "c"),
        group_samples=(500, 20, 400),
        group_coverage=(0.5, 0.0, 0.0),
        group_risk=(0.02, 0.0, 0.0),
        facts={"min_count": 76},
    )
    lines = repr(found).split("\n")
    assert lines[0].startswith("Choice: 1 of 3 groups answer")
    assert "probability 0.9 no group has a true risk above 0.05" in lines[1]
    assert lines[3].split() == ["a", "500", "0.25", "0.5", "0.02"]
    assert lines[4].endswith("fewer than 76 samples")
    assert lines[5].endswith("too many errors for so many samples")


MISSING, SHAPE = "name what is missing", "a group for each sample"
BAD_GROUPS = (
    ([0.0, 1.0, np.nan], ValueError, MISSING),
    (["a", None, "b"], ValueError, MISSING),
    (["a", np.nan, "b"], ValueError, MISSING),
    ([0.0, 1.5, 2.0], ValueError, "cut a measurement"),
    ([0, 1j, 2], TypeError, "names or whole numbers"),
    ([0, 1], ValueError, SHAPE),
    ([[0], [1], [2]], ValueError, SHAPE),
    (7, ValueError, SHAPE),
    ([0, 1, 2**31], ValueError, "range of int32"),
    ([-(2**40), 1, 2], ValueError, "range of int32"),
)


def test_bad_groups_are_refused():
    for groups, error, message in BAD_GROUPS:
        with pytest.raises(error, match=message):
            kc.choose_threshold([3.0, 2.0, 1.0], [1, 1, 0], groups, risk=0.1)
        with pytest.raises(error, match=message):
            kc.SelectiveClassifier().fit(
                [0, 1, 1], np.eye(3)[:, :2], risk=0.6, groups=groups
            )
    with pytest.raises(ValueError, match="below that of every threshold of"):
        kc.choose_threshold([2.0, 1.0], [0, 0], [0, 1], risk=0.1)

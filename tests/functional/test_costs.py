"""Mean costs of decisions against loops in float64."""

import numpy as np
import pytest
from cases import softmax
from scipy.stats import t

import keras_calib as kc

COSTS = np.array([[0.0, 1.0, 3.0], [5.0, 0.0, 2.0], [20.0, 0.5, 0.0]])


def data(n=400, seed=0):
    """Class ids and the calibrated logits that they were drawn from."""
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(n, 3))
    draw = rng.random((n, 1))
    return (draw > softmax(logits).cumsum(axis=-1)).sum(axis=-1), logits


def paid(label, p, price):
    """Cost of one decision, and of the answer: a loop over all classes."""
    expected = [sum(p[j] * COSTS[j, k] for j in range(3)) for k in range(3)]
    answer = expected.index(min(expected))
    rejected = price is not None and min(expected) > price
    cost = COSTS[label, answer]
    return (price if rejected else cost), cost, not rejected


@pytest.mark.parametrize("price", [None, 0.0, 0.3, 0.9, 50.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_decisions_cost_what_a_loop_says(price, weighted):
    labels, logits = data()
    probs = softmax(logits)
    weight = np.arange(400) % 3 if weighted else np.ones(400)
    rows = [paid(y, p, price) for y, p in zip(labels, probs, strict=True)]
    total, cost, kept = np.array(rows, "float64").T
    found = kc.functional.mean_cost(
        labels,
        logits,
        costs=COSTS,
        reject_cost=price,
        from_logits=True,
        sample_weight=weight if weighted else None,
    )
    value = np.average(total, weights=weight)
    accepted = (weight * kept * cost).sum() / max((weight * kept).sum(), 1)
    wanted = [value, np.average(kept, weights=weight), accepted]
    wanted.append(np.average(cost, weights=weight))
    given = [found.value, found.coverage, found.accepted, found.accept_all]
    np.testing.assert_allclose(given, wanted, rtol=1e-12, atol=1e-15)
    assert found.reject_all == price
    assert found.low <= found.value <= found.high
    same = kc.functional.mean_cost(
        labels, probs, costs=COSTS, reject_cost=price, sample_weight=weight
    )
    np.testing.assert_allclose(same.value, found.value, rtol=1e-12)


def test_the_interval_is_near_students_and_grows_with_an_unseen_cost():
    labels, logits = data(20_000)
    costs = 1.0 - np.eye(3)
    found = kc.functional.mean_cost(
        labels, logits, costs=costs, from_logits=True, level=0.9
    )
    wrong = logits.argmax(-1) != labels
    reach = t.isf(0.05, 19_999) * wrong.std(ddof=1) / np.sqrt(20_000)
    ends = wrong.mean() - reach, wrong.mean() + reach
    np.testing.assert_allclose((found.low, found.high), ends, rtol=2e-3)
    dear = np.where(np.eye(3) == 1, 0.0, 1000.0)
    dear[0] = [0.0, 1.0, 1.0]
    zeros = np.zeros(500, int)
    probs = np.tile([0.9, 0.05, 0.05], (500, 1))
    probs[:, 0], probs[:, 1] = 0.9999, 0.00005
    probs[:, 2] = 0.00005
    # No sample of the other classes is there, and one more could be.
    found = kc.functional.mean_cost(zeros, probs, costs=dear)
    assert found.value == 0.0
    assert found.high > 1000.0 / 501.0


@pytest.mark.parametrize("price", [0.2, 0.4])
@pytest.mark.parametrize("costs", [1.0 - np.eye(3), COSTS, COSTS.T])
def test_calibrated_probabilities_decide_best(costs, price):
    labels, logits = data(20_000)
    options = {"reject_cost": price, "from_logits": True}
    best = kc.functional.mean_cost(labels, logits, costs=costs, **options)
    for wrong in (0.3 * logits, 3.0 * logits):
        found = kc.functional.mean_cost(labels, wrong, costs=costs, **options)
        assert found.value > 1.02 * best.value


def test_votes_cost_their_mean():
    votes = np.array([[3, 1, 0], [0, 0, 2]])
    probs = np.array([[0.2, 0.6, 0.2], [0.1, 0.1, 0.8]])
    answer = (probs @ COSTS).argmin(axis=-1)
    shares = votes / votes.sum(axis=-1, keepdims=True)
    costs = [shares[i] @ COSTS[:, answer[i]] for i in range(2)]
    found = kc.functional.mean_cost(votes, probs, costs=COSTS, votes=True)
    np.testing.assert_allclose(found.value, np.mean(costs), rtol=1e-12)


def test_records_and_counted_errors_cost_the_same():
    labels, logits = data()
    probs = softmax(logits)
    correct = probs.argmax(-1) == labels
    for price in (None, 0.5, 2.0):
        log = kc.Predictions(correct=correct, confidence=probs.max(-1))
        found = kc.functional.mean_cost(log, costs=7.0, reject_cost=price)
        same = kc.functional.mean_cost(
            labels, probs, costs=7.0 * (1.0 - np.eye(3)), reject_cost=price
        )
        for name, wanted in vars(same).items():
            given = getattr(found, name)
            assert given is wanted or abs(given - wanted) < 1e-12
    # Chow's confidence: 1 - price / error cost, of a float that rounds.
    log = kc.Predictions(correct=[1, 1], confidence=[0.7, 0.69])
    found = kc.functional.mean_cost(log, costs=1.0, reject_cost=0.3)
    assert found.coverage == 0.5


@pytest.mark.parametrize(("false_alarm", "miss"), [(1, 1), (1, 9), (3, 1)])
def test_two_classes_are_cut_at_the_ratio_of_their_costs(false_alarm, miss):
    cut = false_alarm / (false_alarm + miss)
    p = np.array([cut - 1e-6, cut + 1e-6])
    costs = [[0.0, false_alarm], [miss, 0.0]]
    selector = kc.SelectiveClassifier(costs=costs, threshold=-1e9)
    given = selector(np.log(p / (1 - p))[:, None])
    assert np.asarray(given["label"]).tolist() == [0, 1]
    # Both samples are of the second class: the first answer is a miss.
    found = kc.functional.mean_cost([1, 1], p[:, None], costs=costs)
    assert found.value == miss / 2


@pytest.mark.parametrize(
    ("costs", "options", "match"),
    [
        ([[0, 1]], {}, r"`costs` must have shape"),
        ([0, 1], {}, r"`costs` must have shape"),
        ([[0.0]], {}, r"`costs` must have shape"),
        (1 - np.eye(2), {}, r"each class of `outputs`.*\(2, 2\)"),
        (COSTS - 1, {}, r"benefit add one amount.*true_class=0, answer=0"),
        (COSTS * np.nan, {}, r"`costs` must be finite"),
        (COSTS * 1e38, {}, r"`costs` must be finite.*cost=3e\+38|cost=5e\+38"),
        (0 * COSTS, {}, r"`costs` must not be 0 everywhere"),
        (COSTS, {"reject_cost": -1}, r"`reject_cost` must be finite and >= 0"),
        (COSTS, {"reject_cost": np.inf}, r"`reject_cost` must be finite"),
        (COSTS, {"level": 1.0}, r"`level` must be < 1"),
    ],
)
def test_impossible_costs_are_refused(costs, options, match):
    with pytest.raises(ValueError, match=match):
        kc.functional.mean_cost([0], [[0.2, 0.3, 0.5]], costs=costs, **options)


@pytest.mark.parametrize(
    ("facts", "options", "match"),
    [
        ({}, {"costs": 0.0}, "`costs` must be > 0"),
        ({}, {"costs": 1 - np.eye(2)}, "`costs` must be one number for a log"),
        ({}, {"reject_cost": -1.0}, "`reject_cost` must be finite"),
        ({"sample_weight": [0]}, {}, "must not be 0 everywhere"),
        ({"sample_weight": [-1]}, {}, "must be finite and >= 0"),
    ],
)
def test_impossible_costs_of_logs_are_refused(facts, options, match):
    log = kc.Predictions(correct=[1], confidence=[0.5], **facts)
    with pytest.raises(ValueError, match=match):
        kc.functional.mean_cost(log, **{"costs": 1.0, **options})

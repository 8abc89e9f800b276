"""Decisions by a matrix of costs: answers, thresholds, copies, refusals."""

import contextlib
from dataclasses import replace

import keras
import numpy as np
import pytest
from cases import array
from selection_data import noisy, temperature

import keras_calib as kc

COSTS = np.array(
    [[0, 1, 1, 2], [5, 0, 1, 1], [5, 1, 0, 1], [20, 3, 3, 0]], "float64"
)


def selector(**options):
    options = {"calibrator": temperature(1.5), "costs": COSTS, **options}
    return kc.SelectiveClassifier(**options)


def answers(made, logits):
    return {k: array(v) for k, v in made(logits).items()}


def decided(given, labels):
    """Expected costs in float64, the cost of each answer, what is accepted."""
    expected = given["probabilities"].astype("float64") @ COSTS
    return expected, COSTS[labels, given["label"]], given["accept"]


@pytest.mark.portable
def test_the_cheapest_answer_is_given_and_accepted_up_to_its_price():
    labels, logits = noisy(n=2000)
    made = selector().fit(labels, logits, reject_cost=0.5)
    given = answers(made, logits)
    expected, cost, accept = decided(given, labels)
    label = expected.argmin(axis=-1)
    np.testing.assert_array_equal(given["label"], label)
    # This is not the most probable class.
    assert (label != logits.argmax(axis=-1)).mean() > 0.02
    rows = np.arange(2000)
    np.testing.assert_allclose(
        given["expected_cost"], expected[rows, label], rtol=1e-5
    )
    np.testing.assert_array_equal(given["score"], -given["expected_cost"])
    np.testing.assert_array_equal(
        given["confidence"], given["probabilities"][rows, label]
    )
    np.testing.assert_array_equal(accept, given["expected_cost"] <= 0.5)
    assert given["label"].dtype == np.int32
    chosen = made.chosen
    assert (chosen.threshold, chosen.method) == (-0.5, "chow")
    assert chosen.coverage == accept.mean() == chosen.cost.coverage
    wrong = (given["label"] != labels)[accept].mean()
    assert abs(chosen.risk - wrong) < 1e-12
    value = np.where(accept, cost, 0.5).mean()
    facts = value, cost[accept].mean(), cost.mean(), 0.5
    names = "value", "accepted", "accept_all", "reject_all"
    np.testing.assert_allclose(
        [getattr(chosen.cost, x) for x in names], facts, rtol=1e-12
    )
    assert chosen.cost.low < value < chosen.cost.high
    same = kc.functional.mean_cost(
        labels,
        given["logits"],
        costs=COSTS,
        reject_cost=0.5,
        from_logits=True,
    )
    for name, wanted in vars(chosen.cost).items():
        assert getattr(same, name) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.portable
def test_of_equally_cheap_answers_the_first_is_given():
    made = kc.SelectiveClassifier(costs=1 - np.eye(3), threshold=-1.0)
    given = answers(made, np.array([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]]))
    assert given["label"].tolist() == [1, 0]


@pytest.mark.portable
def test_counted_errors_give_the_decisions_of_the_confidence():
    labels, logits = noisy()
    made = kc.SelectiveClassifier(costs=1 - np.eye(4))
    made.fit(labels, logits, reject_cost=0.2)
    given = answers(made, logits)
    np.testing.assert_array_equal(given["label"], logits.argmax(axis=-1))
    np.testing.assert_array_equal(given["accept"], given["confidence"] >= 0.8)
    # Confidences that round to 1 are still ranked.
    steep = np.array([[60.0, 0.0], [50.0, 0.0]])
    made = kc.SelectiveClassifier(costs=1 - np.eye(2), threshold=-1.0)
    low, high = array(made(steep)["expected_cost"])
    assert 0.0 < low < high


def test_the_empirical_price_is_the_best_of_all_thresholds():
    labels, logits = noisy(n=500)
    made = selector(calibrator=temperature(0.4))
    chow = made.fit(labels, logits, reject_cost=0.5).chosen
    best = made.fit(labels, logits, reject_cost=0.5, method="empirical").chosen
    expected, cost, _ = decided(answers(made, logits), labels)
    order = np.argsort(expected.min(axis=-1))
    paid = np.append(0.0, np.cumsum(cost[order])) + 0.5 * np.arange(500, -1, -1)
    np.testing.assert_allclose(best.cost.value, paid.min() / 500, rtol=1e-12)
    assert best.cost.value < chow.cost.value
    # Where every answer is dear, all are rejected.
    free = made.fit(labels, logits, reject_cost=0.0, method="empirical")
    assert free.chosen.cost.value == 0.0
    wrong = kc.SelectiveClassifier(costs=1 - np.eye(2))
    z = np.array([[2.0, 0.0], [1.0, 0.0]])
    wrong.fit([1, 1], z, reject_cost=0.9, method="empirical")
    assert wrong.threshold == np.inf
    assert not answers(wrong, z)["accept"].any()


@pytest.mark.parametrize("delta", [None, 0.1])
def test_the_accepted_cost_at_most_the_limit(delta):
    labels, logits = noisy(n=2000)
    made = selector().fit(labels, logits, max_cost=0.15, delta=delta)
    given = answers(made, logits)
    _, cost, accept = decided(given, labels)
    chosen = made.chosen
    assert 0.5 < chosen.coverage < 1.0
    assert abs(accept.mean() - chosen.coverage) < 1e-12
    np.testing.assert_allclose(chosen.cost.accepted, cost[accept].mean())
    assert chosen.cost.accepted <= 0.15
    # Rejected samples have no price.
    assert (chosen.cost.value, chosen.cost.reject_all) == (None, None)
    assert chosen.limit == (None if delta is None else 0.15)
    assert chosen.risk_limit is None
    table = made.chosen.table()
    place = np.flatnonzero(table.threshold == chosen.threshold)[0]
    assert abs(table.risk[place] - chosen.cost.accepted) < 1e-12
    assert table.certified[place] == (delta is not None)
    assert table.upper_bound[place] > table.risk[place]
    # One answer that cost nothing says little.
    unsure = 20.0 * (1.0 - (0.05 if delta is None else delta))
    assert abs(table.upper_bound[0] - unsure) < 1e-6
    if delta is None:
        # The next threshold would cost more.
        assert table.risk[place + 1] > 0.15


def test_betting_accepts_more_and_a_price_less():
    labels, logits = noisy(n=2000)
    limit = {"max_cost": 0.2, "delta": 0.1}
    coverage = {}
    for method in ("betting", "hoeffding_bentkus"):
        made = selector().fit(labels, logits, **limit, method=method)
        assert made.chosen.method == method
        coverage[method] = made.chosen.coverage
    assert coverage["betting"] > coverage["hoeffding_bentkus"] > 0.5
    made.fit(labels, logits, **limit, reject_cost=0.1)
    assert made.threshold >= -0.1
    assert made.chosen.coverage < coverage["betting"]
    assert made.chosen.cost.value < 0.1


@pytest.mark.portable
def test_a_price_above_every_expected_cost_accepts_all():
    labels, logits = noisy(n=300)
    for given in (logits, np.zeros_like(logits)):
        made = selector().fit(labels, given, max_cost=15.0, reject_cost=15.0)
        assert made.chosen.coverage == 1.0
        assert made.threshold == -15.0


def test_errors_of_one_cost_are_certified_as_a_risk_is():
    labels, logits = noisy(n=2000)
    costs = 5.0 * (1.0 - np.eye(4))
    by_cost = kc.SelectiveClassifier(costs=costs)
    by_cost.fit(labels, logits, max_cost=0.5, delta=0.1)
    by_risk = kc.SelectiveClassifier().fit(labels, logits, risk=0.1, delta=0.1)
    assert by_cost.chosen.method == "binomial"
    assert by_cost.chosen.coverage == by_risk.chosen.coverage
    assert by_cost.chosen.risk == by_risk.chosen.risk
    with pytest.raises(ValueError, match='must not be "binomial" unless'):
        selector().fit(
            labels, logits, max_cost=0.5, delta=0.1, method="binomial"
        )


@pytest.mark.parametrize(
    "target",
    [
        {"reject_cost": 0.5, "method": "chow"},
        {"reject_cost": 0.5, "method": "empirical"},
        {"max_cost": 0.2, "delta": 0.1},
        {"max_cost": 0.1, "reject_cost": 0.3},
        {"coverage": 0.7},
    ],
)
def test_records_choose_the_threshold_of_the_layer(target):
    labels, logits = noisy(n=2000)
    made = selector().fit(labels, logits, **target)
    given = answers(made, logits)
    _, cost, _ = decided(given, labels)
    chosen = kc.choose_threshold(
        given["score"], cost=cost, largest_cost=20.0, **target
    )
    # Answers cost more than 0 where they are wrong.
    no_hash = {"data_sha256": None, "ranking_sha256": None}
    assert chosen == replace(made.chosen, **no_hash)
    with pytest.raises(ValueError, match="go to `choose_threshold"):
        made.fit_scores(given["score"], cost == 0, risk=0.1)


def test_a_mean_above_the_limit_is_hardly_ever_certified():
    rng = np.random.default_rng(0)
    failures, num_fits = 0, 200
    for _ in range(num_fits):
        # The mean cost is 1.001, whatever the score.
        cost = 20.0 * (rng.random(400) < 1.001 / 20.0)
        with contextlib.suppress(ValueError):
            kc.choose_threshold(
                rng.random(400),
                cost=cost,
                largest_cost=20.0,
                max_cost=1.0,
                delta=0.2,
                method="hoeffding_bentkus",
            )
            failures += 1
    # In other units all or none would be certified.
    allowed = 0.2 + 2.0 * np.sqrt(0.2 * 0.8 / num_fits)
    assert 0.0 < failures / num_fits <= allowed


@pytest.mark.parametrize(
    ("cost", "options", "match"),
    [
        ([0, 6, 0], {"reject_cost": 1}, "between 0 and `largest_cost`.*rows=1"),
        ([0, -1, 0], {"reject_cost": 1}, "between 0 and `largest_cost`"),
        ([0, np.nan, 0], {"reject_cost": 1}, "between 0 and `largest_cost`"),
        ([0, 1], {"reject_cost": 1}, "must have one shape"),
        ([0, 1, 0], {}, "`reject_cost` must be given"),
        ([0, 1, 0], {"reject_cost": 1, "method": "binomial"}, "otherwise None"),
    ],
)
def test_impossible_records_are_refused(cost, options, match):
    with pytest.raises(ValueError, match=match):
        kc.choose_threshold(
            [3.0, 2.0, 1.0], cost=cost, largest_cost=5.0, **options
        )


def test_a_coverage_and_weights_work_as_without_costs():
    labels, logits = noisy()
    made = selector().fit(labels, logits, coverage=0.7)
    assert made.chosen.coverage == 0.7
    weight = np.arange(1000) % 3
    rows = np.repeat(np.arange(1000), weight)
    for target in ({"reject_cost": 0.4}, {"max_cost": 0.1}):
        one = selector().fit(labels, logits, sample_weight=weight, **target)
        two = selector().fit(labels[rows], logits[rows], **target)
        assert one.threshold == two.threshold
        for name in ("coverage", "accepted", "accept_all"):
            found, wanted = (getattr(x.chosen.cost, name) for x in (one, two))
            np.testing.assert_allclose(found, wanted)


def test_costs_of_a_fit_replace_those_before():
    labels, logits = noisy()
    made = kc.SelectiveClassifier(calibrator=temperature(1.5))
    made.fit(labels, logits, costs=COSTS, reject_cost=0.5)
    given = answers(made, logits)
    wanted = answers(selector().fit(labels, logits, reject_cost=0.5), logits)
    for name, value in wanted.items():
        np.testing.assert_array_equal(given[name], value)
    assert "expected_cost" in repr(made)
    before = made.chosen
    with pytest.raises(ValueError, match="each class of `logits`"):
        made.fit(labels, logits, costs=1 - np.eye(3), reject_cost=0.5)
    np.testing.assert_array_equal(made.costs, COSTS)
    assert made.chosen == before
    made.fit(labels, logits, costs=2 * COSTS, reject_cost=1.0)
    assert made.chosen.coverage == before.coverage


def test_an_unfitted_calibrator_is_fitted_on_a_share():
    labels, logits = noisy(n=2000)
    made = selector(calibrator=kc.TemperatureScaling())
    with pytest.raises(RuntimeError, match="must be fitted on other data"):
        made.fit(labels, logits, reject_cost=0.5)
    made.fit(labels, logits, reject_cost=0.5, tune_fraction=0.5)
    assert made.chosen.num_samples == 1000
    made.calibrator.fit(labels, logits)
    with pytest.raises(RuntimeError, match="were fitted again"):
        made(logits)


@pytest.mark.portable
def test_saved_loaded_and_compiled_it_answers_alike(tmp_path):
    labels, logits = noisy()
    made = selector().fit(labels, logits, max_cost=0.2, delta=0.1)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, made(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    wanted = answers(made, logits)
    served = loaded.predict(logits, batch_size=300, verbose=0)
    assert set(served) == set(wanted)
    for name, value in served.items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-6)
    for copy in (
        loaded.layers[-1],
        kc.SelectiveClassifier.from_config(made.get_config()),
        keras.models.clone_model(model).layers[-1],
    ):
        assert copy.chosen == made.chosen
        assert copy.chosen.cost.accepted == made.chosen.cost.accepted
        np.testing.assert_array_equal(copy.costs, COSTS)
        for name, value in answers(copy, logits).items():
            np.testing.assert_array_equal(value, wanted[name])


@pytest.mark.portable
def test_pixels_are_decided_one_by_one():
    labels, logits = noisy(n=24)
    made = selector().fit(
        labels.reshape(2, 3, 4), logits.reshape(2, 3, 4, 4), reject_cost=0.5
    )
    wanted = answers(made, logits)
    given = answers(made, logits.reshape(2, 3, 4, 4))
    np.testing.assert_array_equal(given["label"].reshape(-1), wanted["label"])
    with pytest.raises(ValueError, match="needs independent rows"):
        made.fit(
            labels.reshape(2, 12),
            logits.reshape(2, 12, 4),
            max_cost=0.5,
            delta=0.1,
        )


@pytest.mark.parametrize(
    ("target", "match"),
    [
        ({}, "`reject_cost` must be given with `costs`"),
        ({"risk": 0.1}, "`risk` must be None with `costs`"),
        ({"reject_cost": -1.0}, "`reject_cost` must be finite and >= 0"),
        ({"max_cost": -0.1}, "`max_cost` must be >= 0"),
        ({"max_cost": 0.1, "coverage": 0.5}, "Only one of `max_cost`"),
        ({"reject_cost": 0.1, "delta": 0.1}, "needs a `max_cost` above 0"),
        ({"max_cost": 20.0, "delta": 0.1}, r"largest_cost=20\.0"),
        ({"max_cost": 0.1, "delta": 1.0}, "`delta` must be < 1"),
        ({"reject_cost": 0.1, "method": "betting"}, "with `delta`, one of"),
        ({"max_cost": 0.1, "method": "chow"}, "otherwise None"),
        ({"reject_cost": 0.1, "method": "ltt"}, "`method` must be one of"),
        (
            {"max_cost": 0.1, "reject_cost": 1e-9},
            "below the expected cost of every answer.*lowest_expected_cost",
        ),
    ],
)
def test_impossible_targets_are_refused(target, match):
    labels, logits = noisy(n=200)
    made = selector()
    with pytest.raises(ValueError, match=match):
        made.fit(labels, logits, **target)
    assert not made.fitted


def test_a_limit_out_of_reach_names_one_within_reach():
    labels, logits = noisy(n=1000)
    with pytest.raises(ValueError, match="No threshold is certified") as error:
        selector().fit(labels, logits, max_cost=0.01, delta=0.05)
    text = str(error.value)
    within = float(text.partition("`max_cost=")[2].partition("`")[0])
    coverage = text.partition("coverage would be ")[2].partition(" ")[0]
    found = selector().fit(labels, logits, max_cost=within, delta=0.05)
    assert f"{found.chosen.coverage:.3f}" == coverage
    with pytest.raises(ValueError, match="No threshold"):
        lower = within - 10.0 ** (np.floor(np.log10(within)) - 1)
        selector().fit(labels, logits, max_cost=lower, delta=0.05)
    wrong = kc.SelectiveClassifier(costs=1 - np.eye(2))
    z = np.array([[2.0, 0.0], [1.0, 0.0]])
    with pytest.raises(ValueError, match=r"lowest mean cost=0\.5|=0\.5"):
        wrong.fit([1, 0], z, max_cost=0.1)


def test_costs_leave_no_other_score_and_prices_need_costs():
    labels, logits = noisy(n=200)
    for score in ("gini", ["msp", "gini"]):
        with pytest.raises(ValueError, match="`score` must be left out"):
            selector(score=score)
        with pytest.raises(ValueError, match="`score` must be left out"):
            made = kc.SelectiveClassifier(score=score)
            made.fit(labels, logits, costs=COSTS, reject_cost=1.0)
    for price in ({"reject_cost": 0.1}, {"max_cost": 0.1}):
        with pytest.raises(ValueError, match="`costs` must be given"):
            kc.SelectiveClassifier().fit(labels, logits, **price)
    with pytest.raises(ValueError, match="each class of `logits`"):
        selector(calibrator=None, threshold=0.0)(np.ones((1, 3), "float32"))
    with pytest.raises(ValueError, match="`sample_weight` must be 1"):
        selector().fit(
            labels,
            logits,
            max_cost=0.5,
            delta=0.1,
            sample_weight=np.full(200, 2.0),
        )

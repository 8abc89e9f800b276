"""The prior in unlabelled data: its maximum likelihood, and what it covers."""

import numpy as np
import pytest
from cases import softmax

import keras_calib as kc
from keras_calib.formulas.intervals import clopper_pearson


def unlabelled(prior, n, seed=0, distance=1.5):
    """Logits of classes that a uniform source is calibrated for."""
    rng = np.random.default_rng(seed)
    size = len(prior)
    labels = rng.choice(size, n, p=prior)
    x = rng.normal(size=(n, size)) + distance * np.eye(size)[labels]
    return distance * x


def by_em(probs, source, weight, steps=20_000):
    """The fixed point of the steps of Saerens et al."""
    prior = np.array(source)
    for _ in range(steps):
        joint = probs * prior / source
        joint /= joint.sum(axis=-1, keepdims=True)
        before, prior = prior, weight @ joint / weight.sum()
        if np.abs(prior - before).max() < 1e-12:
            break
    return prior


def test_the_estimate_is_the_fixed_point_of_em():
    rng = np.random.default_rng(0)
    for prior, source, n in (
        ([0.7, 0.2, 0.1], [0.2, 0.3, 0.5], 300),
        ([1.0, 0.0, 0.0], [0.4, 0.3, 0.3], 300),
        ([0.97, 0.03], [0.5, 0.5], 200),
    ):
        probs = softmax(unlabelled(prior, n) + np.log(source))
        weight = rng.integers(0, 3, n)
        found = kc.functional.estimate_prior(
            probs, source, sample_weight=weight, num_draws=0
        )
        expected = by_em(probs, np.array(source), weight)
        np.testing.assert_allclose(found.prior, expected, atol=1e-5)
        assert found.converged and found.iterations < 50
        assert np.isnan([found.low, found.high]).all()


def test_forms_of_the_same_predictions_agree():
    logits = unlabelled([0.2, 0.8], 400)
    given = {"source": [0.5, 0.5], "num_draws": 20}
    expected = kc.functional.estimate_prior(softmax(logits), **given)
    z = logits[:, 1:] - logits[:, :1]
    for probs, options in (
        (logits, {"from_logits": True}),
        (z.reshape(20, 20, 1), {"from_logits": True}),
        (1 / (1 + np.exp(-z)), {}),
    ):
        found = kc.functional.estimate_prior(probs, **given, **options)
        np.testing.assert_allclose(found.prior, expected.prior, atol=1e-9)
        np.testing.assert_allclose(found.low, expected.low, atol=1e-6)
        np.testing.assert_allclose(found.high, expected.high, atol=1e-6)


def test_a_class_that_no_sample_shows_may_have_a_share():
    found = kc.functional.estimate_prior(
        [[1.0, 0.0]] * 50, [0.5, 0.5], num_draws=20
    )
    np.testing.assert_allclose(found.prior, [1.0, 0.0], atol=1e-9)
    # At its upper end 50 samples miss the class with probability 0.025.
    np.testing.assert_allclose(
        [found.low, found.high],
        [[0.025**0.02, 0.0], [1.0, 1.0 - 0.025**0.02]],
        atol=1e-9,
    )


@pytest.mark.slow
def test_intervals_hold_the_share_as_often_as_they_say():
    for prior, distance in (([0.8, 0.15, 0.05], 1.5), ([0.3, 0.7], 0.7)):
        source = np.full(len(prior), 1 / len(prior))
        inside = []
        for seed in range(300):
            found = kc.functional.estimate_prior(
                unlabelled(prior, 500, seed, distance),
                source,
                from_logits=True,
                level=0.9,
                num_draws=100,
            )
            low, high = found.low, found.high
            inside.append((low <= prior) & (prior <= high))
        # The standard error of a rate is 0.017.
        assert np.abs(np.mean(inside, axis=0) - 0.9).max() < 0.06


@pytest.mark.parametrize(("size", "tolerance"), [(3, 2e-3), (30, 1e-3)])
def test_draws_are_those_of_refits(size, tolerance, monkeypatch):
    prior = np.arange(size, 0, -1) / (size * (size + 1) / 2)
    logits, source = unlabelled(prior, 500), np.full(size, 1 / size)
    # Draws of many classes are minutes of work for elimination.
    monkeypatch.delattr(np.linalg, "solve")
    found = kc.functional.estimate_prior(
        logits, source, from_logits=True, num_draws=40, seed=4
    )
    rng = np.random.default_rng(4)
    probs, priors = softmax(logits), []
    for _ in range(40):
        weight = np.bincount(rng.integers(500, size=500), minlength=500)
        priors.append(by_em(probs, source, weight, 300))
    low, high = np.quantile(priors, [0.025, 0.975], axis=0)
    least, most = clopper_pearson(500 * found.prior, 500)
    ends = np.minimum(low, least), np.maximum(high, most)
    np.testing.assert_allclose([found.low, found.high], ends, atol=tolerance)
    assert found.converged


def test_elimination_takes_over_from_conjugate_gradients(monkeypatch):
    logits, source = unlabelled([0.5, 0.3, 0.2], 300), np.full(3, 1 / 3)
    how = {"from_logits": True, "num_draws": 20}
    expected = kc.functional.estimate_prior(logits, source, **how)
    monkeypatch.setattr("keras_calib.formulas.prior._CONJUGATE", 1)
    found = kc.functional.estimate_prior(logits, source, **how)
    np.testing.assert_allclose(found.prior, expected.prior, atol=1e-6)
    np.testing.assert_allclose(found.low, expected.low, atol=1e-3)
    np.testing.assert_allclose(found.high, expected.high, atol=1e-3)


def test_predictions_that_say_nothing_are_told():
    source = [0.5, 0.3, 0.2]
    probs = np.tile(source, (50, 1))
    with pytest.warns(RuntimeWarning, match="must differ between all classes"):
        kc.functional.estimate_prior(probs, source, num_draws=0)


def test_a_fit_that_does_not_converge_is_told(monkeypatch):
    monkeypatch.setattr("keras_calib.functional.prior._MAX_ITERATIONS", 1)
    logits = unlabelled([0.9, 0.1], 200)
    with pytest.warns(RuntimeWarning, match="did not converge"):
        found = kc.functional.estimate_prior(
            logits, [0.5, 0.5], from_logits=True, num_draws=0
        )
    assert not found.converged


def test_what_is_no_prediction_is_refused():
    good = np.array([[0.7, 0.3], [0.2, 0.8]])
    for probs, source, options, rule in (
        (good + 0.5, [0.5, 0.5], {}, r"in \[0, 1\]"),
        (good / 2, [0.5, 0.5], {}, "must sum to 1"),
        (good * np.nan, [0.5, 0.5], {}, "NaN"),
        (good, [1.0, 0.0], {}, r"`source` must be > 0.*absent=\[1\]"),
        (good, [0.5, 0.3, 0.2], {}, "must have the classes of `source`"),
        (good[:0], [0.5, 0.5], {}, "must not be empty"),
        (good, [0.5, 0.5], {"sample_weight": [0, 0]}, "0 everywhere"),
        (good, [0.5, 0.5], {"level": 1.0}, "`level` must be < 1"),
        (good, [0.5, 0.5], {"num_draws": -1}, "`num_draws` must"),
        (good, [0.5, 0.5], {"num_draws": 1}, "must be 0, or >= 2"),
        (good, [0.5, 0.5], {"seed": -1}, "`seed` must be >= 0"),
        (good[:1], [0.5, 0.5], {}, "must have >= 2 rows"),
    ):
        with pytest.raises(ValueError, match=rule):
            kc.functional.estimate_prior(probs, source, **options)


def test_an_interval_holds_its_estimate_where_a_class_is_absent():
    found = kc.functional.estimate_prior([[1.0, 0.0]] * 50, [0.5, 0.5])
    assert (found.low <= found.prior).all()
    assert (found.prior <= found.high).all()

"""Affine and quadratic scaling of log-odds: reference values and slopes."""

import numpy as np
import pytest
from cases import array, softmax

import keras_calib as kc
from keras_calib.numerics.softmax import sigmoid

# Intercept, slope and square, and their mean NLL, by probmetrics 1.3 with
# penalty="ridge", lambda_intercept = lambda_quadratic = 2 / n, or without.
REFERENCE = (
    (kc.AffineScaling, 1.0, (-0.27078288, 0.46747365), 0.5411537617),
    (kc.AffineScaling, None, (-0.28266748, 0.46750969), 0.5411408921),
    (
        kc.QuadraticScaling,
        1.0,
        (-0.73733764, 0.68580879, 0.11127779),
        0.4762489127,
    ),
    (
        kc.QuadraticScaling,
        None,
        (-0.78958641, 0.68993808, 0.11427089),
        0.4760940008,
    ),
)


def curved(n=500, seed=7):
    """Labels of a parabola of the log-odds, and logits of two classes."""
    rng = np.random.default_rng(seed)
    s = 3 * rng.normal(size=n)
    q = -0.8 + 0.6 * s + 0.08 * s**2
    labels = (rng.uniform(size=n) < sigmoid(q)).astype("int64")
    p = sigmoid(s).astype("float32")
    s = np.log(p) - np.log1p(-p)
    return labels, np.stack([np.zeros_like(s), s], axis=-1)


def odds_of(layer, s):
    """Calibrated log-odds of log-odds."""
    s = np.asarray(s, "float32")
    found = array(layer(np.stack([np.zeros_like(s), s], axis=-1)))
    return found[:, 1] - found[:, 0]


@pytest.mark.portable
def test_the_optimum_is_that_of_the_reference():
    labels, logits = curved()
    for cls, penalty, expected, nll in REFERENCE:
        layer = cls(penalty=penalty).fit(labels, logits)
        (found,) = layer.coefficients.astype("float64")
        np.testing.assert_allclose(
            found[[1, 0, 2][: len(found)]], expected, atol=2e-4
        )
        value = kc.nll(labels, array(layer(logits)), from_logits=True)
        # float32 outputs.
        assert abs(value - nll) < 1e-6, (cls, penalty)


def test_a_small_sample_with_soft_labels_is_penalised_by_its_weight():
    labels, logits = curved(40)
    soft = 0.1 + 0.8 * np.eye(2)[labels]
    weight = np.arange(40) % 4
    for cls in (kc.AffineScaling, kc.QuadraticScaling):
        layer = cls(penalty=3.0).fit(soft, logits, weight)
        s = logits[:, 1].astype("float64")
        (point,) = layer.coefficients.astype("float64")
        rows = np.stack([s, np.ones(40), s * s])[: len(point)]
        slope = rows @ (weight * (sigmoid(point @ rows) - soft[:, 1]))
        # 2 * 3 b^2 beside the sum over the samples.
        slope[1:] += 12.0 * point[1:]
        np.testing.assert_allclose(slope, 0.0, atol=2e-3)


def test_a_parabola_goes_on_along_its_tangent():
    layer = kc.QuadraticScaling(
        coefficients=[[1.0, 0.5, 0.25]], ends=[[-1.0, 2.0]]
    )
    found = odds_of(layer, [-3.0, -1.0, 0.0, 2.0, 4.0])
    np.testing.assert_allclose(found, [-1.25, -0.25, 0.5, 3.5, 7.5], atol=1e-6)
    huge = odds_of(layer, [-1e30, 1e30])
    assert np.isfinite(huge).all()
    fitted = kc.QuadraticScaling().fit(*curved())
    np.testing.assert_allclose(
        fitted.ends[0], [*map(float, np.quantile(curved()[1][:, 1], [0, 1]))]
    )


def test_a_monotone_parabola_is_the_best_that_never_decreases():
    labels, logits = curved(2000)
    places = np.linspace(*np.quantile(logits[:, 1], [0, 1]), 200)
    free = kc.QuadraticScaling().fit(labels, logits)
    assert np.diff(odds_of(free, places)).min() < -1e-3
    layer = kc.QuadraticScaling(monotone=True).fit(labels, logits)
    beyond = np.linspace(-30, 30, 500)
    assert np.diff(odds_of(layer, beyond)).min() > -1e-5
    value = kc.nll(labels, array(layer(logits)), from_logits=True)
    # No parabola with a slope >= 0 at both ends is better.
    lowest, highest = layer.ends[0]
    s = logits[:, 1].astype("float64")
    for c in np.linspace(0.0, 0.12, 25):
        a = -2.0 * c * lowest
        for b in np.linspace(-1.5, 0.5, 25):
            q = (a + c * s) * s + b
            loss = np.mean(np.logaddexp(0.0, q) - labels * q)
            assert value < loss + 1e-5
    # Where the data increase, nothing changes.
    rising = (logits[:, 1] > np.random.default_rng(0).logistic(size=2000)) * 1
    both = [
        kc.QuadraticScaling(monotone=m).fit(rising, logits).coefficients
        for m in (False, True)
    ]
    np.testing.assert_array_equal(*both)
    # Where they decrease, the best is a constant.
    falling = kc.QuadraticScaling(monotone=True).fit(1 - rising, logits)
    np.testing.assert_allclose(
        softmax(array(falling(logits)))[:, 1], np.mean(1 - rising), atol=1e-3
    )


def test_more_classes_are_each_against_the_rest():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(800, 3)).astype("float32")
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(-1)
    for cls in (kc.AffineScaling, kc.QuadraticScaling):
        layer = cls().fit(labels, logits)
        p = softmax(logits.astype("float64"))
        s = (np.log(p) - np.log1p(-p)).astype("float32")
        for k in range(3):
            pair = np.stack([np.zeros(800, "float32"), s[:, k]], axis=-1)
            two = cls().fit((labels == k).astype("int64"), pair)
            np.testing.assert_allclose(
                layer.coefficients[k], two.coefficients[0], atol=1e-3
            )


def test_bad_arguments_are_refused():
    for make, rule in {
        lambda: kc.AffineScaling(penalty=-1.0): "`penalty` must be > 0",
        lambda: kc.AffineScaling(
            coefficients=[1.0, 0.0]
        ): r"\(1 or num_classes, 2\)",
        lambda: kc.AffineScaling(
            coefficients=[[1.0, 0.0, 0.0]]
        ): r"\(1 or num_classes, 2\)",
        lambda: kc.QuadraticScaling(
            coefficients=[[1.0, 0.0, 0.0]] * 3, ends=[[0.0, 1.0]]
        ): "`ends` must have the shape",
    }.items():
        with pytest.raises(ValueError, match=rule):
            make()
    with pytest.raises(TypeError, match="`monotone` must be True or False"):
        kc.QuadraticScaling(monotone="yes")

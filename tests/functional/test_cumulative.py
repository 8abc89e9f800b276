"""The cumulative calibration error, and the law of its p-value."""

import numpy as np
import pytest
from made_up_probs import made_up
from metric_cases import cumulative_error as by_thresholds
from scipy.integrate import quad

import keras_calib as kc
from keras_calib.formulas.cumulative import BAND, brownian_tail, differences_of

KINDS = ("range", "maximum")
EDGES = [0.0, 0.5, 1.5, 2.0, 3.0, 9.0]


@pytest.mark.parametrize("kind", KINDS)
def test_error_is_that_of_every_threshold(kind):
    for sharpness in (2.0, 0.5):
        labels, probs, weight = made_up(1, 80, sharpness=sharpness)
        # Some of them tie, right ones with wrong ones.
        probs[20:40] = probs[:20]
        for some in (None, weight, np.floor(3 * weight)):
            found = kc.functional.ecce(
                labels, probs, kind=kind, sample_weight=some
            )
            wanted = by_thresholds(labels, probs, kind=kind, sample_weight=some)
            assert found == pytest.approx(wanted, rel=1e-12)
    # The walk begins at 0, above or below all else.
    for label, size in ((1, 0.7), (0, 0.3)):
        found = kc.functional.ecce(
            [label] * 2, [[0.8, 0.2], [0.6, 0.4]], kind=kind
        )
        assert found == pytest.approx(size)


def test_error_is_that_of_sorted_residuals_of_gupta_et_al():
    # Integrated accuracy and integrated score, one sample after the other.
    labels, probs, _ = made_up(2, 300)
    order = np.argsort(probs.max(-1))
    right = (probs.argmax(-1) == labels)[order]
    score = probs.max(-1)[order]
    integrated = np.cumsum(right / 300.0), np.cumsum(score / 300.0)
    ks_error = np.abs(np.subtract(*integrated)).max()
    found = kc.functional.ecce(labels, probs, kind="maximum")
    assert found == pytest.approx(ks_error, rel=1e-12)


def test_deviation_is_that_of_drawn_labels():
    _, probs, weight = made_up(3, 50)
    confidence = probs.max(-1)
    rng = np.random.default_rng(0)
    right = rng.random((20_000, 50)) < confidence
    for some in (None, weight, np.floor(3 * weight)):
        found = differences_of(confidence, confidence, right[0], some)
        each = np.ones(50) if some is None else some
        # A frequency weight stands for samples with labels of their own.
        spread = np.sqrt(each) if each is not weight else each
        sums = (confidence - right) @ spread / each.sum()
        assert found.deviation == pytest.approx(sums.std(), rel=0.03)


@pytest.mark.parametrize(
    ("kind", "mean", "far"),
    [
        # Means: Feller 1951 and Masoliver 2014. The arguments far out are
        # those at which the code of Arrieta-Ibarra et al. prints its tails.
        ("maximum", np.sqrt(np.pi / 2), [4.433008036126233, 1.8585480197e-5]),
        ("range", np.sqrt(8 / np.pi), [4.500374236241608, 2.7133571709e-5]),
    ],
)
def test_tails_of_brownian_motion_are_the_published_ones(kind, mean, far):
    parts = [
        quad(lambda x: brownian_tail(x, kind), *ends)[0]
        for ends in zip(EDGES[:-1], EDGES[1:], strict=True)
    ]
    assert sum(parts) == pytest.approx(mean, rel=1e-10)
    assert brownian_tail(far[0], kind) == pytest.approx(far[1], rel=1e-9)
    # Both series agree where one takes over from the other.
    for x in (1.5, 2.0):
        below, above = (brownian_tail(x + d, kind) for d in (-1e-9, 1e-9))
        assert below == pytest.approx(above, abs=1e-8)
    assert brownian_tail(0.0, kind) == brownian_tail(0.01, kind) == 1.0
    assert brownian_tail(1e3, kind) == 0.0


def test_the_band_holds_95_percent_of_walks():
    assert brownian_tail(BAND, "maximum") == pytest.approx(0.05, abs=1e-9)


def test_p_values_of_few_errors_are_those_of_draws():
    # Three errors among 60 certain-looking predictions.
    confidence = np.full(60, 0.97)
    probs = np.stack([confidence, 1 - confidence], axis=-1)
    labels = (np.arange(60) < 8).astype(int)
    found = kc.functional.calibration_test(
        labels, probs, statistic="ecce_maximum", num_draws=2000
    )
    assert found.statistic == pytest.approx(8 / 60 - 0.03)
    # One group of ties: the binomial law of the number of errors.
    rng = np.random.default_rng(1)
    errors = rng.binomial(60, 0.03, 400_000)
    wanted = np.mean(np.abs(errors / 60 - 0.03) >= found.statistic - 1e-9)
    assert found.p_value == pytest.approx(wanted, abs=1.5e-3)


def test_wrong_kinds_are_refused():
    with pytest.raises(ValueError, match="`kind` must be one of"):
        kc.functional.ecce([0], [[0.8, 0.2]], kind="kuiper")
    with pytest.raises(ValueError, match="`kind` must be one of"):
        kc.ECCE("l1")

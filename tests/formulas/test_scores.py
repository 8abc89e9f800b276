"""Ranking scores against the authors' values, and their invariances."""

import itertools

import keras
import numpy as np
import pytest
from cases import HAS_FLOAT64, array, sample
from keras import ops

import keras_calib as kc
from keras_calib.formulas.scores import SCORE_NAMES

DTYPE, RTOL = ("float64", 1e-9) if HAS_FLOAT64 else ("float32", 1e-5)


GOLDENS = {
    "msp": kc.functional.msp,
    "max_logit": kc.functional.max_logit,
    "margin_logits": kc.functional.logit_margin,
    "margin_softmax": kc.functional.prob_margin,
    "neg_entropy": kc.functional.neg_entropy,
}


def inputs(goldens):
    logits = goldens["in/posthoc/logits"]
    count = len(goldens["posthoc/score/msp"])
    return logits[:count].astype(DTYPE)


@pytest.mark.portable
def test_scores_match_the_goldens(goldens):
    for name, function in GOLDENS.items():
        np.testing.assert_allclose(
            array(function(inputs(goldens))),
            goldens[f"posthoc/score/{name}"],
            rtol=RTOL,
            atol=1e-6,
            err_msg=name,
        )


def test_neg_energy_is_the_golden_energy_with_its_sign_turned(goldens):
    score = array(kc.functional.neg_energy(inputs(goldens)))
    expected = -goldens["posthoc/score/energy"]
    np.testing.assert_allclose(score, expected, rtol=RTOL)


def test_gini_ranks_as_the_golden(goldens):
    # The authors' score is the same up to a constant.
    score = array(kc.functional.gini(inputs(goldens)))
    golden = goldens["posthoc/score/neg_gini"]
    np.testing.assert_allclose(np.ptp(score - golden), 0.0, atol=1e-6)


def test_the_energy_of_log_probabilities_ranks_nothing():
    labels, logits = sample(n=400)
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    logits = np.log(probs / probs.sum(-1, keepdims=True))
    score = array(kc.functional.neg_energy(logits))
    np.testing.assert_array_equal(score, 0.0)
    metric = kc.AURC(score="neg_energy", from_logits=True)
    metric.update_state(labels, logits)
    expected = np.mean(labels != logits.argmax(-1))
    assert float(metric.result()) == pytest.approx(expected, rel=1e-6)
    # Another row keeps its energy; a class may be ruled out of such a row.
    moved = np.stack([logits[0] + 1e-4, [-1e-9, -1e9, -1e9, -20.0, -30.0]])
    assert (array(kc.functional.neg_energy(moved)) != 0.0).tolist() == [
        True,
        False,
    ]
    ruled_out = np.array([[-np.inf, 3.0], [-np.inf, -np.inf]], "float32")
    assert array(kc.functional.neg_energy(ruled_out)).tolist() == [3.0, -np.inf]


def test_p_norm_matches_the_goldens(goldens):
    for p, center in itertools.product((1, 2, 3, 4, 5, 8), (True, False)):
        kind = "centered" if center else "uncentered"
        expected = goldens[f"posthoc/pnorm/maxlogit_{kind}_p{p}"]
        score = array(kc.functional.p_norm(inputs(goldens), p=p, center=center))
        np.testing.assert_allclose(score, expected, rtol=1e-5)


def test_a_constant_on_positive_logits_lowers_the_normalised_maximum():
    """Result 1 of Xia et al., where softmax is the same."""
    rng = np.random.default_rng(0)
    for k, scale in itertools.product((2, 3, 10, 100), (0.1, 1.0, 10.0)):
        # The spread is between 1e-2 and 1 of the largest.
        spread = 10 ** rng.uniform(-2, 0, size=(200, 1))
        positive = scale * (1.0 - spread * rng.uniform(size=(200, k)))
        shift = scale * 10 ** rng.uniform(-2, 2, size=(200, 1))
        probs = array(kc.functional.msp(positive))
        # JAX has 24 bits of a logit up to a thousand.
        np.testing.assert_allclose(
            array(kc.functional.msp(positive + shift)), probs, 1e-4
        )
        for p in (1, 1.5, 2, 4, 9):
            before = kc.functional.p_norm(positive, p=p, center=False)
            after = kc.functional.p_norm(positive + shift, p=p, center=False)
            assert (array(before) > array(after)).all(), (k, scale, p)
            # Centred, it sees no constant either.
            before, after = (
                kc.functional.p_norm(positive, p=p),
                kc.functional.p_norm(positive + shift, p=p),
            )
            np.testing.assert_allclose(array(after), array(before), rtol=1e-6)
    # Where all are equal, or one is not positive, it may stay or rise.
    same = array(
        kc.functional.p_norm(np.array([[1.0, 1.0], [3.0, 3.0]]), center=False)
    )
    np.testing.assert_allclose(same, 2**-0.25, rtol=1e-6)
    rises = array(
        kc.functional.p_norm(np.array([[1.0, -3.0], [3.0, -1.0]]), center=False)
    )
    assert rises[1] > rises[0]


def test_p_norm_does_not_overflow_and_survives_equal_logits():
    logits = np.array([[3e4, -3e4, 0.0], [2.0, 2.0, 2.0]], "float32")
    score = array(kc.functional.p_norm(logits, p=9.0))
    np.testing.assert_allclose(score, [2 ** (-1 / 9), 0.0], rtol=1e-5)


def test_scores_do_not_see_a_constant_on_the_logits():
    _, logits = sample()
    for score in (
        kc.functional.msp,
        kc.functional.logit_margin,
        kc.functional.prob_margin,
        kc.functional.neg_entropy,
        kc.functional.gini,
    ):
        moved, still = array(score(logits + 7.0)), array(score(logits))
        np.testing.assert_allclose(moved, still, atol=1e-5)


def test_every_score_function_has_a_name_in_files():
    for name in SCORE_NAMES:
        score = getattr(kc.functional, name)
        kept = keras.saving.serialize_keras_object(score)
        assert keras.saving.deserialize_keras_object(kept) is score


@pytest.mark.portable
def test_every_score_is_higher_for_the_surer_sample():
    logits = ops.convert_to_tensor([[5.0, 0.0, 0.0], [1.0, 0.0, 0.5]])
    for score in (
        *GOLDENS.values(),
        kc.functional.neg_energy,
        kc.functional.gini,
        kc.functional.p_norm,
    ):
        surer, less_sure = array(score(logits))
        assert surer > less_sure

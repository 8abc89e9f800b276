"""Confidence of sequences and logits of choices, against float64 loops."""

import keras
import numpy as np
import pytest
from cases import HAS_FLOAT64, array
from keras import ops

import keras_calib as kc
from keras_calib.backend.gradients import value_and_grad

RTOL = 1e-9 if HAS_FLOAT64 else 2e-5
REDUCTIONS = ("geometric_mean", "mean", "minimum", "product")


def tokens(scale=3.0, seed=0):
    """Logits (4, 6, 9), ids, and masks with at least one token."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(4, 6, 9))
    ids = rng.integers(0, 9, (4, 6))
    mask = rng.random((4, 6)) < 0.6
    mask[:, 3] = True
    return logits, ids, mask


def oracle(logits, ids):
    """log p and p / (1 - p) of each token, by loops."""
    log_p = np.empty(ids.shape)
    for place in np.ndindex(ids.shape):
        z = logits[place].astype("longdouble")
        others = np.exp(np.delete(z, ids[place]) - z[ids[place]])
        log_p[place] = -np.log1p(others.sum())
    return log_p


def of_tokens(p, reduction):
    p = p.astype("longdouble")
    return {
        "geometric_mean": p.prod() ** (1 / np.longdouble(len(p))),
        "mean": p.mean(),
        "minimum": p.min(),
        "product": p.prod(),
    }[reduction]


@pytest.mark.parametrize("scale", [0.5, 3.0, 40.0])
def test_log_probabilities_of_tokens_are_those_of_a_loop(scale):
    logits, ids, _ = tokens(scale)
    # As sure of each other token as float64 can tell.
    logits = logits.astype("float32" if not HAS_FLOAT64 else "float64")
    found = array(kc.text.token_log_probs(logits, ids))
    np.testing.assert_allclose(found, oracle(logits, ids), rtol=RTOL)
    # Each place of a causal model predicts the next token.
    shifted = array(kc.text.token_log_probs(logits, ids, next_token=True))
    expected = oracle(logits[:, :-1], ids[:, 1:])
    np.testing.assert_allclose(shifted, expected, rtol=RTOL)


@pytest.mark.portable
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_confidence_of_a_sequence_is_that_of_a_loop(reduction):
    logits, ids, mask = tokens()
    log_p = oracle(logits, ids)
    expected = [
        of_tokens(np.exp(row[keep]), reduction)
        for row, keep in zip(log_p, mask, strict=True)
    ]
    found = array(kc.text.sequence_confidence(log_p, mask, reduction=reduction))
    np.testing.assert_allclose(found, np.float64(expected), rtol=RTOL)
    odds = kc.text.sequence_confidence(
        log_p, mask, reduction=reduction, log_odds=True
    )
    expected = [np.log(c) - np.log1p(-c) for c in expected]
    np.testing.assert_allclose(array(odds), np.float64(expected), rtol=RTOL)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_log_odds_do_not_saturate(reduction):
    # float32, where 1 - 1e-12 is 1, and 1e-60 is 0.
    sure = np.full((1, 4), -1e-12, "float32")
    unsure = np.full((1, 4), -138.0, "float32")
    of = {"reduction": reduction, "log_odds": True}
    count = 4.0 if reduction == "product" else 1.0
    odds = array(
        kc.text.sequence_confidence(np.concatenate([sure, unsure]), **of)
    )
    expected = [-np.log(1e-12 * count), -138.0 * count]
    np.testing.assert_allclose(odds, expected, rtol=1e-5)
    # What a service calls certain stays finite, for a calibrator.
    odds = array(kc.text.sequence_confidence(np.zeros((1, 4)), **of))
    np.testing.assert_allclose(odds, 87.336544, rtol=1e-6)


def test_what_a_mask_leaves_out_does_not_matter():
    log_p = np.array([[-0.5, -1.0, np.nan, 3.0]])
    mask = np.array([[1, 1, 0, 0]])
    for reduction in REDUCTIONS:
        of = {"reduction": reduction, "log_odds": True}
        np.testing.assert_array_equal(
            array(kc.text.sequence_confidence(log_p, mask, **of)),
            array(kc.text.sequence_confidence(log_p[:, :2], **of)),
        )


@pytest.mark.portable
def test_choices_add_the_probabilities_of_their_spellings():
    rng = np.random.default_rng(0)
    logits = 3.0 * rng.normal(size=(5, 3, 12))
    p = np.exp(logits)
    found = array(ops.softmax(kc.text.choice_logits(logits, [[4, 7], 0, [2]])))
    expected = np.stack([p[..., [4, 7]].sum(-1), p[..., 0], p[..., 2]], -1)
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=max(RTOL, 1e-6))
    found = array(kc.text.choice_logits(logits, [4, 0, 2]))
    np.testing.assert_allclose(found, logits[..., [4, 0, 2]], rtol=1e-6)


@pytest.mark.portable
def test_a_choice_of_tokens_that_are_all_ruled_out_has_no_gradient():
    logits = np.array([[3.0, 1.0, -np.inf, -np.inf, 0.5]], "float32")
    loss = kc.LabelSmoothing(from_logits=True)

    def of(logits):
        return loss([0], kc.text.choice_logits(logits, [[0, 1], [2, 3], 4]))

    value, gradient = value_and_grad(of, ops.convert_to_tensor(logits))
    left = loss([0], kc.text.choice_logits(logits[:, [0, 1, 4]], [[0, 1], 2]))
    assert float(value) == pytest.approx(float(left), rel=1e-6)
    gradient = array(gradient)
    assert (gradient[0, 2:4] == 0.0).all()
    np.testing.assert_allclose(gradient.sum(), 0.0, atol=1e-6)


def answers(logits, ids, mask):
    log_p = kc.text.token_log_probs(logits, ids)
    parts = [
        kc.text.sequence_confidence(log_p, mask, reduction=x, log_odds=True)
        for x in REDUCTIONS
    ]
    return ops.stack(parts, axis=-1)


class Answers(keras.layers.Layer):
    def call(self, logits, ids, mask):
        return answers(logits, ids, mask)


@pytest.mark.portable
def test_a_model_can_hold_them_and_runs_compiled():
    logits, ids, mask = tokens()
    given = [logits.astype("float32"), ids.astype("int32"), mask]
    expected = array(answers(*given))
    inputs = [
        keras.Input((None, 9)),
        keras.Input((None,), dtype="int32"),
        keras.Input((None,), dtype="bool"),
    ]
    model = keras.Model(inputs, Answers()(*inputs))
    found = model.predict(given, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    if keras.backend.backend() == "torch":
        return
    # Compiled code cannot raise: what has no confidence is NaN.
    given[1][0, 0], given[2][1] = 9, False
    given[2][0, 0] = True
    found = model.predict(given, verbose=0)
    assert np.isnan(found).all(-1).tolist() == [True, True, False, False]


LOG_P = np.array([[-1.0, -2.0]])
WRONG = [
    (
        kc.text.token_log_probs,
        (np.zeros((1, 2, 3)), [[0, 3]]),
        {},
        "in .0, voc",
    ),
    (
        kc.text.token_log_probs,
        (np.zeros((1, 2, 3)), [[0, -100]]),
        {},
        "padding",
    ),
    (
        kc.text.token_log_probs,
        (np.zeros((1, 2, 3)), np.array([[0, 3]], "uint8")),
        {},
        "in .0, voc",
    ),
    (kc.text.token_log_probs, (np.zeros((1, 2, 3)), [[0, 1, 2]]), {}, "shape"),
    (kc.text.token_log_probs, (np.zeros((1, 2, 3)), [[0.0, 1]]), {}, "whole"),
    (kc.text.sequence_confidence, (-LOG_P,), {}, "must be <= 0"),
    (kc.text.sequence_confidence, (LOG_P, [[0, 0]]), {}, "keep a token"),
    (kc.text.sequence_confidence, (LOG_P, [[1, 0, 1]]), {}, "mask.* the shape"),
    (kc.text.sequence_confidence, (LOG_P,), {"reduction": "sum"}, "reduction"),
    (kc.text.choice_logits, (LOG_P, [0]), {}, "at least two"),
    (kc.text.choice_logits, (LOG_P, [[0, 1], [1]]), {}, "each once"),
    (kc.text.choice_logits, (LOG_P, [0, 2]), {}, "in .0, vocabulary"),
    (kc.text.choice_logits, (LOG_P, [None, "B"]), {}, "real numbers"),
]


@pytest.mark.parametrize(("function", "given", "options", "rule"), WRONG)
def test_what_has_no_confidence_is_refused(function, given, options, rule):
    with pytest.raises((ValueError, TypeError), match=rule):
        function(*given, **options)

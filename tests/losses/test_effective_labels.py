"""Effective labels against closed forms, finite differences, and Table 2."""

from functools import partial

import numpy as np
import pytest
from cases import HAS_FLOAT64, LOSSES, one_hot, sample, softmax
from effective import close, cross_entropy, effective, total
from loss_batches import CASES

import keras_calib as kc

# Closed forms of q: one-hot labels y, logits z, probabilities p, 5 classes.


def mbls(y, z, p, rate):
    far = z < z.max(axis=-1, keepdims=True) - 2.0
    return y + rate * (far - one_hot(z.argmax(axis=-1), 5) * total(far))


def acls(y, z, p, zero):
    top = one_hot(z.argmax(axis=-1), 5)
    over = np.maximum(z.max(axis=-1, keepdims=True) - z - 2.0, 0)
    raised = 2 * 0.01 / 4 * over
    if zero:
        lowered = np.maximum(z.max(axis=-1, keepdims=True) - 2.0, 0)
        return y + raised - 2 * 0.1 * lowered * top
    raised += 2 * 0.1 * over * one_hot(z.argmin(axis=-1), 5)
    return y + raised - top * total(raised)


def focal(y, z, p):
    true = total(y * p)
    rate = 3 * (1 - true) ** 2 * np.log(true) - (1 - true) ** 3 / true
    return p - rate * true * (y - p)


def label_relaxation(y, z, p):
    # The nearest distribution of those that are sure to 0.9.
    true = total(y * p)
    nearest = 0.9 * y + 0.1 * (1 - y) * p / (1 - true)
    return np.where(true >= 0.9, p, nearest)


def confidence_penalty(y, z, p, beta):
    return y - beta * p * (np.log(p) - total(p * np.log(p)))


def mdca(y, z, p):
    side = np.sign(p.mean(axis=0) - y.mean(axis=0))
    return y - 3.0 / 5 * p * (side - total(p * side))


def cpc(y, z, p):
    lowered = 0.3 / 4 * (1 - y) * p / (total(y * p) + p)
    row, column = p[:, None], p[:, :, None]
    odds = (row - column) / (row + column)
    raised = 0.5 / 12 / 2 * (1 - y) * np.einsum("njk,nk->nj", odds, 1 - y)
    return y + raised - lowered + y * total(lowered)


CLOSED_FORMS = {
    "LabelSmoothing": lambda y, z, p: 0.9 * y + 0.1 / 5,
    "LabelSmoothing-others": lambda y, z, p: 0.9 * y + 0.1 / 4 * (1 - y),
    "MbLS": partial(mbls, rate=0.3 / 5),
    "MbLS-sum": partial(mbls, rate=0.1),
    "ACLS": partial(acls, zero=False),
    "ACLS-zero": partial(acls, zero=True),
    "FocalLoss": focal,
    "LabelRelaxation": label_relaxation,
    "ConfidencePenalty": partial(confidence_penalty, beta=0.3),
    "ConfidencePenalty-mean": partial(confidence_penalty, beta=0.06),
    "BrierLoss": lambda y, z, p: p - 2 * p * (p - y - total(p * (p - y))),
    "MDCA": mdca,
    "CPC": cpc,
}


@pytest.mark.portable
def test_effective_labels_are_the_closed_form():
    ids, logits = sample(dtype="float64")
    labels, predicted = one_hot(ids, 5), one_hot(logits.argmax(axis=-1), 5)
    for name, form in CLOSED_FORMS.items():
        expected = form(labels, logits, softmax(logits))
        added = expected - labels
        assert np.abs(added).max() > 0.01
        q, lowered, raised = effective(CASES[name].make(), ids, logits)
        close(q, expected)
        close(lowered, -np.sum(predicted * added, axis=-1))
        close(raised, (1 - predicted) * added)


# Finite differences.


def released_acls(y, z, at, *, margin=2.0, smoothing="", condition="", **_):
    """The released ACLS, with the maximum constant where it has it so."""
    over = np.vstack([z.max(-1), at.max(-1) - z.T]) - margin
    over = over if condition == "none" else np.maximum(over, 0)
    first, *rest = over if smoothing == "constant" else over**2
    others = 1 - one_hot(at.argmax(axis=-1), 5)
    penalty = 0.1 * first.sum() + 0.01 / 4 * np.sum(others.T * rest)
    return penalty - np.sum(y * np.log(softmax(z)))


@pytest.mark.portable
@pytest.mark.skipif(not HAS_FLOAT64, reason="JAX computes in 32 bits")
def test_effective_labels_of_the_released_acls_are_finite_differences():
    # Those of all other losses: `tests/laws/test_losses.py`.
    ids, logits = sample(seed=1, n=6, dtype="float64", scale=3.0)
    step = 1e-5
    released = {"reference": "zero"}.items()
    for case in (c for c in LOSSES if released <= c.hyperparameters.items()):

        def value(z, options=case.hyperparameters):
            return released_acls(one_hot(ids, 5), z, logits, **options)

        gradient = np.zeros_like(logits)
        for place in np.ndindex(*logits.shape):
            up, down = logits.copy(), logits.copy()
            up[place] += step
            down[place] -= step
            gradient[place] = (value(up) - value(down)) / (2 * step)
        q, _, _ = effective(case.make(), ids, logits)
        assert np.abs(gradient).max() > 0.01
        close(q, softmax(logits) - gradient, 1e-8)


# Where Table 2 of the ACLS paper departs from the derivatives.


def test_mbls_smooths_the_predicted_class_too():
    loss = kc.MbLS(2.0, strength=0.3, from_logits=True)
    _, lowered, raised = effective(loss, [0], [[6.0, 0.0, 1.0, 5.0]])
    close(raised, [[0, 0.3 / 4, 0.3 / 4, 0]])
    # The table has 0.
    close(lowered, [2 * 0.3 / 4])


@pytest.mark.portable
def test_mdca_smooths_twice_as_the_table_says():
    # Class 0 is over its frequency, the others are under theirs.
    p = np.array([[0.5, 0.3, 0.2], [0.8, 0.1, 0.1], [0.6, 0.2, 0.2]])
    loss = kc.MDCA(strength=3.0, from_logits=True)
    _, lowered, raised = effective(loss, [0, 1, 2], np.log(p))
    top, others = p[:, :1], p[:, 1:]
    close(lowered, 2 * (top * (1 - top))[:, 0])
    close(lowered[0], 0.5)
    # The table has p (1 - p), so 0.25, and p_j (1 + p).
    close(raised[:, 1:], 2 * others * top)
    assert (raised[:, 1:] < others * (1 + top)).all()


def test_discrimination_of_cpc_lowers_the_other_classes():
    p = np.array([0.5, 0.3, 0.2])
    loss = kc.CPC(0.6, 0.0, from_logits=True)
    _, lowered, raised = effective(loss, [0], [np.log(p)])
    odds = p[1:] / (p[0] + p[1:])
    # The table has + in place of this -.
    close(raised, [[0, *(-0.6 / 2 * odds)]])
    close(lowered, [-0.6 / 2 * odds.sum()])


def test_each_sample_of_crl_is_in_two_pairs():
    # Confidences rise and the records fall: every pair is in wrong order.
    top, record = np.array([0.5, 0.6, 0.9]), np.array([0.9, 0.5, 0.1])
    p = np.stack([top, 0.75 * (1 - top), 0.25 * (1 - top)], axis=-1)

    def loss(labels, logits):
        pairs = kc.losses.correctness_ranking(
            logits, record, condition="ranking"
        )
        return cross_entropy(labels, logits) + 0.3 * pairs

    _, lowered, raised = effective(loss, [0, 0, 0], np.log(p))
    # The table has 1 for each.
    rate = 0.3 * np.array([-2, 0, 2]) * top
    close(lowered, rate * (1 - top))
    close(raised[:, 1:], rate[:, None] * p[:, 1:])


def test_acls_smooths_at_twice_the_rate_of_the_table():
    logits = [[9.0, -3.0, 4.0, 8.0]]
    # The table has lambda2 times the excesses 10, 3 and 0.
    raised = 2 * 0.3 / 3 * np.array([0, 10, 3, 0])
    loss = partial(kc.ACLS, 2.0, lambda2=0.3, from_logits=True)
    _, lowered, others = effective(loss(reference="zero"), [0], logits)
    close(others, [raised])
    close(lowered, [2 * 0.1 * 7])
    # All of it comes from the predicted class, for the smallest logit too.
    _, lowered, others = effective(loss(), [0], logits)
    raised[1] += 2 * 0.1 * 10
    close(others, [raised])
    close(lowered, [raised.sum()])


def test_table_and_label_smoothing_agree_where_the_prediction_is_right():
    loss = kc.LabelSmoothing(0.3, from_logits=True)
    # Of tied classes the first is predicted.
    logits = [[2.0, 0.0, 1.0], [2.0, 2.0, 0.0]]
    _, lowered, raised = effective(loss, [0, 1], logits)
    close(lowered, [0.2, -0.1])
    close(raised, [[0, 0.1, 0.1], [0, -0.2, 0.1]])

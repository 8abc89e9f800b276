"""Effective labels against closed forms, finite differences, and Table 2."""

from functools import partial

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import HAS_FLOAT64
from cases import LOSSES
from cases import array
from cases import one_hot
from cases import sample
from cases import softmax
from keras import ops

import keras_calib as kc

pytestmark = pytest.mark.portable
# JAX computes in 32 bits.
DTYPE, TOLERANCE = ("float64", 1e-10) if HAS_FLOAT64 else ("float32", 2e-5)
CASES = {case.name: case for case in LOSSES}
cross_entropy = partial(kc.label_smoothing, alpha=0.0)
every_loss = pytest.mark.parametrize("case", LOSSES, ids=str)


def close(got, expected, tolerance=TOLERANCE):
    np.testing.assert_allclose(array(got), expected, rtol=0, atol=tolerance)


def effective(loss, labels, logits):
    """As NumPy; float64 wherever the backend has it."""
    logits = np.asarray(logits, DTYPE)
    return [array(x) for x in kc.effective_labels(loss, labels, logits)]


def same(got, expected, tolerance=TOLERANCE):
    for one, other in zip(got, expected, strict=True):
        close(one, other, tolerance)


def total(x):
    return np.sum(x, axis=-1, keepdims=True)


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


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_effective_labels_are_the_closed_form(name):
    ids, logits = sample(dtype="float64")
    labels = one_hot(ids, 5)
    expected = CLOSED_FORMS[name](labels, logits, softmax(logits))
    predicted, added = one_hot(logits.argmax(axis=-1), 5), expected - labels
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


@pytest.mark.skipif(not HAS_FLOAT64, reason="JAX computes in 32 bits")
@every_loss
def test_effective_labels_are_the_finite_difference(case):
    ids, logits = sample(seed=1, n=6, dtype="float64", scale=3.0)
    labels, loss = case.labels(ids), case.make()

    def value(z):
        if case.shift_invariant:
            return array(loss.call(labels, z)).sum()
        options = case.hyperparameters
        return released_acls(one_hot(ids, 5), z, logits, **options)

    step, gradient = 1e-5, np.zeros_like(logits)
    for place in np.ndindex(*logits.shape):
        up, down = logits.copy(), logits.copy()
        up[place] += step
        down[place] -= step
        gradient[place] = (value(up) - value(down)) / (2 * step)
    q, _, _ = effective(loss, labels, logits)
    assert np.abs(gradient).max() > 0.01
    close(q, softmax(logits) - gradient, 1e-8)


# Where Table 2 of the ACLS paper departs from the derivatives.


def test_mbls_smooths_the_predicted_class_too():
    loss = kc.MbLS(2.0, strength=0.3, from_logits=True)
    _, lowered, raised = effective(loss, [0], [[6.0, 0.0, 1.0, 5.0]])
    close(raised, [[0, 0.3 / 4, 0.3 / 4, 0]])
    # The table has 0.
    close(lowered, [2 * 0.3 / 4])


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
        pairs = kc.correctness_ranking(logits, record, condition="ranking")
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


# Forms of losses, labels and logits.


@every_loss
def test_axis_is_followed_and_reduction_is_not(case):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 5, 3, 4)) * 4
    labels = case.labels(rng.integers(5, size=(2, 3, 4)))
    last = np.moveaxis(logits, 1, -1)
    q, lowered, raised = effective(case.make(), labels, last)
    moved = np.moveaxis(q, -1, 1), lowered, np.moveaxis(raised, -1, 1)
    for reduction in ("sum_over_batch_size", "sum", "none"):
        loss = case.make(axis=1, reduction=reduction)
        same(effective(loss, labels, logits), moved)


@every_loss
def test_an_ignored_label_is_as_if_it_were_not_there(case):
    ids, logits = sample(dtype="float64")
    ids[::3] = 255
    labels, kept = case.labels(ids), ids != 255
    read = effective(case.make(ignore_class=255), labels, logits)
    expected = effective(case.make(), labels[kept], logits[kept])
    same([x[kept] for x in read], expected)
    q, lowered, raised = (x[~kept] for x in read)
    close(q, softmax(logits[~kept]))
    assert (lowered == 0).all() and (raised == 0).all()


@every_loss
def test_probabilities_and_compiled_code_give_the_same(case):
    ids, logits = sample(dtype="float64", scale=2.0)
    labels, loss = case.labels(ids), case.make()
    expected = effective(loss, labels, logits)
    if case.shift_invariant:
        loss = case.make(from_logits=False)
        same(effective(loss, labels, logits), expected)
    read = partial(kc.effective_labels, loss)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        read = tf.function(read)
    elif BACKEND == "jax":
        import jax

        read = jax.jit(read)
    logits = ops.convert_to_tensor(logits.astype(DTYPE))
    same(read(ops.convert_to_tensor(labels), logits), expected)


def test_a_function_gets_labels_as_rows():
    ids, logits = sample(dtype="float64")
    expected = effective(CASES["MbLS"].make(), ids, logits)
    function = partial(kc.mbls, margin=2.0, strength=0.3)
    for labels in (ids, ids[:, None], one_hot(ids, 5).astype(DTYPE)):
        same(effective(function, labels, logits), expected)
    soft = softmax(logits[::-1]).astype(DTYPE)
    q, lowered, _ = effective(cross_entropy, soft, logits)
    close(q, soft)
    close(lowered, np.zeros(len(ids)))


@pytest.mark.parametrize("from_logits", [True, False])
def test_losses_of_keras_are_taken(from_logits):
    ids, logits = sample(scale=1.0)
    hard = one_hot(ids, 5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits)
    close(effective(loss, ids, logits)[0], hard, 1e-5)
    loss = keras.losses.CategoricalCrossentropy(from_logits, 0.3)
    close(effective(loss, hard, logits)[0], 0.7 * hard + 0.06, 1e-5)


def test_objectness_is_read_as_its_targets():
    ids, logits = sample()
    labels = CASES["AdaptiveLabelSmoothing"].labels(ids)
    loss = kc.AdaptiveLabelSmoothing(0.75, from_logits=True)
    q, _, _ = effective(loss, labels, logits)
    close(q, kc.objectness_targets(ids, labels[:, 1], 5, 0.75))


# Shares of samples.


@every_loss
def test_a_loss_without_its_regulariser_is_inactive(case):
    ids, logits = sample()
    labels = case.labels(ids)
    assert kc.inactive_share(case.make(), labels, logits) < 1
    if case.limit is not None:
        loss = case.cls(from_logits=True, **case.limit)
        assert kc.inactive_share(loss, labels, logits) == 1


@pytest.mark.parametrize("cls", [kc.MbLS, kc.ACLS])
def test_inactive_shares_by_hand(cls):
    # Distances of 5, 6, 7, 9 and 2.
    logits = np.array([[5, 0], [0, 6], [7, 0], [0, 9], [2, 0]], "float32")
    loss = cls(6.0, from_logits=True)
    assert kc.inactive_share(loss, [0, 0, 0, 1, 1], logits) == 3 / 5
    assert kc.inactive_share(loss, one_hot([1] * 5, 2), logits) == 3 / 5
    ids, dense = np.array([[0, 0, 0, 1, 255]]), logits.T[None]
    for from_logits in (True, False):
        loss = cls(6.0, from_logits=from_logits, axis=1, ignore_class=255)
        assert kc.inactive_share(loss, ids, dense) == 2 / 4
        assert np.isnan(kc.inactive_share(loss, ids * 0 + 255, dense))


def test_a_regulariser_of_rounding_is_inactive():
    added = np.array([0.0, 1e-8, -1e-8, 1e-3, -1e-3], "float32")

    def loss(labels, logits):
        return cross_entropy(labels, logits) + ops.convert_to_tensor(added)

    ids, logits = sample(n=5, scale=1.0)
    assert kc.inactive_share(loss, ids, logits) == 3 / 5
    assert kc.inactive_share(loss, softmax(logits), logits) == 3 / 5


def test_the_ranking_condition_is_the_stored_one(goldens):
    logits, active = goldens["in/A/logits"], goldens["in/A/rank_cond"]
    record = goldens["in/A/rank_history"]
    rank = partial(kc.correctness_ranking, logits, record)
    np.testing.assert_array_equal(array(rank(condition="ranking")) > 0, active)
    assert ((array(rank(condition="margin")) > 0) != active).any()
    # Where the order is right, ACLS is cross entropy.
    loss = partial(kc.acls, condition="none", active=active)
    inactive = kc.inactive_share(loss, goldens["in/A/labels"], logits)
    assert inactive == 1 - active.mean() == 38 / 64


def test_prediction_flips_by_hand():
    before = np.array([[[3, 1, 2], [0, 1, 1]], [[1, 1, 0], [0, 0, 4]]])
    after = np.array([[[3, 1, 4], [0, 1, 2]], [[1, 0, 0], [0, 0, 5]]])
    assert kc.prediction_flips(before, after) == 2 / 4
    tensor = ops.convert_to_tensor(before)
    assert kc.prediction_flips(tensor, softmax(before / 3.0)) == 0
    for other in (after[:1], after[..., :2]):
        with pytest.raises(ValueError, match="same shape"):
            kc.prediction_flips(before, other)
    with pytest.raises(ValueError, match="two classes or more"):
        kc.prediction_flips([[1.0]], [[-1.0]])


def test_shares_of_gammas_by_hand():
    p = np.array([[0.1, 0.15, 0.3], [0.6, 0.9, 0.19]])
    probs, ids = np.stack([1 - p, p], axis=1), np.ones((2, 3))
    rows = [[0.2, 5], [0.5, 3], [1, 2]]
    loss = partial(kc.FLSD, axis=1, ignore_class=255)
    close(loss().gamma_shares(ids, probs), [3 / 6, 3 / 6], 1e-6)
    shares = partial(loss(rows).gamma_shares, y_pred=probs)
    close(shares(ids), [3 / 6, 1 / 6, 2 / 6], 1e-6)
    close(shares(ids, sample_weight=[3, 1]), [7 / 12, 3 / 12, 2 / 12], 1e-6)
    ids[0] = 255
    close(shares(ids), [1 / 3, 0, 2 / 3], 1e-6)
    close(shares(ids, sample_weight=[1, 0]), [0, 0, 0])
    logits = loss(rows, from_logits=True)
    close(logits.gamma_shares(ids, np.log(probs)), shares(ids), 1e-6)
    # Of the true class, not of the predicted one.
    close(shares(ids * (ids == 255)), [1 / 3, 1 / 3, 1 / 3], 1e-6)


def test_one_output_and_labels_that_do_not_fit_are_refused():
    for function in (kc.effective_labels, kc.inactive_share):
        with pytest.raises(ValueError, match="two classes or more"):
            function(CASES["MbLS"].make(), [0, 1], [[1.0], [2.0]])
        with pytest.raises(ValueError, match="`labels`"):
            function(CASES["MbLS"].make(), [0, 1, 1], [[1.0, 0.0]] * 2)


def test_a_name_is_no_loss_and_ids_are_labels_for_losses_of_keras():
    logits = np.array([[1.0, 3.0, 0.0], [0.0, -2.0, 1.0]])
    for function in (
        kc.effective_labels,
        kc.inactive_share,
        kc.regularizer_histogram,
        kc.per_sample_losses,
    ):
        for loss in ("mse", "categorical_crossentropy", 3, None):
            with pytest.raises(TypeError, match="`loss` must be a loss such"):
                function(loss, [0, 1], logits)
    for loss in (
        keras.losses.MeanSquaredError(),
        keras.losses.KLDivergence(),
        keras.losses.CategoricalCrossentropy(from_logits=True),
    ):
        ids, rows = (
            array(kc.effective_labels(loss, labels, logits).labels)
            for labels in ([0, 1], np.eye(3)[:2])
        )
        np.testing.assert_array_equal(ids, rows)


def test_a_loss_without_class_axis_is_refused():
    with pytest.raises(ValueError, match="class axis"):
        kc.effective_labels(keras.losses.Dice(), [0, 1], np.eye(2))


def test_labels_are_cast_for_losses_of_others():
    class Squares(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return ops.sum(ops.square(y_true - y_pred), axis=-1)

    logits = np.array([[1.0, 3.0], [0.0, -2.0]])
    for labels in (np.eye(2, dtype=int), np.eye(2)):
        got = effective(Squares(), labels, logits)[0]
        close(got, softmax(logits) - 2 * (logits - labels), TOLERANCE)


def test_nothing_is_smoothed_where_an_ignored_sample_is_nan():
    loss = kc.MbLS(0.5, from_logits=True, ignore_class=255)
    logits = np.array([[np.nan, 1.0, 2.0], [3.0, 1.0, 0.0]])
    read = effective(loss, [255, 1], logits)
    for smoothing in read[1:]:
        np.testing.assert_array_equal(smoothing[0], 0)
        assert np.all(np.isfinite(smoothing[1]))
    close(read[1][1:], effective(loss, [1], logits[1:])[1])


def test_inactive_is_told_from_saturated_and_from_small():
    logits = np.array([[100.0, 0.0, 0.0]], "float32")
    loss = kc.MbLS(margin=1000.0)
    assert kc.inactive_share(loss, [1], logits) == 1.0
    # One hinge of 0.02 of 200 classes beside a cross entropy of 12.
    logits = np.zeros((1, 200), "float32")
    logits[0, :2] = 12.0, -0.02
    loss = kc.MbLS(margin=12.0, from_logits=True)
    assert kc.inactive_share(loss, [1], logits) == 0.0

"""What a loss adds to cross entropy: forms of input, shares, histograms."""

from functools import partial

import keras
import numpy as np
import pytest
from cases import BACKEND, array, one_hot, sample, softmax
from effective import DTYPE, TOLERANCE, close, cross_entropy, effective, same
from keras import ops
from loss_batches import CASES, HERE, REPRESENTATIVES, compiled

import keras_calib as kc
from keras_calib.backend.keras_internals import set_keras_mask


def inactive_share(*args):
    return kc.losses.regularizer_histogram(*args).inactive_share


# Forms of losses, labels and logits.


def test_axis_is_followed_and_reduction_is_not():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 5, 3, 4)) * 4
    ids, last = rng.integers(5, size=(2, 3, 4)), np.moveaxis(logits, 1, -1)
    for case in REPRESENTATIVES:
        labels = case.labels(ids)
        q, lowered, raised = effective(case.make(), labels, last)
        moved = np.moveaxis(q, -1, 1), lowered, np.moveaxis(raised, -1, 1)
        for reduction in ("sum_over_batch_size", "sum", "none"):
            loss = case.make(axis=1, reduction=reduction)
            same(effective(loss, labels, logits), moved)


def test_an_ignored_label_is_as_if_it_were_not_there():
    ids, logits = sample(dtype="float64")
    ids[::3] = 255
    kept = ids != 255
    for case in REPRESENTATIVES:
        labels = case.labels(ids)
        read = effective(case.make(ignore_class=255), labels, logits)
        expected = effective(case.make(), labels[kept], logits[kept])
        same([x[kept] for x in read], expected)
        q, lowered, raised = (x[~kept] for x in read)
        close(q, softmax(logits[~kept]))
        assert (lowered == 0).all() and (raised == 0).all()


@pytest.mark.portable
def test_probabilities_and_compiled_code_give_the_same():
    ids, logits = sample(dtype="float64", scale=2.0)
    for case in REPRESENTATIVES[:1] if BACKEND == "jax" else REPRESENTATIVES:
        labels, loss = case.labels(ids), case.make()
        expected = effective(loss, labels, logits)
        other = case.make(from_logits=False)
        same(effective(other, labels, logits), expected)

        @compiled
        def read(labels, z, loss=loss):
            return [*vars(kc.losses.effective_labels(loss, labels, z)).values()]

        z = ops.convert_to_tensor(logits.astype(DTYPE))
        same(read(ops.convert_to_tensor(labels), z), expected)


def test_a_function_gets_labels_as_rows():
    ids, logits = sample(dtype="float64")
    expected = effective(CASES["MbLS"].make(), ids, logits)
    function = partial(kc.losses.mbls, margin=2.0, strength=0.3)
    for labels in (ids, ids[:, None], one_hot(ids, 5).astype(DTYPE)):
        same(effective(function, labels, logits), expected)
    soft = softmax(logits[::-1]).astype(DTYPE)
    q, lowered, _ = effective(cross_entropy, soft, logits)
    close(q, soft)
    close(lowered, np.zeros(len(ids)))


def test_losses_of_keras_are_taken():
    ids, logits = sample(scale=1.0)
    hard = one_hot(ids, 5)
    for from_logits in (True, False):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits)
        close(effective(loss, ids, logits)[0], hard, 1e-5)
        loss = keras.losses.CategoricalCrossentropy(from_logits, 0.3)
        close(effective(loss, hard, logits)[0], 0.7 * hard + 0.06, 1e-5)


def test_objectness_is_read_as_its_targets():
    ids, logits = sample()
    labels = CASES["AdaptiveLabelSmoothing"].labels(ids)
    loss = kc.AdaptiveLabelSmoothing(0.75, from_logits=True)
    q, _, _ = effective(loss, labels, logits)
    close(q, kc.losses.objectness_targets(ids, labels[:, 1], 5, 0.75))


# Shares of samples.


def test_a_loss_without_its_regulariser_is_inactive():
    ids, logits = sample()
    for case in HERE:
        labels = case.labels(ids)
        assert inactive_share(case.make(), labels, logits) < 1, case
        if case.limit is not None:
            loss = case.cls(from_logits=True, **case.limit)
            assert inactive_share(loss, labels, logits) == 1, case


@pytest.mark.portable
def test_inactive_shares_by_hand():
    # Distances of 5, 6, 7, 9 and 2.
    logits = np.array([[5, 0], [0, 6], [7, 0], [0, 9], [2, 0]], "float32")
    ids, dense = np.array([[0, 0, 0, 1, 255]]), logits.T[None]
    for cls in (kc.MbLS, kc.ACLS):
        loss = cls(6.0, from_logits=True)
        assert inactive_share(loss, [0, 0, 0, 1, 1], logits) == 3 / 5
        assert inactive_share(loss, one_hot([1] * 5, 2), logits) == 3 / 5
        for from_logits in (True, False):
            loss = cls(6.0, from_logits=from_logits, axis=1, ignore_class=255)
            assert inactive_share(loss, ids, dense) == 2 / 4
            assert np.isnan(inactive_share(loss, ids * 0 + 255, dense))


@pytest.mark.portable
def test_a_keras_mask_leaves_out_padding():
    logits = np.array([[[9.0, 0, 0], [1.0, 0, 0], [9.0, 0, 0]]], "float32")
    tensor = keras.ops.convert_to_tensor(logits)
    set_keras_mask(tensor, keras.ops.convert_to_tensor([[True, True, False]]))
    loss = kc.MbLS(margin=5.0, from_logits=True)
    labels = np.zeros((1, 3), "longdouble")
    assert inactive_share(loss, labels, logits) == pytest.approx(1 / 3)
    assert inactive_share(loss, labels, tensor) == 0.5


def test_regularizer_histogram_by_hand():
    # Hinges of 3 - 1, 0, and 99 - 1, of two classes, at a strength of 0.02.
    logits = np.array([[3, 0], [1, 0], [0, 99], [np.nan, 0]], "float32")
    loss = kc.MbLS(1.0, strength=0.02, from_logits=True, ignore_class=9)
    drawn = kc.losses.regularizer_histogram(
        loss, [0, 0, 1, 9], logits, num_bins=4
    )
    np.testing.assert_array_equal(drawn.counts, [2, 0, 0, 1])
    np.testing.assert_allclose(drawn.edges, [0, 0.025, 0.05, 0.075, 0.1])
    assert drawn.num_inactive == 1 and drawn.inactive_share == 1 / 3
    none = kc.losses.regularizer_histogram(loss, [9, 9, 9, 9], logits)
    assert none.counts.sum() == 0 and np.isnan(none.inactive_share)
    # A focal loss is below cross entropy, or equal to it where p is 0.
    focal = kc.FocalLoss(from_logits=True)
    logits = np.array([[5, 0], [0, 8], [7, 0], [0, 30]], "float32")
    drawn = kc.losses.regularizer_histogram(
        focal, [1, 0, 1, 0], logits, num_bins=2, limits=(-0.1, 0.1)
    )
    np.testing.assert_array_equal(drawn.counts, [3, 1])
    for highest in (0.1, 0.0):
        with pytest.raises(ValueError, match=r"`limits\[1\]` must be > 0.1"):
            limits = 0.1, highest
            kc.losses.regularizer_histogram(
                focal, [0] * 4, logits, limits=limits
            )


def test_a_mask_of_a_histogram_is_read_as_all_masks_are():
    ids, logits = sample(n=6, scale=1.0)
    loss = kc.MbLS(margin=0.0, from_logits=True)
    mask = [1, 0, 0, 1, 0, 0]
    rows = [0, 3]
    expected = kc.losses.regularizer_histogram(
        loss, ids[rows], logits[rows]
    ).counts
    for given in (mask, np.array(mask), np.array(mask, "float32")):
        drawn = kc.losses.regularizer_histogram(loss, ids, logits, mask=given)
        np.testing.assert_array_equal(drawn.counts, expected)
    for wrong in ([2, 0, 0, 1, 0, 0], [1, 0], [mask]):
        with pytest.raises(ValueError, match="`mask` must"):
            kc.losses.regularizer_histogram(loss, ids, logits, mask=wrong)


def test_a_regulariser_of_rounding_is_inactive():
    added = np.array([0.0, 1e-8, -1e-8, 1e-3, -1e-3], "float32")

    def loss(labels, logits):
        return cross_entropy(labels, logits) + ops.convert_to_tensor(added)

    ids, logits = sample(n=5, scale=1.0)
    assert inactive_share(loss, ids, logits) == 3 / 5
    assert inactive_share(loss, softmax(logits), logits) == 3 / 5


def test_the_ranking_condition_is_the_stored_one(goldens):
    logits, active = goldens["in/A/logits"], goldens["in/A/rank_cond"]
    record = goldens["in/A/rank_history"]
    rank = partial(kc.losses.correctness_ranking, logits, record)
    np.testing.assert_array_equal(array(rank(condition="ranking")) > 0, active)
    assert ((array(rank(condition="margin")) > 0) != active).any()
    # Where the order is right, ACLS is cross entropy.
    loss = partial(kc.losses.acls, condition="none", active=active)
    inactive = inactive_share(loss, goldens["in/A/labels"], logits)
    assert inactive == 1 - active.mean() == 38 / 64


def test_one_output_and_labels_that_do_not_fit_are_refused():
    for function in (kc.losses.effective_labels, inactive_share):
        with pytest.raises(ValueError, match="two classes or more"):
            function(CASES["MbLS"].make(), [0, 1], [[1.0], [2.0]])
        with pytest.raises(ValueError, match="`labels`"):
            function(CASES["MbLS"].make(), [0, 1, 1], [[1.0, 0.0]] * 2)


def test_a_name_is_no_loss_and_ids_are_labels_for_losses_of_keras():
    logits = np.array([[1.0, 3.0, 0.0], [0.0, -2.0, 1.0]])
    for function in (
        kc.losses.effective_labels,
        kc.losses.regularizer_histogram,
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
            array(kc.losses.effective_labels(loss, labels, logits).labels)
            for labels in ([0, 1], np.eye(3)[:2])
        )
        np.testing.assert_array_equal(ids, rows)


def test_a_loss_without_class_axis_is_refused():
    with pytest.raises(ValueError, match="class axis"):
        kc.losses.effective_labels(keras.losses.Dice(), [0, 1], np.eye(2))


@pytest.mark.portable
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
    assert inactive_share(loss, [1], logits) == 1.0
    # One hinge of 0.02 of 200 classes beside a cross entropy of 12.
    logits = np.zeros((1, 200), "float32")
    logits[0, :2] = 12.0, -0.02
    loss = kc.MbLS(margin=12.0, from_logits=True)
    assert inactive_share(loss, [1], logits) == 0.0

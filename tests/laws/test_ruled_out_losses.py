"""Classes that a logit of -inf rules out have no part in a loss."""

import keras
import numpy as np
import pytest
from cases import BACKEND, array, one_hot
from keras import ops
from loss_batches import (
    CASES,
    HERE,
    K,
    agree,
    compiled,
    eager,
    losses_and_gradient,
)

import keras_calib as kc
from keras_calib.backend.gradients import value_and_grad

pytestmark = pytest.mark.portable

not_on_jax = pytest.mark.skipif(
    BACKEND == "jax", reason="the same code there, compiled for seconds"
)
LOW = float(np.finfo("float32").min)
# Losses with a term of each class, or of the batch.
ON_EVERY_CLASS = [
    CASES[name]
    for name in (
        "ACLS",
        "AdaptiveLabelSmoothing",
        "CPC",
        "CRLMargin",
        "LabelSmoothing-others",
        "MbLS",
        "MMCE-weighted",
        "UniformityPenalty",
    )
]
# Means over all classes, whatever rows rule out.
OF_ALL_CLASSES = (kc.MDCA, kc.L1ACE)


def batch(num_ruled_out, n=12, seed=0):
    """Ids and logits, ids and logits of the classes that are left, a mask.

    Each row rules out classes of its own, marked False in the mask.
    """
    rng = np.random.default_rng(seed)
    logits = (3.0 * rng.normal(size=(n, K))).astype("float32")
    ids = rng.integers(K, size=n)
    order = rng.random(logits.shape)
    # The label is not ruled out.
    order[np.arange(n), ids] = 2.0
    left = np.sort(order.argsort(axis=1)[:, num_ruled_out:], axis=1)
    kept = np.zeros(logits.shape, bool)
    np.put_along_axis(kept, left, True, axis=1)
    places = np.argmax(left == ids[:, None], axis=1)
    reduced = np.take_along_axis(logits, left, axis=1)
    return ids, np.where(kept, logits, -np.inf), places, reduced, kept


def check_reduced(case, num_ruled_out, low=-np.inf):
    ids, logits, places, reduced, kept = batch(num_ruled_out)
    logits = np.where(kept, logits, low).astype("float32")
    losses, gradient = eager(case, ids, logits)
    expected, slopes = eager(case, places, reduced)
    agree(case, losses, expected)
    assert (gradient[~kept] == 0.0).all(), case
    agree(case, gradient[kept].reshape(slopes.shape), slopes)


def test_a_row_has_the_loss_of_the_classes_that_it_leaves():
    for case in ON_EVERY_CLASS:
        if case in HERE:
            check_reduced(case, 2)


@pytest.mark.slow
@pytest.mark.parametrize("low", [-np.inf, -1e30, LOW])
def test_so_has_each_form_of_a_loss_however_classes_are_ruled_out(low):
    for case in HERE:
        if case.cls not in OF_ALL_CLASSES:
            for count in (1, 4):
                check_reduced(case, count, low)


@not_on_jax
def test_means_over_all_classes_shrink_by_their_share():
    ids, logits, *_ = batch(0)
    ids, logits = ids % 4, logits[:, :4]
    wide = np.concatenate([logits, np.full((12, 2), -np.inf, "f")], axis=1)
    for one in (
        kc.losses.mdca,
        lambda y, z: kc.losses.l1_ace(y, z, by="batch"),
    ):
        value, gradient = value_and_grad(
            lambda z, one=one: one(one_hot(ids, z.shape[-1]), z),
            ops.convert_to_tensor(wide),
        )
        expected, slopes = value_and_grad(
            lambda z, one=one: one(one_hot(ids, 4), z),
            ops.convert_to_tensor(logits),
        )
        np.testing.assert_allclose(1.5 * float(value), float(expected), 1e-6)
        gradient = array(gradient)
        np.testing.assert_allclose(
            1.5 * gradient[:, :4], array(slopes), atol=1e-7
        )
        assert not gradient[:, 4:].any()


def test_an_ordinary_low_logit_gives_finite_losses_and_gradients():
    for case in ON_EVERY_CLASS:
        if case in HERE:
            ids, logits, _, _, kept = batch(2)
            logits = np.where(kept, logits, -1e9).astype("float32")
            found = eager(case, ids, logits)
            assert all(np.isfinite(x).all() for x in found), case


def test_a_label_that_is_ruled_out_is_refused_and_nan_in_compiled_code():
    _, logits, *_ = batch(2, n=4)
    ids = logits.argmin(axis=-1)
    nowhere = np.full((4, K), -np.inf, "float32")
    for name in ("LabelSmoothing", "MMCE-unweighted"):
        case = CASES[name]
        for labels, z in (
            (ids, logits),
            (one_hot(ids, K).astype("float32"), logits),
            (ids, nowhere),
        ):
            with pytest.raises(ValueError, match="rule out the class of a l"):
                case.make()(labels, z)
            # A sample that is left out may have any.
            if labels.ndim == 1:
                ignored = case.make(ignore_class=9)(np.full(4, 9), z)
                assert float(ignored) == 0.0, name
            if BACKEND == "torch" or labels.ndim > 1 or case.batch_coupled:
                continue
            run = compiled(losses_and_gradient(case.make(reduction="none")))
            given = map(ops.convert_to_tensor, (labels, z))
            losses, _ = run(*given, None)
            assert np.isnan(array(losses)).all(), name
    # A function of a loss of your own cannot tell otherwise.
    assert np.isnan(array(kc.losses.mbls(one_hot(ids, K), logits))).all()
    for term in (kc.losses.mmce, kc.losses.mdca, kc.losses.dca):
        assert np.isnan(float(term(one_hot(ids, K), logits))), term


@not_on_jax
def test_a_small_share_of_a_soft_label_on_a_class_that_is_ruled_out_is_0():
    logits = np.array([[2.0, 0.0, -np.inf]], "float32")
    soft = np.array([[0.9, 0.095, 0.005]], "float32")
    loss = kc.MbLS(from_logits=True)
    value, gradient = value_and_grad(
        lambda z: loss(soft, z), ops.convert_to_tensor(logits)
    )
    z = logits[0, :2] - np.log(np.exp(logits[0, :2]).sum())
    np.testing.assert_allclose(float(value), -(soft[0, :2] @ z), rtol=1e-6)
    assert array(gradient)[0, 2] == 0.0
    with pytest.raises(ValueError, match="rule out the class of a label"):
        loss(np.array([[0.9, 0.05, 0.05]], "float32"), logits)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="JAX has no other compiler")
def test_compilers_agree_on_classes_that_are_ruled_out():
    ids, logits, *_ = batch(2)
    given = [*map(ops.convert_to_tensor, (ids, logits))]
    for name in ("ACLS", "CPC"):
        case = CASES[name]
        run = losses_and_gradient(case.make(reduction="none"))
        expected = [array(x) for x in run(*given, None)]
        found = compiled(run, jit_compile=name == "CPC")(*given, None)
        for x, y in zip(found, expected, strict=True):
            agree(case, array(x), y)


def test_half_precision_rules_out_too():
    ids, logits, *_ = batch(2)
    half = ops.cast(logits, "float16")
    loss = kc.ACLS(from_logits=True, reduction="none")
    expected = loss(ids, array(ops.cast(half, "float32")))
    np.testing.assert_array_equal(array(loss(ids, half)), array(expected))
    assert keras.backend.standardize_dtype(half.dtype) == "float16"
    metric = kc.NLL(from_logits=True)
    metric.update_state(ids, array(half))
    assert np.isfinite(float(metric.result()))


@not_on_jax
def test_neighbours_give_nothing_to_classes_that_a_pixel_rules_out():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1, 4, 4, 3)).astype("float32")
    wide = np.concatenate([logits, np.full((1, 4, 4, 1), -np.inf, "f")], -1)
    ids = rng.integers(3, size=(1, 4, 4))
    for loss in (kc.SVLS(from_logits=True), kc.NACL(from_logits=True)):
        value, gradient = value_and_grad(
            lambda z, loss=loss: loss(ids, z), ops.convert_to_tensor(wide)
        )
        expected, slopes = value_and_grad(
            lambda z, loss=loss: loss(ids, z), ops.convert_to_tensor(logits)
        )
        np.testing.assert_allclose(float(value), float(expected), rtol=1e-6)
        gradient = array(gradient)
        np.testing.assert_allclose(gradient[..., :3], array(slopes), atol=1e-7)
        assert not gradient[..., 3].any()
        # One pixel rules out the class of its neighbours.
        own, alone = np.where(ids == 2, 1, ids), wide.copy()
        own[0, 1, 1], alone[0, 1, 1, 1] = 0, -np.inf
        assert np.isfinite(float(loss(own, alone)))

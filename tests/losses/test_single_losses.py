"""What the papers say of one loss, and where its digits are at risk."""

import numpy as np
import pytest
from cases import array, one_hot, sample, softmax
from keras import ops
from loss_batches import FIRST, K

import keras_calib as kc
from keras_calib.backend.gradients import value_and_grad
from keras_calib.losses.closed_forms import reads_ids

N = 480


def random_rows(scale=3.0, k=K):
    """One-hot labels and logits `(N, k)` in float64."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(N, k)) * scale
    return one_hot(rng.integers(k, size=N), k), logits


# What a formula is given.


def test_a_formula_gets_rows_unless_it_is_marked_to_read_ids():
    ids, logits = sample()
    given = []

    def formula(labels, logits):
        given.append(labels)
        return logits[..., 0]

    kc.losses.PerSampleLoss(formula, from_logits=True)(ids, logits)
    np.testing.assert_array_equal(array(given[-1]), one_hot(ids, 5))
    kc.losses.PerSampleLoss(reads_ids(formula), from_logits=True)(ids, logits)
    np.testing.assert_array_equal(array(given[-1].ids), ids)
    unmarked = [c.cls for c in FIRST if not hasattr(c.make().fn, "reads_ids")]
    assert not unmarked


# Label smoothing.


@pytest.mark.portable
def test_label_smoothing_pulls_on_a_logit_by_its_label_alone():
    """Eq. 15 of Xia et al.: alpha (label - 1 / K), whatever is predicted."""
    _, logits = random_rows()
    soft = softmax(random_rows(scale=1.0)[1][::-1])
    slopes = []
    for alpha in (0.0, 0.3):
        _, slope = value_and_grad(
            lambda z, a=alpha: ops.sum(
                kc.losses.label_smoothing(soft, z, alpha=a)
            ),
            ops.convert_to_tensor(logits),
        )
        slopes.append(array(slope))
    pull = slopes[1] - slopes[0]
    np.testing.assert_allclose(pull, 0.3 * (soft - 1 / K), atol=1e-6)


# CaPE.


@pytest.mark.portable
def test_a_target_of_the_second_class_is_one_of_both():
    """Of two classes, and with logits of which one is ruled out."""
    _, logits = random_rows(scale=30.0, k=2)
    logits[0], logits[1] = (-np.inf, 3.0), (3.0, -np.inf)
    targets = np.r_[1.0, 0.0, np.linspace(0, 1, N - 2)]
    for target, c in ((targets, 1), (1 - targets, 0)):
        value, gradient = value_and_grad(
            lambda z, q=target, c=c: ops.sum(
                kc.losses.cape_loss(q, z, classes=np.full(N, c))
            ),
            ops.convert_to_tensor(logits),
        )
        expected, slope = value_and_grad(
            lambda z: ops.sum(kc.losses.cape_loss(targets, z)),
            ops.convert_to_tensor(logits),
        )
        np.testing.assert_allclose(float(value), float(expected), rtol=1e-6)
        np.testing.assert_allclose(array(gradient), array(slope), atol=1e-6)
    with pytest.raises(ValueError, match="`classes` must have the shape"):
        kc.losses.cape_loss(targets, logits, classes=[0, 1])


# Focal losses.


@pytest.mark.portable
def test_a_probability_on_a_threshold_of_flsd_is_not_below_it():
    for threshold, gamma in ((0.5, 3.0), (0.501, 5.0)):
        loss = kc.FLSD([[threshold, 5.0], [1.0, 3.0]], from_logits=True)
        value = float(loss(np.array([0]), np.zeros((1, 2), "float32")))
        np.testing.assert_allclose(value, 0.5**gamma * np.log(2), rtol=1e-6)


@pytest.mark.portable
def test_focal_gradient_is_right_where_the_prediction_is_sure():
    ids, logits = sample(n=1024, num_classes=10, scale=1.0)
    logits[:, 0] = 4.0 + np.linspace(10, 20, len(ids))
    labels = one_hot(ids * 0, 10)
    p = softmax(logits.astype("float64"))
    q = p[:, 1:].sum(axis=-1)
    for gamma in (0.1, 0.25, 0.5, 0.75, 1.5, 3.0):
        _, gradient = value_and_grad(
            lambda z, g=gamma: ops.sum(
                kc.losses.focal_loss(labels, z, gamma=g)
            ),
            logits,
        )
        rate = gamma * q ** (gamma - 1) * p[:, 0] * np.log1p(-q) - q**gamma
        expected = rate[:, None] * (labels - p)
        expected[:, 0] = rate * q
        error = np.abs(array(gradient) - expected).max()
        assert error <= 1e-6 * np.abs(rate).max(), gamma


# Smoothing and entropy.


def test_both_conventions_of_label_smoothing_are_one_family():
    ids, logits = sample()
    over_all = kc.LabelSmoothing(0.1 * 5 / 4, from_logits=True)
    over_others = kc.LabelSmoothing(0.1, spread="others", from_logits=True)
    expected = float(over_others(ids, logits))
    np.testing.assert_allclose(float(over_all(ids, logits)), expected, 1e-6)


@pytest.mark.portable
def test_half_precision_losses_keep_large_class_ids():
    # bfloat16 cannot hold 257, float16 not 2049.
    logits = np.zeros((2, 3000), "float32")
    logits[0, 257] = logits[1, 2049] = 20.0
    for dtype in ("bfloat16", "float16", "mixed_float16"):
        loss = kc.LabelSmoothing(0.0, from_logits=True, dtype=dtype)
        assert float(loss([257, 2049], logits)) < 1e-4
        assert loss.get_config()["dtype"] == "float32"


def test_label_relaxation_is_smooth_at_its_boundary():
    # p_y on both sides of 0.9.
    gap = np.log(9.0) + np.array([-1e-2, 1e-2])
    logits = np.stack([gap, np.zeros(2)], axis=-1).astype("float32")
    loss = kc.LabelRelaxation(0.1, from_logits=True, reduction="none")
    outside, inside = array(loss([0, 0], logits))
    assert 0 < outside < 1e-5
    assert inside == 0


def test_label_relaxation_is_convex_in_the_prediction():
    rng = np.random.default_rng(0)
    one, other = rng.dirichlet(np.full(K, 0.3), size=(2, N)) + 1e-6
    labels = one_hot(rng.integers(K, size=N), K)
    share = rng.uniform(size=(N, 1))
    for alpha in (0.01, 0.1, 0.5):

        def loss(probs, alpha=alpha):
            losses = kc.losses.label_relaxation(
                labels, np.log(probs), alpha=alpha
            )
            return array(losses).astype("float64")

        between = loss(share * one + (1 - share) * other)
        chord = share[:, 0] * loss(one) + (1 - share[:, 0]) * loss(other)
        assert (between <= chord + 1e-5 * (1 + chord)).all()


def test_label_relaxation_sees_only_the_true_probability():
    rng = np.random.default_rng(0)
    labels = one_hot(np.zeros(N, int), K)
    true = rng.uniform(0.01, 0.99, size=(N, 1))
    losses = []
    for _ in range(2):
        wrong = rng.dirichlet(np.ones(K - 1), size=N) * (1 - true)
        probs = np.concatenate([true, wrong], axis=-1)
        logits = np.log(np.maximum(probs, 1e-12))
        losses.append(
            array(kc.losses.label_relaxation(labels, logits, alpha=0.2))
        )
    np.testing.assert_allclose(*losses, rtol=1e-5, atol=1e-6)


def test_a_threshold_is_in_the_units_of_its_entropy():
    # A mean over the classes is compared with the threshold as it is.
    labels, logits = random_rows(1.0)
    p = softmax(logits)
    entropy = -np.sum(p * np.log(p), axis=-1)
    plain = -np.sum(labels * np.log(p), axis=-1)
    for reduction, of_classes in (("sum", entropy), ("mean", entropy / K)):
        threshold = np.median(of_classes)
        losses = kc.losses.confidence_penalty(
            labels,
            logits,
            beta=0.5,
            class_reduction=reduction,
            threshold=threshold,
        )
        expected = plain + 0.5 * np.maximum(threshold - of_classes, 0.0)
        np.testing.assert_allclose(array(losses), expected, rtol=1e-5)


# Margins.


def test_mbls_lies_between_the_bounds_of_its_proposition_1():
    for scale in (0.1, 3.0, 30.0):
        labels, logits = random_rows(scale)
        plain = array(kc.losses.label_smoothing(labels, logits, alpha=0.0))
        losses = array(kc.losses.mbls(labels, logits, margin=0.0, strength=1.0))
        # Divergence of uniform from the prediction, up to the constant log K.
        divergence = -np.log(softmax(logits)).mean(axis=-1)
        slack = 1e-4 * (1 + divergence)
        assert (losses - plain <= divergence + slack).all()
        assert (losses - plain >= divergence - np.log(K) - slack).all()


@pytest.mark.portable
def test_a_negative_ignored_id_works_with_unsigned_labels():
    labels = np.array([0, 1], "uint8")
    logits = np.array([[1.0, 0.0], [0.0, 2.0]], "float32")
    loss = kc.MbLS(from_logits=True, ignore_class=-1)
    plain = kc.MbLS(from_logits=True)
    assert float(loss(labels, logits)) == float(plain(labels, logits))


# Pairs.


def test_exclusion_of_cpc_is_least_where_wrong_classes_are_equal():
    for k in (3, 4, 7):
        _, logits = random_rows(k=k)
        labels = one_hot(np.zeros(N, int), k)
        even = logits.copy()
        even[:, 1:] = logits[:, 1:].mean(axis=-1, keepdims=True)

        def exclusion(z, labels=labels):
            both = kc.losses.cpc(labels, z, lambda1=0.0, lambda2=1.0)
            return array(both) - array(
                kc.losses.label_smoothing(labels, z, alpha=0.0)
            )

        np.testing.assert_allclose(exclusion(even), np.log(2) / 2, rtol=1e-4)
        assert (exclusion(logits) >= np.log(2) / 2 - 1e-5).all()


@pytest.mark.portable
def test_the_record_of_a_ranking_is_no_variable_of_the_loss():
    logits = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")

    def value(scale):
        record = scale * ops.convert_to_tensor([0, 0.2, 0.9, 0.4, 0.6, 1.0])
        # `scale` itself, as a gradient of nothing is no number.
        return ops.sum(kc.losses.correctness_ranking(logits, record)) + scale

    _, gradient = value_and_grad(value, ops.convert_to_tensor(1.0))
    assert float(gradient) == 1.0


def test_objectness_of_an_ignored_label_may_be_anything():
    loss = kc.AdaptiveLabelSmoothing(from_logits=True, ignore_class=255)
    _, logits = sample(n=4)
    pairs = np.array([[0, 0.5], [255, np.nan], [255, -1.0], [2, 0.25]])
    expected = float(loss(pairs[[0, 3]], logits[[0, 3]]))
    assert abs(float(loss(pairs, logits)) - expected) < 1e-6
    metric = kc.NLL(from_logits=True, ignore_class=255, objectness=True)
    metric.update_state(pairs, logits)
    assert np.isfinite(float(metric.result()))

"""MMCE is its sum over pairs, whatever ties, widths, weights and sizes."""

from functools import partial

import numpy as np
import pytest
from cases import BACKEND, HAS_FLOAT64, array, one_hot, sample, softmax
from loss_batches import CASES, K

import keras_calib as kc
from keras_calib.backend.gradients import value_and_grad

VARIANTS = ("unweighted", "unweighted_sqrt", "weighted", "weighted_released")


def plain_mmce(confidence, right, weight, width, variant):
    """The double sum over pairs, as the formulas say it."""
    kernel = np.exp(-np.abs(confidence[:, None] - confidence) / width)
    wrong = 1 - right
    u, v = weight * right * (1 - confidence), weight * wrong * confidence
    a, b, c = u @ kernel @ u, v @ kernel @ v, u @ kernel @ v
    m, n = (weight * right).sum(), (weight * wrong).sum()
    if variant.startswith("unweighted"):
        square = (a + b - 2 * c) / (m + n) ** 2
        return square if variant == "unweighted" else np.sqrt(square + 1e-10)
    released = variant == "weighted_released"
    if released and not m * n:
        return 0.0
    square = sum(
        part / count / (count + 1e-5 if released else 1)
        for part, count in ((a, m * m), (b, n * n), (-2 * c, m * n))
        if count
    )
    return np.sqrt(square + 1e-10)


@pytest.mark.portable
@pytest.mark.parametrize("variant", VARIANTS)
def test_mmce_equals_the_sum_over_all_pairs(variant):
    dtype, tolerance = ("float64", 1e-9) if HAS_FLOAT64 else ("float32", 1e-4)
    for seed in range(0, 24, 2 if HAS_FLOAT64 else 4):
        rng = np.random.default_rng(seed)
        # Few kinds of rows: many confidences tie.
        kinds, width = 1 + seed, (0.02, 0.4, 3.0)[seed % 3]
        logits = rng.normal(size=(kinds, K)) * 3
        logits = logits[rng.integers(kinds, size=24)].astype(dtype)
        top = logits.argmax(axis=-1)
        labels = np.where(rng.integers(2, size=24), top, rng.integers(K))
        weight = rng.integers(0, 3, size=24) * rng.uniform(0.5, 2.0)
        value = kc.losses.mmce(
            one_hot(labels, K).astype(dtype),
            logits,
            kernel_width=width,
            variant=variant,
            sample_weight=weight.astype(dtype),
        )
        right = (top == labels).astype("float64")
        confidence = softmax(logits.astype("float64")).max(axis=-1)
        expected = plain_mmce(confidence, right, weight, width, variant)
        error = abs(float(value) - expected)
        assert error <= tolerance * expected + 1e-6, seed


@pytest.mark.portable
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
def test_terms_of_the_batch_depend_on_ratios_of_weights(scale):
    ids, logits = sample(n=40, num_classes=3)
    rows, weight = one_hot(ids, 3), np.linspace(0.5, 1.0, 40)
    terms = [partial(kc.losses.mmce, variant=name) for name in VARIANTS[:3]]
    for term in (
        *terms,
        kc.losses.mdca,
        kc.losses.dca,
        partial(kc.losses.l1_ace, by="batch"),
    ):
        scaled = (scale * weight).astype("float32")
        found = float(term(rows, logits, sample_weight=scaled))
        expected = float(term(rows, logits, sample_weight=weight))
        assert found == pytest.approx(expected, rel=1e-4), term


@pytest.mark.portable
def test_terms_of_the_batch_refuse_what_is_no_weight_or_are_nan():
    ids, logits = sample(n=40, num_classes=3)
    weight = np.ones(40, "float32")
    for term in (
        kc.losses.mmce,
        kc.losses.mdca,
        kc.losses.dca,
        partial(kc.losses.l1_ace, by="batch"),
    ):
        given = partial(term, one_hot(ids, 3), logits)
        for wrong in (np.ma.masked_equal(weight, 1), ["a"] * 40):
            with pytest.raises(TypeError, match="`sample_weight` must"):
                given(sample_weight=wrong)
        with pytest.raises(ValueError, match="`sample_weight` must have the"):
            given(sample_weight=weight[1:])
        for wrong in (-1.0, np.nan, np.inf):
            assert np.isnan(float(given(sample_weight=[wrong, *weight[1:]])))


def test_narrow_kernels_of_mmce_are_exact_in_large_batches():
    for n, width in ((513, 0.01), (2048, 0.03), (2048, 0.4)):
        ids, logits = sample(n=n, num_classes=3, scale=1.5)
        top = softmax(logits.astype("float64")).max(axis=-1)
        error = (logits.argmax(axis=-1) == ids) - top
        kernel = np.exp(-np.abs(top[:, None] - top) / width)
        expected = error @ kernel @ error / n**2
        value = kc.losses.mmce(one_hot(ids, 3), logits, kernel_width=width)
        np.testing.assert_allclose(float(value), expected, rtol=1e-5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="needs unknown shapes")
def test_an_empty_share_of_a_batch_gives_zero():
    """Some replica's, in the last step of an epoch."""
    import tensorflow as tf

    for name in ("MMCE-weighted", "MDCA-focal"):
        loss = CASES[name].make()

        # As `fit` compiles it.
        @tf.function(
            input_signature=[tf.TensorSpec([None, 3])] * 2, autograph=False
        )
        def run(labels, logits, loss=loss):
            return value_and_grad(lambda z: loss(labels, z), logits)

        value, gradient = run(np.zeros((0, 3)), np.zeros((0, 3)))
        assert float(value) == 0.0, name
        assert array(gradient).shape == (0, 3)

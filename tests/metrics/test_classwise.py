"""Classwise errors of many classes in few bins."""

import itertools

import numpy as np
import pytest
from cases import BACKEND, sample, softmax
from streams import updated_compiled

import keras_calib as kc

pytestmark = pytest.mark.portable


def test_more_classes_than_bins_are_summed_as_the_exact_function_does():
    labels, logits = sample(n=200, num_classes=30)
    probs = softmax(logits).astype("float32")
    weight = np.random.default_rng(0).uniform(0.5, 1.0, 200)
    for given in (None, weight):
        metric = kc.ClasswiseECE(num_classes=30, num_bins=5)
        metric.update_state(labels, probs, given)
        expected = kc.functional.classwise_ece(
            labels, probs, num_bins=5, sample_weight=given
        )
        assert float(metric.result()) == pytest.approx(expected, rel=1e-5)
        if BACKEND == "torch":
            continue
        batch = [labels.astype("int32"), probs]
        batch += [] if given is None else [given.astype("float32")]
        for _ in updated_compiled(metric, *batch, jit=[False]):
            assert float(metric.result()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the same sums there")
@pytest.mark.parametrize("count", [300, 5000])
def test_bins_of_equal_mass_are_near_those_of_the_function(count):
    largest = {}
    for classes, seed in itertools.product((3, 10), range(3)):
        rng = np.random.default_rng(seed)
        powers = np.exp(rng.normal(size=(count, classes)) * 0.5)
        probs = powers / powers.sum(-1, keepdims=True)
        drawn = probs.cumsum(-1) > rng.random((count, 1))
        labels = drawn.argmax(-1)
        probs = probs.astype("float32")
        exact = kc.functional.classwise_ece(labels, probs, edges="mass")
        for resolution in (512, 8192):
            metric = kc.ClasswiseECE(
                classes, edges="mass", resolution=resolution
            )
            metric.update_state(labels, probs)
            error = abs(float(metric.result()) / exact - 1.0)
            largest[resolution] = max(largest.get(resolution, 0.0), error)
    assert largest[8192] < 0.035 and 0.05 < largest[512] < 0.175


def test_bins_of_equal_mass_tell_apart_what_is_almost_0():
    # All errors have the smallest p, which fill other bins than p = 0.5.
    p = np.repeat([1e-20, 1e-9, 0.5], [50, 40, 10]).astype("float32")
    labels, probs = np.arange(100) < 10, np.stack([1 - p, p], axis=-1)
    metric = kc.ClasswiseECE(2, 5, edges="mass")
    metric.update_state(labels, probs)
    expected = kc.functional.classwise_ece(
        labels, probs, num_bins=5, edges="mass"
    )
    assert expected > 0.135
    assert float(metric.result()) == pytest.approx(expected, rel=1e-5)

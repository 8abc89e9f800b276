"""Fits of many samples: blocks, memory and threads."""

import tracemalloc

import numpy as np
import pytest
from cases import array
from threadpoolctl import threadpool_info, threadpool_limits

import keras_calib as kc


def random_logits(n, num_classes, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, num_classes)) * 2).astype("float32")


def drawn(logits, seed=0):
    """Labels of softmax(logits)."""
    rng = np.random.default_rng(seed)
    return (logits + rng.gumbel(size=logits.shape)).argmax(-1)


def assert_no_second_copy(calibrator, count):
    logits = random_logits(count, 12).reshape(-1, 50, 80, 12)
    labels = drawn(logits / 2)
    labels[:, :3] = 255
    tracemalloc.start()
    try:
        calibrator.fit(labels, logits, ignore_class=255)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Blocks of a megabyte or few, and masks of a byte for each pixel.
    assert peak < 0.6 * logits.nbytes, calibrator


def test_a_fit_makes_no_second_copy_of_the_logits():
    assert_no_second_copy(kc.TemperatureScaling(), 400_000)


@pytest.mark.slow
def test_no_fit_makes_a_second_copy_of_the_logits():
    for calibrator in (
        kc.TemperatureScaling(objective="ece", grid=[1, 2, 3]),
        kc.VectorScaling(),
        kc.MatrixScaling(),
        kc.EnsembleTemperatureScaling(),
    ):
        assert_no_second_copy(calibrator, 1_000_000)


def test_a_fit_leaves_products_of_matrices_on_their_thread():
    def threads():
        found = [
            library["num_threads"]
            for library in threadpool_info()
            if library["user_api"] == "blas"
        ]
        assert found
        return set(found)

    logits = random_logits(400, 4)

    class Watched(kc.MatrixScaling):
        def fit_samples(self, samples):
            self.seen = threads()
            super().fit_samples(samples)

    with threadpool_limits(limits=2, user_api="blas"):
        before = threads()
        assert Watched().fit(drawn(logits), logits).seen == {1}
        assert threads() == before


def test_whole_blocks_can_be_ignored():
    logits = random_logits(60_000, 4)
    labels = drawn(logits / 2)
    labels[:30_000] = 255
    for cls in (kc.VectorScaling, kc.HistogramBinning):
        found = cls().fit(labels, logits, ignore_class=255)
        expected = cls().fit(labels[30_000:], logits[30_000:])
        np.testing.assert_allclose(
            array(found(logits[:9])), array(expected(logits[:9])), atol=1e-5
        )

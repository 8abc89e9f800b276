"""The smooth calibration error, by direct integration."""

import numpy as np
from made_up_probs import made_up

from keras_calib.functional.calibration_errors import smooth_ece


def loop_smooth(confidence, residual, tolerance=1e-6):
    """The width at which the integral of the smoothed residual equals it."""
    t = (np.arange(1000) + 0.5) / 1000

    def error(width):
        density = 0.0
        for k in range(-int(5 * width) - 2, int(5 * width) + 3):
            for mirrored in (2 * k + confidence, 2 * k - confidence):
                z = (t[:, None] - mirrored) / width
                density = density + np.exp(-0.5 * z * z) @ residual
        return np.abs(density).mean() / (width * np.sqrt(2 * np.pi))

    low, high = 0.0, 1.0
    while high - low > tolerance:
        middle = (low + high) / 2
        wide = error(middle) <= middle
        low, high = (low, middle) if wide else (middle, high)
    return (low + high) / 2


def test_smooth_error_equals_direct_integration():
    for seed, sharpness in ((0, 2.0), (1, 0.5)):
        labels, probs, weight = made_up(seed, 60, sharpness=sharpness)
        confidence = probs.max(-1)
        residual = confidence - (probs.argmax(-1) == labels)
        expected = loop_smooth(confidence, residual / len(labels))
        assert abs(smooth_ece(labels, probs) - expected) < 3e-6
        expected = loop_smooth(confidence, residual * weight / weight.sum())
        value = smooth_ece(labels, probs, sample_weight=weight)
        assert abs(value - expected) < 3e-6


def test_smooth_error_of_the_documented_example():
    expected = loop_smooth(np.array([0.8, 0.6]), np.array([-0.1, 0.3]))
    value = smooth_ece([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    assert abs(value - expected) < 3e-6


def test_smooth_error_of_one_confidence_is_its_gap():
    # However the kernel is shaped, it keeps the mass.
    for confidence in (0.5, 0.77, 1.0):
        probs = np.tile([confidence, 1 - confidence], (50, 1))
        labels = np.arange(50) % 5 == 0
        gap = abs(confidence - 0.8)
        assert abs(smooth_ece(labels.astype(int), probs) - gap) < 1e-6

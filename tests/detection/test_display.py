"""The display of detections holds the right arrays and draws them."""

import matplotlib as mpl
import numpy as np
import pytest
from scored_boxes import records

import keras_calib as kc

mpl.use("Agg")


def test_bins_of_the_display_are_those_of_the_errors():
    found = records(0.1)
    display = kc.detection.DetectionReliabilityDisplay(found, num_bins=8)
    exact = kc.detection.detection_ece(found, num_bins=8)
    assert display.detection_ece == exact.value
    bins = np.ceil(found.confidence * 8).astype(int) - 1
    count = np.bincount(bins, minlength=8)
    gaps = np.abs(display.precision - display.confidence)
    assert np.average(gaps, weights=count) == pytest.approx(exact.value)
    gaps = np.abs(display.overlap - display.confidence)
    assert np.average(gaps, weights=count) == pytest.approx(
        display.localization_aware_ece
    )
    np.testing.assert_allclose(display.shares.sum(axis=1), 1.0)


def test_the_display_draws_both_panels():
    display = kc.detection.DetectionReliabilityDisplay(
        records(), name="net"
    ).plot()
    assert "net" in display.axes_[0].get_title()
    assert len(display.axes_[0].lines) == 3
    assert display.axes_[1].images[0].get_array().shape == (10, 10)
    mpl.pyplot.close(display.figure_)

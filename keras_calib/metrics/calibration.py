"""Calibration errors of the predicted class."""

from typing import Any

import keras
import numpy as np

from keras_calib.bins import BinSummary
from keras_calib.bins import BinSums
from keras_calib.bins import expected_error
from keras_calib.checks import check_integer
from keras_calib.metrics.base import StreamingMetric
from keras_calib.score_histogram import HistogramSummary
from keras_calib.score_histogram import aece_bounds
from keras_calib.score_histogram import aece_of_cells

__all__ = ["AECE", "ECE"]

# What float32 leaves undecided in a value of [0, 1].
_ROUNDING = 1e-6


@keras.saving.register_keras_serializable(package="keras_calib")
class ECE(StreamingMetric):
    """Expected calibration error, streaming and exact.

    ECE = sum_b (n_b / N) |mean confidence_b - accuracy_b|, over equal-width
    bins (lo, hi] of the confidence of the predicted class. Equals the
    function `ece` on all predictions at once to about 1e-7, at any number of
    predictions.

    Args:
        num_bins: Number of bins, at least 1. Defaults to `15`.
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness` and
            `dtype` of `StreamingMetric`.

    Returns:
        From `result()`: a scalar in [0, 1]; 0 before any sample.

    Raises:
        ValueError: If `num_bins` is below 1.

    Example:

    >>> metric = ECE(num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        eq. 3, https://arxiv.org/abs/1706.04599
    """

    def __init__(self, num_bins: int = 15, *, name: str = "ece", **kwargs: Any):
        check_integer("num_bins", num_bins, 1)
        super().__init__(BinSummary(num_bins), name=name, **kwargs)
        self.num_bins = num_bins

    def bins(self) -> BinSums:
        """What the bins hold so far: float64 NumPy arrays `(num_bins,)`."""
        sums, _ = self._exact_sums()
        return self.summary.read(sums)

    def get_config(self):
        return {"num_bins": self.num_bins, **super().get_config()}

    def _value(self, sums, whole):
        return expected_error(self.summary.read(sums))


@keras.saving.register_keras_serializable(package="keras_calib")
class AECE(StreamingMetric):
    """Adaptive ECE, over bins of equal mass, streaming.

    As `ECE`, with the predictions cut by confidence into bins of equal
    weight. Predictions that share a cell of a fine histogram of the
    confidence count as their mean; `bounds()` says what other orders inside
    the cells could change.

    Args:
        num_bins: Number of equal-mass bins, at least 1. Defaults to `15`.
        resolution: Number of bins of the fine histogram. Defaults to `8192`
            (394 kB of state).
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness` and
            `dtype` of `StreamingMetric`.

    Returns:
        From `result()`: a scalar in [0, 1]; 0 before any sample.

    Raises:
        ValueError: If `num_bins` is below 1 or `resolution` below 64.

    Example:

    >>> metric = AECE(num_bins=2)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        Nguyen and O'Connor, Posterior Calibration and Exploratory Analysis
        for NLP Models, EMNLP 2015, https://arxiv.org/abs/1508.05154

    Differs:
        The code behind the published tables leaves out the smallest
        confidence and reports 0 where all confidences tie; the function
        `adaptive_ece(edges="interp")` reproduces it.
    """

    def __init__(
        self,
        num_bins: int = 15,
        *,
        resolution: int = 8192,
        name: str = "aece",
        **kwargs: Any,
    ):
        check_integer("num_bins", num_bins, 1)
        super().__init__(HistogramSummary(resolution), name=name, **kwargs)
        self.num_bins = num_bins
        self.resolution = resolution

    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound over all orders inside the cells.

        They hold for the exact function on the same predictions, with ties
        averaged or in any order. (NaN, NaN) if a prediction was NaN.
        """
        if self._has_nan():
            return float("nan"), float("nan")
        sums, whole = self._exact_sums()
        low, high = aece_bounds(
            self.summary.cells(sums),
            self.summary.lower_confidence(),
            self.num_bins,
            whole,
        )
        return max(0.0, low - _ROUNDING), float(np.minimum(high, 1) + _ROUNDING)

    def get_config(self):
        return {
            "num_bins": self.num_bins,
            "resolution": self.resolution,
            **super().get_config(),
        }

    def _value(self, sums, whole):
        return aece_of_cells(self.summary.cells(sums), self.num_bins, whole)

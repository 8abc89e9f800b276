"""The calibration error of the predicted class, over bins of equal mass."""

from typing import Any

import keras

from keras_calib.formulas.bins import BinSums
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.registry import QUANTITIES
from keras_calib.metrics.states.histogram import HistogramSummary

__all__ = ["AECE"]


@keras.saving.register_keras_serializable(package="keras_calib")
class AECE(StreamingMetric):
    """Adaptive ECE, over bins of equal mass, streaming.

    As `ECE`, in [0, 1], with the predictions cut by confidence into bins of
    equal weight. Predictions that share a cell of a fine histogram of the
    confidence count as their mean. `bounds()` says what other orders inside
    the cells could change.

    Args:
        num_bins: Number of equal-mass bins, at least 1. Defaults to `15`.
        edges: `"mass"`: every sample counts. `"interp"`: the edges of the
            papers' code, for parity with published tables: the smallest
            confidence is left out. Where confidences tie at an edge that
            code takes the tied samples into one bin, which a histogram
            cannot see; `bounds()` allows for it.
        resolution: Number of bins of the fine histogram. Defaults to `8192`
            (394 kB of state).
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness`,
            `pixels_per_image`, `seed` and `dtype` of `StreamingMetric`.

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

    _quantity = "aece"

    def __init__(
        self,
        num_bins: int = 15,
        *,
        edges: str = "mass",
        resolution: int = 8192,
        name: str | None = None,
        **kwargs: Any,
    ):
        check_integer("num_bins", num_bins, 1)
        check_in("edges", edges, ("mass", "interp"))
        super().__init__(HistogramSummary(resolution), name=name, **kwargs)
        self._keep(num_bins=num_bins, edges=edges, resolution=resolution)

    def bins(self) -> BinSums:
        """Sums of the equal-mass bins so far: NumPy arrays `(num_bins,)`."""
        aece: Any = QUANTITIES["aece"]
        return aece.bins(self._read(), self)

    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound over all orders inside the cells.

        They hold for the exact function on the same predictions, with ties
        averaged or in any order.
        """
        return QUANTITIES["aece"].bounds(self._read(), self)

"""Calibration error of the predicted class, over bins of equal mass."""

from typing import Any

import keras

from keras_calib.formulas.bins import BinSums
from keras_calib.inputs.checks import check_in, check_integer
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.registry import QUANTITIES
from keras_calib.metrics.states.histogram import HistogramSummary

__all__ = ["AECE"]


@keras.saving.register_keras_serializable(package="keras_calib")
class AECE(StreamingMetric):
    """Adaptive ECE over bins of equal mass, streaming.

    Use it in place of `ECE` when most confidences are close to 1: its bins lie
    where the predictions are.

    AECE = sum_b (n_b / N) |mean confidence_b - accuracy_b|, in [0, 1]

    The bins b hold equal weights, in order of the confidence. A fine histogram
    stands for the confidences: each prediction gets the mean of its cell.
    `bounds()` limits the error that this can make.

    Args:
        num_bins: Number of equal-mass bins, at least 1. Defaults to `15`.
        edges: `"mass"` uses every sample. `"interp"` uses the edges of the
            papers' code, for parity with published tables, and leaves out the
            smallest confidence. That code also moves samples that tie at an
            edge into one bin. A histogram cannot do so, but `bounds()` allows
            for it. Weights that are not whole numbers, which are repeats, all
            count as samples of the mean weight, sum w^2 / sum w.
        resolution: Number of bins of the fine histogram. Defaults to `8192`,
            which takes 394 kB.
        mode: `"top_label"` for the confidence of the predicted class,
            `"binary"` for the probability of the second of two, as in `ECE`.
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness`,
            `pixels_per_image`, `seed`, `refresh_every`, `jit_compile`,
            `labels` and `dtype` of `StreamingMetric`.

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
        confidence, and reports 0 if all confidences tie. The function
        `adaptive_ece(edges="interp")` reproduces it.
    """

    _quantity = "aece"

    def __init__(
        self,
        num_bins: int = 15,
        *,
        edges: str = "mass",
        resolution: int = 8192,
        mode: str = "top_label",
        name: str | None = None,
        **kwargs: Any,
    ):
        check_integer("num_bins", num_bins, 1)
        check_in("edges", edges, ("mass", "interp"))
        summary = HistogramSummary(resolution, mode=mode)
        super().__init__(summary, name=name, **kwargs)
        self._keep(num_bins=num_bins, edges=edges, resolution=resolution)

    def bins(self) -> BinSums:
        """Return the sums of the bins so far, float64 arrays `(num_bins,)`."""
        aece: Any = QUANTITIES["aece"]
        return aece.bins(self._read(), self)

    def bounds(self) -> tuple[float, float]:
        """Return certified lower and upper bounds of the exact value.

        The function `adaptive_ece` of the same predictions lies between them,
        with ties averaged or in any order.
        """
        return QUANTITIES["aece"].bounds(self._read(), self)

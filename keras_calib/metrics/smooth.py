"""Calibration error, smoothed by a kernel in place of bins."""

from typing import Any

import keras

from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.states.histogram import HistogramSummary

__all__ = ["SmoothECE"]


@keras.saving.register_keras_serializable(package="keras_calib")
class SmoothECE(StreamingMetric):
    """Smooth calibration error, without bins, streaming.

    Use it when the result must not depend on a choice of bins. `result()` takes
    some milliseconds.

    A reflected Gaussian kernel of width s smooths the gaps of the confidences,
    and E(s) is the integral of their absolute values. The value, in [0, 1], is
    the s with E(s) = s. Predictions in one cell of a fine histogram get its
    mean confidence, so values below about 0.001 cannot be distinguished.

    Args:
        resolution: Number of bins of the fine histogram, at least 64.
        mode: `"top_label"` for the confidence of the predicted class,
            `"binary"` for the probability of the second of two classes, as in
            `ECE`.
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness`,
            `pixels_per_image`, `seed`, `refresh_every`, `jit_compile`,
            `labels` and `dtype` of `StreamingMetric`.

    Example:

    >>> metric = SmoothECE()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 3)
    0.208

    Reference:
        Blasiok and Nakkiran, Smooth ECE: Principled Reliability Diagrams via
        Kernel Smoothing, ICLR 2024, https://arxiv.org/abs/2309.12236
    """

    _quantity = "smooth_ece"

    def __init__(
        self,
        *,
        resolution: int = 8192,
        mode: str = "top_label",
        name: str | None = None,
        **kwargs: Any,
    ):
        summary = HistogramSummary(resolution, mode=mode)
        super().__init__(summary, name=name, **kwargs)
        self._keep(resolution=resolution)

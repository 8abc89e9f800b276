"""Cumulative calibration error, without bins."""

from typing import Any

import keras

from keras_calib.formulas.cumulative import CumulativeDifferences, check_kind
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.registry import QUANTITIES
from keras_calib.metrics.states.histogram import HistogramSummary

__all__ = ["ECCE"]


@keras.saving.register_keras_serializable(package="keras_calib")
class ECCE(StreamingMetric):
    """Estimated cumulative calibration error (ECCE), streaming.

    Use it when the result must not depend on a choice of bins. With C_0 = 0
    and

    C_k = (1/n) sum over the k least confident of (confidence_i - correct_i)

    ECCE-R, or Kuiper calibration error, is max_k C_k - min_k C_k. ECCE-MAD, or
    Kolmogorov-Smirnov calibration error (KS error), is max_k |C_k|. Both lie in
    [0, 1]. The function `ecce` says more of them, and `calibration_test` has
    the p-value.

    The cells of a fine histogram stand for groups of equal confidence. The
    exact value is at most higher, as far as `bounds()` says. Noise raises the
    value, so `interval()` may lie below it.

    Args:
        kind: `"range"` for ECCE-R, `"maximum"` for ECCE-MAD.
        resolution: Number of bins of the fine histogram. Defaults to `8192`,
            which takes 394 kB.
        mode: `"top_label"` for the confidence of the predicted class,
            `"binary"` for the probability of the second of two classes, as in
            `ECE`.
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness`,
            `pixels_per_image`, `seed`, `refresh_every`, `jit_compile` and
            `dtype` of `StreamingMetric`.

    Example:

    >>> metric = ECCE()
    >>> metric.update_state([1, 0], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        Arrieta-Ibarra, Gujral, Tannen, Tygert and Xu, Metrics of Calibration
        for Probabilistic Predictions, JMLR 2022,
        https://jmlr.org/papers/v23/22-0658.html; KS error: Gupta et al.,
        Calibration of Neural Networks using Splines, ICLR 2021,
        https://arxiv.org/abs/2006.12800
    """

    _quantity = "ecce"

    def __init__(
        self,
        kind: str = "range",
        *,
        resolution: int = 8192,
        mode: str = "top_label",
        name: str | None = None,
        **kwargs: Any,
    ):
        check_kind(kind)
        summary = HistogramSummary(resolution, mode=mode)
        super().__init__(summary, name=name, **kwargs)
        self._keep(kind=kind, resolution=resolution)
        if kind == "maximum":
            self._quantity = "ecce_maximum"

    def differences(self) -> CumulativeDifferences:
        """Return the cumulative differences so far, by filled cell."""
        return self._read().differences

    def bounds(self) -> tuple[float, float]:
        """Return certified lower and upper bounds of the exact value."""
        return QUANTITIES[self._quantity].bounds(self._read(), self)

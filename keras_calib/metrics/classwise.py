"""Calibration error of the probabilities of all classes."""

from typing import Any

import keras

from keras_calib.backend.errors import value_error
from keras_calib.formulas.bins import CLOSED
from keras_calib.inputs.checks import check_in, check_integer, check_share
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.states.classwise import (
    ClassBinSummary,
    ClassHistogramSummary,
)

__all__ = ["ClasswiseECE"]


@keras.saving.register_keras_serializable(package="keras_calib")
class ClasswiseECE(StreamingMetric):
    """Mean over the classes of the calibration error of p_k, streaming.

    Use it when decisions depend on the probabilities of all classes, not only
    on that of the predicted class.

    (1 / K) sum_k sum_b (n_kb / N) |mean p_k in bin b - share of class k|

    The bins b are those of p_k. The value is at most 2 / K. With
    `edges="width"` it equals that of the function `classwise_ece`. A class
    that is ruled out in all rows is one of the K, with an error of 0.

    Args:
        num_classes: Number of classes K, at least 2.
        num_bins: Number of bins of each class. Defaults to `15`.
        edges: `"width"` for bins of equal width, exact. `"mass"` for bins of
            equal mass, from a histogram of each class.
        threshold: Probabilities below it are left out; 1e-37 leaves out 0.
            Defaults to `0`.
        closed: `"right"` for bins (lo, hi], with 0 in the first. `"left"` for
            [lo, hi), with 1 in the last. Only for `edges="width"`.
        resolution: Number of bins of each histogram for `edges="mass"`, at
            least 64. Defaults to `512`, with which the value can miss that of
            the function by a sixth; with 8192 by a thirtieth.
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness`,
            `pixels_per_image`, `seed`, `refresh_every`, `jit_compile`,
            `labels` and `dtype` of `StreamingMetric`.

    Raises:
        ValueError: On update, if predictions have another number of classes.

    Example:

    >>> metric = ClasswiseECE(num_classes=2, num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        Nixon et al., Measuring Calibration in Deep Learning, CVPR Workshops
        2019, https://arxiv.org/abs/1904.01685
    """

    mode = "min"

    def __init__(
        self,
        num_classes: int,
        num_bins: int = 15,
        *,
        edges: str = "width",
        threshold: float = 0.0,
        closed: str = "right",
        resolution: int = 512,
        name: str = "classwise_ece",
        **kwargs: Any,
    ):
        check_integer("num_classes", num_classes, 2)
        check_integer("num_bins", num_bins, 1)
        check_in("edges", edges, ("width", "mass"))
        check_share("threshold", threshold)
        check_in("closed", closed, CLOSED)
        check_integer("resolution", resolution, 64)
        if edges == "mass" and closed != "right":
            raise value_error('`closed` needs `edges="width"`', closed=closed)
        if edges == "width":
            summary = ClassBinSummary(num_classes, num_bins, threshold, closed)
        else:
            summary = ClassHistogramSummary(num_classes, resolution, threshold)
        super().__init__(summary, name=name, **kwargs)
        self._keep(
            num_classes=num_classes,
            num_bins=num_bins,
            edges=edges,
            threshold=threshold,
            closed=closed,
            resolution=resolution,
        )

    def _value(self, readings):
        if self.edges == "width":
            return self.summary.error(readings.sums)
        return self.summary.error(
            readings.sums, self.num_bins, readings.frequency_weights
        )

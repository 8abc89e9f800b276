"""How well the confidence ranks right before wrong."""

from typing import Any

import keras
import numpy as np

from keras_calib.metrics.base import StreamingMetric
from keras_calib.ranked_groups import aurc_bounds_of_groups
from keras_calib.ranked_groups import aurc_of_groups
from keras_calib.score_histogram import HistogramSummary

__all__ = ["AURC"]

# What float32 leaves undecided, relative to the value.
_ROUNDING = 1e-6


@keras.saving.register_keras_serializable(package="keras_calib")
class AURC(StreamingMetric):
    """Area under the risk-coverage curve, streaming.

    AURC = (1/N) sum_k (errors among the k surest) / k, ranked by the
    probability of the predicted class. Lower is better; a random ranking
    gives the error rate. Predictions that share a cell of a fine histogram
    of the log-odds count as tied, corrected for how right and wrong ones
    tend to lie in it; `bounds()` is what other orders inside the cells could
    give.

    Args:
        resolution: Number of bins of the histogram. `8192`, the default, is
            within 1e-6 of the exact value, relative, for most data (394 kB
            of state); `2048` costs less at each step of training.
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness` and
            `dtype` of `StreamingMetric`.

    Returns:
        From `result()`: a scalar in [0, 1]; papers print it times 1000. 0
        before any sample.

    Raises:
        ValueError: If `resolution` is below 64.

    Example:

    >>> metric = AURC()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.25

    Reference:
        Geifman et al., Bias-Reduced Uncertainty Estimation for Deep Neural
        Classifiers, ICLR 2019, https://arxiv.org/abs/1805.08206

    Differs:
        The released code sorts tied samples as they come; here ties count
        as the mean over their orders.
    """

    def __init__(
        self, *, resolution: int = 8192, name: str = "aurc", **kwargs: Any
    ):
        super().__init__(HistogramSummary(resolution), name=name, **kwargs)
        self.resolution = resolution

    def bounds(self) -> tuple[float, float]:
        """AURC with the best and the worst order inside every cell.

        The exact AURC of the same predictions lies between them.
        (NaN, NaN) if a prediction was NaN.
        """
        if self._has_nan():
            return float("nan"), float("nan")
        sums, whole = self._exact_sums()
        best, worst = aurc_bounds_of_groups(
            self.summary.ranked(sums), np.asarray(whole)
        )
        return float(best) * (1 - _ROUNDING), float(worst) * (1 + _ROUNDING)

    def get_config(self):
        return {"resolution": self.resolution, **super().get_config()}

    def _value(self, sums, whole):
        return aurc_of_groups(self.summary.ranked(sums), whole)

"""Calibration errors of the predicted class, over bins of equal width."""

from typing import Any

import keras

from keras_calib.formulas.binned_errors import NORMS
from keras_calib.formulas.binned_errors import Decomposition
from keras_calib.formulas.binned_errors import decompose
from keras_calib.formulas.bins import BinSums
from keras_calib.inputs.checks import check_in
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.states.bins import BinSummary

__all__ = [
    "AverageCalibrationError",
    "BinnedMetric",
    "DebiasedCalibrationError",
    "ECE",
    "MCE",
    "OverconfidenceError",
    "RMSCE",
]


class BinnedMetric(StreamingMetric):
    """What is computed from the sums of equal-width bins."""

    def __init__(
        self,
        num_bins: int = 15,
        *,
        closed: str = "right",
        name: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(BinSummary(num_bins, closed), name=name, **kwargs)
        self._keep(num_bins=num_bins, closed=closed)

    def bins(self) -> BinSums:
        """What the bins hold so far: float64 NumPy arrays `(num_bins,)`."""
        return self._read().bins

    def decomposition(self) -> Decomposition:
        """Calibration and refinement of the squared error of the bins.

        Returns:
            Two floats that add up to the mean of (confidence_b - correct)^2:
            `calibration` sum_b w_b gap_b^2 and `refinement`
            sum_b w_b accuracy_b (1 - accuracy_b).
        """
        return decompose(self.bins(), "brier")


@keras.saving.register_keras_serializable(package="keras_calib")
class ECE(BinnedMetric):
    """Expected calibration error, streaming and exact.

    ECE = sum_b (n_b / N) |mean confidence_b - accuracy_b|, in [0, 1], over
    equal-width bins of the confidence of the predicted class. It equals the
    function `ece` to about 1e-7, at any number of predictions.

    Args:
        num_bins: Number of bins, at least 1. Defaults to `15`.
        norm: `"l1"` as above; `"l2"` as `RMSCE`; `"max"` as `MCE`.
        closed: `"right"` for bins (lo, hi], the first with its lower edge;
            `"left"` for [lo, hi), the last with its upper edge.
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness`,
            `pixels_per_image`, `seed` and `dtype` of `StreamingMetric`.

    Example:

    >>> metric = ECE(num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        eq. 3, https://arxiv.org/abs/1706.04599
    """

    _quantity = "ece"

    def __init__(
        self,
        num_bins: int = 15,
        *,
        norm: str = "l1",
        closed: str = "right",
        name: str | None = None,
        **kwargs: Any,
    ):
        check_in("norm", norm, NORMS)
        super().__init__(num_bins, closed=closed, name=name, **kwargs)
        self._keep(norm=norm)
        self._quantity = {"l1": "ece", "l2": "rmsce", "max": "mce"}[norm]


@keras.saving.register_keras_serializable(package="keras_calib")
class MCE(BinnedMetric):
    """Maximum calibration error, streaming and exact.

    MCE = max_b |mean confidence_b - accuracy_b|, in [0, 1], over the bins
    that are not empty. A bin with a single sample can make it large: look at
    `interval()`.

    Args:
        num_bins, closed, name, **kwargs: As in `ECE`.

    Example:

    >>> metric = MCE(num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.6

    Reference:
        Naeini et al., Obtaining Well Calibrated Probabilities Using Bayesian
        Binning, AAAI 2015, https://ojs.aaai.org/index.php/AAAI/article/view/9602
    """

    _quantity = "mce"


@keras.saving.register_keras_serializable(package="keras_calib")
class RMSCE(BinnedMetric):
    """Root mean squared calibration error, streaming and exact.

    RMSCE = sqrt(sum_b (n_b / N) (mean confidence_b - accuracy_b)^2), in
    [0, 1].

    Args:
        num_bins, closed, name, **kwargs: As in `ECE`.

    Example:

    >>> metric = RMSCE(num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4472

    Reference:
        Hendrycks et al., Deep Anomaly Detection with Outlier Exposure, ICLR
        2019, https://arxiv.org/abs/1812.04606

    Differs:
        The reference bins by equal mass; these bins are of equal width.
    """

    _quantity = "rmsce"


@keras.saving.register_keras_serializable(package="keras_calib")
class DebiasedCalibrationError(BinnedMetric):
    """L2 calibration error without the bias of noise, streaming and exact.

    sqrt(max(0, sum_b (n_b / N) (gap_b^2 - acc_b (1 - acc_b) / (n_b - 1)))),
    in [0, 1]: `RMSCE` without what the randomness of labels adds to squared
    gaps. For a calibrated network it is 0 about as often as not.

    Args:
        num_bins, closed, name, **kwargs: As in `ECE`.

    Example:

    >>> metric = DebiasedCalibrationError(num_bins=1)
    >>> metric.update_state([0, 0, 0], [[0.6, 0.4], [0.5, 0.5], [0.7, 0.3]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        Kumar et al., Verified Uncertainty Calibration, NeurIPS 2019,
        https://arxiv.org/abs/1909.10155
    """

    _quantity = "debiased_calibration_error"


@keras.saving.register_keras_serializable(package="keras_calib")
class AverageCalibrationError(BinnedMetric):
    """Mean |gap| of the bins, each counting alike, streaming and exact.

    (1 / B) sum_b |mean confidence_b - accuracy_b|, in [0, 1], over the B bins
    that are not empty. Two other errors are called "ACE" too: that over bins
    of equal mass of the predicted class, here `AECE`, and that of every
    class, here `ClasswiseECE(edges="mass")`.

    Args:
        num_bins, closed, name, **kwargs: As in `ECE`.

    Example:

    >>> metric = AverageCalibrationError(num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        Neumann et al., Relaxed Softmax: Efficient Confidence Auto-Calibration
        for Safe Pedestrian Detection, NeurIPS workshop 2018,
        https://openreview.net/forum?id=S1lG7aTnqQ
    """

    _quantity = "average_calibration_error"


@keras.saving.register_keras_serializable(package="keras_calib")
class OverconfidenceError(BinnedMetric):
    """Overconfidence error, streaming and exact.

    OE = sum_b (n_b / N) confidence_b max(confidence_b - accuracy_b, 0), in
    [0, 1].

    Args:
        num_bins, closed, name, **kwargs: As in `ECE`.

    Example:

    >>> metric = OverconfidenceError(num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.18

    Reference:
        Thulasidasan et al., On Mixup Training: Improved Calibration and
        Predictive Uncertainty for Deep Neural Networks, NeurIPS 2019,
        https://arxiv.org/abs/1905.11001
    """

    _quantity = "overconfidence_error"

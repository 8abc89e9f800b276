"""Calibration errors of the predicted class, over bins of equal width."""

from typing import Any

import keras

from keras_calib.formulas.binned_errors import NORMS, Decomposition, decompose
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
    """A metric of the sums of equal-width bins of the confidence."""

    def __init__(
        self,
        num_bins: int = 15,
        *,
        closed: str = "right",
        mode: str = "top_label",
        name: str | None = None,
        **kwargs: Any,
    ):
        summary = BinSummary(num_bins, closed, mode)
        super().__init__(summary, name=name, **kwargs)
        self._keep(num_bins=num_bins, closed=closed)

    def bins(self) -> BinSums:
        """Return the sums of the bins so far, float64 arrays `(num_bins,)`."""
        return self._read().bins

    def decomposition(self) -> Decomposition:
        """Split the squared error of the bins into calibration and refinement.

        Use it to see how much of the error a calibrator can remove.

        Returns:
            Two floats that add up to the mean of (confidence_b - correct)^2.
            `calibration` is sum_b w_b gap_b^2 and `refinement` is
            sum_b w_b accuracy_b (1 - accuracy_b).
        """
        return decompose(self.bins(), "brier")


@keras.saving.register_keras_serializable(package="keras_calib")
class ECE(BinnedMetric):
    """Expected calibration error (ECE), streaming and exact.

    Use it to see how far confidences are from accuracies on average. A model
    that always states the base rate has an ECE of 0, so report the accuracy
    beside it.

    ECE = sum_b (n_b / N) |mean confidence_b - accuracy_b|, in [0, 1]

    The bins b have equal width in the confidence of the predicted class. The
    value equals that of the function `ece` to about 1e-7, at any number of
    predictions. With `mode="binary"` the bins are of the probability of the
    second of two classes, and its frequency takes the place of the accuracy,
    as in torchmetrics' `BinaryCalibrationError`.

    Args:
        num_bins: Number of bins, at least 1. Defaults to `15`.
        norm: `"l1"` is the formula above, `"l2"` that of `RMSCE`, `"max"`
            that of `MCE`.
        closed: `"right"` for bins (lo, hi], where the first also includes its
            lower edge. `"left"` for [lo, hi), where the last also includes
            its upper edge.
        mode: `"top_label"` for the predicted class, `"binary"` for the second
            of two classes. `update_scores` then takes its probabilities, and
            whether the class is the second. The attribute `mode` is that of
            Keras: `"min"`.
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness`,
            `pixels_per_image`, `seed`, `refresh_every`, `jit_compile`,
            `labels` and `dtype` of `StreamingMetric`.

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
        mode: str = "top_label",
        name: str | None = None,
        **kwargs: Any,
    ):
        check_in("norm", norm, NORMS)
        options: Any = {"closed": closed, "mode": mode, "name": name}
        super().__init__(num_bins, **options, **kwargs)
        self._keep(norm=norm)
        self._quantity = {"l1": "ece", "l2": "rmsce", "max": "mce"}[norm]


@keras.saving.register_keras_serializable(package="keras_calib")
class MCE(BinnedMetric):
    """Maximum calibration error (MCE), streaming and exact.

    Use it when the worst bin matters. A bin with a single sample can make it
    large, so look at `interval()`.

    MCE = max_b |mean confidence_b - accuracy_b|, in [0, 1]

    The maximum is over the bins that are not empty.

    Args:
        num_bins, closed, mode, name, **kwargs: Those of `ECE`.

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
    """Root mean squared calibration error (RMSCE), streaming and exact.

    Use it in place of `ECE` when large gaps should weigh more than small ones.

    RMSCE = sqrt(sum_b (n_b / N) (mean confidence_b - accuracy_b)^2), in [0, 1]

    Args:
        num_bins, closed, mode, name, **kwargs: Those of `ECE`.

    Example:

    >>> metric = RMSCE(num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4472

    Reference:
        Hendrycks et al., Deep Anomaly Detection with Outlier Exposure, ICLR
        2019, https://arxiv.org/abs/1812.04606

    Differs:
        The reference uses bins of equal mass, this metric bins of equal width.
    """

    _quantity = "rmsce"


@keras.saving.register_keras_serializable(package="keras_calib")
class DebiasedCalibrationError(BinnedMetric):
    """L2 calibration error without the bias of noise, streaming and exact.

    Use it with few samples per bin, where random labels alone raise `RMSCE`.
    For a calibrated network it is 0 about half of the time.

    sqrt(max(0, sum_b (n_b / N) (gap_b^2 - acc_b (1 - acc_b) / (n_b - 1))))

    The value lies in [0, 1]. The second term is what the randomness of the
    labels adds to the squared gap on average.

    Args:
        num_bins, closed, mode, name, **kwargs: Those of `ECE`.

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
    """Mean |gap| of the bins, all with equal weight, streaming and exact.

    Use it when rare confidences matter as much as common ones. Bins of few
    samples make it noisy, so look at `interval()`.

    (1 / B) sum_b |mean confidence_b - accuracy_b|, in [0, 1]

    The sum is over the B bins that are not empty. Two other errors are called
    "ACE" too. The one over bins of equal mass of the predicted class is `AECE`
    here, that of all classes `ClasswiseECE(edges="mass")`.

    Args:
        num_bins, closed, mode, name, **kwargs: Those of `ECE`.

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
    """Overconfidence error (OE), streaming and exact.

    Use it when only overconfidence does harm: underconfident bins add nothing.

    OE = sum_b (n_b / N) confidence_b max(confidence_b - accuracy_b, 0)

    The value lies in [0, 1]. It has no interval.

    Args:
        num_bins, closed, mode, name, **kwargs: Those of `ECE`.

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

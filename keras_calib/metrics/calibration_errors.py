"""Calibration errors: over bins, smoothed, cumulative, and of all classes."""

from typing import Any, Unpack

import keras

from keras_calib.backend.errors import value_error
from keras_calib.formulas.binned_errors import NORMS, Decomposition, decompose
from keras_calib.formulas.bins import CLOSED, BinSums
from keras_calib.formulas.cumulative import KINDS, CumulativeCurve
from keras_calib.inputs.checks import check_in, check_integer, check_share
from keras_calib.metrics.base import MetricOptions, StreamingMetric
from keras_calib.metrics.registry import QUANTITIES
from keras_calib.metrics.states.classwise import (
    ClassBinSummary,
    ClassHistogramSummary,
)
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.metrics.states.sums import BinSummary


class BinnedMetric(StreamingMetric):
    """A metric of the sums of equal-width bins of the confidence."""

    def __init__(
        self,
        num_bins: int = 15,
        *,
        closed: str = "right",
        mode: str = "top_label",
        **kwargs: Unpack[MetricOptions],
    ):
        super().__init__(BinSummary(num_bins, closed, mode), **kwargs)
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
        return decompose(self.bins(), "brier_score")


class CellOptions(MetricOptions, total=False):
    """Options of metrics of a fine histogram, as `AECE` explains them."""

    resolution: int
    mode: str


class CellMetric(StreamingMetric):
    """A metric of the cells of a fine histogram of the confidence."""

    def __init__(
        self,
        *,
        resolution: int = 8192,
        mode: str = "top_label",
        **kwargs: Unpack[MetricOptions],
    ):
        super().__init__(HistogramSummary(resolution, mode=mode), **kwargs)
        self._keep(resolution=resolution)


@keras.saving.register_keras_serializable(package="keras_calib")
class ECE(BinnedMetric):
    """Expected calibration error (ECE), streaming and exact.

    Use it to see how far confidences are from accuracies on average. A model
    that always states the base rate has an ECE of 0, so report the accuracy
    beside it.

    ECE = sum_b (n_b / N) |mean confidence_b - accuracy_b|, in [0, 1]

    The bins b have equal width in the confidence of the predicted class. The
    value equals that of the function `ece` to about 1e-7, at any number of
    predictions.

    Args:
        num_bins: Number of bins, at least 1. Defaults to `15`.
        norm: `"l1"` is the formula above, `"l2"` that of `RMSCE`, `"max"`
            that of `MCE`.
        closed: As in `ece`.
        mode: As in `ece`. With `"binary"`, `update_scores` takes the
            probabilities of the second class, and whether it is the class.
            The attribute `mode` is that of Keras: `"min"`.
        name: Name of the metric.
        **kwargs: Those of `StreamingMetric`, such as `from_logits`.

    Example:

    >>> metric = ECE(num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        That of the function `ece`.
    """

    _quantity = "ece"

    def __init__(
        self,
        num_bins: int = 15,
        *,
        norm: str = "l1",
        closed: str = "right",
        mode: str = "top_label",
        **kwargs: Unpack[MetricOptions],
    ):
        check_in("norm", norm, NORMS)
        super().__init__(num_bins, closed=closed, mode=mode, **kwargs)
        self._keep(norm=norm)
        self._quantity = {"l1": "ece", "l2": "rmsce", "max": "mce"}[norm]


@keras.saving.register_keras_serializable(package="keras_calib")
class MCE(BinnedMetric):
    """Maximum calibration error (MCE), streaming and exact.

    Use it when the worst bin matters. A bin with a single sample can make it
    large, so look at `interval()`. The function `mce` has the formula.

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
    The function `rmsce` has the formula.

    Args:
        num_bins, closed, mode, name, **kwargs: Those of `ECE`.

    Example:

    >>> metric = RMSCE(num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4472

    Reference:
        That of the function `rmsce`.
    """

    _quantity = "rmsce"


@keras.saving.register_keras_serializable(package="keras_calib")
class DebiasedCalibrationError(BinnedMetric):
    """L2 calibration error without the bias of noise, streaming and exact.

    Use it with few samples per bin, where random labels alone raise `RMSCE`.
    For a calibrated network it is 0 about half of the time. The function
    `debiased_calibration_error` has the formula.

    Args:
        num_bins, closed, mode, name, **kwargs: Those of `ECE`.

    Example:

    >>> metric = DebiasedCalibrationError(num_bins=1)
    >>> metric.update_state([0, 0, 0], [[0.6, 0.4], [0.5, 0.5], [0.7, 0.3]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        That of the function `debiased_calibration_error`.
    """

    _quantity = "debiased_calibration_error"


@keras.saving.register_keras_serializable(package="keras_calib")
class AverageCalibrationError(BinnedMetric):
    """Mean |gap| of the bins, all with equal weight, streaming and exact.

    Use it when rare confidences matter as much as common ones. Bins of few
    samples make it noisy, so look at `interval()`. The function
    `average_calibration_error` has the formula, and the other errors that are
    called "ACE".

    Args:
        num_bins, closed, mode, name, **kwargs: Those of `ECE`.

    Example:

    >>> metric = AverageCalibrationError(num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        That of the function `average_calibration_error`.
    """

    _quantity = "average_calibration_error"


@keras.saving.register_keras_serializable(package="keras_calib")
class OverconfidenceError(BinnedMetric):
    """Overconfidence error (OE), streaming and exact.

    Use it when only overconfidence does harm: underconfident bins add nothing.
    The function `overconfidence_error` has the formula. It has no interval.

    Args:
        num_bins, closed, mode, name, **kwargs: Those of `ECE`.

    Example:

    >>> metric = OverconfidenceError(num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.18

    Reference:
        That of the function `overconfidence_error`.
    """

    _quantity = "overconfidence_error"


@keras.saving.register_keras_serializable(package="keras_calib")
class AECE(CellMetric):
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
            papers' code, as in `aece`. That code also moves samples that tie
            at an edge into one bin. A histogram cannot do so, but `bounds()`
            allows for it. Weights that are not whole numbers, which are
            repeats, all count as samples of the mean weight, sum w^2 / sum w.
        resolution: Number of bins of the fine histogram, at least 64. Defaults
            to `8192`, which takes 394 kB.
        mode, name, **kwargs: Those of `ECE`.

    Example:

    >>> metric = AECE(num_bins=2)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        That of the function `aece`.
    """

    _quantity = "aece"

    def __init__(
        self,
        num_bins: int = 15,
        *,
        edges: str = "mass",
        **kwargs: Unpack[CellOptions],
    ):
        check_integer("num_bins", num_bins, 1)
        check_in("edges", edges, ("mass", "interp"))
        super().__init__(**kwargs)
        self._keep(num_bins=num_bins, edges=edges)

    def bins(self) -> BinSums:
        """Return the sums of the bins so far, float64 arrays `(num_bins,)`."""
        aece: Any = QUANTITIES["aece"]
        return aece.bins(self._read(), self)

    def bounds(self) -> tuple[float, float]:
        """Return certified lower and upper bounds of the exact value.

        The function `aece` of the same predictions lies between them,
        with ties averaged or in any order.
        """
        return QUANTITIES["aece"].bounds(self._read(), self)


@keras.saving.register_keras_serializable(package="keras_calib")
class SmoothECE(CellMetric):
    """Smooth calibration error, without bins, streaming.

    Use it when the result must not depend on a choice of bins. `result()` takes
    some milliseconds. The function `smooth_ece` has the formula. Predictions in
    one cell of a fine histogram get its mean confidence, so values below about
    0.001 cannot be distinguished.

    Args:
        resolution, mode, name, **kwargs: Those of `AECE`.

    Example:

    >>> metric = SmoothECE()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 3)
    0.208

    Reference:
        That of the function `smooth_ece`.
    """

    _quantity = "smooth_ece"


@keras.saving.register_keras_serializable(package="keras_calib")
class ECCE(CellMetric):
    """Estimated cumulative calibration error (ECCE), streaming.

    Use it when the result must not depend on a choice of bins. The function
    `ecce` has the formulas, and `calibration_test` the p-value.

    The cells of a fine histogram stand for groups of equal confidence. The
    exact value is at most higher, as far as `bounds()` says. Noise raises the
    value, so `interval()` may lie below it.

    Args:
        kind: `"range"` for ECCE-R, or Kuiper calibration error; `"maximum"`
            for ECCE-MAD, or Kolmogorov-Smirnov calibration error (KS error).
        resolution, mode, name, **kwargs: Those of `AECE`.

    Example:

    >>> metric = ECCE()
    >>> metric.update_state([1, 0], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        That of the function `ecce`.
    """

    _quantity = "ecce"

    def __init__(self, kind: str = "range", **kwargs: Unpack[CellOptions]):
        check_in("kind", kind, KINDS)
        super().__init__(**kwargs)
        self._keep(kind=kind)
        if kind == "maximum":
            self._quantity = "ecce_maximum"

    def differences(self) -> CumulativeCurve:
        """Return the cumulative differences so far, by filled cell."""
        return self._read().differences

    def bounds(self) -> tuple[float, float]:
        """Return certified lower and upper bounds of the exact value."""
        return QUANTITIES[self._quantity].bounds(self._read(), self)


@keras.saving.register_keras_serializable(package="keras_calib")
class ClasswiseECE(StreamingMetric):
    """Mean over the classes of the calibration error of p_k, streaming.

    Use it when decisions depend on the probabilities of all classes, not only
    on that of the predicted class. The function `classwise_ece` has the
    formula, and with `edges="width"` the same value.

    Args:
        num_classes: Number of classes K, at least 2.
        num_bins: Number of bins of each class. Defaults to `15`.
        edges: `"width"` for bins of equal width, exact. `"mass"` for bins of
            equal mass, from a histogram of each class.
        threshold: Probabilities below it are left out; 1e-37 leaves out 0.
            Defaults to `0`.
        closed: As in `classwise_ece`.
        resolution: Number of bins of each histogram for `edges="mass"`, at
            least 64. Defaults to `512`, with which the value can miss that of
            the function by a sixth; with 8192 by a thirtieth.
        name: Name of the metric.
        **kwargs: Those of `StreamingMetric`, such as `from_logits`.

    Raises:
        ValueError: On update, if predictions have another number of classes.

    Example:

    >>> metric = ClasswiseECE(num_classes=2, num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        That of the function `classwise_ece`.
    """

    _quantity = "classwise_ece"
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
        **kwargs: Unpack[MetricOptions],
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
        super().__init__(summary, **kwargs)
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

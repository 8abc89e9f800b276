"""Coverage and risk at an operating point, ranked by a score."""

from typing import Any

import keras

from keras_calib.inputs.checks import check_above
from keras_calib.inputs.checks import check_at_least
from keras_calib.inputs.checks import check_at_most
from keras_calib.metrics.histogram import HistogramMetric

__all__ = ["CoverageAtAccuracy", "CoverageAtRisk", "RiskAtCoverage"]


@keras.saving.register_keras_serializable(package="keras_calib")
class CoverageAtRisk(HistogramMetric):
    """The largest coverage at which the risk is at most `risk`; streaming.

    Only edges of cells count as thresholds: they can be set, so that the
    value can be had. `bounds()` says how much more finer ones could give.

    Args:
        risk: Allowed share of errors among the accepted, in [0, 1].
        name: Name of the metric.
        **kwargs: `score`, `score_range`, `resolution` and others, as `AURC`.

    Returns:
        From `result()`: a scalar in [0, 1]; 0 if no threshold is good
        enough, and before any sample.

    Raises:
        ValueError: If `risk` is not in [0, 1].

    Example:

    >>> metric = CoverageAtRisk(risk=0.1)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.5

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500
    """

    _quantity = "coverage_at_risk"

    def __init__(self, risk: float, **kwargs: Any):
        check_at_least("risk", risk, 0.0)
        check_at_most("risk", risk, 1.0)
        super().__init__(**kwargs)
        self._keep(risk=risk)


@keras.saving.register_keras_serializable(package="keras_calib")
class CoverageAtAccuracy(HistogramMetric):
    """The largest coverage with an accuracy of at least `accuracy`.

    Coverage at risk 1 - `accuracy`, also called selective accuracy
    constraint; streaming.

    Args:
        accuracy: Wanted share of right ones among the accepted, in [0, 1].
        name: Name of the metric.
        **kwargs: `score`, `score_range`, `resolution` and others, as `AURC`.

    Returns:
        From `result()`: a scalar in [0, 1]; 0 if no threshold is good
        enough, and before any sample.

    Raises:
        ValueError: If `accuracy` is not in [0, 1].

    Example:

    >>> metric = CoverageAtAccuracy(accuracy=0.9)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.5

    Reference:
        Galil et al., What Can We Learn From The Selective Prediction And
        Uncertainty Estimation Performance Of 523 ImageNet Classifiers, ICLR
        2023, https://arxiv.org/abs/2302.11874
    """

    _quantity = "coverage_at_accuracy"

    def __init__(self, accuracy: float, **kwargs: Any):
        check_at_least("accuracy", accuracy, 0.0)
        check_at_most("accuracy", accuracy, 1.0)
        super().__init__(**kwargs)
        self._keep(accuracy=accuracy)


@keras.saving.register_keras_serializable(package="keras_calib")
class RiskAtCoverage(HistogramMetric):
    """Share of errors among the surest `coverage` of all; streaming.

    The cell that the coverage cuts counts in proportion.

    Args:
        coverage: Share of the samples to accept, in (0, 1].
        name: Name of the metric.
        **kwargs: `score`, `score_range`, `resolution` and others, as `AURC`.

    Returns:
        From `result()`: a scalar in [0, 1]; 0 before any sample.

    Raises:
        ValueError: If `coverage` is not in (0, 1].

    Example:

    >>> metric = RiskAtCoverage(coverage=0.5)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.0

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500
    """

    _quantity = "risk_at_coverage"

    def __init__(self, coverage: float, **kwargs: Any):
        check_above("coverage", coverage, 0.0)
        check_at_most("coverage", coverage, 1.0)
        super().__init__(**kwargs)
        self._keep(coverage=coverage)

"""Metrics of the ranking by a score: areas, failure detection, points."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_calib.formulas import scores
from keras_calib.formulas.risk_coverage import RiskCoverageCurve
from keras_calib.formulas.risk_coverage import aurc_of_groups
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_share
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.registry import QUANTITIES
from keras_calib.metrics.states.histogram import LOG_ODDS
from keras_calib.metrics.states.histogram import UNBOUNDED
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.numerics.softmax import log_odds_of
from keras_calib.numerics.softmax import to_logits

__all__ = [
    "AUGRC",
    "AURC",
    "CoverageAtAccuracy",
    "CoverageAtRisk",
    "EAURC",
    "FailureAUROC",
    "FailureFPR95",
    "HistogramMetric",
    "NormalizedAURC",
    "RiskAtCoverage",
]


def _score_summary(
    score: str | Callable[[Any], Any],
    score_range: str | None,
    resolution: int,
) -> HistogramSummary:
    """The histogram of a ranking score."""
    function = scores.get(score)
    if score_range is None:
        score_range = "unit" if score in scores.UNIT_SCORES else "real"
    check_in("score_range", score_range, ("unit", "real"))
    if score == "msp":
        return HistogramSummary(resolution)
    is_unit = score_range == "unit"

    def of_records(records):
        values, rows = records.score, records.rows
        if rows is not None:
            logits = (
                rows.outputs if rows.from_logits else to_logits(rows.outputs)
            )
            # A NaN that does not count could leave its row by way of a sort.
            counted = ops.expand_dims(rows.mask, -1)
            logits = ops.where(counted, logits, ops.zeros_like(logits))
            values = ops.cast(function(logits), "float32")
        return log_odds_of(ops.clip(values, 0.0, 1.0)) if is_unit else values

    score_map = LOG_ODDS if is_unit else UNBOUNDED
    return HistogramSummary(
        resolution, None, score=of_records, score_map=score_map
    )


class HistogramMetric(StreamingMetric):
    """A metric of the ranking by a score."""

    def __init__(
        self,
        *,
        score: str | Callable[[Any], Any] = "msp",
        score_range: str | None = None,
        resolution: int = 8192,
        name: str | None = None,
        **kwargs: Any,
    ):
        summary = _score_summary(score, score_range, resolution)
        super().__init__(summary, name=name, **kwargs)
        self._keep(score=score, score_range=score_range, resolution=resolution)

    def bounds(self) -> tuple[float, float]:
        """The value with the best and the worst order inside every cell.

        The exact value of the same predictions lies between them.
        """
        return QUANTITIES[self._quantity].bounds(self._read(), self)

    def aurc(self) -> float:
        """The AURC of the same ranking, in float64."""
        return float(aurc_of_groups(self._read().groups))

    def curve(self) -> RiskCoverageCurve:
        """The risk-coverage curve at the edges of the cells."""
        return self._read().curve

    def get_config(self):
        config = super().get_config()
        if callable(self.score):
            config["score"] = keras.saving.serialize_keras_object(self.score)
        return config

    @classmethod
    def from_config(cls, config):
        score = config.get("score")
        if isinstance(score, dict):
            score = keras.saving.deserialize_keras_object(score)
            config = {**config, "score": score}
        return cls(**config)


@keras.saving.register_keras_serializable(package="keras_calib")
class AURC(HistogramMetric):
    """Area under the risk-coverage curve, streaming.

    AURC = (1/N) sum_k (errors among the k surest) / k, ranked by the score;
    papers print it times 1000. Lower is better; a random ranking gives the
    error rate. Predictions that share a cell of a fine histogram of the score
    count as tied, corrected for how right and wrong ones tend to lie in it:
    for most data within 1e-6 of the exact value, relative. `bounds()` is what
    other orders inside the cells could give.

    Args:
        score: One of the eight scores (`"msp"`, `"max_logit"`,
            `"logit_margin"`, `"prob_margin"`, `"neg_entropy"`,
            `"neg_energy"`, `"gini"`, `"p_norm"`) or a function of logits
            `(n, num_classes)` to `(n,)`, higher = surer. Defaults to
            `"msp"`, the probability of the predicted class.
        score_range: For a function: `"unit"` if its scores lie in [0, 1] and
            crowd at its ends, else `"real"`, the default.
        resolution: Number of bins of the fine histogram of the score.
            `8192`, the default, takes 394 kB; `2048` costs less at each step
            of training.
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness`,
            `pixels_per_image`, `seed` and `dtype` of `StreamingMetric`.

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

    _quantity = "aurc"


@keras.saving.register_keras_serializable(package="keras_calib")
class EAURC(HistogramMetric):
    """Excess AURC, streaming: AURC less that of a perfect ranking.

    The perfect ranking puts every error last; it is that of the finite
    sample.

    Args:
        score, score_range, resolution, name, **kwargs: As in `AURC`.

    Example:

    >>> metric = EAURC()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.0

    Reference:
        Geifman et al., Bias-Reduced Uncertainty Estimation for Deep Neural
        Classifiers, ICLR 2019, https://arxiv.org/abs/1805.08206

    Differs:
        The paper subtracts the limit r + (1 - r) log(1 - r) of the optimum.
    """

    _quantity = "eaurc"


@keras.saving.register_keras_serializable(package="keras_calib")
class NormalizedAURC(HistogramMetric):
    """AURC from 0, a perfect ranking, to 1, a random one; streaming.

    (AURC - AURC*) / (error rate - AURC*), with AURC* of the perfect ranking.
    Above 1 if the ranking is worse than random; 0 without any error or any
    right prediction.

    Args:
        score, score_range, resolution, name, **kwargs: As in `AURC`.

    Example:

    >>> metric = NormalizedAURC()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.0

    Reference:
        Cattelan and Silva, How to Fix a Broken Confidence Estimator:
        Evaluating Post-hoc Methods for Selective Classification with Deep
        Neural Networks, UAI 2024, https://arxiv.org/abs/2305.15508
    """

    _quantity = "naurc"
    _largest = None


@keras.saving.register_keras_serializable(package="keras_calib")
class AUGRC(HistogramMetric):
    """Area under the generalised risk-coverage curve, streaming.

    The average over thresholds of the share of all samples that is accepted
    and wrong, in [0, 0.5]; a random ranking gives half the error rate.

    Args:
        score, score_range, resolution, name, **kwargs: As in `AURC`.

    Example:

    >>> metric = AUGRC()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.125

    Reference:
        Traub et al., Overcoming Common Flaws in the Evaluation of Selective
        Classification Systems, NeurIPS 2024, https://arxiv.org/abs/2407.01032
    """

    _quantity = "augrc"


@keras.saving.register_keras_serializable(package="keras_calib")
class FailureAUROC(HistogramMetric):
    """AUROC of telling right from wrong predictions by the score, streaming.

    The probability that a right prediction scores higher than a wrong one,
    ties counting half. 0.5 without any error or any right prediction.

    Args:
        score, score_range, resolution, name, **kwargs: As in `AURC`.

    Example:

    >>> metric = FailureAUROC()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    1.0

    Reference:
        Hendrycks and Gimpel, A Baseline for Detecting Misclassified and
        Out-of-Distribution Examples, ICLR 2017,
        https://arxiv.org/abs/1610.02136
    """

    _quantity = "failure_auroc"


@keras.saving.register_keras_serializable(package="keras_calib")
class FailureFPR95(HistogramMetric):
    """Share of the errors accepted with 95 % of the right; streaming.

    At the highest edge of a cell that accepts at least 95 % of the right
    predictions: a threshold that can be set, so that the value is an upper
    end of the exact one. 0 without any error or any right prediction.

    Args:
        score, score_range, resolution, name, **kwargs: As in `AURC`.

    Example:

    >>> metric = FailureFPR95()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.0

    Reference:
        Liang et al., Enhancing the Reliability of Out-of-distribution Image
        Detection in Neural Networks, ICLR 2018,
        https://arxiv.org/abs/1706.02690
    """

    _quantity = "failure_fpr95"


@keras.saving.register_keras_serializable(package="keras_calib")
class CoverageAtRisk(HistogramMetric):
    """The largest coverage at which the risk is at most `risk`; streaming.

    0 if no threshold is good enough. Only edges of cells count as thresholds:
    they can be set, so that the value can be had. `bounds()` says how much
    more finer ones could give.

    Args:
        risk: Allowed share of errors among the accepted, in [0, 1].
        **kwargs: `score`, `score_range`, `resolution`, `name` and others, as
            in `AURC`.

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
        check_share("risk", risk)
        super().__init__(**kwargs)
        self._keep(risk=risk)


@keras.saving.register_keras_serializable(package="keras_calib")
class CoverageAtAccuracy(HistogramMetric):
    """The largest coverage with an accuracy of at least `accuracy`.

    Coverage at risk 1 - `accuracy`, streaming; also called selective accuracy
    constraint. 0 if no threshold is good enough.

    Args:
        accuracy: Wanted share of right ones among the accepted, in [0, 1].
        **kwargs: `score`, `score_range`, `resolution`, `name` and others, as
            in `AURC`.

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
        check_share("accuracy", accuracy)
        super().__init__(**kwargs)
        self._keep(accuracy=accuracy)


@keras.saving.register_keras_serializable(package="keras_calib")
class RiskAtCoverage(HistogramMetric):
    """Share of errors among the surest `coverage` of all; streaming.

    The cell that the coverage cuts counts in proportion.

    Args:
        coverage: Share of the samples to accept, in (0, 1].
        **kwargs: `score`, `score_range`, `resolution`, `name` and others, as
            in `AURC`.

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
        check_share("coverage", coverage, positive=True)
        super().__init__(**kwargs)
        self._keep(coverage=coverage)

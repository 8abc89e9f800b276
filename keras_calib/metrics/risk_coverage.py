"""Metrics of selective classification and failure detection."""

from collections.abc import Callable
from typing import Any, Unpack

import keras
from keras import ops

from keras_calib.formulas import scores
from keras_calib.formulas.risk_coverage import (
    RiskCoveragePoints,
    aurc_of_groups,
)
from keras_calib.inputs.checks import check_in, check_share
from keras_calib.metrics.base import MetricOptions, StreamingMetric
from keras_calib.metrics.registry import QUANTITIES
from keras_calib.metrics.states.histogram import (
    LOG_ODDS,
    UNBOUNDED,
    HistogramSummary,
)
from keras_calib.numerics.softmax import log_odds_of, to_logits


def _score_summary(
    score: str | Callable[[Any], Any], score_range: str | None, resolution: int
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
            # Sorting could move the NaN of an ignored row to another row.
            counted = ops.expand_dims(rows.mask, -1)
            logits = ops.where(counted, logits, ops.zeros_like(logits))
            values = ops.cast(function(logits), "float32")
        return log_odds_of(ops.clip(values, 0.0, 1.0)) if is_unit else values

    score_map = LOG_ODDS if is_unit else UNBOUNDED
    return HistogramSummary(
        resolution, None, score=of_records, score_map=score_map
    )


class ScoreOptions(MetricOptions, total=False):
    """Options of metrics of one point of the curve, as `AURC` explains them."""

    score: str | Callable[[Any], Any]
    score_range: str | None
    resolution: int


class HistogramMetric(StreamingMetric):
    """A metric of how a score ranks predictions, from a fine histogram."""

    def __init__(
        self,
        *,
        score: str | Callable[[Any], Any] = "msp",
        score_range: str | None = None,
        resolution: int = 8192,
        **kwargs: Unpack[MetricOptions],
    ):
        summary = _score_summary(score, score_range, resolution)
        super().__init__(summary, **kwargs)
        self._keep(score=score, score_range=score_range, resolution=resolution)

    def bounds(self) -> tuple[float, float]:
        """Return certified lower and upper bounds of the exact value."""
        return QUANTITIES[self._quantity].bounds(self._read(), self)

    def aurc(self) -> float:
        """Return the AURC of the same ranking, in float64."""
        return float(aurc_of_groups(self._read().groups))

    def curve(self) -> RiskCoveragePoints:
        """Return the risk-coverage curve at the edges of the cells."""
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
    """Area under the risk-coverage curve (AURC), streaming.

    Use it to compare models that reject some of their predictions. It depends
    on the accuracy and on the ranking; `EAURC` looks at the ranking.

    AURC = (1/N) sum_k (errors among the k highest scores) / k

    Lower is better. The value comes from a fine histogram of the score. For
    most data it is within 1e-6 of the function `aurc`, relative; `bounds()`
    gives certified bounds.

    Args:
        score: The name of a score or a function, as in `aurc`. Defaults to
            `"msp"`, the probability of the predicted class.
        score_range: Range of a function's scores: `"unit"` if they lie in
            [0, 1] and crowd at its ends, else `"real"`, the default.
        resolution: Number of bins of the fine histogram. `8192`, the default,
            takes 394 kB. `2048` costs less at each step of training.
        name: Name of the metric.
        **kwargs: Those of `StreamingMetric`, such as `from_logits`.

    Example:

    >>> metric = AURC()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.25

    Reference:
        That of the function `aurc`.
    """

    _quantity = "aurc"


@keras.saving.register_keras_serializable(package="keras_calib")
class EAURC(HistogramMetric):
    """Excess AURC: AURC minus that of a perfect ranking, streaming.

    Use it to look at the ranking of predictions apart from their accuracy.

    The optimum is that of the same sample with all errors last.

    Args:
        score, score_range, resolution, name, **kwargs: Those of `AURC`.

    Example:

    >>> metric = EAURC()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.0

    Reference:
        That of the function `eaurc`.
    """

    _quantity = "eaurc"


@keras.saving.register_keras_serializable(package="keras_calib")
class NAURC(HistogramMetric):
    """AURC scaled to 0 for a perfect and 1 for a random ranking, streaming.

    Use it to compare rankings across models and data sets. The function `naurc`
    has the formula, and what the value is of odd data.

    Args:
        score, score_range, resolution, name, **kwargs: Those of `AURC`.

    Example:

    >>> metric = NAURC()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.0

    Reference:
        That of the function `naurc`.
    """

    _quantity = "naurc"
    _largest = None


@keras.saving.register_keras_serializable(package="keras_calib")
class AUGRC(HistogramMetric):
    """Area under the generalised risk-coverage curve (AUGRC), streaming.

    Use it in place of `AURC` when the few highest scores should not dominate.
    Lower is better. The function `augrc` says what it is.

    Args:
        score, score_range, resolution, name, **kwargs: Those of `AURC`.

    Example:

    >>> metric = AUGRC()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.125

    Reference:
        That of the function `augrc`.
    """

    _quantity = "augrc"


@keras.saving.register_keras_serializable(package="keras_calib")
class FailureAUROC(HistogramMetric):
    """AUROC of detecting errors by the score, streaming.

    Use it to see how well the score separates correct from wrong predictions.
    It is 0.5 by chance. The function `failure_auroc` has the formula.

    Args:
        score, score_range, resolution, name, **kwargs: Those of `AURC`.

    Example:

    >>> metric = FailureAUROC()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    1.0

    Reference:
        That of the function `failure_auroc`.
    """

    _quantity = "failure_auroc"


@keras.saving.register_keras_serializable(package="keras_calib")
class FailureFPR95(HistogramMetric):
    """Share of errors accepted with 95 % of correct predictions, streaming.

    Use it to see how many errors pass when nearly all correct predictions must
    be accepted. The threshold is the highest edge of a cell that accepts 95 %
    of them. You can set it, so the value is an upper bound of the exact one.
    It is 0 if all predictions are correct, or all wrong.

    Args:
        score, score_range, resolution, name, **kwargs: Those of `AURC`.

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
    """Largest coverage at which the risk is at most `risk`, streaming.

    Use it to see how much can be accepted at an allowed share of errors. It
    guarantees nothing on new data; `SelectiveClassifier` can. The value is 0
    if no threshold is good enough. Thresholds are the edges of cells, which
    you can set; `bounds()` shows how much finer ones could add.

    Args:
        risk: Allowed share of errors among accepted predictions, in [0, 1].
        **kwargs: The arguments of `AURC`, such as `score` and `name`.

    Example:

    >>> metric = CoverageAtRisk(risk=0.1)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.5

    Reference:
        That of the function `coverage_at_risk`.
    """

    _quantity = "coverage_at_risk"

    def __init__(self, risk: float, **kwargs: Unpack[ScoreOptions]):
        check_share("risk", risk)
        super().__init__(**kwargs)
        self._keep(risk=risk)


@keras.saving.register_keras_serializable(package="keras_calib")
class CoverageAtAccuracy(HistogramMetric):
    """Largest coverage with an accuracy of at least `accuracy`, streaming.

    Use it in place of `CoverageAtRisk` if you think in accuracies: it is the
    coverage at risk 1 - `accuracy`, also called selective accuracy constraint.
    It is 0 if no threshold is good enough.

    Args:
        accuracy: Share of correct predictions wanted among the accepted ones,
            in [0, 1].
        **kwargs: The arguments of `AURC`, such as `score` and `name`.

    Example:

    >>> metric = CoverageAtAccuracy(accuracy=0.9)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.5

    Reference:
        That of the function `coverage_at_accuracy`.
    """

    _quantity = "coverage_at_accuracy"

    def __init__(self, accuracy: float, **kwargs: Unpack[ScoreOptions]):
        check_share("accuracy", accuracy)
        super().__init__(**kwargs)
        self._keep(accuracy=accuracy)


@keras.saving.register_keras_serializable(package="keras_calib")
class RiskAtCoverage(HistogramMetric):
    """Share of errors when the share `coverage` is accepted, streaming.

    Use it when the share to accept is fixed. If the coverage ends inside a cell
    of the histogram, the errors of the cell are shared in proportion.

    Args:
        coverage: Share of the samples to accept, in (0, 1].
        **kwargs: The arguments of `AURC`, such as `score` and `name`.

    Example:

    >>> metric = RiskAtCoverage(coverage=0.5)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.0

    Reference:
        That of the function `risk_at_coverage`.
    """

    _quantity = "risk_at_coverage"

    def __init__(self, coverage: float, **kwargs: Unpack[ScoreOptions]):
        check_share("coverage", coverage, positive=True)
        super().__init__(**kwargs)
        self._keep(coverage=coverage)

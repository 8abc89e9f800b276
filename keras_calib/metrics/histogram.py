"""What metrics share whose state is the fine histogram of a score."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_calib.formulas import scores
from keras_calib.formulas.risk_coverage import RiskCoverageCurve
from keras_calib.formulas.risk_coverage import aurc_of_groups
from keras_calib.formulas.scores import UNIT_SCORES
from keras_calib.inputs.checks import check_in
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.registry import QUANTITIES
from keras_calib.metrics.registry import lost_order
from keras_calib.metrics.states.histogram import UNBOUNDED
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.numerics.softmax import log_odds_of
from keras_calib.numerics.softmax import to_logits

__all__ = ["HistogramMetric", "score_summary"]


def score_summary(
    score: str | Callable[[Any], Any],
    score_range: str | None,
    resolution: int,
) -> HistogramSummary:
    """The histogram of a ranking score."""
    function = scores.get(score)
    if score_range is None:
        score_range = "unit" if score in UNIT_SCORES else "real"
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

    options = {} if is_unit else {"score_map": UNBOUNDED}
    return HistogramSummary(resolution, None, score=of_records, **options)


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
        summary = score_summary(score, score_range, resolution)
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

    def _what_is_wrong(self, num_invalid, sums):
        yield from super()._what_is_wrong(num_invalid, sums)
        readings = self._readings(sums, True)
        of_logits = self.options.from_logits and readings.has_all_rows
        if self.summary.is_unbounded or (of_logits and self.score == "msp"):
            yield from lost_order(self.name, readings)

"""Accuracy and confidence: of all, of correct and of wrong predictions."""

from typing import Any, Unpack

import keras
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.metrics.base import MetricOptions, StreamingMetric
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.metrics.states.sums import MomentSummary


def _share_of(records: Outcomes, kind: int) -> Any:
    """Which predictions are correct, 1, or wrong, 0; a share of votes."""
    correct = records.correct
    if "float" not in str(correct.dtype):
        return ops.equal(correct, kind)
    return correct if kind else 1.0 - correct


class MeanMetric(StreamingMetric):
    """The weighted mean of one value in [0, 1] of each prediction."""

    _needs_rows = False

    def __init__(self, **kwargs: Unpack[MetricOptions]):
        summary = MomentSummary(self._value_of, needs_rows=self._needs_rows)
        super().__init__(summary, **kwargs)

    @staticmethod
    def _value_of(records: Outcomes) -> tuple[Any, Any]:
        """Values of records, and a mask of those that have one, or None."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="keras_calib")
class Accuracy(MeanMetric):
    """Accuracy: the share of correct predictions, streaming and exact.

    Use it in place of Keras' accuracy beside the other metrics of this library.
    It accepts the same labels: class ids, one-hot and soft labels, and pairs of
    class id and objectness, which the accuracy of Keras silently misreads.

    `interval()` is that of Clopper and Pearson. With unequal weights it uses
    the effective number of samples.

    Args:
        name: Name of the metric.
        **kwargs: Those of `StreamingMetric`, such as `from_logits`.

    Example:

    >>> metric = Accuracy()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> float(metric.result())
    0.5

    Reference:
        That of the function `accuracy`.
    """

    _quantity = "accuracy"
    _takes_one_output = True

    @staticmethod
    def _value_of(records):
        return ops.cast(records.correct, "float32"), None


@keras.saving.register_keras_serializable(package="keras_calib")
class MeanConfidence(MeanMetric):
    """Mean probability of the predicted class, streaming and exact.

    Use it beside `Accuracy`: a mean confidence above the accuracy means that
    the model is overconfident.

    Args:
        name, **kwargs: The arguments of `Accuracy`.

    Example:

    >>> metric = MeanConfidence()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.7

    Reference:
        That of the function `mean_confidence`.
    """

    _quantity = "mean_confidence"

    @staticmethod
    def _value_of(records):
        return records.confidence, None


@keras.saving.register_keras_serializable(package="keras_calib")
class ConfidenceGap(StreamingMetric):
    """Mean confidence less accuracy, streaming and exact.

    Use it to see whether a model is overconfident, above 0, or underconfident.
    Gaps of both signs cancel, so read it beside `ECE`.

    `interval()` excludes 0 if an exact test of the number of errors rejects
    calibration. With votes it is the interval of a mean over samples.

    Args:
        resolution, name, **kwargs: Those of `AECE`.

    Example:

    >>> metric = ConfidenceGap()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.2

    Reference:
        That of the function `confidence_gap`.
    """

    _quantity = "confidence_gap"

    def __init__(
        self, *, resolution: int = 8192, **kwargs: Unpack[MetricOptions]
    ):
        super().__init__(HistogramSummary(resolution), **kwargs)
        self._keep(resolution=resolution)


@keras.saving.register_keras_serializable(package="keras_calib")
class Overconfidence(MeanMetric):
    """Mean confidence of wrong predictions, streaming and exact.

    Use it to see how confident a model is when it is wrong; lower is better.

    The value is 0 before any wrong prediction. It is NaN if there is none, but
    invalid samples were skipped.

    Args:
        name, **kwargs: The arguments of `Accuracy`.

    Example:

    >>> metric = Overconfidence()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.6

    Reference:
        Mund et al., Active Online Confidence Boosting for Efficient Object
        Classification, ICRA 2015, https://doi.org/10.1109/ICRA.2015.7139368
    """

    _quantity = "overconfidence"

    @staticmethod
    def _value_of(records):
        return records.confidence, _share_of(records, 0)


@keras.saving.register_keras_serializable(package="keras_calib")
class Underconfidence(MeanMetric):
    """Mean 1 - confidence of correct predictions, streaming and exact.

    Use it to see how much a model doubts its correct predictions; lower is
    better. Without any the value is as that of `Overconfidence`.

    Args:
        name, **kwargs: The arguments of `Accuracy`.

    Example:

    >>> metric = Underconfidence()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.2

    Reference:
        That of `Overconfidence`.
    """

    _quantity = "underconfidence"

    @staticmethod
    def _value_of(records):
        return 1.0 - records.confidence, _share_of(records, 1)


@keras.saving.register_keras_serializable(package="keras_calib")
class ObjectnessDeviation(MeanMetric):
    """Mean |confidence - objectness|, streaming and exact.

    Use it with `AdaptiveLabelSmoothing`, to see how far the confidence is from
    the share of the image that the object covers. Labels are the same pairs
    `(batch, ..., 2)` of class id and objectness.

    Args:
        name: Name of the metric.
        **kwargs: The arguments of `Accuracy`; `objectness` must be `True`.

    Example:

    >>> metric = ObjectnessDeviation()
    >>> metric.update_state([[0.0, 0.9], [1.0, 0.5]], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.1

    Reference:
        That of the function `objectness_deviation`.
    """

    _quantity = "objectness_deviation"
    _needs_rows = True

    def __init__(self, **kwargs: Unpack[MetricOptions]):
        objectness = kwargs.get("objectness", True)
        if not objectness:
            raise value_error(
                "`objectness` must be True: labels are pairs of class id and "
                "objectness",
                objectness=objectness,
            )
        kwargs["objectness"] = True
        super().__init__(**kwargs)

    @staticmethod
    def _value_of(records):
        objectness = records.rows.objectness
        return ops.abs(records.confidence - objectness), None

"""How sure a network is: where it is right, where it is wrong, and at all."""

from typing import Any

import keras
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.states.moments import MomentSummary
from keras_calib.numerics.softmax import Top1

__all__ = [
    "Accuracy",
    "MeanConfidence",
    "MeanMetric",
    "ObjectnessDeviation",
    "Overconfidence",
    "Underconfidence",
]


class MeanMetric(StreamingMetric):
    """The weighted mean of one value in [0, 1] of each prediction."""

    _needs_rows = False

    def __init__(self, *, name: str | None = None, **kwargs: Any):
        summary = MomentSummary(self._value_of, needs_rows=self._needs_rows)
        super().__init__(summary, name=name, **kwargs)

    @staticmethod
    def _value_of(records: Top1) -> tuple[Any, Any]:
        """The values of records, and which of these have one or None."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="keras_calib")
class Accuracy(MeanMetric):
    """Share of right predictions, streaming and exact.

    As Keras' accuracy, for all that the other metrics here read: integer,
    one-hot and soft labels, masks, and pairs of class id and objectness,
    which Keras' own misreads silently. `interval()` is that of Clopper and
    Pearson, of the effective number of samples where weights differ.

    Args:
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness`,
            `pixels_per_image`, `seed` and `dtype` of `StreamingMetric`.

    Example:

    >>> metric = Accuracy()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> float(metric.result())
    0.5

    Reference:
        Keras, SparseCategoricalAccuracy,
        https://keras.io/api/metrics/accuracy_metrics/
    """

    _quantity = "accuracy"

    @staticmethod
    def _value_of(records):
        return ops.cast(records.correct, "float32"), None


@keras.saving.register_keras_serializable(package="keras_calib")
class MeanConfidence(MeanMetric):
    """Mean probability of the predicted class, streaming and exact.

    Args:
        name, **kwargs: As in `Accuracy`.

    Example:

    >>> metric = MeanConfidence()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.7

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        figure 1, https://arxiv.org/abs/1706.04599
    """

    _quantity = "mean_confidence"

    @staticmethod
    def _value_of(records):
        return records.confidence, None


@keras.saving.register_keras_serializable(package="keras_calib")
class Overconfidence(MeanMetric):
    """Mean confidence where the prediction is wrong, streaming and exact.

    0 before any wrong prediction, and NaN if there is none but some that
    cannot count.

    Args:
        name, **kwargs: As in `Accuracy`.

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
        return records.confidence, ops.equal(records.correct, 0)


@keras.saving.register_keras_serializable(package="keras_calib")
class Underconfidence(MeanMetric):
    """Mean 1 - confidence where the prediction is right, streaming and exact.

    0 before any right prediction, and NaN if there is none but some that
    cannot count.

    Args:
        name, **kwargs: As in `Accuracy`.

    Example:

    >>> metric = Underconfidence()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.2

    Reference:
        Mund et al., Active Online Confidence Boosting for Efficient Object
        Classification, ICRA 2015, https://doi.org/10.1109/ICRA.2015.7139368
    """

    _quantity = "underconfidence"

    @staticmethod
    def _value_of(records):
        return 1.0 - records.confidence, ops.equal(records.correct, 1)


@keras.saving.register_keras_serializable(package="keras_calib")
class ObjectnessDeviation(MeanMetric):
    """Mean |confidence - objectness|, streaming and exact.

    How far the confidence is from the share of the image that the object
    covers. Labels are pairs of class id and objectness, as
    `AdaptiveLabelSmoothing` takes them.

    Args:
        name: Name of the metric.
        **kwargs: As in `Accuracy`; `objectness` must be `True`.

    Example:

    >>> metric = ObjectnessDeviation()
    >>> metric.update_state([[0.0, 0.9], [1.0, 0.5]], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.1

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020,
        https://arxiv.org/abs/2009.06432
    """

    _quantity = "objectness_deviation"
    _needs_rows = True

    def __init__(
        self,
        *,
        name: str | None = None,
        objectness: bool = True,
        **kwargs: Any,
    ):
        if not objectness:
            raise value_error(
                "`objectness` must be True here", objectness=objectness
            )
        super().__init__(name=name, objectness=True, **kwargs)

    @staticmethod
    def _value_of(records):
        objectness = records.rows.objectness
        return ops.abs(records.confidence - objectness), None

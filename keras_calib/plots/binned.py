"""Displays of what bins of the confidence hold."""

from typing import Any

import keras

from keras_calib.backend.errors import type_error
from keras_calib.formulas.bins import BinSums
from keras_calib.functional.binned import equal_width_bins
from keras_calib.metrics.binned import ECE
from keras_calib.metrics.binned import BinnedMetric
from keras_calib.metrics.table import CalibrationMetrics
from keras_calib.numerics.arrays import safe_divide
from keras_calib.plots.display import Display
from keras_calib.predictions.collect import seen
from keras_calib.predictions.outputs import read_as

__all__ = ["BinnedDisplay"]


class BinnedDisplay(Display):
    """Keeps what the bins hold, as `sums`, and the accuracy."""

    def __init__(self, sums: BinSums, *, name: str | None = None):
        self.sums = sums
        self.name = name
        self.accuracy = float(
            safe_divide(sums.correct.sum(), sums.weight.sum())
        )

    @classmethod
    def from_predictions(
        cls,
        labels: Any,
        probs: Any,
        *,
        num_bins: int = 15,
        from_logits: bool = False,
        sample_weight: Any = None,
        ignore_class: int | None = None,
        **options: Any,
    ) -> "BinnedDisplay":
        """From a whole data set.

        Args:
            labels: Class ids `(n, ...)` or one-hot or soft labels.
            probs: Probabilities `(n, ..., num_classes)`.
            num_bins: Number of bins of equal width.
            from_logits: Whether `probs` are logits.
            sample_weight: Weights of the shape of the class ids, or `(n,)`.
            ignore_class: Class id that does not count.
            **options: Of the class, such as `name`.
        """
        sums = equal_width_bins(
            labels,
            probs,
            num_bins=num_bins,
            from_logits=from_logits,
            sample_weight=sample_weight,
            ignore_class=ignore_class,
        )
        return cls(sums, **options)

    @classmethod
    def from_model(
        cls,
        model: keras.Model,
        data: Any,
        *,
        num_bins: int = 15,
        from_logits: bool | None = None,
        ignore_class: int | None = None,
        output: str | int | None = None,
        batch_size: int = 32,
        steps: int | None = None,
        **options: Any,
    ) -> "BinnedDisplay":
        """From what a model predicts, read once in fixed memory.

        Args:
            model: A Keras model.
            data: As in `Calibrator.fit_on`.
            num_bins: Number of bins of equal width.
            from_logits: Whether the model returns logits; None takes it from
                the loss that the model was compiled with.
            ignore_class: Class id that does not count; None takes it from
                that loss.
            output: Name or position of the output, for a model that has
                several.
            batch_size: Size of the batches of arrays.
            steps: How many batches, at most; None for all.
            **options: Of the class, such as `name`.
        """
        reading = read_as(model, from_logits, ignore_class, output)
        metric = ECE(
            num_bins,
            from_logits=reading.from_logits,
            ignore_class=reading.ignore_class,
        )
        metric = seen(metric, model, data, batch_size, steps, reading.output)
        return cls.from_metric(metric, **options)

    @classmethod
    def from_metric(cls, metric: Any, **options: Any) -> "BinnedDisplay":
        """From a metric with equal-width bins that has seen data.

        Args:
            metric: `ECE` or another error over its bins, or
                `CalibrationMetrics`.
            **options: Of the class, such as `name`.

        Raises:
            TypeError: If `metric` is another one.
        """
        if not isinstance(metric, BinnedMetric | CalibrationMetrics):
            raise type_error(
                "`metric` must be `ECE`, another metric of equal-width "
                "bins, or `CalibrationMetrics`",
                metric=type(metric).__name__,
            )
        return cls(metric.bins(), **options)

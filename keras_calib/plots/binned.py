"""Displays of what bins of the confidence hold."""

import functools
from collections.abc import Callable
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

__all__ = ["BinnedDisplay", "BinsDisplay", "streamed"]


class BinsDisplay(Display):
    """A display of bins of some kind, made from predictions or a model."""

    _bins_of: Callable
    _num_bins = 15

    @classmethod
    def from_predictions(
        cls,
        labels: Any,
        probs: Any,
        *,
        num_bins: int | None = None,
        from_logits: bool = False,
        sample_weight: Any = None,
        ignore_class: int | None = None,
        **options: Any,
    ) -> "BinsDisplay":
        """From a whole data set.

        Args:
            labels: Class ids `(n, ...)` or one-hot or soft labels.
            probs: Probabilities `(n, ..., num_classes)`.
            num_bins: Number of bins of equal width; None for 15, in
                `ClasswiseReliabilityDisplay` 10 of each class.
            from_logits: Whether `probs` are logits.
            sample_weight: Weights of the shape of the class ids, or `(n,)`.
            ignore_class: Class id that does not count.
            **options: Of the class, such as `name`.
        """
        bins = cls._bins_of(
            labels,
            probs,
            num_bins=cls._num_bins if num_bins is None else num_bins,
            from_logits=from_logits,
            sample_weight=sample_weight,
            ignore_class=ignore_class,
        )
        return cls(bins, **options)

    @classmethod
    def from_model(
        cls,
        model: keras.Model,
        data: Any,
        *,
        from_logits: bool | None = None,
        ignore_class: int | None = None,
        output: str | int | None = None,
        batch_size: int = 32,
        steps: int | None = None,
        **options: Any,
    ) -> "BinsDisplay":
        """From what a model predicts.

        Predictions stream in fixed memory, but for
        `ClasswiseReliabilityDisplay`, which keeps them all.

        Args:
            model: A Keras model.
            data: As in `Calibrator.fit_on`.
            from_logits: Whether the model returns logits; None takes it from
                the loss that the model was compiled with.
            ignore_class: Class id that does not count; None takes it from
                that loss.
            output: Name or position of the output, for a model that has
                several.
            batch_size: Size of the batches of arrays.
            steps: How many batches, at most; None for all.
            **options: `num_bins`, and those of the class, such as `name`.
        """
        how = from_logits, ignore_class, output
        return cls._of_model(model, data, *how, batch_size, steps, **options)


class BinnedDisplay(BinsDisplay):
    """Keeps what bins of the confidence hold, as `sums`, and the accuracy."""

    _bins_of = staticmethod(equal_width_bins)

    def __init__(self, sums: BinSums, *, name: str | None = None):
        self.sums = sums
        self.name = name
        self.accuracy = float(
            safe_divide(sums.correct.sum(), sums.weight.sum())
        )

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

    @classmethod
    def _of_model(cls, *source, num_bins=None, **options):
        make = functools.partial(
            ECE, cls._num_bins if num_bins is None else num_bins
        )
        return cls.from_metric(streamed(make, *source), **options)


def streamed(
    make: Callable,
    model: keras.Model,
    data: Any,
    from_logits: bool | None = None,
    ignore_class: int | None = None,
    output: str | int | None = None,
    batch_size: int = 32,
    steps: int | None = None,
) -> keras.metrics.Metric:
    """A metric that has seen what a model predicts, in fixed memory."""
    reading = read_as(model, from_logits, ignore_class, output)
    metric = make(
        from_logits=reading.from_logits, ignore_class=reading.ignore_class
    )
    return seen(metric, model, data, batch_size, steps, reading.output)

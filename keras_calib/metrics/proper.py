"""Proper scores, which are best for the true probabilities."""

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import keras

from keras_calib.backend.errors import value_error
from keras_calib.formulas import proper
from keras_calib.formulas.binned_errors import Decomposition, decompose
from keras_calib.inputs.checks import check_integer
from keras_calib.metrics.base import MetricOptions, StreamingMetric
from keras_calib.metrics.registry import QUANTITIES
from keras_calib.metrics.states.classwise import ClassForecastSummary
from keras_calib.metrics.states.composite import CompositeSummary
from keras_calib.metrics.states.sums import BinSummary, MomentSummary
from keras_calib.numerics.arrays import array_namespace


def nll_of_records(clip: float | None) -> Callable:
    """Return the function of records to log losses, for `MomentSummary`."""

    def value(records):
        losses = partial(proper.log_losses, clip=clip)
        losses = proper.losses_of_rows(losses, records.rows)
        return proper.summable_losses(losses), None

    return value


def brier_of_records(records):
    """Brier losses of records, for `MomentSummary`."""
    losses = proper.brier_losses_of_rows(records.rows)
    return array_namespace(losses).maximum(losses, 0.0), None


def _squares_of_records(records):
    """sum_k p_k^2 of records, for `MomentSummary`."""
    squares = proper.squared_probabilities
    return proper.losses_of_rows(squares, records.rows), None


class _ProperScore(StreamingMetric):
    """A mean of losses, with bins to decompose it."""

    _takes_one_output = True

    def __init__(
        self,
        values: tuple[Callable, ...],
        num_bins: int,
        *,
        parts: dict[str, Any] | None = None,
        **kwargs: Unpack[MetricOptions],
    ):
        summary = CompositeSummary(
            losses=MomentSummary(*values, needs_rows=True),
            bins=BinSummary(num_bins),
            **(parts or {}),
        )
        summary.needs_rows = True
        super().__init__(summary, **kwargs)
        self._keep(num_bins=num_bins)

    def decomposition(self) -> Decomposition:
        """Split the score of the binned confidence, as `ECE.decomposition`.

        The parts do not add up to `result()`, which is the score of all
        classes. Those of NLL are in nats.
        """
        return decompose(self._read().bins, self._quantity)


@keras.saving.register_keras_serializable(package="keras_calib")
class NLL(_ProperScore):
    """Negative log-likelihood (NLL), streaming and exact.

    Use it to choose between models by one number, which measures calibration
    and accuracy together. For soft labels it is the cross entropy, in nats.

    NLL = mean_n -log p_y

    `interval()` depends on the losses of wrong predictions. With fewer than
    five, its upper end assumes one more loss of 85.2 nats, or of -log `clip`.

    Sums stop at 3.5e13. If the sum of the losses reaches it, the value is a
    lower bound, and `result()` warns. If only the sums of their squares or
    cubes do, the value is exact and the interval is (0, inf).

    Args:
        clip: Lower bound on probabilities, in (0, 1]. Published tables clip
            at 1e-15 or 1e-12. None, the default, clips at 1e-37, and only if
            predictions are probabilities or a logit is -inf.
        num_bins: Number of bins of `decomposition()`.
        name: Name of the metric.
        **kwargs: Those of `StreamingMetric`, such as `from_logits`.

    Example:

    >>> metric = NLL()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.5697

    Reference:
        That of the function `nll`.
    """

    _quantity = "nll"
    _largest = None

    def __init__(
        self,
        *,
        clip: float | None = None,
        num_bins: int = 15,
        **kwargs: Unpack[MetricOptions],
    ):
        proper.check_clip(clip)
        super().__init__((nll_of_records(clip),), num_bins, **kwargs)
        self._keep(clip=clip)


@keras.saving.register_keras_serializable(package="keras_calib")
class BrierScore(_ProperScore):
    """Brier score, streaming and exact.

    Use it like `NLL` to choose between models, when a few very wrong
    predictions should not dominate: a sample adds at most 2.

    mean_n sum_k (p_k - y_k)^2, in [0, 2], summed over all classes

    The function `brier_score` says what it is of votes.

    Args:
        num_bins: Number of bins of the decompositions.
        num_classes: Number of classes, at least 2, for `murphy()`. None, the
            default, keeps no sums by class.
        name: Name of the metric.
        **kwargs: The other arguments of `NLL`, without `clip`.

    Example:

    >>> metric = BrierScore()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        That of the function `brier_score`.
    """

    _quantity = "brier_score"
    _largest = 2.0

    def __init__(
        self,
        *,
        num_bins: int = 15,
        num_classes: int | None = None,
        **kwargs: Unpack[MetricOptions],
    ):
        parts, values = {}, (brier_of_records,)
        if num_classes is not None:
            check_integer("num_classes", num_classes, 2)
            check_integer("num_bins", num_bins, 1)
            parts["classes"] = ClassForecastSummary(num_classes, num_bins)
            # The score is the last of them.
            values = (_squares_of_records, brier_of_records)
        super().__init__(values, num_bins, parts=parts, **kwargs)
        self._keep(num_classes=num_classes)

    def murphy(self) -> proper.BrierComponents:
        """Murphy's decomposition of the score, as of `brier_decomposition`.

        A soft label is its largest class in all but the score: use the function
        for soft labels. Raises ValueError if `num_classes` is None.
        """
        if self.num_classes is None:
            raise value_error(
                "`num_classes` must be given for `murphy()`", num_classes=None
            )
        readings = self._read()
        score = float(QUANTITIES["brier_score"].value(readings, self))
        squares = float(readings.moments(0).mean)
        return proper.brier_parts(*readings.by_class(), score, squares)

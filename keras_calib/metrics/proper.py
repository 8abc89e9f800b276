"""Proper scores: they reward the true probabilities."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_calib.formulas.binned_errors import Decomposition
from keras_calib.formulas.binned_errors import decompose
from keras_calib.formulas.proper import brier_losses
from keras_calib.formulas.proper import check_clip
from keras_calib.formulas.proper import log_losses
from keras_calib.formulas.proper import summable_losses
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.states.bins import BinSummary
from keras_calib.metrics.states.composite import CompositeSummary
from keras_calib.metrics.states.moments import MomentSummary

__all__ = ["BrierScore", "NLL", "brier_of_records", "nll_of_records"]


def nll_of_records(clip: float | None) -> Callable:
    """The log losses of records, a value of `MomentSummary`."""

    def value(records):
        rows = records.rows
        losses = log_losses(
            rows.labels, rows.outputs, from_logits=rows.from_logits, clip=clip
        )
        return summable_losses(losses), None

    return value


def brier_of_records(records):
    """The Brier losses of records, a value of `MomentSummary`."""
    rows = records.rows
    losses = brier_losses(
        rows.labels, rows.outputs, from_logits=rows.from_logits
    )
    return ops.maximum(losses, 0.0), None


class _ProperScore(StreamingMetric):
    """A mean of losses, and the bins that say what it is made of."""

    def __init__(
        self, value: Any, num_bins: int, *, name: str | None, **kwargs: Any
    ):
        summary = CompositeSummary(
            losses=MomentSummary(value, needs_rows=True),
            bins=BinSummary(num_bins),
        )
        summary.needs_rows = True
        super().__init__(summary, name=name, **kwargs)
        self._keep(num_bins=num_bins)

    def decomposition(self) -> Decomposition:
        """Calibration and refinement of the score of the binned confidence.

        The event is that the prediction is right, forecast by the mean
        confidence of its bin. It is no split of `result()`, which looks at
        all classes.

        Returns:
            Two floats, for NLL in nats, see `calibration_decomposition`.
        """
        return decompose(self._read().bins, self._quantity)


@keras.saving.register_keras_serializable(package="keras_calib")
class NLL(_ProperScore):
    """Negative log-likelihood, streaming and exact.

    NLL = mean_n -log p_y, in nats; for soft labels the cross entropy.

    `interval()` rests on the losses of wrong predictions. With fewer than
    five of these its upper end is that with one more loss of 85.2 nats, or
    of -log `clip`. Sums beyond 3.5e13 stay there: `result()` is then a lower
    bound, and warns. Where only the squares or cubes of the losses are
    beyond, the value is right and the interval (0, inf).

    Args:
        clip: Lower bound on probabilities, in (0, 1]; published tables clip
            at 1e-15 or 1e-12. None, the default, clips only probabilities
            that are given, at 1e-37; a logit of -inf counts as that too.
        num_bins: Number of bins of `decomposition()`.
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness`,
            `pixels_per_image`, `seed` and `dtype` of `StreamingMetric`.

    Example:

    >>> metric = NLL()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.5697

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        section 2, https://arxiv.org/abs/1706.04599
    """

    _quantity = "nll"
    _largest = None

    def __init__(
        self,
        *,
        clip: float | None = None,
        num_bins: int = 15,
        name: str | None = None,
        **kwargs: Any,
    ):
        check_clip(clip)
        super().__init__(nll_of_records(clip), num_bins, name=name, **kwargs)
        self._keep(clip=clip)


@keras.saving.register_keras_serializable(package="keras_calib")
class BrierScore(_ProperScore):
    """Brier score, streaming and exact.

    mean_n sum_k (p_k - y_k)^2, in [0, 2], summed over all classes.

    Args:
        num_bins: Number of bins of `decomposition()`.
        name: Name of the metric.
        **kwargs: As in `NLL`.

    Example:

    >>> metric = BrierScore()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.4

    Reference:
        Brier, Verification of Forecasts Expressed in Terms of Probability,
        Monthly Weather Review 1950,
        https://doi.org/10.1175/1520-0493(1950)078<0001:VOFEIT>2.0.CO;2

    Differs:
        For two classes it is twice the squared error of the probability of
        the second, which some libraries call the Brier score.
    """

    _quantity = "brier"
    _largest = 2.0

    def __init__(
        self, *, num_bins: int = 15, name: str | None = None, **kwargs: Any
    ):
        super().__init__(brier_of_records, num_bins, name=name, **kwargs)

"""Focal losses whose gamma depends on the sample (FLSD, AdaFocal)."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_above
from keras_calib.inputs.checks import check_at_least
from keras_calib.inputs.checks import check_number
from keras_calib.losses.base import PerSampleLoss
from keras_calib.losses.focal import signed_focal

__all__ = ["FLSD", "adaptive_focal", "flsd"]

_FLSD_53 = ((0.2, 5.0), (1.0, 3.0))


def flsd(
    labels: Any,
    logits: Any,
    *,
    gammas: Sequence[Sequence[float]] = _FLSD_53,
) -> Any:
    """Focal loss with a gamma that depends on the sample: see `FLSD`.

    Args:
        labels: One-hot labels `(..., num_classes)`.
        logits: Logits `(..., num_classes)`.
        gammas: Rows (threshold, gamma), thresholds ascending.

    Returns:
        Losses `(...)`, in nats.
    """

    def choose(p):
        values = ops.convert_to_tensor([g for _, g in gammas], dtype=p.dtype)
        rows = ops.zeros_like(p, dtype="int32")
        for threshold, _ in gammas[:-1]:
            rows = rows + ops.cast(p >= threshold, "int32")
        return ops.take(values, rows)

    return signed_focal(labels, logits, choose)


def adaptive_focal(labels: Any, logits: Any, *, edges: Any, gammas: Any) -> Any:
    """AdaFocal: a gamma for each bin of the true class's probability.

    -(1 - p_y)^gamma log p_y where gamma >= 0, else -(1 + p_y)^|gamma| log p_y

    gamma is that of the bin that holds p_y, a constant of the derivative.

    Args:
        labels: One-hot labels `(..., num_classes)`.
        logits: Logits `(..., num_classes)`.
        edges: Ascending edges of the bins `(num_bins + 1,)`. Bins hold their
            lower edge; the outer bins take all beyond the edges.
        gammas: One per bin `(num_bins,)`.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        Ghosh, Schaaf and Gormley, AdaFocal: Calibration-aware Adaptive Focal
        Loss, NeurIPS 2022, https://arxiv.org/abs/2211.11838

    Differs:
        The released code adds 1e-20 to 1 - p_y and sums over the batch.
    """

    def choose(p):
        inner = ops.cast(edges, p.dtype)[1:-1]
        index = ops.searchsorted(inner, ops.reshape(p, (-1,)), side="right")
        gamma = ops.take(ops.cast(gammas, p.dtype), index)
        return ops.reshape(gamma, ops.shape(p))

    return signed_focal(labels, logits, choose)


@keras.saving.register_keras_serializable(package="keras_calib")
class FLSD(PerSampleLoss):
    """Focal loss with a gamma that depends on the sample.

    -(1 - p_y)^gamma(p_y) log p_y

    By default gamma is 5 where p_y < 0.2 and 3 elsewhere (FLSD-53). It is a
    constant of the derivative. Labels must be hard: class ids or one-hot.

    Args:
        gammas: Rows (threshold, gamma), thresholds ascending, gamma >= 0. The
            first row with p_y < threshold counts, else the last one.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = FLSD(from_logits=True)
    >>> round(float(loss([0], [[0.0, 2.0]])), 4)
    1.1275

    Reference:
        Mukhoti et al., Calibrating Deep Neural Networks using Focal Loss,
        NeurIPS 2020, section 5, https://arxiv.org/abs/2002.09437

    Differs:
        The released code has three rows, ((0.2, 5), (0.5, 3), (1, gamma)),
        equal to the paper's two for gamma = 3, and sums over the batch
        (`reduction="sum"`).
    """

    needs_hard_labels = True

    def __init__(
        self,
        gammas: Sequence[Sequence[float]] = _FLSD_53,
        *,
        name: str = "flsd",
        **kwargs: Any,
    ):
        gammas = _read_table(gammas)
        super().__init__(flsd, gammas=gammas, name=name, **kwargs)


def _read_table(gammas: Any) -> list[list[float]]:
    try:
        table = [[float(x) for x in row] for row in gammas]
    except (TypeError, ValueError):
        table = []
    if not table or any(len(row) != 2 for row in table):
        raise value_error(
            "`gammas` must be rows of (threshold, gamma)", gammas=gammas
        )
    for threshold, gamma in table:
        check_number("gammas", threshold)
        check_at_least("gammas", gamma, 0.0)
    for (low, _), (high, _) in zip(table, table[1:], strict=False):
        check_above("gammas", high, low)
    return table

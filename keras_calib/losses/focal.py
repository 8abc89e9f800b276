"""The focal family: cross entropy scaled by a power of the probability.

Derivation: docs/derivations.md, 'Gradients of the losses'.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import keras
import numpy as np
from keras import backend, ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_above, check_at_least, check_number
from keras_calib.losses.base import LossOptions, PerSampleLoss
from keras_calib.losses.closed_forms import (
    of_softmax,
    reads_ids,
    through_true_class,
)
from keras_calib.numerics.arrays import as_numbers, at_least, shape_of

_TINY = 1e-30
_FLSD_53 = ((0.2, 5.0), (1.0, 3.0))


@reads_ids
def focal_loss(labels: Any, logits: Any, *, gamma: float = 3.0) -> Any:
    """Focal loss without class weights, one value per sample.

    Use it inside a loss of your own; compile with `FocalLoss`.

    -sum_k labels_k (1 - p_k)^gamma log p_k

    Args:
        labels, logits: One-hot or soft labels, and logits `(..., num_classes)`.
        gamma: As in `FocalLoss`.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        That of `FocalLoss`.
    """

    def closed_form(targets, parts):
        dtype = backend.standardize_dtype(parts.probs.dtype)
        p = targets.pick(parts.probs)
        # At least one step of rounding below 1: where p rounds to 1, log p is
        # not always 0, and a negative power of less would make it large.
        q = at_least(1.0 - p, float(np.finfo(dtype).epsneg))
        weight = targets.weigh(_power(q, gamma - 1.0))
        part = weight * targets.log_probs(parts)
        value = -ops.sum(q * part, axis=-1)

        def gradient():
            # d loss / d log p_k, then through the softmax.
            slope = gamma * (p * part) - weight * q
            total = ops.sum(slope, axis=-1, keepdims=True)
            return targets.place(slope) - parts.probs * total

        return value, gradient

    return of_softmax(labels, logits, closed_form)


@reads_ids
def inverse_focal_loss(labels: Any, logits: Any, *, gamma: float = 2.0) -> Any:
    """Inverse focal loss, one value per sample.

    Use it inside a loss of your own; compile with `InverseFocalLoss`.

    -(1 + p_y)^gamma log p_y

    Args:
        labels, logits: One-hot labels, and logits `(..., num_classes)`.
        gamma: As in `InverseFocalLoss`.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        That of `InverseFocalLoss`.
    """
    return signed_focal(labels, logits, lambda p: -gamma * ops.ones_like(p))


def signed_focal(labels: Any, logits: Any, choose: Callable) -> Any:
    """`adaptive_focal` with a function that maps p_y `(...)` to gamma."""

    def closed_form(targets, parts):
        # Rounding can leave a log p of 1e-8.
        log_p = -at_least(targets.cross_entropy(parts), 0.0)
        # Not exp(log p), which rounds to another side of a threshold.
        p = targets.mean(parts.probs)
        gamma = ops.stop_gradient(choose(p))
        base = ops.where(gamma < 0.0, 1.0 + p, -ops.expm1(log_p))
        base = at_least(base, _TINY)
        lower = ops.power(base, ops.abs(gamma) - 1.0)
        value = -lower * base * log_p

        def gradient():
            slope = gamma * lower * p * log_p - lower * base
            return through_true_class(targets, parts, slope)

        return value, gradient

    return of_softmax(labels, logits, closed_form)


@reads_ids
def flsd(
    labels: Any, logits: Any, *, gammas: Sequence[Sequence[float]] = _FLSD_53
) -> Any:
    """Sample-dependent focal loss, one value per sample.

    Use it inside a loss of your own; compile with `FLSD`.

    -(1 - p_y)^gamma(p_y) log p_y, which jumps where gamma does

    Args:
        labels, logits: One-hot labels, and logits `(..., num_classes)`.
        gammas: As in `FLSD`.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        That of `FLSD`.
    """

    def choose(p):
        # The row of the table that each p_y belongs to.
        row = ops.zeros_like(p, dtype="int32")
        for threshold, _ in gammas[:-1]:
            row = row + ops.cast(p >= threshold, "int32")
        values = ops.convert_to_tensor([g for _, g in gammas], dtype=p.dtype)
        return ops.take(values, row)

    return signed_focal(labels, logits, choose)


@reads_ids
def adaptive_focal(labels: Any, logits: Any, *, edges: Any, gammas: Any) -> Any:
    """AdaFocal: focal loss with a gamma for each bin of p_y.

    Use it in a training loop of your own that updates the gammas.
    `AdaptiveFocalModel` does so from the validation data after each epoch.

    -(1 - p_y)^gamma log p_y where gamma >= 0, else -(1 + p_y)^|gamma| log p_y

    gamma is that of the bin that holds p_y, the probability of the true class.
    No gradient flows through it.

    Args:
        labels, logits: One-hot labels, and logits `(..., num_classes)`.
        edges: Ascending edges of the bins `(num_bins + 1,)`. Bins include
            their lower edge. The outer bins extend beyond the outer edges.
        gammas: Gamma of each bin `(num_bins,)`.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        Ghosh, Schaaf and Gormley, AdaFocal: Calibration-aware Adaptive Focal
        Loss, NeurIPS 2022, https://arxiv.org/abs/2211.11838

    Differs:
        The released code adds 1e-20 to 1 - p_y and sums over the batch.
    """
    edges, gammas = as_numbers(edges, "edges"), as_numbers(gammas, "gammas")
    if (shape := shape_of(edges)) != tuple(n + 1 for n in shape_of(gammas)):
        raise value_error("`edges` must be one more than `gammas`", edges=shape)

    def choose(p):
        inner = ops.cast(edges, p.dtype)[1:-1]
        index = ops.searchsorted(inner, ops.reshape(p, (-1,)), side="right")
        gamma = ops.take(ops.cast(gammas, p.dtype), index)
        return ops.reshape(gamma, ops.shape(p))

    return signed_focal(labels, logits, choose)


def _power(x: Any, exponent: float) -> Any:
    """x^exponent for x > 0, by products for exponents up to 4."""
    if exponent in (1.0, 2.0, 3.0, 4.0):
        return math.prod([x] * (int(exponent) - 1), start=x)
    return ops.ones_like(x) if exponent == 0.0 else ops.power(x, exponent)


@keras.saving.register_keras_serializable(package="keras_calib")
class FocalLoss(PerSampleLoss):
    """Focal loss: less weight for samples that are predicted well.

    Use it against overconfidence in long trainings. Check the mean confidence
    against the accuracy, because it can leave a model underconfident.

    -sum_k labels_k (1 - p_k)^gamma log p_k

    Args:
        gamma: Exponent, >= 0. 0 gives cross entropy.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = FocalLoss(gamma=2.0, from_logits=True)
    >>> round(float(loss([0], [[1.0, 0.0]])), 4)
    0.0227

    Reference:
        Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, eq. 4,
        https://arxiv.org/abs/1708.02002; for calibration: Mukhoti et al.,
        Calibrating Deep Neural Networks using Focal Loss, NeurIPS 2020,
        https://arxiv.org/abs/2002.09437

    Differs:
        Mukhoti et al. train with the sum over the batch
        (`reduction="sum"`); the default here is the mean.
        `keras.losses.CategoricalFocalCrossentropy` multiplies by 0.25; there
        are no class weights here.
    """

    def __init__(self, gamma: float = 3.0, **kwargs: Unpack[LossOptions]):
        check_at_least("gamma", gamma, 0.0)
        super().__init__(focal_loss, gamma=gamma, **kwargs)


@keras.saving.register_keras_serializable(package="keras_calib")
class InverseFocalLoss(PerSampleLoss):
    """Inverse focal loss: more weight for samples that are predicted well.

    Use it when you calibrate after training: its authors find that
    overconfident networks are easier to repair than regularised ones.

    -(1 + p_y)^gamma log p_y

    Labels must be hard: class ids or one-hot.

    Args:
        gamma: Exponent, >= 0. 0 gives cross entropy. The default is this
            library's choice.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = InverseFocalLoss(gamma=2.0, from_logits=True)
    >>> round(float(loss([0], [[1.0, 0.0]])), 4)
    0.9387

    Reference:
        Wang, Feng and Zhang, Rethinking Calibration of Deep Neural Networks:
        Do Not Be Afraid of Overconfidence, NeurIPS 2021,
        https://openreview.net/forum?id=NJS8kp15zzH

    Differs:
        No code of the authors is public. The formula is that of AdaFocal for
        a negative gamma.
    """

    needs_hard_labels = True

    def __init__(self, gamma: float = 2.0, **kwargs: Unpack[LossOptions]):
        check_at_least("gamma", gamma, 0.0)
        super().__init__(inverse_focal_loss, gamma=gamma, **kwargs)


@keras.saving.register_keras_serializable(package="keras_calib")
class FLSD(PerSampleLoss):
    """Sample-dependent focal loss: gamma is larger for harder samples.

    Use it in place of `FocalLoss` when one gamma does not suit all samples.

    -(1 - p_y)^gamma(p_y) log p_y

    By default gamma is 5 where p_y < 0.2 and 3 elsewhere (FLSD-53). No gradient
    flows through gamma. Labels must be hard: class ids or one-hot.

    Args:
        gammas: Rows (threshold, gamma), thresholds ascending, gamma >= 0. The
            first row with p_y < threshold gives gamma, else the last one.
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
        which equal the paper's two for gamma = 3. It sums over the batch
        (`reduction="sum"`).
    """

    needs_hard_labels = True

    def __init__(
        self,
        gammas: Sequence[Sequence[float]] = _FLSD_53,
        **kwargs: Unpack[LossOptions],
    ):
        gammas = _read_table(gammas)
        super().__init__(flsd, gammas=gammas, **kwargs)


def _read_table(gammas: Any) -> list[list[float]]:
    try:
        table = [[float(x) for x in row] for row in gammas]
    except (TypeError, ValueError):
        table = []
    if not table or any(len(row) != 2 for row in table):
        rule = "`gammas` must be rows of (threshold, gamma)"
        raise value_error(rule, gammas=gammas)
    check_number("gammas", table[0][0])
    for _, gamma in table:
        check_at_least("gammas", gamma, 0.0)
    for (low, _), (high, _) in zip(table, table[1:], strict=False):
        check_above("gammas", high, low)
    return table

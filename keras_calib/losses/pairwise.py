"""Calibration by pairwise constraints (CPC).

Derivation: docs/derivations.md, 'Gradients of the losses'.
"""

from typing import Any, Unpack

import keras
from keras import ops

from keras_calib.inputs.checks import check_at_least
from keras_calib.losses.base import LossOptions, PerSampleLoss
from keras_calib.losses.closed_forms import of_softmax, reads_ids
from keras_calib.numerics.arrays import safe_divide, tanh


@reads_ids
def cpc(
    labels: Any, logits: Any, *, lambda1: float = 0.1, lambda2: float = 1.0
) -> Any:
    """Calibration by pairwise constraints, one value per sample.

    Use it inside a loss of your own; compile with `CPC`.

    CE + lambda1 B + lambda2 E, with the terms B and E of `CPC`

    Memory is that of a few copies of the logits. Time grows with the square of
    the number of classes.

    Args:
        labels, logits: One-hot labels, logits z `(..., num_classes)`.
        lambda1, lambda2: As in `CPC`.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        That of `CPC`.
    """

    def closed_form(targets, parts):
        labels = targets.rows()
        wrong = (1.0 - labels) * parts.allowed
        num_others = ops.sum(wrong, axis=-1, keepdims=True)
        true = ops.sum(labels * parts.shifted, axis=-1, keepdims=True)
        ahead = parts.shifted - true
        value = targets.cross_entropy(parts)
        rate = lambda1 * safe_divide(wrong, num_others)
        value = value + ops.sum(rate * ops.softplus(ahead), axis=-1)
        slope = None
        if lambda2 and labels.shape[-1] > 2:
            apart, slope = _exclusion(labels, parts)
            value = value + lambda2 * apart

        def gradient():
            binary = rate * ops.sigmoid(ahead)
            total = ops.sum(binary, axis=-1, keepdims=True)
            result = parts.probs + binary - labels * (1.0 + total)
            return result if slope is None else result + lambda2 * slope

        return value, gradient

    return of_softmax(labels, logits, closed_form)


def _exclusion(labels: Any, parts: Any) -> tuple[Any, Any]:
    """E of `cpc`, `(...)`, and its gradient `(..., num_classes)`."""
    logits = parts.shifted
    num_others = logits.shape[-1] - 1
    shape = ops.shape(logits)
    true = labels[..., :-1] > 0.5

    def columns_of(x):
        # The last class in the place of the true one: only wrong ones are
        # left. Classes first, so that a shift by some is one piece of memory.
        others = ops.where(true, x[..., -1:], x[..., :-1])
        return ops.transpose(ops.reshape(others, (-1, num_others)))

    allowed = columns_of(parts.allowed)
    values, slopes = _all_pairs(columns_of(logits), allowed)
    count = ops.sum(allowed, axis=0)
    scale = safe_divide(ops.ones_like(count), count * (count - 1.0))
    values = ops.reshape(scale * values, shape[:-1])
    slopes = ops.transpose(scale * slopes)
    slopes = ops.reshape(slopes, (*shape[:-1], num_others))
    nothing = ops.zeros_like(slopes)
    moved = ops.where(true, slopes, nothing)
    slopes = ops.concatenate(
        [
            slopes - moved,
            ops.sum(moved, axis=-1, keepdims=True)
            + ops.zeros_like(logits[..., -1:]),
        ],
        axis=-1,
    )
    return values, slopes


def _all_pairs(columns: Any, allowed: Any) -> tuple[Any, Any]:
    """Sum over allowed pairs of log(2 cosh(d / 2)), and its gradient."""
    count = columns.shape[0]
    twice = ops.concatenate([columns, columns], axis=0)
    allowed_twice = ops.concatenate([allowed, allowed], axis=0)
    size = ops.shape(columns)

    def add(shift, sums):
        values, slopes = sums
        half = 0.5 * (columns - ops.slice(twice, (shift, 0), size))
        tilt = tanh(half)
        pair = ops.abs(half) - ops.log(0.5 + 0.5 * ops.abs(tilt))
        # Half way round, each pair comes twice.
        share = ops.where(ops.equal(2 * shift, count), 0.5, 1.0)
        share = ops.cast(share, columns.dtype) * allowed
        share = share * ops.slice(allowed_twice, (shift, 0), size)
        pull = (0.5 * share) * tilt
        back = ops.concatenate([pull, pull], axis=0)
        back = ops.slice(back, (count - shift, 0), size)
        return values + ops.sum(share * pair, axis=0), slopes + pull - back

    start = (ops.zeros_like(columns[0]), ops.zeros_like(columns))
    return ops.fori_loop(1, count // 2 + 1, add, start)


@keras.saving.register_keras_serializable(package="keras_calib")
class CPC(PerSampleLoss):
    """Calibration by pairwise constraints on the classes.

    Use it with at most some hundred classes, because its time grows with the
    square of their number.

    CE + lambda1 B + lambda2 E, with s(x) = log(1 + exp(x))

    - B = mean_{k != y} s(z_k - z_y) compares the true class with each other.
    - E is the mean of s(z_k - z_l) / 2 over ordered pairs k != l, both != y.
      It is smallest where the wrong classes are equally likely.

    Labels must be hard: class ids or one-hot.

    Args:
        lambda1: Coefficient of the binary discrimination constraints B, >= 0.
        lambda2: Coefficient of the binary exclusion constraints E, >= 0. Only
            E takes time that grows with the square of the number of classes.
            0 leaves it out.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = CPC(from_logits=True)
    >>> round(float(loss([0], [[2.0, 0.0, 0.0]])), 4)
    0.5988

    Reference:
        Cheng and Vasconcelos, Calibrating Deep Neural Networks by Pairwise
        Constraints, CVPR 2022,
        https://openaccess.thecvf.com/content/CVPR2022/html/Cheng_Calibrating_Deep_Neural_Networks_by_Pairwise_Constraints_CVPR_2022_paper.html

    Differs:
        No code of the authors is public. Normalisation and coefficients
        follow the code of CALS (Liu et al., CVPR 2023). That code also pairs
        each class with itself, which adds lambda2 log 2 / (2 (K - 2)) and
        leaves the gradient as it is. The supplement of ACLS sums over pairs and
        takes both logarithms of each: `lambda1` times K - 1, and `lambda2`
        times 4 (K - 1) (K - 2).
    """

    needs_hard_labels = True

    def __init__(
        self,
        lambda1: float = 0.1,
        lambda2: float = 1.0,
        **kwargs: Unpack[LossOptions],
    ):
        check_at_least("lambda1", lambda1, 0.0)
        check_at_least("lambda2", lambda2, 0.0)
        super().__init__(cpc, lambda1=lambda1, lambda2=lambda2, **kwargs)

"""Margin-based label smoothing (MbLS), and its successor ACLS.

Derivation: docs/derivations.md, 'Gradients of the losses'.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypedDict, Unpack

import keras
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_at_least, check_in, check_rows
from keras_calib.inputs.options import filled
from keras_calib.losses.base import LossOptions, PerSampleLoss
from keras_calib.losses.closed_forms import mark_first, of_softmax, reads_ids
from keras_calib.numerics.arrays import (
    as_numbers,
    at_least,
    at_least_float32,
    shape_of,
)


@reads_ids
def mbls(
    labels: Any,
    logits: Any,
    *,
    margin: float = 10.0,
    strength: float = 0.1,
    class_reduction: str = "mean",
) -> Any:
    """Margin-based label smoothing, one value per sample.

    Use it inside a loss of your own; compile with `MbLS`.

    CE + strength mean_k relu(max_j z_j - z_k - margin)

    Args:
        labels, logits: One-hot or soft labels, logits z `(..., num_classes)`.
        margin, strength, class_reduction: As in `MbLS`.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        That of `MbLS`.
    """

    def closed_form(targets, parts):
        mean = class_reduction == "mean"
        rate = strength / parts.num_allowed if mean else strength
        over = ops.relu(-margin - parts.kept)
        added = rate * ops.sum(over, axis=-1, keepdims=True)
        value = targets.cross_entropy(parts) + ops.squeeze(added, axis=-1)

        def gradient():
            pull = rate * ops.sign(over)
            slope = targets.subtract_from(parts.probs) - pull
            # The gradient runs through the maximum too, so pulls sum to 0.
            top = ops.equal(parts.shifted, 0.0)
            total = ops.sum(pull, axis=-1, keepdims=True)
            return slope + mark_first(top, total.dtype) * total

        return value, gradient

    return of_softmax(labels, logits, closed_form)


class Penalties(TypedDict, total=False):
    """The forms of the penalties, as `ACLS` explains them."""

    reference: Annotated[str, "min"]
    smoothing: Annotated[str, "adaptive"]
    condition: Annotated[str, "margin"]


@reads_ids
def acls(
    labels: Any,
    logits: Any,
    *,
    margin: float = 10.0,
    lambda1: float = 0.1,
    lambda2: float = 0.01,
    active: Any = None,
    **options: Unpack[Penalties],
) -> Any:
    """Adaptive and conditional label smoothing, one value per sample.

    Use it inside a loss of your own; compile with `ACLS`.

    CE + lambda1 positive^2 + lambda2 / (K - 1) sum_k r_k^2
    with r_k = relu(max_j z_j - z_k - margin) and positive = max_k r_k

    Args:
        labels, logits: One-hot or soft labels, logits z `(..., num_classes)`.
        margin, lambda1, lambda2, reference, smoothing, condition: As in `ACLS`.
        active: Factor of both penalties per sample `(...)`, such as 0 or 1
            from a ranking condition, or None for 1. No gradient flows into it.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        That of `ACLS`.
    """
    given = filled("acls", options, Penalties)
    through_min = given.reference == "min"
    penalty, rate = _penalty(given.smoothing, given.condition)

    def closed_form(targets, parts, factor=None):
        dtype, kept = parts.probs.dtype, parts.kept
        share = lambda2 / at_least(parts.num_allowed - 1.0, 1.0)
        over = -margin - kept
        counted = None
        top = ops.equal(parts.shifted, 0.0)
        if factor is not None:
            factor = ops.expand_dims(factor, -1)
        if through_min:
            lowest = ops.min(kept, axis=-1, keepdims=True)
            positive = -margin - lowest
            strength = lambda1
        else:
            # The released code sums over all classes that tie at the maximum.
            positive = parts.largest - margin
            tied = ops.sum(ops.cast(top, dtype), axis=-1, keepdims=True)
            strength = lambda1 * tied
        if given.condition == "margin":
            over, positive = ops.relu(over), ops.relu(positive)
        else:
            # Without the relu, the maximum would be penalised by its own
            # distance of -margin.
            counted = ops.cast(ops.less(kept, 0.0), dtype)
        negative = _times(penalty(over), counted)
        negative = ops.sum(negative, axis=-1, keepdims=True)
        added = strength * penalty(positive) + share * negative
        added = ops.squeeze(_times(added, factor), axis=-1)
        value = targets.cross_entropy(parts) + added

        def gradient():
            pull = _times(rate(over, share), counted)
            to_max = rate(positive, strength)
            pull, to_max = _times(pull, factor), _times(to_max, factor)
            slope = targets.subtract_from(parts.probs) - pull
            if through_min:
                bottom = ops.equal(parts.shifted, lowest)
                slope = slope - mark_first(bottom, dtype) * to_max
                # Unlike in the released code, r_k pulls at the maximum too.
                to_max = to_max + ops.sum(pull, axis=-1, keepdims=True)
            return slope + mark_first(top, dtype) * to_max

        return value, gradient

    if active is not None:
        logits = at_least_float32(logits)
        active = ops.stop_gradient(ops.cast(active, logits.dtype))
        check_rows("active", active, logits)
    return of_softmax(labels, logits, closed_form, None, active)


def _penalty(smoothing: str, condition: str) -> tuple[Callable, Callable]:
    """Cost of a distance beyond the margin, and its slope times a factor."""
    if smoothing == "adaptive":
        return ops.square, lambda over, factor: (2.0 * factor) * over
    sign = ops.sign if condition == "margin" else ops.ones_like
    return (lambda over: over), lambda over, factor: factor * sign(over)


def _times(x: Any, factor: Any) -> Any:
    return x if factor is None else x * factor


@keras.saving.register_keras_serializable(package="keras_calib")
class MbLS(PerSampleLoss):
    """Margin-based label smoothing: a linear penalty on distant logits.

    Use it in place of label smoothing when only very confident predictions
    should be pulled back.

    CE + strength mean_k relu(max_j z_j - z_k - margin)

    The penalty is linear in the distance of every logit that is more than
    `margin` below the largest. Closer logits are left alone. The gradient also
    runs through the maximum. Among tied classes it goes to the first.

    Args:
        margin: Distance to the largest logit without penalty, >= 0. ACLS
            reports 6 for CIFAR-10.
        strength: Coefficient of the penalty, >= 0.
        class_reduction: `"mean"` over the classes, as in the released code, or
            `"sum"`.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = MbLS(margin=1.0, from_logits=True)
    >>> round(float(loss([0], [[4.0, 0.0, 0.0]])), 4)
    0.236

    Reference:
        Liu et al., The Devil is in the Margin: Margin-based Label Smoothing
        for Network Calibration, CVPR 2022, https://arxiv.org/abs/2111.15430

    Differs:
        The paper writes a sum over the classes. The released code takes the
        mean, and its strength of 0.1 belongs to the mean.
    """

    def __init__(
        self,
        margin: float = 10.0,
        *,
        strength: float = 0.1,
        class_reduction: str = "mean",
        **kwargs: Unpack[LossOptions],
    ):
        check_at_least("margin", margin, 0.0)
        check_at_least("strength", strength, 0.0)
        check_in("class_reduction", class_reduction, ("mean", "sum"))
        super().__init__(
            mbls,
            margin=margin,
            strength=strength,
            class_reduction=class_reduction,
            **kwargs,
        )


@keras.saving.register_keras_serializable(package="keras_calib")
class ACLS(PerSampleLoss):
    """Adaptive and conditional label smoothing: squared penalties on logits.

    Use it in place of MbLS when the penalty should grow with the distance
    between logits, with a strength of its own for the predicted class.

    CE + lambda1 positive^2 + lambda2 / (K - 1) sum_k r_k^2
    with r_k = relu(max_j z_j - z_k - margin) and positive = max_k r_k

    Args:
        margin: Distance to the largest logit without penalty, >= 0. The paper
            uses 6 for CIFAR-10.
        lambda1: Coefficient of the predicted class, >= 0.
        lambda2: Coefficient of the other classes, >= 0.
        reference: `"min"` is the formula above, eq. 13 with its full
            gradient. `"zero"` is the released code: positive becomes
            relu(max_j z_j - margin), added once for each class tied at the
            maximum, and no gradient flows through the maximum in r_k. It
            needs `from_logits=True`. The published tables seem to use
            `"zero"`; show both when you reproduce them.
        smoothing: `"adaptive"` for the squares. `"constant"` for linear
            penalties; this is only the conditional part of ACLS.
        condition: `"margin"` is the formula above. `"none"` leaves out the
            relu, and the terms of classes at the maximum; this is only the
            adaptive part of ACLS. `"ranking"` is that times a factor per
            sample, the last column of the labels, which
            `CorrectnessRankingModel(role="condition")` adds.
        **kwargs: `name` and arguments of `PerSampleLoss`, `from_logits` too.

    Example:

    >>> loss = ACLS(margin=1.0, from_logits=True)
    >>> round(float(loss([0], [[4.0, 0.0, 0.0]])), 4)
    1.026

    Reference:
        Park et al., ACLS: Adaptive and Conditional Label Smoothing for
        Network Calibration, ICCV 2023, eq. 13,
        https://arxiv.org/abs/2308.11911

    Differs:
        Eq. 13 gives no normalisation; both forms use that of the code. Without
        gradients through the maximum and minimum, eq. 12 makes training
        diverge, so `"min"` has the full gradient of eq. 13. The paper's
        ablations have no released code: `smoothing` and `condition` are this
        library's interpretation of them.
    """

    def __init__(
        self,
        margin: float = 10.0,
        *,
        lambda1: float = 0.1,
        lambda2: float = 0.01,
        reference: str = "min",
        smoothing: str = "adaptive",
        condition: str = "margin",
        **kwargs: Unpack[LossOptions],
    ):
        check_at_least("margin", margin, 0.0)
        check_at_least("lambda1", lambda1, 0.0)
        check_at_least("lambda2", lambda2, 0.0)
        check_in("reference", reference, ("min", "zero"))
        check_in("smoothing", smoothing, ("adaptive", "constant"))
        check_in("condition", condition, ("margin", "none", "ranking"))
        from_logits = kwargs.get("from_logits", False)
        if reference == "zero" and not from_logits:
            raise value_error(
                '`reference` "zero" is not shift-invariant and needs '
                "`from_logits=True`",
                reference=reference,
                from_logits=from_logits,
            )
        super().__init__(
            acls,
            margin=margin,
            lambda1=lambda1,
            lambda2=lambda2,
            reference=reference,
            smoothing=smoothing,
            condition=condition,
            **kwargs,
        )

    @property
    def needs_penalty_mask(self) -> bool:  # type: ignore[override]  # read only
        """Whether labels end in a factor of the penalty per sample."""
        return self.hyperparameters["condition"] == "ranking"

    def split_labels(self, y_true, rules=None):
        if not self.needs_penalty_mask:
            return y_true, {}
        y_true = ops.convert_to_tensor(as_numbers(y_true, "y_true"))
        shape = shape_of(y_true)
        if len(shape) < 2 or shape[-1] == 1:
            raise value_error(
                "`y_true` must end in a factor per sample, as "
                '`CorrectnessRankingModel(role="condition")` adds it',
                **{"y_true.shape": shape},
            )
        return y_true[..., :-1], {"active": y_true[..., -1]}


def with_penalty_mask(labels: Any, logits: Any, active: Any) -> Any:
    """Append the factor of the penalty that `ACLS` reads to the labels."""
    labels = ops.cast(labels, "float32")
    if len(labels.shape) < len(logits.shape):
        labels = ops.expand_dims(labels, -1)
    factor = ops.expand_dims(ops.cast(active, "float32"), -1)
    return ops.concatenate([labels, factor], axis=-1)

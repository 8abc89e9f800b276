"""Scores of single predictions: relaxed labels, penalties, the Brier score.

Derivation: docs/derivations.md, 'Gradients of the losses'.
"""

import math
from typing import Any, Unpack

import keras
from keras import ops

from keras_calib.inputs.checks import check_at_least, check_in, check_share
from keras_calib.losses.base import LossOptions, PerSampleLoss
from keras_calib.losses.closed_forms import (
    of_softmax,
    reads_ids,
    through_true_class,
)
from keras_calib.numerics.arrays import at_least

_TINY = 1e-30


@reads_ids
def label_relaxation(labels: Any, logits: Any, *, alpha: float = 0.1) -> Any:
    """Label relaxation, one value per sample.

    Use it inside a loss of your own; compile with `LabelRelaxation`.

    0 where p_y >= 1 - alpha, else
    (1 - alpha) log((1 - alpha) / p_y) + alpha log(alpha / (1 - p_y))

    Args:
        labels, logits: One-hot labels, and logits `(..., num_classes)`.
        alpha: As in `LabelRelaxation`.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        That of `LabelRelaxation`.
    """
    constant = _xlogx(1.0 - alpha) + _xlogx(alpha)

    def closed_form(targets, parts):
        log_p = -targets.cross_entropy(parts)
        bound = math.log1p(-alpha) if alpha < 1.0 else -math.inf
        # NaN is not inside; of its negation TensorFlow would make `<`.
        inside = log_p >= bound
        # Outside, 1 - p_y > alpha: no cancellation that matters.
        safe = ops.where(inside, -1.0, log_p)
        q = at_least(-ops.expm1(safe), _TINY)
        value = constant - (1.0 - alpha) * log_p - alpha * ops.log(q)
        value = ops.where(inside, 0.0, value)

        def gradient():
            slope = alpha * (1.0 - q) / q - (1.0 - alpha)
            slope = ops.where(inside, 0.0, slope)
            return through_true_class(targets, parts, slope)

        return value, gradient

    return of_softmax(labels, logits, closed_form)


@reads_ids
def confidence_penalty(
    labels: Any,
    logits: Any,
    *,
    beta: float = 0.1,
    class_reduction: str = "sum",
    threshold: float | None = None,
) -> Any:
    """Cross entropy minus the entropy of the prediction, per sample.

    Use it inside a loss of your own; compile with `ConfidencePenalty`.

    CE - beta H, or CE + beta relu(threshold - H); H = -sum_k p_k log p_k

    Args:
        labels, logits: One-hot or soft labels, and logits `(..., num_classes)`.
        beta, class_reduction, threshold: As in `ConfidencePenalty`.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        That of `ConfidencePenalty`.
    """

    def closed_form(targets, parts):
        scale = parts.num_allowed if class_reduction == "mean" else 1.0
        entropy = -ops.sum(
            parts.probs * parts.log_probs, axis=-1, keepdims=True
        )
        penalty, rate = -entropy, beta / scale
        if threshold is not None:
            penalty = ops.relu(threshold * scale - entropy)
            rate = beta / scale * ops.sign(penalty)
        penalty = ops.squeeze(beta / scale * penalty, axis=-1)

        def gradient():
            # d entropy / d z_k = -p_k (log p_k + entropy)
            pull = rate * parts.log_probs + (1.0 + rate * entropy)
            return targets.subtract_from(parts.probs * pull)

        return targets.cross_entropy(parts) + penalty, gradient

    return of_softmax(labels, logits, closed_form)


@reads_ids
def uniformity_penalty(
    labels: Any, logits: Any, *, strength: float = 1.0
) -> Any:
    """Cross entropy plus the L1 distance of the prediction to uniform.

    Use it inside a loss of your own; compile with `UniformityPenalty`.

    CE + strength sum_k |p_k - 1 / K|

    Args:
        labels, logits: One-hot or soft labels, and logits `(..., num_classes)`.
        strength: As in `UniformityPenalty`.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        That of `UniformityPenalty`.
    """

    def closed_form(targets, parts):
        excess = parts.probs - parts.allowed / parts.num_allowed
        distance = ops.sum(ops.abs(excess), axis=-1)
        value = targets.cross_entropy(parts) + strength * distance

        def gradient():
            side = strength * ops.sign(excess)
            mean = ops.sum(parts.probs * side, axis=-1, keepdims=True)
            return targets.subtract_from(parts.probs * (1.0 + side - mean))

        return value, gradient

    return of_softmax(labels, logits, closed_form)


@reads_ids
def brier_loss(labels: Any, logits: Any) -> Any:
    """Brier score of each sample, with a gradient in closed form.

    Use it inside a loss of your own; compile with `BrierLoss`.

    sum_k (p_k - labels_k)^2

    Args:
        labels, logits: One-hot or soft labels, and logits `(..., num_classes)`.

    Returns:
        Losses `(...)`, in [0, 2].

    Reference:
        That of `BrierLoss`.
    """

    def closed_form(targets, parts):
        distance = targets.subtract_from(parts.probs)

        def gradient():
            moment = ops.sum(parts.probs * distance, axis=-1, keepdims=True)
            return 2.0 * parts.probs * (distance - moment)

        return ops.sum(ops.square(distance), axis=-1), gradient

    return of_softmax(labels, logits, closed_form)


def _xlogx(x: float) -> float:
    return x * math.log(x) if x > 0 else 0.0


@keras.saving.register_keras_serializable(package="keras_calib")
class LabelRelaxation(PerSampleLoss):
    """Label relaxation: no loss once the true class has p >= 1 - alpha.

    Use it in place of label smoothing when correct predictions should be free
    to be as confident as they like.

    0 where p_y >= 1 - alpha, else
    (1 - alpha) log((1 - alpha) / p_y) + alpha log(alpha / (1 - p_y))

    The second line is the divergence from the nearest label that gives the
    true class 1 - alpha. Labels must be hard: class ids or one-hot.

    Args:
        alpha: Probability left to the other classes, in [0, 1]. 0 gives cross
            entropy; the paper tries 0.01 to 0.4.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = LabelRelaxation(alpha=0.1, from_logits=True)
    >>> round(float(loss([0], [[1.0, 0.0]])), 4)
    0.0882
    >>> float(loss([0], [[9.0, 0.0]]))
    0.0

    Reference:
        Lienen and Hüllermeier, From Label Smoothing to Label Relaxation,
        AAAI 2021, eq. 5, https://ojs.aaai.org/index.php/AAAI/article/view/17041

    Differs:
        The authors' first code clips probabilities at 1e-7. This closed form
        in log space keeps value and gradient there.
    """

    needs_hard_labels = True

    def __init__(self, alpha: float = 0.1, **kwargs: Unpack[LossOptions]):
        check_share("alpha", alpha)
        super().__init__(label_relaxation, alpha=alpha, **kwargs)


@keras.saving.register_keras_serializable(package="keras_calib")
class ConfidencePenalty(PerSampleLoss):
    """Cross entropy with a reward for the entropy of the prediction.

    Use it to keep predictions away from certainty. Choose beta by a calibration
    error: beta chosen by accuracy can leave a network far underconfident.

    CE - beta H, H = -sum_k p_k log p_k

    With a threshold the loss is CE + beta relu(threshold - H). Without one it
    can be negative.

    Args:
        beta: Coefficient of the entropy, >= 0.
        class_reduction: `"sum"` over the classes is the entropy of the paper,
            `"mean"` the baseline in the tables of MbLS and ACLS.
        threshold: Entropy in nats, >= 0, above which there is no penalty. None
            rewards entropy at all levels.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = ConfidencePenalty(beta=0.1, from_logits=True)
    >>> round(float(loss([0], [[1.0, 0.0]])), 4)
    0.255

    Reference:
        Pereyra et al., Regularizing Neural Networks by Penalizing Confident
        Output Distributions, 2017, https://arxiv.org/abs/1701.06548

    Differs:
        The MbLS code divides the entropy by the number of classes K
        (`class_reduction="mean"`), so its beta of 0.1 is K times weaker.
    """

    def __init__(
        self,
        beta: float = 0.1,
        *,
        class_reduction: str = "sum",
        threshold: float | None = None,
        **kwargs: Unpack[LossOptions],
    ):
        check_at_least("beta", beta, 0.0)
        check_in("class_reduction", class_reduction, ("sum", "mean"))
        if threshold is not None:
            check_at_least("threshold", threshold, 0.0)
        super().__init__(
            confidence_penalty,
            beta=beta,
            class_reduction=class_reduction,
            threshold=threshold,
            **kwargs,
        )


@keras.saving.register_keras_serializable(package="keras_calib")
class UniformityPenalty(PerSampleLoss):
    """Cross entropy plus the L1 distance of the prediction to uniform.

    Use it to compare with the L1 baseline in the code of MbLS.

    CE + strength sum_k |p_k - 1 / K|

    Args:
        strength: Coefficient of the distance, >= 0.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = UniformityPenalty(strength=0.5, from_logits=True)
    >>> round(float(loss([0], [[1.0, 0.0]])), 4)
    0.5443

    Reference:
        Liu et al., The Devil is in the Margin: Margin-based Label Smoothing
        for Network Calibration, CVPR 2022, released code,
        https://github.com/by-liu/MbLS
    """

    def __init__(self, strength: float = 1.0, **kwargs: Unpack[LossOptions]):
        check_at_least("strength", strength, 0.0)
        super().__init__(uniformity_penalty, strength=strength, **kwargs)


@keras.saving.register_keras_serializable(package="keras_calib")
class BrierLoss(PerSampleLoss):
    """Brier score as a loss: the squared distance from prediction to label.

    Use it when single samples, such as wrong labels, must not dominate: it is
    a proper score like cross entropy, but a sample costs at most 2.

    sum_k (p_k - labels_k)^2

    Args:
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = BrierLoss(from_logits=True)
    >>> round(float(loss([0], [[1.0, 0.0]])), 4)
    0.1447

    Reference:
        Brier, Verification of Forecasts Expressed in Terms of Probability,
        Monthly Weather Review 78, 1950; for calibration: Mukhoti et al.,
        Calibrating Deep Neural Networks using Focal Loss, NeurIPS 2020,
        https://arxiv.org/abs/2002.09437

    Differs:
        Some authors call half of it the Brier score of two classes: the
        squared error of the probability of the second class.
    """

    def __init__(self, **kwargs: Unpack[LossOptions]):
        super().__init__(brier_loss, **kwargs)

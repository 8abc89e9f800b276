"""Cross entropy with hard, smoothed and calibrated labels.

Derivation: docs/derivations.md, 'Gradients of the losses'.
"""

import math
from functools import partial
from typing import Any, Unpack

import keras
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.formulas.targets import (
    check_beta_and_floor,
    even_share,
    objectness_targets,
    share_to_spread,
)
from keras_calib.inputs.checks import (
    check_at_most,
    check_in,
    check_rank,
    check_rows,
    class_axis,
)
from keras_calib.inputs.labels import (
    check_ids,
    check_objectness,
    narrowed_ids,
    soft_labels,
    split_objectness,
)
from keras_calib.inputs.rows import both_classes
from keras_calib.inputs.values import SUM_TOLERANCE
from keras_calib.losses.base import LossOptions, PerSampleLoss
from keras_calib.losses.closed_forms import cross_entropy, of_softmax, reads_ids
from keras_calib.numerics.arrays import (
    as_numbers,
    at_least_float32,
    labels_like,
    shape_of,
)
from keras_calib.numerics.softmax import logsumexp, num_allowed


@reads_ids
def label_smoothing(
    labels: Any, logits: Any, *, alpha: float = 0.1, spread: str = "all"
) -> Any:
    """Cross entropy with smoothed labels, one value per sample.

    Use it inside a loss of your own; compile with `LabelSmoothing`.

    -sum_k t_k log p_k with t = (1 - alpha) labels + alpha / K

    With `spread="others"`, alpha / K becomes alpha (1 - labels) / (K - 1).

    Args:
        labels, logits: One-hot or soft labels, and logits `(..., num_classes)`.
        alpha, spread: As in `LabelSmoothing`.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        That of `LabelSmoothing`.
    """
    logits = at_least_float32(logits)
    check_rank("logits", logits, 1, "(..., num_classes)")
    share = even_share(alpha, logits.shape[-1], spread)
    if spread == "others":
        share = partial(even_share, alpha, spread=spread)
    return cross_entropy(labels, logits, share if alpha else None)


def adaptive_label_smoothing(
    labels: Any,
    logits: Any,
    *,
    objectness: Any,
    beta: float = 1.0,
    floor: str | None = None,
    context: Any = None,
) -> Any:
    """Cross entropy with labels smoothed by objectness, per sample.

    Use it inside a loss of your own; compile with `AdaptiveLabelSmoothing`.

    -sum_k t_k log p_k with t_y = 1 - beta alpha, alpha = 1 - objectness

    Each other class has t_k = beta alpha / (K - 1).

    Args:
        labels, logits: One-hot labels, and logits `(..., num_classes)`.
        objectness: Share of the image that the object covers, `(...)`, in
            [0, 1].
        beta, floor: As in `AdaptiveLabelSmoothing`.
        context: Bool `(...)`, True where all objects are painted out and the
            target is uniform, or None.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        That of `AdaptiveLabelSmoothing`.
    """
    logits = at_least_float32(logits)
    labels = labels_like(labels, logits)
    objectness = ops.cast(as_numbers(objectness, "objectness"), logits.dtype)
    how = {"beta": beta, "floor": floor, "context": context}
    # It checks all of them.
    objectness_targets(labels, objectness, logits.shape[-1], **how)
    return _of_rows(labels, logits, objectness=objectness, **how)


def cape_loss(labels: Any, logits: Any, *, classes: Any = None) -> Any:
    """Cross entropy with calibrated targets for one class (CaPE), per sample.

    Use it in a training loop of your own, with targets from `cape_targets`.
    `CaPEModel` does both.

    -q log p_c - (1 - q) log(1 - p_c)

    c is the second of two classes, or that of `classes`.

    Args:
        labels: Probabilities q of the class `(...)` or `(..., 1)`,
            in [0, 1], from `cape_targets`.
        logits: Logits `(..., num_classes)`, or `(..., 1)` for `[0, z]`.
        classes: Class ids c `(...)` that the targets are for. They are the
            classes predicted when `cape_targets(event="predicted")` made the
            targets. None for the second of two classes.

    Returns:
        Losses `(...)`, in nats. In compiled code NaN where `classes` holds no
        class.

    Raises:
        ValueError: If shapes do not fit. In eager mode also if a target or a
            class is out of range.

    Reference:
        Liu et al., Deep Probability Estimation, ICML 2022,
        https://arxiv.org/abs/2111.10734

    Differs:
        The paper has two classes; `classes` is this library's extension.
    """
    logits = at_least_float32(logits)
    class_axis(logits, -1)
    logits = both_classes(logits, from_logits=True)
    labels = ops.cast(as_numbers(labels, "labels"), logits.dtype)
    check_objectness(labels, "`labels` must lie in [0, 1]")
    if len(labels.shape) == len(logits.shape) and labels.shape[-1] == 1:
        # As Keras gives them to a function of one output.
        labels = ops.squeeze(labels, axis=-1)
    check_rows("labels", labels, logits)
    if classes is None:
        if logits.shape[-1] != 2:
            raise value_error(
                "`logits` must have two classes unless `classes` are given",
                **{"logits.shape": shape_of(logits)},
            )
        return cross_entropy(ops.stack([1.0 - labels, labels], -1), logits)
    classes, num_classes = as_numbers(classes, "classes"), logits.shape[-1]
    check_rows("classes", classes, logits)
    check_ids(classes, num_classes, "classes")
    classes = narrowed_ids(classes, num_classes)
    labels = ops.where(classes >= 0, labels, float("nan"))
    rows = soft_labels(classes, num_classes, logits.dtype)
    share = ops.expand_dims(labels, -1)

    def closed_form(events, parts):
        # log(1 - p_c) is a sum over the other classes: 1 - p_c would round to
        # 0 for a sure prediction.
        rest = ops.where(rows > 0.0, -math.inf, parts.log_probs)
        # A share of what is ruled out has no loss.
        alone = ops.sum((1.0 - rows) * parts.allowed, axis=-1) == 0.0
        alone = ops.logical_and(alone, 1.0 - labels > SUM_TOLERANCE)
        right = events.cross_entropy(parts)
        value = right - (1.0 - labels) * logsumexp(rest)
        value = ops.where(alone, float("nan"), value)

        def gradient():
            others = ops.softmax(rest, axis=-1)
            return parts.probs - share * rows - (1.0 - share) * others

        return value, gradient

    return of_softmax(share * rows, logits, closed_form)


@keras.saving.register_keras_serializable(package="keras_calib")
class LabelSmoothing(PerSampleLoss):
    """Label smoothing: cross entropy with smoothed labels.

    Use it to lower overconfidence in training, at about the price of cross
    entropy. It can worsen the ranking of predictions, so check AURC if your
    model abstains.

    -sum_k t_k log p_k with t = `smooth_labels(labels, alpha, spread)`

    With K classes, the true class gets 1 - alpha + alpha / K if `spread="all"`
    (Keras, PyTorch, MbLS, ACLS), and 1 - alpha if `spread="others"` (MDCA,
    SAM). The first with alpha K / (K - 1) equals the second with alpha.

    Args:
        alpha: Share of the label to spread, at most 1. Negative values
            sharpen the label. The tables of MbLS and ACLS use 0.05.
        spread: `"all"` spreads it over all classes, `"others"` over all but
            the true one.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = LabelSmoothing(alpha=0.1, from_logits=True)
    >>> round(float(loss([0, 1], [[2.0, 0.0], [0.0, 2.0]])), 4)
    0.2269

    Reference:
        Szegedy et al., Rethinking the Inception Architecture for Computer
        Vision, CVPR 2016, section 7, https://arxiv.org/abs/1512.00567
    """

    def __init__(
        self,
        alpha: float = 0.1,
        *,
        spread: str = "all",
        **kwargs: Unpack[LossOptions],
    ):
        check_at_most("alpha", alpha, 1.0)
        check_in("spread", spread, ("all", "others"))
        super().__init__(label_smoothing, alpha=alpha, spread=spread, **kwargs)


@reads_ids
def _of_rows(labels, logits, *, objectness, context, beta, floor):
    """`adaptive_label_smoothing` without the checks, which the loss makes."""
    objectness = ops.cast(objectness, logits.dtype)
    count = ops.stop_gradient(num_allowed(logits))
    alpha = share_to_spread(objectness, count, beta, floor, context)
    return cross_entropy(labels, logits, alpha)


@keras.saving.register_keras_serializable(package="keras_calib")
class AdaptiveLabelSmoothing(PerSampleLoss):
    """Label smoothing by how little of the image the object covers.

    Use it when the confidence should say how much of its object a crop shows.

    -sum_k t_k log p_k with t_y = 1 - beta alpha, alpha = 1 - objectness

    The targets t come from `objectness_targets`. Labels are pairs
    `(batch, ..., 2)` on the last axis: class id and objectness, the share of
    the image that the object covers after the same crop. An objectness of -1
    marks an image with all objects painted out. Its target is uniform,
    whatever `beta`.

    Pass `objectness=True` to the metrics of this library beside this loss. The
    metrics of Keras read such pairs wrongly.

    Args:
        beta: Factor of the smoothing, in [0, 1]. 0 gives cross entropy. The
            paper also tries 0.75 and lower.
        floor: None, or `"uniform"`, which caps alpha at (K - 1) / K, so that
            no class is likelier than the true one.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = AdaptiveLabelSmoothing(from_logits=True)
    >>> round(float(loss([[0, 0.75]], [[2.0, 0.0, 0.0]])), 4)
    0.7395

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020, eq. 5,
        https://arxiv.org/abs/2009.06432

    Differs:
        Eq. 6 as printed has the wrong sign on the other classes. This loss
        follows eq. 4 and 5.
    """

    takes_objectness = True

    def __init__(
        self,
        beta: float = 1.0,
        *,
        floor: str | None = None,
        **kwargs: Unpack[LossOptions],
    ):
        check_beta_and_floor(beta, floor)
        kwargs.setdefault("name", "adaptive_label_smoothing")
        super().__init__(_of_rows, beta=beta, floor=floor, **kwargs)

    def split_labels(self, y_true, rules=None):
        ids, *shares = split_objectness(y_true, self.ignore_class, rules)
        return ids, dict(zip(("objectness", "context"), shares, strict=True))

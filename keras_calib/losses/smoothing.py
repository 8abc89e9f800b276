"""Label smoothing."""

from typing import Any

import keras

from keras_calib.checks import check_at_most
from keras_calib.checks import check_in
from keras_calib.gradients import with_gradient
from keras_calib.losses.base import PerSampleLoss
from keras_calib.numerics import at_least_float32
from keras_calib.numerics import softmax_parts
from keras_calib.targets import smooth_labels

__all__ = ["LabelSmoothing", "label_smoothing"]


def label_smoothing(
    labels: Any, logits: Any, *, alpha: float = 0.1, spread: str = "all"
) -> Any:
    """Cross entropy with smoothed labels, one value per sample.

    loss = -sum_k t_k log p_k, t = smooth_labels(labels, alpha, spread)

    Args:
        labels: One-hot or soft labels `(..., num_classes)`.
        logits: Logits `(..., num_classes)`.
        alpha: Share of the label that is moved, at most 1; negative allowed.
        spread: `"all"`: over all classes; `"others"`: over all but the true.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        Szegedy et al., Rethinking the Inception Architecture for Computer
        Vision, CVPR 2016, section 7, https://arxiv.org/abs/1512.00567
    """
    logits = at_least_float32(logits)
    labels = keras.ops.cast(labels, logits.dtype)
    targets = smooth_labels(labels, alpha=alpha, spread=spread)

    def forward(logits):
        parts = softmax_parts(logits)
        return parts.cross_entropy(targets), lambda: parts.probs - targets

    return with_gradient(forward, logits)


@keras.saving.register_keras_serializable(package="keras_calib")
class LabelSmoothing(PerSampleLoss):
    """Cross entropy with smoothed labels.

    With K classes, `spread="all"` (Keras, PyTorch, MbLS, ACLS) asks for
    1 - alpha + alpha / K on the true class; `spread="others"` (MDCA, SAM)
    for 1 - alpha. The first with alpha K / (K - 1) is the second with alpha.

    Args:
        alpha: Share of the label that is moved, at most 1. Negative values
            sharpen the label. Defaults to `0.1`; the MbLS and ACLS tables
            use 0.05.
        spread: `"all"` or `"others"`. Defaults to `"all"`.
        name: Name of the loss.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `reduction` and
            `dtype` of `PerSampleLoss`.

    Returns:
        On call with labels `(batch, ...)` and predictions
        `(batch, ..., num_classes)`: the reduced loss, a scalar.

    Raises:
        ValueError: If `alpha` is above 1 or `spread` is unknown.

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
        name: str = "label_smoothing",
        **kwargs: Any,
    ):
        check_at_most("alpha", alpha, 1.0)
        check_in("spread", spread, ("all", "others"))
        super().__init__(
            label_smoothing, alpha=alpha, spread=spread, name=name, **kwargs
        )

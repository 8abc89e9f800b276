"""The Brier score, as a loss."""

from typing import Any, Unpack

import keras
from keras import ops

from keras_calib.losses.base import LossOptions, PerSampleLoss
from keras_calib.losses.closed_forms import of_softmax, reads_ids


@reads_ids
def brier_loss(labels: Any, logits: Any) -> Any:
    """Brier score of each sample, with a gradient in closed form.

    Use it inside a loss of your own; `BrierLoss` is the class to compile with.

    sum_k (p_k - labels_k)^2

    Derivation: docs/derivations.md, 'Gradients of the losses'.

    Args:
        labels: One-hot or soft labels `(..., num_classes)`.
        logits: Logits `(..., num_classes)`.

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

    def __init__(
        self, *, name: str = "brier_loss", **kwargs: Unpack[LossOptions]
    ):
        super().__init__(brier_loss, name=name, **kwargs)

"""Differences of mean confidence and accuracy over the batch (MDCA, DCA)."""

from typing import Any

import keras
from keras import ops

from keras_calib.backend.gradients import with_gradient
from keras_calib.inputs.checks import check_above
from keras_calib.losses.base import PerSampleLoss
from keras_calib.losses.batch_coupled import BatchCoupledLoss
from keras_calib.losses.closed_forms import correctness
from keras_calib.losses.closed_forms import flat_rows
from keras_calib.losses.closed_forms import top_probability
from keras_calib.numerics.arrays import safe_divide

__all__ = ["DCA", "MDCA", "dca", "mdca"]


def mdca(labels: Any, logits: Any, *, sample_weight: Any = None) -> Any:
    """Mean difference of confidence and frequency over all classes.

    mean_k |mean_n p_nk - mean_n labels_nk|

    Classes that the batch lacks count too. A class whose means agree has no
    gradient.

    Derivation: docs/derivations.md, 'Gradients of the losses'.

    Args:
        labels: One-hot or soft labels `(..., num_classes)`.
        logits: Logits `(..., num_classes)`.
        sample_weight: Weights `(...)`, >= 0, of both means, or None.

    Returns:
        A scalar in [0, 2 / num_classes]; 0 if no sample counts.

    Reference:
        Hebbalaguppe et al., A Stitch in Time Saves Nine: A Train-Time
        Regularizing Loss for Improved Neural Network Calibration, CVPR 2022,
        https://arxiv.org/abs/2203.13834
    """
    labels, logits, weight = flat_rows(labels, logits, sample_weight)
    share = ops.expand_dims(safe_divide(weight, ops.sum(weight)), -1)
    num_classes = logits.shape[-1]

    def forward(logits):
        probs = ops.softmax(logits, axis=-1)
        gaps = ops.sum((probs - labels) * share, axis=0)

        def gradient():
            # p_j sum_k p_k (sign_j - sign_k), which does not cancel where
            # one p is nearly 1.
            over = ops.cast(gaps > 0, probs.dtype)
            under = ops.cast(gaps < 0, probs.dtype)
            p_over = ops.sum(probs * over, axis=-1, keepdims=True)
            p_under = ops.sum(probs * under, axis=-1, keepdims=True)
            even = 1.0 - over - under
            p_even = ops.sum(probs * even, axis=-1, keepdims=True)
            pull = over * (2.0 * p_under + p_even)
            pull = pull - under * (2.0 * p_over + p_even)
            pull = pull + even * (p_under - p_over)
            return share * probs * pull / num_classes

        return ops.sum(ops.abs(gaps)) / num_classes, gradient

    return with_gradient(forward, logits)


def dca(
    labels: Any,
    logits: Any,
    *,
    huber_delta: float | None = None,
    sample_weight: Any = None,
) -> Any:
    """Difference of mean confidence and accuracy.

    |d|, d = mean_n max_k p_nk - mean_n a_n, where a is 1 if the prediction is
    right; with `huber_delta` d^2 / 2 where |d| <= huber_delta, and
    huber_delta (|d| - huber_delta / 2) beyond

    The gradient runs through the confidence, to the first of tied classes.

    Derivation: docs/derivations.md, 'Gradients of the losses'.

    Args:
        labels: One-hot or soft labels `(..., num_classes)`; a soft one is
            right by its share of the predicted class.
        logits: Logits `(..., num_classes)`.
        huber_delta: Where the Huber loss turns linear, > 0; None for |d|.
        sample_weight: Weights `(...)`, >= 0, of both means, or None.

    Returns:
        A scalar in [0, 1]; 0 if no sample counts.

    Reference:
        Liang et al., Improved Trainable Calibration Method for Neural
        Networks on Medical Imaging Classification, BMVC 2020,
        https://arxiv.org/abs/2009.04057
    """
    labels, logits, weight = flat_rows(labels, logits, sample_weight)
    difference = top_probability(logits) - correctness(labels, logits)
    share = safe_divide(weight, ops.sum(weight))
    size = ops.abs(ops.sum(difference * share))
    if huber_delta is None:
        return size
    linear = huber_delta * (size - 0.5 * huber_delta)
    return ops.where(size <= huber_delta, 0.5 * ops.square(size), linear)


@keras.saving.register_keras_serializable(package="keras_calib")
class MDCA(BatchCoupledLoss):
    """A loss plus the difference of confidence and frequency per class.

    fidelity + strength mean_k |mean_n p_nk - mean_n labels_nk|

    Classes that the batch lacks count too. A class whose means agree has no
    gradient.

    Args:
        strength: Coefficient of the term, >= 0; 1 in the paper's examples,
            10 by default in the released script.
        fidelity: As in `BatchCoupledLoss`. The paper's best is
            `FocalLoss(gamma=1.0, from_logits=True)`.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = MDCA(strength=1.0, from_logits=True)
    >>> round(float(loss([0, 1], [[2.0, 0.0], [2.0, 0.0]])), 4)
    1.5077

    Reference:
        Hebbalaguppe et al., A Stitch in Time Saves Nine: A Train-Time
        Regularizing Loss for Improved Neural Network Calibration, CVPR 2022,
        https://arxiv.org/abs/2203.13834

    Differs:
        The supplement of ACLS sums over the classes; the authors take the
        mean.
    """

    def __init__(
        self,
        strength: float = 1.0,
        *,
        fidelity: PerSampleLoss | None = None,
        name: str = "mdca",
        **kwargs: Any,
    ):
        super().__init__(
            mdca, strength=strength, fidelity=fidelity, name=name, **kwargs
        )


@keras.saving.register_keras_serializable(package="keras_calib")
class DCA(BatchCoupledLoss):
    """A loss plus the difference of mean confidence and accuracy.

    fidelity + strength |d|, d = mean_n max_k p_nk - mean_n a_n

    a is 1 if the prediction is right. With `huber_delta`, |d| becomes d^2 / 2
    where |d| <= huber_delta, and huber_delta (|d| - huber_delta / 2) beyond.
    The gradient runs through the confidence, to the first of tied classes.

    With `huber_delta` and `fidelity=FocalLoss(...)` this has the form of the
    regulariser of Patra et al., whose pruning `ConfidencePruningModel` does. No
    constant here is from their paper. The slope of the term is at most strength
    huber_delta: a small delta needs a large strength.

    Args:
        strength: Coefficient of the term, >= 0.
        huber_delta: Where a Huber loss of the difference turns linear, > 0;
            None for the absolute difference.
        fidelity: As in `BatchCoupledLoss`.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = DCA(strength=1.0, from_logits=True)
    >>> round(float(loss([0, 1], [[2.0, 0.0], [2.0, 0.0]])), 4)
    1.5077

    Reference:
        Liang et al., Improved Trainable Calibration Method for Neural
        Networks on Medical Imaging Classification, BMVC 2020,
        https://arxiv.org/abs/2009.04057; with a Huber loss: Patra et al.,
        Calibrating Deep Neural Networks using Explicit Regularisation and
        Dynamic Data Pruning, WACV 2023, https://arxiv.org/abs/2212.10005
    """

    def __init__(
        self,
        strength: float = 1.0,
        *,
        huber_delta: float | None = None,
        fidelity: PerSampleLoss | None = None,
        name: str = "dca",
        **kwargs: Any,
    ):
        if huber_delta is not None:
            check_above("huber_delta", huber_delta, 0.0)
        super().__init__(
            dca,
            strength=strength,
            fidelity=fidelity,
            hyperparameters={"huber_delta": huber_delta},
            name=name,
            **kwargs,
        )

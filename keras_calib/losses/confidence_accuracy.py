"""Mean confidence against accuracy over the batch (MDCA, DCA).

Derivation: docs/derivations.md, 'Gradients of the losses'.
"""

from typing import Any, Unpack

import keras
from keras import ops

from keras_calib.backend.gradients import with_gradient
from keras_calib.inputs.checks import check_above
from keras_calib.losses.base import (
    BatchCoupledLoss,
    LossOptions,
    PerSampleLoss,
)
from keras_calib.losses.closed_forms import (
    Targets,
    correctness,
    flat_rows,
    mask_of,
    reads_ids,
    shown,
    top_probability,
)
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.softmax import softmax_parts


@reads_ids
def mdca(labels: Any, logits: Any, *, sample_weight: Any = None) -> Any:
    """Gap between mean probability and frequency, averaged over the classes.

    Use it inside a loss of your own; `MDCA` is the class to compile with.

    mean_k |mean_n p_nk - mean_n labels_nk|

    Args:
        labels: One-hot or soft labels `(..., num_classes)`.
        logits: Logits `(..., num_classes)`.
        sample_weight: Weights `(...)`, >= 0, of both means, or None.

    Returns:
        A scalar in [0, 2 / num_classes], 0 if all weights are 0.

    Reference:
        That of `MDCA`.
    """
    labels, logits, weight = flat_rows(labels, logits, sample_weight)
    num_classes, targets = logits.shape[-1], Targets(labels, logits)
    share = ops.expand_dims(safe_divide(weight, ops.sum(weight)), -1)
    logits = shown(logits, mask_of(labels))

    def forward(logits):
        probs = softmax_parts(logits).probs
        gaps = ops.sum(targets.subtract_from(probs) * share, axis=0)

        def gradient():
            # p_j sum_k p_k (sign_j - sign_k), which does not cancel where
            # one p is nearly 1.
            over = ops.cast(gaps > 0, probs.dtype)
            under = ops.cast(gaps < 0, probs.dtype)
            p_over = ops.sum(probs * over, axis=-1, keepdims=True)
            p_under = ops.sum(probs * under, axis=-1, keepdims=True)
            even = 1.0 - over - under
            p_even = ops.sum(probs * even, axis=-1, keepdims=True)
            each = share / num_classes
            pull = over * (each * (2.0 * p_under + p_even))
            pull = pull - under * (each * (2.0 * p_over + p_even))
            pull = pull + even * (each * (p_under - p_over))
            return probs * pull

        return ops.sum(ops.abs(gaps)) / num_classes, gradient

    return with_gradient(forward, logits)


@reads_ids
def dca(
    labels: Any,
    logits: Any,
    *,
    huber_delta: float | None = None,
    sample_weight: Any = None,
) -> Any:
    """Gap between mean confidence and accuracy of a batch.

    Use it inside a loss of your own; `DCA` is the class to compile with.

    |d|, d = mean_n max_k p_nk - mean_n a_n, a = 1 if the prediction is correct

    Args:
        labels: One-hot or soft labels `(..., num_classes)`. With a soft label,
            a is its probability of the predicted class.
        logits: Logits `(..., num_classes)`.
        huber_delta: As in `DCA`.
        sample_weight: Weights `(...)`, >= 0, of both means, or None.

    Returns:
        A scalar in [0, 1], 0 if all weights are 0.

    Reference:
        That of `DCA`.
    """
    labels, logits, weight = flat_rows(labels, logits, sample_weight)
    confidence = top_probability(logits, mask_of(labels))
    difference = confidence - correctness(labels, logits)
    share = safe_divide(weight, ops.sum(weight))
    size = ops.abs(ops.sum(difference * share))
    if huber_delta is None:
        return size
    linear = huber_delta * (size - 0.5 * huber_delta)
    return ops.where(size <= huber_delta, 0.5 * ops.square(size), linear)


@keras.saving.register_keras_serializable(package="keras_calib")
class MDCA(BatchCoupledLoss):
    """A loss plus the gap between probability and frequency of each class.

    Use it when the probabilities of all classes must be calibrated, not only
    that of the predicted class. It can be added to any per-sample loss.

    fidelity + strength mean_k |mean_n p_nk - mean_n labels_nk|

    Classes that the batch lacks are included. A class whose two means agree
    has no gradient.

    Args:
        strength: Coefficient of the term, >= 0. The paper's examples use 1,
            the released script 10 by default.
        fidelity: The `PerSampleLoss` to add the term to, or None for cross
            entropy. The paper's best is
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
        The supplement of ACLS sums over the classes. The authors take the
        mean.
    """

    def __init__(
        self,
        strength: float = 1.0,
        *,
        fidelity: PerSampleLoss | None = None,
        name: str = "mdca",
        **kwargs: Unpack[LossOptions],
    ):
        super().__init__(
            mdca, strength=strength, fidelity=fidelity, name=name, **kwargs
        )


@keras.saving.register_keras_serializable(package="keras_calib")
class DCA(BatchCoupledLoss):
    """A loss plus the gap between mean confidence and accuracy.

    Use it when a model is over- or underconfident as a whole. It can be added
    to any per-sample loss.

    fidelity + strength |d|, d = mean_n max_k p_nk - mean_n a_n

    Here a is 1 if the prediction is correct. With `huber_delta`, |d| becomes
    d^2 / 2 where |d| <= huber_delta, and huber_delta (|d| - huber_delta / 2)
    beyond. The gradient runs through the confidence alone. Among tied classes
    it goes to the first.

    With `huber_delta` and `fidelity=FocalLoss(...)` this has the form of the
    regulariser of Patra et al. `ConfidencePruningModel` adds their pruning. No
    constant here is from their paper. The slope of the term is at most strength
    times huber_delta, so a small delta needs a large strength.

    Args:
        strength: Coefficient of the term, >= 0.
        huber_delta: Size of d beyond which the Huber loss is linear, > 0, or
            None for the absolute difference.
        fidelity: The `PerSampleLoss` to add the term to, or None for cross
            entropy.
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
        **kwargs: Unpack[LossOptions],
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

"""Errors of calibration over a batch, as terms of a loss: MDCA, DCA and MMCE.

Derivation: docs/derivations.md, 'Gradients of the losses'.
"""

from typing import Any, Unpack

import keras
from keras import ops

from keras_calib.backend.gradients import with_gradient
from keras_calib.inputs.checks import check_above, check_at_least, check_in
from keras_calib.losses.base import BatchCoupledLoss, CoupledOptions
from keras_calib.losses.closed_forms import (
    Targets,
    correctness,
    flat_rows,
    mask_of,
    reads_ids,
    shown,
    top_probability,
)
from keras_calib.numerics.arrays import at_least, running_sum, safe_divide
from keras_calib.numerics.softmax import softmax_parts

_VARIANTS = ("unweighted", "unweighted_sqrt", "weighted", "weighted_released")
# As in the released code.
_PAIRS_EPSILON = 1e-5
_ROOT_EPSILON = 1e-10
# exp(0.5 / width) must be a float32.
_MIN_WIDTH = 0.01


@reads_ids
def mdca(labels: Any, logits: Any, *, sample_weight: Any = None) -> Any:
    """Gap between mean probability and frequency, averaged over the classes.

    Use it inside a loss of your own; compile with `MDCA`.

    mean_k |mean_n p_nk - mean_n labels_nk|

    Args:
        labels, logits: One-hot or soft labels, and logits `(..., num_classes)`.
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

    Use it inside a loss of your own; compile with `DCA`.

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


@reads_ids
def mmce(
    labels: Any,
    logits: Any,
    *,
    kernel_width: float = 0.4,
    variant: str = "unweighted",
    sample_weight: Any = None,
) -> Any:
    """Maximum mean calibration error of a batch, in time N log N.

    Use it inside a loss of your own; `MMCE` is the class to compile with, and
    gives the formula of each variant.

    Args:
        labels, logits: One-hot labels, and logits `(..., num_classes)`.
        kernel_width, variant: As in `MMCE`.
        sample_weight: Weights `(...)`, >= 0, or None. A sample of weight 2
            counts as two samples, in every N, m and n.

    Returns:
        A scalar in [0, 1], or in [0, sqrt(2)] for the weighted variants. It
        is 0 if all weights are 0. `"weighted_released"` exceeds this if the
        weights of the correct or of the wrong samples sum to less than 1.

    Reference:
        That of `MMCE`.
    """
    labels, logits, weight = flat_rows(labels, logits, sample_weight)
    right = correctness(labels, logits)
    # Columns: the right and the wrong samples.
    groups = ops.stack([weight * right, weight * (1.0 - right)], axis=-1)
    counts = ops.sum(groups, axis=0)
    scales = _scales(counts, variant)
    if variant.startswith("unweighted"):
        counts = ops.sum(counts)
    # Before they are multiplied, as products of small weights would be 0.
    groups = safe_divide(groups, counts)

    def forward(confidence):
        value, gradient = _quadratic_form(
            confidence, right, groups, scales, kernel_width
        )
        if variant == "unweighted":
            return value, gradient
        # All releases add to the square; 0 where nothing is summed.
        root = ops.sqrt(at_least(value, 0.0) + _ROOT_EPSILON)
        root = root * ops.sign(ops.max(scales))
        return root, lambda: safe_divide(0.5 * gradient(), root)

    confidence = top_probability(logits, mask_of(labels))
    return with_gradient(forward, confidence)


def _scales(counts: Any, variant: str) -> Any:
    """Factor of each pair of shares of groups, `(2, 2)`."""
    pairs = ops.expand_dims(counts, 0) * ops.expand_dims(counts, 1)
    if variant == "weighted_released":
        return ops.sign(pairs[0, 1]) / (pairs + _PAIRS_EPSILON)
    return ops.ones_like(pairs) * ops.sign(ops.sum(counts))


def _quadratic_form(confidence, right, groups, scales, width):
    """sum_ij scale_ij e_i e_j k_ij of the weighted errors e, and its slope."""
    order = ops.argsort(confidence)
    ranked = ops.take(confidence, order)
    groups = ops.take(groups, order, axis=0)
    errors = groups * ops.expand_dims(ops.take(right, order) - ranked, -1)
    # exp(-|r - s| / width) is a product on either side of the diagonal.
    up = ops.expand_dims(ops.exp((ranked - 0.5) / width), -1)
    down = ops.expand_dims(ops.exp((0.5 - ranked) / width), -1)
    zero = ops.zeros((1, 2), dtype=errors.dtype)
    below = ops.concatenate([zero, running_sum(errors * up)], axis=0)
    above = ops.flip(running_sum(ops.flip(errors * down, axis=0)), axis=0)
    above = ops.concatenate([above, zero], axis=0)
    # Tied ones get equal sums, whose differences are 0 where they should be.
    start, stop = _tied(ranked)
    above = up * ops.take(above, stop, axis=0)
    pulls = _mix(down * ops.take(below, stop, axis=0) + above, scales)

    def gradient():
        tilts = (above - down * ops.take(below, start, axis=0)) / width
        slope = errors * _mix(tilts, scales) - groups * pulls
        back = _last_place(order)
        return 2.0 * ops.take(ops.sum(slope, axis=-1), back)

    return ops.sum(errors * pulls), gradient


def _tied(ranked: Any) -> tuple[Any, Any]:
    """First and past-the-last index of the ties of each value.

    `searchsorted` would do, but XLA compares all pairs for it.
    """
    steps = ops.not_equal(ranked[1:], ranked[:-1])
    runs = ops.cumsum(ops.cast(steps, "int32"))
    first = ops.zeros_like(ranked[:1], dtype="int32")
    runs = ops.concatenate([first, runs])
    last = ops.take(_last_place(runs), runs)
    count = ops.shape(ranked)[0]
    first_place = count - 1 - _last_place(ops.flip(runs))
    return ops.take(first_place, runs), last + 1


def _last_place(ids: Any) -> Any:
    """Last index of each id in `ids`, the inverse if it is a permutation."""
    count = ops.shape(ids)[0]
    places = ops.arange(count, dtype="int32")
    return ops.cast(ops.segment_max(places, ids, count), "int32")


def _mix(columns: Any, scales: Any) -> Any:
    """Columns `(n, 2)` times scales `(2, 2)`, in their own dtype."""
    return ops.sum(ops.expand_dims(columns, -1) * scales, axis=1)


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

    def __init__(self, strength: float = 1.0, **kwargs: Unpack[CoupledOptions]):
        super().__init__(mdca, strength=strength, **kwargs)


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
        **kwargs: `fidelity`, `name` and arguments of `BatchCoupledLoss`.

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
        **kwargs: Unpack[CoupledOptions],
    ):
        if huber_delta is not None:
            check_above("huber_delta", huber_delta, 0.0)
        super().__init__(
            dca,
            strength=strength,
            hyperparameters={"huber_delta": huber_delta},
            **kwargs,
        )


@keras.saving.register_keras_serializable(package="keras_calib")
class MMCE(BatchCoupledLoss):
    """A loss plus the maximum mean calibration error of the batch.

    Use it to add a calibration error without bins to any per-sample loss.

    fidelity + strength sum_ij (a_i - r_i) (a_j - r_j) k_ij / N^2

    Let r be the confidence, a = 1 where the prediction is correct, and
    k(r, s) = exp(-|r - s| / kernel_width). Among N samples, m are correct and
    n are wrong. The variants of the error are:

    - `"unweighted"`: The sum above.
    - `"unweighted_sqrt"`: The square root of it.
    - `"weighted"`: The root of sum_ij u_i u_j k_ij. Here u is (1 - r) / m for
      correct samples and -r / n for wrong ones.
    - `"weighted_released"`: The same, with the sums over correct, wrong and
      mixed pairs divided by m^2, n^2 and m n once more. It is 0 if no sample
      is correct or none is wrong.

    The gradient runs through r, not through a. Among tied classes it goes to
    the first. Labels must be hard: class ids or one-hot.

    Published strengths belong to a variant. MbLS uses 1.0 with `"unweighted"`.
    With `"weighted_released"` the authors use 4.0, focal calibration 2.0, and
    MDCA 2.0 and 4.0. `"weighted"` is larger than `"weighted_released"` by about
    the number of samples in a group, 20 times for 64 samples.

    Args:
        strength: Coefficient of the term, >= 0.
        kernel_width: Width of the kernel in units of probability, >= 0.01.
            All releases use 0.4.
        variant: One of the four above.
        **kwargs: `fidelity`, `name` and arguments of `BatchCoupledLoss`.

    Example:

    >>> loss = MMCE(strength=1.0, from_logits=True)
    >>> round(float(loss([0, 1], [[2.0, 0.0], [2.0, 0.0]])), 4)
    1.2719

    Reference:
        Kumar et al., Trainable Calibration Measures for Neural Networks from
        Kernel Mean Embeddings, ICML 2018,
        https://proceedings.mlr.press/v80/kumar18a.html

    Differs:
        The paper takes the root of the unweighted form; the releases do not.
        The releases of the weighted form divide by the number of pairs once
        more, so their term shrinks as the batch grows.
    """

    needs_hard_labels = True

    def __init__(
        self,
        strength: float = 1.0,
        *,
        kernel_width: float = 0.4,
        variant: str = "unweighted",
        **kwargs: Unpack[CoupledOptions],
    ):
        check_at_least("kernel_width", kernel_width, _MIN_WIDTH)
        check_in("variant", variant, _VARIANTS)
        super().__init__(
            mmce,
            strength=strength,
            hyperparameters={"kernel_width": kernel_width, "variant": variant},
            **kwargs,
        )

"""Maximum mean calibration error (MMCE).

Derivation: docs/derivations.md, 'Gradients of the losses'.
"""

from typing import Any, Unpack

import keras
from keras import ops

from keras_calib.backend.gradients import with_gradient
from keras_calib.inputs.checks import check_at_least, check_in
from keras_calib.losses.base import (
    BatchCoupledLoss,
    LossOptions,
    PerSampleLoss,
)
from keras_calib.losses.closed_forms import (
    correctness,
    flat_rows,
    mask_of,
    reads_ids,
    top_probability,
)
from keras_calib.numerics.arrays import at_least, running_sum, safe_divide

_VARIANTS = ("unweighted", "unweighted_sqrt", "weighted", "weighted_released")
# As in the released code.
_PAIRS_EPSILON = 1e-5
_ROOT_EPSILON = 1e-10
# exp(0.5 / width) must be a float32.
_MIN_WIDTH = 0.01


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
        labels: One-hot labels `(..., num_classes)`.
        logits: Logits `(..., num_classes)`.
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
        fidelity: The `PerSampleLoss` to add the term to, or None for cross
            entropy.
        **kwargs: `name` and arguments of `PerSampleLoss`.

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
        fidelity: PerSampleLoss | None = None,
        name: str = "mmce",
        **kwargs: Unpack[LossOptions],
    ):
        check_at_least("kernel_width", kernel_width, _MIN_WIDTH)
        check_in("variant", variant, _VARIANTS)
        super().__init__(
            mmce,
            strength=strength,
            fidelity=fidelity,
            hyperparameters={"kernel_width": kernel_width, "variant": variant},
            name=name,
            **kwargs,
        )

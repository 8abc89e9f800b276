"""Proper scores of whole data sets: they reward the true probabilities.

The per-sample scores serve the streaming metrics too.
"""

from typing import Any

import numpy as np

from keras_calib.formulas import binned_errors
from keras_calib.formulas.binned_errors import Decomposition
from keras_calib.functional.binned import equal_width_bins
from keras_calib.inputs.checks import check_above
from keras_calib.inputs.checks import check_at_most
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.readers import read_arrays
from keras_calib.numerics.arrays import PROBABILITY_FLOOR
from keras_calib.numerics.arrays import at_least
from keras_calib.numerics.arrays import namespace
from keras_calib.numerics.arrays import to_logits

__all__ = [
    "LARGEST_LOSS",
    "brier_losses",
    "brier_score",
    "calibration_decomposition",
    "check_clip",
    "log_losses",
    "nll",
    "summable_losses",
]

# In nats, of a probability that is as small as counts.
LARGEST_LOSS = -float(np.log(PROBABILITY_FLOOR))


def nll(
    labels: Any,
    probs: Any,
    *,
    clip: float | None = None,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Negative log-likelihood of a whole data set, in float64.

    NLL = mean_n -log p_y; for soft labels the cross entropy.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels
            `(n, ..., num_classes)`.
        probs: Probabilities `(n, ..., num_classes)`, or `(n, 1)` for the
            second of two classes.
        clip: Lower bound on probabilities, in (0, 1]; published tables clip
            at 1e-15 or 1e-12. None clips at 1e-37.
        from_logits: Whether `probs` are logits.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
        ignore_class: Class id that does not count.

    Returns:
        NLL in nats, >= 0.

    Raises:
        ValueError: If shapes do not fit, there is no sample, or a value is
            out of range.

    Example:

    >>> round(nll([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.5697

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        section 2, https://arxiv.org/abs/1706.04599
    """
    check_clip(clip)
    read = read_arrays(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    losses = log_losses(
        read.labels,
        read.outputs.astype("float64"),
        from_logits=from_logits,
        clip=clip,
    )
    return float(np.average(losses, weights=read.weight))


def brier_score(
    labels: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Brier score of a whole data set, in float64.

    mean_n sum_k (p_k - y_k)^2, summed over all classes.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels
            `(n, ..., num_classes)`.
        probs: Probabilities `(n, ..., num_classes)`, or `(n, 1)` for the
            second of two classes.
        from_logits: Whether `probs` are logits.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
        ignore_class: Class id that does not count.

    Returns:
        Score in [0, 2]; 0 is best.

    Raises:
        ValueError: If shapes do not fit, there is no sample, or a value is
            out of range.

    Example:

    >>> round(brier_score([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.4

    Reference:
        Brier, Verification of Forecasts Expressed in Terms of Probability,
        Monthly Weather Review 78, 1950.

    Differs:
        For two classes it is twice the squared error of the probability of
        the second, which some libraries call the Brier score.
    """
    read = read_arrays(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    losses = brier_losses(
        read.labels, read.outputs.astype("float64"), from_logits=from_logits
    )
    return float(np.average(losses, weights=read.weight))


def calibration_decomposition(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    score: str = "brier",
    closed: str = "right",
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> Decomposition:
    """Calibration and refinement of a proper score, in float64.

    The score of the mean confidence of the bin as the forecast that the
    prediction is right. Calibration + refinement is the mean score of these
    binned forecasts, not of the confidences themselves.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels
            `(n, ..., num_classes)`.
        probs: Probabilities `(n, ..., num_classes)`, or `(n, 1)` for the
            second of two classes.
        num_bins: Number of bins, at least 1.
        score: `"brier"`, the squared error, or `"nll"`, the log score.
        closed: `"right"` for bins (lo, hi], the first with its lower edge;
            `"left"` for [lo, hi), the last with its upper edge.
        from_logits: Whether `probs` are logits.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
        ignore_class: Class id that does not count.

    Returns:
        `(calibration, refinement)`, both >= 0: of `"brier"`
        sum_b w_b gap_b^2 and sum_b w_b acc_b (1 - acc_b); of `"nll"`
        sum_b w_b KL(acc_b || confidence_b) and sum_b w_b H(acc_b), in nats;
        w_b is the share of the samples in bin b.

    Raises:
        ValueError: If shapes do not fit, there is no sample, or a value is
            out of range.

    Example:

    >>> probs = [[0.8, 0.2], [0.6, 0.4]]
    >>> parts = calibration_decomposition([0, 1], probs, num_bins=1)
    >>> [round(part, 4) for part in parts]
    [0.04, 0.25]

    Reference:
        Broecker, Reliability, Sufficiency, and the Decomposition of Proper
        Scores, Quarterly Journal of the Royal Meteorological Society 135,
        2009, https://arxiv.org/abs/0806.0813
    """
    check_in("score", score, ("brier", "nll"))
    sums = equal_width_bins(
        labels,
        probs,
        num_bins=num_bins,
        closed=closed,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    decompose = {
        "brier": binned_errors.brier_decomposition,
        "nll": binned_errors.nll_decomposition,
    }[score]
    return Decomposition(*map(float, decompose(sums)))


def check_clip(clip: float | None) -> None:
    """Raises unless `clip` is None or in (0, 1]."""
    if clip is not None:
        check_above("clip", clip, 0.0)
        check_at_most("clip", clip, 1.0)


def log_losses(
    labels: Any,
    outputs: Any,
    *,
    from_logits: bool,
    clip: float | None = None,
) -> Any:
    """-log p_y of each sample, or cross entropy of soft labels (either).

    Args:
        labels: Class ids `(n,)` or soft labels `(n, num_classes)`.
        outputs: Logits or probabilities `(n, num_classes)`.
        from_logits: Which of the two.
        clip: Lower bound on probabilities, or None.

    Returns:
        Losses in nats `(n,)`.
    """
    xp = namespace(outputs)
    log_p = _log_softmax(outputs) if from_logits else to_logits(outputs)
    if clip is not None:
        log_p = at_least(log_p, float(np.log(clip)))
    if len(labels.shape) > 1:
        # A class ruled out by a logit of -inf costs nothing where it is not.
        log_p = xp.where(labels == 0, xp.zeros_like(log_p), log_p)
        return -xp.sum(labels * log_p, axis=-1)
    # An id that can not be is told elsewhere; here it must not break.
    index = xp.clip(labels, 0, log_p.shape[-1] - 1)
    chosen = xp.take_along_axis(log_p, xp.expand_dims(index, -1), axis=-1)
    return -xp.squeeze(chosen, axis=-1)


def _log_softmax(logits: Any) -> Any:
    """log p of logits, -inf only for a logit of -inf (either).

    Shifted before the sum, whose logarithm would be lost beside logits of
    1e7 in float32.
    """
    xp = namespace(logits)
    top = xp.max(logits, axis=-1, keepdims=True)
    # Half of each, as the difference of the largest numbers overflows.
    largest = 1e38 if "float32" in str(logits.dtype) else 1e307
    gap = at_least(0.5 * logits - 0.5 * top, -largest)
    gap = xp.where(xp.isfinite(logits), 2.0 * gap, logits)
    total = xp.sum(xp.exp(gap), axis=-1, keepdims=True)
    # Without NumPy's warning where all logits are -inf.
    return gap - xp.log(xp.where(total == 0, xp.ones_like(total), total))


def summable_losses(losses: Any) -> Any:
    """Log losses as sums can hold them: in [0, 85.2] nats if infinite (either).

    A logit of -inf that rules the truth out counts as a probability of
    1e-37. Rounding can leave a loss of -1e-8: no sum may run below 0.
    """
    xp = namespace(losses)
    infinite = xp.logical_not(losses < float("inf"))
    losses = xp.where(infinite, xp.full_like(losses, LARGEST_LOSS), losses)
    return at_least(losses, 0.0)


def brier_losses(labels: Any, outputs: Any, *, from_logits: bool) -> Any:
    """sum_k (p_k - y_k)^2 of each sample (either).

    Args:
        labels: Class ids `(n,)` or soft labels `(n, num_classes)`.
        outputs: Logits or probabilities `(n, num_classes)`.
        from_logits: Which of the two.

    Returns:
        Losses in [0, 2], `(n,)`.
    """
    xp = namespace(outputs)
    probs = outputs
    if from_logits:
        probs = xp.exp(_log_softmax(outputs))
    if len(labels.shape) == 1 and xp is np:
        # Much faster than rows of zeros and ones.
        distance = probs if from_logits else probs.copy()
        index = np.clip(labels, 0, probs.shape[-1] - 1)
        distance[np.arange(len(index)), index] -= 1.0
        return np.sum(np.square(distance, out=distance), axis=-1)
    if len(labels.shape) == 1:
        classes = xp.arange(probs.shape[-1], dtype="int32")
        labels = xp.equal(classes, xp.expand_dims(labels, -1))
        labels = xp.where(labels, xp.ones_like(probs), xp.zeros_like(probs))
    return xp.sum(xp.square(probs - labels), axis=-1)

"""Proper scores of each sample: log loss and Brier loss (array-agnostic).

Labels are class ids `(n,)` or soft labels `(n, num_classes)`. Outputs are
logits or probabilities `(n, num_classes)`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_calib.backend.compiled import take_at
from keras_calib.formulas.intervals import Moments, mean_interval
from keras_calib.inputs.batch import Batch
from keras_calib.inputs.checks import check_share
from keras_calib.numerics.arrays import array_namespace, at_least, safe_divide
from keras_calib.numerics.results import Result
from keras_calib.numerics.row_blocks import block_slices
from keras_calib.numerics.softmax import PROBABILITY_FLOOR, to_logits

# Log loss of the smallest probability, in nats.
LARGEST_LOSS = -float(np.log(PROBABILITY_FLOOR))
# With fewer wrong predictions, the variance of their losses is unknown.
_ENOUGH_ERRORS = 5.0
# NumPy adds fewer numbers than this one by one.
_FEW = 8


class BrierComponents(Result):
    """Result of `brier_decomposition`: parts of a Brier score.

    reliability - resolution + uncertainty + within_bin_variance -
    within_bin_covariance is the score.

    Attributes:
        reliability: Squared gaps between mean probability and share of the
            class. It is 0 if they are equal in every bin.
        resolution: Variance of these shares between the bins; more is better.
        uncertainty: Variance of the labels, whatever is predicted.
        within_bin_variance: Variance of the probabilities inside bins.
        within_bin_covariance: Twice the covariance of probabilities and
            labels inside bins. It is above 0 if the probabilities know more
            of the labels than their bins tell.
    """

    reliability: float
    resolution: float
    uncertainty: float
    within_bin_variance: float
    within_bin_covariance: float

    @property
    def within_bins(self) -> float:
        """What bins hide, of either sign: variance less covariance."""
        return self.within_bin_variance - self.within_bin_covariance


def brier_parts(
    mass: np.ndarray,
    forecast: np.ndarray,
    positive: np.ndarray,
    score: float,
    squares: float,
    uncertainty: float | None = None,
) -> BrierComponents:
    """Parts of a Brier score, from sums by class and bin `(K, num_bins)`.

    `squares` is the mean of sum_k p_k^2. `uncertainty` is that of soft labels;
    None computes that of class ids.

    Derivation: docs/derivations.md, 'Binned errors'.
    """
    count = mass.sum(axis=-1, keepdims=True)
    weight = safe_divide(mass, count)
    share, base = safe_divide(positive, mass), positive.sum(-1, keepdims=True)
    base = safe_divide(base, count)
    gap = safe_divide(forecast - positive, mass)
    if uncertainty is None:
        uncertainty = float(np.sum(base * (1.0 - base)))
    reliability = float(np.sum(weight * gap**2))
    resolution = float(np.sum(weight * (share - base) ** 2))
    within = score - (reliability - resolution + uncertainty)
    between = float(np.sum(weight * safe_divide(forecast, mass) ** 2))
    # Rounding may leave less than 0 where all probabilities of a bin agree.
    variance = max(squares - between, 0.0)
    return BrierComponents(
        reliability, resolution, uncertainty, variance, variance - within
    )


def check_clip(clip: float | None) -> None:
    """Raise unless `clip` is None or in (0, 1]."""
    if clip is not None:
        check_share("clip", clip, positive=True)


def loss_interval(
    moments: Moments,
    errors: Any,
    *,
    level: float = 0.95,
    largest: float | None = None,
    clip: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Interval of mean losses, from their moments.

    With less than five `errors`, an effective number of wrong predictions,
    losses without a limit get the largest of a log loss as unseen. `largest`
    is the largest loss that is possible, or None, and `clip` the lower bound
    on the probabilities of log losses, or None.
    """
    ends = mean_interval(moments, level=level, unseen=(0.0, largest))
    low, high = np.maximum(ends[0], 0.0), ends[1]
    if largest is not None:
        return low, np.minimum(high, largest)
    unseen = LARGEST_LOSS if clip is None else -float(np.log(clip))
    further = mean_interval(moments, level=level, unseen=(0.0, unseen))[1]
    return low, np.where(np.asarray(errors) < _ENOUGH_ERRORS, further, high)


def log_losses(
    labels: Any, outputs: Any, *, from_logits: bool, clip: float | None = None
) -> Any:
    """-log p_y of each sample in nats, or cross entropy of soft labels.

    `clip` is a lower bound on probabilities, or None. Losses are at least 0,
    because rows may sum to a little more than 1.
    """
    xp, of_ids = array_namespace(outputs), len(labels.shape) == 1
    if of_ids and not from_logits and xp is np:
        # Only the probabilities of the labels are needed.
        index = np.clip(labels, 0, outputs.shape[-1] - 1)
        outputs = np.take_along_axis(outputs, index[:, None], axis=-1)
        labels = np.zeros_like(labels)
    log_p = _log_softmax(outputs) if from_logits else to_logits(outputs)
    if clip is not None:
        log_p = at_least(log_p, float(np.log(clip)))
    if not of_ids:
        # A logit of -inf costs nothing: its class has no label mass, up to a
        # tolerance.
        nothing = xp.logical_or(labels == 0, log_p == -float("inf"))
        log_p = xp.where(nothing, xp.zeros_like(log_p), log_p)
        return at_least(-xp.sum(labels * log_p, axis=-1), 0.0)
    # Impossible ids are reported elsewhere, and must not raise here.
    index = xp.clip(labels, 0, log_p.shape[-1] - 1)
    return at_least(-take_at(log_p, index), 0.0)


def losses_of_rows(
    losses: Callable[..., Any], rows: Batch, dtype: str = "float32"
) -> Any:
    """Losses of each sample; NumPy rows are read block by block in `dtype`."""
    if array_namespace(rows.outputs) is not np:
        return losses(rows.labels, rows.outputs, from_logits=rows.from_logits)
    values = [
        losses(
            rows.labels[part],
            rows.outputs[part].astype(dtype, copy=False),
            from_logits=rows.from_logits,
        )
        for part in block_slices(rows.outputs)
    ]
    return np.concatenate(values)


def brier_losses_of_rows(rows: Batch, dtype: str = "float32") -> Any:
    """Brier losses of each sample; of votes, the mean over the votes.

    Derivation: docs/derivations.md, 'Votes'.
    """
    losses = losses_of_rows(brier_losses, rows, dtype)
    if not rows.votes:
        return losses
    xp = array_namespace(rows.labels)
    squares = xp.sum(xp.square(rows.labels), axis=-1)
    return losses + (1.0 - squares)


def _log_softmax(logits: Any) -> Any:
    """log p of logits, -inf only for a logit of -inf.

    Logits are shifted before the sum, because float32 would lose the logarithm
    of the sum beside logits of 1e7.
    """
    xp, axis = array_namespace(logits), -1
    few = xp is np and logits.ndim == 2 and logits.shape[-1] < _FEW
    if few:
        # Sums of few classes are the same by columns, and faster.
        logits, axis = np.ascontiguousarray(logits.T), 0
    top = xp.max(logits, axis=axis, keepdims=True)
    # Halves are subtracted, because the largest differences overflow.
    largest = 1e38 if "float32" in str(logits.dtype) else 1e307
    gap = at_least(0.5 * logits - 0.5 * top, -largest)
    gap = xp.where(xp.isfinite(logits), 2.0 * gap, logits)
    total = xp.sum(xp.exp(gap), axis=axis, keepdims=True)
    # This avoids a warning of NumPy if all logits are -inf.
    log_p = gap - xp.log(xp.where(total == 0, xp.ones_like(total), total))
    return log_p.T if few else log_p


def summable_losses(losses: Any) -> Any:
    """Make log losses summable: 85.2 nats where infinite."""
    xp = array_namespace(losses)
    infinite = xp.logical_not(losses < float("inf"))
    return xp.where(infinite, xp.full_like(losses, LARGEST_LOSS), losses)


def brier_losses(labels: Any, outputs: Any, *, from_logits: bool) -> Any:
    """sum_k (p_k - y_k)^2 of each sample, in [0, 2]."""
    xp = array_namespace(outputs)
    probs = outputs
    if from_logits:
        probs = xp.exp(_log_softmax(outputs))
    if len(labels.shape) == 1 and xp is np:
        # This is much faster than one-hot labels.
        distance = probs if from_logits else probs.copy()
        index = np.clip(labels, 0, probs.shape[-1] - 1)
        distance[np.arange(len(index)), index] -= 1.0
        return np.sum(np.square(distance, out=distance), axis=-1)
    if len(labels.shape) == 1:
        classes = xp.arange(probs.shape[-1], dtype="int32")
        labels = xp.equal(classes, xp.expand_dims(labels, -1))
        labels = xp.where(labels, xp.ones_like(probs), xp.zeros_like(probs))
    return xp.sum(xp.square(probs - labels), axis=-1)


def squared_probabilities(
    labels: Any, outputs: Any, *, from_logits: bool
) -> Any:
    """sum_k p_k^2 of each sample, in (0, 1]."""
    xp = array_namespace(outputs)
    probs = xp.exp(_log_softmax(outputs)) if from_logits else outputs
    return xp.sum(xp.square(probs), axis=-1)

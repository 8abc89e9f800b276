"""Targets for fits of samples that are all on the right side.

Their likelihood rises for ever with the confidence. Laplace's rule of
succession gives what n samples without an error support: a probability of
(n + 1) / (n + 2). Platt trains on such targets, here only these fits do.
"""

import numpy as np

from keras_calib.backend.errors import invalid, warn
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.inputs.top_label import hard_labels

# A class that is ruled out by a logit of -1e9 takes no part of a label: its
# lead exceeds the median lead by this factor.
_RULED_OUT = 1e4
# The lead of a class that a logit of -inf for all others leaves alone.
NO_OTHER = 1e18


def supported_samples(samples: FittingData) -> FittingData:
    """The samples, with smoothed labels and a warning if none is wrong.

    The likelihood of a temperature then has no optimum. It costs a look at
    the first samples only, unless these are all right.
    """
    if has_error(samples):
        return samples
    smoothed = _smoothed(samples)
    if smoothed is not samples:
        warn(
            invalid(
                "The data have no optimal temperature, as the model classifies "
                "every sample right: the more confident, the better. Each "
                "label is taken as right with probability (n + 1) / (n + 2) "
                "instead. Fit on more held-out samples, some of which are "
                "wrong",
                samples=int(samples.counts().sum()),
                errors=0,
            )
        )
    return smoothed


def has_error(samples: FittingData) -> bool:
    """Whether a label that counts is below the largest logit, or is soft."""
    for block in samples.blocks():
        z, ids = block.logits, hard_labels(block.labels)
        row = np.arange(len(z))
        below = z[row, ids] < z.max(axis=-1)
        if block.labels.ndim == 2:
            below |= block.soft_labels()[row, ids] < 1.0
        if block.weight is not None:
            below &= block.weight > 0
        if below.any():
            return True
    return False


def _smoothed(samples: FittingData) -> FittingData:
    """Labels that keep (n + 1) / (n + 2); the next class has the rest.

    The next class is that of the largest other logit: shares of classes far
    below would say that the model is wrong about all of them.
    """
    share = 1.0 / (samples.effective_count() + 2.0)
    labels = np.zeros(samples.logits.shape, "float32")
    leads = np.zeros(len(labels))
    following = np.zeros(len(labels), "int64")
    for rows, block in samples.placed_blocks():
        z, ids = block.logits, hard_labels(block.labels)
        row = np.arange(len(z))
        own = z[row, ids]
        z[row, ids] = -np.inf
        following[rows] = z.argmax(axis=-1)
        leads[rows] = own - z.max(axis=-1)
        chosen = np.zeros(z.shape, "float32")
        chosen[row, ids] = 1.0
        labels[rows] = chosen
    lead = leads[samples.counts()]
    lead = lead[(lead > 0.0) & (lead < NO_OTHER)]
    if not len(lead):
        # Every temperature gives the same answers.
        return samples
    limit = _RULED_OUT * np.median(lead)
    row = np.flatnonzero(leads <= limit)
    labels[row] *= 1.0 - share
    labels[row, following[row]] += share
    return samples._replace(labels=labels)


def is_separated(
    loss: float, labels: np.ndarray, weight: np.ndarray | None
) -> bool:
    """Whether a fit of mean NLL `loss` puts all samples on the right side.

    Otherwise at least one sample costs log 2 or more. Soft labels between 0
    and 1 always have an optimum.
    """
    least = 1.0 / len(labels)
    if weight is not None:
        least = weight[weight > 0].min() / weight.sum()
    if loss >= least * np.log(2.0):
        return False
    return _are_hard(labels)


def _are_hard(labels: np.ndarray) -> bool:
    """Whether labels are class ids, or shares of 0 and 1."""
    if labels.ndim == 1 and labels.dtype.kind != "f":
        return True
    return bool(np.all((labels == 0) | (labels == 1)))


def has_threshold(
    scores: np.ndarray, labels: np.ndarray, weight: np.ndarray | None
) -> bool:
    """Whether each label 1 has a higher score than each label 0.

    A ridge on the bias gives such a fit an optimum, but a slope without limit
    the nearer the threshold is to 0.
    """
    if not _are_hard(labels):
        return False
    if weight is not None:
        scores, labels = scores[weight > 0], labels[weight > 0]
    first, second = scores[labels == 0], scores[labels == 1]
    return bool(first.size and second.size and second.min() > first.max())


def platt_targets(labels: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Platt's targets of n_0 labels 0 and n_1 labels 1, float64 `(n,)`.

    They are 1 / (n_0 + 2) and (n_1 + 1) / (n_1 + 2).
    """
    # Weights on a small scale count as `effective_count` says.
    count = FittingData(labels, labels[:, None], weight).effective_count()
    second = count * float(np.average(labels, weights=weight))
    of_second, of_first = (second + 1) / (second + 2), 1 / (count - second + 2)
    return np.where(labels > 0, of_second, of_first)

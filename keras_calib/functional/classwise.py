"""Calibration error of the probability of every class, exact in float64."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Unpack

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.bins import CLOSED, bin_index, sorted_mass_error
from keras_calib.inputs.batch import Batch, standardize_arrays, without_masked
from keras_calib.inputs.checks import check_in, check_integer, check_share
from keras_calib.inputs.options import ArrayOptions
from keras_calib.inputs.top_label import hard_labels
from keras_calib.inputs.weights import are_binary
from keras_calib.numerics.row_blocks import block_slices
from keras_calib.numerics.softmax import logsumexp

# Number of probabilities in a block, 1 MB. Blocks of 4 MB take twice as long,
# because their memory goes back to the system each time.
_BLOCK = 2**17


class ClasswiseBins(NamedTuple):
    """Sums of the bins of every class, arrays `(num_classes, num_bins)`.

    Attributes:
        weight: Weight of the samples whose p_k is in the bin.
        probability: Weighted sum of p_k.
        positive: Weight of the samples of the class.
        residual: `probability - positive`, subtracted before rounding.
        total: Weight of all samples.
    """

    weight: np.ndarray
    probability: np.ndarray
    positive: np.ndarray
    residual: np.ndarray
    total: float


def classwise_ece(
    labels: Any,
    outputs: Any = None,
    *,
    num_bins: int = 15,
    edges: str = "width",
    threshold: float = 0.0,
    closed: str = "right",
    classes: str = "all",
    **options: Unpack[ArrayOptions],
) -> float:
    """Mean over the classes of the calibration error of p_k, in float64.

    Use it when decisions depend on the probabilities of all classes, not only
    on that of the predicted class.

    (1 / K) sum_k sum_b (n_kb / N) |mean p_k in bin b - share of class k|

    The bins b are those of p_k, for every sample. It is the mean over the
    classes of `ece(..., mode="binary")`, each against the rest. This error is
    also called SCE, over bins of equal mass ACE, and with a threshold TACE. A
    class that is ruled out in all rows is one of the K, with an error of 0.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        num_bins: Number of bins of each class, at least 1.
        edges: `"width"` for bins of equal width, as in `ece`. `"mass"` for
            bins of equal mass, as in `aece`. `"rank"` for the edges of
            released code, for parity with published tables. These are the p_k
            at the ranks i floor(N / num_bins). They leave out the smallest p_k
            and take no weights.
        threshold: Smaller p_k are in no bin, in [0, 1]. N includes them. With
            `edges="rank"` they are ranked as zeros. 1e-37 leaves out p_k = 0,
            as released code of the SCE does.
        closed: `"right"` for bins (lo, hi], with 0 in the first. `"left"` for
            [lo, hi), with 1 in the last. Only for `edges="width"`.
        classes: `"all"`, or `"to_largest_label"` as in released code, where K
            is the largest id in `labels` plus one.
        **options: As in `ece`.

    Returns:
        Error in [0, 1], at most 2 / K, because the p_k of a sample sum to 1.

    Example:

    >>> probs = [[0.8, 0.2], [0.6, 0.4]]
    >>> round(classwise_ece([0, 1], probs, num_bins=10), 4)
    0.4

    Reference:
        Nixon et al., Measuring Calibration in Deep Learning, CVPR Workshops
        2019, https://arxiv.org/abs/1904.01685
    """
    check_integer("num_bins", num_bins, 1)
    check_in("edges", edges, ("width", "mass", "rank"))
    check_share("threshold", threshold)
    check_in("closed", closed, CLOSED)
    check_in("classes", classes, ("all", "to_largest_label"))
    if edges != "width" and closed != "right":
        raise value_error('`closed` needs `edges="width"`', edges=edges)
    read = standardize_arrays(labels, outputs, **options)
    if edges == "rank":
        if not are_binary(read.weight):
            raise value_error(
                '`sample_weight` needs `edges="width"` or "mass"', edges=edges
            )
        read = without_masked(read._replace(weight=None, mask=read.counted))
    truth = _truth_of(read)
    num_classes = read.outputs.shape[-1]
    if classes == "to_largest_label":
        voted = truth if truth.ndim == 1 else np.nonzero(truth)[1]
        num_classes = int(voted.max()) + 1
    weight = np.ones(len(truth)) if read.weight is None else read.weight
    if edges == "width":
        blocks = _width_bins(
            read, truth, weight, num_classes, num_bins, closed, threshold
        )
        total = sum(
            np.abs(binned(residual)).sum() for _, _, residual, binned in blocks
        )
        return float(total / (num_classes * weight.sum()))
    total = 0.0
    for first, p in _by_class(read, num_classes):
        for k, p_k in enumerate(p, start=first):
            y_k = _of_classes(truth, k)[0]
            if edges == "rank":
                total += _rank_error(p_k, y_k, num_bins, threshold)
                continue
            score = p_k.astype(read.outputs.dtype, copy=False)
            if (keep := score >= threshold).any():
                # The error is relative to the weight above the threshold.
                w = weight[keep]
                total += w.sum() * sorted_mass_error(
                    score[keep], (p_k - y_k)[keep], num_bins, weight=w
                )
    return float(total / (num_classes * weight.sum()))


def classwise_bins(
    labels: Any,
    outputs: Any = None,
    *,
    num_bins: int = 15,
    **options: Unpack[ArrayOptions],
) -> ClasswiseBins:
    """Sums over the bins of each class, as in `classwise_ece`."""
    check_integer("num_bins", num_bins, 1)
    read = standardize_arrays(labels, outputs, **options)
    return bins_of_classes(read, _truth_of(read), num_bins)


def bins_of_classes(
    read: Batch, truth: np.ndarray, num_bins: int, closed: str = "right"
) -> ClasswiseBins:
    """Sums over the bins of each class.

    `truth` are class ids `(n,)`, or soft labels or votes `(n, num_classes)`.
    """
    weight = np.ones(len(truth)) if read.weight is None else read.weight
    blocks = []
    num_classes = read.outputs.shape[-1]
    for p, kept, residual, binned in _width_bins(
        read, truth, weight, num_classes, num_bins, closed
    ):
        kept = kept * weight
        sums = [binned(x) for x in (kept, p * kept, residual)]
        blocks.append((*sums[:2], sums[1] - sums[2], sums[2]))
    sums = [np.concatenate(x) for x in zip(*blocks, strict=True)]
    return ClasswiseBins._make([*sums, float(weight.sum())])


def _truth_of(read: Batch) -> np.ndarray:
    """Class ids `(n,)`, or shares of votes `(n, num_classes)`."""
    return read.labels if read.votes else hard_labels(read.labels)


def _of_classes(truth: np.ndarray, first: int, count: int = 1) -> np.ndarray:
    """Which samples are of each class, or its share, `(count, n)`."""
    if truth.ndim == 2:
        return truth.T[first : first + count]
    return truth == np.arange(first, first + count)[:, None]


def _by_class(
    read: Batch, num_classes: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Blocks of classes: the first class and probabilities `(block, n)`."""
    outputs, log_total = read.outputs, None
    if read.from_logits:
        parts = [outputs[rows] for rows in block_slices(outputs)]
        log_total = np.concatenate(
            [logsumexp(part.astype("float64")) for part in parts]
        )
    step = max(1, _BLOCK // len(outputs))
    for first in range(0, num_classes, step):
        block = outputs[:, first : min(first + step, num_classes)].T
        p = np.array(block, dtype="float64", order="C")
        if log_total is not None:
            p -= log_total
            np.exp(p, out=p)
        yield first, np.clip(p, 0.0, 1.0, out=p)


def _width_bins(
    read: Batch,
    truth: np.ndarray,
    weight: np.ndarray,
    num_classes: int,
    num_bins: int,
    closed: str,
    threshold: float = 0.0,
) -> Iterator[tuple]:
    """Blocks of classes: p, mask, weight (p - y), and a function of bin sums.

    The mask marks the p that are in a bin. Edges are compared with p in the
    precision of the outputs, as `ece` does.
    """
    for first, p in _by_class(read, num_classes):
        classes = np.arange(len(p))[:, None]
        residual = p - _of_classes(truth, first, len(p))
        residual *= weight
        given = p.astype(read.outputs.dtype, copy=False)
        kept = given >= threshold
        residual *= kept
        index = bin_index(given, num_bins, closed)
        index += num_bins * classes
        keys, size = index.reshape(-1), num_bins * len(p)

        def binned(values, keys=keys, size=size):
            sums = np.bincount(keys, values.reshape(-1), minlength=size)
            return sums.reshape(-1, num_bins)

        yield p, kept, residual, binned


def _rank_error(
    p: np.ndarray, y: np.ndarray, num_bins: int, threshold: float
) -> float:
    """Sum of |p - y| over bins whose edges are the p `(n,)` at some ranks."""
    p = np.where(p < threshold, 0.0, p)
    ranks = np.arange(num_bins) * (len(p) // num_bins)
    edges = np.append(np.sort(p)[ranks], 1.0)
    # What lies at or below the first edge is in no bin.
    index = np.searchsorted(edges, p, side="left")
    sums = np.bincount(index, weights=p - y, minlength=num_bins + 1)
    return np.abs(sums)[1:].sum()

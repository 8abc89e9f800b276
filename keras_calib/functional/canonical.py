"""Calibration error of the whole probability vector, exact in float64."""

from typing import Any, Unpack

import numpy as np
from scipy.special import softmax

from keras_calib.formulas.bins import bin_index
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.checks import check_in, check_integer
from keras_calib.inputs.options import ArrayOptions, reads_arrays

__all__ = ["canonical_calibration_error"]


@reads_arrays
def canonical_calibration_error(
    labels: Any,
    probs: Any,
    *,
    edges: str = "width",
    num_bins: int = 10,
    min_bin_size: int = 100,
    **options: Unpack[ArrayOptions],
) -> float:
    """Calibration error of all probabilities jointly, in float64.

    Use it for a few classes, when decisions depend on the whole vector of
    probabilities. With many classes most bins hold one sample or none, and the
    error says little.

    sum_b (n_b / N) (1/2) sum_k |mean p_k in bin b - share of class k|

    It is the total variation between predictions and labels, over bins of all
    probabilities. A network may be calibrated in its confidence, but not in
    this sense.

    Args:
        labels, probs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        edges: With `"width"`, predictions share a bin if each p_k falls in
            the same of `num_bins` intervals of equal width. With `"median"`,
            bins are cut at the median of the p_k that varies most, as long as
            both parts keep `min_bin_size` predictions, whatever their weights.
        num_bins: Number of intervals of each p_k, for `edges="width"`.
        min_bin_size: Smallest number of predictions in a bin, for
            `edges="median"`.
        **options: `from_logits`, `sample_weight`, `ignore_class` as in `ece`.

    Returns:
        Error in [0, 1].

    Example:

    >>> probs = [[0.8, 0.2], [0.6, 0.4]]
    >>> round(canonical_calibration_error([0, 1], probs), 4)
    0.4

    Reference:
        Vaicenavicius et al., Evaluating Model Calibration in Classification,
        AISTATS 2019, https://arxiv.org/abs/1902.06977; Widmann et al.,
        Calibration Tests in Multi-class Classification, NeurIPS 2019,
        https://arxiv.org/abs/1910.11385
    """
    check_in("edges", edges, ("width", "median"))
    check_integer("num_bins", num_bins, 1)
    check_integer("min_bin_size", min_bin_size, 1)
    read = standardize_arrays(labels, probs, **options)
    p = read.outputs.astype("float64")
    p = softmax(p, axis=-1) if read.from_logits else p
    if edges == "width":
        cells = bin_index(p.astype(read.outputs.dtype, copy=False), num_bins)
        _, index = np.unique(cells, axis=0, return_inverse=True)
        index = index.reshape(-1)
    else:
        index = _median_bins(p, min_bin_size)
    weight = np.ones(len(p)) if read.weight is None else read.weight
    truth = read.labels
    truth = np.eye(p.shape[1])[truth] if truth.ndim == 1 else truth
    residual = weight[:, None] * (p - truth)
    sums = [np.bincount(index, weights=column) for column in residual.T]
    return float(np.abs(sums).sum() / (2.0 * weight.sum()))


def _median_bins(p: np.ndarray, min_size: int) -> np.ndarray:
    """Index of the bin of each row, `(n,)`, from `(n, num_classes)`."""
    index = np.zeros(len(p), "int64")
    waiting, count = [np.arange(len(p))], 0
    while waiting:
        rows = waiting.pop()
        index[rows] = count
        count += 1
        if len(rows) < 2 * min_size:
            continue
        # Cut at the median of the column that varies most.
        column = p[rows, np.argmax(p[rows].var(axis=0))]
        below = column < np.median(column)
        if not below.any():
            below = column <= np.median(column)
        if min(below.sum(), np.sum(~below)) >= min_size:
            waiting += [rows[below], rows[~below]]
    return index

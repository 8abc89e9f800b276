"""Calibration error of the predicted class, over bins of equal mass."""

from typing import Any, Unpack

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.equal_mass import interpolated_bins, sorted_mass_error
from keras_calib.inputs.checks import check_in, check_integer
from keras_calib.inputs.options import ArrayOptions, reads_arrays
from keras_calib.inputs.top_label import counted, event_of

__all__ = ["adaptive_ece"]


@reads_arrays
def adaptive_ece(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    edges: str = "mass",
    ties: str = "average",
    mode: str = "top_label",
    **options: Unpack[ArrayOptions],
) -> float:
    """Adaptive ECE: calibration error over bins of equal mass, in float64.

    Use it in place of `ece` when most confidences are close to 1: its bins lie
    where the predictions are.

    sum_b (n_b / N) |mean confidence_b - accuracy_b|

    The samples are sorted by confidence and cut into bins of equal weight, as
    nearly as whole samples allow.

    Args:
        labels, probs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        num_bins: Number of bins, at least 1.
        edges: `"mass"` uses every sample. `"interp"` uses the edges of the
            papers' code, for parity with published tables, without weights.
            They are interpolated between the sorted confidences, for bins
            (lo, hi]. This leaves out the smallest confidence, and bins vanish
            where confidences tie.
        ties: Order of equal confidences, for `edges="mass"`. With `"average"`
            each gets their mean, with `"order"` they keep their order.
        mode: `"top_label"` for the confidence of the predicted class,
            `"binary"` for the probability of the second of two, as in `ece`.
        **options: `from_logits`, `sample_weight`, `ignore_class` as in `ece`.

    Returns:
        Error in [0, 1].

    Example:

    >>> round(adaptive_ece([0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=2), 4)
    0.4

    Reference:
        Nguyen and O'Connor, Posterior Calibration and Exploratory Analysis
        for NLP Models, EMNLP 2015, https://arxiv.org/abs/1508.05154
    """
    check_integer("num_bins", num_bins, 1)
    check_in("edges", edges, ("mass", "interp"))
    check_in("ties", ties, ("average", "order"))
    top = event_of(labels, probs, mode, **options)
    if edges == "mass":
        residual = top.confidence - top.correct
        return sorted_mass_error(
            top.score, residual, num_bins, weight=top.weight, ties=ties
        )
    if options.get("sample_weight") is not None:
        raise value_error('`sample_weight` needs `edges="mass"`', edges=edges)
    # Rows that Keras masks weigh 0.
    top = counted(top)
    _, sums = interpolated_bins(top.confidence, top.correct, num_bins)
    return float(np.sum(np.abs(sums.residual)) / len(top.confidence))

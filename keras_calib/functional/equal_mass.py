"""Bins of equal mass: their edges and the calibration error over them.

`equal_mass_error` serves the streaming metric too, on the cells of its
histogram.
"""

from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.equal_mass import interpolated_bins
from keras_calib.formulas.equal_mass import sorted_mass_error
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.top_label import top_label

__all__ = [
    "adaptive_ece",
]


def adaptive_ece(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    edges: str = "mass",
    ties: str = "average",
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Calibration error over bins of equal mass, in float64.

    Samples are sorted by confidence and cut into `num_bins` chunks of (as
    nearly as whole samples allow) equal weight; then as in `ece`.

    Args:
        labels: As in `ece`, shape `(n, ...)`.
        probs: As in `ece`, shape `(n, ..., num_classes)`.
        num_bins: Number of bins, at least 1.
        edges: `"mass"`: every sample counts. `"interp"`: the edges of the
            papers' code, interpolated from the sorted confidences with
            (lo, hi] membership, which leaves out the smallest confidence and
            collapses where confidences tie; for parity with published
            tables, without weights.
        ties: `"average"`: samples of one confidence count as their mean, so
            that the order of the samples does not matter; `"order"`: as
            sorted stably. Only for `edges="mass"`.
        from_logits: Whether `probs` are logits.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
            Whole numbers count as repeats of the sample.
        ignore_class: Class id that does not count.

    Returns:
        Error in [0, 1].

    Raises:
        ValueError: As `ece`.

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
    top = top_label(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    if edges == "interp":
        if sample_weight is not None:
            raise value_error(
                '`sample_weight` needs `edges="mass"`', edges=edges
            )
        _, sums = interpolated_bins(top.confidence, top.correct, num_bins)
        return float(np.sum(np.abs(sums.residual)) / len(top.confidence))
    return sorted_mass_error(
        top.score,
        top.confidence - top.correct,
        num_bins,
        weight=top.weight,
        ties=ties,
    )

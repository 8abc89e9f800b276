"""Thresholds by cost, from records of scores and costs."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_above, located
from keras_calib.numerics.arrays import as_array
from keras_calib.selection.candidates import read_records
from keras_calib.selection.cost_targets import CostTarget
from keras_calib.selection.thresholds import ChosenThreshold

__all__ = ["choose_threshold_by_cost"]


def choose_threshold_by_cost(
    scores: Any,
    cost: Any,
    *,
    largest_cost: float,
    reject_cost: float | None = None,
    mean_cost: float | None = None,
    coverage: float | None = None,
    delta: float | None = None,
    method: str | None = None,
    sample_weight: Any = None,
) -> ChosenThreshold:
    """The threshold of the least or of a limited mean cost, from records.

    Use it if logs keep the score of each answer and what it cost later, such
    as the `score` of an exported selector with costs. If all errors cost the
    same, `choose_threshold` with `risk=mean_cost / largest_cost` does as much.

    Args:
        scores: Scores `(...)`, higher = surer; `(n,)` with `delta`. For Chow's
            rule they are minus the expected cost.
        cost: Cost of each answer `(...)`, between 0 and `largest_cost`.
        largest_cost: The largest cost that an answer can have, > 0.
        reject_cost, mean_cost, coverage, delta: As in
            `SelectiveClassifier.fit` with costs.
        method: As there. None takes `"empirical"` with `reject_cost` alone,
            and `"betting"` with `delta`.
        sample_weight: Weights >= 0, of the shape of the scores or `(n,)`;
            with `delta` 1, or 0 for samples to leave out.

    Returns:
        ChosenThreshold. Its `risk` is the share of the accepted that cost
        more than 0.

    Raises:
        ValueError: If no threshold reaches the target, or values are out of
            range.

    Example:

    >>> chosen = choose_threshold_by_cost(
    ...     [4, 3, 2, 1], [0, 0, 5, 0], largest_cost=5, reject_cost=1
    ... )
    >>> chosen.coverage, chosen.cost.value
    (0.5, 0.5)

    Reference:
        Chow, On Optimum Recognition Error and Reject Tradeoff, IEEE
        Transactions on Information Theory 1970,
        https://doi.org/10.1109/TIT.1970.1054406
    """
    check_above("largest_cost", largest_cost, 0.0)
    if method is None and delta is None and mean_cost is None:
        method = "empirical" if coverage is None else None
    target = CostTarget(
        float(largest_cost),
        False,
        mean_cost,
        reject_cost,
        coverage,
        delta,
        method,
    )
    target.check(None)
    # The scores and weights are checked as those of errors are.
    given = as_array(cost, "cost", "float64")
    score, _, weight = read_records(
        scores, np.ones(given.shape), sample_weight, delta
    )
    kept = weight > 0
    given = given.reshape(-1)
    bad = ~((given >= 0.0) & (given <= largest_cost)) & kept
    if bad.any():
        raise value_error(
            "`cost` must lie between 0 and `largest_cost`",
            **located(bad),
            largest_cost=largest_cost,
        )
    rows = score, given, given > 0, weight
    return target.choose(*(x[kept] for x in rows))[1]

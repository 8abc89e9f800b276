"""Mean costs of decisions on whole data sets, in float64."""

from typing import Any, Unpack

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.costs import (
    CostEstimate,
    cheapest_answers,
    check_costs,
    check_reject_cost,
    check_same_classes,
    mean_cost_of_decisions,
    within_price,
)
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.checks import check_above
from keras_calib.inputs.options import ArrayOptions, is_log
from keras_calib.inputs.top_label import hard_labels, top_label
from keras_calib.numerics.arrays import as_array
from keras_calib.numerics.row_blocks import block_slices, probability_blocks
from keras_calib.numerics.softmax import is_ruled_out


def mean_cost(
    labels: Any,
    outputs: Any = None,
    *,
    costs: Any,
    reject_cost: float | None = None,
    level: float = 0.95,
    **options: Unpack[ArrayOptions],
) -> CostEstimate:
    """Mean cost of the cheapest decisions, with an interval, in float64.

    Use it to compare models or calibrators by what their decisions cost, on
    data that fitted neither. Decisions take the probabilities at their word:

    answer = argmin_k E_k,  E_k = sum_j p_j cost[j, k]

    accept if min_k E_k <= `reject_cost`  (Chow's rule)

    An accepted answer k costs cost[y, k] for the true class y. A class that a
    logit rules out is no answer; one of probability 0 may be the cheapest.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        costs: Costs >= 0 `(num_classes, num_classes)`: row j is the true
            class, column k the answer. For a benefit add one amount to
            every entry and to `reject_cost`, which changes no decision. One
            number > 0 is the cost of every error, which is all that a log of
            confidence and correctness takes.
        reject_cost: Cost >= 0 of leaving a sample to a human. None accepts
            every answer.
        level: Probability that the interval covers the true mean cost, in
            (0, 1). The interval is approximate. It counts on one more
            sample of cost 0 and of the largest of `reject_cost` and `costs`,
            also where that is of a class that is ruled out.
        **options: As in `ece`. With votes an answer costs the mean over them.

    Returns:
        CostEstimate.

    Raises:
        ValueError: If costs are negative, not finite or not square, or have
            another number of classes.

    Example:

    >>> probs = [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]
    >>> costs = [[0, 1], [5, 0]]
    >>> found = mean_cost([0, 1, 1], probs, costs=costs, reject_cost=0.5)
    >>> round(found.coverage, 3), round(found.value, 3), found.accept_all
    (0.667, 0.167, 0.0)

    Reference:
        Chow, On Optimum Recognition Error and Reject Tradeoff, IEEE
        Transactions on Information Theory 1970,
        https://doi.org/10.1109/TIT.1970.1054406; Elkan, The Foundations of
        Cost-Sensitive Learning, IJCAI 2001,
        https://cseweb.ucsd.edu/~elkan/rescale.pdf
    """
    matrix = as_array(costs, "costs")
    if matrix.ndim == 0:
        check_above("costs", costs, 0.0)
    else:
        matrix = check_costs(costs)
    check_reject_cost(reject_cost)
    if is_log(labels):
        if matrix.ndim:
            raise value_error(
                "`costs` must be one number for a log, the cost of an error: "
                "it does not have the classes",
                **{"costs.shape": matrix.shape},
            )
        top = top_label(labels, outputs, drop=False, **options)
        cost, weight = costs * top.loss, top.weight
        expected = costs * (1.0 - top.confidence)
    else:
        read = standardize_arrays(labels, outputs, **options)
        weight = read.weight
        if matrix.ndim == 0:
            matrix = costs * (1.0 - np.eye(read.outputs.shape[-1]))
        check_same_classes(matrix, read.outputs.shape, "outputs")
        answers = np.empty(len(read.outputs), int)
        expected = np.empty(len(read.outputs))
        for part in block_slices(read.outputs):
            rows = read.outputs[part].astype("float64")
            ((_, block),) = probability_blocks(rows, read.from_logits)
            low = is_ruled_out(rows) if read.from_logits else None
            answers[part], expected[part] = cheapest_answers(block, matrix, low)
        if read.votes:
            cost = np.einsum("nj,jn->n", read.labels, matrix[:, answers])
        else:
            cost = matrix[hard_labels(read.labels), answers]
    return mean_cost_of_decisions(
        cost,
        within_price(expected, reject_cost),
        weight,
        matrix.max(),
        reject_cost=reject_cost,
        level=level,
    )

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
from keras_calib.inputs.checks import (
    check_above,
    check_any_weight,
    check_not_empty,
    located,
)
from keras_calib.inputs.options import ArrayOptions
from keras_calib.inputs.top_label import hard_labels
from keras_calib.inputs.values import in_unit_interval
from keras_calib.inputs.weights import weight_of_rows
from keras_calib.numerics.arrays import as_array
from keras_calib.numerics.row_blocks import block_slices, probability_blocks
from keras_calib.numerics.softmax import is_ruled_out

__all__ = ["mean_cost", "mean_cost_of_records"]


def mean_cost(
    labels: Any,
    outputs: Any,
    costs: Any,
    *,
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
            every entry and to `reject_cost`, which changes no decision.
        reject_cost: Cost >= 0 of leaving a sample to a human. None accepts
            every answer.
        level: Probability that the interval covers the true mean cost, in
            (0, 1). The interval is approximate. It counts on one more
            sample of cost 0 and of the largest of `reject_cost` and `costs`,
            also where that is of a class that is ruled out.
        **options: `from_logits`, `sample_weight`, `ignore_class`, `votes` as
            in `ece`. With votes an answer costs the mean over them.

    Returns:
        CostEstimate.

    Raises:
        ValueError: If costs are negative, not finite or not square, or have
            another number of classes.

    Example:

    >>> probs = [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]
    >>> found = mean_cost([0, 1, 1], probs, [[0, 1], [5, 0]], reject_cost=0.5)
    >>> round(found.coverage, 3), round(found.value, 3), found.accept_all
    (0.667, 0.167, 0.0)

    Reference:
        Chow, On Optimum Recognition Error and Reject Tradeoff, IEEE
        Transactions on Information Theory 1970,
        https://doi.org/10.1109/TIT.1970.1054406; Elkan, The Foundations of
        Cost-Sensitive Learning, IJCAI 2001,
        https://cseweb.ucsd.edu/~elkan/rescale.pdf
    """
    matrix = check_costs(costs)
    check_reject_cost(reject_cost)
    read = standardize_arrays(labels, outputs, **options)
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
        read.weight,
        matrix.max(),
        reject_cost=reject_cost,
        level=level,
    )


def mean_cost_of_records(
    confidence: Any,
    correct: Any,
    *,
    error_cost: float = 1.0,
    reject_cost: float | None = None,
    sample_weight: Any = None,
    level: float = 0.95,
) -> CostEstimate:
    """Mean cost of decisions from logs of confidence and correctness.

    Use it in place of `mean_cost` if the logs keep the predicted class alone
    and every error costs the same. A prediction is accepted if

    `error_cost` (1 - confidence) <= `reject_cost`

    Args:
        confidence: Probability of the predicted class in [0, 1], any shape.
        correct: Whether it is correct, 0 or 1, or its share of the votes.
        error_cost: Cost of an accepted error, > 0.
        reject_cost: Cost >= 0 of leaving a sample to a human. None accepts
            every prediction.
        sample_weight: Weights of that shape, or None.
        level: Probability of the interval, in (0, 1).

    Returns:
        CostEstimate.

    Raises:
        ValueError: If shapes differ, or a value is out of its range.

    Example:

    >>> found = mean_cost_of_records(
    ...     [0.9, 0.6, 0.8], [1, 0, 1], error_cost=5.0, reject_cost=1.0
    ... )
    >>> round(found.coverage, 3), round(found.value, 3)
    (0.667, 0.333)

    Reference:
        Chow, On Optimum Recognition Error and Reject Tradeoff, IEEE
        Transactions on Information Theory 1970,
        https://doi.org/10.1109/TIT.1970.1054406
    """
    check_above("error_cost", error_cost, 0.0)
    check_reject_cost(reject_cost)
    sure = as_array(confidence, "confidence", "float64")
    right = as_array(correct, "correct", "float64")
    if sure.shape != right.shape:
        raise value_error(
            "`correct` must have the shape of `confidence`",
            **{
                "correct.shape": right.shape,
                "confidence.shape": sure.shape,
            },
        )
    check_not_empty("confidence", sure)
    for name, x in (("confidence", sure), ("correct", right)):
        bad = ~in_unit_interval(x)
        if bad.any():
            raise value_error(f"`{name}` must lie in [0, 1]", **located(bad))
    weight = None
    if sample_weight is not None:
        weight = weight_of_rows(sample_weight, sure.shape)
        check_any_weight(weight)
    cost = error_cost * (1.0 - right.reshape(-1))
    expected = error_cost * (1.0 - sure.reshape(-1))
    return mean_cost_of_decisions(
        cost,
        within_price(expected, reject_cost),
        weight,
        error_cost,
        reject_cost=reject_cost,
        level=level,
    )

"""Costs of decisions: the cheapest answer, and what decisions cost.

Derivation: docs/derivations.md, 'Costs'.
"""

from typing import Any

import numpy as np

from keras_calib.backend.compiled import exact_products
from keras_calib.backend.errors import value_error
from keras_calib.formulas.bounded_means import hoeffding_bentkus_p_value
from keras_calib.formulas.intervals import Moments, mean_interval
from keras_calib.inputs.checks import check_number
from keras_calib.numerics.arrays import (
    array_namespace,
    as_array,
    cast,
    safe_divide,
)
from keras_calib.numerics.results import Result

# Relative rounding error of an expected cost, as 1 - 0.7 differs from 0.3.
_ROUNDING = 1e-9
# Halvings of [0, 1] in search of a bound.
_HALVINGS = 40
_NEGATIVE = (
    "must be finite and >= 0: for a benefit add one amount to every entry and "
    "to `reject_cost`, which changes no decision"
)


class CostEstimate(Result):
    """What decisions cost on data.

    Attributes:
        value: Mean cost per sample: the cost of the answer if it is accepted,
            `reject_cost` if not. None if samples are rejected at no known
            price.
        low: Lower end of the confidence interval of `value`, or None.
        high: Upper end of it, or None.
        coverage: Accepted share of the samples.
        accepted: Mean cost of the accepted answers, 0 without any.
        accept_all: Mean cost if every answer were accepted.
        reject_all: Cost if every sample were rejected: `reject_cost`, or None.
    """

    value: float | None
    low: float | None
    high: float | None
    coverage: float
    accepted: float
    accept_all: float
    reject_all: float | None


def check_costs(costs: Any) -> np.ndarray:
    """Costs `(num_classes, num_classes)` in float64, checked.

    Raises ValueError unless they are square, finite, >= 0 and not all 0.
    """
    matrix = as_array(costs, "costs", "float64")
    if matrix.ndim != 2 or len(matrix) < 2 or len(set(matrix.shape)) > 1:
        raise value_error(
            "`costs` must have shape (num_classes, num_classes), with a row "
            "for each true class and a column for each answer",
            **{"costs.shape": matrix.shape},
        )
    with np.errstate(over="ignore", invalid="ignore"):
        # Layers compute in float32.
        right = np.isfinite(matrix.astype("float32")) & (matrix >= 0.0)
    if not right.all():
        row, column = np.argwhere(~right)[0].tolist()
        raise value_error(
            f"`costs` {_NEGATIVE}",
            true_class=row,
            answer=column,
            cost=float(matrix[row, column]),
        )
    if not matrix.any():
        raise value_error(
            "`costs` must not be 0 everywhere: every answer would do",
            maximum=0.0,
        )
    return matrix


def check_reject_cost(reject_cost: Any) -> None:
    """Raises unless the price of rejection is None or a finite number >= 0."""
    if reject_cost is None:
        return
    check_number("reject_cost", reject_cost)
    if reject_cost < 0:
        raise value_error(f"`reject_cost` {_NEGATIVE}", reject_cost=reject_cost)


def check_same_classes(costs: np.ndarray, shape: tuple, name: str) -> None:
    """Raises ValueError unless outputs have as many classes as the costs."""
    if shape[-1] != len(costs):
        raise value_error(
            f"`costs` must have a row and a column for each class of `{name}`",
            **{"costs.shape": costs.shape, f"{name}.shape": tuple(shape)},
        )


@exact_products
def cheapest_answers(
    probs: Any, costs: Any, ruled_out: Any = None
) -> tuple[Any, Any]:
    """The answers of least expected cost, and that cost (array-agnostic).

    answer = argmin_k E_k,  E_k = sum_j p_j cost[j, k]

    Among ties the first class wins. `ruled_out` is a mask like `probs` of
    classes that are no answer, or None.
    """
    xp = array_namespace(probs)
    expected = xp.matmul(probs, costs)
    if ruled_out is not None:
        # Where all are ruled out, the costs stay NaN.
        expected = xp.where(ruled_out, expected + np.inf, expected)
    least = xp.min(expected, axis=-1)
    # Neither ONNX nor LiteRT can run ops.argmin.
    classes = xp.arange(expected.shape[-1], dtype=expected.dtype)
    last = xp.full_like(expected, expected.shape[-1] - 1)
    is_least = expected <= xp.expand_dims(least, -1)
    label = xp.min(xp.where(is_least, classes, last), axis=-1)
    return cast(label, "int32"), least


def within_price(expected: np.ndarray, reject_cost: float | None) -> np.ndarray:
    """Chow's rule: answers that cost no more than a rejection; None for all."""
    if reject_cost is None:
        return np.ones(len(expected), bool)
    return expected <= reject_cost * (1.0 + _ROUNDING)


def mean_cost_of_decisions(
    cost: np.ndarray,
    accepted: np.ndarray,
    weight: np.ndarray | None,
    largest: float,
    *,
    reject_cost: float | None = None,
    level: float = 0.95,
) -> CostEstimate:
    """The mean cost of decisions, with its interval.

    Answers have a cost `(n,)`, and are accepted or not. `largest` is the
    largest cost of an answer that is possible, > 0.
    """
    w = np.ones(len(cost)) if weight is None else weight.astype("float64")
    total = w.sum()
    kept = w * accepted
    value = low = high = None
    if reject_cost is not None or accepted.all():
        price = 0.0 if reject_cost is None else float(reject_cost)
        unit = max(largest, price)
        x = np.where(accepted, cost, price) / unit
        sums = Moments.of(x, w)
        ends = mean_interval(sums, level=level, unseen=(0.0, 1.0))
        value = float(sums.mean * unit)
        low, high = (float(np.clip(end, 0.0, 1.0) * unit) for end in ends)
    return CostEstimate(
        value,
        low,
        high,
        float(kept.sum() / total),
        float(safe_divide((kept * cost).sum(), kept.sum())),
        float((w * cost).sum() / total),
        None if reject_cost is None else float(reject_cost),
    )


def upper_bounds_of_means(
    total: np.ndarray, count: np.ndarray, *, level: float
) -> np.ndarray:
    """Upper bounds of means of losses in [0, 1], from their sums.

    They are those of Hoeffding and Bentkus for `count` losses of sum `total`,
    arrays `(...)`. Each holds with probability `level`.
    """
    low, high = np.zeros(np.shape(total)), np.ones(np.shape(total))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        p_value = hoeffding_bentkus_p_value(total, count, middle)
        rejected = p_value <= 1.0 - level
        high = np.where(rejected, middle, high)
        low = np.where(rejected, low, middle)
    return high

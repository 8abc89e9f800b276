"""Rules: how answers are scored and accepted, by a score or by costs.

Operations are those that every format can serve.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.calibrators.fitted_layer import of_logits
from keras_calib.formulas import scores
from keras_calib.formulas.costs import (
    cheapest_answers,
    check_costs,
    check_same_classes,
)
from keras_calib.numerics.arrays import at_least_float32, shape_of, to_numpy
from keras_calib.numerics.softmax import is_ruled_out, is_wrong, top1

# Numbers in a block.
_BLOCK = 2**24


class ScoreRule:
    """Answers the likeliest class, and ranks by a score.

    Attributes:
        name: The score as given: a name, a function or a layer.
        function: The function; `"msp"` for log-odds of the confidence.
    """

    costs = None

    def __init__(self, score: Any):
        self.name = score
        self.function = score if score == "msp" else scores.get(score)

    def score(self, logits: Any) -> Any:
        """Scores `(...)` of logits `(..., num_classes)`."""
        return apply_score(self.function, logits)

    def answers(self, logits: Any, threshold: Any) -> dict[str, Any]:
        """What `SelectiveClassifier.call` answers to calibrated logits."""
        found = self.score(logits)
        probabilities = ops.softmax(logits, axis=-1)
        # Among ties the first class wins, as in `fit`; ops.top_k may take
        # another. Neither ONNX nor LiteRT can run ops.argmax.
        size = logits.shape[-1]
        if size is None:
            size = ops.shape(logits)[-1]
        classes = ops.arange(size, dtype="float32")
        largest = ops.max(logits, axis=-1, keepdims=True)
        last = ops.full_like(logits, size - 1)
        label = ops.min(ops.where(logits >= largest, classes, last), axis=-1)
        return {
            "logits": logits,
            "probabilities": probabilities,
            "confidence": ops.max(probabilities, axis=-1),
            "score": found,
            "accept": accepted(found, threshold, logits),
            "label": ops.cast(label, "int32"),
        }

    def judge(
        self, logits: np.ndarray, truth: np.ndarray
    ) -> tuple[np.ndarray, None]:
        """Which answers to rows of logits are right, `(n,)`; no costs."""
        return 1.0 - is_wrong(logits, truth), None


class CostRule:
    """The cheapest answer by a cost matrix; as a score, minus its cost.

    Attributes:
        costs: The matrix `(num_classes, num_classes)`, float64.
    """

    # Stands for minus that cost, which no layer computes.
    name = "expected_cost"
    function = None

    def __init__(self, costs: Any):
        self.costs = check_costs(costs)

    def score(self, logits: Any) -> Any:
        """Scores `(...)` of logits: minus the expected cost."""
        return ops.cast(-self.decide(logits)[1], "float32")

    def decide(self, logits: Any) -> tuple[Any, Any]:
        """Answers, never one that is ruled out, and expected costs `(...)`."""
        check_same_classes(self.costs, shape_of(logits), "logits")
        probabilities = ops.softmax(logits, axis=-1)
        costs = ops.convert_to_tensor(self.costs, dtype=probabilities.dtype)
        return cheapest_answers(probabilities, costs, is_ruled_out(logits))

    def answers(self, logits: Any, threshold: Any) -> dict[str, Any]:
        """What `SelectiveClassifier.call` answers to calibrated logits."""
        probabilities = ops.softmax(logits, axis=-1)
        label, expected = self.decide(logits)
        return {
            "logits": logits,
            "probabilities": probabilities,
            "confidence": of_label(probabilities, label),
            "score": -expected,
            "accept": accepted(-expected, threshold, logits),
            "label": label,
            "expected_cost": expected,
        }

    def judge(
        self, logits: np.ndarray, truth: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which answers to rows of logits are right, and what each costs."""

        def label_of(block: Any) -> Any:
            return self.decide(at_least_float32(block))[0]

        answer = by_blocks(label_of, logits).astype("int64")
        return answer == truth, self.costs[truth, answer]


def accepted(score: Any, threshold: Any, logits: Any) -> Any:
    """Where finite scores `(...)` reach the threshold, with a confidence."""
    reached = ops.logical_and(score >= threshold, has_confidence(logits))
    return ops.logical_and(reached, ops.abs(score) < float("inf"))


def has_confidence(logits: Any) -> Any:
    """Whether logits `(..., num_classes)` have a softmax, bool `(...)`.

    A network that overflows gives NaN or infinity. Some classes may be ruled
    out, but not all.
    """
    # A sum keeps NaN, which a maximum may drop, and does not overflow so.
    total = ops.sum(1e-9 * logits, axis=-1)
    found = ops.logical_and(
        total < float("inf"),
        ops.logical_not(is_ruled_out(ops.max(logits, axis=-1))),
    )
    if logits.shape[-1] is None:
        # One output that is not known to be alone is read as one class.
        found = ops.logical_and(found, ops.shape(logits)[-1] > 1)
    return found


def of_label(values: Any, label: Any) -> Any:
    """Values `(..., num_classes)` at the class `label`, int32 `(...)`."""
    classes = ops.arange(values.shape[-1], dtype="int32")
    chosen = ops.equal(ops.expand_dims(label, -1), classes)
    return ops.sum(ops.where(chosen, values, ops.zeros_like(values)), axis=-1)


def apply_score(function: Any, logits: Any) -> Any:
    """Scores `(...)` of logits; for `"msp"` log-odds, which never saturate."""
    if shape_of(logits)[-1] == 1:
        raise value_error(
            "`logits` must have all classes: pass [0, z] for one output z",
            **{"logits.shape": shape_of(logits)},
        )
    if function == "msp":
        # Finite, as what is accepted, for a class that is left alone.
        return ops.minimum(top1(logits, from_logits=True)[1], 1e18)
    return ops.cast(of_logits(function, logits), "float32")


def by_blocks(function: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """Applies a function to blocks of rows; returns float32."""
    rows = max(1, _BLOCK // max(1, x[:1].size))
    parts = [
        to_numpy(function(ops.convert_to_tensor(x[i : i + rows])), "float32")
        for i in range(0, len(x), rows)
    ]
    return np.concatenate(parts)

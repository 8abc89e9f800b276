"""The cheapest answer, by a matrix of costs."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.formulas.costs import (
    cheapest_answers,
    check_costs,
    check_same_classes,
)
from keras_calib.inputs.top_label import hard_labels
from keras_calib.numerics.arrays import at_least_float32, shape_of
from keras_calib.numerics.softmax import Top1, is_ruled_out
from keras_calib.selection.answers import accepted, answers_of
from keras_calib.selection.candidates import of_records, read_records
from keras_calib.selection.data_hash import cost_facts, cost_hashes, cost_rows
from keras_calib.selection.mixture_targets import MixtureTarget
from keras_calib.selection.prior_targets import PriorTarget
from keras_calib.selection.threshold_layer import ThresholdLayer
from keras_calib.selection.thresholds import Target
from keras_calib.selection.tuning import by_blocks

__all__ = ["CostLayer", "CostRule", "rule_of"]


class CostRule:
    """The cheapest answer by a cost matrix; as a score, minus its cost.

    Attributes:
        costs: The matrix `(num_classes, num_classes)`, float64.
    """

    def __init__(self, costs: Any):
        self.costs = check_costs(costs)

    def __call__(self, logits: Any) -> Any:
        """Scores `(...)` of logits: minus the expected cost."""
        return -self.decide(logits)[1]

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
        classes = ops.arange(logits.shape[-1], dtype="int32")
        chosen = ops.equal(ops.expand_dims(label, -1), classes)
        shown = ops.where(chosen, probabilities, ops.zeros_like(probabilities))
        return {
            "logits": logits,
            "probabilities": probabilities,
            "confidence": ops.sum(shown, axis=-1),
            "score": -expected,
            "accept": accepted(-expected, threshold, logits),
            "label": label,
            "expected_cost": expected,
        }

    def records(self, top: Top1) -> tuple[np.ndarray, ...]:
        """Scores, costs, errors and weights `(n,)` of the rows that count."""

        def label_of(logits: Any) -> Any:
            return self.decide(at_least_float32(logits))[0]

        answer = by_blocks(label_of, top.rows.outputs).astype("int64")
        truth = hard_labels(top.rows.labels)
        weight = np.ones(len(answer)) if top.weight is None else top.weight
        kept = weight > 0
        found = top.score, self.costs[truth, answer], answer != truth, weight
        return tuple(x[kept] for x in found)


class CostLayer(ThresholdLayer):
    """Abstract: a layer that may answer by costs instead of errors."""

    stored_parts = ("calibrator", "score")
    # The rule in use; None without costs.
    _rule: CostRule | None = None
    # The scores that there are, as given and as functions, and the place of
    # that in use; None until `fit` has chosen.
    _scores: tuple
    _functions: tuple
    _place: Any

    def score_of(self, logits: Any) -> Any:
        """Scores `(...)` of calibrated logits `(..., num_classes)`."""
        raise NotImplementedError

    @property
    def score(self) -> Any:
        """The score in use; a tuple of candidates until `fit` chooses one.

        With costs it is `"expected_cost"`, which stands for minus that cost.
        """
        if self._rule is not None:
            return "expected_cost"
        several = self._place is None
        return self._scores if several else self._scores[self._place]

    @property
    def costs(self) -> np.ndarray | None:
        """The cost matrix in use, float64; None without costs."""
        return None if self._rule is None else self._rule.costs

    def use_rule(self, rule: CostRule) -> None:
        """Ranks by expected costs from now on."""
        self._rule, self._functions, self._place = rule, (rule,), 0

    def take_costs(self, rule: CostRule, target: Any, top: Top1) -> None:
        """Takes the best threshold of a `CostTarget` for the rule."""
        records = rule.records(top)
        found, chosen, certified = target.choose(*records)
        score, cost, wrong, weight = records
        if chosen.delta is not None:
            rows, ranking = cost_hashes(
                cost_rows(score, cost, ~wrong), cost_facts(rule.costs)
            )
            chosen = chosen._replace(data_sha256=rows, ranking_sha256=ranking)
        self.use_rule(rule)
        self.keep(found, chosen, certified, target.delta, target.largest)
        self._cost_records = score, cost, ~wrong

    def check_scores_alone(self) -> None:
        """Raises ValueError with costs, which scores and errors do not tell."""
        if self._rule is not None:
            raise value_error(
                "`fit_scores` must be called without `costs`: records of "
                "scores and costs go to `choose_threshold_by_cost`",
                **{"costs.shape": self._rule.costs.shape},
            )

    def answers(self, logits: Any, threshold: Any) -> dict[str, Any]:
        """The answers to calibrated logits `(..., num_classes)`."""
        if self._rule is not None:
            return self._rule.answers(logits, threshold)
        return answers_of(logits, self.score_of(logits), threshold)

    def get_config(self):
        score, costs = self.score, None
        if self._rule is not None:
            score, costs = "msp", self._rule.costs.tolist()
        score = [*score] if self._place is None else score
        return {
            **super().get_config(),
            "score": keras.saving.serialize_keras_object(score),
            "costs": costs,
        }

    def take_records(
        self,
        target: Target | PriorTarget | MixtureTarget,
        records: tuple,
        names: tuple | None,
        kind: Any,
        log_odds: bool,
    ) -> None:
        """Takes the best threshold; raises ValueError if none is within reach.

        Args:
            target: What to reach.
            records: Scores, correctness and weights of one shape.
            names: Names of the groups, or None.
            kind: True class or place of the group of each record, or None.
            log_odds: Whether scores are log-odds of the confidence.
        """
        if names is not None and isinstance(target, Target):
            self.take_groups(names, kind, records, target)
            return
        scores, correct, weight = records
        read = read_records(scores, correct, weight, target.delta)
        kept = read[2] > 0
        scores, correct, weight = (x[kept] for x in read)
        found = of_records(scores, correct, weight)
        if isinstance(target, Target):
            self.take(found, target, log_odds)
            return
        found, chosen, certified = target.choose(
            scores, correct, kind[kept], log_odds
        )
        self.keep(found, chosen, certified, target.delta)

    def parts(self) -> list[Any]:
        """Calibrator and scores."""
        return [*super().parts(), *self._functions]


def rule_of(costs: Any, score: Any) -> CostRule:
    """The rule of a cost matrix; raises ValueError for another score."""
    if score not in ("msp", "expected_cost"):
        raise value_error(
            "`score` must be left out with `costs`: the expected cost ranks "
            "the answers",
            score=score,
        )
    return CostRule(costs)

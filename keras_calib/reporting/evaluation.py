"""All that a report says of a model, gathered batch by batch."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_calib.exporting.answer_threshold import bounded_log_odds
from keras_calib.formulas.cumulative import cumulative_p_value
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.labels import nothing_counts
from keras_calib.inputs.options import ReadOptions
from keras_calib.inputs.top_label import hard_labels
from keras_calib.metrics import CalibrationMetrics
from keras_calib.numerics.arrays import at_least_float32, safe_divide, to_numpy
from keras_calib.numerics.row_blocks import RowFacts, read_rows
from keras_calib.numerics.softmax import sigmoid, to_logits
from keras_calib.reporting.annotators import Annotators, confusions, wrong_of
from keras_calib.reporting.attributes import AttributeGroups
from keras_calib.reporting.groups import SURE, StageGroups
from keras_calib.reporting.measures import EXPLAINED
from keras_calib.reporting.verdict import (
    about_selection,
    change_of,
    judged,
    verdict,
)

__all__ = ["Mistake", "ModelEvaluation", "with_intervals"]

# Least confidence of errors that are counted by label and predicted class.
_SURE_PAIR = SURE[1]


class Mistake(NamedTuple):
    """A sample that a model is wrong about.

    `number` counts samples from 0; `label` and `predicted` are class ids. With
    votes `label` is the class with most of them, and `share` its share.
    """

    confidence: float
    number: int
    label: int
    predicted: int
    sample: Any
    share: float | None = None


@dataclasses.dataclass
class ModelEvaluation:
    """Gathers what a model, its calibrator and its selector do on the data.

    Call `add` for each batch, or `add_scores` for each part of a log of the
    predicted class alone, then `results`.
    """

    name: str
    calibrator: Any
    selector: Any
    options: ReadOptions
    num_bins: int
    num_mistakes: int
    metrics: Sequence[str] = tuple(EXPLAINED)

    def __post_init__(self):
        def metrics(from_logits: bool) -> CalibrationMetrics:
            reading = self.options._replace(from_logits=from_logits)
            return CalibrationMetrics(
                list(self.metrics),
                num_bins=self.num_bins,
                **reading.of_metric(),
            )

        self.before = metrics(self.options.from_logits)
        self.after = None if self.calibrator is None else metrics(True)
        # Read predictions, and those with weight and a class to count.
        self.num_samples = self.num_counted = 0
        # Whether a sample has several predictions, as an image has pixels.
        self.is_dense = False
        # Known from the first batch that counts.
        self.num_classes = 0
        # One for each stage, before and after calibration.
        self.groups: list[StageGroups] = []
        # Sure errors by (label, predicted class); of votes their shares.
        self.confused: Any = collections.Counter()
        # What is known of the annotators, if labels are votes.
        self.annotators = Annotators() if self.options.votes else None
        # Groups that came with the data, such as sites.
        self.attributes = AttributeGroups(self.num_bins, self.options.votes)
        self.mistakes: list[Mistake] = []
        # Rows: all, the accepted, the wrong among these. Columns: sums of
        # weights and of their squares.
        self._selected = np.zeros((3, 2))

    def add(
        self,
        labels: Any,
        outputs: Any,
        sample_weight: Any,
        inputs: Any,
        groups: Any = None,
    ) -> None:
        """Adds a batch, of whose inputs the surest mistakes are kept."""
        options, lead = self.options, np.shape(outputs)[:-1]
        if nothing_counts(labels, sample_weight, options.ignore_class):
            self.num_samples += int(np.prod(lead))
            return
        self.before.update_state(labels, outputs, sample_weight)
        read = standardize_arrays(
            labels,
            outputs,
            from_logits=options.from_logits,
            sample_weight=sample_weight,
            ignore_class=options.ignore_class,
            name="outputs",
            drop=False,
            votes=options.votes,
        )
        outputs, truth = read.outputs, read.labels
        if not options.votes:
            truth = hard_labels(truth)
        self.num_classes = outputs.shape[-1]
        self.is_dense |= len(lead) > 1
        logits = outputs.reshape(*lead, -1)
        further = self.after is not None or self.selector is not None
        if further and not options.from_logits:
            logits = to_numpy(to_logits(at_least_float32(logits)))
        facts: Any = read.facts
        if options.from_logits:
            facts = read_rows(outputs, from_logits=True)
        stages = [facts]
        if self.after is not None:
            calibrated = to_numpy(self.calibrator(logits))
            self.after.update_state(labels, calibrated, sample_weight)
            calibrated = calibrated.reshape(outputs.shape)
            stages.append(read_rows(calibrated, from_logits=True))
        weight = np.ones(len(truth)) if read.weight is None else read.weight
        if read.mask is not None:
            weight = weight * read.mask
        answers = accept = None
        if self.selector is not None:
            answers = self.selector(logits)
            accept = to_numpy(answers["accept"]).reshape(-1)
            answers = to_numpy(answers["label"]).reshape(-1)
        if self.annotators is not None:
            self.annotators.add(labels, truth, weight)
        chosen = accept, answers
        self._add_rows(stages, truth, weight, chosen, inputs, groups, lead)

    def add_scores(
        self,
        confidence: Any,
        correct: Any,
        sample_weight: Any,
        inputs: Any,
        groups: Any = None,
    ) -> None:
        """Adds a part of a log `(n,)` of the predicted class alone.

        Right and wrong are classes 0 and 1, of which 0 is always predicted.
        The calibrator is a map of the confidence.
        """
        weight = np.ones(len(correct))
        if sample_weight is not None:
            weight = np.asarray(sample_weight, "float64")
        if not weight.any():
            self.num_samples += len(weight)
            return
        self.num_classes, predicted = 2, np.zeros(len(correct), int)
        self.before.update_scores(confidence, correct, sample_weight)
        stages = [RowFacts(predicted, confidence, None)]
        if self.after is not None:
            confidence = self.calibrator(confidence)
            self.after.update_scores(confidence, correct, sample_weight)
            stages.append(RowFacts(predicted, confidence, None))
        accept = None
        if self.selector is not None:
            score = bounded_log_odds(confidence).astype("float32")
            accept = score >= self.selector.threshold
        chosen, lead = (accept, predicted), confidence.shape
        self._add_rows(
            stages, 1 - correct, weight, chosen, inputs, groups, lead
        )

    def _add_rows(
        self,
        stages: list[RowFacts],
        truth: np.ndarray,
        weight: np.ndarray,
        chosen: tuple[Any, Any],
        inputs: Any,
        groups: Any,
        lead: tuple[int, ...],
    ) -> None:
        """Adds facts of rows `(n,)`; `chosen` has the selector's answers."""
        self._add_groups(stages, truth, weight)
        self._add_errors(stages[-1], truth, weight, inputs)
        accept, answers = chosen
        if accept is not None:
            wrong = wrong_of(truth, answers)
            rows = np.stack([np.ones_like(accept), accept, accept * wrong])
            self._selected += rows @ np.stack([weight, weight**2], axis=-1)
        if groups is not None:
            self.attributes.add(groups, lead, stages[-1], truth, weight, accept)
        self.num_samples += len(truth)
        self.num_counted += int(np.count_nonzero(weight))

    @property
    def final(self) -> CalibrationMetrics:
        """Metrics of what users get: after calibration, if there is any."""
        return self.before if self.after is None else self.after

    def results(self) -> dict[str, Any]:
        """What the page says of the model, in numbers."""
        metrics, gap = _estimates(self.before), self.before.mean_gap()
        results = {
            "num_samples": self.num_samples,
            "num_counted": self.num_counted,
            "overconfidence": gap._asdict(),
            "metrics": metrics,
            "selection": None if self.selector is None else self._selection(),
            "sure": [x._asdict() for x in self.groups[-1].sure()],
            "classes": [x._asdict() for x in self.groups[-1].classes()],
        }
        if self.attributes:
            results["groups"] = self.attributes.results(
                getattr(self.selector, "chosen", None)
            )
        if self.annotators is not None:
            results["annotators"] = self.annotators.results()
        before, after = (gap, metrics["ece"]), None
        if self.after is not None:
            repaired = _estimates(self.after)
            after = self.after.mean_gap(), repaired["ece"]
            results |= {
                "calibrated_overconfidence": after[0]._asdict(),
                "calibrated_metrics": repaired,
                "calibrated_verdict": judged(*after),
                "change": change_of(before, after),
            }
        return {"verdict": verdict(before, after), **results}

    def _add_groups(
        self,
        stages: list[RowFacts],
        truth: np.ndarray,
        weight: np.ndarray,
    ) -> None:
        """Adds the facts of outputs to the groups of each stage."""
        counts = np.flatnonzero(weight)
        if not self.groups:
            made = self.num_classes, self.options.votes
            self.groups = [StageGroups(*made) for _ in stages]
        for groups, facts in zip(self.groups, stages, strict=True):
            predicted = facts.predicted[counts]
            wrong = wrong_of(truth[counts], predicted)
            groups.add(
                facts.confidence[counts], predicted, wrong, weight[counts]
            )

    def _add_errors(
        self,
        facts: RowFacts,
        truth: np.ndarray,
        weight: np.ndarray,
        inputs: Any,
    ) -> None:
        """Counts pairs of classes of sure errors, and keeps the surest."""
        counts = np.flatnonzero(weight)
        confidence, predicted = facts.confidence, facts.predicted
        sure = counts[confidence[counts] >= _SURE_PAIR]
        for *pair, size in confusions(truth[sure], predicted[sure]):
            self.confused[tuple(pair)] += size
        label, share = hard_labels(truth), None
        wrong = predicted != label
        if self.options.votes:
            # Classes may tie for most votes.
            share = truth.max(axis=-1)
            wrong &= wrong_of(truth, predicted) > 1.0 - share
        rows, kept = counts[wrong[counts]], self.num_mistakes
        # Stable: of equally sure ones the first are shown.
        surest = np.argsort(-confidence[rows], kind="stable")[:kept]
        of_samples = inputs is not None and len(inputs) == len(truth)
        self.mistakes += [
            Mistake(
                float(confidence[i]),
                self.num_samples + int(i),
                int(label[i]),
                int(predicted[i]),
                to_numpy(inputs[i]) if of_samples else None,
                None if share is None else float(share[i]),
            )
            for i in rows[surest]
        ]
        self.mistakes.sort(key=lambda x: (-x.confidence, x.number))
        del self.mistakes[kept:]

    def _selection(self) -> dict[str, Any]:
        (total, _), (weight, square), (wrong, _) = self._selected
        # Unequal weights are worth fewer samples than there are.
        count = float(safe_divide(weight**2, square))
        risk = float(safe_divide(wrong, weight))
        low, high = clopper_pearson(min(risk * count, count), count)
        chosen = getattr(self.selector, "chosen", None)
        threshold = getattr(self.selector, "threshold", None)
        confidence = getattr(chosen, "confidence", None)
        if confidence is None and self.selector.score == "msp":
            confidence = float(sigmoid(np.float64(threshold)))
        found = {
            "threshold": threshold,
            "confidence": confidence,
            "total": float(total),
            "coverage": float(safe_divide(weight, total)),
            "risk": {"value": risk, "low": float(low), "high": float(high)},
        }
        texts, broken = about_selection(found, chosen, votes=self.options.votes)
        return {**found, "sentences": texts, "contradicted": broken}


def with_intervals(metrics: CalibrationMetrics) -> dict[str, dict[str, Any]]:
    """Every metric by its name: value, and ends of the interval."""
    intervals = metrics.interval()
    return {
        name: {
            "value": float(value),
            "low": intervals[name][0],
            "high": intervals[name][1],
        }
        for name, value in metrics.result().items()
    }


def _estimates(metrics: CalibrationMetrics) -> dict[str, dict[str, Any]]:
    """Every metric by its name, with its 95 % interval.

    The ECCE has a p-value of calibration too, None of too few data and of
    votes, which vary less than single labels.
    """
    found = with_intervals(metrics)
    if "ecce" in found:
        weight, squares = (
            float(np.sum(getattr(metrics.bins(), name)))
            for name in ("weight", "squared_weight")
        )
        p_value = cumulative_p_value(
            found["ecce"]["value"],
            metrics.differences().deviation,
            float(safe_divide(weight**2, squares)),
            "range",
        )
        found["ecce"]["p_value"] = None if metrics.options.votes else p_value
    return found

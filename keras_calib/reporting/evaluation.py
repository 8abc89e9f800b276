"""All that a report says of a model, gathered batch by batch.

Kinds of evaluations differ by how a batch is read and by what their results
hold: here are those of classes and of logs, in `labels` that of several labels.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from keras_calib.calibrators.fitted_layer import of_logits
from keras_calib.exporting.answer_threshold import bounded_log_odds
from keras_calib.formulas.cumulative import cumulative_p_value
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.formulas.proper import (
    brier_losses_of_rows,
    log_losses,
    losses_of_rows,
    summable_losses,
)
from keras_calib.formulas.units import effective_count, group_of, sums_by_unit
from keras_calib.functional.group_table import holm
from keras_calib.inputs.batch import Batch, read_arrays, with_rows
from keras_calib.inputs.labels import nothing_counts
from keras_calib.inputs.options import ReadOptions
from keras_calib.inputs.top_label import hard_labels
from keras_calib.inputs.values import Rules
from keras_calib.metrics import CalibrationMetrics, PerImage
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.paired import paired_p_values
from keras_calib.metrics.reading import add_rows, read_without_faults
from keras_calib.metrics.registry import mode_of
from keras_calib.metrics.states.units import UnitSums
from keras_calib.numerics.arrays import at_least_float32, safe_divide, to_numpy
from keras_calib.numerics.row_blocks import RowFacts
from keras_calib.numerics.softmax import sigmoid, to_logits
from keras_calib.predictions.predictions import Predictions
from keras_calib.reporting.by_unit import UnitJackknife, UnitNumbers, UnitTable
from keras_calib.reporting.groups import SURE, AttributeGroups, StageGroups
from keras_calib.reporting.measures import EXPLAINED, TOP1_METRICS
from keras_calib.reporting.remainder import remainder, worse_classes
from keras_calib.reporting.segments import SegmentEvaluation
from keras_calib.reporting.verdict import (
    about_selection,
    change_of,
    judged,
    verdict,
)

_LOSSES: dict[str, Callable] = {
    "nll": partial(losses_of_rows, log_losses),
    "brier_score": brier_losses_of_rows,
}
# Least confidence of errors that are counted by label and predicted class.
_SURE_PAIR = SURE[1]
# What is predicted, and the axes of an example of several predictions.
_PLACES = {
    2: ("sequence", "position"),
    3: ("image", "row", "column"),
    4: ("volume", "slice", "row", "column"),
}


class Mistake(NamedTuple):
    """A sample that a model is wrong about.

    `place` is the number of the example from 0, and the place in it: of a pixel
    its row and column. `label` and `predicted` are class ids. With votes
    `label` is the class with most of them, and `share` its share. A model of
    several labels is wrong about one: `label` is its number, and `predicted` is
    1 where the model says yes.
    """

    confidence: float
    place: tuple[int, ...]
    label: int
    predicted: int
    sample: Any
    share: float | None = None


class Evaluation:
    """Gathers what a model, its calibrator and its selector do on the data.

    Call `add` for each batch, then `results`.

    Args:
        name: Name of the model.
        calibrator: Fitted calibrator, or None.
        selector: Fitted selector, or None.
        options: How labels and outputs are read.
        num_bins: Number of bins of the calibration errors.
        num_mistakes: How many of the surest mistakes to keep.
        names: Names of the classes or labels, or None.

    Attributes:
        kind: `"classes"`, `"scores"` or `"labels"`; a page has sections for
            each.
    """

    kind = ""
    # What a name stands for.
    _unit = ""
    # Axes of the outputs that are no samples.
    _own_axes = 1
    # What a place is called, and whether it is one of some drawn pixels.
    places: tuple[str, ...] = ("sample",)
    is_drawn = False

    def __init__(
        self,
        name: str,
        calibrator: Any,
        selector: Any,
        options: ReadOptions,
        num_bins: int,
        num_mistakes: int,
        names: Sequence[str] | None = None,
    ):
        self.name, self.names = name, names
        self.calibrator, self.selector = calibrator, selector
        self.options = options
        self.num_bins, self.num_mistakes = num_bins, num_mistakes
        # Read predictions, those with weight and a class to count, and what
        # they are of.
        self.num_samples = self.num_counted = self.num_examples = 0
        # Of classes or of labels; known from the first batch that counts.
        self.num_classes = 0
        self.mistakes: list[Mistake] = []
        # What rows belong to, and the sums of that.
        self._numbers = UnitNumbers()
        # Outputs before calibration are as the model gives them.
        self._from_logits = [bool(options.from_logits)]
        self._from_logits += [True] * (calibrator is not None)
        # Sums of weights and of their squares, of all answers, the accepted,
        # the wrong among these, the accepted that say yes, the wrong among
        # these: `(2, 5)`, or `(2, 5, labels)`.
        self._selected: Any = 0.0
        # Wrong weight and weight of the accepted, by group of units.
        self._accepted_by_unit: Any = 0.0

    def add(
        self,
        labels: Any,
        outputs: Any,
        sample_weight: Any,
        inputs: Any,
        groups: Any = None,
        units: Any = None,
    ) -> None:
        """Adds a batch, of whose inputs the surest mistakes are kept.

        Rows `(n,)` with the same name in `units` depend on each other, and so
        do the samples of an example.
        """
        lead = np.shape(outputs)[: np.ndim(outputs) - self._own_axes]
        if len(lead) > 1:
            others = "example", *["position"] * (len(lead) - 1)
            self.places = _PLACES.get(len(lead), others)
        if self.is_drawn:
            self.places = "image", "drawn pixel"
        self._unit_of = self._numbers.of(units, lead, self.num_examples)
        ignored = self.options.ignore_class
        if not nothing_counts(labels, sample_weight, ignored):
            self._add((labels, outputs, sample_weight), inputs, groups, lead)
        self.num_samples += int(np.prod(lead))
        self.num_examples += lead[0]

    def results(self) -> dict[str, Any]:
        """What the page says of the model, in numbers."""
        raise NotImplementedError

    def name_of(self, k: int) -> str:
        """How the page calls a class or a label."""
        return f"{self._unit} {k}" if self.names is None else self.names[k]

    @property
    def inside(self) -> str:
        """What an example has many of; empty for a prediction of each."""
        if len(self.places) == 1:
            return ""
        return "pixels" if self.places[0] == "image" else "positions"

    @property
    def unit_name(self) -> str:
        """What predictions depend on each other in, in the plural."""
        return f"{self.places[0]}s" if self.inside else "units"

    def where(self, mistake: Mistake) -> str:
        """The place of a mistake, without what its example is called."""
        first, *inside = mistake.place
        named = zip(self.places[1:], inside, strict=True)
        return ", ".join([str(first), *(f"{x} {k}" for x, k in named)])

    def _add(self, given: tuple, inputs: Any, groups: Any, lead: Any) -> None:
        """Adds labels, outputs and weights of which a sample counts.

        `lead` is the shape of the samples.
        """
        raise NotImplementedError

    def _answers(self, logits: np.ndarray) -> tuple[Any, dict[str, Any]]:
        """Calibrated logits, None without a calibrator, and answers."""
        calibrated, answers = None, {}
        if self.selector is not None:
            answers = of_logits(self.selector, logits)
        if self.calibrator is not None:
            # The selector may have calibrated them already.
            own = getattr(self.selector, "calibrator", None) is self.calibrator
            calibrated = (
                answers["logits"] if own else of_logits(self.calibrator, logits)
            )
            calibrated = to_numpy(calibrated)
        return calibrated, answers

    def _keep(
        self,
        score: np.ndarray,
        columns: Sequence[np.ndarray],
        inputs: Any,
        lead: tuple[int, ...],
    ) -> None:
        """Keeps the surest of mistakes, those of the highest score.

        `columns` are those of `Mistake` without the sample, and with numbers
        of the samples in this batch, whose shape is `lead`, as places.
        """
        # Stable: of equally sure ones the first are shown.
        surest = np.argsort(-score, kind="stable")[: self.num_mistakes]
        of_samples = inputs is not None and len(lead) == 1
        rows = zip(*(x[surest].tolist() for x in columns), strict=True)
        for confidence, number, label, predicted, *share in rows:
            first, *inside = map(int, np.unravel_index(number, lead))
            place = self.num_examples + first, *inside
            sample = inputs[number] if of_samples else None
            self.mistakes.append(
                Mistake(confidence, place, label, predicted, sample, *share)
            )
        self.mistakes.sort(key=lambda x: (-x.confidence, x.place, x.label))
        del self.mistakes[self.num_mistakes :]

    def _select(
        self,
        accept: np.ndarray,
        wrong: np.ndarray,
        weight: np.ndarray,
        yes: Any = 0.0,
    ) -> None:
        """Adds the answers of the selector, `(n,)` or `(n, labels)`."""
        taken = accept.astype("float64")
        if self._numbers.are_told and taken.ndim == 1:
            kept, none = weight * taken, np.zeros(len(taken), int)
            group = group_of(self._unit_of)
            found = sums_by_unit(group, none, 1, kept * wrong, kept)
            self._accepted_by_unit = self._accepted_by_unit + found
        rows = [np.ones_like(taken), taken, taken * wrong]
        rows += [taken * yes, taken * yes * wrong]
        self._selected = self._selected + np.stack(
            [[(w * x).sum(axis=0) for x in rows] for w in (weight, weight**2)]
        )


class ClassEvaluation(Evaluation):
    """What a model of classes does."""

    kind, _unit = "classes", "class"
    _measured = tuple(EXPLAINED)

    def __init__(
        self,
        *args: Any,
        keys: Sequence[str] | None = None,
        others: Callable[[ReadOptions], dict[str, Any]] = lambda options: {},
    ):
        """Measures `keys`, None for those of the page, and `others` by name."""
        super().__init__(*args)
        # Metrics and groups of each stage, before and after calibration.
        read = [self.options._replace(from_logits=x) for x in self._from_logits]
        self.stages = [
            UnitTable(
                list(self._measured if keys is None else keys),
                num_bins=self.num_bins,
                **options.of_metric(),
            )
            for options in read
        ]
        self.others = [others(options) for options in read]
        for table, options in zip(self.stages, read, strict=True):
            table.options = options
        # What tells the errors of `others` where rows depend on each other.
        self.by_units: list[dict[str, UnitJackknife]] = [{} for _ in read]
        # Sums by unit, for changes and where rows depend on each other.
        self.by_unit: UnitSums | None = None
        self._is_page = keys is None
        self.groups: list[StageGroups] = []
        # Sure errors by (label, predicted class); of votes their shares.
        self.confused: Any = collections.Counter()
        # What is known of the annotators, if labels are votes.
        self.annotators = _Annotators() if self.options.votes else None
        # Groups that came with the data, such as sites.
        self.attributes = AttributeGroups(self.num_bins, self.options.votes)
        # What pages say of dense outputs by image, after calibration.
        self.segments: SegmentEvaluation | None = None

    @property
    def final(self) -> CalibrationMetrics:
        """Metrics of what users get: after calibration, if there is any."""
        return self.stages[-1]

    def results(self) -> dict[str, Any]:
        metrics = estimates_of(self.stages[0])
        gap = self.stages[0].confidence_gap()
        results: dict[str, Any] = {
            "num_samples": self.num_samples,
            "num_counted": self.num_counted,
            "num_units": self.by_unit.num_units
            if self._numbers.are_told and self.by_unit
            else None,
            "confidence_gap": gap.to_dict(),
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
        if self.segments is not None:
            results["segments"] = self.segments.results()
            results["classes"] = self.segments.classes()
        before, after = (gap, metrics["ece"]), None
        judges: tuple = ()
        if self.calibrator is not None:
            repaired = estimates_of(self.final)
            after = self.final.confidence_gap(), repaired["ece"]
            bins, units = self.final.bins(), results["num_units"]
            told = self.calibrator, units, self.unit_name
            left, worse = remainder(*after, bins, *told), []
            if self.kind == "classes":
                first, last = (x.classes() for x in self.groups)
                worse = worse_classes(first, last, self.name_of)
            judges = left, worse
            results |= {
                "calibrated_confidence_gap": after[0].to_dict(),
                "calibrated_metrics": repaired,
                "calibrated_verdict": judged(*after, *judges),
                "change": change_of(before, after),
                "changes": self._changes(),
            }
        return {"verdict": verdict(before, after, *judges), **results}

    def _add(self, given: tuple, inputs: Any, groups: Any, lead: Any) -> None:
        labels, outputs, weight = given
        options = self.options
        batch = read_without_faults(labels, outputs, weight, options)
        if batch is None or not add_rows(self.stages[0], batch):
            # Read as tensors, where what is wrong is told.
            self.stages[0].update_state(labels, outputs, weight)
        if batch is None:
            batch = read_arrays(labels, outputs, weight, options)
        self._add_others(0, given, lead)
        self.num_classes = batch.outputs.shape[-1]
        logits = batch.outputs.reshape(*lead, -1)
        parts = self.calibrator, self.selector
        if not options.from_logits and parts != (None, None):
            logits = to_numpy(to_logits(at_least_float32(logits)))
        stages, (calibrated, answers) = [batch.facts], self._answers(logits)
        losses = [self._losses(batch)]
        if calibrated is not None:
            rows, rules = calibrated.reshape(batch.outputs.shape), Rules()
            after = batch._replace(from_logits=True)
            after = with_rows(after, rows, options.names[1], rules)
            if not (rules.hold and add_rows(self.final, after)):
                self.final.update_state(labels, calibrated, weight)
            self._add_others(-1, (labels, calibrated, weight), lead)
            stages.append(after.facts)
            losses.append(self._losses(after))
        truth = batch.labels
        if not options.votes:
            truth = hard_labels(truth).astype("int64", copy=False)
        weight = np.ones(len(truth)) if batch.weight is None else batch.weight
        if batch.mask is not None:
            weight = weight * batch.mask
        if self.annotators is not None:
            self.annotators.add(labels, truth, weight)
        accept = None
        if answers:
            accept = to_numpy(answers["accept"]).reshape(-1)
            answer = to_numpy(answers["label"]).reshape(-1)
            self._select(accept, _wrong_of(truth, answer), weight)
        self._add_rows(
            stages, losses, truth, weight, accept, inputs, groups, lead
        )

    def _add_others(self, stage: int, rows: tuple, lead: Any) -> None:
        """Adds a batch to the metrics that are not of the page."""
        unit = self._unit_of.reshape(lead[0], -1)[:, 0]
        for name, metric in self.others[stage].items():
            metric.update_state(*rows)
            is_ours = isinstance(metric, StreamingMetric)
            if self._numbers.are_told and is_ours:
                parts = self.by_units[stage]
                if name not in parts and not isinstance(metric, PerImage):
                    parts[name] = UnitJackknife(metric)
                if name in parts:
                    parts[name].add(rows, unit)

    @property
    def _sums_units(self) -> bool:
        several = self._is_page and len(self.stages) > 1
        return several or self._numbers.are_told

    def _losses(self, batch: Batch) -> dict[str, np.ndarray]:
        """Losses of rows by name, of those that are measured by unit."""
        if not self._sums_units:
            return {}
        return {
            k: summable_losses(fn(batch))
            for k, fn in _LOSSES.items()
            if k in self.stages[0].include
        }

    def _add_rows(
        self,
        stages: list[RowFacts],
        losses: list[dict[str, np.ndarray]],
        truth: np.ndarray,
        weight: np.ndarray,
        accept: np.ndarray | None,
        inputs: Any,
        groups: Any,
        lead: tuple[int, ...],
    ) -> None:
        """Adds facts of rows `(n,)`, and which of them the selector accepts."""
        if self._is_page and len(lead) > 1:
            if self.segments is None:
                made = self.num_mistakes, self.num_classes, self.is_drawn
                self.segments = SegmentEvaluation(*made)
            wrong = _wrong_of(truth, stages[-1].predicted)
            rows = hard_labels(truth), wrong, stages[-1], weight, inputs
            self.segments.add(*rows, lead, self.num_examples)
        size, counts = len(truth), np.flatnonzero(weight)
        self.num_counted += len(counts)
        truth, weight = truth[counts], weight[counts]
        if not self.groups:
            made = self.num_classes, self.options.votes
            self.groups = [StageGroups(*made) for _ in stages]
        own_unit = self._unit_of[counts]
        unit = own_unit if self._numbers.are_told else None
        columns_by_stage = []
        for sums, facts, of_rows in zip(
            self.groups, stages, losses, strict=True
        ):
            predicted = facts.predicted[counts]
            confidence = facts.confidence[counts]
            wrong = _wrong_of(truth, predicted)
            sums.add(confidence, predicted, 1.0 - wrong, weight, unit)
            own = {k: x[counts] for k, x in of_rows.items()}
            if facts.log_odds is not None:
                own["score"] = facts.log_odds[counts]
            own |= {"confidence": confidence, "correct": 1.0 - wrong}
            columns_by_stage.append(own)
        if self._sums_units:
            if self.by_unit is None:
                made = len(stages), self.num_bins, tuple(losses[0])
                self.by_unit = UnitSums(*made)
                for k, table in enumerate(self.stages):
                    if self._numbers.are_told:
                        table.take(self.by_unit, k, self.unit_name)
            self.by_unit.add(own_unit, weight, columns_by_stage)
        # What users get is last.
        if groups is not None:
            if accept is not None:
                accept = accept[counts]
            rows = confidence, 1.0 - wrong, weight, accept
            self.attributes.add(groups, size, counts, *rows, unit)
        sure = confidence >= _SURE_PAIR
        for *pair, number in _confusions(truth[sure], predicted[sure]):
            self.confused[tuple(pair)] += number
        label, is_wrong = hard_labels(truth), wrong > 0
        columns = [confidence, counts, label, predicted]
        if self.options.votes:
            # Classes may tie for most votes.
            share = truth.max(axis=-1)
            is_wrong = (predicted != label) & (wrong > 1.0 - share)
            columns.append(share)
        if len(lead) == 1 or self.is_drawn:
            columns = [x[is_wrong] for x in columns]
            self._keep(columns[0], columns, inputs, lead)

    def _changes(self) -> dict[str, dict[str, float]]:
        """P-values of no change by metric, alone and after Holm."""
        if self.by_unit is None:
            return {}
        names = [x for x in self.final.include if mode_of(x)]
        names.append("confidence_gap")
        found = paired_p_values(self.by_unit, names, self.final, (0, 1))
        adjusted = holm([*found.values()])
        return {
            name: {"p_value": p, "p_holm": float(q)}
            for (name, p), q in zip(found.items(), adjusted, strict=True)
        }

    def _of_units(self, selected: np.ndarray) -> np.ndarray:
        """The sums of accepted answers, as effective as those of units."""
        if not self._numbers.are_told or not selected[0, 1]:
            return selected
        (_, weight, wrong, *_), squares = selected
        risk = wrong / weight
        alone, count = np.array([risk * (1.0 - risk)]), weight**2 / squares[1]
        bad, kept = self._accepted_by_unit
        own = effective_count(alone, bad, kept, np.array([count]))
        found = selected.copy()
        found[1, 1] = weight**2 / own[0]
        return found

    def _selection(self) -> dict[str, Any]:
        sums = accepted(self._of_units(self._selected))
        chosen = getattr(self.selector, "chosen", None)
        threshold = getattr(self.selector, "threshold", None)
        confidence = getattr(chosen, "confidence", None)
        if confidence is None and self.selector.score == "msp":
            confidence = float(sigmoid(np.float64(threshold)))
        found = {
            "threshold": threshold,
            "confidence": confidence,
            "total": sums["total"],
            "coverage": sums["coverage"],
            "risk": {
                "value": sums["risk"],
                "low": sums["risk_low"],
                "high": sums["risk_high"],
            },
        }
        texts, broken = about_selection(found, chosen, votes=self.options.votes)
        return {**found, "sentences": texts, "contradicted": broken}


class ScoreEvaluation(ClassEvaluation):
    """What a log of the predicted class alone tells.

    Labels are correctness `(n,)` and outputs are confidences: right and wrong
    are classes 0 and 1, of which 0 is always predicted. The calibrator is a
    map of the confidence.
    """

    kind = "scores"
    _own_axes = 0
    _measured = TOP1_METRICS

    def _add(self, given: tuple, inputs: Any, groups: Any, lead: Any) -> None:
        labels, outputs, sample_weight = given
        self.num_classes, predicted = 2, np.zeros(len(labels), int)
        weight = np.ones(len(labels))
        if sample_weight is not None:
            weight = np.asarray(sample_weight, "float64")
        facts: list[RowFacts] = []
        for metrics in self.stages:
            if facts:
                outputs = self._calibrated(labels, outputs)
            metrics.update_scores(outputs, labels, sample_weight)
            facts.append(RowFacts(predicted, outputs, None))
        truth, accept = 1 - labels, None
        if self.selector is not None:
            score = bounded_log_odds(outputs).astype("float32")
            accept = score >= self.selector.threshold
            self._select(accept, truth != 0, weight)
        none: list[dict] = [{}] * len(facts)
        self._add_rows(facts, none, truth, weight, accept, inputs, groups, lead)

    def _calibrated(
        self, labels: np.ndarray, confidence: np.ndarray
    ) -> np.ndarray:
        """Confidences by a calibrator of a log, or by a map of numbers."""
        if not hasattr(self.calibrator, "calibrate"):
            return self.calibrator(confidence)
        log = Predictions(correct=labels, confidence=confidence)
        return self.calibrator.calibrate(log).confidence


class _Annotators:
    """How many votes the samples have, and how far annotators agree."""

    def __init__(self):
        self._sums = np.zeros(2)
        # None once a row of shares was there.
        self._num_votes: float | None = 0.0

    def add(
        self, votes: np.ndarray, shares: np.ndarray, weight: np.ndarray
    ) -> None:
        """Adds votes as they were given, with their shares `(n, classes)`."""
        self._sums += weight @ np.stack(
            [np.ones(len(shares)), shares.max(axis=-1)], axis=-1
        )
        rows = to_numpy(votes, "float64").reshape(len(shares), -1)[weight > 0]
        whole = bool((rows == np.floor(rows)).all()) and rows.shape[1] > 1
        if self._num_votes is not None:
            self._num_votes = self._num_votes + rows.sum() if whole else None

    def results(self) -> dict[str, Any]:
        """The number of votes, None of shares, and the mean agreement.

        That is the mean share of the class with most votes, which no
        prediction of one class for each sample can exceed.
        """
        total, agree = self._sums
        number = None if self._num_votes is None else int(self._num_votes)
        return {"num_votes": number, "agreement": float(agree / total)}


def _wrong_of(truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Whether classes `(n,)` are wrong, or the share of votes for others."""
    if truth.ndim == 1:
        return predicted != truth
    return 1.0 - truth[np.arange(len(truth)), predicted]


def _confusions(
    truth: np.ndarray, predicted: np.ndarray
) -> Iterator[tuple[int, int, float]]:
    """Label, predicted class and number of errors, or sum of their shares."""
    if truth.ndim == 1:
        rows = np.flatnonzero(predicted != truth)
        label, size = truth[rows], np.ones(len(rows))
    else:
        rows, label = np.nonzero(truth)
        size = truth[rows, label]
        other = label != predicted[rows]
        rows, label, size = rows[other], label[other], size[other]
    pairs = np.stack([label, predicted[rows]], axis=-1).astype(int)
    found, places = np.unique(pairs, axis=0, return_inverse=True)
    sizes = np.bincount(places.reshape(-1), size, len(found))
    for pair, total in zip(found.tolist(), sizes.tolist(), strict=True):
        yield (*pair, total)


def accepted(selected: np.ndarray, level: float = 0.95) -> dict[str, float]:
    """Coverage and risk of accepted answers, with an interval of the risk."""
    (total, weight, wrong, yes, wrong_yes), squares = selected
    # Unequal weights are worth fewer answers than there are.
    count = float(safe_divide(weight**2, squares[1]))
    risk = float(safe_divide(wrong, weight))
    low, high = clopper_pearson(min(risk * count, count), count, level=level)
    return {
        "total": float(total),
        "coverage": float(safe_divide(weight, total)),
        "risk": risk,
        "risk_low": float(low),
        "risk_high": float(high),
        "yes": float(safe_divide(yes, weight)),
        "risk_of_yes": float(safe_divide(wrong_yes, yes)),
    }


def estimates_of(metrics: CalibrationMetrics) -> dict[str, dict[str, Any]]:
    """Every metric by its name: value, and ends of its 95 % interval.

    The ECCE has a p-value of calibration too, None of too few data and of
    votes, which vary less than single labels.
    """
    intervals = metrics.interval()
    found: dict[str, dict[str, Any]] = {
        name: {
            "value": float(value),
            "low": intervals[name][0],
            "high": intervals[name][1],
        }
        for name, value in metrics.result().items()
    }
    if "ecce" in found:
        bins = metrics.bins()
        count = safe_divide(bins.weight.sum() ** 2, bins.squared_weight.sum())
        p_value = cumulative_p_value(
            found["ecce"]["value"],
            metrics.differences().deviation,
            float(count),
            "range",
        )
        found["ecce"]["p_value"] = None if metrics.options.votes else p_value
    return found

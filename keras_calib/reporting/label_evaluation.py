"""All that a report says of a model of several labels, batch by batch."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.formulas.risk_coverage import failure_auroc_of_groups
from keras_calib.inputs.labels import nothing_counts
from keras_calib.inputs.options import ReadOptions
from keras_calib.labels.columns import LabelColumns, label_logits, read_columns
from keras_calib.labels.metric import MultiLabelMetric, pooled
from keras_calib.metrics import CalibrationMetrics
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.mean_gap import MeanGap, mean_gap
from keras_calib.metrics.proper import brier_of_records, nll_of_records
from keras_calib.metrics.states.composite import CompositeSummary, Readings
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.metrics.states.sums import MomentSummary
from keras_calib.numerics.arrays import safe_divide, to_numpy
from keras_calib.numerics.softmax import sigmoid
from keras_calib.reporting.evaluation import with_intervals
from keras_calib.reporting.label_verdict import (
    about_label_selection,
    label_verdict,
    side_of,
)

__all__ = [
    "LabelEvaluation",
    "LabelFacts",
    "LabelMistake",
    "LabelSums",
    "base_rate_scores",
]

# Bins of the fine histogram of each label. 200 labels take 20 MB.
_RESOLUTION = 2048
# The values of a stage, over labels and over entries.
_VALUES = ("probability", "prevalence", "ece", "nll", "brier", "auroc")
_EXAMPLE_METRICS = ("accuracy", "mean_confidence", "ece")


class LabelFacts(NamedTuple):
    """What is known of a label, or of all together.

    Attributes:
        mass: Weight of the examples where the label is known.
        positives: Weight of those that have it.
        probability: Mean probability of the label.
        prevalence: Share of the examples that have it.
        ece: Error over bins of equal width of the probability.
        nll: Log loss, in nats.
        brier: Squared error, summed over yes and no.
        auroc: P(an example with the label has the higher probability), NaN
            without both outcomes.
        bins: Sums of the bins.
    """

    mass: float
    positives: float
    probability: float
    prevalence: float
    ece: float
    nll: float
    brier: float
    auroc: float
    bins: BinSums


class LabelSums:
    """Sums of each label of one stage, in memory that does not grow.

    Args:
        num_bins: Number of bins of the calibration errors.
        from_logits: Whether outputs are logits.
    """

    def __init__(self, num_bins: int, from_logits: bool):
        self._metric = MultiLabelMetric(
            _LabelTable(num_bins, from_logits=from_logits)
        )
        self._limbs: Any = None

    def add(self, labels: Any, outputs: Any, weight: Any) -> None:
        """Adds labels, outputs and weights `(n, labels)`, or None of them."""
        self._metric.update_state(labels, outputs, weight)
        self._limbs = None

    def facts(self, label: int | None = None) -> LabelFacts:
        """The facts of a label, or of all entries together."""
        readings = self._readings(label)
        cells, bins = readings.cells, readings.bins
        mass, wrong = float(cells.mass.sum()), float(cells.wrong.sum())
        probability = safe_divide(float(cells.confidence.sum()), mass)
        positives = mass - wrong
        auroc = np.nan
        if wrong > 0 and positives > 0:
            auroc = float(failure_auroc_of_groups(readings.groups))
        return LabelFacts(
            mass=mass,
            positives=positives,
            probability=float(probability),
            prevalence=float(safe_divide(positives, mass)),
            ece=float(calibration_error(bins)),
            nll=float(readings.moments(0).mean),
            brier=float(readings.moments(1).mean),
            auroc=auroc,
            bins=bins,
        )

    def gap(self, label: int, level: float) -> MeanGap:
        """Mean probability less prevalence, with its interval."""
        readings = self._readings(label)
        cells = readings.cells
        return mean_gap(
            cells.mass,
            cells.wrong,
            1.0 - safe_divide(cells.confidence, cells.mass),
            weight_ratio=float(readings.weight_ratio) or 1.0,
            level=level,
        )

    def ece_interval(self, label: int, level: float) -> tuple[float, float]:
        """Interval of the calibration error of a label."""
        low, high = error_interval(self._readings(label).bins, level=level)
        return float(low), float(high)

    def _readings(self, label: int | None) -> Readings:
        if self._limbs is None:
            sums = self._metric.state_dict()["sums"]
            limbs, _, _, self._odd = self._metric.summary.split(sums)
            self._limbs = limbs
        summary = self._metric.metric.summary
        if label is None:
            whole = not self._odd.any()
            return Readings(summary, pooled(self._limbs), whole)
        return Readings(
            summary, self._limbs[:, label], bool(self._odd[label] == 0)
        )


def base_rate_scores(prevalence: Any) -> tuple[Any, Any]:
    """NLL and Brier score of who always states the prevalence."""
    p = np.asarray(prevalence, "float64")
    inside = np.clip(p, 1e-300, 1.0 - 1e-16)
    entropy = -p * np.log(inside) - (1.0 - p) * np.log1p(-inside)
    return np.maximum(entropy, 0.0), 2.0 * p * (1.0 - p)


class _LabelTable(StreamingMetric):
    """The state of one label: a histogram of its probability, and losses."""

    def __init__(
        self, num_bins: int = 15, *, name: str = "label", **kwargs: Any
    ):
        losses = nll_of_records(None), brier_of_records
        summary = CompositeSummary(
            histogram=HistogramSummary(_RESOLUTION, num_bins, mode="binary"),
            losses=MomentSummary(*losses, needs_rows=True),
        )
        summary.needs_rows = True
        super().__init__(summary, name=name, **kwargs)
        self._keep(num_bins=num_bins)

    def _value(self, readings):
        return calibration_error(readings.bins)


class LabelMistake(NamedTuple):
    """A wrong answer to a label: `answer` is 1 where the model says yes.

    `number` counts examples from 0; `label` is the number of the label.
    """

    confidence: float
    number: int
    label: int
    answer: int
    sample: Any


@dataclasses.dataclass
class LabelEvaluation:
    """Gathers what a model of several labels and its parts do on the data.

    Call `add` for each batch, then `results`.
    """

    name: str
    calibrator: Any
    selector: Any
    options: ReadOptions
    num_bins: int
    num_mistakes: int
    label_names: Sequence[str] | None = None

    def __post_init__(self):
        # As the page asks for them of each evaluation.
        self.num_examples = self.num_labels = 0
        self.mistakes: list[LabelMistake] = []
        # One of each for the stages, before and after calibration.
        logits = [bool(self.options.from_logits)]
        logits += [True] * (self.calibrator is not None)
        self.sums = [LabelSums(self.num_bins, x) for x in logits]
        self.examples = [
            MultiLabelMetric(
                CalibrationMetrics(
                    _EXAMPLE_METRICS, num_bins=self.num_bins, from_logits=x
                ),
                by="example",
            )
            for x in logits
        ]
        # By label; known from the first batch that counts.
        self._missing: Any = 0
        # Examples of which some labels are missing, and those of all known.
        self._partly = self._complete = 0
        # Rows: all answers, the accepted, the wrong among these, the accepted
        # that say yes, the wrong among these. Columns: sums of weights and of
        # their squares. By label, or of examples.
        self._selected: Any = 0.0
        self._right: Any = 0.0

    def add(
        self,
        labels: Any,
        outputs: Any,
        sample_weight: Any,
        inputs: Any,
    ) -> None:
        """Adds a batch, of whose inputs the surest mistakes are kept."""
        options, outputs = self.options, to_numpy(outputs)
        size = int(np.prod(outputs.shape[:-1]))
        if nothing_counts(labels, sample_weight, options.ignore_class):
            self.num_examples += size
            self._missing = self._missing + size
            return
        names = self.label_names
        columns = read_columns(
            to_numpy(labels),
            outputs,
            sample_weight=sample_weight,
            ignore_class=options.ignore_class,
            num_labels=None if names is None else len(names),
            name="outputs",
        )
        self.num_labels = columns.num_labels
        weight = columns.weight
        if weight is None and columns.present is not None:
            weight = columns.present.astype("float32")
        self._add_stage(0, columns.labels, columns.outputs, weight)
        logits = to_numpy(
            label_logits(columns.outputs, bool(options.from_logits))
        )
        final = logits
        if self.calibrator is not None:
            final = to_numpy(self.calibrator(logits))
            self._add_stage(1, columns.labels, final, weight)
        if weight is None:
            weight = np.ones(logits.shape)
        right = (final > 0) == (columns.labels > 0.5)
        self._right = self._right + (weight * right).sum(axis=0)
        present = columns.present
        if present is None:
            present = np.ones(logits.shape, bool)
        self._missing = self._missing + (~present).sum(axis=0)
        complete: np.ndarray = np.asarray(present.all(axis=-1))
        self._complete += int(complete.sum())
        self._partly += int((present.any(axis=-1) & ~complete).sum())
        self._add_mistakes(final, ~right & present, inputs)
        if self.selector is not None:
            self._add_selection(logits, columns, weight, complete)
        self.num_examples += size

    def results(self) -> dict[str, Any]:
        """What the page says of the model, in numbers."""
        stages = [
            [x.facts(k) for k in range(self.num_labels)] for x in self.sums
        ]
        summaries = [
            _summary(x, sums.facts())
            for x, sums in zip(stages, self.sums, strict=True)
        ]
        rows = self._rows(stages)
        counted = sum(x.mass > 0 for x in stages[0])
        results = {
            "num_examples": self.num_examples,
            "num_labels": self.num_labels,
            "num_missing": int(np.sum(self._missing)),
            "num_partly_missing": self._partly,
            "labels_per_example": {
                what: float(sum(getattr(x, what) for x in stages[-1]))
                for what in ("prevalence", "probability")
            },
            "summary": summaries[0],
            "labels": rows,
            "examples": [_example_results(x) for x in self.examples][-1],
            "selection": None,
        }
        if len(stages) > 1:
            results["calibrated_summary"] = summaries[1]
        found = label_verdict(rows, summaries, counted)
        if self.selector is not None:
            results["selection"] = self._selection(rows)
        return {"verdict": found, **results}

    def label_name(self, label: int) -> str:
        """How the page calls a label."""
        names = self.label_names
        return f"label {label}" if names is None else names[label]

    def _add_stage(self, stage: int, *batch: Any) -> None:
        self.sums[stage].add(*batch)
        self.examples[stage].update_state(*batch)

    def _add_mistakes(
        self, logits: np.ndarray, wrong: np.ndarray, inputs: Any
    ) -> None:
        """Keeps the surest of the wrong answers."""
        kept = self.num_mistakes
        rows, labels = np.nonzero(wrong)
        score = np.abs(logits[rows, labels])
        # Stable: of equally sure ones the first are shown.
        surest = np.argsort(-score, kind="stable")[:kept]
        of_examples = inputs is not None and len(inputs) == len(logits)
        self.mistakes += [
            LabelMistake(
                float(sigmoid(np.float64(score[i]))),
                self.num_examples + int(rows[i]),
                int(labels[i]),
                int(logits[rows[i], labels[i]] > 0),
                to_numpy(inputs[rows[i]]) if of_examples else None,
            )
            for i in surest
        ]
        self.mistakes.sort(key=lambda x: (-x.confidence, x.number, x.label))
        del self.mistakes[kept:]

    def _add_selection(
        self,
        logits: np.ndarray,
        columns: LabelColumns,
        weight: np.ndarray,
        complete: np.ndarray,
    ) -> None:
        answers = self.selector(logits)
        accept, yes = (to_numpy(answers[x]) for x in ("accept", "labels"))
        wrong = (yes != (columns.labels > 0.5)).astype("float64")
        if self.selector.by == "example":
            # The score of an example is of all its labels.
            weight = weight.max(axis=-1) * complete
            mean = self.selector.example == "mean"
            wrong = wrong.mean(axis=-1) if mean else wrong.max(axis=-1)
            yes = np.zeros(len(wrong))
        taken = accept.astype("float64")
        rows = [np.ones_like(taken), taken, taken * wrong]
        rows += [taken * yes, taken * yes * wrong]
        self._selected = self._selected + np.stack(
            [[(w * x).sum(axis=0) for x in rows] for w in (weight, weight**2)]
        )

    def _rows(self, stages: list[list[LabelFacts]]) -> list[dict[str, Any]]:
        """Rows of the labels, in their order, after calibration if any."""
        final, sums = stages[-1], self.sums[-1]
        level = 1.0 - 0.05 / max(1, sum(x.mass > 0 for x in final))
        missing = np.broadcast_to(self._missing, (self.num_labels,))
        rows = []
        for k, facts in enumerate(final):
            ends = sums.ece_interval(k, 0.95)
            gap = sums.gap(k, level)
            side = "few"
            if facts.mass:
                side = side_of(gap, sums.ece_interval(k, level)[0])
            nll, brier = base_rate_scores(facts.prevalence)
            row = {
                "label": self.label_name(k),
                "number": k,
                "missing": int(missing[k]),
                "count": facts.mass,
                "positives": facts.positives,
                **{x: getattr(facts, x) for x in _VALUES},
                "accuracy": float(safe_divide(self._right[k], facts.mass)),
                "base_nll": float(nll),
                "base_brier": float(brier),
                "ece_low": ends[0],
                "ece_high": ends[1],
                "gap": gap.value,
                "gap_low": gap.low,
                "gap_high": gap.high,
                "side": side,
            }
            if len(stages) > 1:
                before = stages[0][k]
                row |= {f"before_{x}": getattr(before, x) for x in _VALUES}
            rows.append(row)
        return rows

    def _selection(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        chosen = getattr(self.selector, "chosen", None)
        by_label = self.selector.by == "label"
        sums, squares = self._selected
        limit = getattr(chosen, "risk_limit", None)
        found: dict[str, Any] = {
            "by": self.selector.by,
            "example": self.selector.example,
            "certified_risk": limit,
            "delta": getattr(chosen, "delta", None),
            "at_once": True
            if chosen is None
            else chosen.facts.get("at_once", True),
            **_accepted(
                sums.sum(axis=-1) if by_label else sums,
                squares.sum(axis=-1) if by_label else squares,
            ),
        }
        threshold = self.selector.threshold
        if by_label:
            level = 1.0 - 0.05 / len(rows)
            found["labels"] = [
                {
                    "label": row["label"],
                    "threshold": float(threshold[k]),
                    "confidence": float(sigmoid(np.float64(threshold[k]))),
                    **_accepted(sums[:, k], squares[:, k]),
                    "contradicted": limit is not None
                    and _accepted(sums[:, k], squares[:, k], level)["risk_low"]
                    > limit,
                }
                for k, row in enumerate(rows)
            ]
            found["contradicted"] = any(
                x["contradicted"] for x in found["labels"]
            )
        else:
            found["threshold"] = threshold
            found["contradicted"] = limit is not None and bool(
                found["risk_low"] > limit
            )
        return {**found, "sentences": about_label_selection(found)}


def _accepted(
    sums: np.ndarray, squares: np.ndarray, level: float = 0.95
) -> dict[str, float]:
    """Coverage and risk of accepted answers, with an interval of the risk."""
    total, weight, wrong, yes, wrong_yes = sums
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


def _summary(labels: list[LabelFacts], pooled: LabelFacts) -> dict[str, Any]:
    """Means over labels and over entries, with those of the base rate."""
    some = [x for x in labels if x.mass > 0]
    macro = {}
    for name in _VALUES:
        values = np.array([getattr(x, name) for x in some], "float64")
        values = values[np.isfinite(values)]
        macro[name] = float(values.mean()) if len(values) else float("nan")
    micro = {name: getattr(pooled, name) for name in _VALUES}
    counts = np.array([x.mass for x in some])
    base = base_rate_scores([x.prevalence for x in some])
    for name, values in zip(("nll", "brier"), base, strict=True):
        macro[f"base_{name}"] = float(values.mean())
        micro[f"base_{name}"] = float(np.average(values, weights=counts))
    return {"macro": macro, "micro": micro}


def _example_results(metric: Any) -> dict[str, Any]:
    table = metric.pooled()
    return {**with_intervals(table), "aurc": table.aurc()}

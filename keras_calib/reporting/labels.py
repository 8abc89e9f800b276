"""All that a report says of a model of several labels, batch by batch."""

from typing import Any

import numpy as np

from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.labels.columns import label_logits, read_columns
from keras_calib.labels.metric import MultiLabelMetric
from keras_calib.labels.table import VALUES, LabelTable
from keras_calib.metrics import CalibrationMetrics
from keras_calib.metrics.gap_estimates import gap_of
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import sigmoid
from keras_calib.reporting.evaluation import Evaluation, accepted, estimates_of
from keras_calib.reporting.verdict import about_label_selection
from keras_calib.reporting.verdict_of_labels import (
    MISTAKE,
    label_verdict,
    side_of,
)

_EXAMPLE_METRICS = ("accuracy", "mean_confidence", "ece")


class LabelEvaluation(Evaluation):
    """What a model of several labels does."""

    kind, _unit, places = "labels", "label", ("example",)

    def __init__(self, *args: Any):
        super().__init__(*args)
        # Of each stage, before and after calibration.
        self.stages = [LabelTable(self.num_bins, x) for x in self._from_logits]
        # Whole examples, after calibration if there is any.
        self._examples = MultiLabelMetric(
            CalibrationMetrics(
                _EXAMPLE_METRICS,
                num_bins=self.num_bins,
                from_logits=self._from_logits[-1],
            ),
            by="example",
        )
        # By label: how many are there.
        self._present: Any = 0
        # Examples of which some labels are missing.
        self._partly = 0

    def results(self) -> dict[str, Any]:
        found = [x.results() for x in self.stages]
        stages, summaries = zip(*found, strict=True)
        missing = np.broadcast_to(
            self.num_samples - self._present, (self.num_classes,)
        )
        rows = self._rows(stages, missing)
        examples = self._examples.pooled()
        results = {
            "num_examples": self.num_samples,
            "num_labels": self.num_classes,
            "num_missing": int(np.sum(missing)),
            "num_partly_missing": self._partly,
            "labels_per_example": {
                what: float(sum(x[what] for x in stages[-1]))
                for what in ("prevalence", "probability")
            },
            "summary": summaries[0],
            "labels": rows,
            "examples": {**estimates_of(examples), "aurc": examples.aurc()},
            "selection": None,
        }
        if len(stages) > 1:
            results["calibrated_summary"] = summaries[1]
        fitted = getattr(self.calibrator, "num_samples", None)
        verdict = label_verdict(rows, len(stages) > 1, fitted)
        if self.selector is not None:
            results["selection"] = self._selection(rows)
        return {"verdict": verdict, **results}

    def _add(self, given: tuple, inputs: Any, groups: Any, lead: Any) -> None:
        labels, outputs, sample_weight = given
        names = self.names
        columns = read_columns(
            to_numpy(labels),
            to_numpy(outputs),
            sample_weight=sample_weight,
            ignore_class=self.options.ignore_class,
            num_labels=None if names is None else len(names),
            name="outputs",
        )
        self.num_classes = columns.num_labels
        weight, present = columns.weight, columns.present
        if weight is None and present is not None:
            weight = present.astype("float32")
        logits = to_numpy(label_logits(columns.outputs, self._from_logits[0]))
        stages, odds = [columns.outputs], [logits]
        calibrated, answers = self._answers(logits)
        if calibrated is not None:
            stages.append(calibrated)
            odds.append(calibrated)
        yes, final = [x > 0 for x in odds], odds[-1]
        if answers:
            accept, said = (to_numpy(answers[x]) for x in ("accept", "labels"))
            # An answer that is not accepted is no yes.
            each = accept.reshape(len(accept), -1)
            yes[-1] = np.asarray((said == 1) & each)
        for table, *given in zip(self.stages, stages, odds, yes, strict=True):
            rows, *rest = given
            table.add(columns.labels, rows, weight, *rest, self._unit_of)
        self._examples.update_state(columns.labels, stages[-1], weight)
        if weight is None:
            weight = np.ones(logits.shape)
        if present is None:
            present = np.ones(logits.shape, bool)
        right = (final > 0) == (columns.labels > 0.5)
        complete = np.asarray(present.all(axis=-1))
        self._present = self._present + present.sum(axis=0)
        self._partly += int((present.any(axis=-1) & ~complete).sum())
        places, label = np.nonzero(~right & present)
        odds = final[places, label]
        score = np.abs(odds)
        confidence = sigmoid(score.astype("float64"))
        found = [confidence, places, label, (odds > 0).astype(int)]
        self._keep(score, found, inputs, lead)
        if answers:
            wrong = (said != (columns.labels > 0.5)).astype("float64")
            if self.selector.by == "example":
                # The score of an example is of all its labels.
                weight = weight.max(axis=-1) * complete
                mean = self.selector.example == "mean"
                wrong = wrong.mean(axis=-1) if mean else wrong.max(axis=-1)
                said = 0.0
            self._select(accept, wrong, weight, said)

    def _rows(
        self, stages: list[list[dict[str, float]]], missing: np.ndarray
    ) -> list[dict[str, Any]]:
        """Rows of the labels, in their order, after calibration if any."""
        final, rows = stages[-1], []
        level = 1.0 - MISTAKE / max(1, sum(x["count"] > 0 for x in final))
        fitted = getattr(self.calibrator, "num_samples", None)
        for k, facts in enumerate(final):
            readings = self.stages[-1].readings(k)
            ends = error_interval(readings.bins)
            gap, side = gap_of(readings, level), "few"
            if facts["count"]:
                side = side_of(gap, readings.bins, level, fitted)
            row = {
                "label": self.name_of(k),
                "number": k,
                "missing": int(missing[k]),
                **facts,
                "ece_low": float(ends[0]),
                "ece_high": float(ends[1]),
                "confidence_gap": gap.value,
                "confidence_gap_low": gap.low,
                "confidence_gap_high": gap.high,
                "side": side,
            }
            if len(stages) > 1:
                row |= {f"before_{x}": stages[0][k][x] for x in VALUES}
            rows.append(row)
        return rows

    def _selection(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        chosen = getattr(self.selector, "chosen", None)
        by_label, sums = self.selector.by == "label", self._selected
        limit = getattr(chosen, "risk_limit", None)
        found: dict[str, Any] = {
            "by": self.selector.by,
            "example": self.selector.example,
            "certified_risk": limit,
            "delta": getattr(chosen, "delta", None),
            "at_once": True
            if chosen is None
            else chosen.facts.get("at_once", True),
            **accepted(sums.sum(axis=-1) if by_label else sums),
        }
        threshold = self.selector.threshold
        if by_label:
            level = 1.0 - 0.05 / len(rows)
            found["labels"] = [
                {
                    "label": row["label"],
                    "threshold": float(threshold[k]),
                    "confidence": float(sigmoid(np.float64(threshold[k]))),
                    **accepted(sums[..., k]),
                    "contradicted": limit is not None
                    and accepted(sums[..., k], level)["risk_low"] > limit,
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

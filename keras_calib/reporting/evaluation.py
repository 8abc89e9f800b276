"""What a report needs of a model, batch by batch; in numbers and words."""

import dataclasses
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.options import ReadOptions
from keras_calib.inputs.top_label import hard_labels
from keras_calib.metrics import CalibrationMetrics
from keras_calib.metrics.mean_gap import MeanGap
from keras_calib.numerics.arrays import at_least_float32
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import is_wrong
from keras_calib.numerics.softmax import to_logits
from keras_calib.numerics.softmax import top1
from keras_calib.selection import ChosenThreshold

__all__ = [
    "EXPLAINED",
    "Mistake",
    "ModelEvaluation",
    "direction",
]

# The metrics of a report: title, and what it is.
EXPLAINED = {
    "accuracy": ("Accuracy", "share of correct predictions"),
    "mean_confidence": (
        "Mean confidence",
        "of the predicted class; equals the accuracy of a calibrated model",
    ),
    "ece": (
        "ECE",
        "mean distance of confidence and accuracy over bins of equal width",
    ),
    "aece": ("AECE", "the same over bins of equal mass"),
    "mce": ("MCE", "the distance in the worst bin"),
    "nll": ("NLL", "negative log-likelihood of the labels, in nats"),
    "brier": ("Brier score", "squared error of the probabilities"),
    "aurc": (
        "AURC",
        "mean risk over all coverages; less is a better order by confidence",
    ),
    "failure_auroc": (
        "Failure AUROC",
        "chance that a correct prediction is surer than a wrong one",
    ),
    "coverage_at_risk": (
        "Coverage at 5 % risk",
        "the largest share that can be accepted at that risk, on these data",
    ),
}


class Mistake(NamedTuple):
    """A sample that a model is wrong about; its number, ids, and itself."""

    confidence: float
    index: int
    label: int
    predicted: int
    sample: Any


@dataclasses.dataclass
class ModelEvaluation:
    """All that is gathered of one model, and of its calibrator and selector."""

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
        self.num_samples = 0
        self.num_classes = None
        self.mistakes: list[Mistake] = []
        # Weight and squared weight, of all, of the accepted, of the wrong
        # ones among these.
        self._selected = np.zeros((3, 2))

    def add(
        self, labels: Any, outputs: Any, sample_weight: Any, inputs: Any
    ) -> None:
        """Adds a batch; of its inputs, the surest mistakes are kept."""
        options, lead = self.options, np.shape(outputs)[:-1]
        if _nothing_counts(labels, sample_weight, options.ignore_class):
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
        )
        outputs, truth = read.outputs, hard_labels(read.labels)
        self.num_classes = outputs.shape[-1]
        logits = outputs.reshape(*lead, -1)
        if not options.from_logits:
            logits = to_numpy(to_logits(at_least_float32(logits)))
        if self.after is not None:
            calibrated = to_numpy(self.calibrator(logits))
            self.after.update_state(labels, calibrated, sample_weight)
            outputs = calibrated.reshape(outputs.shape)
        counts = np.ones(len(truth), bool) if read.mask is None else read.mask
        self._add_mistakes(outputs, truth, counts, inputs)
        if self.selector is not None:
            answers = self.selector(logits)
            weight = counts * (1.0 if read.weight is None else read.weight)
            accept = to_numpy(answers["accept"]).reshape(-1)
            wrong = to_numpy(answers["label"]).reshape(-1) != truth
            rows = np.stack([np.ones_like(accept), accept, accept & wrong])
            self._selected += rows @ np.stack([weight, weight**2], axis=-1)
        self.num_samples += len(truth)

    @property
    def final(self) -> CalibrationMetrics:
        """What users get: after calibration, if there is one."""
        return self.before if self.after is None else self.after

    def results(self) -> dict[str, Any]:
        """What the page says of the model, in numbers."""
        results = {
            "num_samples": self.num_samples,
            "overconfidence": self.before.mean_gap()._asdict(),
            "metrics": _estimates(self.before),
            "selection": None if self.selector is None else self._selection(),
        }
        repaired = None
        if self.after is not None:
            results["calibrated_metrics"] = _estimates(self.after)
            repaired = self.after.mean_gap()
        chosen = getattr(self.selector, "chosen", None)
        return {"verdict": _verdict(results, repaired, chosen), **results}

    def _selection(self) -> dict[str, Any]:
        (total, _), (weight, square), (wrong, _) = self._selected
        # Effective number of the accepted.
        count = float(safe_divide(weight**2, square))
        risk = float(safe_divide(wrong, weight))
        low, high = clopper_pearson(min(risk * count, count), count)
        chosen = getattr(self.selector, "chosen", None)
        return {
            "threshold": getattr(self.selector, "threshold", None),
            "confidence": getattr(chosen, "confidence", None),
            "total": float(total),
            "coverage": float(safe_divide(weight, total)),
            "risk": {"value": risk, "low": float(low), "high": float(high)},
        }

    def _add_mistakes(
        self,
        outputs: np.ndarray,
        truth: np.ndarray,
        counts: np.ndarray,
        inputs: Any,
    ) -> None:
        from_logits = self.options.from_logits or self.after is not None
        confidence = top1(outputs, from_logits=from_logits).confidence
        rows = np.flatnonzero(is_wrong(outputs, truth) & counts)
        kept = self.num_mistakes
        # Stable, so that the first of equal ones is shown.
        rows = rows[np.argsort(-confidence[rows], kind="stable")][:kept]
        of_samples = inputs is not None and len(inputs) == len(truth)
        self.mistakes += [
            Mistake(
                float(confidence[row]),
                self.num_samples + int(row),
                int(truth[row]),
                int(outputs[row].argmax()),
                to_numpy(inputs[row]) if of_samples else None,
            )
            for row in rows
        ]
        self.mistakes.sort(key=lambda x: (-x.confidence, x.index))
        del self.mistakes[kept:]


def _estimates(metrics: CalibrationMetrics) -> dict[str, dict[str, float]]:
    """Every metric by its name, with its 95 % interval."""
    intervals = metrics.interval()
    return {
        name: {
            "value": float(value),
            "low": intervals[name][0],
            "high": intervals[name][1],
        }
        for name, value in metrics.result().items()
    }


def _nothing_counts(labels, sample_weight, ignore_class) -> bool:
    if sample_weight is not None and not to_numpy(sample_weight).any():
        return True
    return ignore_class is not None and bool(
        (to_numpy(labels) == ignore_class).all()
    )


def _verdict(
    results: dict[str, Any],
    repaired: MeanGap | None,
    chosen: ChosenThreshold | None,
) -> dict[str, Any]:
    """A headline, a word for its colour, and sentences."""
    gap, ece = MeanGap(**results["overconfidence"]), results["metrics"]["ece"]
    kind, headline = direction(gap)
    spread = (
        "Among predictions of equal confidence the two are on average "
        f"{_points(ece['value'])} points apart (ECE {ece['value']:.4f}, "
        f"{ece['low']:.4f} to {ece['high']:.4f})."
    )
    if kind == "even" and ece["low"] > 0.01:
        spread += " Gaps of both signs cancel in the mean."
    sentences = [_by_how_much(kind, gap), spread]
    if repaired is not None:
        after = results["calibrated_metrics"]["ece"]
        change = "falls" if after["value"] < ece["value"] else "does not fall"
        sentences.append(
            f"With the calibrator the ECE {change}, from {ece['value']:.4f} to "
            f"{after['value']:.4f} ({after['low']:.4f} to "
            f"{after['high']:.4f}), and the mean difference goes from "
            f"{_points(gap.value)} to {_points(repaired.value)} points."
        )
    if results["selection"] is not None:
        sentences += _about_selection(results["selection"], chosen)
    return {"kind": kind, "headline": headline, "sentences": sentences}


def _percent(share: float, digits: int = 1) -> str:
    """A share as text."""
    return f"{100.0 * share:.{digits}f} %"


def direction(gap: MeanGap) -> tuple[str, str]:
    """`"over"`, `"under"`, `"few"` or `"even"`, and a headline."""
    if gap.low > 0.0:
        return "over", "Overconfident"
    if gap.high < 0.0:
        return "under", "Underconfident"
    if gap.too_few is not None:
        return "few", f"Too few {gap.too_few} to say"
    return "even", "Neither over- nor underconfident on average"


def _points(share: float) -> str:
    return f"{100.0 * share:.1f}"


def _by_how_much(kind: str, gap: MeanGap) -> str:
    between = (
        f"difference is {_points(gap.value)} percentage points, with 95 % "
        f"certainty between {_points(gap.low)} and {_points(gap.high)}."
    )
    if kind == "few":
        return (
            f"A calibrated model, too, would make so few {gap.too_few} on "
            "this many predictions that over- or underconfidence does not "
            f"show. The measured {between} Use more data."
        )
    if kind == "even":
        return (
            "Mean confidence and accuracy cannot be told apart: their "
            f"{between}"
        )
    low, high = sorted((abs(gap.low), abs(gap.high)))
    side = "above" if kind == "over" else "below"
    return (
        f"Its confidence is on average {_points(abs(gap.value))} percentage "
        f"points {side} its accuracy (with 95 % certainty {_points(low)} to "
        f"{_points(high)})."
    )


def _about_selection(found: dict, chosen: ChosenThreshold | None) -> list[str]:
    if found["coverage"] == 0.0:
        return ["The selector accepts none of these predictions."]
    risk = found["risk"]
    value, low, high = (_percent(x, 2) for x in risk.values())
    texts = [
        f"The selector accepts {_percent(found['coverage'])} of these "
        f"predictions; {value} of those are wrong (with 95 % certainty {low} "
        f"to {high})."
    ]
    if chosen is None or chosen.certified_risk is None:
        return texts
    limit = _percent(chosen.certified_risk, 2)
    texts.append(
        f"It was certified for a risk of at most {limit}, with probability "
        f"{_percent(1.0 - chosen.delta)}."
    )
    if risk["low"] > chosen.certified_risk:
        texts.append(
            f"These data speak against it: the risk on them is above {limit}. "
            "They differ from the data that the threshold was chosen on, or "
            "those had a part in training."
        )
    return texts

"""What a report needs of a model, batch by batch, in fixed memory."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.inputs.batch import Batch
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

__all__ = [
    "Accepted",
    "EXPLAINED",
    "Estimate",
    "Mistake",
    "ModelEvaluation",
    "Stage",
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


class Estimate(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


class Mistake(NamedTuple):
    """A sample that a model is wrong about.

    Attributes:
        confidence: Of the wrong class.
        index: Number of the sample in the data.
        label: Its class.
        predicted: The predicted class.
        sample: What the model was given, or None.
    """

    confidence: float
    index: int
    label: int
    predicted: int
    sample: Any


class Accepted(NamedTuple):
    """What a selective classifier did on the data.

    `total` is the number of samples, or their weight; `coverage` the share
    that was accepted; `risk` the share of wrong ones among these.
    """

    total: float
    coverage: float
    risk: Estimate


class Stage:
    """Predictions before or after calibration."""

    def __init__(self, options: ReadOptions, num_bins: int):
        self.metric = CalibrationMetrics(
            list(EXPLAINED), num_bins=num_bins, **options.of_metric()
        )
        self._estimates: dict[str, Estimate] = {}

    def add(self, labels: Any, outputs: Any, sample_weight: Any) -> None:
        """Adds a batch as the user's model gives it."""
        self.metric.update_state(labels, outputs, sample_weight)
        self._estimates = {}

    def gap(self) -> MeanGap:
        """Mean confidence less accuracy."""
        return self.metric.mean_gap()

    def estimates(self) -> dict[str, Estimate]:
        """Every metric by its name."""
        if not self._estimates:
            intervals = self.metric.interval()
            self._estimates = {
                name: Estimate(float(value), *intervals[name])
                for name, value in self.metric.result().items()
            }
        return self._estimates


class ModelEvaluation:
    """All that is gathered of one model.

    Args:
        name: Of the model.
        calibrator: Fitted layer of logits, or None.
        selector: Fitted `SelectiveClassifier`, or None.
        options: How labels and outputs are read.
        num_bins: Number of bins of the calibration errors.
        num_mistakes: How many of the surest mistakes are kept.
    """

    def __init__(
        self,
        name: str,
        calibrator: Callable | None,
        selector: Callable | None,
        options: ReadOptions,
        *,
        num_bins: int,
        num_mistakes: int,
    ):
        self.name = name
        self.calibrator = calibrator
        self.selector = selector
        self.options = options
        self.num_mistakes = num_mistakes
        self.before = Stage(options, num_bins)
        self.after = None
        if calibrator is not None:
            self.after = Stage(options._replace(from_logits=True), num_bins)
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
        options = self.options
        if _nothing_counts(labels, sample_weight, options.ignore_class):
            self.num_samples += int(np.prod(np.shape(outputs)[:-1]))
            return
        self.before.add(labels, outputs, sample_weight)
        read = standardize_arrays(
            labels,
            outputs,
            from_logits=options.from_logits,
            sample_weight=sample_weight,
            ignore_class=options.ignore_class,
            name="outputs",
            drop=False,
        )
        self.num_classes = read.outputs.shape[-1]
        truth = hard_labels(read.labels)
        wrong = is_wrong(read.outputs, truth)
        top = top1(read.outputs, from_logits=options.from_logits)
        shape = (*np.shape(outputs)[:-1], self.num_classes)
        logits = read.outputs.reshape(shape)
        if not options.from_logits:
            logits = to_numpy(to_logits(at_least_float32(logits)))
        confidence = top.confidence
        if self.after is not None:
            calibrated = to_numpy(self.calibrator(logits))
            self.after.add(labels, calibrated, sample_weight)
            calibrated = calibrated.reshape(-1, self.num_classes)
            top = top1(calibrated, from_logits=True)
            wrong = is_wrong(calibrated, truth)
            confidence, read = top.confidence, read._replace(outputs=calibrated)
        self._add_mistakes(read, confidence, wrong, truth, inputs)
        if self.selector is not None:
            self._add_selected(self.selector(logits), read, truth)
        self.num_samples += len(truth)

    @property
    def final(self) -> Stage:
        """What users get: after calibration, if there is one."""
        return self.before if self.after is None else self.after

    def accepted(self) -> Accepted | None:
        """What the selector did, if there is one."""
        if self.selector is None:
            return None
        (total, _), (weight, square), (wrong, _) = self._selected
        # Effective number of the accepted.
        count = float(safe_divide(weight**2, square))
        risk = float(safe_divide(wrong, weight))
        low, high = clopper_pearson(min(risk * count, count), count)
        return Accepted(
            float(total),
            float(safe_divide(weight, total)),
            Estimate(risk, float(low), float(high)),
        )

    def _add_mistakes(
        self,
        read: Batch,
        confidence: np.ndarray,
        wrong: np.ndarray,
        truth: np.ndarray,
        inputs: Any,
    ) -> None:
        if read.mask is not None:
            wrong = wrong & read.mask
        rows = np.flatnonzero(wrong)
        kept = self.num_mistakes
        # Stable, so that the first of equal ones is shown.
        rows = rows[np.argsort(-confidence[rows], kind="stable")][:kept]
        of_samples = inputs is not None and len(inputs) == len(truth)
        self.mistakes += [
            Mistake(
                float(confidence[row]),
                self.num_samples + int(row),
                int(truth[row]),
                int(read.outputs[row].argmax()),
                to_numpy(inputs[row]) if of_samples else None,
            )
            for row in rows
        ]
        self.mistakes.sort(key=lambda x: (-x.confidence, x.index))
        del self.mistakes[kept:]

    def _add_selected(self, answers, read, truth):
        weight = np.ones(len(truth)) if read.weight is None else read.weight
        if read.mask is not None:
            weight = weight * read.mask
        accept = to_numpy(answers["accept"]).reshape(-1)
        wrong = accept & (to_numpy(answers["label"]).reshape(-1) != truth)
        for row, where in zip(
            self._selected, (np.ones_like(accept), accept, wrong), strict=True
        ):
            row += (weight[where].sum(), np.square(weight[where]).sum())


def _nothing_counts(labels, sample_weight, ignore_class) -> bool:
    if sample_weight is not None and not to_numpy(sample_weight).any():
        return True
    return ignore_class is not None and bool(
        (to_numpy(labels) == ignore_class).all()
    )

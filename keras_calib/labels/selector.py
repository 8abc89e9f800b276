"""A selector for several labels at once."""

from collections.abc import Sequence
from typing import Any, Self, TypedDict, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.calibrators import Calibrator
from keras_calib.calibrators.fitted_layer import LayerOptions, of_logits
from keras_calib.formulas.bounded_means import TESTS
from keras_calib.inputs.checks import check_flag, check_in, check_independent
from keras_calib.inputs.options import filled, taken
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.rows import check_no_probabilities
from keras_calib.inputs.values import in_unit_interval
from keras_calib.labels.calibrator import MultiLabelCalibrator
from keras_calib.labels.columns import (
    EXAMPLES,
    LabelColumns,
    check_class_names,
    columns_of,
    label_logits,
    names_of,
)
from keras_calib.labels.loss import MultiLabelLoss
from keras_calib.labels.metric import MultiLabelMetric
from keras_calib.losses import PerSampleLoss
from keras_calib.metrics import StreamingMetric
from keras_calib.predictions.fitting import FitsOnModel, RowOptions, given_rows
from keras_calib.predictions.options import check_uncalibrated
from keras_calib.selection.choice import Choice
from keras_calib.selection.classifier import SelectiveClassifier
from keras_calib.selection.ladder import Ladder, counted, of_scores
from keras_calib.selection.rules import by_blocks
from keras_calib.selection.selector import Selector
from keras_calib.selection.thresholds import ErrorTarget
from keras_calib.selection.tuning import (
    check_nothing_to_tune,
    drawn_parts,
    undone_by_errors,
)


class LabelTarget(TypedDict, total=False):
    """What thresholds of labels are to keep."""

    risk: float | None
    coverage: float | None
    delta: float | None
    method: str | None


class LabelOptions(LabelTarget, RowOptions, total=False):
    """Options of a fit: the target, and how arrays are read."""


@keras.saving.register_keras_serializable(package="keras_calib")
class MultiLabelSelector(Selector, FitsOnModel):
    """Abstains from answers to single labels, or to whole examples.

    Use it to let a model of several labels answer only where it is sure
    enough. The answer to a label is whether its calibrated logit z_k is
    above 0, and its confidence that of the answer. By label the score is

    s_k = |z_k|, the log-odds of the confidence,

    and each label has a threshold of its own. By example there is one
    threshold for the score of the example. `"worst"` takes min_k |z_k|, and
    an example is right where all its labels are. `"mean"` takes the mean
    confidence less 1, and the share of its right labels.

    Args:
        calibrator: A `MultiLabelCalibrator`, or None to take the logits as
            they are.
        by: `"label"` or `"example"`.
        example: With `by="example"`, `"worst"` or `"mean"`.
        class_names: Names of the labels, for the facts; None takes those of
            the calibrator, or of the `Predictions` of the fit, or numbers.
        threshold: The threshold, or one for each label, if you know it; None
            waits for `fit`.
        chosen: Facts about the threshold, which `fit` sets.
        name: Name of the layer.
        **kwargs: `trainable` of `keras.layers.Layer`.

    Raises:
        RuntimeError: If it is called before `fit`, or if its calibrator was
            fitted again later. Functions that were compiled before then
            accept nothing.

    Example:

    >>> labels = [[1, 0], [0, 1], [1, 1], [0, 0]]
    >>> logits = [[3.0, -1], [-2, 4], [1, -2], [1, -3]]
    >>> selector = MultiLabelSelector().fit(labels, logits, risk=0.0)
    >>> selector.threshold.tolist()
    [1.5, 2.5]
    >>> selector.chosen.group_coverage
    (0.5, 0.5)

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052; all labels at once: Bonferroni's
        inequality, by which each has an equal share of `delta`
    """

    reads_labels = True

    def __init__(
        self,
        *,
        calibrator: MultiLabelCalibrator | None = None,
        by: str = "label",
        example: str = "worst",
        class_names: Sequence[str] | None = None,
        threshold: Any = None,
        chosen: Choice | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        known = calibrator is None or isinstance(
            calibrator, MultiLabelCalibrator
        )
        if not known:
            raise type_error(
                "`calibrator` must be a `MultiLabelCalibrator`, which "
                "`MultiLabel(calibrator)` makes, or None",
                calibrator=calibrator,
            )
        check_in("by", by, ("label", "example"))
        check_in("example", example, EXAMPLES)
        self.calibrator = calibrator
        self.by = by
        self.example = example
        if class_names is None and calibrator is not None:
            class_names = calibrator.class_names
        self._named = self.class_names = check_class_names(class_names, None)
        self.set_threshold(threshold, chosen)

    def fit(
        self,
        labels: Any,
        logits: Any = None,
        *,
        at_once: bool = True,
        tune_fraction: float | None = None,
        seed: int = 0,
        **options: Unpack[LabelOptions],
    ) -> Self:
        """Chooses the thresholds on held-out data and returns self.

        With `delta` and `by="label"`,

        P(any label with a threshold has a true risk above `risk`) <= `delta`,

        over draws of independent examples, whose labels may depend on each
        other in any way: each has an equal share of `delta`. With
        `at_once=False` it is the probability for each label alone. By example
        it is that of `choose_threshold`, for the share of accepted examples
        with a wrong label, or for `"mean"` the mean share of wrong labels
        among them.

        Args:
            labels: `Predictions` of several labels; or 0 or 1 for each label,
                `(n, labels)`.
            logits: Logits before calibration `(n, labels)`; None with
                `Predictions`.
            at_once: Whether the labels share `delta`, equally.
            tune_fraction: Share of the rows, drawn at random, that fits an
                unfitted calibrator; the rest chooses the thresholds.
            seed: Seed of this split.
            **options: `risk`, `coverage`, `delta` and `method` as
                `keras_calib.selection.Target` says; a `method` is for
                `"mean"`, `"betting"` or `"hoeffding_bentkus"`. For arrays
                `from_logits`, `sample_weight` `(n,)` or `(n, labels)`, where
                labels of weight 0 are missing, and `ignore_class`, the value
                of missing labels, such as -1.

        Raises:
            ValueError: If the target is out of reach, or by example if only
                some labels of an example are missing. The layer keeps its
                previous fit.
            RuntimeError: If the calibrator is not fitted and `tune_fraction`
                is None.
        """
        rows, rest = taken(options, RowOptions)
        asked = filled("MultiLabelSelector.fit", rest, LabelTarget)
        check_flag("at_once", at_once)
        given = given_rows(labels, logits, by_label=True, **vars(rows))
        check_uncalibrated(given, self.calibrator)
        method = None
        if self.by == "example" and self.example == "mean":
            method = TESTS[0] if asked.method is None else asked.method
        elif asked.method not in (None, "ltt"):
            raise value_error(
                '`method` must be None unless `example="mean"`: risks have '
                "exact binomial tests",
                method=asked.method,
            )
        target = ErrorTarget(asked.risk, asked.coverage, asked.delta, method)
        target.check()
        names = names_of(given, self._named)
        columns = columns_of(given, names)
        if asked.delta is not None:
            check_independent("`delta`", columns.lead, given.units)
        _check_usable(columns)
        if tune_fraction is None:
            check_nothing_to_tune([self.calibrator], asked.delta)
        else:
            parts = drawn_parts(len(given), tune_fraction, seed)
            tune, others = (given[part] for part in parts)
            columns = columns_of(others, names)
        with (
            self.remembering(given.from_logits),
            undone_by_errors(self, [self.calibrator]),
        ):
            if self.calibrator is not None and not self.calibrator.fitted:
                self.calibrator.fit(tune)
            outputs = columns.outputs.astype("float32")
            scored = by_blocks(self._calibrated, outputs)
            columns = columns._replace(outputs=scored)
            right = (columns.outputs > 0.0) == (columns.labels > 0.5)
            score = by_blocks(self._score, columns.outputs)
            if self.by == "label":
                each = names or range(columns.num_labels)
                every = Outcomes(
                    score, right.astype("float64"), weight=columns.weight
                )
                ladders: list[Ladder | None] = []
                # One by one, as copies of all columns at once take long.
                for k in range(columns.num_labels):
                    kept: Any = slice(None)
                    if columns.present is not None:
                        kept = columns.present[:, k]
                    one = every.part((kept, k))
                    some = len(one.score) > 0
                    one = counted(one, target.delta) if some else one
                    ladders.append(of_scores(one) if some else None)
                chosen = target.choose_each(each, ladders, "labels", at_once)
            else:
                found = _outcomes_of_examples(
                    columns, score, right, self.example
                )
                chosen = target.choose(counted(found, target.delta))
            self.keep(chosen)
            self.class_names = names
        return self

    def call(self, logits, *, from_logits=None):
        """Answers as the served model does.

        Args:
            logits: The model's outputs `(..., labels)`.
            from_logits: Whether they are logits, not probabilities; None
                takes them as those of the fit.

        Returns:
            A dict of `logits` (calibrated), `probabilities` and `confidence`
            (of each answer) `(..., labels)`, float32. `labels` is 1 where the
            answer is yes, int32. `score`, float32, and `accept`, bool, are
            `(..., labels)`, or `(...)` by example.
        """
        self.check_fitted()
        from_logits = self.takes_logits(from_logits)
        given = label_logits(logits, from_logits)
        calibrated = self._calibrated(given)
        # What overflows has no confidence, also where a calibrator makes one.
        bound = float("inf")
        sound = ops.logical_and(
            ops.abs(given) < bound, ops.abs(calibrated) < bound
        )
        if not from_logits:
            # Compiled code cannot refuse what is no probability.
            sound = ops.logical_and(sound, in_unit_interval(logits))
        if self.by == "example":
            sound = ops.all(sound, axis=-1)
        score = self._score(calibrated)
        reached = score >= self.threshold_for(None, ())
        return {
            "logits": calibrated,
            "probabilities": ops.sigmoid(calibrated),
            "confidence": ops.sigmoid(ops.abs(calibrated)),
            "score": score,
            "accept": ops.logical_and(reached, sound),
            "labels": ops.cast(calibrated > 0.0, "int32"),
        }

    def _calibrated(self, logits: Any) -> Any:
        if self.calibrator is None:
            return ops.cast(logits, "float32")
        return of_logits(self.calibrator, logits)

    def _score(self, logits: Any) -> Any:
        """Scores of calibrated logits, by label or by example."""
        sure = ops.abs(logits)
        if self.by == "label":
            return sure
        if self.example == "worst":
            return ops.min(sure, axis=-1)
        # The share of labels that is expected to be wrong, which keeps its
        # digits near 0.
        return -ops.mean(ops.sigmoid(-sure), axis=-1)

    def get_config(self):
        names = self.class_names
        return {
            **super().get_config(),
            "by": self.by,
            "example": self.example,
            "class_names": None if names is None else list(names),
        }

    def fitted_summary(self) -> dict[str, Any]:
        """What it is by, threshold and calibrator."""
        return {
            "by": self.by,
            "threshold": self._threshold,
            "calibrator": self.calibrator,
        }

    def check_threshold(self, threshold: np.ndarray) -> None:
        """Raises ValueError unless there is one for each label, by label."""
        if np.isnan(threshold).any() or threshold.ndim != (self.by == "label"):
            raise value_error(
                "`threshold` must be a number by example, and one for each "
                "label by label",
                by=self.by,
                shape=threshold.shape,
            )


def _selector_of(part: SelectiveClassifier, **options: Any) -> Any:
    """The selector of several labels that a selective classifier stands for.

    Raises ValueError for one that is fitted, or has another score or costs.
    """
    score = part.fitted_summary()["score"] if part.fitted else part.score
    if part.fitted or score != "msp" or part.costs is not None:
        raise value_error(
            "`part` must be a `SelectiveClassifier` that is not fitted, with "
            "the default score and no costs",
            part=part,
            score=score,
        )
    calibrator = part.calibrator
    if calibrator is not None:
        calibrator = MultiLabelCalibrator(calibrator)
    return MultiLabelSelector(calibrator=calibrator, **options)


def _check_usable(columns: LabelColumns) -> None:
    """Raise unless labels are right or wrong, and logits can be ranked."""
    shown = columns.pooled()[1]
    # The layer computes in float32.
    bad = ~(np.abs(shown[:, 0]) <= np.finfo("float32").max)
    if bad.any():
        raise value_error(
            "`logits` must be finite: clip probabilities of 0 or 1 before you "
            "take their log-odds",
            entries=len(shown),
            bad=int(bad.sum()),
        )
    check_no_probabilities(shown, "logits")
    soft = (columns.labels != 0) & (columns.labels != 1)
    if soft.any():
        raise value_error(
            "`labels` must be 0 or 1, as an answer is right or wrong",
            soft=int(soft.sum()),
        )


def _outcomes_of_examples(
    columns: LabelColumns, score: np.ndarray, right: np.ndarray, example: str
) -> Outcomes:
    """Examples that have all labels, and how far each is wrong.

    Raises ValueError if only some labels of an example are missing: its score
    is of all labels.
    """
    kept: np.ndarray = np.ones(len(right), bool)
    if columns.present is not None:
        kept = np.asarray(columns.present.all(axis=-1))
        partly = columns.present.any(axis=-1) & ~kept
        if partly.any():
            raise value_error(
                "`labels` must have all labels of an example, or none, with "
                '`by="example"`: the score of an example is of all',
                examples=int(partly.sum()),
            )
    right, weight = right[kept], columns.weight
    found = np.asarray(right.all(axis=-1), "float64")
    if example == "mean":
        found = right.mean(axis=-1)
    if weight is not None:
        weight = weight[kept]
        if not np.all(weight == weight[:, :1]):
            raise value_error(
                "`sample_weight` must be one for each example, `(n,)`, with "
                '`by="example"`',
                shape=weight.shape,
            )
        weight = weight[:, 0]
    return Outcomes(score[kept], found, weight=weight)


# Kinds, their wrappers, and what makes them; the first that fits is taken.
_WRAPPERS: tuple[tuple[type, type, Any], ...] = (
    (PerSampleLoss, MultiLabelLoss, MultiLabelLoss),
    (StreamingMetric, MultiLabelMetric, MultiLabelMetric),
    (Calibrator, MultiLabelCalibrator, MultiLabelCalibrator),
    (SelectiveClassifier, MultiLabelSelector, _selector_of),
)


def MultiLabel(part: Any, **options: Any) -> Any:  # noqa: N802  # a class to users
    """A part of keras_calib for two classes, wrapped for several labels.

    Use it for models with several yes-or-no outputs `(batch, labels)`: pass a
    metric, a loss, a calibrator or a selector made for one such output.

    Label k is the two-class problem of column k: targets `(batch, labels)` are
    0 or 1, and outputs are probabilities or logits of 1. Class ids of one
    label among many need no wrapper.

    Args:
        part: A metric, a loss, a calibrator or an unfitted
            `SelectiveClassifier` of keras_calib.
        **options: Arguments of the wrapper.

    Returns:
        A `MultiLabelMetric` of a metric, a `MultiLabelLoss` of a loss, a
        `MultiLabelCalibrator` of a calibrator, or a `MultiLabelSelector` of a
        `SelectiveClassifier`, whose calibrator is then one of several labels.

    Raises:
        TypeError: If there is no wrapper for this part, or if an option is not
            an argument of the wrapper.
        ValueError: If a `SelectiveClassifier` is fitted, or has costs or
            another score than the default.

    Example:

    >>> from keras_calib import ECE
    >>> metric = MultiLabel(ECE(num_bins=10), num_labels=2)
    >>> metric.update_state([[1, 0], [1, 1]], [[0.8, 0.4], [0.9, 0.7]])
    >>> round(float(metric.result()), 4)
    0.25

    Reference:
        Read et al., Classifier Chains for Multi-label Classification, Machine
        Learning 2011, https://doi.org/10.1007/s10994-011-5256-5, who
        call this the binary relevance method
    """
    for kind, _, make in _WRAPPERS:
        if isinstance(part, kind):
            return make(part, **options)
    names = [wrapper.__name__ for _, wrapper, _ in _WRAPPERS]
    raise type_error(
        "`part` must be a part of keras_calib that has a wrapper for several "
        f"labels ({', '.join(names)})",
        type=type(part).__name__,
    )

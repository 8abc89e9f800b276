"""A metric of several labels at once, each a two-class problem."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import backend, ops

from keras_calib.backend.compiled import without_autograph
from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.keras_internals import show_values
from keras_calib.backend.replicas import assign_sum
from keras_calib.inputs.checks import check_in, check_integer
from keras_calib.inputs.given_metrics import get
from keras_calib.labels.columns import (
    EXAMPLES,
    as_entries,
    check_class_names,
    check_label_weights,
    place_of_label,
)
from keras_calib.labels.states import ColumnSummary, ExampleSummary
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.registry import lost_order
from keras_calib.metrics.segmentation import PerImage
from keras_calib.metrics.state_dicts import nan_if_lost, what_is_wrong
from keras_calib.metrics.states.composite import Readings
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import (
    array_namespace,
    cast,
    safe_divide,
    shape_of,
)

_AVERAGES = ("macro", "micro", "weighted")
_OF_SUMS = ("metric", "config", "by", "example")


@keras.saving.register_keras_serializable(package="keras_calib")
class MultiLabelMetric(StreamingMetric):
    """A metric of two classes for outputs of several labels at once.

    Use it to judge a model that answers yes or no for each of several labels.
    `MultiLabel(metric)` makes it.

    macro = mean over labels k of metric(y_k, p_k)

    Labels y are 0 or 1 of shape `(batch, ..., labels)`, as the outputs p,
    which are probabilities or logits of 1. Label k is read as the one output
    `p[..., k:k+1]` of a classifier of two classes. Hence `ECE` and others are
    those of the predicted class, whose confidence is max(p, 1 - p);
    `ECE(mode="binary")` reads p itself.

    Mark missing labels by `ignore_class` of the metric, such as -1, or by
    weights of 0 in `sample_weight` `(batch, ..., labels)`. One state array
    holds the sums of all labels. It merges with those of any `average`.

    Args:
        metric: A metric of keras_calib for two classes, such as `ECE`, `AURC`,
            `NLL` or `CalibrationMetrics`, as `keras_calib.metrics.get` takes
            it. Its options apply.
        num_labels: Number of labels, or None to take it from the first batch.
        average: `"macro"` for the mean over labels, or one weight for each.
            `"weighted"` weighs by how often a label is 1. `"micro"` takes all
            entries together. None reports each label by its name. Labels
            that are missing everywhere are left out.
        by: `"label"`, or `"example"` to make each example one prediction.
        example: With `by="example"`, `"worst"` for the least confidence of
            its labels, which is correct if all labels are. `"mean"` for the
            mean confidence, which is correct by the share of right labels.
            The weight of an example is the largest of its labels. Compiled
            code leaves out the whole example of an invalid label.
        class_names: Names of the labels, or None for their numbers.
        name: Name of the metric. Defaults to that of `metric`, after
            `"example_"` with `by="example"`.
        dtype: Dtype of the result.

    Returns:
        `result()` returns what that of `metric` does, or with `average=None` a
        dict of scalars, by names such as `"ece_cat"`.

    Raises:
        TypeError: If `metric` cannot be one of two classes. With
            `by="example"` also if it needs more than the confidence.
        ValueError: If an argument is out of range. On update, if labels do
            not have the shape of the outputs, or a value is out of range.

    Example:

    >>> from keras_calib import ECE
    >>> metric = MultiLabelMetric(ECE(num_bins=10))
    >>> metric.update_state([[1, 0], [1, 1]], [[0.8, 0.4], [0.9, 0.7]])
    >>> round(float(metric.result()), 4)
    0.25
    >>> metric.per_label().round(4).tolist()
    [0.15, 0.35]

    Reference:
        Read et al., Classifier Chains for Multi-label Classification, Machine
        Learning 2011, https://doi.org/10.1007/s10994-011-5256-5, who call one
        binary problem for each label the binary relevance method. The
        averages are those of scikit-learn:
        https://scikit-learn.org/stable/modules/model_evaluation.html
    """

    # Set to that of `metric`.
    mode: str | None = None

    def __init__(
        self,
        metric: Any,
        num_labels: int | None = None,
        *,
        average: str | Sequence[float] | None = "macro",
        by: str = "label",
        example: str = "worst",
        class_names: Sequence[str] | None = None,
        name: str | None = None,
        dtype: Any = None,
    ):
        metric = get(metric)
        _check_metric(metric)
        check_in("by", by, ("label", "example"))
        check_in("example", example, EXAMPLES)
        if num_labels is not None:
            check_integer("num_labels", num_labels, 1)
        class_names = check_class_names(class_names, num_labels)
        num_labels = len(class_names) if class_names else num_labels
        if isinstance(average, str):
            check_in("average", average, _AVERAGES)
        elif average is not None:
            average = check_label_weights("average", average, num_labels)
            num_labels = len(average)
        if by == "example":
            _check_of_examples(metric, average)
        self.mode = metric.mode
        summary: Any = ExampleSummary(metric.summary, example)
        if by == "label":
            summary = ColumnSummary(metric.summary, num_labels or 0)
        self.metric, self.class_names = metric, class_names
        self.num_labels, self.average = num_labels, average
        self.by, self.example = by, example
        prefix = "example_" if by == "example" else ""
        super().__init__(
            summary,
            **metric.options.of_metric(),
            refresh_every=metric.refresh_every,
            name=name or prefix + metric.name,
            dtype=dtype,
        )
        self._largest = metric._largest

    def _add_state(self):
        if self._is_fresh:
            # The number of labels comes with the first batch.
            shapes = self.summary.shape, (4,)
            self.sums, self.flags = (np.zeros(x, "int32") for x in shapes)
        else:
            super()._add_state()

    @property
    def _is_fresh(self) -> bool:
        return self.by == "label" and self.num_labels is None

    def _build_for(self, num_labels: int | None) -> None:
        """Make the state, once the number of labels is known."""
        if self.num_labels is None:
            if num_labels is None:
                raise value_error(
                    "`num_labels` must be given, because no outputs tell it "
                    "so far",
                    num_labels=None,
                )
            self.num_labels = num_labels
            if self.by == "label":
                self.summary.num_labels = num_labels
                self._add_state()
        self.summary.num_labels = self.num_labels
        if self.by == "example":
            self.options = self.options._replace(columns=self.num_labels)

    @without_autograph
    def update_state(self, y_true, y_pred, sample_weight=None):
        """Add one batch.

        Args:
            y_true: Labels `(batch, ..., labels)`, 0 or 1, or the ignored
                class.
            y_pred: Outputs `(batch, ..., labels)`.
            sample_weight: Weights `(batch,)` or `(batch, ..., labels)`, 0 for
                missing labels.
        """
        entries = as_entries(y_true, y_pred, sample_weight, self.num_labels)
        self._build_for(shape_of(entries[1])[-2])
        if self.modes.keys() != {self.name}:
            show_values(self, self.modes)
        super().update_state(*entries)

    def update_scores(self, confidence, correct, sample_weight=None):
        raise type_error(
            "`MultiLabelMetric` needs outputs of all labels: use "
            "`update_state`",
            method="update_scores",
        )

    def per_label(self) -> Any:
        """Return the values by label, NaN for labels without a sample.

        Returns:
            A float64 array `(labels,)`, or a dict of them by name if `metric`
            has several values. Before any sample, what `metric` returns then.

        Raises:
            ValueError: With `by="example"`, which has no values by label.
        """
        values = self._by_label(self._state_of_labels()[0])
        return self.metric._named(list(values.T))

    def of_label(self, label: int | str) -> StreamingMetric:
        """Return a metric like `metric` that holds what came for one label.

        Use it for its `interval()`, `bins()` or `curve()`, and in displays.

        Args:
            label: Number of the label from 0 on, or its name.

        Raises:
            ValueError: If there is no such label, or with `by="example"`.
        """
        sums, _ = self._state_of_labels()
        index = place_of_label(label, self._labels)
        limbs, _, _, odd = self.summary.split(sums)
        return self._made(limbs[:, index], [0, int(odd[index] > 0), 0, 0])

    def pooled(self) -> StreamingMetric:
        """Return a metric like `metric` that holds all entries together.

        Its `interval()` takes entries as independent, which labels of one
        example are not. With `by="example"` it holds the examples.
        """
        sums, flags = self._state()
        if self.by == "label":
            sums = pooled(self.summary.split(sums)[0])
        return self._made(sums, flags)

    def interval(self, level: float = 0.95) -> Any:
        """Return a confidence interval of the value of examples.

        Args:
            level: Probability to cover the value of the population, in (0, 1).

        Returns:
            What `interval` of `metric` returns.

        Raises:
            NotImplementedError: With `by="label"`, because the labels of one
                example depend on each other. Use `keras_calib.evaluate`, or
                `of_label(0).interval()`.
        """
        if self.by == "label":
            raise NotImplementedError(
                "Means over labels have no interval here, because the labels "
                "of one example depend on each other: use "
                "`keras_calib.evaluate`, or `of_label(...).interval()`"
            )
        return self.pooled().interval(level)

    @property
    def reported_names(self) -> list[str]:
        """Keys of `result()` if it is a dict, else the name."""
        names = getattr(self.metric, "reported_names", [self.name])
        if self.average is not None or self.by == "example":
            return names
        return [f"{name}_{label}" for name in names for label in self._labels]

    @property
    def modes(self) -> dict[str, str]:
        """Modes by the names of the values; those without one are left out."""
        by_label = self.average is None and self.by == "label"
        labels = [f"_{x}" for x in self._labels] if by_label else [""]
        modes = {self.name: self.mode} if self.mode else {}
        if hasattr(self.metric, "reported_names"):
            modes = self.metric.modes
        return {f"{k}{x}": mode for k, mode in modes.items() for x in labels}

    def get_config(self):
        return {
            "metric": keras.saving.serialize_keras_object(self.metric),
            "num_labels": self.num_labels,
            "average": self.average,
            "by": self.by,
            "example": self.example,
            "class_names": self.class_names,
            "name": self.name,
            "dtype": self.dtype,
        }

    @classmethod
    def from_config(cls, config):
        metric = keras.saving.deserialize_keras_object(config["metric"])
        return cls(**{**config, "metric": metric})

    def _comparable_config(self):
        # What shows the sums does not count.
        return {
            "metric": type(self.metric).__name__,
            "config": self.metric._comparable_config(),
            "by": self.by,
            "example": self.example if self.by == "example" else None,
            "num_labels": self.num_labels,
            "class_names": self.class_names,
        }

    def _check_together(self, states):
        self._num_labels_of(states)

    def _num_labels_of(self, states: list[dict[str, Any]]) -> int | None:
        """Number of labels of this metric and of states that it adds, or None.

        Raises ValueError if they differ, or have other names: sums of other
        labels must not be added.
        """
        num_labels, names = self.num_labels, self.class_names
        for config in (state["config"] for state in states):
            labels, listed = config.get("num_labels"), config.get("class_names")
            if None not in (labels, num_labels) and labels != num_labels:
                raise value_error(
                    "`metrics` must have as many labels as this metric",
                    num_labels=num_labels,
                    other=labels,
                )
            if None not in (listed, names) and list(listed) != list(
                names or ()
            ):
                raise value_error(
                    "`metrics` must have the labels of this metric, in this "
                    "order",
                    class_names=names,
                    other=listed,
                )
            num_labels, names = num_labels or labels, names or listed
        return num_labels

    def _checked(self, state):
        own, other = self._comparable_config(), state["config"]
        if any(other.get(key) != own[key] for key in _OF_SUMS):
            return super()._checked(state)
        labels = self._num_labels_of([state])
        # One side may not know its labels yet, or have no names.
        state = {**state, "config": {**own, "num_labels": labels}}
        if labels is not None:
            self._build_for(labels)
        sums = np.asarray(state["sums"])
        if self.by == "label" and sums.ndim == 3 and not sums.shape[1]:
            # It has no labels yet, and adds nothing to any.
            return {"sums": sums[:, :1].sum(axis=1, keepdims=True), "flags": 0}
        return super()._checked(state)

    def _assign(self, state):
        if not self._is_fresh:
            sums = np.broadcast_to(state["sums"], self.sums.shape)
            flags = np.broadcast_to(state["flags"], (4,))
            super()._assign({"sums": sums, "flags": flags})

    @property
    def _labels(self) -> Sequence[str]:
        return self.class_names or [*map(str, range(self.num_labels or 0))]

    def _state_of_labels(self) -> tuple[np.ndarray, np.ndarray]:
        if self.by == "example":
            raise value_error(
                '`by` must be "label" for values by label', by=self.by
            )
        self._build_for(self.num_labels)
        return self._state()

    def _made(self, sums: np.ndarray, flags: Any) -> StreamingMetric:
        """A metric like `metric` with this state."""
        config = self.metric.get_config()
        if self.summary.votes:
            config |= {"labels": "votes", "ignore_class": None}
        made = type(self.metric).from_config(config)
        assign_sum(made.sums, sums)
        assign_sum(made.flags, np.asarray(flags, "int32"))
        return made

    def _result(self):
        if self._is_fresh:
            values = self.metric._values_of(*self.metric._state())
            named = self.metric._named([self._scalar(float(x)) for x in values])
            return named if self.average is not None else {}
        return super()._result()

    def _values_of(self, sums: Any, flags: Any) -> list[Any]:
        if self.by == "example" or self.average == "micro":
            return self.metric._values(self._readings(sums, flags))
        values = self._by_label(sums)
        if self.average is None:
            xp = array_namespace(values)
            flat = xp.reshape(xp.transpose(values), (-1,))
            return [flat[i] for i in range(flat.shape[0])]
        _, mass, positive, _ = self.summary.split(sums)
        mean = self._mean(values, mass, positive)
        mean = nan_if_lost(mean, flags[0], mass)
        return [mean[i] for i in range(mean.shape[0])]

    def _by_label(self, sums: Any) -> Any:
        """Values `(labels, values)`, NaN for labels that lack samples."""
        limbs, mass, _, odd = self.summary.split(sums)
        xp = array_namespace(limbs)

        def values_of(limbs: Any, odd: Any) -> list[Any]:
            readings = Readings(self.metric.summary, limbs, odd == 0)
            value = self.metric._value(readings)
            return value if isinstance(value, list) else [value]

        def as_row(label: tuple) -> Any:
            return ops.stack(
                [ops.cast(x, "float32") for x in values_of(*label)]
            )

        if xp is np:
            labels = range(limbs.shape[1])
            rows = [values_of(limbs[:, k], odd[k]) for k in labels]
            values = np.array(rows, "float64")
        else:
            values = ops.map(as_row, (ops.moveaxis(limbs, 1, 0), odd))
        missing = xp.logical_and(mass == 0, xp.any(mass > 0))
        missing = xp.expand_dims(missing, -1)
        return xp.where(missing, xp.full_like(values, float("nan")), values)

    def _mean(self, values: Any, mass: Any, positive: Any) -> Any:
        """Means `(values,)` of values by label `(labels, values)`.

        It is array-agnostic. Labels without mass are left out, and before any
        sample all count. The mean of no label is NaN. `mass` is the weight of
        the samples of each label, and `positive` of those where it is 1.
        """
        xp = array_namespace(values)
        dtype = backend.standardize_dtype(values.dtype)
        weight = cast(mass > 0, dtype)
        if isinstance(self.average, tuple):
            weight = weight * xp.array(self.average, dtype=dtype)
        elif self.average == "weighted":
            weight = cast(positive, dtype)
        nothing = xp.logical_not(xp.any(mass > 0))
        weight = xp.where(nothing, xp.ones_like(weight), weight)
        total, weight = xp.sum(weight), xp.expand_dims(weight, -1)
        shown = xp.where(weight > 0, values, xp.zeros_like(values))
        mean = safe_divide(xp.sum(weight * shown, axis=0), total)
        return xp.where(total > 0, mean, xp.full_like(mean, float("nan")))

    def _readings(self, sums, flags):
        if self.by == "label":
            sums = pooled(self.summary.split(sums)[0])
        return self.metric._readings(sums, flags)

    def _named(self, values):
        if self.average is not None or self.by == "example":
            return self.metric._named(values)
        return dict(zip(self.reported_names, values, strict=True))

    def _what_is_wrong(self, sums, flags):
        yield from what_is_wrong(self.name, flags[0], sums)
        names = getattr(self.metric, "include", (self.metric._quantity,))
        yield from lost_order(self.metric, names, self._readings(sums, flags))


def pooled(limbs: Any) -> Any:
    """Limbs `(3, m)` of all labels together, of `(3, labels, m)`."""
    if array_namespace(limbs) is np:
        return exact_sums.normalize_limbs(limbs.sum(axis=1, dtype="int64"))
    while limbs.shape[1] > 1:
        half = limbs.shape[1] // 2
        both = exact_sums.add(limbs[:, :half], limbs[:, half : 2 * half])
        limbs = ops.concatenate([both, limbs[:, 2 * half :]], axis=1)
    return limbs[:, 0]


def _check_metric(metric: Any) -> None:
    """Raise unless a metric can be one of the two classes of a label."""
    plain = isinstance(metric, StreamingMetric)
    if not plain or isinstance(metric, MultiLabelMetric | PerImage):
        raise type_error(
            "`metric` must be a metric of keras_calib for two classes, such "
            "as `ECE`",
            type=type(metric).__name__,
        )
    options = metric.options
    if options.objectness or options.pixels_per_image or options.axis != -1:
        raise value_error(
            "`metric` must have `objectness=False`, `pixels_per_image=None` "
            "and `axis=-1`: labels are on the last axis",
            objectness=options.objectness,
            pixels_per_image=options.pixels_per_image,
            axis=options.axis,
        )


def _check_of_examples(metric: StreamingMetric, average: Any) -> None:
    """Raise unless a metric needs no more than confidences."""
    alone = getattr(metric, "score", "msp") == "msp"
    if metric.summary.needs_rows or not alone or metric.options.votes:
        raise type_error(
            '`metric` must need the confidence alone with `by="example"`, '
            'which `NLL`, `BrierScore` and others do not: with `by="label"` '
            'and `average="micro"` they are means over examples and labels',
            type=type(metric).__name__,
        )
    if average != "macro":
        raise value_error(
            '`average` needs `by="label"`: an example is one prediction',
            average=average,
        )

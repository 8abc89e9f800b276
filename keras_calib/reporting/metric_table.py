"""The metrics of models as a table with intervals: a report without a page."""

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.late import keras_module
from keras_calib.inputs.checks import check_in, check_integer
from keras_calib.inputs.given_metrics import as_told, made, told_key
from keras_calib.inputs.options import ReadOptions
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.registry import QUANTITIES, kind_of, point_of
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.results import Result
from keras_calib.predictions.options import DataOptions
from keras_calib.reporting.evaluation import estimates_of
from keras_calib.reporting.gathering import gathered
from keras_calib.reporting.measures import (
    EXPLAINED,
    TOP1_METRICS,
    cell,
    estimates_by_stage,
)

_keras = keras_module("keras.metrics")

# Fewer units are called few: their intervals rest on a rough error.
_FEW = 30
_POINTS = ("risk", "accuracy", "coverage")
_NO_ENDS = float("nan"), float("nan")


class MetricTable(Result):
    """Result of `evaluate`: print it, or take `table["ece"]` or `to_frame()`.

    For several models `table["ece"]` is a dict by the name of the model, and
    `table["name"]` has the metrics of one of them.

    Attributes:
        results: By the name of the model, and then of the metric, a dict with
            `value`, `low` and `high`. The last two are the ends of a 95 %
            interval, NaN where there is none. A coverage or risk at a point
            has that too, such as `risk`. What a calibrator makes of a model
            has the name `"..., calibrated"`.
        num_predictions: Number of predictions that count, or None.
        num_units: Number of units, where rows depend on each other.
        units: What these are called, such as `"images"`; None without.
    """

    results: dict[str, dict[str, dict[str, Any]]]
    num_predictions: int | None = None
    num_units: int | None = None
    units: str | None = None

    def __getitem__(self, name: str) -> dict[str, Any]:
        models = self.results
        if name in models:
            return models[name]
        found = {model: x[name] for model, x in models.items() if name in x}
        if not found:
            known = dict.fromkeys(key for x in models.values() for key in x)
            check_in("name", name, [*models, *known])
        return found if len(models) > 1 else found.popitem()[1]

    def _columns(self) -> dict[str, Any]:
        rows = [
            (model, _kind(metric), metric, x["value"], x["low"], x["high"])
            for model, found in self.results.items()
            for metric, x in found.items()
        ]
        names = "model", "kind", "metric", "value", "low", "high"
        columns = zip(*rows, strict=True)
        return dict(zip(names, map(np.array, columns), strict=True))

    def _shown(self) -> dict[str, Any]:
        """A row for each metric, or for each model if these are more."""
        models, first = self.results, next(iter(self.results.values()))
        titles = {name: _title(name, first[name]) for name in first}
        cells = {
            (model, name): "{} ({})".format(*x) if x[1] else x[0]
            for model, found in models.items()
            for name, x in ((k, cell(k, x)) for k, x in found.items())
        }
        if len(models) > len(titles):
            return {"model": [*models]} | {
                title: [cells[model, name] for model in models]
                for name, title in titles.items()
            }
        kinds = [*map(_kind, titles)]
        names = sorted(titles, key=lambda x: kinds.index(_kind(x)))
        kinds = [*map(_kind, names)]
        new = [x != y for x, y in zip(kinds, ["", *kinds], strict=False)]
        heads = [x if y else "" for x, y in zip(kinds, new, strict=True)]
        shown = {"metric": [titles[x] for x in names]} | {
            model: [cells[model, x] for x in names] for model in models
        }
        return {"": heads, **shown} if len({*kinds}) > 1 else shown

    def _note(self) -> str:
        if self.num_predictions is None:
            return ""
        text = f"{self.num_predictions:,} predictions"
        if self.units is None or self.num_units is None:
            return f"{text}; 95 % intervals."
        few = ", which are few" if self.num_units < _FEW else ""
        text = f"{text} of {self.num_units:,} {self.units}{few}"
        return f"{text}; 95 % intervals of independent {self.units}."


def _kind(name: str) -> str:
    """The kind of a metric, of several labels too."""
    return kind_of(name.removeprefix("macro_").removeprefix("micro_"))


def _title(name: str, estimate: dict[str, Any]) -> str:
    """The name of a metric, with the operating point that it is for."""
    points = [x for k, x in estimate.items() if k in _POINTS]
    return "=".join([name, *(f"{x:g}" for x in points)])


def evaluate(
    predictions: Any,
    data: Any = None,
    *,
    metrics: Sequence[Any] | None = None,
    num_bins: int = 15,
    calibrator: Any = None,
    **options: Unpack[DataOptions],
) -> MetricTable:
    """The metrics of one or several models as a table, with 95 % intervals.

    Use it to see how accurate, how calibrated and how sure of its errors each
    model is, before and after calibration. They are the numbers of the page of
    `report`. The data are read once, in memory that does not grow with them.

    Each interval holds the value of the population in 95 % of test sets. Where
    rows depend on each other, as pixels of an image do and what `Predictions`
    have as `units`, images or units are what is independent. Means then have
    Student's interval over units. Binned errors have that of as many
    independent predictions as have the variance of the gaps between units.
    Others have Student's with the deviation of Poisson replicates or of a
    jackknife.

    Args:
        predictions, data: As in `report`: `Predictions`, or a list of them,
            or a dict by the name of the model. Several are columns of one
            table, or its rows where that is narrower.
        metrics: Keys, functions, metric classes or new objects, as
            `keras_calib.metrics.get` takes them; None for those of the page.
            An object reads outputs as it was made to. Two of one name need
            `name=`. For several labels at once, give names out of the table.
        num_bins: Number of bins of the calibration errors.
        calibrator, **options: As in `report`.

    Returns:
        A `MetricTable`.

    Raises:
        TypeError: If a metric cannot be streamed, such as a function of yours,
            or these are no predictions.
        ValueError: If shapes or names do not fit, there are no data, a metric
            needs what the predictions do not have, or two have one name.

    Example:

    >>> import keras_calib
    >>> p = keras_calib.Predictions([0, 1, 1], [[0.9, 0.1]] * 3)
    >>> print(keras_calib.evaluate(p, metrics=["accuracy"], verbose=0))
    metric               model
    accuracy  0.3 (0.0 to 0.9)
    <BLANKLINE>
    3 predictions; 95 % intervals.

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        https://arxiv.org/abs/1706.04599
    """
    check_integer("num_bins", num_bins, 1)
    if isinstance(metrics, str) or not isinstance(metrics, Sequence | None):
        metrics = [metrics]
    if metrics is not None and not metrics:
        raise value_error("`metrics` must have a metric", metrics=metrics)
    evaluations, _ = gathered(
        predictions,
        data,
        {**options},
        {"calibrator": calibrator, "selector": None},
        num_bins=num_bins,
        measured=lambda kind: _measured(kind, metrics),
    )
    results: dict[str, Any] = {}
    for x in evaluations:
        is_labels = x.kind == "labels"
        stages = (
            estimates_by_stage(x.results()) if is_labels else _of_classes(x)
        )
        named = zip((x.name, f"{x.name}, calibrated"), stages, strict=False)
        results |= dict(named)
    if metrics is not None and evaluations[0].kind == "labels":
        known = [*next(iter(results.values()))]
        for metric in metrics:
            check_in("metrics", metric, known)
        results = {
            model: {metric: found[metric] for metric in metrics}
            for model, found in results.items()
        }
    first = evaluations[0]
    counted = first.num_samples if first.kind == "labels" else first.num_counted
    units: tuple = ()
    if getattr(first, "by_unit", None) is not None:
        units = first.by_unit.num_units, first.unit_name
    return MetricTable(results, counted, *units)


def _measured(kind: str, metrics: Sequence[Any] | None) -> dict[str, Any]:
    """What evaluations of classes or of logs measure, in the order given."""
    if kind == "labels":
        return {}
    known = {*QUANTITIES} - {"objectness_deviation"}
    if kind == "records":
        known -= {"nll", "brier_score"}
    if metrics is None:
        page = TOP1_METRICS if kind == "records" else EXPLAINED
        first, second, *rest = page
        return {"keys": [first, second, "confidence_gap", *rest]}
    keys, others = [], []
    for metric in metrics:
        is_object = isinstance(metric, _keras.Metric)
        key = None if is_object else told_key("metrics", metric)
        if key in known:
            keys.append(key)
        elif kind == "records":
            raise value_error(
                "`metrics` must be of confidence and correctness: a log does "
                "not have the outputs of all classes",
                metric=metric,
            )
        else:
            others.append(metric)
    return {"keys": keys, "others": partial(_by_name, keys, others)}


def _by_name(
    keys: Sequence[str], metrics: Sequence[Any], options: ReadOptions
) -> dict[str, Any]:
    """New metrics by the names of their rows, of which no other has one."""
    found, rows = {}, [*keys]
    for metric in (_made(x, options) for x in metrics):
        name = _title(metric.name, point_of(metric.name, metric))
        own = getattr(metric, "reported_names", [name])
        if both := sorted({*own} & {*rows}):
            raise value_error(
                "`metrics` must have different names: pass `name=`", names=both
            )
        found[", ".join(own)] = metric
        rows += own
    return found


def _made(metric: Any, options: ReadOptions) -> Any:
    metric = as_told(metric, options.of_metric())
    own = getattr(metric, "options", None)
    reads = getattr(own, "from_logits", options.from_logits)
    if reads is not options.from_logits:
        raise value_error(
            "`metrics` must read outputs as they are: give the class, or an "
            "object that does. Calibrated outputs are logits",
            metric=metric.name,
            from_logits=options.from_logits,
        )
    return made("metrics", metric, options.of_metric())


def _of_classes(evaluation: Any) -> list[dict[str, Any]]:
    found = []
    stages = evaluation.stages, evaluation.others, evaluation.by_units
    for table, others, by_units in zip(*stages, strict=True):
        estimates = estimates_of(table) if table.include else {}
        for name in estimates:
            estimates[name] |= point_of(name, table)
        for name, metric in others.items():
            values: Any = metric.result()
            ends: Any = {}
            if name in by_units:
                ends = by_units[name].interval()
                ends = ends if isinstance(values, dict) else ends[name]
            elif isinstance(metric, StreamingMetric):
                with contextlib.suppress(NotImplementedError):
                    ends = metric.interval()
            if not isinstance(values, dict):
                values, ends = {name: values}, {name: ends or _NO_ENDS}
            for k, x in values.items():
                estimates[k] = _estimate(x, ends.get(k, _NO_ENDS))
        found.append(estimates)
    return found


def _estimate(value: Any, ends: tuple[float, float] = _NO_ENDS) -> dict:
    """A value with the ends of its interval, NaN where there is none."""
    return {"value": float(to_numpy(value)), "low": ends[0], "high": ends[1]}

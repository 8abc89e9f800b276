"""Where a report's rows come from: `Predictions`, or models run over data.

Batches are `(labels, outputs of each model, weights or None, inputs or None,
groups or None)`, arrays of the same rows. Groups are by their attribute.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.progress import with_progress
from keras_calib.functional.groups import Grouping, grouping
from keras_calib.inputs.options import ReadOptions, check_reading
from keras_calib.predictions.collect import together
from keras_calib.predictions.outputs import from_logits_of
from keras_calib.predictions.predictions import Predictions

# What a report makes of the kinds of predictions.
_KINDS = {
    "classes": "classes",
    "labels": "labels",
    "records": "scores",
    "votes": "classes",
}
# A block is full with so many outputs, or bytes of inputs to show: beyond,
# the work of a block is much more than what each costs.
_OUTPUTS = 2**16
_BYTES = 2**24


class Source(NamedTuple):
    """Predictions of one or several models for the same rows.

    Attributes:
        names: Names of the models.
        batches: The batches, once.
        reading: How labels and outputs are read.
        class_names: Names of the classes or of the labels, or None.
        kind: `"classes"`, `"labels"` or `"scores"`.
    """

    names: list[str]
    batches: Iterator[tuple]
    reading: ReadOptions
    class_names: list[str] | None
    kind: str


def of_predictions(given: Mapping[str, Any], verbose: Any) -> Source:
    """The rows of `Predictions` by the name of their model."""
    for p in given.values():
        if not isinstance(p, Predictions):
            raise type_error(
                "`predictions` must be `Predictions` or a dict of them, or "
                "models with their `data`",
                predictions=type(p).__name__,
            )
    if len({p.from_logits for p in given.values()}) > 1:
        # A calibrator gives logits, also for a model of probabilities.
        given = {name: p.as_logits() for name, p in given.items()}
    first, *others = given.values()
    if not others:
        batches: Any = ([part] for part in first.batches())
        return _source(given, with_progress(batches, None, verbose))
    lengths = {name: len(p) for name, p in given.items()}
    if len({*lengths.values()}) > 1:
        raise value_error("`predictions` must be of the same rows", **lengths)
    size = min(p.rows_of_part() for p in given.values())
    batches = zip(*(p.batches(size) for p in given.values()), strict=True)
    count = -(-len(first) // size)
    return _source(given, with_progress(batches, count, verbose))


def of_models(
    models: Mapping[str, Any],
    data: Any,
    options: Mapping[str, Any],
    parts: Iterable[Any],
) -> Source:
    """The rows of data, which are read once, with what each model says.

    Fitted `parts` know what a silent model returns.
    """
    told = options.get("from_logits"), options.get("output")
    given = {
        name: Predictions.of_model(
            model,
            data,
            **{**options, "from_logits": from_logits_of(model, *told, *parts)},
        )
        for name, model in models.items()
    }
    runs: list[Any] = [p.run for p in given.values()]
    return _source(
        given,
        (
            [p.part(x) for p, x in zip(given.values(), each, strict=True)]
            for each in together(runs)
        ),
    )


def _source(
    given: Mapping[str, Predictions], parts: Iterable[list[Predictions]]
) -> Source:
    first = next(iter(given.values()))
    for fact in ("kind", "from_logits", "ignore_class"):
        told = {name: getattr(p, fact) for name, p in given.items()}
        if len({*told.values()}) > 1:
            raise value_error(f"models must agree on `{fact}`", **told)
    reading = ReadOptions(
        first.from_logits,
        ignore_class=first.ignore_class,
        labels="votes" if first.votes else "classes",
        names=("labels", "outputs"),
    )
    check_reading(-1, reading.ignore_class, labels=reading.labels)
    return Source(
        [*given],
        _grouped(merged(map(_batch, parts)), _KINDS[first.kind]),
        reading,
        next((p.class_names for p in given.values() if p.class_names), None),
        _KINDS[first.kind],
    )


def _batch(parts: list[Predictions]) -> tuple:
    first, *others = parts
    for part in others:
        if not np.array_equal(part.labels, first.labels):
            raise value_error(
                "models must have the same labels in the same order",
                rows=len(first.labels),
            )
    weights: list[Any] = [x.sample_weight for x in parts]
    weight, *rest = weights
    if not all(np.array_equal(weight, x) for x in rest):
        raise value_error(
            "models must mask the same rows, and weigh them alike: report on "
            "each alone",
            masked=[
                None if x is None else int(np.size(x) - np.count_nonzero(x))
                for x in (weight, *rest)
            ],
        )
    shown: Any = [x for part in parts for x in (part.inputs, part.ids)]
    shown = [x for x in shown if hasattr(x, "shape")]
    return (
        first.labels,
        [part.outputs for part in parts],
        weight,
        shown[0] if shown else None,
        next((x.groups for x in parts if x.groups), {}),
    )


def _grouped(batches: Iterable[tuple], kind: str) -> Iterator[tuple]:
    """Batches whose groups are names and codes of their rows."""
    for labels, outputs, weight, inputs, groups in batches:
        if groups and kind == "labels":
            raise value_error(
                "`groups` must be left out of a report of several labels at "
                "once: report one label as two classes",
                groups=[*groups],
            )
        lead = outputs[0].shape[: outputs[0].ndim - (kind == "classes")]
        found: dict[str, Grouping] = {
            name: grouping(x, lead, f"groups[{name!r}]")
            for name, x in groups.items()
        }
        yield labels, outputs, weight, inputs, found or None


def merged(batches: Iterable[tuple]) -> Iterator[tuple]:
    """Batches, small ones of equal form joined."""
    waiting: list[dict] = []
    for labels, outputs, weight, inputs, groups in batches:
        batch = {"labels": labels, "weight": weight, "inputs": inputs}
        batch |= {("outputs", k): x for k, x in enumerate(outputs)}
        batch |= {("groups", k): x for k, x in groups.items()}
        batch = {
            k: None if x is None else np.asarray(x) for k, x in batch.items()
        }
        if waiting and _form(batch) != _form(waiting[0]):
            yield _joined(waiting)
            waiting = []
        waiting.append(batch)
        if sum(map(_fullness, waiting)) >= 1.0:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _form(batch: dict) -> dict[Any, Any]:
    """Shape of a row and type of each part; None of a part that lacks."""
    return {
        k: None if x is None else (x.shape[1:], x.dtype)
        for k, x in batch.items()
    }


def _fullness(batch: dict) -> float:
    num_outputs = max(x.size for k, x in batch.items() if k[0] == "outputs")
    inputs = batch["inputs"]
    num_bytes = 0 if inputs is None else inputs.nbytes
    return max(num_outputs / _OUTPUTS, num_bytes / _BYTES)


def _joined(batches: list[dict]) -> tuple:
    parts = {
        k: None if x is None else np.concatenate([b[k] for b in batches])
        for k, x in batches[0].items()
    }
    outputs = [x for k, x in parts.items() if k[0] == "outputs"]
    groups = {k[1]: x for k, x in parts.items() if k[0] == "groups"}
    return parts["labels"], outputs, parts["weight"], parts["inputs"], groups

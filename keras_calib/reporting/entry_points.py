"""Make a report of models or of predictions: from data to the page."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.progress import with_progress
from keras_calib.functional.groups import groupings
from keras_calib.inputs.checks import check_flag, check_rank
from keras_calib.inputs.options import ReadOptions, check_reading
from keras_calib.inputs.weights import read_masked
from keras_calib.labels.columns import check_label_names
from keras_calib.numerics.arrays import as_array, to_numpy
from keras_calib.predictions.batches import (
    Examples,
    Predictor,
    batches_of,
    count_batches,
)
from keras_calib.predictions.collect import labels_of
from keras_calib.predictions.outputs import read_as
from keras_calib.predictions.row_order import Told, told_by_batches
from keras_calib.reporting.evaluation import ClassEvaluation, ScoreEvaluation
from keras_calib.reporting.groups import with_groups
from keras_calib.reporting.html import Report, page_of, template
from keras_calib.reporting.labels import LabelEvaluation
from keras_calib.reporting.model_parts import (
    ModelParts,
    are_several_labels,
    by_name,
    check_contents,
)

__all__ = [
    "BLOCK",
    "merged",
    "report",
    "report_of_batches",
    "report_of_predictions",
]

_EVALUATIONS: dict[str, Any] = {
    "classes": ClassEvaluation,
    "scores": ScoreEvaluation,
    "labels": LabelEvaluation,
}
# So many outputs of a model are worked on at a time, to bound the memory.
BLOCK = 2**20


def report(
    models: Any,
    data: Any,
    *,
    calibrator: Any = None,
    selector: Any = None,
    from_logits: bool | None = None,
    ignore_class: int | None = None,
    votes: bool = False,
    multi_label: bool | None = None,
    output: str | int | None = None,
    class_names: Sequence[str] | None = None,
    label_names: Sequence[str] | None = None,
    num_bins: int = 15,
    num_mistakes: int = 12,
    groups: Any = None,
    batch_size: int = 32,
    steps: int | None = None,
    title: str = "Calibration report",
    notes: dict[str, str] | None = None,
    verbose: str | int = "auto",
) -> Report:
    """A page that says how far the confidence of models can be trusted.

    Use it to show others whether confidence holds, what a calibrator repairs,
    and how much can be automated. The data are read once for all models, in
    memory that does not grow with the data.

    Args:
        models: A Keras model, or a dict of them by name.
        data: Test data, which chose nothing, as in `Calibrator.fit_on`.
        calibrator: Fitted calibrator of the model's logits, or a dict of
            them by the name of the model; by default that of the selector.
            Models of probabilities give it log-probabilities. It may be the
            result of `choose_calibrator`, whose table the page then shows.
        selector: Fitted `SelectiveClassifier`, or a dict of them.
        from_logits: Whether the models return logits; None takes it from
            the losses that they were compiled with.
        ignore_class: Class id that does not count; None takes it from the
            losses.
        votes: Whether labels are rows of annotators' votes
            `(batch, ..., num_classes)`, counts or shares, as with
            `labels="votes"` in metrics. Predictions are then right by their
            share of the votes.
        multi_label: Whether each output is a label of its own, `(batch, ...,
            labels)`. None says so for `label_names`, `MultiLabel` parts or
            loss, and a binary cross-entropy on several outputs. Groups and
            votes are for classes alone.
        output: Name or position of the output, for models that have
            several.
        class_names: Names of the classes, in the order of their ids.
        label_names: Names of the labels, with several labels at once.
        num_bins: Number of bins of the calibration errors, at most 1000.
        num_mistakes: How many of the surest mistakes to show, with the
            images if the inputs are images.
        groups: Groups to compare, or a dict of them by the name of the
            attribute, as in `by_group`. A function gives those of a batch
            from its inputs, such as `lambda x: x["site"]`. Groups that are
            given for all samples need data in a fixed order, which are then
            read twice.
        batch_size: Size of the batches of arrays.
        steps: How many batches, at most; None for all.
        title: Title of the page.
        notes: What readers must know of the data, by name, such as
            `{"Data set": "CIFAR-10 test"}`; shown as plain text.
        verbose: `"auto"` or 1 for a progress bar, 2 for a line at the end, 0
            for silence.

    Returns:
        `Report`; `save(path)` writes it.

    Raises:
        ImportError: If Jinja2 or matplotlib is not installed.
        RuntimeError: If a calibrator or selector is not fitted.
        TypeError: If a model has several outputs and none is named.
        ValueError: If shapes or names do not fit, there are no data, or it
            is not known what the models return.

    Example:

    >>> import keras
    >>> import keras_calib
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Softmax()])
    >>> data = [[2, 0, 0, 0], [0, 0, 2, 0]], [0, 1]
    >>> page = keras_calib.report(model, data, from_logits=False, verbose=0)
    >>> page.results["model"]["verdict"]["headline"]
    'Too few errors to say'

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        https://arxiv.org/abs/1706.04599
    """
    models = by_name("models", models)
    several = are_several_labels(
        multi_label,
        label_names,
        (calibrator, selector),
        {"groups": groups, "class_names": class_names, "votes": votes or None},
        models=models.values(),
        from_logits=from_logits,
        output=output,
    )
    options = {
        name: read_as(model, from_logits, ignore_class, output, several)
        for name, model in models.items()
    }
    for field in ("from_logits", "ignore_class"):
        told = {name: getattr(x, field) for name, x in options.items()}
        if len(set(told.values())) > 1:
            raise value_error(f"`models` must agree on `{field}`", **told)
    first = _of_labels(next(iter(options.values())), votes)
    # Before a model is asked, as it checks the data too.
    num_batches = count_batches(data, batch_size, steps)
    predictors = [Predictor(m, options[k].output) for k, m in models.items()]
    groups = told_by_batches(groups)
    given = groups.values() if isinstance(groups, Mapping) else [groups]
    told = [x for x in given if isinstance(x, Told)]
    in_order = groups is not None and len(told) < len(given)
    batches = (
        _predicted(batch, predictors, told)
        for batch in batches_of(data, batch_size, steps, first.output, in_order)
    )
    batches = merged(with_progress(batches, num_batches, verbose))
    return report_of_batches(
        list(models),
        with_groups(batches, groups),
        first,
        calibrator=calibrator,
        selector=selector,
        class_names=class_names,
        label_names=label_names,
        num_bins=num_bins,
        num_mistakes=num_mistakes,
        kind="labels" if several else "classes",
        title=title,
        notes=notes,
    )


def report_of_predictions(
    labels: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
    votes: bool = False,
    multi_label: bool | None = None,
    inputs: Any = None,
    groups: Any = None,
    verbose: str | int = "auto",
    **kwargs: Any,
) -> Report:
    """A page that says how far the confidence of predictions can be trusted.

    Use it for predictions of any framework; `report` takes Keras models.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels
            `(n, ..., num_classes)`.
        probs: Probabilities `(n, ..., num_classes)`, or `(n, ..., 1)` for
            the second of two classes; or a dict of them by the name of the
            model.
        from_logits: Whether `probs` are logits.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
        ignore_class: Class id that does not count.
        votes: Whether labels are rows of annotators' votes
            `(n, ..., num_classes)`, as in `report`.
        multi_label: Whether each output is a label of its own, `(n, ...,
            labels)`. None says so for `label_names` and `MultiLabel` parts.
        inputs: Images `(n, height, width, channels)` or texts `(n,)` to show
            the surest mistakes with, or None.
        groups: Groups to compare, as in `by_group`, or None.
        verbose: `"auto"` or 1 for a progress bar, 2 for a line at the end, 0
            for silence.
        **kwargs: `calibrator`, `selector`, `class_names`, `label_names`,
            `num_bins`, `num_mistakes`, `title` and `notes`, as in `report`.

    Returns:
        `Report`; `save(path)` writes it.

    Raises:
        ImportError: If Jinja2 or matplotlib is not installed.
        RuntimeError: If a calibrator or selector is not fitted.
        ValueError: If shapes or names do not fit, or there are no data.

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        https://arxiv.org/abs/1706.04599
    """
    outputs = by_name("probs", probs)
    labels = as_array(labels, "labels")
    if sample_weight is not None:
        sample_weight = as_array(sample_weight, "sample_weight")
    for name, x in outputs.items():
        outputs[name], sample_weight = read_masked(x, "probs", sample_weight)
    inputs = None if inputs is None else np.asarray(inputs)
    others = {"sample_weight": sample_weight, "inputs": inputs}
    lengths = {}
    for name, array in {"labels": labels, **others, **outputs}.items():
        if array is not None:
            check_rank(name, array, 1, "(n, ...)")
            lengths[name] = len(array)
    if len(set(lengths.values())) > 1 or not len(labels):
        raise value_error(
            "`labels`, `probs`, `sample_weight` and `inputs` must have "
            "the same length, at least 1",
            **lengths,
        )
    options = _of_labels(
        ReadOptions(from_logits, ignore_class=ignore_class), votes
    )
    several = are_several_labels(
        multi_label,
        kwargs.get("label_names"),
        (kwargs.get("calibrator"), kwargs.get("selector")),
        {
            "groups": groups,
            "class_names": kwargs.get("class_names"),
            "votes": votes or None,
        },
    )
    lead = next(iter(outputs.values())).shape[:-1]
    grouped = {} if groups is None else groupings(groups, lead)
    largest = max(array[0].size for array in outputs.values())
    rows = max(1, BLOCK // max(1, largest))
    parts = [slice(i, i + rows) for i in range(0, len(labels), rows)]
    batches = (
        (
            labels[part],
            [array[part] for array in outputs.values()],
            *(None if x is None else x[part] for x in others.values()),
            {name: x.part(part, lead) for name, x in grouped.items()} or None,
        )
        for part in parts
    )
    batches = with_progress(batches, len(parts), verbose)
    kind = "labels" if several else "classes"
    return report_of_batches(
        list(outputs), batches, options, kind=kind, **kwargs
    )


def report_of_batches(
    names: list[str],
    batches: Iterable[tuple],
    options: ReadOptions,
    *,
    calibrator: Any = None,
    selector: Any = None,
    class_names: Sequence[str] | None = None,
    label_names: Sequence[str] | None = None,
    num_bins: int = 15,
    num_mistakes: int = 12,
    title: str = "Calibration report",
    kind: str = "classes",
    notes: dict[str, str] | None = None,
) -> Report:
    """The report of batches as they come; arguments as in `report`.

    A batch is `(labels, outputs of each model, weights or None, samples to
    show mistakes with or None)`, and may have a dict of `Grouping`. `kind` is
    a key of `_EVALUATIONS`. Labels of `"scores"` are correctness, and outputs
    are confidences `(n,)`.
    """
    # Check what can be checked before hours of predictions.
    template()
    check_contents(num_bins, num_mistakes, notes)
    if isinstance(class_names, str):
        raise type_error(
            "`class_names` must be a sequence of names", class_names=class_names
        )
    parts = ModelParts(names, calibrator, selector)
    several = kind == "labels"
    if several:
        parts.check_of_labels()
    evaluations: list[Any] = []
    for name in names:
        own = parts.of(name)
        told = class_names
        if several:
            known = [getattr(part, "label_names", None) for part in own]
            told = label_names or next(filter(None, known), None)
            told = check_label_names(told, None)
        made = name, *own, options, num_bins, num_mistakes, told
        evaluations.append(_EVALUATIONS[kind](*made))
    for labels, outputs, *others in batches:
        for evaluation, own in zip(evaluations, outputs, strict=True):
            evaluation.add(labels, own, *others)
    num_classes = {x.num_classes for x in evaluations}
    if 0 in num_classes:
        what = "labels" if several else "samples"
        raise value_error(f"`labels` must have {what} that count", **{what: 0})
    if class_names is not None and num_classes != {len(class_names)}:
        raise value_error(
            "`class_names` must have a name for each class",
            names=len(class_names),
            num_classes=num_classes,
        )
    results = {x.name: x.results() for x in evaluations}
    for name, choice in parts.choices.items():
        results[name]["choice"] = {
            "name": choice.name,
            "reason": choice.reason,
            "candidates": [
                # A candidate that was not tried has no numbers.
                {
                    k: v if not x.note or k in ("name", "note") else None
                    for k, v in x._asdict().items()
                }
                for x in choice.candidates
            ],
        }
    html = page_of(
        evaluations,
        results,
        title=title,
        num_bins=num_bins,
        notes=notes or {},
    )
    return Report(html, results)


def _predicted(
    batch: Examples, predictors: list[Predictor], told: list[Told]
) -> tuple:
    """Labels, outputs of each model, weights and inputs of one batch."""
    labels = labels_of(batch)
    for groups in told:
        groups.note(batch.inputs, len(labels))
    each = [predictor(batch) for predictor in predictors]
    weight, *others = (x.sample_weight for x in each)
    if not all(np.array_equal(weight, x) for x in others):
        raise value_error(
            "`models` must mask the same rows: report on each alone",
            masked=[
                None if x is None else int(np.size(x) - np.count_nonzero(x))
                for x in (weight, *others)
            ],
        )
    inputs = batch.inputs if hasattr(batch.inputs, "shape") else None
    return labels, [x.outputs for x in each], weight, inputs


def _of_labels(options: ReadOptions, votes: Any) -> ReadOptions:
    """The options for votes or for classes, checked."""
    check_flag("votes", votes)
    options = options._replace(labels="votes" if votes else "classes")
    check_reading(-1, options.ignore_class, options.from_logits, options.labels)
    return options


# A block is full with so many outputs, or bytes of inputs to show: beyond,
# the work of a block is much more than what each costs.
_OUTPUTS = 2**16
_BYTES = 2**24


def merged(batches: Iterable[tuple]) -> Iterator[tuple]:
    """Batches of `report_of_batches`, small ones of equal form joined."""
    waiting: list[list] = []
    for labels, outputs, weight, inputs in batches:
        batch = [
            None if x is None else to_numpy(x)
            for x in (labels, weight, inputs, *outputs)
        ]
        if waiting and _form(batch) != _form(waiting[0]):
            yield _joined(waiting)
            waiting = []
        waiting.append(batch)
        if sum(map(_fullness, waiting)) >= 1.0:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _form(batch: list) -> list[Any]:
    """Shape of a sample and type of each part; None of a part that lacks."""
    return [None if x is None else (x.shape[1:], x.dtype) for x in batch]


def _fullness(batch: list) -> float:
    _, _, inputs, *outputs = batch
    num_outputs = max(each.size for each in outputs)
    num_bytes = 0 if inputs is None else inputs.nbytes
    return max(num_outputs / _OUTPUTS, num_bytes / _BYTES)


def _joined(batches: list[list]) -> tuple:
    labels, weight, inputs, *outputs = (
        None if parts[0] is None else np.concatenate(parts)
        for parts in zip(*batches, strict=True)
    )
    return labels, outputs, weight, inputs

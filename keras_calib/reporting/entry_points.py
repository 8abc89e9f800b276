"""Reports of models and of predictions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.replicas import warn_of_differences
from keras_calib.inputs.checks import check_rank
from keras_calib.numerics.arrays import as_array
from keras_calib.predictions.batches import batches_of
from keras_calib.predictions.batches import check_data
from keras_calib.predictions.batches import count_batches
from keras_calib.predictions.batches import predict_batch
from keras_calib.predictions.collect import labels_of
from keras_calib.predictions.outputs import read_as
from keras_calib.reporting.builder import BLOCK
from keras_calib.reporting.builder import Progress
from keras_calib.reporting.builder import ReportBuilder
from keras_calib.reporting.document import Report

__all__ = ["report", "report_of_predictions"]


def report(
    models: Any,
    data: Any,
    *,
    calibrator: Any = None,
    selector: Any = None,
    from_logits: bool | None = None,
    ignore_class: int | None = None,
    output: str | int | None = None,
    class_names: Sequence[str] | None = None,
    num_bins: int = 15,
    num_mistakes: int = 12,
    batch_size: int = 32,
    steps: int | None = None,
    title: str = "Calibration report",
    verbose: int = 1,
) -> Report:
    """A page that says how far the confidence of models can be trusted.

    The data are read once, whatever the number of models, in memory that
    does not grow with them.

    Args:
        models: A Keras model, or a dict of them by name.
        data: Test data, which chose nothing, as in `Calibrator.fit_on`.
        calibrator: Fitted calibrator of the model's logits, or a dict of
            them by the name of the model; by default that of the selector,
            if it has one. It gets log-probabilities of models that return
            probabilities.
        selector: Fitted `SelectiveClassifier`, or a dict of them.
        from_logits: Whether the models return logits; None takes it from
            the losses that they were compiled with.
        ignore_class: Class id that does not count; None takes it from the
            losses.
        output: Name or position of the output, for models that have
            several.
        class_names: Names of the classes, in the order of their ids.
        num_bins: Number of bins of the calibration errors.
        num_mistakes: How many of the surest mistakes to show, with the
            images if the inputs are images.
        batch_size: Size of the batches of arrays.
        steps: How many batches, at most; None for all.
        title: Of the page.
        verbose: 1 for a progress bar, 0 for none.

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
    models = _by_name("models", models)
    readings = {
        name: read_as(model, from_logits, ignore_class, output)
        for name, model in models.items()
    }
    for rule, field in (
        ("`models` must all return logits or none", "from_logits"),
        ("`models` must all ignore the same class", "ignore_class"),
    ):
        told = {name: getattr(x, field) for name, x in readings.items()}
        if len(set(told.values())) > 1:
            raise ValueError(invalid(rule, **told))
    reading = next(iter(readings.values()))
    check_data(data, batch_size, steps)
    for model in models.values():
        warn_of_differences(model)
    making = ReportBuilder(
        list(models),
        calibrator=calibrator,
        selector=selector,
        from_logits=reading.from_logits,
        ignore_class=reading.ignore_class,
        class_names=class_names,
        num_bins=num_bins,
        num_mistakes=num_mistakes,
        title=title,
    )
    progress = Progress(count_batches(data, batch_size, steps), verbose)
    for batch in batches_of(data, batch_size, steps, reading.output):
        making.add(
            labels_of(batch),
            [
                predict_batch(model, batch, readings[name].output).outputs
                for name, model in models.items()
            ],
            batch.sample_weight,
            batch.inputs if hasattr(batch.inputs, "shape") else None,
        )
        progress.step()
    progress.end()
    return making.report()


def report_of_predictions(
    labels: Any,
    probs: Any,
    *,
    calibrator: Any = None,
    selector: Any = None,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
    class_names: Sequence[str] | None = None,
    inputs: Any = None,
    num_bins: int = 15,
    num_mistakes: int = 12,
    title: str = "Calibration report",
    verbose: int = 1,
) -> Report:
    """The same page of predictions that any framework has made.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels
            `(n, ..., num_classes)`.
        probs: Probabilities `(n, ..., num_classes)`, or `(n, ..., 1)` for
            the second of two classes; or a dict of them by the name of the
            model.
        calibrator: As in `report`.
        selector: As in `report`.
        from_logits: Whether `probs` are logits.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
        ignore_class: As in `report`.
        class_names: As in `report`.
        inputs: Images `(n, height, width, channels)` or texts `(n,)` to show
            the surest mistakes with, or None.
        num_bins: As in `report`.
        num_mistakes: As in `report`.
        title: As in `report`.
        verbose: As in `report`.

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
    outputs = _by_name("probs", probs)
    outputs = {k: as_array(v, "probs") for k, v in outputs.items()}
    labels = as_array(labels, "labels")
    columns = {"labels": labels, **outputs}
    if sample_weight is not None:
        sample_weight = as_array(sample_weight, "sample_weight")
        columns["sample_weight"] = sample_weight
    if inputs is not None:
        columns["inputs"] = inputs = np.asarray(inputs)
    for name, array in columns.items():
        check_rank(name, array, 1, "(n, ...)")
    lengths = {name: len(array) for name, array in columns.items()}
    if len(set(lengths.values())) > 1 or not len(labels):
        raise ValueError(
            invalid(
                "`labels`, `probs`, `sample_weight` and `inputs` must have "
                "the same length, at least 1",
                **lengths,
            )
        )
    making = ReportBuilder(
        list(outputs),
        calibrator=calibrator,
        selector=selector,
        from_logits=from_logits,
        ignore_class=ignore_class,
        class_names=class_names,
        num_bins=num_bins,
        num_mistakes=num_mistakes,
        title=title,
    )
    largest = max(array[0].size for array in outputs.values())
    rows = max(1, BLOCK // max(1, largest))
    starts = range(0, len(labels), rows)
    progress = Progress(len(starts), verbose)
    for start in starts:
        part = slice(start, start + rows)
        making.add(
            labels[part],
            [array[part] for array in outputs.values()],
            None if sample_weight is None else sample_weight[part],
            None if inputs is None else inputs[part],
        )
        progress.step()
    progress.end()
    return making.report()


def _by_name(what: str, given: Any) -> dict[str, Any]:
    """One for each model; a single one is of a model of no name."""
    if not isinstance(given, dict):
        return {"model": given}
    if not given:
        raise ValueError(
            invalid(f"`{what}` must be of at least one model", **{what: given})
        )
    return given

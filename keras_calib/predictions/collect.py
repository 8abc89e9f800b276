"""Predictions of a model on a data set, for fits and for displays."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy.special
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.backend.progress import with_progress
from keras_calib.inputs.batch import standardize
from keras_calib.inputs.checks import check_flag, check_integer, class_axis
from keras_calib.inputs.groups import as_groups, read_groups
from keras_calib.inputs.options import ReadOptions, filled
from keras_calib.inputs.weights import weight_of_rows
from keras_calib.numerics.arrays import as_array, to_numpy
from keras_calib.numerics.hashing import sample_pixels
from keras_calib.predictions.batches import (
    Examples,
    Predictor,
    as_arrays,
    batches_of,
    count_batches,
)
from keras_calib.predictions.columns import by_name, told_name
from keras_calib.predictions.options import DataOptions, facts_of
from keras_calib.predictions.outputs import (
    has_several_labels,
    read_as,
    to_model_logits,
)


def labels_of(batch: Examples) -> Any:
    """The labels of a batch; ValueError if it has none."""
    if batch.labels is None:
        raise value_error(
            "`data` must give labels: a tuple of arrays (x, y), or "
            "batches of such tuples",
            y=None,
        )
    return batch.labels


def rows_that_count(batch: Any, reading: ReadOptions) -> np.ndarray | None:
    """Mask of the samples that count, bool `(batch, ...)`; None for all.

    Those of weight 0, such as masked ones, and of the ignored class do not.
    They are of `Examples` or of `Predictions`.
    """
    if reading.ignore_class is not None:
        reading = reading._replace(names=("labels", "outputs"))
        given = batch.labels, batch.outputs, batch.sample_weight
        return standardize(*given, reading, np).counted
    axis = class_axis(batch.outputs, reading.axis, "outputs")
    if batch.sample_weight is None:
        return None
    lead = list(batch.outputs.shape)
    del lead[axis]
    weight = weight_of_rows(batch.sample_weight, tuple(lead))
    return weight.reshape(lead) > 0


def _drawn(labels: np.ndarray, batch: Examples, reading: ReadOptions) -> tuple:
    """Labels, outputs and weights of some pixels of each image."""
    count: Any = reading.pixels_per_image
    outputs, weight = to_numpy(batch.outputs), batch.sample_weight
    images, num_classes = len(outputs), outputs.shape[-1]
    valid = rows_that_count(batch, reading)
    if valid is not None:
        valid = ops.convert_to_tensor(valid.reshape(images, -1))
    outputs = outputs.reshape(images, -1, num_classes)
    soft = num_classes > 1 and labels.size == outputs.size
    labels = labels.reshape(images, outputs.shape[1], -1)
    ids = labels.argmax(-1) if soft else labels[..., 0]
    labels = labels if soft else ids
    ids = ops.convert_to_tensor(ids.astype("int32"))
    places = sample_pixels(ids, valid, count, reading.seed)
    rows, places = np.arange(images)[:, None], to_numpy(places)
    if weight is not None:
        weight = to_numpy(weight)
        if weight.size == images * outputs.shape[1]:
            weight = weight.reshape(images, -1)[rows, places]
    return labels[rows, places], outputs[rows, places], weight


class ModelRun:
    """A model on data, which runs when its batches are asked for.

    Args:
        model: A Keras model.
        data: Data with labels, as in `Predictions.of_model`.
        options: Those of `DataOptions`.

    Attributes:
        reading: How outputs are read.
        beside: Columns that are no part of the data, as they were given.
        facts: What is known of the predictions and is no column.
    """

    def __init__(self, model: Any, data: Any, options: Mapping[str, Any]):
        given = self._options = filled("of_model", options, DataOptions)
        by_label = given.multi_label
        if by_label is None:
            by_label = has_several_labels(
                model, given.from_logits, given.output
            )
        check_flag("multi_label", by_label)
        reading = read_as(
            model, given.from_logits, given.ignore_class, given.output, by_label
        )
        pixels = given.pixels_per_image
        if pixels is not None:
            check_integer("pixels_per_image", pixels, 1)
            if by_label:
                raise value_error(
                    "`pixels_per_image` must be None with several labels",
                    pixels_per_image=pixels,
                )
        self.reading = reading._replace(
            pixels_per_image=pixels, seed=given.seed
        )
        named = (getattr(x, "class_names", None) for x in (given, data, model))
        names = next((x for x in named if x is not None), None)
        told = {"multi_label": by_label, "votes": given.votes}
        told |= {"ignore_class": reading.ignore_class, "class_names": names}
        self.facts = facts_of(reading.from_logits, told)
        self._model, self._data = model, data
        columns: dict[Any, Any] = by_name(given.groups)
        columns |= {"units": given.units, "ids": given.ids}
        self.beside = {k: x for k, x in columns.items() if x is not None}
        self._total = count_batches(data, given.batch_size, given.steps)

    def batches(self) -> Iterator[dict[Any, Any]]:
        """The columns of each batch, by the names of `Predictions`."""
        return (columns for (columns,) in together([self]))

    def read(self) -> Iterator[Examples]:
        """The batches of the data, with a progress bar."""
        asked, output = self._options, self.reading.output
        arrays = [k for k, x in self.beside.items() if not callable(x)]
        given = [k if isinstance(k, str) else "groups" for k in arrays]
        batches = batches_of(
            self._data, asked.batch_size, asked.steps, output, given
        )
        return with_progress(batches, self._total, asked.verbose)

    def predictor(self) -> Predictor:
        """The model, to predict batch by batch."""
        counts_padding = self.reading.ignore_class is None
        return Predictor(self._model, self.reading.output, counts_padding)

    def examples(self) -> Iterator[Examples]:
        """The batches of the data with predictions."""
        return map(self.predictor(), self.read())

    def columns(self, batch: Examples) -> dict[str, Any]:
        """Labels, outputs, weights or None, and inputs of a batch."""
        labels = as_array(labels_of(batch), "labels")
        outputs, weight = batch.outputs, batch.sample_weight
        if self.reading.pixels_per_image is not None and outputs.ndim > 2:
            labels, outputs, weight = _drawn(labels, batch, self.reading)
        return {
            "labels": labels,
            "outputs": outputs,
            "sample_weight": None if weight is None else to_numpy(weight),
            "inputs": batch.inputs,
        }

    def kept_inputs(self) -> Any:
        """The inputs of all rows, if they are one array in memory."""
        inputs, *_ = as_arrays(self._data) or (None,)
        return inputs if isinstance(inputs, np.ndarray) else None


class _Beside:
    """Columns that come beside a data set, by arrays or by functions.

    A function has those of the rows of a batch from its inputs.
    """

    def __init__(self, columns: Mapping[Any, Any]):
        given = columns.items()
        self._functions = {k: x for k, x in given if callable(x)}
        self._arrays = {k: as_groups(x) for k, x in given if not callable(x)}
        self._row = 0
        # Different values so far, with their types: True is 1 to a dict.
        self._known: dict[Any, dict[tuple[type, Any], None]] = {}

    def next(self, inputs: Any, count: int) -> dict[Any, np.ndarray]:
        """Those of the next rows, which have these inputs."""
        rows, found = slice(self._row, self._row + count), {}
        self._row += count
        for name, function in self._functions.items():
            values = as_groups(function(inputs))
            if values.shape != (count,):
                raise value_error(
                    f"`{told_name(name)}` must return a group for each row of "
                    "a batch",
                    shape=values.shape,
                    rows=count,
                )
            # As an array, numbers beside texts would become texts.
            found[name] = as_groups(values.tolist())
            known = self._known.setdefault(name, {})
            known |= dict.fromkeys((type(x), x) for x in values.tolist())
            if len({kind for kind, _ in known}) > 1:
                listed = [x for _, x in known]
                read_groups(listed, (len(listed),), told_name(name))
        return found | {k: x[rows] for k, x in self._arrays.items()}

    def check_end(self) -> None:
        """Raises ValueError unless each row had one, and none is left."""
        for name, x in self._arrays.items():
            if len(x) != self._row:
                raise value_error(
                    f"`{told_name(name)}` must have a value for each row of "
                    "`data`",
                    values=len(x),
                    rows=self._row,
                )


def together(runs: list[ModelRun]) -> Iterator[list[dict[Any, Any]]]:
    """The columns of each batch for several models, of data read once."""
    beside = _Beside(runs[0].beside)
    predictors = [run.predictor() for run in runs]
    for batch in runs[0].read():
        pairs = zip(runs, predictors, strict=True)
        each = [run.columns(predictor(batch)) for run, predictor in pairs]
        own = beside.next(batch.inputs, len(each[0]["labels"]))
        yield [columns | own for columns in each]
    beside.check_end()


def in_other_form(part: Any) -> np.ndarray:
    """Logits of predictions in memory as a fit takes them, or probabilities.

    Logits of a single output, and of each of several labels, are log-odds.
    """
    outputs, counts = part.outputs, part.sample_weight
    single = part.multi_label or outputs.shape[-1] == 1
    if part.from_logits:
        if single:
            return scipy.special.expit(outputs)
        return scipy.special.softmax(outputs, axis=-1)
    if part.multi_label:
        if counts is not None:
            counts = weight_of_rows(counts, outputs.shape) > 0
            counts = counts.reshape(outputs.shape)
        outputs = outputs[..., None]
    else:
        labels = "votes" if part.votes else "classes"
        reading = ReadOptions(ignore_class=part.ignore_class, labels=labels)
        counts = rows_that_count(part, reading)
    logits = to_numpy(to_model_logits(outputs, False, counts, part.called))
    if single:
        logits = logits[..., 1] - logits[..., 0]
    return logits.reshape(part.outputs.shape)

"""Predictions of a model on a data set, for fits and for displays."""

from collections.abc import Iterator, Mapping
from typing import Any, Unpack

import numpy as np
import scipy.special
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.progress import with_progress
from keras_calib.inputs.batch import standardize
from keras_calib.inputs.checks import check_flag, check_integer, class_axis
from keras_calib.inputs.groups import as_groups
from keras_calib.inputs.options import ReadOptions
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
from keras_calib.predictions.outputs import (
    choose_output,
    has_several_labels,
    loss_of,
    read_as,
    to_model_logits,
)
from keras_calib.predictions.predictions import ModelOptions
from keras_calib.predictions.row_order import Told


def labels_of(batch: Examples) -> Any:
    """The labels of a batch; ValueError if it has none."""
    if batch.labels is None:
        raise value_error(
            "`data` must give labels: a tuple of arrays (x, y), or "
            "batches of such tuples",
            y=None,
        )
    return batch.labels


def logits_of(batch: Examples, reading: ReadOptions) -> np.ndarray:
    """The logits of a batch of predictions, one channel for two classes."""
    outputs, counts = batch.outputs, None
    if not reading.from_logits:
        counts = rows_that_count(batch, reading)
    logits = to_numpy(to_model_logits(outputs, reading.from_logits, counts))
    if outputs.shape[-1] == 1:
        # One-channel labels can be probabilities of the second class.
        logits = logits[..., 1:] - logits[..., :1]
    return logits


def rows_that_count(batch: Examples, reading: ReadOptions) -> np.ndarray | None:
    """Mask of the samples that count, bool `(batch, ...)`; None for all.

    Those of weight 0, such as masked ones, and of the ignored class do not.
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
        groups: Groups of the rows, as there.
        units: Units of the rows, in the same forms.
        multi_label: Whether each output is a label of its own; None takes it
            from the compiled loss.
        **options: As in `ModelOptions`.

    Attributes:
        reading: How outputs are read.
        multi_label: Whether each output is a label of its own.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        groups: Any = None,
        units: Any = None,
        *,
        multi_label: bool | None = None,
        **options: Unpack[ModelOptions],
    ):
        if unknown := {*options} - {*ModelOptions.__annotations__}:
            raise type_error(
                f"`{min(unknown)}` must be an argument of `of_model`",
                arguments=sorted(ModelOptions.__annotations__),
            )
        output = options.get("output")
        if multi_label is None:
            multi_label = _are_labels(model, options.get("from_logits"), output)
        check_flag("multi_label", multi_label)
        reading = read_as(
            model,
            options.get("from_logits"),
            options.get("ignore_class"),
            output,
            multi_label,
        )
        pixels = options.get("pixels_per_image")
        if pixels is not None:
            check_integer("pixels_per_image", pixels, 1)
            if multi_label:
                raise value_error(
                    "`pixels_per_image` must be None with several labels",
                    pixels_per_image=pixels,
                )
        self.reading = reading._replace(
            pixels_per_image=pixels, seed=options.get("seed", 0)
        )
        self.multi_label = multi_label
        self._model, self._data = model, data
        self._batch_size = options.get("batch_size", 32)
        self._steps = options.get("steps")
        self._verbose = options.get("verbose", "auto")
        beside: dict[Any, Any] = {
            ("groups", k): x for k, x in _by_name(groups).items()
        }
        if units is not None:
            beside["units"] = units
        self._told = {k: x for k, x in beside.items() if callable(x)}
        self._given = {
            k: as_groups(x) for k, x in beside.items() if k not in self._told
        }
        self._total = count_batches(data, self._batch_size, self._steps)

    def batches(self) -> Iterator[dict[Any, Any]]:
        """The columns of each batch, by the names of `Predictions`."""
        return (columns for (columns,) in together([self]))

    def predictor(self) -> Predictor:
        """The model, to predict batch by batch."""
        return Predictor(self._model, self.reading.output)

    def read(self) -> Iterator[Examples]:
        """The batches of the data, with a progress bar."""
        batches = batches_of(
            self._data,
            self._batch_size,
            self._steps,
            self.reading.output,
            bool(self._given),
        )
        return with_progress(batches, self._total, self._verbose)

    def examples(self) -> Iterator[Examples]:
        """The batches of the data with predictions."""
        return map(self.predictor(), self.read())

    def beside(self) -> "_Beside":
        """What comes beside the rows, batch by batch."""
        return _Beside(self._told, self._given)

    def columns(self, batch: Examples) -> dict[str, Any]:
        """Labels, outputs, weights or None, and inputs of a batch."""
        labels = as_array(labels_of(batch), "labels")
        weight = batch.sample_weight
        outputs = batch.outputs
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
        arrays = as_arrays(self._data)
        inputs = None if arrays is None else arrays[0]
        return inputs if isinstance(inputs, np.ndarray) else None


class _Beside:
    """Groups and units of the rows of each batch, in their order."""

    def __init__(self, told: dict[Any, Any], given: dict[Any, np.ndarray]):
        self._told = {k: Told(x, _name_of(k)) for k, x in told.items()}
        self._given, self._rows = given, 0

    def next(self, inputs: Any, count: int) -> dict[Any, np.ndarray]:
        """Those of the next rows."""
        for values in self._told.values():
            values.note(inputs, count)
        rows = slice(self._rows, self._rows + count)
        self._rows += count
        found = {k: x.take() for k, x in self._told.items()}
        return found | {k: x[rows] for k, x in self._given.items()}

    def check_end(self) -> None:
        """Raises ValueError unless each row had one, and none is left."""
        for name, x in self._given.items():
            if len(x) != self._rows:
                raise value_error(
                    f"`{_name_of(name)}` must have a value for each row of "
                    "`data`",
                    values=len(x),
                    rows=self._rows,
                )


def together(runs: list[ModelRun]) -> Iterator[list[dict[Any, Any]]]:
    """The columns of each batch for several models, of data read once."""
    first = runs[0]
    beside, predictors = first.beside(), [run.predictor() for run in runs]
    for batch in first.read():
        each = [
            run.columns(predictor(batch))
            for run, predictor in zip(runs, predictors, strict=True)
        ]
        own = beside.next(batch.inputs, len(each[0]["labels"]))
        yield [columns | own for columns in each]
    beside.check_end()


def _are_labels(model: Any, from_logits: Any, output: Any) -> bool:
    """Whether the loss of a model tells that its outputs are labels."""
    loss = loss_of(model, choose_output(model, output))
    # With these a binary loss may be of classes.
    said = from_logits, getattr(model, "returns_logits", None)
    if any(isinstance(x, bool) for x in said):
        return getattr(loss, "several_labels", False)
    return has_several_labels(model, output)


def _by_name(groups: Any) -> dict[str, Any]:
    if groups is None:
        return {}
    if isinstance(groups, Mapping):
        return {str(k): x for k, x in groups.items()}
    return {"group": groups}


def _name_of(name: Any) -> str:
    return name if isinstance(name, str) else f"groups[{name[1]!r}]"


def logits_of_part(part: Any) -> np.ndarray:
    """Logits of predictions in memory, as a fit takes them."""
    outputs = part.outputs
    if part.multi_label:
        counts = part.sample_weight
        if counts is not None:
            counts = weight_of_rows(counts, outputs.shape) > 0
            counts = counts.reshape(outputs.shape)[..., None]
        pairs = to_model_logits(outputs[..., None], False, counts)
        return to_numpy(pairs[..., 1] - pairs[..., 0])
    reading = ReadOptions(
        False,
        ignore_class=part.ignore_class,
        labels="votes" if part.votes else "classes",
    )
    batch = Examples(None, part.labels, None, part.sample_weight, outputs)
    return logits_of(batch, reading)


def probs_of_part(part: Any) -> np.ndarray:
    """Probabilities of predictions in memory, of logits."""
    if part.multi_label or part.outputs.shape[-1] == 1:
        return scipy.special.expit(part.outputs)
    return scipy.special.softmax(part.outputs, axis=-1)

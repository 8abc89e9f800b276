"""Batches of a data set in any form, with a model's predictions."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_calib.backend.errors import type_error, value_error, warn
from keras_calib.backend.keras_internals import keras_mask
from keras_calib.backend.predict import makes_mask, mask_of_output, preparation
from keras_calib.backend.progress import with_progress
from keras_calib.backend.replicas import shared_by_replicas, warn_of_differences
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.weights import masked_weight
from keras_calib.numerics.arrays import to_numpy
from keras_calib.predictions.outputs import ChosenOutput, choose_output

# TensorFlow's cardinalities for endless and unknown.
_ENDLESS, _UNKNOWN = -1, -2


class Examples(NamedTuple):
    """One batch of a data set, with or without predictions of a model.

    Attributes:
        inputs: Inputs as the model takes them.
        labels: Labels without the index; None if the data set has none.
        index: Numbers of the examples, NumPy `(batch,)`, or None.
        sample_weight: Weights, or None. With outputs, 0 for masked rows.
        outputs: Outputs of the model, NumPy `(batch, ...)`, or None.
    """

    inputs: Any
    labels: Any
    index: Any
    sample_weight: Any
    outputs: Any = None


def split_index(y: Any) -> tuple[Any, Any]:
    """Labels and index of `{"label", "index"}`; None for no index."""
    if not isinstance(y, dict):
        return y, None
    if set(y) != {"label", "index"}:
        raise value_error(
            "`y` must be labels, or a dict "
            '{"label": labels, "index": numbers of the examples}; for a '
            "model with several outputs, name one by `output`",
            keys=sorted(map(str, y)),
        )
    return y["label"], y["index"]


def check_reread(name: str, data: Any) -> None:
    """Raises ValueError if a data set can be read only once."""
    if isinstance(data, Iterator):
        raise value_error(
            f"`{name}` must be data that can be read again and again, "
            "not an iterator",
            **{name: type(data).__name__},
        )


def has_end(data: Any) -> bool:
    """Whether a data set, or arrays, are known to end."""
    try:
        return count_batches(data) is not None
    except (TypeError, ValueError):
        # `data` is no data set, or endless.
        return False


def batches_of(
    data: Any,
    batch_size: int = 32,
    steps: int | None = None,
    output: ChosenOutput | None = None,
    beside: Sequence[str] = (),
) -> Iterator[Examples]:
    """The batches of a data set, read once, without empty ones.

    Args:
        data: Arrays as a tuple `(x, y)` or `(x, y, sample_weight)`, cut into
            batches here. Or batches of such tuples: a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, a generator, a torch loader, a list.
            Arrays may be lists of numbers or strings; `x` may be a tuple or
            dict of arrays; `y` may be `{"label", "index"}`, or the labels of
            several outputs.
        batch_size: Batch size for arrays.
        steps: Largest number of batches; None for all.
        output: The output, of several, whose labels and weights are taken.
        beside: Names of what is given beside the rows, whose order must then
            be fixed; the data are read twice.
    """
    count_batches(data, batch_size, steps)

    def read():
        return itertools.islice(_each_batch(data, batch_size), steps)

    start = 0
    for batch in _checked_order(read, data, beside) if beside else read():
        if isinstance(batch, list):
            # Torch's loaders return lists.
            batch = tuple(batch)
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        x, y, weight = map(_with_arrays, (x, y, weight))
        index = None
        if isinstance(y, dict) and set(y) == {"label", "index"}:
            y, index = split_index(y)
            index = to_numpy(index).reshape(-1)
            if beside:
                if not np.array_equal(index, start + np.arange(len(index))):
                    told = {"index": index[:4].tolist(), "expected": start}
                    raise _no_order(beside, ", that of their index: ", **told)
                start += len(index)
            if isinstance(weight, dict):
                weight = weight["label"]
        if output is not None:
            y, weight = output.of(y, "y"), output.of(weight, "sample_weight")
        y, _ = split_index(y)
        if getattr(y, "ndim", None) == 0 or isinstance(y, int | float | str):
            raise value_error(
                "`data` must give batches, not single examples: call `batch` "
                "of a `tf.data.Dataset`",
                **{"y.shape": ()},
            )
        if _length(x):
            yield Examples(x, y, index, weight)


def _checked_order(
    read: Callable[[], Iterable[Any]], data: Any, beside: Sequence[str]
) -> Iterator[Any]:
    """The batches of `read`, which must have one order in two passes.

    The first pass keeps a hash of each batch. Arrays and lists of batches
    have one order. Errors name what is `beside` the rows.

    Raises:
        ValueError: At the first batch that is another one, and before the
            first for data that are shuffled or that can be read only once.
    """
    if isinstance(data, tuple | list):
        yield from read()
        return
    # `EpochBatches` has one order in two passes, but that of its epoch.
    shuffled = _is_shuffled(data) or hasattr(data, "set_epoch")
    if isinstance(data, Iterator) or shuffled:
        how = "shuffled" if shuffled else "read once"
        raise _no_order(beside, ": ", data=how)
    before = list(map(_digest, read()))
    count = 0
    for count, batch in enumerate(read(), start=1):
        if count > len(before) or _digest(batch) != before[count - 1]:
            told = ", and two passes over the data differ: "
            raise _no_order(beside, told, batch=count - 1)
        yield batch


def _no_order(beside: Sequence[str], told: str, **received: Any) -> ValueError:
    name = beside[0]
    return value_error(
        f"`{name}` must belong to rows in a fixed order{told}give a function "
        f"of the inputs of a batch, such as `{name}=lambda x: "
        'x["site"]`, or data in a fixed order',
        **received,
    )


def _digest(batch: Any) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for part in keras.tree.flatten(batch):
        if part is not None:
            array = np.asarray(to_numpy(part))
            if array.dtype.hasobject:
                array = array.astype(str)
            found.update(np.ascontiguousarray(array).tobytes())
    return found.digest()


def _is_shuffled(data: Any) -> bool:
    """Whether a `tf.data.Dataset` has a step that shuffles.

    False if unknown. Seen in TensorFlow 2.21: `_inputs` and the classes' names.
    """
    if "shuffle" in type(data).__name__.lower():
        return True
    try:
        return any(map(_is_shuffled, data._inputs()))
    except (AttributeError, TypeError):
        return False


def predict_batches(
    model: keras.Model,
    data: Any,
    batch_size: int = 32,
    steps: int | None = None,
    output: str | int | ChosenOutput | None = None,
    verbose: str | int = 0,
) -> Iterator[Examples]:
    """The batches of a data set with predictions of a model.

    Each example is predicted once, in order, in inference mode. Rows that
    layers mask, such as padded steps, have a weight of 0, as in `evaluate`.
    Under `MirroredStrategy` the replicas share the examples of a batch. A
    RuntimeWarning says if they would predict different things.

    Arguments are those of `batches_of`; `output` is the name or position of
    the output to read, for a model that has several.
    """
    chosen = choose_output(model, output)
    predictor = Predictor(model, chosen)
    total = count_batches(data, batch_size, steps)
    batches = batches_of(data, batch_size, steps, chosen)
    yield from with_progress(map(predictor, batches), total, verbose)


class Predictor:
    """A model in inference mode, which predicts batch by batch.

    Args:
        model: A Keras model.
        output: The output to read, of several.
        counts_padding: Whether no class is ignored, as that of padding, and a
            lost mask is worth a warning.

    Warns:
        RuntimeWarning: If replicas would predict different things, or the
            model masks padded steps and loses the mask.
    """

    def __init__(
        self,
        model: keras.Model,
        output: ChosenOutput | None = None,
        counts_padding: bool = False,
    ):
        warn_of_differences(model)
        self._may_warn = counts_padding and makes_mask(model)
        self._model, self._output = model, output
        self._chosen = _only if output is None else output.of
        self._prepare = preparation(model)

    def __call__(self, batch: Examples) -> Examples:
        """The batch with predictions; rows that layers mask weigh 0."""
        count, inputs = _length(batch.inputs), batch.inputs
        model = self._model
        predict = type(model).predict_on_batch
        by_keras = predict is keras.Model.predict_on_batch
        if self._prepare is not None:
            inputs, by_keras = self._prepare(inputs), True
            predict = keras.Model.predict_on_batch
        # A model with its own method may prepare its inputs, so it gets them
        # as they are, and every replica predicts all.
        shared = (
            shared_by_replicas(model, inputs, count) if by_keras else inputs
        )
        outputs = predict(model, shared)
        if self._output is None and isinstance(outputs, dict | list | tuple):
            # Some models do not say how many outputs they have before they
            # run.
            choose_output(model, None, outputs)
        outputs = self._chosen(outputs)
        mask = keras_mask(outputs, len(outputs.shape) - 1)
        if by_keras:
            name = self._output and self._output.name
            mask = mask_of_output(model, name, self._chosen, inputs)
        outputs = to_numpy(outputs)
        if outputs.ndim == 0 or len(outputs) < count:
            raise value_error(
                "the model must return a row of outputs for each example",
                examples=count,
                **{"outputs.shape": outputs.shape},
            )
        # If each replica has predicted the whole batch, the first result is
        # kept.
        outputs = outputs[:count]
        weight = masked_weight(batch.sample_weight, mask, outputs.shape[:-1])
        if self._may_warn and weight is None and outputs.ndim > 2:
            self._may_warn = False
            warn(
                "The model masks padded steps, but a layer behind that, such "
                "as a convolution, loses the mask, so that padding counts: "
                "give it the `sample_weight` 0, or a label for `ignore_class`"
            )
        return batch._replace(outputs=outputs, sample_weight=weight)


def _only(outputs: Any) -> Any:
    (output,) = keras.tree.flatten(outputs)
    return output


def count_batches(
    data: Any, batch_size: int = 32, steps: int | None = None
) -> int | None:
    """Checks the data; returns the number of batches, None if unknown."""
    check_integer("batch_size", batch_size, 1)
    if steps is not None:
        check_integer("steps", steps, 1)
    if (arrays := as_arrays(data)) is not None:
        count = -(-_length(arrays) // batch_size)
    elif isinstance(data, keras.utils.PyDataset):
        count = _size_of(data)
    elif not isinstance(data, Iterable) or hasattr(data, "shape"):
        raise type_error(
            "`data` must be a tuple of arrays (x, y), or a data set of batches",
            data=type(data).__name__,
        )
    elif callable(cardinality := getattr(data, "cardinality", None)):
        count = int(cardinality())
    else:
        try:
            count = len(data)  # type: ignore[arg-type]  # caught below
        except TypeError:
            # A torch loader of data without length raises too.
            count = _UNKNOWN
    if count == _ENDLESS:
        if steps is None:
            raise value_error(
                "`steps` must be given for data without an end",
                data=type(data).__name__,
            )
        return steps
    if count == _UNKNOWN:
        return None
    return count if steps is None else min(count, steps)


def _size_of(dataset: keras.utils.PyDataset) -> int:
    try:
        count = dataset.num_batches
    except NotImplementedError:
        return _ENDLESS
    return _ENDLESS if count is None else count


def _each_batch(data: Any, batch_size: int) -> Iterator:
    """The batches as given, forever if the data are endless."""
    if (arrays := as_arrays(data)) is not None:
        for start in range(0, _length(arrays), batch_size):
            part = slice(start, start + batch_size)
            yield keras.tree.map_structure(
                lambda x, part=part: None if x is None else x[part], arrays
            )
    elif isinstance(data, keras.utils.PyDataset):
        size = _size_of(data)
        places = itertools.count() if size == _ENDLESS else range(size)
        yield from (data[i] for i in places)
    else:
        yield from data


def as_arrays(data: Any) -> tuple | None:
    """The arrays of a tuple; None for a data set of batches."""
    if not isinstance(data, tuple):
        return None
    if len(data) not in (1, 2, 3):
        raise type_error(
            "`data` must be a tuple of arrays (x, y) or (x, y, "
            "sample_weight), or a data set of batches",
            **{"parts of the tuple": len(data)},
        )
    return tuple(map(_with_arrays, data))


def _with_arrays(structure: Any) -> Any:
    """Lists of numbers and of strings as arrays, in any structure."""
    if isinstance(structure, dict):
        return {key: _with_arrays(x) for key, x in structure.items()}
    if isinstance(structure, list | tuple):
        if not _is_plain(structure) or _are_several_texts(structure):
            return tuple(map(_with_arrays, structure))
        try:
            return np.asarray(structure)
        except ValueError as error:
            raise value_error(
                "lists in `data` must have rows of one length",
                rows=len(structure),
            ) from error
    if hasattr(structure, "iloc") or (
        hasattr(structure, "detach") and keras.backend.backend() != "torch"
    ):
        # A pandas table, or a torch tensor on another backend.
        return np.asarray(structure)
    return structure


def _are_several_texts(x: Any) -> bool:
    """Whether it is a tuple of lists of strings, as for pairs of texts."""
    first = x[0] if isinstance(x, tuple) and x else None
    return isinstance(first, list) and any(
        isinstance(text, str | bytes) for text in first[:1]
    )


def _is_plain(x: Any) -> bool:
    """Whether these are numbers, strings, or lists of them."""
    if isinstance(x, list | tuple):
        return all(map(_is_plain, x[:1]))
    shape: Any = getattr(x, "shape", ())
    return isinstance(x, str | bytes) or not (
        x is None or isinstance(x, dict) or shape
    )


def _length(arrays: Any) -> int:
    """The number of examples."""
    counts = set()
    for x in keras.tree.flatten(arrays):
        if x is None:
            continue
        shape = getattr(x, "shape", None)
        if shape is None or not len(shape):
            raise type_error(
                "`data` must be arrays, or tuples, lists and dicts of "
                "them, one row for each example",
                part=type(x).__name__,
            )
        counts.add(len(x) if shape[0] is None else int(shape[0]))
    if len(counts) != 1:
        raise value_error(
            "arrays of `data` must have the same length", lengths=sorted(counts)
        )
    return counts.pop()


def merged(
    batches: Iterable[dict], fullness: Callable[[dict], float]
) -> Iterator[dict]:
    """Batches of columns, small ones of equal form joined.

    `fullness` of a batch is its share of the size from which on it is given.
    """
    waiting: list[dict] = []
    for batch in batches:
        if waiting and _form(batch) != _form(waiting[0]):
            yield _joined(waiting)
            waiting = []
        waiting.append(batch)
        if sum(map(fullness, waiting)) >= 1.0:
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


def _joined(batches: list[dict]) -> dict:
    return {
        k: None if x is None else np.concatenate([b[k] for b in batches])
        for k, x in batches[0].items()
    }

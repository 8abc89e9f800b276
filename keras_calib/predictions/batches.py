"""What a model predicts on a data set, batch by batch, in its order."""

import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import keras

from keras_calib.checks import check_integer
from keras_calib.checks import invalid
from keras_calib.checks import shape_of
from keras_calib.numerics import to_numpy

__all__ = [
    "Batch",
    "batches_of",
    "check_data",
    "check_reread",
    "cut_arrays",
    "each_batch",
    "has_end",
    "num_batches",
    "predict_batch",
    "predict_batches",
    "split_index",
]


class Batch(NamedTuple):
    """One batch of a data set, without or with what a model predicts.

    Attributes:
        inputs: As the model takes them.
        labels: Without the index; None if the data set has none.
        index: Numbers of the examples, NumPy `(batch,)`, or None.
        sample_weight: Weights, or None.
        outputs: What the model predicts, NumPy `(batch, ...)`, or None.
    """

    inputs: Any
    labels: Any
    index: Any
    sample_weight: Any
    outputs: Any = None


def split_index(y: Any) -> tuple[Any, Any]:
    """Labels and index of `{"label", "index"}`; of plain labels, no index.

    Raises:
        ValueError: If `y` is a dict of other keys.
    """
    if not isinstance(y, dict):
        return y, None
    if set(y) != {"label", "index"}:
        raise ValueError(
            invalid(
                '`y` must be labels, or a dict {"label": labels, '
                '"index": numbers of the examples}',
                keys=sorted(y),
            )
        )
    return y["label"], y["index"]


def check_data(
    data: Any, batch_size: int = 32, steps: int | None = None
) -> None:
    """Raises unless `batches_of` takes these.

    Raises:
        TypeError: If `data` is no data set.
        ValueError: If it has no end and `steps` is None, or arrays differ in
            length.
    """
    check_integer("batch_size", batch_size, 1)
    if isinstance(data, tuple):
        _length_of(data)
    elif isinstance(data, Iterable) and not hasattr(data, "shape"):
        if steps is None:
            num_batches(data, "data must have an end")
    else:
        raise TypeError(
            invalid(
                "data must be a tuple of arrays (x, y), or a data set of "
                "batches",
                data=type(data).__name__,
            )
        )


def check_reread(name: str, data: Any) -> None:
    """Raises if a data set can be read once only.

    Raises:
        ValueError: If it is an iterator, such as a generator.
    """
    if isinstance(data, Iterator):
        raise ValueError(
            invalid(
                f"`{name}` must be data that can be read again and again, "
                "not an iterator",
                **{name: type(data).__name__},
            )
        )


def has_end(data: Any) -> bool:
    """Whether a data set, or arrays, are known to end."""
    if isinstance(data, tuple):
        return True
    try:
        return num_batches(data, "") is not None
    except ValueError:
        # It has none.
        return False


def batches_of(
    data: Any, batch_size: int = 32, steps: int | None = None
) -> Iterator[Batch]:
    """The batches of a data set, once through.

    Args:
        data: A tuple of arrays `(x, y)` or `(x, y, sample_weight)`, cut into
            batches here; or batches of such tuples: a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, a list.
        batch_size: Size of the batches of arrays.
        steps: How many batches, at most; None for all.

    Yields:
        Batches without outputs.

    Raises:
        TypeError: If `data` is none of these.
        ValueError: If it has no end and `steps` is None, or labels are a
            dict of other keys than label and index.
    """
    check_data(data, batch_size, steps)
    is_arrays = isinstance(data, tuple)
    batches = cut_arrays(data, batch_size) if is_arrays else each_batch(data)
    for batch in itertools.islice(batches, steps):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        labels, index = split_index(y)
        if index is not None:
            index = to_numpy(index).reshape(-1)
            if isinstance(sample_weight, dict):
                sample_weight = sample_weight["label"]
        yield Batch(x, labels, index, sample_weight)


def predict_batches(
    model: keras.Model,
    data: Any,
    batch_size: int = 32,
    steps: int | None = None,
) -> Iterator[Batch]:
    """The batches of a data set with what a model predicts in inference mode.

    Args:
        model: A Keras model with one output.
        data: As in `batches_of`.
        batch_size: Size of the batches of arrays.
        steps: How many batches, at most; None for all.

    Yields:
        Batches with outputs.

    Raises:
        TypeError: As `batches_of`, and if the model has several outputs.
        ValueError: As `batches_of`.
    """
    for batch in batches_of(data, batch_size, steps):
        yield predict_batch(model, batch)


def predict_batch(model: keras.Model, batch: Batch) -> Batch:
    """A batch with what a model predicts in inference mode.

    Raises:
        TypeError: If the model has several outputs.
    """
    outputs = model.predict_on_batch(batch.inputs)
    if isinstance(outputs, list | tuple) and len(outputs) == 1:
        # Of keras.Model(model.inputs, model.outputs), once it was loaded.
        outputs = outputs[0]
    if isinstance(outputs, dict | list | tuple):
        raise TypeError(
            invalid(
                "the model must have one output",
                outputs=keras.tree.map_structure(shape_of, outputs),
            )
        )
    outputs = to_numpy(outputs)
    # Under a strategy each replica has predicted the whole batch.
    count = len(keras.tree.flatten(batch.inputs)[0])
    return batch._replace(outputs=outputs[:count])


def cut_arrays(arrays: tuple, size: int) -> Iterator[tuple]:
    """Arrays `(x, y)` or `(x, y, sample_weight)` as batches."""
    for start in range(0, _length_of(arrays), size):
        part = slice(start, start + size)
        yield keras.tree.map_structure(
            lambda x, part=part: None if x is None else x[part], arrays
        )


def _length_of(arrays: tuple) -> int:
    flat = [x for x in keras.tree.flatten(arrays) if x is not None]
    counts = {len(x) for x in flat}
    if len(counts) != 1:
        raise ValueError(
            invalid("arrays must have the same length", lengths=sorted(counts))
        )
    return counts.pop()


def each_batch(dataset: Iterable) -> Iterator:
    """The batches of a data set as they come, for ever if it has no end."""
    if isinstance(dataset, keras.utils.PyDataset):
        size = _length(dataset)
        places = itertools.count() if size is None else range(size)
        return (dataset[i] for i in places)
    return iter(dataset)


def num_batches(dataset: Iterable, rule: str) -> int | None:
    """The number of batches, None if unknown.

    Args:
        dataset: Any iterable of batches.
        rule: Of the error if the data set has no end.

    Raises:
        ValueError: If the data set does not end.
    """
    endless = False
    if isinstance(dataset, keras.utils.PyDataset):
        count = _length(dataset)
        endless = count is None
    elif callable(getattr(dataset, "cardinality", None)):
        count = int(dataset.cardinality())
        # TensorFlow's word for no end.
        endless = count == -1
    else:
        try:
            count = len(dataset)
        except TypeError:
            # Also of a loader whose data have no length.
            count = None
    if endless:
        raise ValueError(invalid(rule, data=type(dataset).__name__))
    return None if count is None or count < 0 else count


def _length(dataset: keras.utils.PyDataset) -> int | None:
    """The number of batches, None if there is no end."""
    try:
        return dataset.num_batches
    except NotImplementedError:
        return None

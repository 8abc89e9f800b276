"""The batches of a data set in every form, and what a model predicts on them.

Displays, reports, fits, loggers and examples all read data sets here.
"""

import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import keras

from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error
from keras_calib.backend.replicas import shared_by_replicas
from keras_calib.backend.replicas import warn_of_differences
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.arrays import to_numpy
from keras_calib.predictions.given_arrays import as_arrays
from keras_calib.predictions.given_arrays import cut
from keras_calib.predictions.given_arrays import length
from keras_calib.predictions.given_arrays import with_arrays
from keras_calib.predictions.outputs import ChosenOutput
from keras_calib.predictions.outputs import choose_output

__all__ = [
    "Batch",
    "batches_of",
    "check_data",
    "check_reread",
    "count_batches",
    "has_end",
    "predict_batch",
    "predict_batches",
    "split_index",
    "with_progress",
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
    """Labels and index of `{"label", "index"}`; of plain labels, no index."""
    if not isinstance(y, dict):
        return y, None
    if set(y) != {"label", "index"}:
        raise value_error(
            '`y` must be labels, or a dict {"label": labels, '
            '"index": numbers of the examples}; of a model of several '
            "outputs, `output` names the one to read",
            keys=sorted(map(str, y)),
        )
    return y["label"], y["index"]


def check_data(
    data: Any, batch_size: int = 32, steps: int | None = None
) -> None:
    """Raises TypeError or ValueError unless `batches_of` takes these."""
    check_integer("batch_size", batch_size, 1)
    if steps is not None:
        check_integer("steps", steps, 1)
    count_batches(data, batch_size, steps)


def check_reread(name: str, data: Any) -> None:
    """Raises ValueError if a data set can be read once only."""
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
        # It is none, or has no end.
        return False


def batches_of(
    data: Any,
    batch_size: int = 32,
    steps: int | None = None,
    output: ChosenOutput | None = None,
) -> Iterator[Batch]:
    """The batches of a data set, once through, without empty ones.

    Args:
        data: Arrays as a tuple `(x, y)` or `(x, y, sample_weight)`, cut into
            batches here; or batches of such tuples: a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, a generator, a loader of torch, a list.
            Arrays may be lists of numbers or strings; `x` may be a tuple or
            dict of arrays; `y` may be `{"label", "index"}`, or the labels of
            several outputs.
        batch_size: Size of the batches of arrays.
        steps: How many batches, at most; None for all.
        output: Whose labels and weights are taken of several outputs.

    Raises:
        TypeError: If `data` is none of these.
        ValueError: If it has no end and `steps` is None, arrays differ in
            length, or labels are a dict of other keys than label and index.
    """
    check_data(data, batch_size, steps)
    arrays = as_arrays(data)
    batches = _each_batch(data) if arrays is None else cut(arrays, batch_size)
    for batch in itertools.islice(batches, steps):
        if isinstance(batch, list):
            # As torch's loaders collate a batch.
            batch = tuple(batch)
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        x, y, weight = with_arrays(x, y, weight)
        index = None
        if isinstance(y, dict) and set(y) == {"label", "index"}:
            y, index = split_index(y)
            index = to_numpy(index).reshape(-1)
            if isinstance(weight, dict):
                weight = weight["label"]
        if output is not None:
            y, weight = output.of(y, "y"), output.of(weight, "sample_weight")
        y, _ = split_index(y)
        if getattr(y, "ndim", None) == 0 or isinstance(y, int | float | str):
            raise value_error(
                "`data` must give batches, not single examples: "
                "`batch` of a `tf.data.Dataset` makes them",
                **{"y.shape": ()},
            )
        if length(x):
            yield Batch(x, y, index, weight)


def predict_batches(
    model: keras.Model,
    data: Any,
    batch_size: int = 32,
    steps: int | None = None,
    output: str | int | ChosenOutput | None = None,
) -> Iterator[Batch]:
    """The batches of a data set with what a model predicts in inference mode.

    Each example is predicted once, in order. Under `MirroredStrategy` the
    replicas share the examples of a batch, and a RuntimeWarning says if they
    would predict different things.

    Args:
        model: A Keras model.
        data: As in `batches_of`.
        batch_size: As in `batches_of`.
        steps: As in `batches_of`.
        output: Name or position of the output to read, for a model that has
            several.

    Raises:
        TypeError: If the model has several outputs and none is named.
        ValueError: If there is no such output.
    """
    chosen = choose_output(model, output)
    warn_of_differences(model)
    for batch in batches_of(data, batch_size, steps, chosen):
        yield predict_batch(model, batch, chosen)


def predict_batch(
    model: keras.Model, batch: Batch, output: ChosenOutput | None = None
) -> Batch:
    """A batch with what a model predicts in inference mode."""
    count, inputs = length(batch.inputs), batch.inputs
    if type(model).predict_on_batch is keras.Model.predict_on_batch:
        # Else every replica predicts all: a model that prepares its inputs
        # itself wants them as they are.
        inputs = shared_by_replicas(model, inputs, count)
    outputs = model.predict_on_batch(inputs)
    if output is not None:
        outputs = output.of(outputs, "outputs")
    elif isinstance(outputs, dict | list | tuple):
        # Not all models say before they run how many outputs they have.
        choose_output(model, None, outputs)
        (outputs,) = keras.tree.flatten(outputs)
    outputs = to_numpy(outputs)
    if outputs.ndim == 0 or len(outputs) < count:
        raise value_error(
            "the model must return a row of outputs for each example",
            examples=count,
            **{"outputs.shape": outputs.shape},
        )
    # Where each replica has predicted the whole batch, the first of them.
    return batch._replace(outputs=outputs[:count])


def count_batches(
    data: Any,
    batch_size: int = 32,
    steps: int | None = None,
    rule: str = "data must have an end; `steps` says how many batches to use",
) -> int | None:
    """The number of batches, None if only reading tells.

    Raises TypeError if `data` is no data set, and ValueError with `rule` if it
    does not end and `steps` is None, or if arrays differ in length.
    """
    if (arrays := as_arrays(data)) is not None:
        count = -(-length(arrays) // batch_size)
    elif not isinstance(data, Iterable) or hasattr(data, "shape"):
        raise type_error(
            "data must be a tuple of arrays (x, y), or a data set of batches",
            data=type(data).__name__,
        )
    else:
        count = _num_batches(data)
    if count == _ENDLESS:
        if steps is None:
            raise value_error(rule, data=type(data).__name__)
        return steps
    if count is None or steps is None:
        return count
    return min(count, steps)


def with_progress(
    batches: Iterable, total: int | None, verbose: str | int = "auto"
) -> Iterator:
    """The same batches behind a progress bar of Keras.

    Args:
        batches: Anything to iterate over.
        total: How many there are, None if unknown.
        verbose: `"auto"`, 0, 1 or 2 as in Keras.
    """
    bar = keras.utils.Progbar(
        total, verbose=1 if verbose == "auto" else verbose
    )
    done = 0
    for done, batch in enumerate(batches, start=1):
        yield batch
        bar.update(done, finalize=False)
    bar.update(done, finalize=True)


_ENDLESS = -1


def _num_batches(dataset: Iterable) -> int | None:
    """The number of batches; `_ENDLESS`, or None if unknown."""
    if isinstance(dataset, keras.utils.PyDataset):
        count = _size_of(dataset)
        return _ENDLESS if count is None else count
    if callable(getattr(dataset, "cardinality", None)):
        count = int(dataset.cardinality())
        # TensorFlow's words for no end, and for unknown.
        return {-1: _ENDLESS, -2: None}.get(count, count)
    try:
        return len(dataset)
    except TypeError:
        # Also of a loader whose data have no length.
        return None


def _size_of(dataset: keras.utils.PyDataset) -> int | None:
    try:
        return dataset.num_batches
    except NotImplementedError:
        return None


def _each_batch(dataset: Iterable) -> Iterator:
    """The batches of a data set as they come, for ever if it has no end."""
    if isinstance(dataset, keras.utils.PyDataset):
        size = _size_of(dataset)
        places = itertools.count() if size is None else range(size)
        return (dataset[i] for i in places)
    return iter(dataset)

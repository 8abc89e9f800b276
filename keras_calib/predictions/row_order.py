"""What comes beside a data set: it belongs to rows, whose order must hold."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.groups import as_groups, read_groups
from keras_calib.numerics.arrays import to_numpy
from keras_calib.predictions.columns import told_name


class Beside:
    """Columns that come beside a data set, by arrays or by functions.

    A function has those of the rows of a batch from its inputs.
    """

    def __init__(self, columns: Mapping[Any, Any]):
        self._functions = {k: x for k, x in columns.items() if callable(x)}
        self._arrays = {
            k: as_groups(x)
            for k, x in columns.items()
            if k not in self._functions
        }
        self._row = 0
        # Different values so far, with their types: True is 1 to a dict.
        self._known: dict[Any, dict[tuple[type, Any], None]] = {}

    def next(self, inputs: Any, count: int) -> dict[Any, np.ndarray]:
        """Those of the next rows, which have these inputs."""
        rows = slice(self._row, self._row + count)
        self._row += count
        found = {k: x[rows] for k, x in self._arrays.items()}
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
        return found

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


def checked_order(
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


def check_index(index: np.ndarray, start: int, beside: Sequence[str]) -> None:
    """Raises ValueError unless numbers of examples ascend from `start`."""
    if not np.array_equal(index, np.arange(start, start + len(index))):
        told = ", that of their index: "
        found = index[:4].tolist()
        raise _no_order(beside, told, index=found, expected=start)


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

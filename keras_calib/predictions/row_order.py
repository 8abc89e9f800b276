"""What comes beside a data set: it belongs to rows, whose order must hold."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.groups import as_groups, read_groups
from keras_calib.numerics.arrays import to_numpy

_RULE = "`groups` must belong to rows in a fixed order"
_ADVICE = (
    "give a function of the inputs of a batch, such as "
    '`groups=lambda x: x["site"]`, or data in a fixed order'
)


class Told:
    """Values of the rows of each batch that was read, by a function."""

    def __init__(self, function: Callable[[Any], Any], name: str):
        self._function, self._name = function, name
        self._waiting: list[Any] = []
        # Different values so far, with their types: True is 1 to a dict.
        self._known: dict[tuple[type, Any], None] = {}

    def note(self, inputs: Any, count: int) -> None:
        """Adds the values of the rows of a batch with these inputs."""
        values = as_groups(self._function(inputs))
        if values.shape != (count,):
            raise value_error(
                f"`{self._name}` must return a group for each row of a batch",
                shape=values.shape,
                rows=count,
            )
        # As an array, numbers beside texts would become texts.
        self._waiting += (added := values.tolist())
        self._known |= dict.fromkeys((type(x), x) for x in added)
        if len({kind for kind, _ in self._known}) > 1:
            listed = [x for _, x in self._known]
            read_groups(listed, (len(listed),), self._name)

    def take(self, count: int | None = None) -> np.ndarray:
        """The next values, or all that wait."""
        taken = self._waiting[:count]
        del self._waiting[:count]
        return as_groups(taken)


def checked_order(
    read: Callable[[], Iterable[Any]], data: Any
) -> Iterator[Any]:
    """The batches of `read`, which must have one order in two passes.

    The first pass keeps a hash of each batch. Arrays and lists of batches
    have one order.

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
        raise value_error(f"{_RULE}: {_ADVICE}", data=how)
    before = list(map(_digest, read()))
    count = 0
    for count, batch in enumerate(read(), start=1):
        if count > len(before) or _digest(batch) != before[count - 1]:
            raise value_error(
                f"{_RULE}, and two passes over the data differ: {_ADVICE}",
                batch=count - 1,
            )
        yield batch


def check_index(index: np.ndarray, start: int) -> None:
    """Raises ValueError unless numbers of examples ascend from `start`."""
    if not np.array_equal(index, np.arange(start, start + len(index))):
        raise value_error(
            f"{_RULE}, that of their index: {_ADVICE}",
            index=index[:4].tolist(),
            expected=start,
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

"""The order of examples in an epoch, and their numbers."""

import hashlib
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, Unpack

import keras
import numpy as np

from keras_calib.backend.late import tensorflow as tf
from keras_calib.data.crops import random_bits
from keras_calib.data.examples import named_like, require, required
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.options import filled


def with_index(dataset: Any, *, input_context: Any = None) -> Any:
    """Numbers the examples of a data set.

    Use it for models that record training samples, before you shuffle,
    repeat or batch the data set.

    Args:
        dataset: A `tf.data.Dataset` of examples (dicts), or of pairs of
            inputs and labels, in an order that does not change.
        input_context: A `tf.distribute.InputContext`, if each worker reads
            another part of the data; their numbers then differ.

    Returns:
        The data set with `index`, int64, from 0 upwards, in each example.
        Pairs become `(inputs, {"label": labels, "index": index})`.

    Raises:
        ValueError: If elements are neither dicts nor pairs, or have an index.

    Reference:
        Moon et al., Confidence-Aware Learning for Deep Neural Networks, ICML
        2020, section 3.3, https://arxiv.org/abs/2007.01458
    """
    spec = dataset.element_spec
    step = getattr(input_context, "num_input_pipelines", 1)
    first = getattr(input_context, "input_pipeline_id", 0)
    require(
        isinstance(spec, dict) or (isinstance(spec, tuple) and len(spec) == 2),
        "Elements must be dicts, or pairs of inputs and labels",
        element_spec=spec,
    )
    require(
        not isinstance(spec, dict) or "index" not in spec,
        "Examples must not have an index already: leave out `with_index`",
        parts=spec,
    )

    def numbered(place: Any, element: Any) -> Any:
        index = place * step + first
        if isinstance(element, dict):
            return {**element, "index": index}
        return element[0], {"label": element[1], "index": index}

    return named_like(dataset.enumerate().map(numbered), dataset)


def with_epoch(epoch: Any, shuffled: Any) -> Any:
    """Pairs `(epoch, element)` of the elements of one epoch."""
    numbers = tf.data.Dataset.from_tensors(epoch).repeat()
    return tf.data.Dataset.zip(numbers, shuffled)


def shuffled_epochs(
    dataset: Any,
    one_epoch: Callable[[Any, Any], Any] = with_epoch,
    *,
    seed: int,
    buffer_size: int,
    epochs: int | None = None,
    first_epoch: int = 0,
) -> Any:
    """The epochs of a data set, one after the other, each shuffled anew.

    `one_epoch` maps the number of an epoch, int64, and the shuffled data set to
    the data set of that epoch. The order depends on seed and epoch only, so
    that a run that resumes with `first_epoch` sees the data of one that was not
    interrupted. `epochs=None` makes an endless data set.
    """
    check_integer("seed", seed)
    check_integer("buffer_size", buffer_size, 1)
    numbers = _epoch_numbers(epochs, first_epoch)

    def make(epoch: Any) -> Any:
        # The seed of this function's graph. Without it the order would depend
        # on the program's global seed.
        tf.random.set_seed(hashed(seed) % 2**31 + 1)
        shuffled = dataset.shuffle(
            buffer_size, seed=epoch, reshuffle_each_iteration=False
        )
        return one_epoch(epoch, shuffled)

    if epochs is not None:
        return numbers.flat_map(make)
    batches = numbers.flat_map(make)
    if int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY:
        batches = _without_empty_epochs(numbers, make)
    # Consumers that need an end can then refuse instead of waiting forever.
    endless = tf.data.INFINITE_CARDINALITY
    return batches.apply(tf.data.experimental.assert_cardinality(endless))


def _epoch_numbers(epochs: int | None, first_epoch: int) -> Any:
    """The numbers of the epochs, endless if `epochs` is None."""
    check_integer("first_epoch", first_epoch, 0)
    if epochs is None:
        return tf.data.Dataset.counter(first_epoch)
    check_integer("epochs", epochs, 1)
    return tf.data.Dataset.range(first_epoch, first_epoch + epochs)


def _without_empty_epochs(numbers: Any, make: Callable[[Any], Any]) -> Any:
    """`numbers.flat_map(make)`, with an error where an epoch has no batch.

    Without the error, reading would skip from epoch to epoch forever.
    """
    optional = tf.experimental.Optional

    def with_end(epoch: Any) -> Any:
        batches = make(epoch)
        end = tf.data.Dataset.from_tensors(optional.empty(batches.element_spec))
        # `map` passes a pair as two arguments.
        return batches.map(
            lambda *b: optional.from_value(b if len(b) > 1 else b[0])
        ).concatenate(end)

    def look(count: Any, batch: Any) -> tuple[Any, Any]:
        there = batch.has_value()
        there = required(
            there,
            there | (count > 0),
            "`dataset` must have enough examples for a batch",
            batches=count,
        )
        return tf.where(there, count + 1, 0), batch

    batches = numbers.flat_map(with_end).scan(tf.constant(0, "int64"), look)
    batches = batches.filter(lambda batch: batch.has_value())
    return batches.map(lambda batch: batch.get_value())


def hashed(*numbers: int) -> int:
    """A number below 2^62, far from those of neighbouring seeds."""
    text = " ".join(map(str, numbers))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


class EpochBatches(keras.utils.PyDataset):
    """Batches of arrays with an index, shuffled by seed and epoch.

    Use it for models that record their training samples, on every backend.
    The order depends on seed and epoch only. `ResumableBackup` and the models
    of this library tell it the epoch in `fit`; without them it counts whole
    passes, from 0 or from the last `set_epoch`.

    For a plain `keras.Model` pass `with_index=False`, and `shuffle=False` to
    its `fit`.

    Args:
        data: Inputs `(n, ...)`, an array or a structure of arrays.
        labels: Labels `(n, ...)`.
        batch_size: Samples per batch.
        sample_weight: Weights `(n,)`, or None.
        seed: Seed of the order, or None for the order of the arrays.
        drop_remainder: Whether to drop a last, smaller batch.
        augment: A function of inputs and labels of a batch and a
            `numpy.random.Generator`, which returns as many inputs and labels.
            The generator depends on seed, epoch and batch number only. The
            function runs in Python, in one thread; on TensorFlow
            `array_pipeline` augments in parallel.
        with_index: Whether labels are `{"label": labels, "index": numbers}`,
            as the models of this library take them, or plain labels.

    Raises:
        ValueError: If arrays have different lengths, or a number is out of
            range.

    Example:

    >>> batches = EpochBatches([[1.0], [2.0], [3.0]], [0, 1, 0], batch_size=2)
    >>> x, y = batches[0]
    >>> len(batches), sorted(y), len(y["index"])
    (2, ['index', 'label'], 2)

    Reference:
        Keras, PyDataset, https://keras.io/api/utils/python_utils/
    """

    def __init__(
        self,
        data: Any,
        labels: Any,
        *,
        batch_size: int = 32,
        sample_weight: Any = None,
        seed: int | None = 0,
        drop_remainder: bool = False,
        augment: Callable[..., tuple[Any, Any]] | None = None,
        with_index: bool = True,
    ):
        check_integer("batch_size", batch_size, 1)
        if seed is not None:
            check_integer("seed", seed, 0)
        require(
            not isinstance(labels, dict),
            "`labels` must be labels: the index is added here, unless "
            "`with_index=False`",
            labels=type(labels).__name__,
        )
        super().__init__()
        self._x = data if _is_structure(data) else np.asarray(data)
        self._y = np.asarray(labels)
        weight = sample_weight
        self._weight = None if weight is None else np.asarray(weight)
        self._seed = seed
        self._epoch = 0
        # Batches read in the current pass, None outside of one, and whether a
        # pass has ended. Keras also starts a pass to inspect the data.
        self._shown: int | None = None
        self._looked = False
        self._size = batch_size
        self._drop = drop_remainder
        self._augment = augment
        self._with_index = with_index
        parts = keras.tree.flatten((self._x, self._y, self._weight))
        lengths = [len(part) for part in parts if part is not None]
        require(
            len(set(lengths)) == 1,
            "arrays must have the same length",
            lengths=lengths,
        )
        self._order = _order(len(self._y), seed, 0)

    @property
    def index(self) -> np.ndarray:
        """The numbers of all samples, `(n,)`."""
        return np.arange(len(self._y))

    def __len__(self):
        count = len(self._y) / self._size
        return int(np.floor(count) if self._drop else np.ceil(count))

    def __getitem__(self, place):
        if self._shown is not None:
            self._shown += 1
        index = self._order[place * self._size : (place + 1) * self._size]
        x = keras.tree.map_structure(lambda part: part[index], self._x)
        labels = self._y[index]
        if self._augment is not None:
            # The 1 makes the stream differ from that of the order.
            draws = (self._seed or 0, self._epoch, place, 1)
            x, labels = self._augment(x, labels, np.random.default_rng(draws))
        y = {"label": labels, "index": index} if self._with_index else labels
        return (x, y) if self._weight is None else (x, y, self._weight[index])

    def set_epoch(self, epoch: int) -> None:
        """Sets the order of an epoch, counted from 0."""
        check_integer("epoch", epoch, 0)
        self._epoch = epoch
        self._order = _order(len(self._y), self._seed, epoch)

    def on_epoch_begin(self):
        """Called by Keras before each epoch."""
        self._shown = 0

    def on_epoch_end(self):
        """Called by Keras after each epoch, and after it inspects the data."""
        whole = self._shown is not None and self._shown >= len(self)
        whole = whole and self._looked
        self._shown, self._looked = None, True
        if whole:
            self.set_epoch(self._epoch + 1)


class Epochs(TypedDict, total=False):
    """Options of `array_pipeline` about its epochs."""

    epochs: int | None
    first_epoch: Annotated[int, 0]
    num_parallel_calls: int | None


def array_pipeline(
    data: Any,
    labels: Any,
    *,
    batch_size: int = 32,
    sample_weight: Any = None,
    seed: int | None = 0,
    drop_remainder: bool = True,
    augment: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None,
    **options: Unpack[Epochs],
) -> Any:
    """Feeds arrays with an index by `tf.data`, in parallel.

    Use it instead of `EpochBatches` if training waits for its data, for
    example on several GPUs. Samples come in the same order. Batches depend on
    the arrays, `seed` and the epoch only.

    Args:
        data, labels, batch_size, sample_weight: As for `EpochBatches`.
        seed: Seed of the order and of `augment`; None for the order of the
            arrays.
        drop_remainder: Whether to drop the last, smaller batch of an epoch,
            so that several devices share each batch evenly.
        augment: A function of inputs, labels and a key, an int32 tensor
            `(2,)` for the stateless random operations of `tf.random` or for
            `cutmix`, `mixup` and `ricap`. It returns as many inputs and
            labels. It is compiled, so it must use operations of TensorFlow or
            Keras.
        epochs: Number of epochs. None makes an endless data set, for which
            `fit` needs `steps_per_epoch`.
        first_epoch: Number of the first epoch, to resume training. Defaults to
            `0`.
        num_parallel_calls: Number of batches made in parallel; None lets
            `tf.data` choose.

    Returns:
        A `tf.data.Dataset` of `(x, {"label": labels, "index": numbers})`, and
        weights if there are any.

    Raises:
        ValueError: If arrays have different lengths, are too few for a batch,
            or a number is out of range.

    Example:

    >>> import numpy as np
    >>> images, labels = np.zeros((6, 4, 4, 3), "float32"), np.arange(6) % 2
    >>> x, y = next(iter(array_pipeline(images, labels, batch_size=2)))
    >>> x.shape, sorted(y)
    (TensorShape([2, 4, 4, 3]), ['index', 'label'])

    Reference:
        TensorFlow, better performance with the tf.data API,
        https://www.tensorflow.org/guide/data_performance
    """
    given = filled("array_pipeline", options, Epochs)
    if given.num_parallel_calls is not None:
        check_integer("num_parallel_calls", given.num_parallel_calls, 1)
    numbers = _epoch_numbers(given.epochs, given.first_epoch)
    arrays = EpochBatches(
        data,
        labels,
        batch_size=batch_size,
        sample_weight=sample_weight,
        seed=seed,
        drop_remainder=drop_remainder,
    )
    count = len(arrays.index)
    require(
        len(arrays) > 0,
        "arrays must have enough samples for a batch: lower `batch_size`",
        samples=count,
        batch_size=batch_size,
    )
    weights = [] if arrays._weight is None else [arrays._weight]
    # A GPU would hold all arrays and copy each batch back.
    with tf.device("CPU"):
        parts = keras.tree.map_structure(
            tf.convert_to_tensor, (arrays._x, arrays._y, *weights)
        )
    root = hashed(seed or 0, 1)

    def order(epoch: Any) -> Any:
        return _order(count, seed, int(epoch)).astype("int64")

    def places(epoch: Any) -> Any:
        index = tf.numpy_function(order, [epoch], "int64", stateful=False)
        index = tf.ensure_shape(index, [count])
        batches = tf.data.Dataset.from_tensor_slices(index).batch(
            batch_size, drop_remainder=drop_remainder
        )
        return batches.enumerate().map(
            lambda place, index: (epoch, place, index)
        )

    def batch(epoch: Any, place: Any, index: Any) -> tuple:
        data, labels, *weight = keras.tree.map_structure(
            lambda part: tf.gather(part, index), parts
        )
        if augment is not None:
            key = random_bits([2], tf.stack([root + epoch, place]))
            data, labels = augment(data, labels, key)
        made = tuple(data) if isinstance(data, list) else data
        return (made, {"label": labels, "index": index}, *weight)

    # -1 is TensorFlow's infinite cardinality.
    num_batches = -1 if given.epochs is None else given.epochs * len(arrays)
    calls = given.num_parallel_calls or tf.data.AUTOTUNE
    return (
        numbers.flat_map(places)
        .map(batch, calls, deterministic=True)
        .apply(tf.data.experimental.assert_cardinality(num_batches))
        .prefetch(tf.data.AUTOTUNE)
    )


def _order(count: int, seed: int | None, epoch: int) -> np.ndarray:
    """Sample numbers in the order of an epoch."""
    places = np.arange(count)
    if seed is None:
        return places
    return np.random.default_rng((seed, epoch)).permutation(places)


def _is_structure(x: Any) -> bool:
    """Whether `x` holds arrays, rather than the numbers of one."""
    return isinstance(x, dict | tuple) or (
        isinstance(x, list) and len(x) > 0 and hasattr(x[0], "shape")
    )

"""The order of examples in an epoch, and their numbers."""

import hashlib
from collections.abc import Callable
from typing import Any

from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.examples import named_like, require, required
from keras_calib.inputs.checks import check_integer

__all__ = [
    "each_epoch",
    "epoch_numbers",
    "hashed",
    "shuffled_epochs",
    "with_index",
]


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


def shuffled_epochs(
    dataset: Any,
    *,
    seed: int,
    buffer_size: int,
    epochs: int | None = None,
    first_epoch: int = 0,
) -> Any:
    """Shuffles a data set anew for each epoch, reproducibly.

    Use it to resume training in the same order: it depends on seed and epoch
    only, so a run that resumes with `first_epoch` sees the data of an
    uninterrupted one.

    Args:
        dataset: A `tf.data.Dataset` in an order that does not change.
        seed: An integer.
        buffer_size: Number of elements held while shuffling. The order is
            fully random if the data set has no more.
        epochs: Number of epochs; None makes an endless data set.
        first_epoch: Number of the first epoch.

    Returns:
        A `tf.data.Dataset` of pairs `(epoch, element)`, epoch int64.

    Raises:
        ValueError: If a number is out of its range.

    Reference:
        TensorFlow, tf.data.Dataset.shuffle,
        https://www.tensorflow.org/api_docs/python/tf/data/Dataset#shuffle
    """

    def one_epoch(epoch: Any, shuffled: Any) -> Any:
        numbers = tf.data.Dataset.from_tensors(epoch).repeat()
        return tf.data.Dataset.zip(numbers, shuffled)

    return each_epoch(
        dataset,
        one_epoch,
        seed=seed,
        buffer_size=buffer_size,
        epochs=epochs,
        first_epoch=first_epoch,
    )


def each_epoch(
    dataset: Any,
    one_epoch: Callable[[Any, Any], Any],
    *,
    seed: int,
    buffer_size: int,
    epochs: int | None,
    first_epoch: int,
) -> Any:
    """Concatenates `one_epoch(number, shuffled data set)` over epochs."""
    check_integer("seed", seed)
    check_integer("buffer_size", buffer_size, 1)
    numbers = epoch_numbers(epochs, first_epoch)

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


def epoch_numbers(epochs: int | None, first_epoch: int) -> Any:
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

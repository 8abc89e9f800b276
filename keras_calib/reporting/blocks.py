"""Blocks of predictions: small batches are worked on together."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from keras_calib.numerics.arrays import to_numpy

__all__ = ["merged"]

# A block is full with so many outputs, or bytes of inputs to show: beyond,
# the work of a block is much more than what each costs.
_OUTPUTS = 2**16
_BYTES = 2**24


def merged(batches: Iterable[tuple]) -> Iterator[tuple]:
    """Batches of `report_of_batches`, small ones of equal form joined."""
    waiting: list[tuple] = []
    for labels, outputs, weight, inputs in batches:
        batch = (
            to_numpy(labels),
            [to_numpy(each) for each in outputs],
            None if weight is None else to_numpy(weight),
            None if inputs is None else to_numpy(inputs),
        )
        if waiting and _form(batch) != _form(waiting[0]):
            yield _joined(waiting)
            waiting = []
        waiting.append(batch)
        if sum(map(_fullness, waiting)) >= 1.0:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _form(batch: tuple) -> list[Any]:
    """Shape of a sample and type of each part; None of a part that lacks."""
    labels, outputs, weight, inputs = batch
    return [
        None if part is None else (part.shape[1:], part.dtype)
        for part in (labels, *outputs, weight, inputs)
    ]


def _fullness(batch: tuple) -> float:
    _, outputs, _, inputs = batch
    num_outputs = max(each.size for each in outputs)
    num_bytes = 0 if inputs is None else inputs.nbytes
    return max(num_outputs / _OUTPUTS, num_bytes / _BYTES)


def _joined(batches: list[tuple]) -> tuple:
    labels, outputs, weight, inputs = zip(*batches, strict=True)
    return (
        np.concatenate(labels),
        [np.concatenate(each) for each in zip(*outputs, strict=True)],
        None if weight[0] is None else np.concatenate(weight),
        None if inputs[0] is None else np.concatenate(inputs),
    )

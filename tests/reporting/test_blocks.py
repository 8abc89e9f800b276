"""Small batches are worked on together, in their order."""

import numpy as np
import pytest

from keras_calib.predictions.batches import merged
from keras_calib.reporting.gathering import fullness


def batch(count, shape=(3,), weight=True, inputs=(2,)):
    return {
        "labels": np.arange(count),
        "weight": np.ones(count) if weight else None,
        "inputs": None if inputs is None else np.zeros((count, *inputs)),
        ("outputs", 0): np.zeros((count, *shape), "float32"),
        ("outputs", 1): np.ones((count, *shape), "float32"),
        ("groups", "site"): np.arange(count) % 2,
    }


@pytest.mark.parametrize(
    ("batches", "lengths"),
    [
        ([batch(32)] * 5, [160]),
        ([batch(4, weight=False, inputs=None)] * 2, [8]),
        # Outputs, or inputs, that fill a block.
        ([batch(32, shape=(1024,))] * 5, [64, 64, 32]),
        ([batch(2, inputs=(2**19,))] * 5, [4, 4, 2]),
        # Images of another size, or weights for a part of the data.
        ([batch(2), batch(2, shape=(4, 3)), batch(2), batch(2)], [2, 2, 4]),
        ([batch(2), batch(3, weight=False)], [2, 3]),
    ],
)
def test_batches_of_one_form_are_joined_until_a_block_is_full(batches, lengths):
    blocks = list(merged(batches, fullness))
    assert [len(block["labels"]) for block in blocks] == lengths
    labels = [x for b in batches for x in b["labels"]]
    assert labels == [x for b in blocks for x in b["labels"]]
    for block, length in zip(blocks, lengths, strict=True):
        assert block.keys() == batches[0].keys()
        assert {len(x) for x in block.values() if x is not None} == {length}

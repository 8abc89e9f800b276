"""Small batches are worked on together, in their order."""

import numpy as np
import pytest

from keras_calib.reporting.source import merged


def batch(count, shape=(3,), weight=True, inputs=(2,)):
    return (
        np.arange(count),
        [np.full((count, *shape), i, "float32") for i in range(2)],
        np.ones(count) if weight else None,
        None if inputs is None else np.zeros((count, *inputs)),
        {"site": np.arange(count) % 2},
    )


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
    blocks = list(merged(batches))
    assert [len(block[0]) for block in blocks] == lengths
    labels = [x for b in batches for x in b[0]]
    assert labels == [x for b in blocks for x in b[0]]
    for labels, outputs, weight, inputs, groups in blocks:
        parts = [*outputs, weight, inputs, groups["site"]]
        assert {len(x) for x in parts if x is not None} == {len(labels)}
    assert [len(block[1]) for block in blocks] == [2] * len(blocks)

"""Tables of each class, looked up inside compiled code.

With gathers and comparisons only, which every exporter knows.
"""

from typing import Any

import numpy as np
from keras import ops

__all__ = ["interpolate", "locate", "padded", "take"]


def padded(rows: list[np.ndarray], filler: float | None = None) -> np.ndarray:
    """Rows of different lengths as one table `(num_rows, longest)`.

    Short rows end in `filler`; None repeats their last.
    """
    longest = max(len(row) for row in rows)
    table = np.empty((len(rows), longest))
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
        line[len(row) :] = row[-1] if filler is None else filler
    return table


def take(table: Any, index: Any) -> Any:
    """Entries `table[k, index[..., k]]` `(..., num_classes)`, int32 index."""
    num_classes, size = table.shape
    start = ops.arange(num_classes, dtype="int32") * size
    return ops.take(ops.reshape(table, (-1,)), index + start)


def locate(edges: Any, values: Any) -> Any:
    """How many edges of its class are less than each value, int32.

    Edges ascend in each row `(num_classes, size)`; values are
    `(..., num_classes)`, as is the result.
    """
    size = edges.shape[1]
    count = ops.cast(ops.zeros_like(values), "int32")
    step = 1 << size.bit_length() - 1
    while step:
        probe = count + step
        # The edge before which `probe` edges lie, itself included.
        edge = take(edges, ops.minimum(probe, size) - 1)
        more = ops.logical_and(probe <= size, edge < values)
        count = ops.where(more, probe, count)
        step //= 2
    return count


def interpolate(x: Any, y: Any, values: Any) -> Any:
    """Piecewise linear functions of each class, constant beyond their ends.

    Args:
        x: Strictly ascending in each row but for what pads it at the end,
            `(num_classes, size)`.
        y: Values at `x`, of the same shape; a pad repeats the last.
        values: Where to evaluate, `(..., num_classes)`.
    """
    right = ops.minimum(locate(x, values), x.shape[1] - 1)
    left = ops.maximum(right - 1, 0)
    x0, y0 = take(x, left), take(y, left)
    width = take(x, right) - x0
    share = (values - x0) / ops.where(width > 0, width, ops.ones_like(width))
    return y0 + ops.clip(share, 0.0, 1.0) * (take(y, right) - y0)

"""Tables of each class, looked up inside compiled code.

With gathers and comparisons only, which every exporter knows.
"""

from typing import Any

import numpy as np
from keras import ops

__all__ = ["interpolate", "locate", "padded", "take"]


def padded(rows: list[np.ndarray], filler: float | None = None) -> np.ndarray:
    """Rows of different lengths as one table `(num_rows, longest)`.

    Args:
        rows: Arrays `(n,)`, not empty.
        filler: What to add at the end of short rows; None repeats the last.
    """
    longest = max(len(row) for row in rows)
    table = np.empty((len(rows), longest))
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
        line[len(row) :] = row[-1] if filler is None else filler
    return table


def take(table: Any, index: Any) -> Any:
    """Entries `table[k, index[..., k]]`.

    Args:
        table: Shape `(num_classes, size)`.
        index: int32 `(..., num_classes)`, below `size`.

    Returns:
        Shape `(..., num_classes)`.
    """
    num_classes, size = table.shape
    start = ops.arange(num_classes, dtype="int32") * size
    return ops.take(ops.reshape(table, (-1,)), index + start)


def locate(edges: Any, values: Any) -> Any:
    """How many edges of its class are less than each value.

    Args:
        edges: Ascending in each row, `(num_classes, size)`.
        values: Shape `(..., num_classes)`.

    Returns:
        int32 `(..., num_classes)`, at most `size`.
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

    Returns:
        Shape `(..., num_classes)`.
    """
    right = ops.minimum(locate(x, values), x.shape[1] - 1)
    left = ops.maximum(right - 1, 0)
    x0, x1, y0, y1 = (
        take(x, left),
        take(x, right),
        take(y, left),
        take(y, right),
    )
    width = x1 - x0
    share = (values - x0) / ops.where(width > 0, width, ops.ones_like(width))
    return y0 + ops.clip(share, 0.0, 1.0) * (y1 - y0)

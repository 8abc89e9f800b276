"""Tables of facts by group or label, as text."""

from collections.abc import Iterable, Sequence

__all__ = ["SHOWN", "table_lines"]

# Most groups or labels that a repr shows.
SHOWN = 12


def table_lines(head: Sequence[str], columns: Iterable[Sequence]) -> list[str]:
    """Lines of a table, with names, counts and then numbers as columns.

    `head` names the columns, the first by what there may be more of.
    """
    listed = list(zip(*columns, strict=True))
    rows = [[*head]]
    for name, count, *facts in listed[:SHOWN]:
        rows.append([str(name), str(count), *(f"{x:.4g}" for x in facts)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [x.rjust(w) for x, w in zip(row, widths, strict=True)]
        lines.append("  ".join(["", *cells]))
    if len(listed) > SHOWN:
        lines.append(f"  and {len(listed) - SHOWN} more {head[0]}s")
    return lines

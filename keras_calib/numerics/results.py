"""How results are printed, shown in notebooks and stored.

It needs neither Keras nor pandas to import.
"""

import html
import inspect
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, dataclass_transform

import numpy as np

from keras_calib.backend.files import replacing, write_csv
from keras_calib.numerics.arrays import shape_of, to_numpy, value_if_eager

# Rows of a table, numbers of an array and characters of a text that are shown.
_ROWS, _NUMBERS, _CHARACTERS = 15, 4, 48


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Result:
    """Base of results: a subclass is a frozen dataclass that prints itself."""

    __dataclass_fields__: ClassVar[dict[str, Field]]

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        dataclass(frozen=True, repr=False)(cls)

    def to_dict(self) -> dict[str, Any]:
        """The fields in plain Python, which JSON can hold."""
        stored = [x.name for x in fields(self) if x.compare]
        return {name: plain(getattr(self, name)) for name in stored}

    def to_frame(self) -> Any:
        """The rows as a pandas `DataFrame`; one row if there are no several.

        Raises:
            ImportError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "`to_frame` needs pandas: pip install pandas"
            ) from error
        columns = self._columns()
        if not columns:
            columns = {name: [value] for name, value in self.to_dict().items()}
        return pandas.DataFrame(columns)

    def to_csv(self, path: Any = None) -> str:
        """The rows as CSV text, which is also written to `path` if given.

        NaN is an empty cell. A name that a spreadsheet would run, such as
        "=1", begins with a quote.
        """
        columns = self._columns()
        if not columns:
            columns = {name: [value] for name, value in self.to_dict().items()}
        rows = zip(*(plain(x) for x in columns.values()), strict=True)
        text = io.StringIO()
        write_csv(text, [columns, *([_known(x) for x in row] for row in rows)])
        if path is not None:
            with replacing(path, text=True) as file:
                file.write(text.getvalue())
        return text.getvalue()

    def __repr__(self) -> str:
        return call_text(type(self).__name__, self._facts())

    def __str__(self) -> str:
        columns, note = self._shown(), self._note()
        if not columns:
            return Result.__repr__(self)
        return "\n".join([*text_table(columns), *(["", note] if note else ())])

    def _repr_html_(self) -> str:
        columns = self._shown()
        if not columns:
            return html_facts(type(self).__name__, self._facts(), self._note())
        return html_table(columns, self._note())

    def _facts(self) -> dict[str, Any]:
        """What the repr shows, by name."""
        shown = {x.name: getattr(self, x.name) for x in fields(self) if x.repr}
        return {name: x for name, x in shown.items() if x is not None}

    def _columns(self) -> dict[str, Any]:
        """The rows, column by column; empty without rows."""
        found = {
            name: x
            for name, x in self._facts().items()
            if len(getattr(x, "shape", ())) == 1
        }
        alike = len({int(x.shape[0]) for x in found.values()}) == 1
        return {k: to_numpy(x) for k, x in found.items()} if alike else {}

    def _shown(self) -> dict[str, Any]:
        """The columns that are printed."""
        return self._columns()

    def _note(self) -> str:
        """What is said below the table."""
        return ""


def plain(value: Any) -> Any:
    """Plain Python that JSON can hold: other objects are their repr."""
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {
            k if isinstance(k, str) else str(k): plain(v)
            for k, v in value.items()
        }
    if isinstance(value, tuple | list):
        return [plain(x) for x in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if value is None or isinstance(value, str | int | float):
        return value
    return to_numpy(value).tolist() if hasattr(value, "shape") else repr(value)


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value


def brief(value: Any) -> str:
    """A value in a few characters: numbers to four digits, sizes of others."""
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    if isinstance(value, Result):
        rows = [*value._columns().values()]
        return f"{type(value).__name__}({len(rows[0]) if rows else 1} rows)"
    if hasattr(value, "shape"):
        shape = _large(value)
        if shape is not None:
            return f"array {shape}"
        return brief(to_numpy(value).tolist())
    if isinstance(value, Mapping | tuple | list):
        if len(value) > _NUMBERS or isinstance(value, Mapping):
            return f"<{len(value)}>"
        return f"[{', '.join(map(brief, value))}]"
    text = repr(value)
    if len(text) <= _CHARACTERS:
        return text
    return f"{text[: _CHARACTERS - 1]}…"


def call_text(name: str, facts: Mapping[str, Any]) -> str:
    """A short text such as `TemperatureScaling(temperature=1.83)`."""
    shapes = {key: _large(value) for key, value in facts.items()}
    parts = [
        f"{key}={brief(facts[key])}"
        if shape is None
        else f"{key}.shape={shape}"
        for key, shape in shapes.items()
    ]
    return f"{name}({', '.join(parts)})"


def _large(value: Any) -> tuple | None:
    """The shape of an array that is too large to show, or unknown; or None."""
    if not hasattr(value, "shape"):
        return None
    # A traced graph has no value to show.
    array = value_if_eager(value)
    small = array is not None and array.ndim < 2 and array.size <= _NUMBERS
    return None if small else shape_of(value)


def config_text(thing: Any) -> str:
    """A text of an object with `get_config`: what differs from defaults."""
    kind = type(thing)
    usual = inspect.signature(kind).parameters
    facts = {
        name: value
        for name, value in thing.get_config().items()
        if name in usual and brief(value) != brief(usual[name].default)
    }
    facts.pop("dtype", None)
    # The name that Keras makes of the class says nothing.
    if str(facts.get("name")).replace("_", "") == kind.__name__.lower():
        del facts["name"]
    return call_text(kind.__name__, facts)


def with_interval(
    value: float, low: Any, high: Any, *, digits: int = 4, sign: str = ""
) -> tuple[str, str]:
    """A value and its interval as texts, with digits that the width supports.

    The last digit is worth 1 / 35.5 to 1 / 3.55 of half of the width, as the
    Particle Data Group rounds (Review of Particle Physics, 5.3). Values without
    an interval have `digits`, or two that are not 0. Ends of signed values keep
    up to two digits more, so that their side of 0 is seen.
    """
    ends = [math.nan if x is None else x for x in (low, high)]
    width = np.subtract(ends[1], ends[0])
    # Too few data give intervals without an end, which say nothing.
    known = bool(0.0 <= width < 1e9)
    if not (known and width):
        if 0.0 < abs(value) < 10.0 ** (1 - digits):
            digits = 1 - math.floor(math.log10(abs(value)))
    else:
        digits = min(max(0, math.ceil(-math.log10(width / 7.1))), 6)
        for _ in range(2 if sign else 0):
            digits += any(x and not round(x, digits) for x in (low, high))
    value, *ends = (
        # Not -0.00; an end that is 0 is no rounded one.
        f"{round(x, digits) + 0.0:{sign}.{digits}f}" if x or i == 0 else "0"
        for i, x in enumerate((value, low, high) if known else (value,))
    )
    return value, " to ".join(ends)


def interval_text(*ends: Any, **options: Any) -> str:
    """The same as one text: value (low to high)."""
    value, told = with_interval(*ends, **options)
    return f"{value} ({told})" if told else value


def text_table(columns: Mapping[str, Sequence]) -> list[str]:
    """Lines of a table: names are at the left, then numbers, then a note."""
    rows = _cells(columns)
    first = [x[:1].isalpha() or not x for x in rows[-1]]
    left = [all(first[: i + 1]) or not name for i, name in enumerate(columns)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            x.ljust(w) if at_left else x.rjust(w)
            for x, w, at_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in rows
    ]
    return [*lines, *_more(columns)]


def html_table(columns: Mapping[str, Sequence], note: str = "") -> str:
    """The same as HTML, with a note below."""
    head, *rows = ([html.escape(x) for x in row] for row in _cells(columns))
    parts = [f"<tr><th>{'</th><th>'.join(head)}</th></tr>"]
    parts += [f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows]
    below = [*_more(columns), *note.splitlines()]
    below = [f"<p>{html.escape(x)}</p>" for x in below]
    return f"<div><table>{''.join(parts)}</table>{''.join(below)}</div>"


def html_facts(name: str, facts: Mapping[str, Any], note: str = "") -> str:
    """A table of named values as HTML."""
    texts = [brief(value) for value in facts.values()]
    return html_table({name: [*facts], "": texts}, note)


def _cells(columns: Mapping[str, Sequence]) -> list[list[str]]:
    """Names and cells, row by row."""
    shown = [
        [x if isinstance(x, str) else brief(x) for x in column[:_ROWS]]
        for column in columns.values()
    ]
    return [[*columns], *(list(row) for row in zip(*shown, strict=True))]


def _more(columns: Mapping[str, Sequence]) -> list[str]:
    """A line that says how many rows are not shown."""
    count = len(next(iter(columns.values()))) - _ROWS
    return [f"... and {count:,} more"] if count > 0 else []

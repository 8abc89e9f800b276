"""`Predictions` of a file, read and checked piece by piece."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import SEVERAL_LABELS
from keras_calib.inputs.options import ReadOptions, check_reading, filled
from keras_calib.predictions.columns import Spool, spread_over
from keras_calib.predictions.correctness import (
    flags_of,
    same_labels,
    warn_of_gaps,
)
from keras_calib.predictions.predictions import Predictions
from keras_calib.predictions.roles import FileOptions, find_roles
from keras_calib.predictions.tables import Table

# An array of the names of classes; in a table a list of JSON in its first row.
CLASS_NAMES = "class_names"
# Rows that tell whether logits look like probabilities.
_FIRST = 100
# What the door tells to do with arrays, for files.
_WORDS = {
    "`from_logits=True`": (
        "the array `logits`, columns `logit_0`, ..., or `logits=`"
    ),
    '`labels="votes"` reads': "`votes=` reads",
    '`labels="votes"` to metrics and `votes=True` to functions': "`votes=`",
    SEVERAL_LABELS: "several labels at once need `multi_label=`",
    "class ids need no option": "class ids need no `votes=`",
}


class Rows(NamedTuple):
    """Rows of a file as `Predictions` take them; or None."""

    labels: np.ndarray
    outputs: np.ndarray
    sample_weight: np.ndarray | None = None
    ids: np.ndarray | None = None
    units: np.ndarray | None = None
    groups: tuple[np.ndarray, ...] = ()


class Reader:
    """Opens a file and finds its columns; `read` needs Keras, this does not.

    Options are `FileOptions`. Raises ValueError for a file that cannot be read
    or has other columns.
    """

    def __init__(self, path: Any, options: Mapping[str, Any]):
        given = filled("Predictions.read", options, FileOptions)
        self._file = Table(path, given.separator, given.decimal)
        self.num_rows = self._file.num_rows
        self._ignored = given.ignore_class
        options = {**options, "class_names": self._names(options)}
        name, names = self._file.path.name, self._file.names
        self.roles = roles = find_roles(name, names, options)
        self.class_names = roles.class_names
        self._is_log = roles.kind == "records"
        if self._is_log and self._ignored is not None and not roles.predicted:
            raise value_error(
                f"`{roles.labels[0]}` of {name} has no classes to leave out",
                ignore_class=self._ignored,
            )

    def read(
        self, watched: Callable[..., Iterator[Rows]] | None = None
    ) -> Predictions:
        """What the file holds, as `Predictions.read`.

        `watched` gets the parts as they are read, with the `total` of the rows
        if it is known, and gives the parts.
        """
        parts = self._parts()
        if watched is not None:
            parts = watched(parts, total=self.num_rows)
        return self._predictions(parts)

    def _parts(self) -> Iterator[Rows]:
        """The rows, piece by piece; ValueError for what cannot be read."""
        start = 0
        for part in self._columns():
            rows = self._rows(part, start)
            yield rows
            start += len(rows.labels)
        if not start:
            raise value_error(
                "the file must have samples", file=str(self._file.path)
            )

    def _predictions(self, parts: Iterator[Rows]) -> Predictions:
        """All rows, in memory maps of a temporary folder."""
        roles, spool = self.roles, Spool()
        is_unchecked = roles.from_logits
        for part in parts:
            if is_unchecked:
                # It needs Keras.
                from keras_calib.inputs.rows import check_no_probabilities

                check_no_probabilities(part.outputs[:_FIRST], "logits")
                is_unchecked = False
            groups = zip(roles.groups, part.groups, strict=True)
            columns = {**part._asdict(), "groups": None}
            columns |= {("groups", name): x for name, x in groups}
            spool.add({k: x for k, x in columns.items() if x is not None})
        arrays: dict[Any, Any] = spool.arrays()
        facts: dict[str, Any] = {
            "groups": {k: arrays.pop(("groups", k)) for k in roles.groups}
        }
        if self._is_log:
            arrays["correct"] = arrays.pop("labels")
            unknown = np.isnan(arrays["correct"])
            warn_of_gaps(self._file.path.name, unknown)
            if unknown.any():
                arrays["correct"][unknown] = 0.0
                weight = arrays.get("sample_weight", np.ones(len(unknown)))
                arrays["sample_weight"] = np.where(unknown, 0.0, weight)
            arrays["confidence"] = arrays.pop("outputs")
        else:
            facts |= {
                "from_logits": roles.from_logits,
                "ignore_class": self._ignored,
                "votes": roles.kind == "votes",
                "multi_label": roles.kind == "labels",
                "class_names": self.class_names,
            }
        return Predictions(**arrays, **facts)

    def _names(self, options: Mapping[str, Any]) -> list[str] | None:
        """The names of the classes that a file has, or those that are told."""
        told, named = options.get("class_names"), None
        if self._file.is_arrays:
            array = self._file.array(CLASS_NAMES)
            named = None if array is None else [*map(str, array.reshape(-1))]
        elif CLASS_NAMES in self._file.names:
            for part in self._file.parts(gaps=[CLASS_NAMES]):
                text = part[CLASS_NAMES][0]
                named = json.loads(text) if text else None
                if not isinstance(named, list) or not all(
                    isinstance(x, str) for x in named
                ):
                    raise value_error(
                        f"`{CLASS_NAMES}` must have a list of names, as JSON, "
                        "in the first row",
                        value=text[:80],
                    )
                break
        if named is not None and told is not None and [*told] != named:
            raise value_error(
                f"`class_names` of {self._file.path.name} must be those that "
                "are told, by `class_names=` or by another file, in the same "
                "order",
                class_names=named[:20],
            )
        return named or told

    def _class_columns(self) -> list[str]:
        """The columns of class ids, of names or of what was right."""
        roles = self.roles
        if roles.kind in ("votes", "labels") or len(roles.labels) > 1:
            return []
        return [*roles.labels, *filter(None, [roles.predicted])]

    def _columns(self) -> Iterator[dict[str, np.ndarray]]:
        """All columns that are read, piece by piece."""
        roles, classes = self.roles, self._class_columns()
        texts = {roles.ids, roles.units, *roles.groups.values()}
        texts = sorted(filter(None, texts - {*classes}))
        numbers = [*roles.outputs, *roles.sample_weight]
        numbers += [x for x in roles.labels if x not in classes]
        named = self.class_names and not self._has_numbers_for_names
        if self._is_log:
            # Rows may be without a label.
            first, *predicted = classes
            texts = [x for x in (*texts, *predicted) if x != first]
            yield from self._file.parts(texts, numbers, gaps=[first])
        elif named and not self._file.is_typed:
            # As texts: pyarrow would read names like "true" as booleans.
            yield from self._file.parts([*texts, *classes], numbers)
        else:
            yield from self._file.parts(texts, numbers, classes)

    @property
    def _has_numbers_for_names(self) -> bool:
        return all(map(str.isdecimal, self.class_names or ("unknown",)))

    def _rows(self, part: dict[str, np.ndarray], start: int) -> Rows:
        roles, by_row = self.roles, not self._file.is_arrays
        weight = None
        if roles.sample_weight:
            weight = _of_columns(part, roles.sample_weight, False)
        others: dict[str, Any] = {
            "ids": part[roles.ids] if roles.ids else None,
            "units": part[roles.units] if roles.units else None,
            "groups": tuple(part[x].astype(str) for x in roles.groups.values()),
        }
        if self._is_log:
            labels, outputs, weight = self._records(part, weight, start)
        elif self._class_columns():
            (name,) = roles.labels
            labels = self._class_ids(part[name], name, start)
        else:
            labels = _of_columns(part, roles.labels, by_row)
        if not self._is_log:
            # One number in a row of a table is that of the second class.
            outputs = _of_columns(part, roles.outputs, by_row)
            if self._file.is_text:
                # As float32, if this has all of the digits.
                with np.errstate(over="ignore"):
                    narrow = outputs.astype("float32")
                same = (narrow == outputs) | np.isnan(outputs)
                outputs = narrow if same.all() else outputs
        rows = Rows(labels, outputs, weight, **others)
        self._check_shapes(rows)
        if weight is not None and roles.sample_weight:
            good = (weight >= 0) & np.isfinite(weight)
            rule = "must be finite and >= 0 in every row"
            self._file.check(roles.sample_weight[0], good, rule, start, weight)
        if not self._is_log and len(labels):
            self._check_values(rows, start)
        return rows

    def _class_ids(
        self, values: np.ndarray, name: str, start: int
    ) -> np.ndarray:
        """Whole numbers of ids, of names of classes, or of right and wrong."""
        is_text, ids = values.dtype.kind in "OU", values
        numbered = self._has_numbers_for_names and values.ndim == 1
        if self.class_names is not None and (is_text or numbered):
            ids = self._ids_of_names(values, name, start)
        if ids.dtype.kind not in "biuf":
            raise self._file.bad_value(
                name,
                "must hold numbers, or names of the classes that "
                "`class_names=` lists, in every row",
                values=values.reshape(-1)[:4].tolist(),
            )
        return ids.astype("int64") if ids.dtype == bool else ids

    def _ids_of_names(
        self, values: np.ndarray, name: str, start: int
    ) -> np.ndarray:
        """Class ids of names; what is a number and no name is an id."""
        names = list(self.class_names or ())
        places = {x: k for k, x in enumerate(names)}
        if self._ignored is not None:
            places.setdefault(str(self._ignored), self._ignored)
        ids = []
        for row, value in enumerate(values.reshape(-1).tolist()):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            place = places.get(text)
            if place is None and not self._has_numbers_for_names:
                is_id = text.removeprefix("-").isdecimal()
                place = int(text) if is_id else None
            if place is None:
                raise self._file.bad_value(
                    name,
                    "must be the name of a class in every row; "
                    "`class_names=` gives the names, in the order of the class "
                    "ids",
                    start + row * len(values) // values.size,
                    value=text,
                    class_names=names[:20],
                )
            ids.append(place)
        return np.asarray(ids, int).reshape(values.shape)

    def _records(
        self, part: dict[str, np.ndarray], weight: np.ndarray | None, start: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Correctness, NaN without a label, confidences and weights."""
        roles, (name,) = self.roles, self.roles.outputs
        confidence, labels = part[name].astype("float64"), part[roles.labels[0]]
        if roles.predicted is None:
            correct = flags_of(
                self._file, roles.labels[0], labels, start, gaps=True
            )
        else:
            predicted = self._names_of(
                part[roles.predicted], roles.predicted, start
            )
            there = labels != ""
            labels = np.where(there, labels, part[roles.predicted])
            labels = self._names_of(labels, roles.labels[0], start)
            correct = same_labels(labels, predicted, gaps=True)
            correct[~there] = np.nan
            if self._ignored is not None:
                counts = labels != str(self._ignored)
                weight = counts * (1.0 if weight is None else weight)
        self._file.check(
            name,
            (confidence >= 0.0) & (confidence <= 1.0),
            "must be the probability of the predicted class, from 0 to 1, in "
            "every row; `keras-calib threshold` takes others by `score=`",
            start,
            confidence,
        )
        return correct, confidence, weight

    def _names_of(
        self, values: np.ndarray, name: str, start: int
    ) -> np.ndarray:
        """Classes as texts: ids, where names or numbers say which they are."""
        if self.class_names is not None:
            return self._ids_of_names(values, name, start).astype(str)
        below = np.char.startswith(values, "-")
        if self._ignored is not None:
            below &= values != str(self._ignored)
        rule = "must hold class ids >= 0, or names, in every row"
        self._file.check(name, ~below, rule, start, values)
        return values

    def _check_shapes(self, rows: Rows) -> None:
        arrays = [*rows[:-1], *rows.groups]
        shapes = [x.shape for x in arrays if x is not None]
        file, name = self._file.path.name, self.roles.outputs[0]
        if self._is_log and any(len(shape) != 1 for shape in shapes):
            raise value_error(
                f"{file} must have one value in each row and column",
                shapes=shapes,
            )
        few = not self._is_log and (rows.outputs.ndim < 2 or not shapes[1][-1])
        if () in shapes or few:
            raise value_error(
                f"{file} must have an axis of samples, and in `{name}` a last "
                "one of classes; values of the second of two classes alone are "
                "a column, of shape (n, 1)",
                shapes=shapes,
            )
        if len({shape[0] for shape in shapes}) > 1:
            raise value_error(
                f"{file} must have arrays of one length", shapes=shapes
            )

    def _check_values(self, rows: Rows, start: int) -> None:
        """Raises for the first row that counts and that the door refuses."""
        try:
            self._take(rows[:3])
        except ValueError as error:
            if ".shape=" in str(error) or "ignore_class=" in str(error):
                # No row is at fault.
                raise _of_file(error) from None
            for row in range(len(rows.labels)):
                one = (
                    None if x is None else x[row : row + 1] for x in rows[:3]
                )
                try:
                    self._take(one)
                except ValueError as first:
                    values = rows.outputs[row].reshape(-1)[:5].tolist()
                    told = {"row": start + row + 1, "predictions": values}
                    raise _of_file(first, **told) from None
            raise _of_file(error) from None

    def _take(self, given: Iterable[Any]) -> None:
        """Takes rows of labels, outputs and weights in, as they are used."""
        # It needs Keras.
        from keras_calib.inputs.batch import read_arrays

        labels, outputs, weight = given
        roles = self.roles
        names = _told(roles.labels), _told(roles.outputs)
        if roles.kind == "labels":
            if labels.shape != outputs.shape:
                raise value_error(
                    f"`{names[0]}` must have a number for each label, as the "
                    "outputs have, with `multi_label=`",
                    **{f"{names[0]}.shape": labels.shape},
                    predictions=outputs.shape,
                )
            if weight is not None:
                weight = spread_over(weight, outputs.shape).reshape(-1)
            # Each is the second of two classes.
            labels, outputs = labels.reshape(-1), outputs.reshape(-1, 1)
        kind = "votes" if roles.kind == "votes" else "classes"
        check_reading(-1, self._ignored, labels=kind)
        reading = ReadOptions(
            roles.from_logits,
            ignore_class=self._ignored,
            labels=kind,
            names=names,
        )
        read_arrays(labels, outputs, weight, reading)


def _of_columns(
    part: dict[str, np.ndarray], names: Sequence[str], by_row: bool
) -> np.ndarray:
    """Rows of the columns of classes, or of the one that has them all."""
    if len(names) > 1:
        return np.stack([part[x] for x in names], axis=-1)
    values = part[names[0]]
    return values[:, None] if by_row and values.ndim == 1 else values


def _told(columns: Sequence[str]) -> str:
    """What errors call columns, between backticks."""
    first, last = columns[0], columns[-1]
    return first if len(columns) == 1 else f"{first}` to `{last}"


def _of_file(error: ValueError, **told: Any) -> ValueError:
    """An error of the door in the words of files, with more that is `told`."""
    text, _, received = str(error).partition("Received: ")
    for words, own in _WORDS.items():
        text = text.replace(words, own)
    if told:
        received = received.removeprefix("rows=1, first=[0]").strip(", ")
    facts = [f"{name}={value!r}" for name, value in told.items()]
    return ValueError(
        f"{text}Received: {', '.join(filter(None, [*facts, received]))}"
    )

"""Labels and predictions of a file, read and checked piece by piece."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.labels import shares_of_rows
from keras_calib.inputs.rows import check_no_probabilities, usable_outputs
from keras_calib.predictions.tables import Table
from keras_calib.reporting.prediction_files.answer_log import (
    flags_of,
    same_labels,
)
from keras_calib.reporting.prediction_files.roles import find_roles

__all__ = ["PredictionFile", "Rows", "join_rows"]

# Rows that are checked when a file is opened.
_FIRST = 100


class Rows(NamedTuple):
    """Labels `(n, ...)` or votes, outputs `(n, ..., num_classes)`; or None.

    Top-1 records have correctness `(n,)` and confidences `(n,)` in their place.
    """

    labels: np.ndarray
    outputs: np.ndarray
    sample_weight: np.ndarray | None
    ids: np.ndarray | None = None
    groups: np.ndarray | None = None  # (n, attributes), as texts


class PredictionFile:
    """An `.npz`, `.csv`, `.tsv`, `.parquet` or `.jsonl` file of predictions.

    An `.npz` file has the arrays `labels` and `logits` or `probs`, and may
    have `sample_weight` and `class_names`. A table has a column `label` and
    columns `logit_0`, `logit_1`, ... or `prob_0`, `prob_1`, ..., in any
    order. Names of classes may take the place of numbers. Parquet and JSON
    may have lists in one column `logits` or `probs`.

    Top-1 records have a `confidence`, and `correct` or `predicted` and `label`.

    Other columns of classes are given by the start of their names, a pattern
    with one `*`, or a list with commas. With `votes` the labels may be so too.

    Args:
        path: The file.
        **options: Names of columns by their role, None for those of `ROLES`;
            `groups` are several. Besides them `class_names`, `ignore_class`,
            `votes`, and `separator` and `decimal` of a `.csv` file. Others are
            left alone.

    Raises:
        ImportError: If a table needs pyarrow.
        ValueError: If the file has another form, or its first values are not
            what they are called.

    Attributes:
        from_logits: Whether outputs are logits.
        num_classes: Number of classes; of top-1 records 2, right and wrong.
        num_rows: Number of samples, None if only reading tells.
        pixels: Whether a sample has several predictions.
        class_names: Names of the classes, or None.
        top1: Whether only the predicted class is known.
    """

    def __init__(self, path: Any, **options: Any):
        self._file = Table(
            path, options.get("separator"), options.get("decimal", ".")
        )
        self.num_rows = self._file.num_rows
        self._ignored = options.get("ignore_class")
        self.group_names = options.get("groups", ())
        named = self._file.array("class_names")
        if named is not None:
            own = [str(x) for x in named.reshape(-1)]
            if options.get("class_names") not in (None, own):
                raise value_error(
                    f"`class_names` of {self._file.path.name} must be those "
                    "of the other files, or of --class-names, in one order",
                    class_names=own[:20],
                )
            options["class_names"] = own
        name, names = self._file.path.name, self._file.names
        self._roles = roles = find_roles(name, names, options)
        self.from_logits, self.top1 = roles.from_logits, roles.top1
        self.class_names = roles.class_names
        # Top-1 records may say what was right in place of labels.
        self._of_correctness = roles.top1 and roles.predicted is None
        if self._of_correctness and self._ignored is not None:
            raise value_error(
                f"`{roles.labels}` of {name} has no classes to leave out",
                ignore_class=self._ignored,
            )
        outputs = next(self.batches(_FIRST)).outputs
        if (array := self._file.array(roles.outputs[0])) is not None:
            self.num_rows = len(array)
        if self.from_logits:
            check_no_probabilities(outputs, "logits")
        # A single column is the probability of the second of two classes.
        self.num_classes = 2 if self.top1 else max(2, outputs.shape[-1])
        self.pixels = outputs.ndim > 2

    def batches(self, size: int) -> Iterator[Rows]:
        """The samples, `size` at a time.

        Raises ValueError if there are none, or one cannot be read.
        """
        waiting: list[Rows] = []
        count = found = 0
        for part in self._read():
            found += len(part.labels)
            count += len(part.labels)
            waiting.append(part)
            if count < size:
                continue
            rows = join_rows(waiting)
            for start in range(0, count - size + 1, size):
                yield _cut(rows, slice(start, start + size))
            waiting = [_cut(rows, slice(count - count % size, None))]
            count %= size
        if not found:
            raise value_error(
                "the file must have samples", file=str(self._file.path)
            )
        if count:
            yield join_rows(waiting)

    def read(self) -> Rows:
        """All samples."""
        return join_rows([*self.batches(4096)])

    def _class_columns(self) -> list[str]:
        """The columns of labels and of predicted classes."""
        if self._roles.votes:
            return []
        return [x for x in (self._roles.labels, self._roles.predicted) if x]

    def _columns(self) -> Iterator[dict[str, np.ndarray]]:
        """All columns that are read, piece by piece."""
        roles, classes = self._roles, self._class_columns()
        texts = sorted({roles.ids or "", *self.group_names} - {"", *classes})
        numbers = [*roles.outputs, *roles.votes]
        numbers += [roles.weights] if roles.weights else []
        named = self.class_names and not self._has_numbers_for_names
        if roles.predicted or (named and not self._file.is_typed):
            # As texts: pyarrow would read names like "true" as booleans.
            yield from self._file.parts([*texts, *classes], numbers)
        else:
            yield from self._file.parts(texts, numbers, classes)

    @property
    def _has_numbers_for_names(self) -> bool:
        return all(map(str.isdecimal, self.class_names or ("unknown",)))

    def _read(self) -> Iterator[Rows]:
        start = 0
        for part in self._columns():
            rows = self._rows(part, start)
            yield rows
            start += len(rows.labels)

    def _rows(self, part: dict[str, np.ndarray], start: int) -> Rows:
        roles = self._roles
        if self.top1:
            return self._top1_rows(part, start)
        if roles.votes:
            labels = _of_columns(part, roles.votes, not self._file.is_arrays)
        else:
            labels = self._class_ids(part[roles.labels], roles.labels, start)
        # One number in a row of a table is that of the second of two classes.
        outputs = _of_columns(part, roles.outputs, not self._file.is_arrays)
        weight = part[roles.weights] if roles.weights else None
        ids = part[roles.ids] if roles.ids else None
        rows = Rows(labels, outputs, weight, ids, self._groups(part))
        self._check_shapes(rows)
        self._check_values(rows, start)
        return rows

    def _class_ids(
        self, values: np.ndarray, name: str, start: int
    ) -> np.ndarray:
        """Whole numbers of ids, of names of classes, or of right and wrong."""
        bad, ids = self._file.bad_value, values
        is_text = values.dtype.kind in "OU"
        if is_text and self.class_names is None:
            raise bad(
                name,
                "must hold numbers, or names of the classes that --class-names "
                "lists, in every row",
            )
        if is_text or (self._has_numbers_for_names and values.ndim == 1):
            ids = self._ids_of_names(values, name, start)
        if ids.dtype.kind not in "biuf":
            raise bad(name, "must hold numbers in every row")
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
                place = int(text) if text.isdecimal() else None
            if place is None:
                raise self._file.bad_value(
                    name,
                    "must be the name of a class in every row; --class-names "
                    "gives the names, in the order of the class ids",
                    start + row * len(values) // values.size,
                    value=text,
                    class_names=names[:20],
                )
            ids.append(place)
        return np.asarray(ids, int).reshape(values.shape)

    def _groups(self, part: dict[str, np.ndarray]) -> np.ndarray | None:
        own = [part[x].astype(str).astype(object) for x in self.group_names]
        return np.stack(own, axis=-1) if own else None

    def _top1_rows(self, part: dict[str, np.ndarray], start: int) -> Rows:
        """Correctness and confidences of records of the predicted class."""
        roles, (name,) = self._roles, self._roles.outputs
        confidence = part[name].astype("float64")
        weight = part[roles.weights] if roles.weights else None
        if roles.predicted is None:
            labels = part[roles.labels]
            correct = flags_of(self._file, roles.labels, labels, start)
        else:
            labels, predicted = (
                self._names_of(part[x], x, start)
                for x in (roles.labels, roles.predicted)
            )
            correct = same_labels(labels, predicted)
            if self._ignored is not None:
                counts = labels != str(self._ignored)
                weight = counts * (1.0 if weight is None else weight)
        ids = part[roles.ids] if roles.ids else None
        correct = correct.astype("int64")
        rows = Rows(correct, confidence, weight, ids, self._groups(part))
        if any(x.shape[:1] != confidence.shape for x in rows if x is not None):
            raise value_error(
                f"{self._file.path.name} must have one value in each row and "
                "column",
                shapes=[x.shape for x in rows if x is not None],
            )
        self._check_weights(weight, start)
        self._file.check(
            name,
            (confidence >= 0.0) & (confidence <= 1.0),
            "must be the probability of the predicted class, from 0 to 1, in "
            "every row",
            start,
            confidence,
        )
        return rows

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
        shapes = [x.shape for x in rows if x is not None]
        if () in shapes or rows.outputs.ndim < 2 or not shapes[1][-1]:
            raise value_error(
                f"{self._file.path.name} must have an axis of samples, and in "
                f"`{self._roles.outputs[0]}` a last one of classes; values of "
                "the second of two classes alone are a column, of shape (n, 1)",
                shapes=shapes,
            )
        if len({shape[0] for shape in shapes}) > 1:
            raise value_error(
                f"{self._file.path.name} must have arrays of one length",
                shapes=shapes,
            )

    def _check_ids(
        self, ids: np.ndarray, num_classes: int, name: str, start: int
    ) -> np.ndarray:
        """Raises for the first id of no class; where labels count."""
        counts = np.ones(ids.shape, bool)
        if self._ignored is not None:
            counts = ids != self._ignored
        is_id = (ids >= 0) & (ids < num_classes) & (ids == np.rint(ids))
        rule = f"must hold class ids in [0, {num_classes}) in every row"
        self._file.check(name, is_id | ~counts, rule, start, ids)
        return counts

    def _check_values(self, rows: Rows, start: int) -> None:
        """Raises for the first row that counts and cannot be read."""
        outputs, num_classes = rows.outputs, rows.outputs.shape[-1]
        counts = np.ones(outputs.shape[:-1], bool)
        if rows.labels.shape == counts.shape and num_classes > 1:
            counts = self._check_ids(
                rows.labels, num_classes, self._roles.labels, start
            )
        weight = rows.sample_weight
        self._check_weights(weight, start)
        if weight is not None and weight.ndim <= counts.ndim:
            lead = weight.reshape(
                weight.shape + (1,) * (counts.ndim - weight.ndim)
            )
            counts = counts & (lead != 0)
        self._check_votes(rows, counts, start)
        wrong = counts & ~usable_outputs(outputs, self.from_logits)
        if wrong.any():
            index = tuple(np.argwhere(wrong)[0])
            raise self._unusable(outputs[index], start + int(index[0]))

    def _check_weights(self, weight: np.ndarray | None, start: int) -> None:
        if weight is None or self._roles.weights is None:
            return
        good = (weight >= 0) & np.isfinite(weight)
        rule = "must be finite and >= 0 in every row"
        self._file.check(self._roles.weights, good, rule, start, weight)

    def _check_votes(self, rows: Rows, counts: np.ndarray, start: int) -> None:
        """Raises unless labels are votes where, and only where, they must be.

        `counts` says of which predictions the labels count.
        """
        labels, shape = rows.labels, rows.outputs.shape
        num_classes, name = shape[-1], self._roles.labels
        if not self._roles.votes:
            if labels.shape != shape or num_classes < 2:
                return
            one: Any = labels.max(axis=-1) == 1
            good = one & (np.abs(labels).sum(axis=-1) == 1)
            rule = (
                "must be class ids, or rows with one 1; --votes reads rows of "
                "annotators' votes, and in Python `report` takes several "
                "labels at once, as `Predictions(labels, outputs, "
                "multi_label=True)`"
            )
        else:
            name, *others = self._roles.votes
            if others:
                name = f"{name}` to `{others[-1]}"
            widths = (1, 2) if num_classes == 1 else (num_classes,)
            if (
                labels.shape[:-1] != shape[:-1]
                or labels.shape[-1] not in widths
            ):
                raise value_error(
                    f"`{name}` must have rows of {num_classes} votes, one "
                    "number for each class, with --votes; class ids need no "
                    "--votes",
                    shape=labels.shape,
                    predictions=shape,
                )
            votes = labels.astype("float64")
            if votes.shape[-1] == 1:
                votes = np.concatenate([1.0 - votes, votes], axis=-1)
            labels = votes
            good = shares_of_rows(votes)[1]
            rule = (
                "must be counts of votes, which are whole numbers, or shares "
                "that sum to 1, with a vote in every row; give a row without "
                "votes a weight of 0"
            )
        self._file.check(name, good | ~counts, rule, start, labels)

    def _unusable(self, values: np.ndarray, row: int) -> ValueError:
        """The error of outputs that are no logits or no probabilities."""
        bad, name = self._file.bad_value, self._roles.outputs[0]
        harmful = np.isnan(values) | (values == np.inf)
        if harmful.any():
            if len(self._roles.outputs) > 1:
                name = self._roles.outputs[int(harmful.argmax())]
            value = float(values[harmful.argmax()])
            return bad(
                name, "must not contain NaN or infinity", row, value=value
            )
        if self.from_logits:
            return bad(name, "must have a finite logit in every row", row)
        if len(self._roles.outputs) > 1:
            name = f"{name}` to `{self._roles.outputs[-1]}"
        return bad(
            name,
            "must be probabilities in [0, 1], and must sum to 1 over the "
            "classes, in every row; if they are logits, say so: the array "
            "`logits`, columns `logit_0`, ..., or --logits",
            row,
            values=np.round(values[:5].astype("float64"), 6).tolist(),
            sum=round(float(values.sum()), 6),
        )


def _of_columns(
    part: dict[str, np.ndarray], names: Sequence[str], by_row: bool
) -> np.ndarray:
    """Rows of the columns of classes, or of the one that has them all."""
    if len(names) > 1:
        return np.stack([part[x] for x in names], axis=-1)
    values = part[names[0]]
    return values[:, None] if by_row and values.ndim == 1 else values


def _cut(rows: Rows, part: slice) -> Rows:
    arrays: list[Any] = [None if x is None else x[part] for x in rows]
    return Rows(*arrays)


def join_rows(parts: list[Rows]) -> Rows:
    """Joins parts of a file."""
    if len(parts) == 1:
        return parts[0]
    arrays: list[Any] = [
        None if column[0] is None else np.concatenate(column)
        for column in zip(*parts, strict=True)
    ]
    return Rows(*arrays)

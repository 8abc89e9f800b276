"""Labels and predictions of a file, read and checked piece by piece."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.rows import check_no_probabilities, usable_outputs
from keras_calib.inputs.values import in_unit_interval
from keras_calib.reporting.prediction_files.answer_log import correctness_of
from keras_calib.reporting.prediction_files.columns import ColumnFile
from keras_calib.reporting.prediction_files.roles import Columns, find_roles
from keras_calib.reporting.prediction_files.vote_rows import (
    check_are_votes,
    check_no_votes,
    votes_of,
)

__all__ = ["LEAST_CONFIDENCE", "PredictionFile", "Rows", "join_rows"]

# Rows that are checked when a file is opened.
_FIRST = 100
# A smaller confidence would need more classes than a page can be made of.
LEAST_CONFIDENCE = 1e-5


class Rows(NamedTuple):
    """Labels `(n, ...)` or votes, outputs `(n, ..., num_classes)`; or None."""

    labels: np.ndarray
    outputs: np.ndarray
    sample_weight: np.ndarray | None
    ids: np.ndarray | None = None
    groups: np.ndarray | None = None  # (n, attributes), as texts


class PredictionFile:
    """An `.npz`, `.csv`, `.tsv` or `.parquet` file of predictions.

    An `.npz` file has the arrays `labels` and `logits` or `probs`, and may
    have `sample_weight` and `class_names`. A table has a column `label` and
    columns `logit_0`, `logit_1`, ... or `prob_0`, `prob_1`, ..., in any
    order. Names of classes may take the place of numbers. Parquet may have
    lists in one column `logits` or `probs`. `Columns` gives other names.

    Top-1 records become probabilities of as many classes as the confidences
    need, which the classes that were not predicted share equally. What
    depends on these, as NLL and Brier score do, is not to be computed.

    Raises ImportError if a table needs pyarrow, ValueError if the file has
    another form, or its first values are not what they are called.

    Attributes:
        from_logits: Whether outputs are logits.
        num_classes: Number of classes.
        num_rows: Number of samples, None if only reading tells.
        pixels: Whether a sample has several predictions.
        class_names: Names of the classes, or None.
        top1: Whether only the predicted class is known.
        least: The least confidence of top-1 records.
    """

    def __init__(self, path: Any, columns: Columns | None = None):
        columns = columns or Columns()
        self._file = ColumnFile(path, columns.separator, columns.decimal)
        self.num_rows = self._file.num_rows
        self._ignored = columns.ignore_class
        self.group_names = columns.groups
        named = self._file.array("class_names")
        if named is not None:
            own = [str(x) for x in named.reshape(-1)]
            if columns.class_names not in (None, own):
                raise value_error(
                    f"`class_names` of {self._file.path.name} must be those "
                    "of the other files, or of --classes, in the same order",
                    class_names=own[:20],
                )
            columns = columns._replace(class_names=own)
        name, names = self._file.path.name, self._file.names
        self._roles = roles = find_roles(name, names, columns)
        self.from_logits, self.top1 = roles.from_logits, roles.top1
        self.class_names = roles.class_names
        # Top-1 records may say what was right in place of labels.
        self._of_correctness = roles.top1 and roles.predicted is None
        if self._of_correctness:
            if self._ignored is not None:
                raise value_error(
                    f"`{roles.labels}` of {name} has no classes to leave out",
                    ignore_class=self._ignored,
                )
            self.class_names = ["right", "wrong"]
        if self.top1:
            self._size_top1()
        outputs = next(self.batches(_FIRST)).outputs
        if (array := self._file.array(roles.outputs[0])) is not None:
            self.num_rows = len(array)
        if self.from_logits:
            check_no_probabilities(outputs, "logits")
        # A single column is the probability of the second of two classes.
        self.num_classes = max(2, outputs.shape[-1])
        self.pixels = outputs.ndim > 2

    def batches(self, size: int) -> Iterator[Rows]:
        """The samples, `size` at a time.

        Raises ValueError if there are none, or one cannot be read.
        """
        waiting: list[Rows] = []
        count = 0
        for part in self._read():
            count += len(part.labels)
            waiting = [join_rows([*waiting, part])]
            while len(waiting[0].labels) >= size:
                yield _cut(waiting[0], slice(size))
                waiting = [_cut(waiting[0], slice(size, None))]
        if not count:
            raise value_error(
                "the file must have samples", file=str(self._file.path)
            )
        if len(waiting[0].labels):
            yield waiting[0]

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
        if named and not self._file.is_typed and not self._of_correctness:
            # As texts: pyarrow would read names like "true" as booleans.
            yield from self._file.parts([*texts, *classes], numbers, [])
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
        if roles.votes:
            labels = votes_of(part, [*roles.votes], self._file.is_table)
        else:
            labels = self._class_ids(part[roles.labels], roles.labels, start)
        if self.top1:
            outputs = self._spread(part, start)
        elif len(roles.outputs) > 1:
            outputs = np.stack([part[x] for x in roles.outputs], axis=-1)
        else:
            outputs = part[roles.outputs[0]]
            if self._file.is_table and outputs.ndim == 1:
                # One number in a row is that of the second of two classes.
                outputs = outputs[:, None]
        if self._of_correctness:
            # Classes are "right", which is always predicted, and "wrong".
            labels = 1 - labels
        weight = part[roles.weights] if roles.weights else None
        ids = part[roles.ids] if roles.ids else None
        own = [part[x].astype(str).astype(object) for x in self.group_names]
        grouped = np.stack(own, axis=-1) if own else None
        rows = Rows(labels, outputs, weight, ids, grouped)
        self._check_shapes(rows)
        self._check_values(rows, start)
        return rows

    def _class_ids(
        self, values: np.ndarray, name: str, start: int
    ) -> np.ndarray:
        """Whole numbers of ids, of names of classes, or of right and wrong."""
        bad, ids = self._file.bad_value, values
        if self._of_correctness:
            return correctness_of(self._file, name, values, start)
        is_text = values.dtype.kind in "OU"
        if is_text and self.class_names is None:
            raise bad(
                name,
                "must hold numbers, or names of the classes that --classes "
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
                    "must be the name of a class in every row; --classes "
                    "gives the names, in the order of the class ids",
                    start + row * len(values) // values.size,
                    value=text,
                    class_names=names[:20],
                )
            ids.append(place)
        return np.asarray(ids, int).reshape(values.shape)

    def _size_top1(self) -> None:
        """Finds how many classes the top-1 records are spread over."""
        least, most, seen, start = 1.0, 1, set(), 0
        for part in self._columns():
            confidence = part[self._roles.outputs[0]]
            right = (confidence >= LEAST_CONFIDENCE) & in_unit_interval(
                confidence
            )
            if confidence.ndim > 1 or not right.all():
                row = int(np.argmin(right))
                raise self._file.bad_value(
                    self._roles.outputs[0],
                    "must be the probability of the predicted class, from "
                    f"{LEAST_CONFIDENCE:g} to 1, in every row",
                    start + row,
                    value=confidence[row].tolist(),
                )
            start += len(confidence)
            least = min(least, float(confidence.min(initial=1.0)))
            if self._of_correctness:
                continue
            for name in self._class_columns():
                values = part[name]
                if not len(values):
                    continue
                if values.dtype.kind in "OU" and self.class_names is None:
                    seen |= {*map(str, values)}
                else:
                    ids = self._class_ids(values, name, start - len(values))
                    if not ids.max() < 1e6:
                        rule = "must be class ids below a million, or names"
                        raise self._file.bad_value(name, rule)
                    most = max(most, int(ids.max()))
        if seen:
            self.class_names = sorted(seen)
        # So many that no other class is as probable as the predicted one.
        named = len(self.class_names or ())
        self.least = least
        self.widen(max(most + 1, named, int(1.0 / least) + 2))

    def widen(self, num_classes: int) -> None:
        """Spreads top-1 records over so many classes."""
        self.num_classes = num_classes
        if names := list(self.class_names or ()):
            spare = num_classes - len(names)
            self.class_names = names + ["another class"] * spare

    def _spread(self, part: dict[str, np.ndarray], start: int) -> np.ndarray:
        """Probabilities of all classes for top-1 records."""
        confidence = part[self._roles.outputs[0]].astype("float64")
        predicted = np.zeros(len(confidence), int)
        if self._roles.predicted:
            name = self._roles.predicted
            predicted = self._class_ids(part[name], name, start).astype(int)
            self._check_ids(predicted, self.num_classes, name, start)
        rest = (1.0 - confidence) / (self.num_classes - 1)
        outputs = np.repeat(rest[:, None], self.num_classes, axis=1)
        outputs[np.arange(len(outputs)), predicted] = confidence
        return outputs

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
        wrong = counts & ~(
            (ids >= 0) & (ids < num_classes) & (ids == np.rint(ids))
        )
        if wrong.any():
            index = tuple(np.argwhere(wrong)[0])
            raise self._file.bad_value(
                name,
                f"must hold class ids in [0, {num_classes}) in every row",
                start + int(index[0]),
                value=ids[index].item(),
            )
        return counts

    def _check_values(self, rows: Rows, start: int) -> None:
        """Raises for the first row that counts and cannot be read."""
        outputs, num_classes = rows.outputs, rows.outputs.shape[-1]
        counts = np.ones(outputs.shape[:-1], bool)
        if rows.labels.shape == counts.shape and num_classes > 1:
            counts = self._check_ids(
                rows.labels, num_classes, self._roles.labels, start
            )
        name, weight = self._roles.weights, rows.sample_weight
        if name is not None and weight is not None:
            (wrong, *_) = np.nonzero(~((weight >= 0) & np.isfinite(weight)))
            if len(wrong):
                raise self._file.bad_value(
                    name,
                    "must be finite and >= 0 in every row",
                    start + int(wrong[0]),
                    value=weight[wrong[0]].tolist(),
                )
            if weight.ndim <= counts.ndim:
                lead = weight.reshape(
                    weight.shape + (1,) * (counts.ndim - weight.ndim)
                )
                counts = counts & (lead != 0)
        roles, place = self._roles, (rows.labels, outputs, counts, start)
        if roles.votes:
            check_are_votes(self._file, [*roles.votes], *place)
        else:
            check_no_votes(self._file, roles.labels, *place)
        wrong = counts & ~usable_outputs(outputs, self.from_logits)
        if wrong.any():
            index = tuple(np.argwhere(wrong)[0])
            raise self._unusable(outputs[index], start + int(index[0]))

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

"""Files of columns, and of `Predictions` that `read` takes as they are."""

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import path_of, replacing, safe_cell
from keras_calib.backend.late import imported
from keras_calib.inputs.groups import as_groups, name_of
from keras_calib.predictions.columns import spread_over
from keras_calib.predictions.predictions import Predictions
from keras_calib.predictions.reader import CLASS_NAMES
from keras_calib.predictions.roles import GROUP, TRUTHS
from keras_calib.predictions.tables import ENDINGS

# Columns that may have one value for each class.
_OF_CLASSES = "logits", "probs", *(names[0] for names in TRUTHS.values())


def write_predictions(predictions: Predictions, path: Any) -> None:
    """Writes a file, as `Predictions.write`."""
    # A model is asked before, as only then its weights are known.
    len(predictions)
    write_columns(path, _arrays(predictions), _tables(predictions))


def write_columns(
    path: Any, arrays: dict[str, Any], parts: Iterable[dict[str, np.ndarray]]
) -> Path:
    """Writes a file that a `Table` reads, whole or not at all.

    Args:
        path: The file, of one of the `ENDINGS`.
        arrays: What a `.npz` file holds.
        parts: What others hold, in parts of columns of one length. Rows of
            numbers are lists, or in text files a column for each place.

    Returns:
        The path.

    Raises:
        ImportError: If parquet needs pyarrow.
        ValueError: If the path has another ending.
    """
    path = path_of(path)
    kind = path.suffix.lower()
    if kind not in ENDINGS:
        raise value_error(
            f"`path` must end in one of {', '.join(ENDINGS)}", path=str(path)
        )
    with replacing(path, text=kind not in (".npz", ".parquet")) as file:
        if kind == ".npz":
            np.savez(file, **arrays)
        elif kind == ".parquet":
            _write_parquet(file, parts)
        elif kind in (".csv", ".tsv"):
            separator = "," if kind == ".csv" else "\t"
            _write_text(file, map(_spread, parts), separator)
        else:
            _write_lines(file, parts)
    return path


def _arrays(p: Predictions) -> dict[str, Any]:
    """The columns of predictions by their names in a file."""
    arrays = {
        **_outcomes(p),
        "sample_weight": _weights(p),
        "units": p.units,
        "ids": p.ids,
        **{k if k == GROUP else f"{GROUP}_{k}": x for k, x in p.groups.items()},
    }
    if p.class_names is not None:
        arrays[CLASS_NAMES] = np.array(p.class_names, str)
    return {k: _plain(x) for k, x in arrays.items() if x is not None}


def _outcomes(p: Predictions) -> dict[str, np.ndarray]:
    """What was right, or labels and outputs."""
    if p.kind == "records":
        return {"correct": p.labels, "confidence": p.outputs}
    outputs = "logits" if p.from_logits else "probs"
    return {TRUTHS[p.kind][0]: _labels(p), outputs: p.outputs}


def _labels(p: Predictions) -> np.ndarray:
    """The labels, as names where a class is called by a number.

    There the reader would take an id for a name.
    """
    names, labels = p.class_names or (), p.labels
    is_id = p.kind == "classes" and labels.ndim < p.outputs.ndim
    if not is_id or not any(map(str.isdecimal, names)):
        return labels
    places = dict(enumerate(names))
    texts = [places.get(k, str(k)) for k in labels.ravel().tolist()]
    return np.array(texts, str).reshape(labels.shape)


def _weights(p: Predictions) -> np.ndarray | None:
    """Weights, which are 0 for what is of the ignored class."""
    weight, ignored = p.sample_weight, p.ignore_class
    is_id = p.kind == "labels" or p.labels.ndim < p.outputs.ndim
    if ignored is None or not is_id or p.kind == "records":
        return weight
    counts = p.labels != ignored
    if counts.all():
        return weight
    if weight is None:
        return counts.astype("float32")
    return counts * spread_over(weight, counts.shape)


def _plain(values: Any) -> np.ndarray:
    """Numbers, or texts where values are objects."""
    array = as_groups(values)
    if array.dtype.kind in "OS":
        texts = np.array([name_of(x) for x in array.flat], str)
        return texts.reshape(array.shape)
    return array.astype("int8") if array.dtype == bool else array


def _tables(p: Predictions) -> Iterator[dict[str, np.ndarray]]:
    """Columns of a value, or of a list, for each prediction, part by part."""
    start = 0
    for part in p.batches():
        lead = part.shape
        columns = _arrays(part)
        if len(lead) > 1:
            columns.setdefault("units", np.arange(start, start + len(part)))
        if columns.pop(CLASS_NAMES, None) is not None:
            names = np.full(lead, "", object)
            if not start:
                names.flat[0] = json.dumps(p.class_names)
            columns[CLASS_NAMES] = names
        yield {k: _in_rows(k, x, lead) for k, x in columns.items()}
        start += len(part)


def _in_rows(name: str, values: np.ndarray, lead: tuple) -> np.ndarray:
    """For each prediction a value, or one for each class, which may be one."""
    count = int(np.prod(lead))
    is_of_classes = name in _OF_CLASSES and values.ndim > len(lead)
    if values.size > count or is_of_classes:
        return values.reshape(count, values.shape[-1])
    return spread_over(values, lead).reshape(count)


def _spread(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A column of numbers for each class, in the place of lists."""
    found = {}
    for name, values in columns.items():
        if values.ndim == 1:
            found[name] = values
            continue
        for k, column in enumerate(values.T):
            found[f"{name.removesuffix('s')}_{k}"] = column
    return found


def _write_text(
    file: IO[str], parts: Iterable[dict[str, np.ndarray]], separator: str
) -> None:
    writer = csv.writer(file, delimiter=separator, lineterminator="\n")
    for number, part in enumerate(parts):
        if not number:
            writer.writerow(map(safe_cell, part))
        # As Python's numbers, whose digits are all that the values have.
        rows = zip(*(x.tolist() for x in part.values()), strict=True)
        writer.writerows(map(safe_cell, row) for row in rows)


def _write_lines(file: IO[str], parts: Iterable[dict[str, np.ndarray]]) -> None:
    for part in parts:
        for row in zip(*(x.tolist() for x in part.values()), strict=True):
            record = dict(zip(part, row, strict=True))
            if not record.get(CLASS_NAMES, "."):
                del record[CLASS_NAMES]
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _write_parquet(
    file: IO[bytes], parts: Iterable[dict[str, np.ndarray]]
) -> None:
    pa = imported("pyarrow", "Writing parquet", "report")
    parquet = imported("pyarrow.parquet", "Writing parquet", "report")
    writer = None
    for part in parts:
        columns = {}
        for name, values in part.items():
            if values.ndim == 1:
                columns[name] = pa.array(values)
                continue
            count, size = values.shape
            places = np.arange(count + 1, dtype="int32") * size
            cells = pa.array(np.ascontiguousarray(values).reshape(-1))
            columns[name] = pa.ListArray.from_arrays(places, cells)
        table = pa.table(columns)
        if writer is None:
            writer = parquet.ParquetWriter(file, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()

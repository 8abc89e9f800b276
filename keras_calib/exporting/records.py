"""Records of the data that chose a threshold, for who checks its guarantee."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid, type_error, value_error
from keras_calib.backend.files import path_of, replacing, safe_cell, write_csv
from keras_calib.selection import SelectiveClassifier
from keras_calib.selection.data_hash import cost_rows, rows_of

__all__ = ["check_like_fit", "save_records"]

# Nine digits give each float32 back, and 17 each float64.
_FORMATS = {"score": "%.9g", "cost": "%.17g", "correct": "%d"}


def save_records(selector: SelectiveClassifier, path: Any) -> Path:
    """Writes the score and correctness of each sample that chose a threshold.

    Use it to give an auditor what `python -m keras_calib verify --data` reads.
    Rows are sorted by group and score, so that they do not tell which sample is
    which.

    Args:
        selector: A selective classifier that was fitted in this process.
        path: File that ends in `.npz`, `.csv` or `.parquet`. Its columns are
            `score` (float32) and `correct` (0 or 1); also `group` after a fit
            with groups, and `cost` (float64) after one with costs.

    Returns:
        The path.

    Raises:
        ValueError: If the path has another ending, the samples have weights,
            or a name of a group has a line break or begins as a formula in a
            `.csv` file.
        RuntimeError: If the selector was loaded, or not fitted.
        ImportError: If pyarrow is missing, which parquet needs.

    Example:

    >>> import tempfile
    >>> selector = SelectiveClassifier(score="logit_margin")
    >>> logits = [[4.0, 0.0], [0.0, 3.0], [2.0, 0.0]]
    >>> selector = selector.fit([0, 1, 1], logits, risk=0.0)
    >>> save_records(selector, tempfile.mkdtemp() + "/records.npz").name
    'records.npz'

    Reference:
        https://parquet.apache.org
    """
    path = path_of(path)
    kind = path.suffix.lower()
    if kind not in (".npz", ".csv", ".parquet"):
        raise value_error(
            "`path` must end in .npz, .csv or .parquet", path=str(path)
        )
    if not isinstance(selector, SelectiveClassifier):
        raise type_error(
            "`selector` must be a SelectiveClassifier",
            selector=type(selector).__name__,
        )
    check_like_fit(selector, "`save_records`")
    columns = _columns(selector)
    # The hash of the certificate is of the names as they are.
    odd = [x for x in map(str, selector.groups) if not _is_plain(x)]
    if kind == ".csv" and odd:
        raise value_error(
            "`path` must end in .npz or .parquet where names of groups have "
            "line breaks, or begin as formulas of a spreadsheet do",
            group=odd[0],
        )
    with replacing(path) as file:
        if kind == ".npz":
            np.savez_compressed(file, **columns)
        elif kind == ".csv":
            _write_csv(file, columns)
        else:
            _write_parquet(file, columns)
    return path


def check_like_fit(selector: Any, what: str) -> None:
    """Raises ValueError if the guarantee is for other data than the fit's.

    `what` names the caller in the error.
    """
    chosen = getattr(selector, "chosen", None)
    if chosen is not None and chosen.kind in ("prior", "mixtures"):
        raise value_error(
            f"{what} needs a `selector` whose guarantee is for data like those "
            "of its fit: certificates are not for `target_prior` and "
            "`one_threshold`",
            kind=chosen.kind,
        )


def _columns(selector: SelectiveClassifier) -> dict[str, Any]:
    """The columns of the records by name, in canonical order."""
    chosen = selector.chosen
    tables = () if chosen is None else chosen.tables
    ladders = [ladder for ladder, *_ in tables]
    if selector.groups and ladders:
        names, parts = [], []
        for name, one in zip(selector.groups, ladders, strict=True):
            if one is not None:
                _check_counts(one.counts)
                parts.append(rows_of(one))
                names += [name] * len(parts[-1][0])
        score, correct = (np.concatenate(x) for x in zip(*parts, strict=True))
        return {"group": np.array(names), "score": score, "correct": correct}
    if chosen is None or not ladders:
        raise RuntimeError(
            invalid(
                "`selector` must have its data, which loaded layers do not "
                "keep: call this after `fit`",
                fitted=selector.fitted,
            )
        )
    found = ladders[0]
    _check_counts(found.counts)
    if chosen.cost_rows is not None:
        score, cost, correct = cost_rows(*chosen.cost_rows)
        return {"score": score, "cost": cost, "correct": correct}
    score, correct = rows_of(found)
    return {"score": score, "correct": correct}


def _check_counts(counts: bool) -> None:
    if not counts:
        raise value_error(
            "`selector` must be fitted on samples without weights", counts=False
        )


def _write_csv(file: Any, columns: dict[str, np.ndarray]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    written = [
        map(_FORMATS[name].__mod__, values.tolist())
        if name in _FORMATS
        else values.tolist()
        for name, values in columns.items()
    ]
    write_csv(text, [columns, *zip(*written, strict=True)])
    text.detach()


def _is_plain(name: str) -> bool:
    """Whether CSV keeps a name as it is."""
    return not {"\n", "\r"} & {*name} and safe_cell(name) == name


def _write_parquet(file: Any, columns: dict[str, np.ndarray]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "Writing parquet needs pyarrow: pip install 'keras-calib[report]'"
        ) from error
    pyarrow.parquet.write_table(pyarrow.table(columns), file)

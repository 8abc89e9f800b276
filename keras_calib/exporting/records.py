"""Records of the data that chose a threshold, for who checks its guarantee."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error
from keras_calib.backend.files import replacing
from keras_calib.selection import MixtureThreshold
from keras_calib.selection import PriorThreshold
from keras_calib.selection import SelectiveClassifier
from keras_calib.selection.data_hash import rows_of

__all__ = ["check_certified_kind", "save_records"]


def save_records(selector: SelectiveClassifier, path: Any) -> Path:
    """Writes the score and correctness of each sample that chose a threshold.

    Use it to give an auditor what `python -m keras_calib verify --data` reads.
    Rows are sorted by score, so that they do not tell which sample is which.

    Args:
        selector: A selective classifier that was fitted in this process.
        path: File that ends in `.npz`, `.csv` or `.parquet`. Its columns are
            `score` (float32) and `correct` (0 or 1).

    Returns:
        The path.

    Raises:
        ValueError: If the path has another ending, or the samples have
            weights. If it has costs or thresholds by group.
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
    path = Path(path).expanduser()
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
    check_certified_kind(selector, "`save_records`")
    if selector._table is None:
        raise RuntimeError(
            invalid(
                "`selector` must have its data, which loaded layers do not "
                "keep: call this after `fit`",
                fitted=selector.fitted,
            )
        )
    found = selector._table[0]
    if not found.counts:
        raise value_error(
            "`selector` must be fitted on samples without weights", counts=False
        )
    score, correct = rows_of(found)
    with replacing(path) as file:
        if kind == ".npz":
            np.savez_compressed(file, score=score, correct=correct)
        elif kind == ".csv":
            file.write(b"score,correct\n")
            # Nine digits give each float32 back.
            np.savetxt(file, np.stack([score, correct], -1), "%.9g,%d")
        else:
            _write_parquet(file, score, correct)
    return path


def check_certified_kind(selector: Any, what: str) -> None:
    """Raises ValueError for kinds of thresholds that no certificate is for.

    `what` names the caller in the error.
    """
    if getattr(selector, "costs", None) is not None:
        raise value_error(
            f"{what} needs a `selector` without `costs`: certificates are for "
            "the share of errors alone",
            **{"costs.shape": selector.costs.shape},
        )
    if getattr(selector, "groups", ()):
        raise value_error(
            f"{what} needs a `selector` with one threshold for all: "
            "certificates are not for thresholds by group",
            groups=len(selector.groups),
        )
    if isinstance(
        getattr(selector, "chosen", None), PriorThreshold | MixtureThreshold
    ):
        raise value_error(
            f"{what} needs a `selector` whose guarantee is for data like those "
            "of its fit: certificates are not for `target_prior` and "
            "`one_threshold`",
            chosen=type(selector.chosen).__name__,
        )


def _write_parquet(file: Any, score: np.ndarray, correct: np.ndarray) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "Writing parquet needs pyarrow: pip install 'keras-calib[report]'"
        ) from error
    table = pyarrow.table({"score": score, "correct": correct})
    pyarrow.parquet.write_table(table, file)

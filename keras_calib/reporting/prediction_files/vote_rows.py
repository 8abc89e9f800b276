"""Rows of annotators' votes in files of predictions."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.readers import shares_of_rows
from keras_calib.reporting.prediction_files.columns import ColumnFile

__all__ = ["check_are_votes", "check_no_votes", "votes_of"]


def votes_of(
    part: dict[str, np.ndarray], names: list[str], is_table: bool
) -> np.ndarray:
    """Rows of votes from their columns, or from the one that has them."""
    if len(names) > 1:
        return np.stack([part[x] for x in names], axis=-1)
    votes = part[names[0]]
    # One number in a row of a table is the share of the second class.
    return votes[:, None] if is_table and votes.ndim == 1 else votes


def check_are_votes(
    file: ColumnFile,
    names: list[str],
    votes: np.ndarray,
    outputs: np.ndarray,
    counts: np.ndarray,
    start: int,
) -> None:
    """Raises ValueError unless labels are rows of votes for the outputs."""
    num_classes = outputs.shape[-1]
    widths = (1, 2) if num_classes == 1 else (num_classes,)
    name = names[0]
    if len(names) > 1:
        name = f"{name}` to `{names[-1]}"
    lead = outputs.shape[:-1]
    if votes.shape[:-1] != lead or votes.shape[-1] not in widths:
        raise value_error(
            f"`{name}` must have rows of {num_classes} votes, one number for "
            "each class, with --votes; class ids need no --votes",
            shape=votes.shape,
            predictions=outputs.shape,
        )
    votes = votes.astype("float64")
    if votes.shape[-1] == 1:
        votes = np.concatenate([1.0 - votes, votes], axis=-1)
    wrong = counts & ~shares_of_rows(votes)[1]
    if wrong.any():
        index = tuple(np.argwhere(wrong)[0])
        raise file.bad_value(
            name,
            "must be counts of votes, which are whole numbers, or shares that "
            "sum to 1, with a vote in every row; give a row without votes a "
            "weight of 0",
            start + int(index[0]),
            values=np.round(votes[index][:10], 4).tolist(),
        )


def check_no_votes(
    file: ColumnFile,
    name: str,
    labels: np.ndarray,
    outputs: np.ndarray,
    counts: np.ndarray,
    start: int,
) -> None:
    """Raises ValueError for rows of labels that are not of one class each."""
    if labels.shape != outputs.shape or labels.shape[-1] < 2:
        return
    largest: Any = labels.max(axis=-1)
    wrong = counts & ~((largest == 1) & (np.abs(labels).sum(axis=-1) == 1))
    if wrong.any():
        index = tuple(np.argwhere(wrong)[0])
        raise file.bad_value(
            name,
            "must be class ids, or rows with one 1: these look like votes of "
            "several annotators, which --votes reads",
            start + int(index[0]),
            values=np.round(labels[index][:10].astype("float64"), 4).tolist(),
        )

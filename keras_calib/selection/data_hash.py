"""Hashes of the data that chose a threshold, in NumPy alone.

The data are rows of a score (float32) and whether the prediction was right (0
or 1). Their order does not matter: rows are sorted from the surest, and right
before wrong among equal scores.
"""

import hashlib

import numpy as np

from keras_calib.selection.candidates import Candidates
from keras_calib.selection.thresholds import ChosenThreshold

__all__ = ["data_hashes", "rows_of", "with_hashes"]


def rows_of(found: Candidates) -> tuple[np.ndarray, np.ndarray]:
    """Scores and correctness `(n,)` in canonical order, of unweighted data."""
    accepted = found.accepted.astype("int64")
    wrong = found.wrong.astype("int64")
    sizes, errors = np.diff(accepted, prepend=0), np.diff(wrong, prepend=0)
    # -0.0 is 0.0.
    scores = np.repeat(np.asarray(found.score, "float32") + 0.0, sizes)
    pairs = np.stack([sizes - errors, errors], axis=-1).reshape(-1)
    correct = np.tile(np.array([1, 0], "uint8"), len(sizes))
    return scores, np.repeat(correct, pairs)


def data_hashes(found: Candidates) -> tuple[str, str]:
    """SHA-256 of the rows, and of the counts in order of the scores.

    The second is the same on any scale of the score that keeps its order.
    """
    scores, correct = rows_of(found)
    rows = hashlib.sha256(f"rows {len(scores)}\n".encode())
    rows.update(scores.astype("<f4").tobytes())
    rows.update(correct.tobytes())
    counts = np.stack([found.accepted, found.wrong], axis=-1).astype("<i8")
    ranking = hashlib.sha256(f"ranking {len(counts)}\n".encode())
    ranking.update(counts.tobytes())
    return rows.hexdigest(), ranking.hexdigest()


def with_hashes(chosen: ChosenThreshold, found: Candidates) -> ChosenThreshold:
    """The facts of a guaranteed threshold with the hashes of its data."""
    # A guarantee counts samples; pixels and weighted data have none.
    if chosen.delta is None or not found.counts or found.score is None:
        return chosen
    rows, ranking = data_hashes(found)
    return chosen._replace(data_sha256=rows, ranking_sha256=ranking)

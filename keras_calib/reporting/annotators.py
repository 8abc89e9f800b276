"""Labels of a report: class ids, or shares of annotators' votes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_calib.numerics.arrays import to_numpy

__all__ = ["Annotators", "confusions", "wrong_of"]


class Annotators:
    """How many votes the samples have, and how far annotators agree."""

    def __init__(self):
        self._sums = np.zeros(2)
        # None once a row of shares was there.
        self._num_votes: float | None = 0.0

    def add(
        self, votes: np.ndarray, shares: np.ndarray, weight: np.ndarray
    ) -> None:
        """Adds votes as they were given, with their shares `(n, classes)`."""
        self._sums += weight @ np.stack(
            [np.ones(len(shares)), shares.max(axis=-1)], axis=-1
        )
        rows = to_numpy(votes, "float64").reshape(len(shares), -1)[weight > 0]
        whole = bool((rows == np.floor(rows)).all()) and rows.shape[1] > 1
        if self._num_votes is not None:
            self._num_votes = self._num_votes + rows.sum() if whole else None

    def results(self) -> dict[str, Any]:
        """The number of votes, None of shares, and the mean agreement.

        That is the mean share of the class with most votes, which no
        prediction of one class for each sample can exceed.
        """
        total, agree = self._sums
        number = None if self._num_votes is None else int(self._num_votes)
        return {"num_votes": number, "agreement": float(agree / total)}


def wrong_of(truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Whether classes `(n,)` are wrong, or the share of votes for others."""
    if truth.ndim == 1:
        return predicted != truth
    return 1.0 - truth[np.arange(len(truth)), predicted]


def confusions(
    truth: np.ndarray, predicted: np.ndarray
) -> Iterator[tuple[int, int, float]]:
    """Label, predicted class and number of errors, or sum of their shares."""
    if truth.ndim == 1:
        rows = np.flatnonzero(predicted != truth)
        label, size = truth[rows], np.ones(len(rows))
    else:
        rows, label = np.nonzero(truth)
        size = truth[rows, label]
        other = label != predicted[rows]
        rows, label, size = rows[other], label[other], size[other]
    pairs = np.stack([label, predicted[rows]], axis=-1).astype(int)
    found, places = np.unique(pairs, axis=0, return_inverse=True)
    sizes = np.bincount(places.reshape(-1), size, len(found))
    for pair, total in zip(found.tolist(), sizes.tolist(), strict=True):
        yield (*pair, total)

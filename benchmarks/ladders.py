"""Ladders of counts, and what one claim certifies of them."""

import numpy as np

from keras_calib.selection.claims import means
from keras_calib.selection.families import alone, errors_alone
from keras_calib.selection.ladder import Ladder, of_scores, read_outcomes


def ranked(scores, correct) -> Ladder:
    """The ladder of scores and correctness `(n,)`."""
    return of_scores(read_outcomes(scores, correct))


def stepped(accepted, wrong) -> Ladder:
    """The ladder of counts `(num_thresholds,)`, of which the last is of all."""
    accepted = np.asarray(accepted, "float64")
    wrong = np.asarray(wrong, "float64")
    return Ladder(-accepted, accepted, wrong, int(accepted[-1]), True)


def fixed_sequence(accepted, wrong, risk, delta) -> np.ndarray:
    """Which thresholds the library's walk certifies, by counts."""
    return errors_alone(stepped(accepted, wrong), risk, delta)


def fixed_sequence_of_means(accepted, losses, limit, delta, test):
    """The same of mean losses, from the surest sample on."""
    ladder = stepped(accepted, np.cumsum(losses)[np.asarray(accepted) - 1])
    return alone(means(ladder, losses, limit, delta, test), len(accepted))


def last(threshold: np.ndarray, certified: np.ndarray) -> float | None:
    """The most lenient certified threshold, None without one."""
    places = np.flatnonzero(certified)
    return float(threshold[places[-1]]) if len(places) else None

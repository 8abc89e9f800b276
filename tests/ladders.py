"""Ladders of made-up records, and what one claim certifies of them."""

import numpy as np

from keras_calib.selection.claims import means
from keras_calib.selection.families import alone, errors_alone
from keras_calib.selection.ladder import Ladder, of_scores, read_outcomes


def ranked(scores, correct):
    """The ladder of records."""
    return of_scores(read_outcomes(scores, correct))


def stepped(accepted, wrong):
    """The ladder of counts."""
    accepted = np.asarray(accepted, "float64")
    wrong = np.asarray(wrong, "float64")
    return Ladder(-accepted, accepted, wrong, int(accepted[-1]), True)


def ladder_of(correct):
    """The ladder of records whose scores fall."""
    rank = np.arange(1, len(correct) + 1)
    return stepped(rank, np.cumsum(1.0 - np.asarray(correct)))


def fixed_sequence(accepted, wrong, risk, delta):
    """Which thresholds the walk of one claim certifies."""
    return errors_alone(stepped(accepted, wrong), risk, delta)


def fixed_sequence_of_means(accepted, losses, limit, delta, test):
    """The same of mean losses, from the surest sample on."""
    ladder = stepped(accepted, np.cumsum(losses)[np.asarray(accepted) - 1])
    return alone(means(ladder, losses, limit, delta, test), len(accepted))

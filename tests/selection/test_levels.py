"""Promises counted at their limit, over all that a sample can be.

The populations have a risk or a recall of exactly the limit, and few distinct
scores, so that a fit has one decision. What it accepts is summed over the
binomial numbers of errors, without a draw. `delta` lies just below what one
error more would spend: a level that is too large by anything is seen.
"""

import numpy as np
import pytest
from scipy.stats import binom

import keras_calib as kc
from keras_calib.selection.families import STEPWISE_PART

RISK, SIZE = 0.1, 60
JUST = 1e-6


def spent(accepts, size, probability):
    """P(accepted): the sum over the errors of samples that are accepted."""
    level = 0.0
    for num_wrong in range(size):
        if not accepts(num_wrong):
            break
        level += binom.pmf(num_wrong, size, probability)
    return level


@pytest.mark.parametrize(
    ("num_good", "part"), [(1, 1.0), (3, 1.0), (11, STEPWISE_PART)]
)
@pytest.mark.parametrize("errors", [1, 2, 3])
def test_a_bad_group_is_accepted_as_often_as_its_part_of_delta_allows(
    num_good, part, errors
):
    """Groups without an error pass their share on to the last one.

    Beside ten groups or more, that walk has a part of delta, and the one that
    has the rest certifies less here.
    """
    delta = (binom.cdf(errors, SIZE, RISK) - JUST) / part
    group = np.repeat(np.arange(num_good + 1), SIZE)

    def accepts(num_wrong):
        correct = np.ones(len(group))
        correct[:num_wrong] = 0.0
        chosen = kc.choose_threshold(
            np.ones(len(group)), correct, group, risk=RISK, delta=delta
        )
        bad, *good = np.less(chosen.threshold, np.inf)
        assert all(good)
        return bad

    level = spent(accepts, SIZE, RISK)
    assert level == pytest.approx(binom.cdf(errors - 1, SIZE, RISK))
    assert level <= part * delta


@pytest.mark.parametrize("more", [{}, {"risk": 0.5}])
@pytest.mark.parametrize(("size", "errors"), [(20, 2), (60, 6), (150, 20)])
def test_a_recall_at_its_limit_is_certified_at_most_at_delta(
    size, errors, more
):
    recall = 0.8
    share = binom.cdf(errors, size, 1.0 - recall) - JUST

    def accepts(num_missed):
        scores = np.repeat([1.0, 0.0], [size - num_missed, num_missed + 1])
        found = kc.selection.control_risks(
            scores,
            np.repeat([1.0, 0.0], [size, 1]),
            {"recall": recall, **more},
            # Targets of two kinds have half of it each.
            delta=share * (1 + len(more)),
            prefer="precision",
        )
        return found.threshold > 0.0

    level = spent(accepts, size, 1.0 - recall)
    assert level == pytest.approx(binom.cdf(errors - 1, size, 1.0 - recall))
    assert level <= share

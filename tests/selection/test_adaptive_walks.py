"""Walks of many groups at a level that falls where groups turn out bad."""

import math

import numpy as np
import pytest
from ladders import ladder_of, stepped
from scipy.stats import binom

from keras_calib.selection.claims import first_rank
from keras_calib.selection.families import (
    adaptively_certified,
    each,
    level_shares,
    num_adaptive,
)

RISK = 0.05


def group_of(correct):
    """The ladder of one group, of scores that fall, and its p-values."""
    one = ladder_of(correct)
    return one, binom.cdf(one.loss, one.accepted, RISK)


def test_shares_of_all_possible_bad_groups_sum_to_one():
    # The k-th bad group sees k - 1 others, each of which fails half the time.
    for count in (1, 2, 7, 60):
        share, total = level_shares(count), 0.0
        for k in range(count):
            total += share[: k + 1] @ binom.pmf(np.arange(k + 1), k, 0.5)
        np.testing.assert_allclose(total, 1.0, rtol=1e-12)
        assert np.all(np.diff(share) < 0.0)


def slow_walk(one, p_value, others, levels, fewest):
    """Rank after rank, at the level that the other groups leave."""
    size, shares = one.size, {}
    level = [
        levels[min(sum(x <= m / size for x in others), len(levels) - 1)]
        for m in range(1, size + 1)
    ]

    def start(part):
        for m in range(fewest, size + 1):
            if (1.0 - RISK) ** m <= part * level[m - 1]:
                return m
        return math.inf

    rank = start(0.5)
    if 2 * rank > size:
        shares = {start(1.0): 1.0}
    else:
        more = int(math.log2(size / rank))
        shares = {rank * 2**k: 0.5 / more for k in range(1, more + 1)}
        shares[rank] = 0.5
    share, certified = 0.0, []
    for m in range(1, size + 1):
        share += shares.get(m, 0.0)
        passes = share > 0.0 and p_value[m - 1] <= share * level[m - 1]
        certified.append(passes)
        share = share if passes else 0.0
    return certified, min(shares)


def test_levels_and_starts_of_a_group_are_those_that_the_others_leave():
    # Its own samples must not choose its level: the oracle leaves them out.
    rng, delta = np.random.default_rng(0), 0.4
    sizes = np.array([300, 280, 240, 200, 180, 150, 130, 120, 110, 100, 20])
    count, fewest = num_adaptive(sizes, RISK, delta)
    assert (count, fewest) == (10, first_rank(RISK, delta / math.sqrt(10)))
    levels, certificates = delta * level_shares(count), 0
    for _ in range(6):
        rates = rng.choice([0.002, 0.01, 0.06, 0.2], len(sizes))
        groups = [
            group_of(rng.random(n) >= 2 * rate * np.arange(n) / n)
            for n, rate in zip(sizes, rates, strict=True)
        ]
        found, p_values = map(list, zip(*groups, strict=True))
        failed = []
        for _, p in groups[:count]:
            late = np.flatnonzero(p[fewest - 1 :] > 0.5)
            at = (fewest + late[0]) / len(p) if len(late) else math.inf
            failed.append(at)
        certified, tested, _ = adaptively_certified(
            found, p_values, RISK, delta
        )
        assert tested.tolist() == [True] * count + [False]
        assert not certified[-1].any()
        for i in range(count):
            others = failed[:i] + failed[i + 1 :]
            expected, first = slow_walk(*groups[i], others, levels, fewest)
            if failed[i] <= max(0.5, first / sizes[i]):
                expected = [False] * sizes[i]
            # After its own failure a group counts itself, and may pass less.
            known = [m / sizes[i] < failed[i] for m in range(1, sizes[i] + 1)]
            np.testing.assert_array_equal(
                certified[i][known], np.array(expected)[known]
            )
            assert np.all(certified[i] <= np.array(expected))
            certificates += certified[i].any()
    assert certificates > 20


FITS, DELTA = 200, 0.3
ALLOWED = DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / FITS)
# Samples up to which the risk is far below the limit, and then just above it.
TURNS = {
    "all at once": np.full(12, 60),
    "one after the other": np.arange(40, 160, 10),
    "few": np.array([60, 60, *[200] * 10]),
    "from the start": np.full(12, 1),
}


@pytest.mark.parametrize("turns", TURNS.values(), ids=TURNS)
def test_no_bad_group_is_certified_more_often_than_delta(turns):
    rng, size = np.random.default_rng(3), 200
    rank = np.arange(1, size + 1)
    rate = np.where(turns < size, 1.002 * RISK, 0.001)[:, None]
    false = 0
    for _ in range(FITS):
        wrong = rng.random((len(turns), size)) < rate
        # Given the first bad threshold, what it accepts is in random order,
        # and the stricter thresholds are good if its errors come last.
        for row, turn in zip(wrong, turns, strict=True):
            row[:turn] = np.sort(row[:turn])
        accepted = np.broadcast_to(rank, wrong.shape)
        p_values = binom.cdf(np.cumsum(wrong, axis=1), accepted, RISK)
        found = [stepped(rank, np.cumsum(row)) for row in wrong]
        certified, *_ = adaptively_certified(found, p_values, RISK, DELTA)
        false += any(
            passed[turn - 1 :].any()
            for passed, turn in zip(certified, turns, strict=True)
            if turn < size
        )
    assert false / FITS <= ALLOWED


def test_many_groups_accept_more_than_by_equal_shares():
    rng, size = np.random.default_rng(5), 500
    rate = 0.2 * (np.arange(size) / size) ** 3
    found = [group_of(rng.random(size) >= rate)[0] for _ in range(30)]
    many, *_ = each(found, RISK, 0.05)
    equal = [each([one], RISK, 0.05 / 30).masks[0] for one in found]
    last = [
        np.mean([np.flatnonzero(x)[-1] if x.any() else 0 for x in group])
        for group in (many, equal)
    ]
    assert last[0] > 1.1 * last[1]

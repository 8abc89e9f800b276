"""What a population's samples certify: the selector's walk, many at once.

The error rate by rank is that of a pilot, or of an assumption. The outcome is
that of a claim on errors alone (`claims.errors`) on samples drawn from
it. Between two errors p-values only fall, so it is enough to test at the
errors, where walks start, and at the ends of ties.
"""

import functools
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaincinv
from scipy.stats import beta

from keras_calib.formulas.intervals import binomial_p_value
from keras_calib.selection.claims import starts
from keras_calib.selection.ladder import Ladder

# Pieces are this share of the coverage at their end, and not smaller than
# that of all; a group of ties of such a share is a piece of its own.
_RELATIVE_WIDTH = 0.02
_LEAST_SHARE = 5e-4
_LEAST_TIES = 0.005
# Shape of the distribution of the confidence of calibrated networks.
_SHAPE = 0.6
_NUM_CELLS = 20_000
# Errors of a draw above which only ends of small pieces are tested, and how
# many pieces there are then.
_MOST_ERRORS, _NUM_SMALL = 3000, 2500
# Events of all draws that are held at a time.
_MOST_EVENTS = 1_000_000
# Standard errors by which a risk is out of reach for good.
_HOPELESS = 6.0


class Population(NamedTuple):
    """Pieces of a population, surest first, arrays `(num_pieces,)`.

    Attributes:
        mass: Share of the samples, which sums to 1.
        rate: Probability of an error, `(num_pieces,)`; or one row for each
            of several populations.
        tied: Whether the samples of a piece have one score.
        num_samples: Number of samples of the pilot; 0 for an assumption.
    """

    mass: np.ndarray
    rate: np.ndarray
    tied: np.ndarray
    num_samples: int = 0

    @property
    def coverage(self) -> np.ndarray:
        """Share of the samples up to the end of each piece."""
        return np.minimum(np.cumsum(self.mass), 1.0)

    @property
    def risk(self) -> np.ndarray:
        """Error rate of the samples up to the end of each piece."""
        return np.cumsum(self.mass * self.rate, axis=-1) / self.coverage


def of_pilot(
    found: Ladder, num_draws: int, rng: np.random.Generator
) -> tuple[Population, Population]:
    """The population of a pilot, and draws of what else it may have been.

    Every error is spread over the samples before it, back to the error
    before; so no rate is 0. The draws multiply the errors of each such gap
    by an exponential number of mean 1. Derivation: docs/derivations.md,
    'Planning'.

    Reference:
        Rubin, The Bayesian Bootstrap, Annals of Statistics 9, 1981,
        https://doi.org/10.1214/aos/1176345338
    """
    ranks, (edges, tied) = _gaps(found), _pieces(found)
    gaps, count = len(ranks) - 1, found.size

    def rates(errors: np.ndarray) -> np.ndarray:
        """Error rate of each piece, for so many errors in each gap."""
        total = np.append(0.0, np.cumsum(errors))
        wrong = np.diff(np.interp(edges, ranks, total))
        return np.clip(wrong / np.diff(edges), 0.0, 1.0)

    drawn = np.stack(
        [rates(x) for x in rng.exponential(size=(num_draws, gaps))]
    )
    mass = np.diff(edges) / count
    return (
        Population(mass, rates(np.ones(gaps)), tied, count),
        Population(mass, drawn, tied, count),
    )


def of_calibrated(accuracy: float, coverage: float) -> Population:
    """A calibrated network with this accuracy at this coverage.

    The probability of an error is 1 - B with B of Beta(s, 0.6).
    """
    points = (np.arange(_NUM_CELLS) + 0.5) / _NUM_CELLS
    surest = points <= coverage

    def rate(shape: float) -> np.ndarray:
        return 1.0 - beta.ppf(1.0 - points, np.exp(shape), _SHAPE)

    def excess(shape: float) -> float:
        return float(rate(shape)[surest].mean()) - (1.0 - accuracy)

    shape = brentq(excess, -6.0, 12.0)
    edges = _edges(np.array([0.0, _NUM_CELLS]))
    total = np.append(0.0, np.cumsum(rate(shape)))
    wrong = np.interp(edges, np.arange(_NUM_CELLS + 1), total)
    width = np.diff(edges)
    return Population(
        width / _NUM_CELLS, np.diff(wrong) / width, np.zeros(len(width), bool)
    )


def _gaps(found: Ladder) -> np.ndarray:
    """Ranks between gaps: 0, that of each error, and the number of samples."""
    accepted, wrong = found.accepted, found.loss
    sizes = np.diff(accepted, prepend=0.0)
    errors = np.diff(wrong, prepend=0.0)
    # Errors among ties are spread evenly, the last at their end.
    group = np.repeat(np.arange(len(sizes)), errors.astype(int))
    place = np.arange(len(group)) - (wrong - errors)[group] + 1.0
    ranks = (accepted - sizes)[group] + sizes[group] * place / errors[group]
    ranks = np.unique(np.r_[0.0, ranks])
    # One error more, after the last sample, keeps the last gap from rate 0.
    if ranks[-1] < accepted[-1]:
        ranks = np.append(ranks, accepted[-1])
    return ranks


def _pieces(found: Ladder) -> tuple[np.ndarray, np.ndarray]:
    """Ranks at which pieces end, from 0 on, and which have one score."""
    accepted = found.accepted
    sizes = np.diff(accepted, prepend=0.0)
    atom = (sizes >= 2) & (sizes >= _LEAST_TIES * accepted)
    begins, ends = (accepted - sizes)[atom], accepted[atom]
    cuts = np.unique(np.r_[0.0, begins, ends, accepted[-1]])
    inside = np.isin(cuts[:-1], begins) & np.isin(cuts[1:], ends)
    edges = _edges(cuts, inside)
    return edges, np.isin(edges[1:], ends)


def _edges(cuts: np.ndarray, whole: np.ndarray | None = None) -> np.ndarray:
    """Ranks between pieces; stretches between `cuts` that are `whole` stay."""
    if whole is None:
        whole = np.zeros(len(cuts) - 1, bool)
    count, edges = cuts[-1], [np.zeros(1)]
    for low, high, kept in zip(cuts[:-1], cuts[1:], whole, strict=True):
        inner = []
        at = low
        while not kept:
            at += max(1.0, _RELATIVE_WIDTH * at, _LEAST_SHARE * count)
            if (at := float(np.ceil(at))) >= high:
                break
            inner.append(at)
        edges.append(np.r_[inner, high])
    return np.concatenate(edges)


class _Draws(NamedTuple):
    """Samples of several draws, and the thresholds where p-values may rise.

    Attributes:
        ends: Accepted samples up to the end of each piece `(draws, pieces)`.
        coverage: True coverage there `(pieces,)`.
        tied: Whether only the end of a piece is a threshold `(pieces,)`.
        draw: Number of the draw of each event `(events,)`, ascending.
        rank: Accepted samples at each event, ascending in each draw.
        wrong: Wrong samples among them.
        before: Accepted samples at the threshold before each event.
    """

    ends: np.ndarray
    coverage: np.ndarray
    tied: np.ndarray
    draw: np.ndarray
    rank: np.ndarray
    wrong: np.ndarray
    before: np.ndarray

    def _piece(self, rank: np.ndarray) -> tuple[np.ndarray, ...]:
        """The piece of a rank, and the ranks before and at its end."""
        piece = (self.ends < rank[:, None]).sum(axis=1)
        piece = np.minimum(piece, self.ends.shape[1] - 1)
        rows = np.arange(len(rank))
        before = self.ends[rows, np.maximum(piece - 1, 0)]
        return piece, np.where(piece > 0, before, 0), self.ends[rows, piece]

    def threshold(self, rank: np.ndarray) -> np.ndarray:
        """The first threshold that accepts so many, of each draw."""
        piece, _, end = self._piece(rank)
        return np.where(self.tied[piece], end, rank)

    def last_threshold(self, rank: np.ndarray) -> np.ndarray:
        """The last threshold that accepts at most so many, of each draw."""
        piece, before, end = self._piece(rank + 1)
        inside = np.where(self.tied[piece], before, rank)
        return np.where(end <= rank, end, inside)

    def wrong_at(self, rank: np.ndarray) -> np.ndarray:
        """Wrong samples among the first `rank`, of each draw."""
        if not len(self.rank):
            return np.zeros(len(rank), int)
        size = max(int(self.rank.max()), int(rank.max())) + 1
        keys = self.draw * size + self.rank
        draws = np.arange(len(rank))
        place = np.searchsorted(keys, draws * size + rank, side="right") - 1
        own = (place >= 0) & (self.draw[place] == draws)
        return np.where(own, self.wrong[place], 0)

    def coverage_of(self, rank: np.ndarray) -> np.ndarray:
        """True coverage of the threshold at `rank`, of each draw."""
        edges = np.append(0.0, self.coverage)
        piece, low, high = self._piece(rank)
        share = (rank - low) / np.maximum(high - low, 1)
        found = edges[piece] + share * (edges[piece + 1] - edges[piece])
        return np.where(rank > 0, found, 0.0)


def certified_coverage(
    of: Population,
    num_samples: int,
    risk: float,
    delta: float,
    num_draws: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """True coverage of the threshold that each draw certifies `(num_draws,)`.

    It is 0 where none is certified. `of` may hold as many populations as
    there are draws, or a divisor of that number.
    """
    of = _within_reach(of, num_samples, risk)
    rate = np.atleast_2d(of.rate)
    errors = float((of.mass * rate).sum(axis=1).max()) * num_samples
    if errors > _MOST_ERRORS:
        of = _in_small_pieces(of)
        rate = np.atleast_2d(of.rate)
        errors = float(len(of.mass))
    size = max(1, int(_MOST_EVENTS / (errors + len(of.mass))))
    found = []
    for first in range(0, num_draws, size):
        chosen = np.arange(first, min(first + size, num_draws)) % len(rate)
        draws = _draw(of, rate[chosen], num_samples, rng)
        rank = _fixed_sequence(draws, num_samples, risk, delta)
        found.append(draws.coverage_of(rank))
    return np.concatenate(found)


def _within_reach(of: Population, num_samples: int, risk: float) -> Population:
    """The pieces up to the last whose risk is not hopelessly high."""
    true = of.risk
    error = np.sqrt(true / (num_samples * of.coverage))
    near = true - _HOPELESS * error <= risk
    near = near.reshape(-1, near.shape[-1]).any(axis=0)
    last = int(np.flatnonzero(near)[-1]) + 1 if near.any() else 1
    return of._replace(
        mass=of.mass[:last], rate=of.rate[..., :last], tied=of.tied[:last]
    )


def _in_small_pieces(of: Population) -> Population:
    """Pieces of nearly equal numbers of errors, tested at their ends alone."""
    errors = of.mass * np.atleast_2d(of.rate).mean(axis=0)
    parts = np.ceil(_NUM_SMALL * errors / errors.sum()).astype(int)
    parts = np.where(of.tied, 1, np.maximum(parts, 1))
    return of._replace(
        mass=np.repeat(of.mass / parts, parts),
        rate=np.repeat(of.rate, parts, axis=-1),
        tied=np.ones(parts.sum(), bool),
    )


def _draw(
    of: Population, rate: np.ndarray, num_samples: int, rng: np.random.Generator
) -> _Draws:
    """Samples of `len(rate)` draws, by piece, with the ranks of errors."""
    num_draws, num_pieces = rate.shape
    rest = max(1.0 - float(of.mass.sum()), 0.0)
    shares = np.append(of.mass, rest)
    counts = rng.multinomial(num_samples, shares / shares.sum(), num_draws)
    counts = counts[:, :num_pieces]
    wrong = rng.binomial(counts, rate)
    ends, total = np.cumsum(counts, axis=1), np.cumsum(wrong, axis=1)
    # One event at the end of ties, otherwise one for each error.
    events = np.where(of.tied, counts > 0, wrong).ravel()
    cell = np.repeat(np.arange(events.size), events)
    first = np.cumsum(events) - events
    order = np.arange(len(cell)) - first[cell]
    begin = (ends - counts).ravel()[cell]
    count, errors = counts.ravel()[cell], wrong.ravel()[cell]
    position = rng.random(len(cell))
    position = np.sort(cell + position) - cell
    place = order + ((count - errors + 1) * position).astype(int)
    tied = np.tile(of.tied, num_draws)[cell]
    rank = np.where(tied, begin + count, begin + place + 1)
    end_total = total.ravel()[cell]
    return _Draws(
        ends,
        of.coverage,
        of.tied,
        cell // num_pieces,
        rank,
        np.where(tied, end_total, end_total - errors + order + 1),
        np.where(tied, begin, rank - 1),
    )


def _fixed_sequence(
    draws: _Draws, num_samples: int, risk: float, delta: float
) -> np.ndarray:
    """Accepted samples at the last threshold that the walk certifies."""
    num_draws = len(draws.ends)
    ranks, shares = starts(num_samples, risk, delta)
    levels = np.append(0.0, np.cumsum(shares))
    certified = np.zeros(num_draws, int)
    # Place in `levels` of what the walk has lost.
    lost = np.zeros(num_draws, int)
    ends = np.append(ranks, draws.ends[:, -1].max() + 1)[1:]
    for k, (start, end) in enumerate(zip(ranks, ends, strict=True)):
        first = draws.threshold(np.full(num_draws, start))
        begins = (draws.ends[:, -1] >= start) & (first < end)
        inside = np.flatnonzero((draws.rank >= start) & (draws.rank < end))
        whose, wrong = draws.draw[inside], draws.wrong[inside]
        at_first = draws.wrong_at(first)
        failed = np.full(num_draws, np.iinfo(int).max)
        starved = np.zeros(num_draws, bool)
        for before in np.unique(lost):
            level = levels[k + 1] - levels[before]
            needed = _fewest_accepted(int(end), risk, level)
            mine = lost == before
            starved |= mine & (first < _of(needed, at_first))
            fails = draws.rank[inside] < _of(needed, wrong)
            fails = np.flatnonzero(fails & mine[whose])
            # The first in each draw is written last.
            failed[whose[fails[::-1]]] = inside[fails[::-1]]
        stopped = failed < np.iinfo(int).max
        last = draws.last_threshold(np.full(num_draws, end - 1))
        place = np.where(stopped, failed, 0)
        if len(draws.before):
            last = np.where(stopped, draws.before[place], last)
        passes = begins & ~starved & (last >= first)
        certified = np.where(passes, last, certified)
        fails = begins & (stopped | starved)
        lost = np.where(fails, k + 1, lost)
    return certified


def _of(needed: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    return needed[np.minimum(wrong, len(needed) - 1)]


@functools.lru_cache(maxsize=128)
def _fewest_accepted(end: int, risk: float, level: float) -> np.ndarray:
    """Fewest accepted samples that pass at `level`, by the number of errors.

    For 0, 1, ... errors; the last has none below `end`. Wise's approximation
    by a gamma quantile starts the search, the exact p-value ends it.

    Reference:
        Wise, On Normalizing the Incomplete Beta-Function for Fitting to
        Dose-Response Curves, Biometrika 47, 1960,
        https://doi.org/10.1093/biomet/47.1-2.173
    """
    # As many errors as are expected have a p-value near 1/2 or more.
    wrong = np.arange(int(risk * end) + 3.0)
    if level >= 0.25:
        wrong = np.arange(end + 1.0)
    found = gammaincinv(wrong + 1.0, 1.0 - level)
    found = np.ceil(found * (2.0 - risk) / (2.0 * risk) + wrong / 2.0)
    found = np.maximum(found, wrong + 1.0)
    while (low := binomial_p_value(wrong, found, risk) > level).any():
        found = found + low
    while True:
        high = (found > wrong + 1.0) & (
            binomial_p_value(wrong, found - 1.0, risk) <= level
        )
        if not high.any():
            break
        found = found - high
    fewest = found.astype(int)
    fewest[-1] = np.iinfo(int).max
    fewest.flags.writeable = False
    return fewest

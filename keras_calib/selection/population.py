"""Error rate by rank of a population: of a pilot, or of an assumption."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta

from keras_calib.selection.ladder import Ladder

__all__ = ["Curve", "Population", "of_calibrated", "of_pilot"]

# Pieces are this share of the coverage at their end, and not smaller than
# that of all; a group of ties of such a share is a piece of its own.
_RELATIVE_WIDTH = 0.02
_LEAST_SHARE = 5e-4
_LEAST_TIES = 0.005
# Shape of the distribution of the confidence of calibrated networks.
_SHAPE = 0.6
_NUM_CELLS = 20_000


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


class Curve(NamedTuple):
    """Errors of a pilot up to each rank: knots that straight lines join.

    Attributes:
        ranks: 0, the rank of each error, and the number of samples.
        edges: Ranks at which pieces end, the first being 0.
        tied: Whether the samples of a piece have one score.
    """

    ranks: np.ndarray
    edges: np.ndarray
    tied: np.ndarray


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
    curve = _curve(found)
    gaps = len(curve.ranks) - 1
    errors = rng.exponential(size=(num_draws, gaps))
    rates = np.stack([_rates(curve, x) for x in errors])
    count = found.size
    mass = np.diff(curve.edges) / count
    return (
        Population(mass, _rates(curve, np.ones(gaps)), curve.tied, count),
        Population(mass, rates, curve.tied, count),
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


def _curve(found: Ladder) -> Curve:
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
    atom = (sizes >= 2) & (sizes >= _LEAST_TIES * accepted)
    begins, ends = (accepted - sizes)[atom], accepted[atom]
    cuts = np.unique(np.r_[0.0, begins, ends, accepted[-1]])
    inside = np.isin(cuts[:-1], begins) & np.isin(cuts[1:], ends)
    edges = _edges(cuts, inside)
    return Curve(ranks, edges, np.isin(edges[1:], ends))


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


def _rates(curve: Curve, errors: np.ndarray) -> np.ndarray:
    """Error rate of each piece, for so many errors in each gap."""
    total = np.append(0.0, np.cumsum(errors))
    wrong = np.diff(np.interp(curve.edges, curve.ranks, total))
    return np.clip(wrong / np.diff(curve.edges), 0.0, 1.0)

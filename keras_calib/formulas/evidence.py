"""Evidence against a hypothesis, valid however often it is looked at.

An e-process starts at 1 and, while its hypothesis holds, is at most 1 in the
mean at every time. By Ville's inequality it then ever reaches 1 / alpha with
probability alpha at most. So it may be looked at after every outcome, and an
alarm needs no correction for the looks.

Derivation: docs/derivations.md, 'Alarms'.
"""

import math

import numpy as np
from scipy.special import expit, logit

# Probabilities closer to 0 or 1 are rounded in logs, and prove nothing.
CLOSEST = 1e-6
# Stand in for 0 and its log.
_NOTHING = 1e-300
_LEAST = -1e300


def moved(
    probability: np.ndarray,
    shift: np.ndarray,
    temperature: np.ndarray | float = 1.0,
) -> np.ndarray:
    """Alternatives to probabilities `(n,)`: log-odds over T, plus a shift.

    Shifts are `(num_alternatives,)`, and temperatures > 0 too or a number. The
    result is `(n, num_alternatives)`.
    """
    inside = np.clip(probability, CLOSEST, 1.0 - CLOSEST)
    return expit(logit(inside)[:, None] / temperature + shift)


def log_factors(
    outcome: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    alternative: np.ndarray,
) -> np.ndarray:
    """Log of the factors by which outcomes change the evidence.

    The hypothesis says that each outcome is 1 with some probability from `low`
    to `high`. Alternatives in (0, 1) and results are `(n, num_alternatives)`.

    Reference:
        Waudby-Smith and Ramdas, Estimating Means of Bounded Random Variables
        by Betting, JRSS B 2024, https://doi.org/10.1093/jrsssb/qkad009
    """
    # A wider hypothesis: 0 and 1 would need no more than one wrong rounding.
    low = np.minimum(low, 1.0 - CLOSEST)[:, None]
    high = np.maximum(high, CLOSEST)[:, None]
    nearest = np.clip(alternative, low, high)
    hit = outcome[:, None] > 0.5
    numerator = np.where(hit, alternative, 1.0 - alternative)
    denominator = np.where(hit, nearest, 1.0 - nearest)
    return np.log(numerator) - np.log(denominator)


def start_mass(
    first: float, last: float, *, scale: float, horizon: float
) -> float:
    """Share of the prior of a change that begins between two counts.

    Its density at count t is in proportion to 1 / (t + scale) up to the
    horizon, where all mass is spent.
    """
    ends = [math.log1p(min(x, horizon) / scale) for x in (first, last)]
    low, high = ends
    return (high - low) / math.log1p(horizon / scale)


def with_block(
    log_wealth: np.ndarray, log_factor: np.ndarray, mass: float
) -> np.ndarray:
    """Log wealth `(num_alternatives,)` after one more block of outcomes.

    wealth = (wealth + mass) * factor

    `log_factor` are sums of `log_factors` over the block. The `start_mass` of
    the block must be known before its first outcome. The first log wealth is
    -inf.

    Reference:
        Shin, Ramdas and Rinaldo, E-detectors: A Nonparametric Framework for
        Sequential Change Detection, 2023, https://arxiv.org/abs/2203.03532
        (there the starts have mass 1 each, for a bound of the mean delay)
    """
    with np.errstate(divide="ignore"):
        return np.logaddexp(log_wealth, np.log(mass)) + log_factor


def log_evidence(
    log_wealth: np.ndarray, prior: np.ndarray, mass: float
) -> np.ndarray:
    """Log of the evidence `(...)`: mean wealth, and the mass of starts to come.

    The log wealth is `(..., num_alternatives)`, whose weights `prior` sum to 1.
    `mass` is the sum of `start_mass` of all blocks so far.
    """
    terms = np.log(prior) + log_wealth
    top = np.maximum(terms.max(axis=-1), _LEAST)
    rest = math.log(max(1.0 - mass, 0.0) + _NOTHING)
    total = np.exp(terms - top[..., None]).sum(axis=-1)
    return np.logaddexp(np.log(total + _NOTHING) + top, rest)

"""Prior of the classes: reading, and its maximum likelihood."""

from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.numerics.arrays import as_array

__all__ = [
    "PriorFit",
    "curvature_at",
    "distinctness",
    "likeliest_prior",
    "read_prior",
]

# Largest distance from 1 of the sum of a prior.
_SUM = 1e-4
# A step leaves at least this part of a share.
_PART = 0.1
# Least likelihood of a row, and curvature of directions without any.
_LEAST, _FLAT = 1e-300, 1e-12


class PriorFit(NamedTuple):
    """Priors of several weightings of the same rows."""

    prior: np.ndarray  # `(num_weightings, num_classes)`
    iterations: int
    converged: bool


def read_prior(name: str, value: Any) -> np.ndarray:
    """A prior as float64 shares that sum to 1; raises if it is none."""
    prior = as_array(value, name, "float64")
    if prior.ndim != 1 or len(prior) < 2:
        raise value_error(
            f"`{name}` must have a share for each class, (num_classes,)",
            **{f"{name}.shape": prior.shape},
        )
    # NaN fails too.
    if not (prior >= 0).all() or not abs(prior.sum() - 1.0) <= _SUM:
        raise value_error(
            f"`{name}` must be shares >= 0 that sum to 1",
            minimum=float(prior.min()),
            sum=float(prior.sum()),
        )
    return prior / prior.sum()


def likeliest_prior(
    ratio: np.ndarray,
    weight: np.ndarray,
    start: np.ndarray,
    *,
    tolerance: float,
    max_iterations: int,
    curvature: np.ndarray | None = None,
) -> PriorFit:
    """The priors pi of the greatest likelihood: the fixed points of EM.

    The likelihood of a row is sum_k pi_k r_k, with r_k = p_k / source_k. The
    step of EM is pi_k <- pi_k g_k, with g_k the weighted mean of r_k over that
    sum. The mean log-likelihood is concave and at most max_k g_k - 1 below its
    maximum. Newton's method solves pi_k (g_k - 1) = 0; where that does not
    raise the likelihood, EM takes a step instead. It ends when this bound, or
    what a Newton step gains, is below the tolerance.

    Args:
        ratio: r `(n, num_classes)`.
        weight: Weights of the rows, with sum 1 `(num_weightings, n)`.
        start: Where to start `(num_weightings, num_classes)`, > 0.
        tolerance: Bound of the mean log-likelihood that is missing.
        max_iterations: Most steps.
        curvature: E[r_k r_m / (sum pi r)^2], near the maxima; None computes it
            at each step, for one weighting.
    """
    prior = np.array(start, "float64")
    waiting = np.arange(len(prior))
    now = prior
    gain, height = _gain(ratio, weight, now)
    for step in range(1, max_iterations + 1):
        used = curvature
        if used is None:
            used = curvature_at(ratio, weight[0], now[0])
        move = _newton_step(now, gain, used)
        # Half of slope times step is about what Newton's method gains.
        missing = np.einsum("bk,bk->b", gain - 1.0, move) / 2.0
        missing = np.minimum(np.abs(missing), gain.max(axis=1) - 1.0)
        prior[waiting] = now
        left = missing > tolerance
        if not left.any():
            return PriorFit(prior, step, True)
        if not left.all():
            waiting, weight = waiting[left], weight[left]
            now, move = now[left], move[left]
            gain, height = gain[left], height[left]
        ahead = np.maximum(now + move, _PART * now)
        ahead /= ahead.sum(axis=1, keepdims=True)
        other, after = _gain(ratio, weight, ahead)
        worse = after < height
        if worse.any():
            ahead[worse] = now[worse] * gain[worse]
            other[worse], after[worse] = _gain(
                ratio, weight[worse], ahead[worse]
            )
        now, gain, height = ahead, other, after
    return PriorFit(prior, max_iterations, False)


def _newton_step(
    prior: np.ndarray, gain: np.ndarray, curvature: np.ndarray
) -> np.ndarray:
    """The step towards pi_k (g_k - 1) = 0 `(num_weightings, num_classes)`."""
    system = prior[:, :, None] * curvature
    places = np.arange(prior.shape[1])
    # Where g exceeds 1 its own term would shrink the curvature.
    system[:, places, places] += np.maximum(1.0 - gain, 0.0) + _FLAT
    slope = prior * (gain - 1.0)
    return np.linalg.solve(system, slope[:, :, None])[:, :, 0]


def curvature_at(
    ratio: np.ndarray, weight: np.ndarray, prior: np.ndarray
) -> np.ndarray:
    """E[r_k r_m / (sum_k pi_k r_k)^2] of one weighting `(K, K)`."""
    scaled = ratio / np.maximum(ratio @ prior, _LEAST)[:, None]
    return (scaled * weight[:, None]).T @ scaled


def distinctness(
    ratio: np.ndarray, weight: np.ndarray, prior: np.ndarray
) -> float:
    """How much the classes differ, in [0, 1]; 0 if some look the same.

    It is the least eigenvalue of the cosines between the columns of
    r / sum_k prior_k r_k.
    """
    products = curvature_at(ratio, weight, prior)
    size = np.sqrt(np.diag(products))
    some = size > 0
    cosines = products[some][:, some] / size[some] / size[some, None]
    return float(np.linalg.eigvalsh(cosines)[0])


def _gain(
    ratio: np.ndarray, weight: np.ndarray, prior: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """g of each class and weighting, and the mean log-likelihoods."""
    mixed = prior @ ratio.T
    # A row without weight may have no likelihood.
    np.maximum(mixed, _LEAST, out=mixed)
    gain = (weight / mixed) @ ratio
    np.log(mixed, out=mixed)
    return gain, np.einsum("bn,bn->b", weight, mixed)

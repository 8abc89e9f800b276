"""Prior of the classes: reading, and its maximum likelihood."""

from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.numerics.arrays import as_array, safe_divide
from keras_calib.numerics.softmax import PROBABILITY_FLOOR

# Largest distance from 1 of the sum of a prior.
_SUM = 1e-4
# A step leaves at least this part of a share.
_PART = 0.01
# What is added to it, as the curvature has the square of its inverse.
_TINY = 1e-100
# Least likelihood of a row, and curvature of directions without any.
_LEAST, _FLAT = 1e-300, 1e-12
# Parts of a step that are tried before a step of EM.
_SHARES = (0.5, 0.25)
# A step that leaves more than this part of what is missing asks for a new
# curvature.
_SLOW = 0.3
# Conjugate gradients: most steps, and the part of the squared slope that they
# may leave.
_CONJUGATE, _RESIDUAL = 100, 1e-6
# Entries of a block of rows.
_BLOCK = 2**20


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
    # NaN fails too, and ratios of still smaller shares overflow.
    shares = (prior == 0) | (prior >= PROBABILITY_FLOOR)
    if not shares.all() or not abs(prior.sum() - 1.0) <= _SUM:
        raise value_error(
            f"`{name}` must be shares >= 0 that sum to 1, 0 or above 1e-37",
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

    A curvature costs as much as hundreds of evaluations of g. So one serves
    many steps and weightings: its diagonal, which g almost gives, is exact for
    each, and the rest has the correlations of where it was computed.

    Args:
        ratio: r `(n, num_classes)`.
        weight: Weights of the rows, with sum 1 `(num_weightings, n)`.
        start: Where to start `(num_weightings, num_classes)`, > 0.
        tolerance, max_iterations: When it ends.
        curvature: `curvature_at` near the maxima. None computes it anew
            whenever steps gain little, for one weighting.
    """
    prior = np.array(start, "float64")
    waiting = np.arange(len(prior))
    at = _evaluated(ratio, weight, prior)
    used, before = curvature, np.inf
    for step in range(1, max_iterations + 1):
        if used is None:
            used = curvature_at(ratio, weight[0], at.prior[0])
        move = _newton_step(at, used)
        # Half of slope times step is about what Newton's method gains.
        missing = np.einsum("bk,bk->b", at.gain - 1.0, move) / 2.0
        missing = np.minimum(np.abs(missing), at.gain.max(axis=1) - 1.0)
        prior[waiting] = at.prior
        left = missing > tolerance
        if not left.any():
            return PriorFit(prior, step, True)
        if curvature is None and missing.max() > _SLOW * before:
            used = None
        before = missing.max()
        if not left.all():
            waiting, weight, move = waiting[left], weight[left], move[left]
            at = _Point(*(part[left] for part in at))
        ahead = np.maximum(at.prior + move, _PART * at.prior + _TINY)
        ahead /= ahead.sum(axis=1, keepdims=True)
        new = _evaluated(ratio, weight, ahead)
        for share in (*_SHARES, None):
            worse = np.flatnonzero(new.height < at.height)
            if not len(worse):
                break
            ahead = at.prior[worse] * at.gain[worse]
            if share is not None:
                ahead = at.prior[worse] + share * (
                    new.prior[worse] - at.prior[worse]
                )
            other = _evaluated(ratio, weight[worse], ahead)
            for part, value in zip(new, other, strict=True):
                part[worse] = value
        at = new
    return PriorFit(prior, max_iterations, False)


class _Point(NamedTuple):
    """Priors of the weightings, and what their rows say there."""

    prior: np.ndarray  # `(num_weightings, num_classes)`
    gain: np.ndarray  # g, of that shape
    diagonal: np.ndarray  # of the curvature, of that shape
    height: np.ndarray  # mean log-likelihoods `(num_weightings,)`


def _evaluated(
    ratio: np.ndarray, weight: np.ndarray, prior: np.ndarray
) -> _Point:
    gain, diagonal = np.zeros(prior.shape), np.zeros(prior.shape)
    height = np.zeros(len(prior))
    size = max(1, _BLOCK // max(prior.shape))
    for start in range(0, len(ratio), size):
        rows = slice(start, start + size)
        r, w = ratio[rows], weight[:, rows]
        mixed = prior @ r.T
        # A row without weight may have no likelihood.
        np.maximum(mixed, _LEAST, out=mixed)
        share = w / mixed
        gain += share @ r
        share /= mixed
        diagonal += share @ np.square(r)
        height += np.einsum("bn,bn->b", w, np.log(mixed, out=mixed))
    return _Point(prior, gain, diagonal, height)


def _newton_step(at: _Point, curvature: np.ndarray) -> np.ndarray:
    """The step towards pi_k (g_k - 1) = 0 `(num_weightings, num_classes)`.

    Divided by the root of pi, its equations are symmetric. Conjugate gradients
    solve them, or elimination where these take many steps.
    """
    root = np.sqrt(at.prior)
    usual = np.maximum(np.diag(curvature), _LEAST)
    scale = root * np.sqrt(at.diagonal / usual)
    # Where g exceeds 1 its own term would shrink the curvature.
    own = np.maximum(1.0 - at.gain, 0.0) + _FLAT
    slope = root * (at.gain - 1.0)
    diagonal = scale**2 * usual + own
    found = np.zeros_like(slope)
    rest = slope.copy()
    ahead = rest / diagonal
    direction = ahead.copy()
    size = first = np.einsum("bk,bk->b", rest, ahead)
    for _ in range(_CONJUGATE):
        mapped = scale * ((scale * direction) @ curvature) + own * direction
        bend = np.einsum("bk,bk->b", direction, mapped)
        length = safe_divide(size, bend)[:, None]
        found += length * direction
        rest -= length * mapped
        ahead = rest / diagonal
        now = np.einsum("bk,bk->b", rest, ahead)
        unsolved = now > _RESIDUAL * first
        if not unsolved.any():
            break
        direction = ahead + safe_divide(now, size)[:, None] * direction
        size = now
    else:
        places = np.diag_indices(len(curvature))
        for i in np.flatnonzero(unsolved):
            system = scale[i] * curvature * scale[i][:, None]
            system[places] += own[i]
            found[i] = np.linalg.solve(system, slope[i])
    return root * found


def curvature_at(
    ratio: np.ndarray, weight: np.ndarray, prior: np.ndarray
) -> np.ndarray:
    """E[r_k r_m / (sum_k pi_k r_k)^2] of one weighting `(K, K)`."""
    share = np.sqrt(weight) / np.maximum(ratio @ prior, _LEAST)
    scaled = ratio * share[:, None]
    # Of an array with itself, NumPy computes one half of the product.
    return scaled.T @ scaled


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

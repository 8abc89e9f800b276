"""The prior of the classes in unlabelled data."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid, value_error, warn
from keras_calib.backend.progress import shows_progress, tracked
from keras_calib.formulas.intervals import clopper_pearson, tail_of
from keras_calib.formulas.prior import (
    curvature_at,
    distinctness,
    likeliest_prior,
    read_prior,
)
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.checks import (
    check_integer,
    check_not_empty,
    class_axis,
    generator,
)
from keras_calib.inputs.options import GivenTogether
from keras_calib.inputs.rows import check_no_nan, without_harm
from keras_calib.inputs.weights import read_masked, weight_of_rows
from keras_calib.numerics.results import Result
from keras_calib.numerics.softmax import logsumexp

# Bound of the mean log-likelihood that the estimate misses, and that draws
# miss, times the rows: a few percent of a standard error.
_TOLERANCE, _OF_DRAW = 1e-13, 1e-3
_MAX_ITERATIONS = 500
# Rows times draws in work at a time.
_BLOCK = 2**22
# Distinctness below which some classes look the same.
_SAME = 1e-6


class PriorEstimate(Result):
    """The shares of the classes in unlabelled data.

    Attributes:
        prior: Estimated share of each class `(num_classes,)`, with sum 1.
        low: Lower end of the interval of each class `(num_classes,)`; NaN
            without draws.
        high: Upper end of it `(num_classes,)`.
        iterations: Steps that the estimate took.
        converged: Whether they reached the maximum of the likelihood, also in
            the draws of the bootstrap.
    """

    prior: np.ndarray
    low: np.ndarray
    high: np.ndarray
    iterations: int
    converged: bool


@shows_progress
def estimate_prior(
    outputs: Any,
    source: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    level: float = 0.95,
    num_draws: int = 200,
    seed: int = 0,
    verbose: str | int = "auto",
) -> PriorEstimate:
    """Shares of the classes in unlabelled data, by EM.

    Use it when the shares have changed and new data have no labels, then pass
    the prior to `PriorCorrection`. It maximises the mean over samples of
    log sum_k prior_k p_k / source_k. This is right if p(x | class) has not
    changed and p are calibrated for the source, so calibrate first.

    The interval is that of the percentile bootstrap over the samples, widened
    to that of Clopper and Pearson for as many labelled samples, since draws
    can miss a rare class. It knows nothing of errors of the calibration or of
    `source`.

    Args:
        outputs: Calibrated probabilities `(n, ..., num_classes)`, or
            `(n, ..., 1)` for the second of two classes. Or `Predictions`, of
            whose labels only the ignored class matters.
        source: Shares of the classes for which these are calibrated
            `(num_classes,)`, > 0, with sum 1.
        from_logits: Whether `outputs` are logits.
        sample_weight: Weights `(n, ...)` or `(n,)`. The bootstrap draws rows,
            and each brings its weight.
        level: Probability that the interval of a class holds its share, in
            (0, 1).
        num_draws: Number of draws of the bootstrap, >= 2; 0 gives NaN as
            ends.
        seed: Seed of the draws.
        verbose: `"auto"` or 1 for a progress bar after two seconds, 2 for a
            line at the end, 0 for silence.

    Returns:
        A `PriorEstimate`.

    Warns:
        RuntimeWarning: If EM did not converge, or if some classes have the
            same predictions.

    Example:

    >>> probs = np.repeat([[0.9, 0.1], [0.2, 0.8]], [700, 300], axis=0)
    >>> found = estimate_prior(probs, source=[0.5, 0.5])
    >>> print(np.round(found.prior, 3), found.converged)
    [0.896 0.104] True

    Reference:
        Saerens, Latinne and Decaestecker, Adjusting the Outputs of a
        Classifier to New a Priori Probabilities: A Simple Procedure, Neural
        Computation 2002, https://doi.org/10.1162/089976602753284446

    Differs:
        Newton's method finds the fixed point of EM, in fewer steps. EM takes
        over where that does not raise the likelihood.
    """
    tail = tail_of(level)
    check_integer("num_draws", num_draws, 0)
    if num_draws == 1:
        raise value_error("`num_draws` must be 0, or >= 2", num_draws=num_draws)
    check_integer("seed", seed, 0)
    source = read_prior("source", source)
    if not source.all():
        raise value_error(
            "`source` must be > 0 for each class; leave out classes that it "
            "does not have",
            absent=np.flatnonzero(source == 0).tolist(),
        )
    told = {"from_logits": from_logits, "sample_weight": sample_weight}
    rows, weight = _read(outputs, told, len(source))
    if num_draws and len(rows) < 2:
        raise value_error(
            "`outputs` must have >= 2 rows that weigh more than 0 for an "
            "interval; `num_draws=0` leaves it out",
            rows=len(rows),
        )
    ratio = rows / source
    share = weight / weight.sum()
    found = likeliest_prior(
        ratio,
        share[None],
        source[None],
        tolerance=_TOLERANCE,
        max_iterations=_MAX_ITERATIONS,
    )
    prior, converged = found.prior[0], found.converged
    low = high = np.full(len(source), np.nan)
    if num_draws:
        draws, all_did = _draws(ratio, weight, prior, num_draws, seed)
        converged &= all_did
        low, high = np.quantile(draws, [tail, 1.0 - tail], axis=0)
        count = 1.0 / np.sum(share**2)
        known = clopper_pearson(
            count * np.clip(prior, 0.0, 1.0), count, level=level
        )
        low, high = np.minimum(low, known[0]), np.maximum(high, known[1])
    _warn(converged, found.iterations, ratio, share, source)
    return PriorEstimate(prior, low, high, found.iterations, converged)


def _read(
    outputs: Any, told: dict[str, Any], num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities `(n, num_classes)` and weights `(n,)` that are not 0."""
    if isinstance(outputs, GivenTogether):
        outputs.arguments(None, told)
        read = standardize_arrays(outputs)
    else:
        logits, weight = told["from_logits"], told["sample_weight"]
        given, weight = read_masked(outputs, "outputs", weight)
        class_axis(given, -1, "outputs")
        check_not_empty("outputs", given)
        each = given.reshape(-1, given.shape[-1])
        if weight is not None:
            counts = weight_of_rows(weight, given.shape[:-1]) > 0
            each = without_harm(each, counts, logits)
        check_no_nan(each, logits, "outputs")
        # The surest class stands for the label, as no logit rules it out.
        told = {"from_logits": logits, "sample_weight": weight}
        read = standardize_arrays(given.argmax(axis=-1), given, **told)
    rows, weight = read.outputs.astype("float64"), read.weight
    if rows.shape[-1] != num_classes:
        raise value_error(
            "`outputs` must have the classes of `source`",
            **{"outputs.shape": read.outputs.shape, "classes": num_classes},
        )
    if read.from_logits:
        rows = np.exp(rows - logsumexp(rows, keepdims=True))
    rows = np.clip(rows, 0.0, None)
    rows /= rows.sum(axis=-1, keepdims=True)
    if weight is None:
        return rows, np.ones(len(rows))
    return rows[weight > 0], weight[weight > 0]


def _draws(
    ratio: np.ndarray,
    weight: np.ndarray,
    prior: np.ndarray,
    num_draws: int,
    seed: int,
) -> tuple[np.ndarray, bool]:
    """Estimates `(num_draws, K)` from rows drawn anew, and if all converged."""
    rng = generator(seed)
    count = len(ratio)
    # A share of 0 would stay 0.
    start = 0.999 * prior + 0.001 / len(prior)
    found, converged = [], True
    curvature = curvature_at(ratio, weight / weight.sum(), start)
    size = max(1, _BLOCK // max(count, len(prior)))
    starts = range(0, num_draws, size)
    for first in tracked(starts, len(starts)):
        some = min(size, num_draws - first)
        weights = np.empty((some, count))
        for row in weights:
            row[:] = np.bincount(rng.integers(count, size=count), None, count)
            row *= weight
        fit = likeliest_prior(
            ratio,
            weights / weights.sum(axis=1, keepdims=True),
            np.tile(start, (some, 1)),
            tolerance=_OF_DRAW / count,
            max_iterations=_MAX_ITERATIONS,
            curvature=curvature,
        )
        found.append(fit.prior)
        converged &= fit.converged
    return np.concatenate(found), converged


def _warn(
    converged: bool,
    iterations: int,
    ratio: np.ndarray,
    share: np.ndarray,
    source: np.ndarray,
) -> None:
    if not converged:
        warn(
            invalid(
                "`estimate_prior` needs predictions that differ between "
                "classes: EM did not converge, and its last value is "
                "returned. Merge classes that look alike",
                iterations=iterations,
            )
        )
        return
    least = distinctness(ratio, share, source)
    if least < _SAME:
        warn(
            invalid(
                "`outputs` must differ between all classes, or the data do not "
                "say how a share divides among some of them. Merge these "
                "classes",
                distinctness=f"{least:.1e}",
            )
        )

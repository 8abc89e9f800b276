"""Comparison of the predictions of two networks on the same samples."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import norm, t

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.progress import shows_progress, tracked
from keras_calib.formulas.intervals import tail_of
from keras_calib.functional.segmentation import of_images
from keras_calib.inputs.checks import (
    check_integer,
    check_not_empty,
    check_two_classes,
    class_axis,
    generator,
)
from keras_calib.inputs.given_metrics import of_predictions
from keras_calib.inputs.groups import read_groups
from keras_calib.inputs.rows import check_no_nan
from keras_calib.numerics.arrays import as_array
from keras_calib.numerics.results import Result
from keras_calib.predictions.predictions import Predictions


class Comparison(Result):
    """Result of `compare`.

    Attributes:
        a: Metric of the first network.
        b: Metric of the second network.
        value: The difference, `a - b`. Below 0 the first network is better
            in an error or a loss, above 0 in an accuracy or a coverage.
        low: Lower end of the interval of the difference.
        high: Upper end of the interval of the difference.
        p_value: Two-sided p-value of no difference.
    """

    a: float
    b: float
    value: float
    low: float
    high: float
    p_value: float


@shows_progress
def compare(
    a: Predictions,
    b: Predictions,
    metric: Any,
    *,
    level: float = 0.95,
    num_draws: int = 400,
    seed: int = 0,
    verbose: str | int = "auto",
    **options: Any,
) -> Comparison:
    """Compare a metric of two networks on the same samples.

    Use it to decide whether one network is better than another: it gives the
    difference, an interval and a p-value.

    It is a paired bootstrap. In a replicate, every unit of the predictions, by
    default each row, such as an image, is repeated a Poisson(1) number of
    times, the same for both networks. This removes the noise they share. The
    interval is difference -+ z times the standard deviation of the replicates.
    Percentiles are not used, because they would have the bias of a binned error
    twice.

    If one network is much better calibrated, the difference of a binned error
    is biased too. The interval is then for what to expect from test sets of
    this size.

    It is about these two networks. Trained again with another seed, they may
    differ otherwise: to compare two losses, train each with several seeds and
    use `keras_calib.Runs`.

    Args:
        a: Predictions of the first network.
        b: Predictions of the second network, for the same rows. Logs of
            confidence and correctness are compared by what they have.
        metric: A metric of one value, as `keras_calib.metrics.get` takes it.
            That is a key such as `"nll"`, a function such as
            `keras_calib.aurc` or one of yours with the same arguments, a
            metric class or a new object.
        level: Probability to cover, in (0, 1).
        num_draws: Number of replicates, at least 2.
        seed: Seed of the replicates.
        verbose: `"auto"` or 1 for a progress bar after two seconds, 2 for a
            line at the end, 0 for silence.
        **options: Arguments of `metric`, such as `num_bins`. A replicate
            multiplies weights by the numbers of repeats.

    Returns:
        Both values, their difference, its interval and a p-value.

    Raises:
        TypeError: If `a` or `b` is no `Predictions`, or what they tell is
            told again.
        ValueError: If they are not of the same rows, or a value is out of
            range.

    Example:

    >>> labels = [0] * 70 + [1] * 30
    >>> a = Predictions(labels, [[0.9, 0.1]] * 100)
    >>> b = Predictions(labels, [[0.7, 0.3]] * 100)
    >>> result = compare(a, b, "ece")
    >>> print(f"{result.value:.2f}, p = {result.p_value:.2g}")
    0.20, p = 6.1e-05

    Reference:
        Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
        chapters 6 and 12
    """
    tail = tail_of(level)
    check_integer("num_draws", num_draws, 2)
    check_same_rows({"a": a, "b": b})
    a.arguments(None, options)
    values = [
        of_images(metric, p, options)
        if hasattr(metric, "given")
        else of_predictions("metric", metric, p, options)
        for p in (a, b)
    ]
    both = np.array([value(a.sample_weight) for value in values])
    found = replicates(values, [a, b], num_draws, seed)
    observed = float(both[0] - both[1])
    error = float(np.std(found[:, 0] - found[:, 1], ddof=1))
    reach = norm.isf(tail) * error
    p_value = float(observed == 0.0)
    if error > 0.0:
        p_value = float(2.0 * norm.sf(abs(observed) / error))
    ends = observed - reach, observed + reach
    return Comparison(*map(float, (*both, observed, *ends, p_value)))


def replicates(
    values: Sequence[Callable],
    predictions: Sequence[Predictions],
    num_draws: int,
    seed: int,
) -> np.ndarray:
    """Values of weights of the same rows in replicates `(num_draws, values)`.

    All get the same numbers of repeats, by the first units among `predictions`.
    """
    first, unit = predictions[0], np.arange(len(predictions[0]))
    units = next((p.units for p in predictions if p.units is not None), None)
    if units is not None:
        unit = read_groups(units, unit.shape, "units")[1]
    weight = first.sample_weight
    if weight is not None:
        weight = as_array(weight, "sample_weight", "float64")
    rng = generator(seed)
    found = np.zeros((num_draws, len(values)))
    for i in tracked(range(num_draws), num_draws):
        counts = rng.poisson(size=unit.max() + 1).astype("float64")[unit]
        if weight is not None:
            shape = (len(first), *[1] * (weight.ndim - 1))
            counts = weight * counts.reshape(shape)
        # A replicate of a few rows may leave out all of them.
        if counts.any():
            found[i] = [value(counts) for value in values]
    return found


def p_over_seeds(
    a: np.ndarray,
    b: np.ndarray,
    covariance: np.ndarray | None = None,
    units: int = 2,
    *,
    paired: bool = False,
) -> float:
    """Two-sided p-value of equal means of two models over seeds.

    NaN is no test: of values that are not finite, of one seed against several,
    or of one seed each without `covariance`.

    Derivation: docs/derivations.md, 'Models over seeds'.

    Args:
        a, b: A metric of the seeds of each model.
        covariance: Covariance over test rows of the values of `a` and then of
            `b`; None leaves out what other test rows would change.
        units: Number of rows, or of the images that they belong to.
        paired: Whether a seed of `a` belongs to the same place of `b`.

    Reference:
        Obuchowski and Rockette, Hypothesis Testing of Diagnostic Accuracy for
        Multiple Readers and Multiple Tests, Communications in Statistics 1995,
        https://doi.org/10.1080/03610919508813243 (the variance; readers are
        seeds); Welch, The Generalization of 'Student's' Problem, Biometrika
        1947, https://doi.org/10.1093/biomet/34.1-2.28 (degrees of freedom)
    """
    count, (one, several) = len(a), sorted((len(a), len(b)))
    if not np.isfinite([*a, *b]).all() or (one == 1 and several > 1):
        return np.nan
    difference = abs(np.mean(a) - np.mean(b))
    rows, seeds, freedom = 0.0, 0.0, 1.0
    if several > 1:
        parts = [
            (np.var(x, ddof=1) / len(x), len(x) - 1)
            for x in ([a - b] if paired else [a, b])
        ]
        seeds = sum(x for x, _ in parts)
        if seeds > 0.0:
            freedom = seeds**2 / sum(x**2 / k for x, k in parts)
    elif covariance is None:
        return np.nan
    if covariance is not None:
        own = covariance[:count, :count], covariance[count:, count:]
        across = _mean_of_pairs(covariance[:count, count:], paired)
        rows = sum(_mean_of_pairs(x, True) for x in own) - 2.0 * across
        rows = max(0.0, rows)
    # Means of equal values may differ by rounding.
    if difference <= 1e-12 * max(*np.abs(a), *np.abs(b)):
        return 1.0
    if seeds + rows == 0.0:
        return 0.0
    ratio = difference / np.sqrt(seeds + rows)
    tails = seeds * t.sf(ratio, freedom) + rows * t.sf(ratio, units - 1)
    return float(2.0 * tails / (seeds + rows))


def _mean_of_pairs(covariance: np.ndarray, different: bool) -> float:
    """Mean of a block, of different seeds alone if there are several."""
    count = len(covariance)
    if not different or count == 1:
        return float(covariance.mean())
    total = covariance.sum() - np.trace(covariance)
    return float(total / (count * (count - 1)))


def check_same_rows(given: Mapping[str, Any]) -> None:
    """Raises unless all are predictions of the same rows, by their names."""
    first, a = next(iter(given.items()))
    for name, b in given.items():
        if not isinstance(b, Predictions):
            raise type_error(
                f"`{name}` must be `Predictions(labels, outputs)` of one model,"
                " or of several seeds whose rows have the example as `units`",
                **{name: type(b).__name__},
            )
        if len(a) != len(b):
            raise value_error(
                f"`{name}` must have as many rows as `{first}`",
                **{first: len(a), name: len(b)},
            )
        for fact in ("kind", "ignore_class"):
            found = [getattr(p, fact) for p in (a, b)]
            if found[0] != found[1]:
                raise value_error(
                    f"`{first}` and `{name}` must agree on `{fact}`",
                    **{first: found[0], name: found[1]},
                )
        same = ["sample_weight"]
        if a.kind != "records":
            same.append("labels")
        if a.units is not None and b.units is not None:
            same.append("units")
        for column in same:
            if not np.array_equal(getattr(a, column), getattr(b, column)):
                raise value_error(
                    f"`{first}` and `{name}` must have the same `{column}` in "
                    "the same order",
                    rows=len(a),
                )


def prediction_flips(before: Any, after: Any) -> float:
    """Share of samples whose predicted class changes.

    Use it to see how much training, or a calibrator that can change the
    class, alters predictions.

    Args:
        before: Logits or probabilities `(..., num_classes)` before a change.
        after: Those of the same samples after it, of the same shape.

    Returns:
        Share in [0, 1]. The first of tied classes is the predicted one.

    Raises:
        ValueError: If shapes differ, there are no samples, or one is NaN.

    Example:

    >>> import keras_calib
    >>> keras_calib.functional.prediction_flips(
    ...     [[2, 1], [2, 1]], [[2, 1], [1, 2]]
    ... )
    0.5

    Reference:
        Park et al., ACLS, ICCV 2023, "Limitation",
        https://arxiv.org/abs/2308.11911
    """
    before, after = as_array(before, "before"), as_array(after, "after")
    check_not_empty("before", before)
    check_two_classes("before", before, class_axis(before, -1, "before"))
    if before.shape != after.shape:
        rule = "`before` and `after` must have the same shape"
        shapes = {"before.shape": before.shape, "after.shape": after.shape}
        raise value_error(rule, **shapes)
    for x, name in ((before, "before"), (after, "after")):
        check_no_nan(x, False, name)
    return flipped_share(before.argmax(axis=-1), after.argmax(axis=-1))


def flipped_share(before: np.ndarray, after: np.ndarray) -> float:
    """Share of the class ids >= 0 that differ; NaN without any."""
    count = np.count_nonzero(after >= 0)
    return float(np.count_nonzero(before != after) / count) if count else np.nan

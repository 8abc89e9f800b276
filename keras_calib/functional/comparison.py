"""Comparison of the predictions of two networks on the same samples."""

from typing import Any

import numpy as np
from scipy.stats import norm

from keras_calib.backend.errors import value_error
from keras_calib.backend.progress import shows_progress, tracked
from keras_calib.formulas.intervals import tail_of
from keras_calib.inputs.checks import (
    check_integer,
    check_not_empty,
    check_two_classes,
    class_axis,
    generator,
)
from keras_calib.inputs.given_metrics import of_arrays
from keras_calib.inputs.rows import check_no_nan
from keras_calib.inputs.weights import read_masked
from keras_calib.numerics.arrays import as_array
from keras_calib.numerics.results import Result

__all__ = ["Comparison", "compare", "flipped_share", "prediction_flips"]


class Comparison(Result):
    """Result of `compare`.

    Attributes:
        a: Metric of the first network.
        b: Metric of the second network.
        value: The difference, `a - b`.
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
    labels: Any,
    outputs_a: Any,
    outputs_b: Any,
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

    It is a paired bootstrap. In a replicate, every row of the first axis is
    repeated a Poisson(1) number of times, the same for both networks. This
    removes the noise they share. The interval is difference -+ z times the
    standard deviation of the replicates. Percentiles are not used, because
    they would have the bias of a binned error twice.

    If one network is much better calibrated, the difference of a binned error
    is biased too. The interval is then for what to expect from test sets of
    this size.

    Args:
        labels: Class ids `(n, ...)`, or one-hot or soft labels.
        outputs_a: Outputs of the first network, `(n, ..., num_classes)`.
        outputs_b: Outputs of the second network, of the same number of rows.
        metric: A metric of one value, as `keras_calib.metrics.get` takes it.
            That is a key such as `"nll"`, a function such as
            `keras_calib.aurc` or one of yours with the same arguments, a
            metric class or a new object.
        level: Probability to cover, in (0, 1).
        num_draws: Number of replicates, at least 2.
        seed: Seed of the replicates.
        verbose: `"auto"` or 1 for a progress bar after two seconds, 2 for a
            line at the end, 0 for silence.
        **options: Arguments of `metric`, such as `num_bins`, `from_logits`,
            `ignore_class` and `sample_weight`. A replicate multiplies weights
            by the numbers of repeats.

    Returns:
        Both values, their difference, its interval and a p-value.

    Raises:
        ValueError: If shapes do not fit or a value is out of range.

    Example:

    >>> from keras_calib import ece
    >>> labels = [0] * 70 + [1] * 30
    >>> result = compare(labels, [[0.9, 0.1]] * 100, [[0.7, 0.3]] * 100, ece)
    >>> print(f"{result.value:.2f}, p = {result.p_value:.2g}")
    0.20, p = 6.1e-05

    Reference:
        Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
        chapters 6 and 12
    """
    tail = tail_of(level)
    check_integer("num_draws", num_draws, 2)
    sample_weight = options.pop("sample_weight", None)
    outputs_a, sample_weight = read_masked(
        outputs_a, "outputs_a", sample_weight
    )
    outputs_b, sample_weight = read_masked(
        outputs_b, "outputs_b", sample_weight
    )
    given = {"labels": labels, "outputs_a": outputs_a, "outputs_b": outputs_b}
    arrays = {name: as_array(x, name) for name, x in given.items()}
    labels, *outputs = arrays.values()
    rows = outputs[0].shape[0] if outputs[0].ndim else 0
    for name, x in arrays.items():
        if x.shape[:1] != (rows,):
            raise value_error(
                f"`{name}` must have as many rows as `outputs_a`",
                **{f"{k}.shape": v.shape for k, v in arrays.items()},
            )

    value = of_arrays("metric", metric, options)

    def both(weight: Any) -> np.ndarray:
        return np.array(
            [value(labels, x, sample_weight=weight) for x in outputs]
        )

    values = both(sample_weight)
    if sample_weight is not None:
        sample_weight = as_array(sample_weight, "sample_weight", "float64")
    rng = generator(seed)
    replicates = np.empty(num_draws)
    for i in tracked(range(num_draws), num_draws):
        counts = rng.poisson(size=rows).astype("float64")
        if sample_weight is not None:
            shape = (rows, *[1] * (sample_weight.ndim - 1))
            counts = sample_weight * counts.reshape(shape)
        # A replicate of a few rows may leave out all of them.
        replicates[i] = np.subtract(*both(counts)) if counts.any() else 0.0
    observed = float(values[0] - values[1])
    error = float(np.std(replicates, ddof=1))
    reach = norm.isf(tail) * error
    p_value = float(observed == 0.0)
    if error > 0.0:
        p_value = float(2.0 * norm.sf(abs(observed) / error))
    found = (*values, observed, observed - reach, observed + reach, p_value)
    return Comparison(*map(float, found))


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

"""Confidence intervals."""

from typing import Any

import numpy as np
from scipy.stats import beta

from keras_calib.checks import check_above
from keras_calib.checks import check_at_most
from keras_calib.checks import invalid

__all__ = ["clopper_pearson"]


def clopper_pearson(
    successes: Any, trials: Any, *, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Exact binomial interval; covers with at least the given probability.

    Args:
        successes: `(...)`, between 0 and `trials`; need not be whole, as
            with effective sample sizes of weighted data.
        trials: `(...)`, >= 0.
        level: Probability to cover, in (0, 1).

    Returns:
        `(lower, upper)`, each `(...)`, in [0, 1]; (0, 1) without trials.

    Raises:
        ValueError: If an argument is out of its range.

    Reference:
        Clopper and Pearson, The Use of Confidence or Fiducial Limits
        Illustrated in the Case of the Binomial, Biometrika 1934,
        https://doi.org/10.1093/biomet/26.4.404
    """
    check_above("level", level, 0.0)
    check_at_most("level", level, 1.0)
    successes = np.asarray(successes, "float64")
    trials = np.asarray(trials, "float64")
    if not (np.all(successes >= 0) and np.all(successes <= trials)):
        raise ValueError(
            invalid(
                "`successes` must lie between 0 and `trials`",
                successes=successes,
                trials=trials,
            )
        )
    failures = trials - successes
    tail = (1.0 - level) / 2.0
    # beta.ppf is NaN where a parameter is 0: there the end is 0 or 1.
    lower = beta.ppf(tail, np.maximum(successes, 1e-300), failures + 1.0)
    upper = beta.ppf(1 - tail, successes + 1.0, np.maximum(failures, 1e-300))
    return (
        np.where(successes > 0, lower, 0.0),
        np.where(failures > 0, upper, 1.0),
    )

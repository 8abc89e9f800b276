"""Thresholds that keep several risks within their limits at once."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error
from keras_calib.formulas.intervals import binomial_p_value
from keras_calib.inputs.checks import check_above
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_number
from keras_calib.numerics.arrays import safe_divide
from keras_calib.selection.candidates import Candidates
from keras_calib.selection.candidates import candidates
from keras_calib.selection.guarantees import fixed_sequence

__all__ = ["ControlledRisks", "control_risks"]


class ControlledRisks(NamedTuple):
    """A threshold that keeps several targets, and all thresholds tried.

    Attributes:
        threshold: Least score to accept, or to call positive. Pass it to
            `SelectiveClassifier(threshold=...)`, with the score of that layer.
        coverage: Accepted share of the data.
        estimates: Value of each target's quantity on these data, by name.
        targets: The targets, by name.
        delta: Probability that the guarantee fails.
        num_samples: Number of samples in the data.
        thresholds: All thresholds `(num_thresholds,)`, strictest first.
        valid: True where all targets are certified `(num_thresholds,)`.
        p_values: P-values of each target `(num_thresholds,)`, by name.
    """

    threshold: float
    coverage: float
    estimates: dict[str, float]
    targets: dict[str, float]
    delta: float
    num_samples: int
    thresholds: np.ndarray
    valid: np.ndarray
    p_values: dict[str, np.ndarray]


class _Failures(NamedTuple):
    """Failures among trials at each threshold, and whether less is better."""

    failed: np.ndarray
    trials: np.ndarray
    less: bool
    # The true share of failures rises or falls with the threshold.
    monotone: bool


def _of_accepted(found: Candidates) -> _Failures:
    return _Failures(found.wrong, found.accepted, False, False)


def _of_positives(found: Candidates) -> _Failures:
    hits = found.accepted - found.wrong
    trials = np.full(len(hits), hits[-1])
    return _Failures(trials - hits, trials, False, True)


def _of_negatives(found: Candidates) -> _Failures:
    trials = np.full(len(found.wrong), found.wrong[-1])
    return _Failures(found.wrong, trials, True, True)


def _of_all(found: Candidates) -> _Failures:
    trials = np.full(len(found.accepted), found.accepted[-1])
    return _Failures(trials - found.accepted, trials, False, True)


_QUANTITIES: dict[str, Callable[[Candidates], _Failures]] = {
    "coverage": _of_all,
    "false_positive_rate": _of_negatives,
    "precision": _of_accepted,
    "recall": _of_positives,
    "risk": lambda found: _of_accepted(found)._replace(less=True),
}


def control_risks(
    scores: Any,
    labels: Any,
    targets: Mapping[str, float],
    *,
    delta: float = 0.05,
    prefer: str = "coverage",
) -> ControlledRisks:
    """A threshold that keeps several targets at once, with a guarantee.

    Use it to decide by a threshold where one number is not enough: precision
    and recall of a detector, or risk and coverage of a selector. A score of at
    least the threshold is accepted, which is a positive decision.

    With probability 1 - `delta` the true values keep all targets. Each target
    has an exact binomial test at an equal share of `delta`. Recall, coverage
    and the false positive rate change one way with the threshold, so one test
    holds for all thresholds. Precision and risk are walked from strict to
    lenient. Derivation: docs/derivations.md, 'Intervals and guarantees'.

    Args:
        scores: Scores `(n,)`, higher = surer, of independent samples.
        labels: Labels `(n,)`: 1 for positives, or for right predictions, and
            0 otherwise.
        targets: Targets in (0, 1) by name. Least values of `"precision"`
            (share of 1 among the accepted), `"recall"` (accepted share of the
            1) and `"coverage"` (accepted share). Largest values of `"risk"`
            (share of 0 among the accepted) and `"false_positive_rate"`
            (accepted share of the 0).
        delta: Probability that the guarantee may fail, in (0, 1).
        prefer: Which of the valid thresholds to take: the `"coverage"` that is
            largest, or the `"precision"` that is highest on these data.

    Returns:
        ControlledRisks.

    Raises:
        ValueError: If no threshold keeps all targets, or values are out of
            range.

    Example:

    >>> import numpy as np
    >>> scores = np.linspace(1.0, 0.0, 500)
    >>> labels = (scores > 0.5) * 1
    >>> targets = {"precision": 0.9, "recall": 0.9}
    >>> found = control_risks(scores, labels, targets)
    >>> found.coverage, found.estimates["recall"]
    (0.532, 1.0)

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052
    """
    targets = _checked(targets, delta, prefer)
    found = candidates(scores, labels, None, delta)
    share = delta / len(targets)
    p_values, certified, values = {}, {}, {}
    for name, target in targets.items():
        failures = _QUANTITIES[name](found)
        limit = target if failures.less else 1.0 - target
        p_value = binomial_p_value(failures.failed, failures.trials, limit)
        p_values[name] = p_value
        certified[name] = (
            p_value <= share
            if failures.monotone
            else fixed_sequence(found.accepted, found.wrong, limit, share)
        )
        failed = safe_divide(failures.failed, failures.trials)
        values[name] = failed if failures.less else 1.0 - failed
    valid = np.all(list(certified.values()), axis=0)
    if not valid.any():
        raise _out_of_reach(found, targets, certified, delta)
    places = np.flatnonzero(valid)
    index = places[-1]
    if prefer == "precision":
        # Of equal precision the largest coverage is better.
        index = places[::-1][np.argmin(found.risk[places][::-1])]
    return ControlledRisks(
        float(found.threshold[index]),
        float(found.coverage[index]),
        {name: float(value[index]) for name, value in values.items()},
        targets,
        float(delta),
        found.num_samples,
        found.threshold,
        valid,
        p_values,
    )


def _checked(
    targets: Mapping[str, float], delta: float, prefer: str
) -> dict[str, float]:
    """The targets; raises for names and values that are not allowed."""
    if not isinstance(targets, Mapping):
        raise type_error(
            "`targets` must be a dict such as "
            '{"precision": 0.9, "recall": 0.8}',
            targets=targets,
        )
    if not targets:
        raise value_error("`targets` must name at least one", targets=targets)
    check_in("prefer", prefer, ("coverage", "precision"))
    for name, value in {**targets, "delta": delta}.items():
        if name != "delta":
            check_in("targets", name, tuple(_QUANTITIES))
        check_number(name, value)
        check_above(name, value, 0.0)
        if value >= 1.0:
            raise value_error(f"`{name}` must be < 1", **{name: value})
    return {name: float(value) for name, value in targets.items()}


def _out_of_reach(
    found: Candidates,
    targets: dict[str, float],
    certified: dict[str, np.ndarray],
    delta: float,
) -> ValueError:
    """The error that says at which coverage each target alone is certified."""
    reach = {}
    for name, kept in certified.items():
        coverage = found.coverage[kept]
        reach[f"{name} alone"] = (
            f"at coverage {coverage.min():.3f} to {coverage.max():.3f}"
            if len(coverage)
            else "nowhere"
        )
    return value_error(
        "No threshold is certified to keep all `targets`: take more data, a "
        "larger `delta`, or lower the target that is certified apart from "
        "the others",
        targets=targets,
        delta=delta,
        samples=found.num_samples,
        **reach,
    )

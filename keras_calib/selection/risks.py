"""Thresholds that keep several risks within their limits at once."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.formulas.bounded_means import accepted_p_values, bounded_losses
from keras_calib.formulas.intervals import binomial_p_value, check_inside
from keras_calib.inputs.checks import check_in
from keras_calib.numerics.arrays import as_array, safe_divide
from keras_calib.selection.choice import Choice, chosen_alone
from keras_calib.selection.claims import Claim, errors, places_by_betting
from keras_calib.selection.families import alone
from keras_calib.selection.ladder import Ladder, of_scores, read_outcomes

__all__ = ["control_risks"]

# By which ranks grow from one start of a walk to the next. Other targets may
# leave few thresholds, which a walk must not pass by.
_FACTOR = math.sqrt(2.0)


class _Failures(NamedTuple):
    """Failures among trials at each threshold, and whether less is better."""

    failed: np.ndarray
    trials: np.ndarray
    less: bool
    # Quantities of one kind share a level. True shares of failures fall or
    # rise with the threshold for all kinds but "accepted".
    kind: str


def _of_accepted(found: Ladder) -> _Failures:
    return _Failures(found.loss, found.accepted, False, "accepted")


def _of_positives(found: Ladder) -> _Failures:
    hits = found.accepted - found.loss
    missed = found.never[0] - found.never[1]
    trials = np.full(len(hits), hits[-1] + missed)
    return _Failures(trials - hits, trials, False, "rejected")


def _of_negatives(found: Ladder) -> _Failures:
    trials = np.full(len(found.loss), found.loss[-1] + found.never[1])
    return _Failures(found.loss, trials, True, "negatives")


def _of_all(found: Ladder) -> _Failures:
    trials = np.full(len(found.accepted), found.total)
    return _Failures(trials - found.accepted, trials, False, "rejected")


_QUANTITIES: dict[str, Callable[[Ladder], _Failures]] = {
    "coverage": _of_all,
    "false_positive_rate": _of_negatives,
    "precision": _of_accepted,
    "recall": _of_positives,
    "risk": lambda found: _of_accepted(found)._replace(less=True),
}


class _Tested(NamedTuple):
    """What a target comes to at each threshold `(num_thresholds,)`."""

    value: np.ndarray
    p_value: np.ndarray
    certified: np.ndarray


def _tests(
    found: Ladder,
    targets: dict[str, float],
    losses: dict[str, np.ndarray],
    delta: float,
) -> dict[str, _Tested]:
    """The tests of all targets, which fail together at most at `delta`.

    `losses` are of the surest sample first.
    """
    failures = {
        name: _QUANTITIES[name](found) for name in targets if name not in losses
    }
    kinds = {x.kind for x in failures.values()}
    share = delta / (len(kinds) + len(losses))
    tested, least = {}, 1
    # Those that change one way with the threshold are first: the coverage says
    # where it is of use to begin the walks.
    for name, x in failures.items():
        limit = targets[name] if x.less else 1.0 - targets[name]
        p_value = binomial_p_value(x.failed, x.trials, limit)
        failed = safe_divide(x.failed, x.trials)
        value = failed if x.less else 1.0 - failed
        tested[name] = _Tested(value, p_value, p_value <= share)
    if "coverage" in tested:
        enough = tested["coverage"].certified
        least = int(found.accepted[enough][0]) if enough.any() else 1
    for name, x in failures.items():
        if x.kind == "accepted":
            limit = targets[name] if x.less else 1.0 - targets[name]
            claim = errors(found, limit, share, least=least, factor=_FACTOR)
            certified = alone(claim, len(found.threshold))
            tested[name] = tested[name]._replace(certified=certified)
    counts = found.accepted.astype(int)
    for name, loss in losses.items():
        value = np.cumsum(loss)[counts - 1] / counts
        tested[name] = _Tested(
            value, *_bets(counts, loss, targets[name], share, least)
        )
    return tested


def _bets(
    counts: np.ndarray,
    losses: np.ndarray,
    limit: float,
    level: float,
    least: int,
) -> tuple[np.ndarray, np.ndarray]:
    """P-values of a mean by betting, 1 if untested, and what is certified."""
    places, first, shares = places_by_betting(
        counts, limit, level, least, _FACTOR
    )
    p_value = np.ones(len(counts))
    if len(places):
        p_value[places] = accepted_p_values(
            losses, counts[places], limit, delta=float(shares[0])
        )
    claim = Claim(p_value[places], first, shares, places)
    return p_value, alone(claim, len(counts))


def control_risks(
    scores: Any,
    labels: Any,
    targets: Mapping[str, float],
    *,
    delta: float = 0.05,
    prefer: str = "coverage",
    losses: Mapping[str, Any] | None = None,
) -> Choice:
    """A threshold that keeps several targets at once, with a guarantee.

    Use it to decide by a threshold where one number is not enough: precision
    and recall of a detector, or risk and coverage of a selector. A score of at
    least the threshold is accepted, which is a positive decision.

    With probability 1 - `delta` the true values keep all targets. Recall,
    coverage and the false positive rate change one way with the threshold, so
    one exact binomial test holds for all thresholds. Precision, risk and your
    own losses are walked from strict to lenient. Recall and coverage share one
    part of `delta`, precision and risk another, the false positive rate and
    each loss have their own.
    Derivation: docs/derivations.md, 'Families of claims'.

    Args:
        scores: Scores `(n,)`, higher = surer, of independent samples.
        labels: Labels `(n,)`: 1 for positives, or for right predictions, and
            0 otherwise.
        targets: Targets in (0, 1) by name. Least values of `"precision"`
            (share of 1 among the accepted), `"recall"` (accepted share of the
            1) and `"coverage"` (accepted share). Largest values of `"risk"`
            (share of 0 among the accepted), `"false_positive_rate"`
            (accepted share of the 0), and of the mean of each of `losses`.
        delta: Probability that the guarantee may fail, in (0, 1).
        prefer: Which of the valid thresholds to take: the `"coverage"` that is
            largest, or the `"precision"` that is highest on these data.
        losses: Losses `(n,)` in [0, 1] of your own, by a name that is a target
            too. It limits their mean over the accepted samples, not over all.
            Betting tests at most 256 thresholds, and no others are valid.

    Returns:
        A `Choice`. All thresholds tried, and which are valid, are its
        `table()`.

    Raises:
        ValueError: If no threshold keeps all targets, values are out of
            range, or a loss has no target.

    Example:

    >>> import numpy as np
    >>> scores = np.linspace(1.0, 0.0, 500)
    >>> labels = (scores > 0.5) * 1
    >>> targets = {"precision": 0.9, "recall": 0.9}
    >>> found = control_risks(scores, labels, targets)
    >>> found.coverage, found.facts["estimates"]["recall"]
    (0.532, 1.0)

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052
    """
    targets, losses = _checked(targets, delta, prefer, losses)
    found = of_scores(read_outcomes(scores, labels, None, delta))
    tested = _tests(found, targets, _ranked(losses, scores), delta)
    valid = np.all([x.certified for x in tested.values()], axis=0)
    if not valid.any():
        raise _out_of_reach(found, targets, tested, delta)
    places = np.flatnonzero(valid)
    index = places[-1]
    if prefer == "precision":
        # Of equal precision the largest coverage is better.
        index = places[::-1][np.argmin(found.risk[places][::-1])]
    return chosen_alone(
        found,
        valid,
        int(index),
        kind="targets",
        delta=float(delta),
        method="ltt",
        facts={
            "targets": targets,
            "estimates": {
                name: float(tested[name].value[index]) for name in targets
            },
            "p_values": {name: tested[name].p_value for name in targets},
        },
    )


def _checked(
    targets: Mapping[str, float],
    delta: float,
    prefer: str,
    losses: Mapping[str, Any] | None,
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Targets and losses; raises for names and values that are not allowed."""
    losses = {} if losses is None else losses
    if not isinstance(targets, Mapping):
        raise type_error(
            "`targets` must be a dict such as "
            '{"precision": 0.9, "recall": 0.8}',
            targets=targets,
        )
    if not isinstance(losses, Mapping):
        raise type_error(
            "`losses` must be a dict of arrays by name", losses=type(losses)
        )
    if not targets:
        raise value_error("`targets` must name at least one", targets=targets)
    check_in("prefer", prefer, ("coverage", "precision"))
    for name in losses:
        if name in _QUANTITIES or name not in targets:
            raise value_error(
                "Each of `losses` must have a target by its name, which is "
                "none of a quantity of labels",
                name=name,
                targets=sorted(targets),
                quantities=sorted(_QUANTITIES),
            )
    for name, value in {**targets, "delta": delta}.items():
        if name != "delta":
            check_in("targets", name, (*_QUANTITIES, *losses))
        check_inside(name, value)
    return (
        {name: float(value) for name, value in targets.items()},
        {k: bounded_losses(x, f"losses[{k!r}]") for k, x in losses.items()},
    )


def _ranked(
    losses: dict[str, np.ndarray], scores: Any
) -> dict[str, np.ndarray]:
    """The losses, of the surest sample first."""
    ranked = as_array(scores, "scores", "float64")
    order = np.argsort(-ranked, kind="stable")
    for name, loss in losses.items():
        if len(loss) != len(order):
            raise value_error(
                f"`losses[{name!r}]` must have one value per score",
                scores=order.shape,
                losses=loss.shape,
            )
    order = order[np.isfinite(ranked[order])]
    return {name: loss[order] for name, loss in losses.items()}


def _out_of_reach(
    found: Ladder,
    targets: dict[str, float],
    tested: dict[str, _Tested],
    delta: float,
) -> ValueError:
    """The error that says at which coverage each target alone is certified."""
    reach = {}
    for name in targets:
        coverage = found.coverage[tested[name].certified]
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
        samples=found.size,
        **reach,
    )

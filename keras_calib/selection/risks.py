"""Thresholds that keep several risks within their limits at once."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.formulas.bounded_means import accepted_p_values, bounded_losses
from keras_calib.formulas.intervals import binomial_p_value, check_inside
from keras_calib.inputs.checks import check_in
from keras_calib.numerics.arrays import safe_divide
from keras_calib.selection.choice import Choice, chosen_alone
from keras_calib.selection.claims import Claim, errors, places_by_betting
from keras_calib.selection.families import alone
from keras_calib.selection.ladder import (
    Ladder,
    in_log_odds,
    of_scores,
    read_outcomes,
)

# By which ranks grow from one start of a walk to the next. Other targets may
# leave few thresholds, which a walk must not pass by.
_FACTOR = math.sqrt(2.0)
# What fails at a threshold. Quantities of one kind share a level. True shares
# of failures fall or rise with the threshold for all kinds but "accepted".
_KINDS = {
    "coverage": "rejected",
    "false_positive_rate": "negatives",
    "precision": "accepted",
    "recall": "rejected",
    "risk": "accepted",
}
# Their targets are largest values of a share of failures; those of the others
# are least values of the rest.
_LARGEST = "false_positive_rate", "risk"


class _Tested(NamedTuple):
    """What a target comes to at each threshold `(num_thresholds,)`."""

    value: np.ndarray
    p_value: np.ndarray
    certified: np.ndarray


def _failures(name: str, found: Ladder) -> tuple[np.ndarray, Any]:
    """Failures at each threshold, and trials."""
    total, negatives = found.total, found.loss[-1] + found.never[1]
    positives = total - negatives
    hits = found.accepted - found.loss
    return {
        "coverage": (total - found.accepted, total),
        "false_positive_rate": (found.loss, negatives),
        "precision": (found.loss, found.accepted),
        "recall": (positives - hits, positives),
        "risk": (found.loss, found.accepted),
    }[name]


def _tests(
    found: Ladder,
    limits: dict[str, float],
    losses: dict[str, np.ndarray],
    delta: float,
) -> dict[str, _Tested]:
    """The tests of all limits, which fail together at most at `delta`.

    `losses` are of the surest sample first.
    """
    names = sorted(limits.keys() - losses, key=_walked_last)
    share = delta / (len({_KINDS[name] for name in names}) + len(losses))
    tested, least = {}, 1
    for name in names:
        failed, trials = np.broadcast_arrays(*_failures(name, found))
        value = safe_divide(failed, trials)
        limit = limits[name]
        if name not in _LARGEST:
            value, limit = 1.0 - value, 1.0 - limit
        p_value = binomial_p_value(failed, trials, limit)
        certified = p_value <= share
        if _walked_last(name):
            claim = errors(found, limit, share, least=least, factor=_FACTOR)
            certified = alone(claim, len(found.threshold))
        if name == "coverage" and certified.any():
            # Walks need not begin where the coverage is too small.
            least = int(found.accepted[certified][0])
        tested[name] = _Tested(value, p_value, certified)
    counts = found.accepted.astype(int)
    for name, loss in losses.items():
        limit = limits[name]
        places, first, shares = places_by_betting(
            counts, limit, share, least, _FACTOR
        )
        # Untested thresholds have a p-value of 1.
        p_value = np.ones(len(counts))
        if len(places):
            p_value[places] = accepted_p_values(
                loss, counts[places], limit, delta=float(shares[0])
            )
        claim = Claim(p_value[places], first, shares, places)
        value = np.cumsum(loss)[counts - 1] / counts
        tested[name] = _Tested(value, p_value, alone(claim, len(counts)))
    return tested


def _walked_last(name: str) -> bool:
    """Whether thresholds are walked, from where the coverage allows."""
    return _KINDS[name] == "accepted"


def control_risks(
    scores: Any,
    labels: Any = None,
    limits: Mapping[str, float] | None = None,
    *,
    delta: float = 0.05,
    prefer: str = "coverage",
    losses: Mapping[str, Any] | None = None,
) -> Choice:
    """A threshold that keeps several targets at once, with a guarantee.

    Use it to decide by a threshold where one number is not enough: precision
    and recall of a detector, or risk and coverage of a selector. A score of at
    least the threshold is accepted, which is a positive decision.

    With probability 1 - `delta` the true values keep all limits. Recall,
    coverage and the false positive rate change one way with the threshold, so
    one exact binomial test holds for all thresholds. Precision, risk and your
    own losses are walked from strict to lenient. Recall and coverage share one
    part of `delta`, precision and risk another, the false positive rate and
    each loss have their own.
    Derivation: docs/derivations.md, 'Families of claims'.

    Args:
        scores: Scores `(n,)`, higher = surer, of independent samples. Or
            `Predictions`, as in `choose_threshold`.
        labels: Labels `(n,)`: 1 for positives, or for right predictions, and
            0 otherwise. None with `Predictions`, for right predictions.
        limits: Targets in (0, 1) by name. Least values of `"precision"`
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
        ValueError: If no threshold keeps all limits, values are out of
            range, or a loss has no target.

    Example:

    >>> import numpy as np
    >>> scores = np.linspace(1.0, 0.0, 500)
    >>> labels = (scores > 0.5) * 1
    >>> limits = {"precision": 0.9, "recall": 0.9}
    >>> found = control_risks(scores, labels, limits)
    >>> found.coverage, found.facts["estimates"]["recall"]
    (0.532, 1.0)

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052
    """
    limits, losses = _checked(limits, delta, prefer, losses)
    outcomes = read_outcomes(scores, labels, None, delta)
    found = of_scores(outcomes)
    for name, loss in losses.items():
        if len(loss) != len(outcomes.score):
            raise value_error(
                f"`losses[{name!r}]` must have one value per score",
                scores=outcomes.score.shape,
                losses=loss.shape,
            )
    # Those of what can be accepted, of the surest sample first.
    order = np.argsort(-outcomes.score, kind="stable")
    order = order[np.isfinite(outcomes.score[order])]
    ranked = {name: loss[order] for name, loss in losses.items()}
    tested = _tests(found, limits, ranked, delta)
    valid = np.all([x.certified for x in tested.values()], axis=0)
    if not valid.any():
        raise _out_of_reach(found, limits, tested, delta)
    places = np.flatnonzero(valid)
    index = places[-1]
    if prefer == "precision":
        # Of equal precision the largest coverage is better.
        index = places[::-1][np.argmin(found.risk[places][::-1])]
    return chosen_alone(
        found,
        valid,
        int(index),
        in_log_odds(scores),
        kind="limits",
        delta=float(delta),
        method="ltt",
        facts={
            "limits": limits,
            "estimates": {
                name: float(tested[name].value[index]) for name in limits
            },
            "p_values": {name: tested[name].p_value for name in limits},
        },
    )


def _checked(
    limits: Mapping[str, float] | None,
    delta: float,
    prefer: str,
    losses: Mapping[str, Any] | None,
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Targets and losses; raises for names and values that are not allowed."""
    losses = {} if losses is None else losses
    if not isinstance(limits, Mapping):
        raise type_error(
            '`limits` must be a dict such as {"precision": 0.9, "recall": 0.8}',
            limits=limits,
        )
    if not isinstance(losses, Mapping):
        raise type_error(
            "`losses` must be a dict of arrays by name", losses=type(losses)
        )
    if not limits:
        raise value_error("`limits` must name at least one", limits=limits)
    check_in("prefer", prefer, ("coverage", "precision"))
    for name in losses:
        if name in _KINDS or name not in limits:
            raise value_error(
                "Each of `losses` must have a target by its name, which is "
                "none of a quantity of labels",
                name=name,
                limits=sorted(limits),
                quantities=sorted(_KINDS),
            )
    for name, value in {**limits, "delta": delta}.items():
        if name != "delta":
            check_in("limits", name, (*_KINDS, *losses))
        check_inside(name, value)
    return (
        {name: float(value) for name, value in limits.items()},
        {k: bounded_losses(x, f"losses[{k!r}]") for k, x in losses.items()},
    )


def _out_of_reach(
    found: Ladder,
    limits: dict[str, float],
    tested: dict[str, _Tested],
    delta: float,
) -> ValueError:
    """The error that says at which coverage each target alone is certified."""
    reach = {}
    for name in limits:
        coverage = found.coverage[tested[name].certified]
        reach[f"{name} alone"] = (
            f"at coverage {coverage.min():.3f} to {coverage.max():.3f}"
            if len(coverage)
            else "nowhere"
        )
    return value_error(
        "No threshold is certified to keep all `limits`: take more data, a "
        "larger `delta`, or lower the target that is certified apart from "
        "the others",
        limits=limits,
        delta=delta,
        samples=found.size,
        **reach,
    )

"""Targets of a fit: what its thresholds are to keep."""

from typing import Any, TypedDict

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.checks import check_flag
from keras_calib.selection.costs import CostTarget
from keras_calib.selection.mixtures import MixtureTarget
from keras_calib.selection.prior import PriorTarget
from keras_calib.selection.rules import CostRule
from keras_calib.selection.thresholds import ErrorTarget

__all__ = ["Target", "target_of"]


class Target(TypedDict, total=False):
    """What the thresholds of a selector are to keep.

    With `delta`, P(a threshold is returned and its true risk exceeds `risk`) <=
    `delta`, over draws of independent, equally weighted samples. They must not
    have chosen network, calibrator or score: use new data, or set
    `tune_fraction`.

    Attributes:
        risk: Largest allowed share of errors among the accepted; `fit`
            maximises the coverage.
        coverage: Least share to accept, instead of `risk`; `fit` takes the
            strictest such threshold.
        delta: Probability that the guarantee may fail, in (0, 1). None bounds
            the risk on these samples only.
        method: With `mean_cost` and `delta`, the test of Learn then Test:
            `"betting"` or `"hoeffding_bentkus"`, or `"binomial"`, which is
            exact, if all errors cost the same. With `reject_cost` alone,
            `"chow"`, or `"empirical"` for the threshold of the least mean cost
            on these samples. With `target_prior`, one of
            `choose_threshold_for_prior`. None takes the exact or the first
            one.
        reject_cost: With costs, the cost of asking a human, >= 0. With
            `mean_cost` no answer of a higher expected cost is accepted either.
        mean_cost: With costs, the largest allowed mean cost of the accepted;
            `fit` maximises the coverage.
        one_threshold: With `groups`, `risk` and `delta`: one threshold for
            all, as `choose_threshold_for_mixtures` says.
        target_prior: Share of each class in use `(num_classes,)`, for a `risk`
            and `delta` there, as `choose_threshold_for_prior` says.
    """

    risk: float | None
    coverage: float | None
    delta: float | None
    method: str | None
    reject_cost: float | None
    mean_cost: float | None
    one_threshold: bool
    target_prior: Any


def target_of(
    asked: Target, rule: Any, names: tuple | None, seed: int, caller: str
) -> ErrorTarget | CostTarget | PriorTarget | MixtureTarget:
    """The target of a fit, checked.

    Args:
        asked: What was asked for.
        rule: The rule of the answers.
        names: Names of the groups, or None.
        seed: Seed of rows that are drawn.
        caller: Name of the function that was called.
    """
    for name in asked.keys() - Target.__annotations__:
        raise type_error(
            f"`{name}` must be an argument of `{caller}`",
            arguments=sorted(Target.__annotations__),
        )
    one_threshold = asked.get("one_threshold", False)
    check_flag("one_threshold", one_threshold)
    if one_threshold and names is None:
        raise value_error(
            "`one_threshold` needs `groups`: it is one threshold that holds "
            "for every mixture of them",
            groups=None,
        )
    costs = isinstance(rule, CostRule)
    if names is not None and costs:
        raise value_error(
            "`groups` must be left out with `costs`: thresholds by group are "
            "for risk and coverage"
        )
    coverage = asked.get("coverage")
    # Targets check what is missing.
    risk: Any = asked.get("risk")
    delta: Any = asked.get("delta")
    method = asked.get("method")
    prior = asked.get("target_prior")
    if prior is not None or one_threshold:
        told = None
        if prior is not None and names is not None:
            told = "`target_prior` and `groups` exclude each other"
        elif costs:
            told = "`target_prior` must be left out with `costs`"
        elif coverage is not None:
            told = "`coverage` must be None: only a `risk` is guaranteed here"
        if told is not None:
            raise value_error(told, coverage=coverage)
        if prior is not None:
            return PriorTarget(prior, risk, delta, method, seed).check()
        _check_no_method(method, " with `one_threshold`: the test is binomial")
        return MixtureTarget(risk, delta, seed).check()
    prices = asked.get("mean_cost"), asked.get("reject_cost")
    if costs:
        if risk is not None:
            raise value_error(
                "`risk` must be None with `costs`, as it counts errors: give "
                "`reject_cost`, or a limit `mean_cost` for the accepted",
                risk=risk,
            )
        return CostTarget.of(rule.costs, *prices, coverage, delta, method)
    if prices != (None, None):
        raise value_error(
            "`costs` must be given with `reject_cost` or `mean_cost`: row j "
            "for the true class j, column k for the answer k; "
            "`1 - np.eye(num_classes)` counts errors",
            mean_cost=prices[0],
            reject_cost=prices[1],
        )
    if method != "ltt":
        _check_no_method(method, ' or "ltt": risks have exact binomial tests')
    return ErrorTarget(risk, coverage, delta).check()


def _check_no_method(method: str | None, reason: str) -> None:
    if method is not None:
        raise value_error(f"`method` must be None{reason}", method=method)

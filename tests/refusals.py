"""Bad calls, and the one form of words in which each is refused."""

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from keras import backend, ops
from told import taking

from keras_calib import (
    ACLS,
    AECE,
    AURC,
    CPC,
    DCA,
    ECE,
    FLSD,
    MDCA,
    MMCE,
    NLL,
    BrierLoss,
    ConfidencePenalty,
    FocalLoss,
    InverseFocalLoss,
    LabelRelaxation,
    LabelSmoothing,
    MbLS,
    ReliabilityDisplay,
    RiskCoverageDisplay,
    TemperatureScaling,
    UniformityPenalty,
    aurc,
    ece,
    nll,
)
from keras_calib.functional import (
    aece,
    augrc,
    coverage_at_risk,
    eaurc,
    risk_at_coverage,
    risk_coverage_curve,
)

# The argument in backticks, the rule, then the fact.
FORM = re.compile(
    r"`[^`]+`.*\b(must|needs)\b.*[^.]\. Received: [^ =][^=]*=.+", re.DOTALL
)

IDS = np.array([0, 1])
SOFT = np.array([[0.9, 0.1, 0.0], [0.0, 0.8, 0.2]])
PROBS = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]], "float32")
NAN, INF = float("nan"), float("inf")

# Those that have no meaning for soft labels, and all that take plain ones.
HARD_LOSSES = (CPC, FLSD, InverseFocalLoss, LabelRelaxation, MMCE)
LOSSES = (
    *HARD_LOSSES,
    ACLS,
    BrierLoss,
    ConfidencePenalty,
    DCA,
    FocalLoss,
    LabelSmoothing,
    MDCA,
    MbLS,
    UniformityPenalty,
)
METRICS = (AECE, AURC, ECE, NLL)
FUNCTIONS = {
    "ReliabilityDisplay": taking(ReliabilityDisplay),
    "RiskCoverageDisplay": taking(RiskCoverageDisplay),
    "aece": aece,
    "augrc": augrc,
    "aurc": aurc,
    "coverage_at_risk": partial(coverage_at_risk, risk=0.1),
    "eaurc": eaurc,
    "ece": ece,
    "nll": nll,
    "risk_at_coverage": partial(risk_at_coverage, coverage=0.5),
    "risk_coverage_curve": risk_coverage_curve,
}


class Case(NamedTuple):
    """One bad call.

    Attributes:
        id: What is wrong.
        call: The call.
        error: The exception it raises.
        rule: Regular expression on the message.
    """

    id: str
    call: Callable
    error: type
    rule: str


def refused(case: Case) -> None:
    """The one place where the form of a message is judged."""
    with pytest.raises(case.error, match=case.rule) as caught:
        case.call()
    assert caught.type is case.error
    assert FORM.search(str(caught.value))


def each(cases):
    return pytest.mark.parametrize("case", cases, ids=[c.id for c in cases])


def number(call, argument, bad, rule):
    """A number out of range, and what is no finite number at all."""
    named = f"{call.__qualname__} {argument}"
    quoted = f"`{argument}` must be "
    for value in bad:
        yield Case(
            f"{named}={value}",
            partial(call, **{argument: value}),
            ValueError,
            quoted + re.escape(rule[value] if isinstance(rule, dict) else rule),
        )
    for value in (NAN, INF, -INF):
        yield Case(
            f"{named}={value}",
            partial(call, **{argument: value}),
            ValueError,
            quoted + "finite",
        )
    for value in ("1", True, 1j, [1.0]):
        yield Case(
            f"{named}={value!r}",
            partial(call, **{argument: value}),
            TypeError,
            quoted + "a number",
        )


def integer(call, argument, bad, rule):
    """An integer too small, and what is no integer at all."""
    named = f"{call.__qualname__} {argument}"
    quoted = f"`{argument}` must be "
    for value in bad:
        yield Case(
            f"{named}={value}",
            partial(call, **{argument: value}),
            ValueError,
            quoted + re.escape(rule),
        )
    # Sums of them wrap, or are floats.
    for value in (np.int8(9), np.uint64(9)):
        yield Case(
            f"{named}={value!r}",
            partial(call, **{argument: value}),
            TypeError,
            quoted + "an int, an int32 or an int64: give",
        )
    for value in (2.5, 100.0, NAN, "100", True, None):
        yield Case(
            f"{named}={value!r}",
            partial(call, **{argument: value}),
            TypeError,
            quoted + "an integer",
        )


def choice(call, argument):
    yield Case(
        f"{call.__qualname__} {argument}='median'",
        partial(call, **{argument: "median"}),
        ValueError,
        f"`{argument}` must be one of .*'median'",
    )


def on_data(function, **arguments):
    """A function whose data is good."""
    call = partial(function, IDS, PROBS, **arguments)
    call.__qualname__ = function.__qualname__
    return call


UNIT = {-0.1: ">= 0.0", 1.5: "<= 1.0"}


def read_by_loss(cls, labels, predictions, sample_weight=None, **options):
    return cls(**options)(labels, predictions, sample_weight)


def read_by_metric(cls, labels, predictions, sample_weight=None, **options):
    cls(**options).update_state(labels, predictions, sample_weight)


def read_by_fit(labels, predictions, sample_weight=None):
    return TemperatureScaling().fit(labels, predictions, sample_weight)


# One of each kind: what the rules say. That all follow them is in the battery.
IN_TRAINING = {
    **{cls.__name__: partial(read_by_loss, cls) for cls in (CPC, MMCE, MbLS)},
    **{cls.__name__: partial(read_by_metric, cls) for cls in (ECE, NLL)},
}
_SOME = {name: FUNCTIONS[name] for name in ("ReliabilityDisplay", "ece")}
TAKE_PROBS = {**IN_TRAINING, **_SOME}
TAKE_ARRAYS = {**_SOME, "TemperatureScaling": read_by_fit}
ALL = {**IN_TRAINING, **TAKE_ARRAYS}

# One of each kind, where one check serves them all.
IN_TRAINING_ONE = {name: ALL[name] for name in ("MbLS", "ECE")}
TAKE_PROBS_ONE = {name: ALL[name] for name in ("MbLS", "ECE", "ece")}

LABELS = "`(y_true|labels)`"
PREDICTIONS = "`(y_pred|probs|logits|outputs)`"


FIT = f"{LABELS} must be class ids or one-hot or soft labels that fit"


def compiled(function):
    if backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)
    if backend.backend() == "jax":
        import jax

        return jax.jit(function)
    pytest.skip("nothing is compiled on this backend")


def compiled_update(metric):
    """An update in compiled code; on torch nothing is compiled."""
    if backend.backend() == "tensorflow":
        return compiled(metric.update_state)
    if backend.backend() == "torch":
        pytest.skip("nothing is compiled on this backend")
    import jax

    def run(labels, predictions):
        def update(values, labels, predictions):
            return metric.stateless_update_state(values, labels, predictions)

        values = [v.value for v in metric.variables]
        for v, new in zip(
            metric.variables,
            jax.jit(update)(values, labels, predictions),
            strict=True,
        ):
            v.assign(new)

    return run


def of_library(caught):
    return [w for w in caught if w.category is RuntimeWarning]


def seen(metric):
    metric.update_state(IDS, PROBS)
    return metric


def state(metric):
    return [np.array(ops.convert_to_numpy(v)) for v in metric.variables]


def same(before, after):
    return all(map(np.array_equal, before, after))

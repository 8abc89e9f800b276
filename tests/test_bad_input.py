"""Bad input is refused, in one form of words, before it does harm."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any
from typing import NamedTuple

import numpy as np
import pytest
from keras import backend
from keras import ops

from keras_calib import ACLS
from keras_calib import AECE
from keras_calib import AURC
from keras_calib import CPC
from keras_calib import DCA
from keras_calib import ECE
from keras_calib import FLSD
from keras_calib import MDCA
from keras_calib import MMCE
from keras_calib import NLL
from keras_calib import AdaptiveLabelSmoothing
from keras_calib import BatchCoupledLoss
from keras_calib import BrierLoss
from keras_calib import ConfidencePenalty
from keras_calib import FocalLoss
from keras_calib import InverseFocalLoss
from keras_calib import LabelRelaxation
from keras_calib import LabelSmoothing
from keras_calib import MbLS
from keras_calib import ReliabilityDisplay
from keras_calib import RiskCoverageDisplay
from keras_calib import TemperatureScaling
from keras_calib import UniformityPenalty
from keras_calib import adaptive_ece
from keras_calib import augrc
from keras_calib import aurc
from keras_calib import coverage_at_risk
from keras_calib import eaurc
from keras_calib import ece
from keras_calib import effective_labels
from keras_calib import nll
from keras_calib import risk_at_coverage
from keras_calib import risk_coverage_curve

pytestmark = pytest.mark.portable

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
    "ReliabilityDisplay": ReliabilityDisplay.from_predictions,
    "RiskCoverageDisplay": RiskCoverageDisplay.from_predictions,
    "adaptive_ece": adaptive_ece,
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


# Hyperparameters.


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
HYPERPARAMETERS = [
    *number(MbLS, "margin", (-1.0,), ">= 0"),
    *number(MbLS, "strength", (-0.1,), ">= 0"),
    *choice(MbLS, "class_reduction"),
    *number(ACLS, "margin", (-1.0,), ">= 0"),
    *number(ACLS, "lambda1", (-0.1,), ">= 0"),
    *number(ACLS, "lambda2", (-0.01,), ">= 0"),
    *choice(ACLS, "reference"),
    Case(
        "ACLS reference='zero' without from_logits",
        partial(ACLS, reference="zero"),
        ValueError,
        "`reference` .* needs `from_logits=True`",
    ),
    Case(
        "ACLS reference='zero', from_logits=False",
        partial(ACLS, reference="zero", from_logits=False),
        ValueError,
        "`reference` .* needs `from_logits=True`",
    ),
    *number(LabelSmoothing, "alpha", (1.5,), "<= 1"),
    *choice(LabelSmoothing, "spread"),
    *number(FocalLoss, "gamma", (-1.0,), ">= 0"),
    *number(LabelRelaxation, "alpha", (-0.1, 1.5), UNIT),
    *number(ConfidencePenalty, "beta", (-0.1,), ">= 0"),
    *number(ConfidencePenalty, "threshold", (-0.1,), ">= 0"),
    *choice(ConfidencePenalty, "class_reduction"),
    *integer(ECE, "num_bins", (0, -1), ">= 1"),
    *integer(AECE, "num_bins", (0, -1), ">= 1"),
    *integer(AECE, "resolution", (0, 63), ">= 64"),
    *integer(AURC, "resolution", (0, 63), ">= 64"),
    *number(NLL, "clip", (0.0, 1.5), {0.0: "> 0.0", 1.5: "<= 1.0"}),
    *number(on_data(nll), "clip", (0.0, 1.5), {0.0: "> 0.0", 1.5: "<= 1.0"}),
    *integer(on_data(ece), "num_bins", (0, -1), ">= 1"),
    *integer(on_data(adaptive_ece), "num_bins", (0, -1), ">= 1"),
    *choice(on_data(adaptive_ece), "edges"),
    *choice(on_data(adaptive_ece), "ties"),
    *choice(on_data(aurc), "ties"),
    *choice(on_data(eaurc), "ties"),
    *choice(on_data(coverage_at_risk, risk=0.1), "ties"),
    *choice(on_data(risk_at_coverage, coverage=0.5), "ties"),
    *number(on_data(coverage_at_risk), "risk", (-0.1, 1.5), UNIT),
    *number(
        on_data(risk_at_coverage),
        "coverage",
        (0.0, -0.1, 1.5),
        {0.0: "> 0.0", -0.1: "> 0.0", 1.5: "<= 1.0"},
    ),
    *integer(
        on_data(ReliabilityDisplay.from_predictions),
        "num_bins",
        (0, -1),
        ">= 1",
    ),
    Case(
        "adaptive_ece edges='interp' with weights",
        on_data(adaptive_ece, edges="interp", sample_weight=np.ones(2)),
        ValueError,
        '`sample_weight` needs `edges="mass"`',
    ),
]


@each(HYPERPARAMETERS)
def test_bad_hyperparameter_is_refused(case):
    refused(case)


@pytest.mark.parametrize("cls", [*LOSSES, AdaptiveLabelSmoothing])
def test_an_argument_that_a_loss_does_not_have_is_refused(cls):
    with pytest.raises(TypeError, match="`strenght` must be an argument of"):
        cls(strenght=2.0)
    config = cls().get_config()
    assert cls.from_config(config).get_config() == config


# Labels, predictions and weights.


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
PREDICTIONS = "`(y_pred|probs|logits)`"


class Data(NamedTuple):
    """Data that is bad for many readers.

    Attributes:
        id: What is wrong.
        readers: Who refuses it.
        rule: Regular expression on the message.
        labels: Labels.
        predictions: Predictions.
        options: Further arguments.
        error: The exception.
    """

    id: str
    readers: dict
    rule: str
    labels: Any = IDS
    predictions: Any = PROBS
    options: dict = {}
    error: type = ValueError


def weighted(id, weight, rule):
    options = {"sample_weight": np.array(weight)}
    return Data(id, ALL, "`sample_weight` must " + rule, options=options)


FIT = f"{LABELS} must be class ids or one-hot or soft labels that fit"
DATA = [
    Data(
        "predictions of one axis",
        ALL,
        f"{PREDICTIONS} must have shape",
        predictions=PROBS[0],
    ),
    Data("labels without an axis", ALL, FIT, np.array(1)),
    Data("labels of too many axes", ALL, FIT, np.zeros((2, 1, 1), int)),
    Data("too few labels", ALL, FIT, IDS[:1]),
    Data("too many labels", ALL, FIT, np.array([0, 1, 1])),
    Data("one-hot labels of two of three classes", ALL, FIT, np.eye(2)),
    Data("one-hot labels of four classes for three", ALL, FIT, np.eye(4)[:2]),
    Data("too few one-hot labels", ALL, FIT, np.eye(3)[:1]),
    Data(
        "class id as large as the number of classes",
        ALL,
        rf"{LABELS} must hold class ids in \[0, 3\).*maximum=3",
        np.array([0, 3]),
    ),
    Data(
        "negative class id",
        ALL,
        rf"{LABELS} must hold class ids in \[0, 3\).*minimum=-1",
        np.array([0, -1]),
    ),
    Data(
        "negative class id of shape (n, 1)",
        ALL,
        rf"{LABELS} must hold class ids in \[0, 3\).*minimum=-1",
        np.array([[0], [-1]]),
    ),
    Data(
        "class id that is not whole",
        ALL,
        f"{LABELS} .* must hold whole numbers",
        np.array([0.0, 0.5]),
    ),
    Data(
        "class id that is NaN",
        ALL,
        f"{LABELS} must hold class ids",
        np.array([NAN, 1.0]),
    ),
    Data(
        "label of the second class that is no probability",
        ALL,
        rf"{LABELS} must lie in \[0, 1\] for binary",
        np.array([0, 2]),
        np.array([[0.2], [0.7]]),
    ),
    Data(
        "two classes in one row",
        ALL,
        f"{LABELS} must sum to 1 .*multi-label",
        np.array([[1, 1, 0], [0, 1, 0]]),
    ),
    Data(
        "no class in a row",
        ALL,
        f"{LABELS} must sum to 1",
        np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    ),
    Data(
        "soft label with NaN",
        ALL,
        f"{LABELS} must sum to 1",
        np.array([[NAN, 0.0, 1.0], [0.0, 1.0, 0.0]]),
    ),
    Data(
        "soft labels where they mean nothing",
        {cls.__name__: partial(read_by_loss, cls) for cls in HARD_LOSSES},
        "`y_true` must be class ids or one-hot",
        SOFT,
    ),
    weighted("negative weight", [1.0, -1.0], "be finite and >= 0"),
    weighted("weight that is NaN, first", [NAN, 1.0], "be finite and >= 0"),
    weighted("weight that is NaN, last", [1.0, NAN], "be finite and >= 0"),
    weighted("infinite weight", [1.0, INF], ""),
    weighted("no weights", [], "have the shape"),
    weighted("too many weights", [1.0, 1.0, 1.0], "have the shape"),
    weighted("weight for each class", np.ones((2, 3)), "have the shape"),
    weighted("weights of too many axes", np.ones((2, 1, 1)), "have the shape"),
    Data(
        "ignored class with one-hot labels",
        TAKE_PROBS,
        "`ignore_class` needs class ids",
        np.eye(3)[:2],
        options={"ignore_class": 2},
    ),
    Data(
        "axis beyond the last",
        IN_TRAINING,
        "`axis` must be an axis of",
        options={"axis": 2},
    ),
    Data(
        "axis before the first",
        IN_TRAINING,
        "`axis` must be an axis of",
        options={"axis": -3},
    ),
    Data(
        "axis beyond the last, with weights",
        IN_TRAINING,
        "`axis` must be an axis of",
        options={"axis": 2, "sample_weight": np.ones(2)},
    ),
    Data(
        "axis beyond the last, with an ignored class",
        IN_TRAINING,
        "`axis` must be an axis of",
        options={"axis": 2, "ignore_class": 0},
    ),
    Data(
        "axis by name",
        IN_TRAINING_ONE,
        "`axis` must be an integer",
        options={"axis": "last"},
        error=TypeError,
    ),
    Data(
        "ignored class by name",
        TAKE_PROBS_ONE,
        "`ignore_class` must be an integer",
        options={"ignore_class": "255"},
        error=TypeError,
    ),
    Data(
        "ignored class that is not whole",
        TAKE_PROBS_ONE,
        "`ignore_class` must be an integer",
        options={"ignore_class": 1.5},
        error=TypeError,
    ),
    Data(
        "logits above 1 taken for probabilities",
        TAKE_PROBS,
        rf"{PREDICTIONS} must be probabilities in \[0, 1\]; pass "
        "`from_logits=True`",
        predictions=np.array([[1.5, 0.0, 0.0], [0.0, 1.0, 0.0]]),
    ),
    Data(
        "logits below 0 taken for probabilities",
        TAKE_PROBS,
        rf"{PREDICTIONS} must be probabilities in \[0, 1\]; pass "
        "`from_logits=True`",
        predictions=np.array([[0.5, -0.5, 0.0], [0.0, 1.0, 0.0]]),
    ),
    Data(
        "one output that is no probability",
        TAKE_PROBS,
        rf"{PREDICTIONS} must be probabilities in \[0, 1\]",
        predictions=np.array([[1.5], [0.5]]),
    ),
    Data(
        "prediction that is NaN",
        TAKE_ARRAYS,
        f"{PREDICTIONS} must not contain NaN.* Received: rows=1",
        predictions=np.array([[NAN, 0.5, 0.5], [0.2, 0.6, 0.2]]),
    ),
    Data(
        "logit that is NaN",
        _SOME,
        f"{PREDICTIONS} must not contain NaN",
        predictions=np.array([[NAN, 0.5, 0.5], [0.2, 0.6, 0.2]]),
        options={"from_logits": True},
    ),
    Data(
        "infinite logit",
        {"TemperatureScaling": read_by_fit},
        "`logits` must not contain NaN or infinity",
        predictions=np.array([[INF, 0.0, 0.0], [0.0, 1.0, 0.0]]),
    ),
    Data(
        "no samples",
        TAKE_ARRAYS,
        f"{PREDICTIONS} must not be empty",
        IDS[:0],
        PROBS[:0],
    ),
    Data(
        "no classes",
        TAKE_ARRAYS,
        f"{PREDICTIONS} must not be empty",
        predictions=PROBS[:, :0],
    ),
    Data(
        "nothing but ignored samples",
        _SOME,
        "`labels` must hold a class that is not ignored",
        np.array([2, 2]),
        options={"ignore_class": 2},
    ),
]
BAD_DATA = [
    Case(
        f"{name}: {data.id}",
        partial(reader, data.labels, data.predictions, **data.options),
        data.error,
        data.rule,
    )
    for data in DATA
    for name, reader in data.readers.items()
]


@each(BAD_DATA)
def test_bad_data_is_refused(case):
    refused(case)


@pytest.mark.parametrize("name", ALL)
def test_good_data_is_taken(name):
    # Some predictions are wrong: a temperature needs that.
    labels, predictions = np.array([0, 1, 0, 0]), np.tile(PROBS, (2, 1))
    if name == "TemperatureScaling":
        predictions = np.log(predictions)
    ALL[name](labels, predictions, sample_weight=np.ones(4))


@pytest.mark.parametrize("name", TAKE_ARRAYS)
def test_functions_name_labels_as_their_signature_does(name):
    with pytest.raises(ValueError) as caught:
        TAKE_ARRAYS[name](np.array([0, 3]), PROBS)
    assert "`labels`" in str(caught.value)


# Order of use.

NOT_FITTED = [
    Case(
        "call before fit",
        lambda: TemperatureScaling()(PROBS),
        RuntimeError,
        "`TemperatureScaling` must be fitted before use",
    ),
    Case(
        "temperature before fit",
        lambda: TemperatureScaling().temperature,
        RuntimeError,
        "`TemperatureScaling` must be fitted before use",
    ),
]


@each(NOT_FITTED)
def test_calibrator_that_is_not_fitted_is_refused(case):
    refused(case)


def test_refused_fit_leaves_the_calibrator_as_it_was():
    # One of four sure predictions is wrong.
    logits = np.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    scaling = TemperatureScaling().fit(np.array([0, 0, 1, 0]), logits)
    before = scaling.temperature
    with pytest.raises(ValueError):
        scaling.fit(np.array([0, 1, 1, 0]), np.where(logits > 0, INF, 0.0))
    assert scaling.temperature == before
    fresh = TemperatureScaling()
    with pytest.raises(ValueError):
        fresh.fit(np.array([0, 1, 1, 2]), logits)
    assert not fresh.fitted


# State of metrics.


def seen(metric):
    metric.update_state(IDS, PROBS)
    return metric


def state(metric):
    return [np.array(ops.convert_to_numpy(v)) for v in metric.variables]


def same(before, after):
    return all(map(np.array_equal, before, after))


OTHERS = [
    (ECE, {}, lambda: seen(ECE(num_bins=10))),
    (ECE, {}, lambda: seen(ECE(from_logits=True))),
    (ECE, {}, lambda: seen(ECE(ignore_class=0))),
    (ECE, {}, lambda: seen(AECE())),
    (AECE, {}, lambda: seen(AECE(num_bins=10))),
    (AECE, {}, lambda: seen(AECE(resolution=128))),
    (AURC, {}, lambda: seen(AURC(resolution=128))),
    (AURC, {}, lambda: seen(NLL())),
    (NLL, {}, lambda: seen(NLL(clip=1e-12))),
    (NLL, {"axis": -1}, lambda: seen(NLL(axis=1))),
]


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_merge_of_another_configuration_is_refused_whole(number):
    cls, options, other = OTHERS[number]
    metric = seen(cls(**options))
    before = state(metric)
    # The first of the two could be added.
    metrics = [seen(cls(**options)), other()]
    error = ValueError if isinstance(metrics[1], cls) else TypeError
    refused(
        Case(
            "merge",
            partial(metric.merge_state, metrics),
            error,
            "`metrics` must be",
        )
    )
    assert same(before, state(metric))


@pytest.mark.parametrize("cls", METRICS)
def test_update_changes_the_state(cls):
    metric = seen(cls())
    before = state(metric)
    metric.update_state(IDS[::-1], PROBS, np.array([1.0, 2.0]))
    assert not same(before, state(metric))


REFUSED_BY_UPDATE = [
    data
    for data in DATA
    if data.readers.keys() >= {"ECE"} and data.error is ValueError
    if "axis" not in data.options
]


@pytest.mark.parametrize("cls", [AURC, ECE])
@pytest.mark.parametrize(
    "data", REFUSED_BY_UPDATE, ids=[d.id for d in REFUSED_BY_UPDATE]
)
def test_refused_update_leaves_the_state_as_it_was(cls, data):
    options = dict(data.options)
    weight = options.pop("sample_weight", None)
    metric = seen(cls(**options))
    before = state(metric)
    with pytest.raises(ValueError, match=data.rule):
        metric.update_state(data.labels, data.predictions, weight)
    assert same(before, state(metric))


# Compiled code cannot raise.


def compiled(function):
    if backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)
    if backend.backend() == "jax":
        import jax

        return jax.jit(function)
    pytest.skip("nothing is compiled on this backend")


IMPOSSIBLE = {
    "class id too large": np.array([0, 3]),
    "negative class id": np.array([0, -1]),
    "class id too large, shape (n, 1)": np.array([[0], [3]]),
    "two classes": np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
    "no class": np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    "NaN": np.array([[1.0, 0.0, 0.0], [NAN, 1.0, 0.0]]),
}


@pytest.mark.parametrize("cls", LOSSES)
@pytest.mark.parametrize("labels", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_label_makes_a_compiled_loss_nan(cls, labels):
    loss = cls(from_logits=True, reduction=None)
    logits = np.array([[5.0, 1.0, 0.0], [0.5, 2.0, 1.0]], "float32")
    run = compiled(loss)
    values = ops.convert_to_numpy(run(labels, logits))
    assert np.isnan(values[1])
    if not issubclass(cls, BatchCoupledLoss):
        alone = ops.convert_to_numpy(loss(labels[:1], logits[:1]))
        np.testing.assert_allclose(values[0], alone[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("cls", LOSSES)
def test_impossible_label_makes_a_compiled_mean_nan(cls):
    run = compiled(cls(from_logits=True))
    assert np.isfinite(float(run(IDS, PROBS)))
    assert np.isnan(float(run(np.array([0, 3]), PROBS)))


@pytest.mark.parametrize("cls", HARD_LOSSES)
def test_soft_label_makes_a_compiled_loss_of_hard_labels_nan(cls):
    loss = cls(from_logits=True, reduction=None)
    labels = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    values = ops.convert_to_numpy(compiled(loss)(labels, PROBS))
    assert np.isfinite(values[0])
    assert np.isnan(values[1])


def test_rows_that_are_no_distribution_are_not_read_as_one():
    rows = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.2]], "float32")
    for cls in LOSSES:
        run = compiled(cls(reduction=None))
        good, bad = (ops.convert_to_numpy(run(IDS, x)) for x in (PROBS, rows))
        assert np.isfinite(good).all()
        assert np.isnan(bad[1])
        logits = np.array([[5.0, 1.0, 0.0], [0.5, 2.0, 1.0]], "float32")
        assert np.isnan(float(compiled(cls())(IDS, logits)))
    for half in ("float16", "bfloat16"):
        found = ops.softmax(ops.cast(np.log(PROBS), half))
        for x in (found, ops.cast(found, "float32")):
            assert np.isfinite(float(MbLS()(IDS, x)))
            assert np.isfinite(float(compiled(MbLS())(IDS, x)))
            assert np.isfinite(ece(IDS, ops.convert_to_numpy(x)))
    for count in (ECE, NLL):
        metric = count()
        compiled_update(metric)(IDS, rows)
        assert metric.num_invalid == 1
        with pytest.warns(RuntimeWarning, match="leaves out 1 predictions"):
            metric.result()


def test_a_softmax_in_half_precision_that_was_cast_counts():
    # Values that no half precision holds: a layer in float32 came after it.
    cast = PROBS * np.array([[1.004], [0.98]], "float32")
    rule = r"has rows of probabilities whose sums are off 1 by more than 0.001"
    readers = (ece, partial(read_by_metric, ECE), partial(read_by_loss, MbLS))
    for reader in readers:
        with pytest.warns(RuntimeWarning, match=rule) as caught:
            reader(IDS, cast)
        assert [w.filename for w in of_library(caught)] == [__file__]
        for rows in (PROBS * 0.5, PROBS * 1.04):
            with pytest.raises(ValueError, match="must sum to 1 over"):
                reader(IDS, rows)
    for count in (ECE, NLL):
        metric = count()
        compiled_update(metric)(IDS, cast)
        assert metric.num_invalid == 0
        compiled_update(metric)(IDS, PROBS * 0.5)
        assert metric.num_invalid == 2


# The last row counts for nothing: what is there is not judged.
PADDED = {
    "id -1": (np.array([0, 1, -1]), None),
    "id too large": (np.array([0, 1, 9]), None),
    "no class": (np.eye(3)[[0, 1, 1]] * [[1], [1], [0]], None),
    "label NaN": (np.array([0, 1, NAN]), None),
    "soft label NaN": (np.array([*np.eye(3)[:2], [NAN] * 3]), None),
    "no probabilities": (np.array([0, 1, 2]), -7.0),
    "zeros": (np.array([0, 1, 2]), 0.0),
    "NaN": (np.array([0, 1, 2]), NAN),
}


@pytest.mark.parametrize("how", ["weight 0", "ignored"])
@pytest.mark.parametrize("name", PADDED)
def test_what_does_not_count_is_not_judged(name, how):
    labels, value = PADDED[name]
    probs = np.concatenate([PROBS, PROBS[:1]])
    if value is not None:
        probs[2] = value
    weight, options = np.array([1.0, 1.0, 0.0]), {}
    if how == "ignored":
        if labels.ndim > 1 or np.isnan(labels[2]):
            return
        weight, options = None, {"ignore_class": int(labels[2])}
    for exact, metric in ((ece, ECE()), (nll, NLL()), (aurc, AURC())):
        expected = exact(IDS, PROBS)
        found = exact(labels, probs, sample_weight=weight, **options)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        metric = type(metric)(**options)
        metric.update_state(labels, probs, weight)
        assert metric.num_invalid == 0
        same_value = type(metric)()
        same_value.update_state(IDS, PROBS)
        assert float(metric.result()) == float(same_value.result())


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


def test_probabilities_read_as_logits_are_told_once():
    rule = "looks like probabilities"
    loss, metric = MbLS(from_logits=True), ECE(from_logits=True)
    with pytest.warns(RuntimeWarning, match=rule) as caught:
        loss(IDS, PROBS)
        loss(IDS, PROBS)
    (told,) = of_library(caught)
    assert told.filename == __file__
    compiled_update(metric)(IDS, PROBS)
    with pytest.warns(RuntimeWarning, match=f"`ece` {rule}") as caught:
        metric.bins()
        metric.result()
    assert [w.filename for w in of_library(caught)] == [__file__]
    rank = AURC(from_logits=True)
    compiled_update(rank)(IDS, PROBS)
    with pytest.warns(RuntimeWarning, match=f"`aurc` {rule}"):
        RiskCoverageDisplay.from_metric(rank)
    with pytest.warns(RuntimeWarning, match=f"`logits` {rule}"):
        effective_labels(loss, IDS, PROBS)
    # One row, whole numbers and other sums tell nothing.
    for logits in (PROBS[:1], np.eye(3)[:2], PROBS * 1.1, PROBS - 0.1):
        ece(IDS[: len(logits)], logits, from_logits=True)
    # Nor does one channel, nor the upper edge of a picture.
    one = np.full((200, 1), 0.995, "float32")
    told = ECE(from_logits=True)
    told.update_state(np.zeros(200, int), one)
    edge = np.concatenate([np.tile(PROBS, (60, 1)), np.eye(3)[[0] * 300] * 9])
    told.update_state(np.zeros(420, int), edge)
    ece(np.zeros(420, int), edge, from_logits=True)
    assert told.state_dict()["flags"][3] == 0
    state = metric.state_dict()
    older = {**state, "flags": state["flags"][:3]}
    metric.load_state_dict(older)
    metric.merge_state([older])
    assert list(metric.state_dict()["flags"]) == [0, 0, 0, 0]


def test_bad_rows_are_located():
    labels, probs = np.tile(IDS, 4), np.tile(PROBS, (4, 1))
    for value in (NAN, 0.9):
        probs[[2, 5, 6], 0] = value
        for reader in (ece, partial(read_by_metric, ECE)):
            with pytest.raises(ValueError, match=r"rows=3, first=\[2, 5, 6\]"):
                reader(labels, probs)
    with pytest.raises(ValueError, match=r"`probs\[:, None\]`"):
        ece(IDS, PROBS[:, 0])


def test_what_from_logits_is_not():
    calls = [partial(cls, from_logits="yes") for cls in (*LOSSES, *METRICS)]
    calls += [
        partial(function, IDS, PROBS, from_logits=1)
        for function in FUNCTIONS.values()
    ]
    for call in calls:
        refused(
            Case("", call, TypeError, "`from_logits` must be True or False")
        )
    ece(IDS, PROBS, from_logits=np.False_)


def test_batches_that_hold_nothing_change_nothing():
    for cls in METRICS:
        metric = seen(cls())
        before = state(metric)
        update = compiled_update(metric)
        update(IDS[:0], PROBS[:0])
        metric.update_state(IDS[:0], PROBS[:0])
        metric.update_state(IDS, PROBS, np.zeros(2))
        assert same(before, state(metric))
    confidence = np.array([0.9, 0.8])
    metric = ECE()
    metric.update_scores(confidence[:0], confidence[:0])
    metric.update_scores(confidence, np.ones(2), np.zeros(2))
    assert float(metric.result()) == 0.0
    for cls in LOSSES:
        for reduction in ("sum_over_batch_size", "sum", "mean"):
            loss = cls(reduction=reduction)
            assert float(loss(IDS[:0], PROBS[:0])) == 0.0
            assert float(loss(IDS, PROBS, np.zeros(2))) == 0.0
        assert tuple(cls(reduction=None)(IDS[:0], PROBS[:0]).shape) == (0,)
        refused(
            Case(
                "labels for nothing",
                partial(cls(), IDS, PROBS[:0]),
                ValueError,
                FIT,
            )
        )


def test_a_picture_of_no_model_is_refused():
    call = partial(RiskCoverageDisplay.from_predictions, IDS, {})
    refused(Case("", call, ValueError, "`probs` must hold"))

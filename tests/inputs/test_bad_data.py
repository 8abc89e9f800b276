"""Labels, predictions and weights that cannot be are refused."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from cases import CALIBRATORS
from refusals import (
    _SOME,
    ALL,
    FIT,
    HARD_LOSSES,
    IDS,
    IN_TRAINING,
    IN_TRAINING_ONE,
    INF,
    LABELS,
    NAN,
    PREDICTIONS,
    PROBS,
    SOFT,
    TAKE_ARRAYS,
    TAKE_PROBS,
    TAKE_PROBS_ONE,
    Case,
    read_by_fit,
    read_by_loss,
    refused,
    same,
    seen,
    state,
)

import keras_calib as kc
from keras_calib import ECE


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
        f"{LABELS} must sum to 1 .*several labels",
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


# All of them read by one door: one loss, one metric, one function, one fit.
DOORS = {"MbLS", "ECE", "ece", "TemperatureScaling"}


def test_bad_data_is_refused():
    for data in DATA:
        for name, reader in data.readers.items():
            if name in DOORS or len(data.readers) < 4:
                given = (data.labels, data.predictions)
                call = partial(reader, *given, **data.options)
                refused(Case(f"{name}: {data.id}", call, data.error, data.rule))


def test_good_data_is_taken():
    for name, reader in ALL.items():
        # Some predictions are wrong: a temperature needs that.
        labels, predictions = np.array([0, 1, 0, 0]), np.tile(PROBS, (2, 1))
        if name == "TemperatureScaling":
            predictions = np.log(predictions)
        reader(labels, predictions, sample_weight=np.ones(4))


def test_functions_name_labels_as_their_signature_does():
    for reader in TAKE_ARRAYS.values():
        with pytest.raises(ValueError, match="`labels`"):
            reader(np.array([0, 3]), PROBS)


def test_a_refused_update_leaves_the_state_as_it_was():
    for data in DATA:
        if "ECE" not in data.readers or data.error is not ValueError:
            continue
        if "axis" in data.options:
            continue
        options = dict(data.options)
        weight = options.pop("sample_weight", None)
        metric = seen(ECE(**options))
        before = state(metric)
        with pytest.raises(ValueError, match=data.rule):
            metric.update_state(data.labels, data.predictions, weight)
        assert same(before, state(metric)), data.id


def test_logits_that_float32_cannot_hold_are_refused():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(40, 3))
    labels = logits.argmax(-1) ^ (np.arange(40) % 3 == 0)
    labels = np.minimum(labels, 2)
    for large in (1e300, 1e39):
        # Their sum is finite.
        logits[5] = 0, -large, large
        for case in CALIBRATORS:
            with pytest.raises(ValueError, match="infinity in float32"):
                case.make().fit(labels, logits, num_folds=0, force=True)
        for call in (
            lambda: kc.ece(labels, logits, from_logits=True),
            lambda: kc.nll(labels, logits, from_logits=True),
            lambda: kc.SelectiveClassifier().fit(labels, logits, risk=0.5),
            lambda: kc.ECE(from_logits=True).update_state(labels, logits),
            lambda: kc.labels.MultiLabelSelector().fit(
                labels[:, None] == np.arange(3), logits, risk=0.5
            ),
        ):
            with pytest.raises(ValueError, match=r"infinity|must be finite"):
                call()

"""What is refused changes nothing; nor does what holds nothing."""

from functools import partial

import keras
import numpy as np
import pytest
from refusals import (
    FIT,
    IDS,
    INF,
    LOSSES,
    METRICS,
    PROBS,
    Case,
    compiled_update,
    refused,
    same,
    seen,
    state,
)

from keras_calib import (
    AECE,
    AURC,
    ECE,
    NLL,
    RiskCoverageDisplay,
    SelectiveClassifier,
    TemperatureScaling,
)

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
MODEL = keras.Sequential([keras.Input((3,))])
MISTAKEN = [
    Case(kind, call, TypeError, rule)
    for made in (TemperatureScaling(), SelectiveClassifier())
    for kind, call, rule in (
        (
            "a model in place of labels",
            partial(made.fit, MODEL, (PROBS, IDS)),
            r"use `fit_on\(model, data\)`",
        ),
        (
            "labels beside inputs",
            partial(made.fit_on, MODEL, PROBS, IDS),
            r"pass the tuple `\(x, y\)`",
        ),
    )
]


def test_a_calibrator_that_is_not_fitted_is_refused():
    for case in NOT_FITTED:
        refused(case)


def test_a_fit_on_a_model_or_on_labels_names_the_other():
    for case in MISTAKEN:
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


def test_an_update_changes_the_state():
    for cls in METRICS:
        metric = seen(cls())
        before = state(metric)
        metric.update_state(IDS[::-1], PROBS, np.array([1.0, 2.0]))
        assert not same(before, state(metric))


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
    call = partial(RiskCoverageDisplay, {})
    refused(Case("", call, ValueError, "at least one model"))

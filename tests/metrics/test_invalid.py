"""What cannot count: refused in eager use, counted apart in compiled code."""

import keras
import numpy as np
import pytest
from cases import BACKEND
from streams import (
    ALL_CLASSES,
    STATES,
    holds,
    predictions,
    program_of,
    result_compiled,
    same_state,
    state,
    updated_compiled,
)

import keras_calib as kc

every_state = pytest.mark.parametrize("case", STATES, ids=str)
all_classes = pytest.mark.parametrize("case", ALL_CLASSES, ids=str)


# Bad values of one row of three, and what makes them bad.
CANNOT_COUNT = {
    "NaN": {"output": np.nan},
    "infinity": {"output": np.inf},
    "minus infinity": {"output": -np.inf},
    "too large a probability": {"output": 1.5},
    "too small a probability": {"output": -0.5},
    "negative id": {"label": -1},
    "id too large": {"label": 4},
    "negative weight": {"weight": -1.0},
    "weight NaN": {"weight": np.nan},
    "infinite weight": {"weight": np.inf},
}


def with_bad_row(output=None, label=None, weight=None):
    """Three predictions, the second of which cannot count."""
    labels, probs = predictions(n=3)
    labels, weights = labels.astype("int32"), np.ones(3, "float32")
    if output is not None:
        probs[1, 2] = output
    if label is not None:
        labels[1] = label
    if weight is not None:
        weights[1] = weight
    return labels, probs, weights


def test_what_cannot_count_is_refused_in_eager_use():
    metrics = [(kc.ECE(), bad) for bad in CANNOT_COUNT.values()]
    metrics += [(case.make(), {"output": np.nan}) for case in STATES]
    for metric, bad in metrics:
        with pytest.raises(ValueError, match="must"):
            metric.update_state(*with_bad_row(**bad))
        assert not state(metric).any() and metric.num_invalid == 0, bad


@pytest.mark.portable
@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
def test_what_cannot_count_is_counted_apart_in_compiled_code():
    metric, alone = kc.ECE(), kc.ECE()
    # One program for every form of badness.
    run = program_of(metric)
    for name, bad in CANNOT_COUNT.items():
        batch = with_bad_row(**bad)
        alone.reset_state()
        alone.update_state(*(x[[0, 2]] for x in batch))
        run(*batch)
        assert metric.num_invalid == 1, name
        with pytest.warns(RuntimeWarning, match="leaves out 1 pred"):
            value = float(metric.result())
        np.testing.assert_array_equal(state(metric), state(alone))
        np.testing.assert_allclose(value, float(alone.result()), rtol=1e-6)
    metric.reset_state()
    assert metric.num_invalid == 0


@pytest.mark.portable
@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
def test_nothing_that_counts_is_nan_in_compiled_code():
    labels, probs, weight = with_bad_row(output=np.nan)
    for make, by_xla in (
        (lambda: kc.CalibrationMetrics(["accuracy", "aurc", "nll"]), False),
        (lambda: kc.ClasswiseECE(4), True),
    ):
        metric, alone = make(), make()
        run = program_of(metric, by_xla)
        run(labels, probs, weight)
        assert metric.num_invalid == 1
        alone.update_state(*(x[[0, 2]] for x in (labels, probs, weight)))
        same_state(metric, alone)
        run(labels, np.full_like(probs, np.nan), weight)
        assert metric.num_invalid == 3
        values = keras.tree.flatten(result_compiled(metric, by_xla))
        assert np.isnan([float(x) for x in values]).all()


@pytest.mark.portable
@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
@pytest.mark.parametrize("form", ["row", "fraction"])
def test_an_impossible_label_row_is_left_out_of_compiled_metrics(form):
    labels = {
        "row": np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], "float32"),
        "fraction": np.array([0.0, 0.5], "float32"),
    }[form]
    probs = np.array([[0.8, 0.1, 0.1], [0.2, 0.2, 0.6]], "float32")
    metric = kc.ECE()
    for _ in updated_compiled(metric, labels, probs, jit=[False]):
        assert metric.num_invalid == 1
        assert metric.bins().weight.sum() == 1.0


@pytest.mark.portable
@every_state
def test_a_class_that_a_logit_rules_out_counts(case):
    logits = np.array([[2.0, -np.inf, 0.0, 1.0]], "float32")
    metric = case.make(from_logits=True)
    metric.update_state([0], logits)
    assert np.isfinite(case.value(metric)).all()
    assert holds(case, metric, 1.0)
    for impossible in (logits[:, [1, 0, 2, 3]], np.full((1, 4), -np.inf, "f")):
        with pytest.raises(ValueError, match="must not rule out the class"):
            metric.update_state([0], impossible)
        assert holds(case, metric, 1.0)


@all_classes
def test_weights_that_exact_sums_cannot_hold_are_refused(case):
    labels, probs = predictions(n=5)
    for scale in (1e-4, 1e5):
        metric = case.make()
        with pytest.raises(ValueError, match="only ratios matter"):
            metric.update_state(labels, probs, np.full(5, scale))
        assert not state(metric).any()
        # The exact functions take any scale; 0.3 of it is no whole number.
        exact = [
            case.exact(labels, probs, sample_weight=np.full(5, 0.3 * unit))
            for unit in (1.0, scale + 1e-5)
        ]
        np.testing.assert_allclose(*exact, rtol=1e-9)


@all_classes
def test_empty_data_and_weights_of_zero_add_nothing(case):
    labels, probs = predictions(n=5)
    with pytest.raises(ValueError, match="`sample_weight` must not be 0"):
        case.exact(labels, probs, sample_weight=np.zeros(5))
    metric = case.make()
    metric.update_state(labels[:0], probs[:0])
    metric.update_state(labels, probs, np.zeros(5, "float32"))
    assert not state(metric).any()


@pytest.mark.portable
def test_an_empty_batch_of_votes_adds_nothing():
    metric = kc.ECE(labels="votes")
    metric.update_state(np.zeros((0, 3)), np.zeros((0, 3), "float32"))
    assert not state(metric).any()


def test_squares_of_light_weights_that_are_lost_are_told():
    confidence = np.r_[0.55, np.full(2000, 0.9)]
    correct, weight = np.arange(2001) % 5 > 0, np.r_[1.0, np.full(2000, 1e-4)]
    probs = np.stack([1.0 - confidence, confidence], axis=-1)
    metric = kc.DebiasedCalibrationError()
    metric.update_state(correct.astype(int), probs, 1e-3 * weight)
    with pytest.warns(RuntimeWarning, match="multiply all by 1,000"):
        metric.result()

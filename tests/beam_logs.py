"""Logs of predictions, and the Keras metric of them."""

import numpy as np
import pytest

import keras_calib
from keras_calib.numerics import exact_sums


def predictions(n, num_classes=6, seed=0):
    """Labels drawn from the softened softmax of logits, with weights."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=3, size=(n, num_classes)).astype("float32")
    p = np.exp(logits / 2)
    p /= p.sum(axis=-1, keepdims=True)
    labels = (p.cumsum(axis=-1) > rng.random((n, 1))).argmax(axis=-1)
    weight = rng.uniform(0.2, 3.0, size=n).astype("float32")
    return labels, logits, weight


def keras_metric(labels, outputs, weight=None, /, **kwargs):
    metric = keras_calib.CalibrationMetrics(**kwargs)
    for i in range(0, len(labels), 500):
        part = slice(i, i + 500)
        metric.update_state(
            labels[part],
            outputs[part],
            None if weight is None else weight[part],
        )
    return metric


def accumulate(fn, elements):
    return fn.add_inputs(fn.create_accumulator(), elements)


def assert_same(values, metric):
    expected = {name: float(x) for name, x in metric.result().items()}
    extra = {"num_invalid", "weight"}
    assert values.keys() == expected.keys() | extra
    for name, value in expected.items():
        assert values[name] == pytest.approx(value, abs=1e-6), name


def assert_same_sums(state, metric, moved):
    """Equal bins; at most `moved` rows in the cell beside, by rounding."""
    expected = metric.state_dict()
    assert state["config"] == expected["config"]
    assert state["schema"] == expected["schema"]
    np.testing.assert_array_equal(state["flags"] > 0, expected["flags"] > 0)
    other = type(metric).from_config(metric.get_config())
    other.load_state_dict(state)
    for name in ("weight", "correct", "squared_weight"):
        mine, theirs = (getattr(x.bins(), name) for x in (other, metric))
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)
    cells = 2 * metric.summary.parts["histogram"].num_cells
    mass = (exact_sums.to_float(x["sums"])[:cells] for x in (state, expected))
    distance = np.abs(np.subtract(*mass)).sum() / 2
    assert distance <= moved
    losses = (exact_sums.to_float(x["sums"])[-10:] for x in (state, expected))
    np.testing.assert_allclose(*losses, rtol=1e-6)

"""Batches in the memory of the host are read by NumPy, to the same state."""

import functools
import warnings

import keras
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.metrics import base
from keras_calib.numerics import exact_sums

_RNG = np.random.default_rng(7)
_NUM = 700


def _logits(*shape):
    return (3.0 * _RNG.standard_normal(shape)).astype("float32")


def _probs(*shape, dtype="float32"):
    p = np.exp(_logits(*shape))
    return (p / p.sum(-1, keepdims=True)).astype(dtype)


def _ids(*shape, classes=5, dtype="int32"):
    return _RNG.integers(classes, size=shape).astype(dtype)


def _tied(probs):
    """The largest class twice in some rows, once to the left of it."""
    probs = probs.copy()
    top = probs[::3].max(axis=-1)
    probs[::3, 0] = probs[::3, 3] = top
    return probs / probs.sum(axis=-1, keepdims=True)


def _weights(*shape):
    return _RNG.choice([0.0, 0.3, 1.0, 2.5], shape).astype("float32")


def _but(array, value, *place):
    array = array.copy()
    array[place] = value
    return array


def _void(ids, share=0.2, void=255):
    return np.where(_RNG.random(ids.shape) < share, void, ids)


_P, _Y = _probs(_NUM, 5), _ids(_NUM)
_MANY, _FAR = _probs(90, 300), _ids(90, classes=300)
_DENSE = _probs(2, 4, 6, 5)
_Z, _W = _logits(_NUM, 5), _weights(_NUM)
_OWN = np.arange(5) == _Y[:, None]
_ROWS, _COLUMNS = _ids(2, 9), np.moveaxis(_probs(2, 9, 5), -1, 1)
_BATCHES = {
    "probs": (_Y, _P),
    "ties": (_Y, _tied(_P)),
    "many classes": (_FAR, _MANY),
    "weights": (_Y, _P, _weights(_NUM)),
    "whole weights": (_Y, _P, _ids(_NUM, dtype="int64")),
    "weights (n, 1)": (_Y, _P, _weights(_NUM, 1)),
    "weight 0, label out of range, NaN": (
        np.where(np.arange(_NUM) < 9, 77, _Y),
        _but(_P, np.nan, 3),
        np.where(np.arange(_NUM) < 9, 0.0, 1.5),
    ),
    "float ids (n, 1)": (_Y[:, None].astype("float32"), _P),
    "soft labels": (_probs(_NUM, 5), _P),
    "weight 0, soft label of NaN": (
        _but(_probs(_NUM, 5), np.nan, 3),
        _P,
        np.where(np.arange(_NUM) == 3, 0.0, 1.5),
    ),
    "one-hot, weights": (np.eye(5, dtype="uint8")[_Y], _P, _weights(_NUM)),
    "one output": (_ids(_NUM, classes=2), _P[:, :1]),
    "half precision": (_Y, _P.astype("float16")),
    "double precision": (_Y, _probs(_NUM, 5, dtype="float64")),
    "lists": (_Y[:4].tolist(), _P[:4].tolist(), [1.0, 0.5, 2.0, 0.0]),
    "edges of bins": (
        _Y[:2] % 2,
        np.array([[0.6, 0.4], [0.2, 0.8]], "float32"),
    ),
    "sure": (_Y[:3], np.eye(5, dtype="float32")[_Y[:3]]),
}
_IGNORING = {
    "dense": (_void(_ids(2, 4, 6, dtype="uint8")), _DENSE),
    "dense, weights": (_void(_ids(2, 4, 6)), _DENSE, _weights(2, 4, 6)),
    "dense, weights (n,)": (_void(_ids(2, 4, 6)), _DENSE, _weights(2)),
    "all ignored": (np.full(4, 255), _P[:4]),
}
_FEW = {k: _BATCHES[k] for k in ("ties", "weights", "edges of bins")}
_FIVE = {k: _BATCHES[k] for k in ("ties", "weights", "soft labels")}
# JAX compiles each operation for each of these shapes: there one of each kind.
portable = functools.partial(pytest.param, marks=pytest.mark.portable)
_NUMPY = [
    ("CalibrationMetrics", {}, _BATCHES),
    ("CalibrationMetrics", {"ignore_class": 255}, _IGNORING),
    portable("CalibrationMetrics", {"axis": 1}, {"axis 1": (_ROWS, _COLUMNS)}),
    portable("ECE", {}, _FEW),
    ("MCE", {"closed": "left"}, _FEW),
    ("AURC", {"score": "neg_entropy"}, _FEW),
    portable("ClasswiseECE", {"num_classes": 5}, _FIVE),
    ("ClasswiseECE", {"num_classes": 5, "threshold": 0.1}, _FIVE),
    ("ClasswiseECE", {"num_classes": 5, "ignore_class": 255}, _IGNORING),
    ("ClasswiseECE", {"num_classes": 300}, {"many": (_FAR, _MANY)}),
]


def _state(metric, batch, on_host, monkeypatch):
    """The state after a batch that NumPy or the backend has read."""
    used = []

    def add(*args):
        used.append(on_host and add_on_host(*args))
        return used[-1]

    add_on_host = base.add_on_host
    with monkeypatch.context() as patch:
        patch.setattr(base, "add_on_host", add)
        metric.update_state(*batch)
    assert used == [on_host]
    return metric.state_dict()


def _both(name, options, batch, monkeypatch):
    return [
        _state(
            getattr(kc.metrics, name)(**options), batch, on_host, monkeypatch
        )
        for on_host in (True, False)
    ]


@pytest.mark.parametrize(("name", "options", "batches"), _NUMPY)
def test_probabilities_give_the_same_state(name, options, batches, monkeypatch):
    for row, batch in batches.items():
        forms = [batch]
        if row == "weights":
            forms.append([ops.convert_to_tensor(x) for x in batch])
        for given in forms:
            ours, theirs = _both(name, options, given, monkeypatch)
            np.testing.assert_array_equal(ours["flags"], theirs["flags"], row)
            ours, theirs = ours["sums"], theirs["sums"]
            if name == "CalibrationMetrics":
                # The sums of NLL and Brier score, of rounded losses.
                np.testing.assert_allclose(
                    exact_sums.to_float(ours[:, -14:]),
                    exact_sums.to_float(theirs[:, -14:]),
                    rtol=1e-6,
                    err_msg=row,
                )
                ours, theirs = ours[:, :-14], theirs[:, :-14]
            np.testing.assert_array_equal(ours, theirs, row)


@pytest.mark.parametrize("name", ["CalibrationMetrics", "ClasswiseECE"])
def test_logits_differ_in_rounding_only(name, monkeypatch):
    rows = {
        "few classes": (_Y, _Z),
        "ties": (_Y, np.round(_Z)),
        "ruled out": (_Y, np.where((_Z < 0) & ~_OWN, -np.inf, _Z)),
        "one output": (_Y % 2, _Z[:, :1]),
        "many classes": (_FAR, np.log(_MANY), np.full(90, 0.5, "float32")),
        "probabilities": (_Y, _P),
    }
    for row, batch in rows.items():
        options = {"from_logits": True}
        if name == "ClasswiseECE":
            options["num_classes"] = max(2, batch[1].shape[-1])
        values = []
        for state in _both(name, options, batch, monkeypatch):
            metric = getattr(kc.metrics, name)(**options)
            metric.load_state_dict(state)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                values.append(metric.result())
            assert state["flags"][3] == (row == "probabilities")
        found, expected = ([*keras.tree.flatten(x)] for x in values)
        np.testing.assert_allclose(
            [float(x) for x in found],
            [float(x) for x in expected],
            rtol=2e-5,
            atol=1e-6,
            err_msg=row,
        )


_FAULTS = {
    "NaN": ((_Y, _but(_P, np.nan, 3, 1)), {}),
    "below 0": ((_Y, _but(_P, -0.1, 3, 1)), {}),
    "sum": ((_Y, _P * 1.1), {}),
    "infinite logit": ((_Y, _but(_Z, np.inf, 3)), {"from_logits": True}),
    "label": ((_but(_Y, 5, 0), _P), {}),
    "fraction": ((_but(_Y.astype("float32"), 0.5, 0), _P), {}),
    "soft label": ((_P * 1.1, _P), {}),
    "weight": ((_Y, _P, _but(_W, -1.0, 0)), {}),
    "weight NaN": ((_Y, _P, _but(_W, np.nan, 0)), {}),
    "large weight": ((_Y, _P, 1e6 * _W), {}),
    "shape": ((_Y[:-1], _P), {}),
    "shape of weights": ((_Y, _P, _W[:-1]), {}),
    "soft and ignored": ((_P, _P), {"ignore_class": 0}),
    "axis": ((_Y, _P), {"axis": 2}),
    "type": ((_Y, _P.astype(str)), {}),
}


def test_faults_are_told_as_by_the_backend(monkeypatch):
    for row, (batch, options) in _FAULTS.items():
        texts = []
        for add in (base.add_on_host, lambda *_: False):
            metric = kc.ECE(**options)
            monkeypatch.setattr(base, "add_on_host", add)
            with pytest.raises((TypeError, ValueError)) as error:
                metric.update_state(*batch)
            texts.append(str(error.value))
            monkeypatch.undo()
            assert not metric.state_dict()["sums"].any()
        assert texts[0] == texts[1], row

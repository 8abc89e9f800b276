"""Batches in the memory of the host are read by NumPy, to the same state."""

import numpy as np

import keras_calib
from keras_calib.metrics import base

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


def _void(ids, share=0.2, void=255):
    return np.where(_RNG.random(ids.shape) < share, void, ids)


_P, _Y = _probs(_NUM, 5), _ids(_NUM)
_MANY, _FAR = _probs(90, 300), _ids(90, classes=300)
_DENSE = _probs(2, 4, 6, 5)
_BATCHES = {
    "probs": (_Y, _P),
    "ties": (_Y, _tied(_P)),
    "many classes": (_FAR, _MANY),
    "weights": (_Y, _P, _weights(_NUM)),
    "whole weights": (_Y, _P, _ids(_NUM, dtype="int64")),
    "weights (n, 1)": (_Y, _P, _weights(_NUM, 1)),
    "weight 0, label out of range": (
        np.where(np.arange(_NUM) < 9, 77, _Y),
        _P,
        np.where(np.arange(_NUM) < 9, 0.0, 1.5),
    ),
    "float ids (n, 1)": (_Y[:, None].astype("float32"), _P),
    "soft labels": (_probs(_NUM, 5), _P),
    "one-hot, weights": (np.eye(5, dtype="uint8")[_Y], _P, _weights(_NUM)),
    "one output": (_ids(_NUM, classes=2), _P[:, :1]),
    "half precision": (_Y, _P.astype("float16")),
    "double precision": (_Y, _probs(_NUM, 5, dtype="float64")),
    "lists": (_Y[:4].tolist(), _P[:4].tolist(), [1.0, 0.5, 2.0, 0.0]),
    "sure": (_Y[:3], np.eye(5, dtype="float32")[_Y[:3]]),
}
_IGNORING = {
    "dense": (_void(_ids(2, 4, 6, dtype="uint8")), _DENSE),
    "dense, weights": (_void(_ids(2, 4, 6)), _DENSE, _weights(2, 4, 6)),
    "dense, weights (n,)": (_void(_ids(2, 4, 6)), _DENSE, _weights(2)),
    "all ignored": (np.full(4, 255), _P[:4]),
}
_NAMES = ("ECE", "AURC", "CalibrationMetrics", "Overconfidence")


def _state(metric, batches, on_host, monkeypatch):
    used = []

    def add(*args):
        used.append(on_host and add_on_host(*args))
        return used[-1]

    add_on_host = base.add_on_host
    with monkeypatch.context() as patch:
        patch.setattr(base, "add_on_host", add)
        for batch in batches:
            metric.update_state(*batch)
    assert all(x is on_host for x in used)
    return metric.state_dict()


def _states(make, batches, monkeypatch):
    return [
        _state(make(), batches, on_host, monkeypatch)
        for on_host in (True, False)
    ]


def _metrics(**options):
    for name in _NAMES:
        yield name, lambda name=name: getattr(keras_calib, name)(**options)
    yield "left", lambda: keras_calib.ECE(closed="left", **options)


def test_probabilities_give_the_same_state(monkeypatch):
    for options, rows in ({}, _BATCHES), ({"ignore_class": 255}, _IGNORING):
        for row, batch in rows.items():
            for name, make in _metrics(**options):
                ours, theirs = _states(make, [batch] * 2, monkeypatch)
                for key in ("sums", "flags"):
                    np.testing.assert_array_equal(
                        ours[key], theirs[key], f"{row} {name} {key}"
                    )

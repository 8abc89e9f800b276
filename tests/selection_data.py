"""Class ids and logits that a classifier selects from."""

import contextlib

import numpy as np
import pytest
from cases import BACKEND, array, one_hot

import keras_calib as kc


def noisy(seed=0, n=1000, num_classes=4, signal=2.5):
    """Class ids, and float32 logits that are right more often than not."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=n)
    logits = rng.normal(size=(n, num_classes))
    logits = 2.0 * (logits + signal * one_hot(labels, num_classes))
    return labels, logits.astype("float32")


def accepted(selector, labels, logits):
    """Coverage and risk of what the layer answers."""
    answer = {k: array(v) for k, v in selector(logits).items()}
    accept = answer["accept"]
    wrong = answer["label"] != labels
    return accept.mean(), (wrong & accept).sum() / max(accept.sum(), 1)


def tells_of_compiled():
    """Where graphs hold a selector, who fits a part again is warned."""
    if BACKEND != "tensorflow":
        return contextlib.nullcontext()
    return pytest.warns(RuntimeWarning, match="accept nothing from now on")


def temperature(value=2.0):
    return kc.TemperatureScaling(temperature=value)

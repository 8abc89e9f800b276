"""Ctrl-C at any time leaves what is fitted, counted and written as it was."""

import inspect
import os
import signal
import sys
import threading
import weakref

import numpy as np
import pytest
from cases import array
from exported import trained
from monitored import answers, monitor
from noisy_predictions import noisy_predictions

import keras_calib as kc
from keras_calib.backend.locks import unbroken

LABELS, LOGITS = noisy_predictions(60)
OTHERS, OTHER_LOGITS = noisy_predictions(80, seed=1)
PACKAGE = os.path.dirname(kc.__file__)
# Interrupts spread over a call, and at its end, where it changes things.
SPREAD, LAST = 4, 10


class Interrupted:
    """Sends the signal of Ctrl-C as the package makes its n-th call."""

    def __init__(self, at=None):
        self.calls, self.at = 0, at

    def __call__(self, frame, event, _):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        # Python drops what is raised while a generator is closed.
        if code.co_flags & inspect.CO_GENERATOR:
            return
        # And in what runs as an object goes, at any collection of garbage.
        if frame.f_back and frame.f_back.f_code.co_filename == weakref.__file__:
            return
        self.calls += 1
        if self.calls == self.at:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)


def runs(call, at=None):
    """Runs a call with an interrupt; how many calls it makes."""
    watch = Interrupted(at)
    # Where processes run in the background, Python leaves Ctrl-C ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, before)
    return watch.calls


def of_layer(layer):
    values = [array(x) for x in layer.variables]
    return values, layer.fitted, layer.num_fits, repr(layer)


def calibrator(make):
    layer = make().fit(LABELS, LOGITS, num_folds=0, force=True)
    return (
        lambda: of_layer(layer),
        lambda: layer.fit(OTHERS, OTHER_LOGITS, num_folds=0, force=True),
    )


def on_model():
    layer = kc.TemperatureScaling().fit(LABELS, LOGITS)
    model, x = trained(3)
    data = x, np.arange(len(x)) % 3
    return (
        lambda: (of_layer(layer), model.get_weights(), model.trainable),
        lambda: layer.fit_on(model, data, verbose=0),
    )


def selector():
    layer = kc.SelectiveClassifier().fit(LABELS, LOGITS, coverage=0.5)
    return (
        lambda: (of_layer(layer), layer.chosen),
        lambda: layer.fit(OTHERS, OTHER_LOGITS, coverage=0.7),
    )


def tuning(several):
    """A selector that fits its calibrator first, on a share of the rows."""
    scaling = kc.TemperatureScaling()
    part = kc.MultiLabel(scaling) if several else scaling
    truth = (OTHER_LOGITS > 1.0).astype("int32") if several else OTHERS
    layer = kc.SelectiveClassifier()
    layer = kc.MultiLabel(layer) if several else layer
    layer.calibrator = part
    # Else other rows fit it next time, and these choose the threshold.
    return (
        lambda: (part.fitted, layer.fitted),
        lambda: layer.fit(
            truth, np.sin(OTHER_LOGITS), coverage=0.5, tune_fraction=0.5
        ),
    )


def chooser():
    layer = kc.TemperatureScaling().fit(LABELS, LOGITS)
    candidates = {"mine": layer}
    return (
        lambda: of_layer(layer),
        lambda: kc.choose_calibrator(
            OTHERS, OTHER_LOGITS, candidates=candidates, num_folds=2
        ),
    )


def several_labels():
    truth = (LOGITS > 1.0).astype("int32")
    layer = kc.MultiLabel(kc.TemperatureScaling())
    layer.fit(truth, np.sin(LOGITS), num_folds=0, force=True)
    return (
        lambda: of_layer(layer),
        lambda: layer.fit(truth, np.cos(LOGITS), num_folds=0, force=True),
    )


def metric():
    found = kc.CalibrationMetrics(from_logits=True)
    found.update_state(LABELS, LOGITS)
    return (
        lambda: [array(x) for x in (found.sums, found.flags)],
        lambda: found.update_state(OTHERS, OTHER_LOGITS),
    )


def watching():
    found = monitor().update(*answers(40))
    return (
        lambda: (found.counts, found.evidence),
        lambda: found.update(*answers(30, seed=1)),
    )


CASES = {
    "TemperatureScaling": lambda: calibrator(kc.TemperatureScaling),
    "HistogramBinning": lambda: calibrator(kc.HistogramBinning),
    "SelectiveClassifier": selector,
    "tune_fraction": lambda: tuning(False),
    "tune_fraction of labels": lambda: tuning(True),
    "choose_calibrator": chooser,
    "fit_on": on_model,
    "MultiLabel": several_labels,
    "CalibrationMetrics": metric,
    "Monitor": watching,
}


# A layer, a metric and a monitor; others repeat the claim.
QUICK = "TemperatureScaling", "CalibrationMetrics", "Monitor"


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    return a == b or (a != a and b != b)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "name",
    [
        x if x in QUICK else pytest.param(x, marks=pytest.mark.slow)
        for x in CASES
    ],
)
def test_an_interrupt_leaves_all_as_it_was_or_the_change_is_whole(name):
    # The first run fills caches, and makes more calls than others.
    runs(CASES[name]()[1])
    state, call = CASES[name]()
    before = state()
    total = runs(call)
    done = state()
    assert not same(before, done) or name == "choose_calibrator"
    spread = np.linspace(1, total, SPREAD + 1, dtype=int)[:-1]
    for at in (*spread, *range(max(1, total - LAST), total + 1)):
        state, call = CASES[name]()
        with pytest.raises(KeyboardInterrupt):
            runs(call, int(at))
        found = state()
        assert same(found, before) or same(found, done), at


def test_a_change_that_another_thread_makes_holds_nothing_back():
    seen = []

    def change():
        with unbroken():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=change)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]

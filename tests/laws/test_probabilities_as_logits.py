"""Probabilities of several labels that are given as logits, and the reverse."""

import functools
import warnings

import numpy as np
import pytest
from cases import CALIBRATORS, METRICS
from loss_cases import LOSSES

import keras_calib as kc

portable = pytest.mark.portable
_rng = np.random.default_rng(0)
PROBS = _rng.uniform(0.02, 0.98, (40, 3)).astype("float32")
LOGITS = np.log(PROBS / (1 - PROBS))
LABELS = (_rng.uniform(size=PROBS.shape) < PROBS).astype("int32")
RULE = "looks like probabilities"


def _updated(metric, labels, outputs):
    metric.update_state(labels, outputs)
    metric.result()


def _losses(**options):
    """One of each class, by name."""
    cases = {x.cls: x for x in LOSSES[::-1] if not x.objectness}
    for case in cases.values():
        yield case.name, kc.MultiLabel(case.make(**options))


def _metrics(**options):
    wanted = "ECE", "ECE-left", "NLL", "AURC-max_logit", "ClasswiseECE"
    for case in METRICS:
        if case.name in (*wanted, "CalibrationMetrics"):
            metric = kc.MultiLabel(case.make(2, **options))
            yield case.name, functools.partial(_updated, metric)
    metric = kc.MultiLabel(kc.ECE(**options), by="example")
    yield "of examples", functools.partial(_updated, metric)


def _fits():
    for case in CALIBRATORS:
        try:
            calibrator = kc.labels.MultiLabelCalibrator(case.make())
        except TypeError:
            continue
        yield str(case), functools.partial(calibrator.fit, num_folds=0)
    selector = kc.labels.MultiLabelSelector()
    yield "selector", functools.partial(selector.fit, coverage=0.5)


def _told(call, outputs):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        call(LABELS, outputs)
    return sum(RULE in str(x.message) for x in heard)


def _law(parts):
    parts = dict(parts)
    assert len(parts) > 6
    quiet = [name for name, call in parts.items() if not _told(call, PROBS)]
    assert not quiet
    return parts


def test_losses_tell_of_probabilities_of_several_labels():
    _law(_losses())


@portable
def test_metrics_tell_of_probabilities_of_several_labels():
    _law(_metrics(from_logits=True))


def test_fits_tell_of_probabilities_of_several_labels():
    _law(_fits())


def test_logits_of_several_labels_are_taken_in_silence():
    for parts in (_losses(), _metrics(from_logits=True), _fits()):
        told = [name for name, call in parts if _told(call, LOGITS)]
        assert not told


def test_logits_as_probabilities_of_several_labels_are_refused():
    for parts in (_losses(from_logits=False), _metrics()):
        for _, call in parts:
            with pytest.raises(ValueError, match="must be probabilities in"):
                call(LABELS, LOGITS)


@portable
def test_one_output_is_judged_alike_by_all():
    probs, labels = PROBS.reshape(-1, 1), LABELS.reshape(-1)
    pairs = np.concatenate([np.zeros_like(probs), probs], axis=-1)
    for rows in (probs, pairs):
        # Few values between 0 and 1 may be logits.
        for outputs, tells in ((rows, 1), (rows[:60], 0), (0.4 * rows, 0)):
            ids = labels[: len(outputs)]
            loss, metric = kc.MbLS(from_logits=True), kc.ECE(from_logits=True)
            for call in (
                lambda y, z, loss=loss: [loss(y, z), loss(y, z)],
                functools.partial(_updated, metric),
                functools.partial(kc.ece, from_logits=True),
            ):
                told = _told(lambda _, z, c=call, y=ids: c(y, z), outputs)
                assert told == tells, (call, outputs.shape)
    # A loss goes on looking until a batch is large enough to tell.
    loss = kc.MbLS(from_logits=True)
    assert _told(lambda _, z: loss(labels[:60], z), probs[:60]) == 0
    assert _told(lambda _, z: loss(labels, z), probs) == 1

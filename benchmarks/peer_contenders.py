"""What is measured by `metrics.py`: the library, its peers, and plain NumPy.

A contender is made for a data set and is either a `Stream`, fed batch by
batch, or a `OneCall` on all predictions. Libraries are imported when it is
made. `prepare` hands over data in the form a library takes (a tensor of its
framework, logits) and is not timed; the reduction to the predicted class is,
where a function asks for that. Our eager updates get NumPy arrays.
"""

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from peer_data import NUM_BINS, Data

METRICS = ("ECE", "AECE", "ClasswiseECE", "AURC")


class Stream(NamedTuple):
    """Fed batch by batch; `held` is the bytes that it has from the start."""

    prepare: Callable
    reset: Callable
    update: Callable
    result: Callable
    held: int = 0


class OneCall(NamedTuple):
    """Given everything at once."""

    prepare: Callable
    call: Callable


def _top_one(labels, probs):
    """Correctness and confidence, NumPy, of rows or of scores."""
    if probs.ndim == 1:
        return labels, probs
    return (probs.argmax(axis=-1) == labels).astype("int32"), probs.max(axis=-1)


def _as_given(labels, probs):
    return labels, probs


def _of_top_one(function: Callable) -> Callable:
    """A call on `(correct, confidence)`, NumPy, reduced in its time."""
    return lambda data: OneCall(
        _as_given, lambda y, p: float(function(*_top_one(y, p)))
    )


def _keras_calib(metric: str, mode: str) -> Callable:
    def make(data: Data) -> Stream:
        from keras import ops
        from reporting import modes, state_bytes

        import keras_calib

        options = {}
        if metric == "ClasswiseECE":
            options["num_classes"] = data.num_classes
        counter = getattr(keras_calib.metrics, metric)(**options)

        def update_scores(correct, confidence):
            counter.update_scores(confidence, correct)

        compiled = modes()[mode]
        update = counter.update_state if data.num_classes else update_scores
        result = compiled(counter.result)

        def tensors(*arrays):
            return tuple(map(ops.convert_to_tensor, arrays))

        return Stream(
            _as_given if mode == "eager" else tensors,
            counter.reset_state,
            compiled(update),
            lambda: float(result()),
            state_bytes(counter),
        )

    return make


def _tensors(labels, probs):
    import torch

    return torch.from_numpy(labels).long(), torch.from_numpy(probs)


def _torch_stream(metric: Any) -> Stream:
    return Stream(
        _tensors,
        metric.reset,
        lambda labels, probs: metric.update(probs, labels),
        lambda: float(metric.compute()),
    )


def _torchmetrics_stream(data: Data) -> Stream:
    from torchmetrics import classification

    if data.num_classes:
        metric = classification.MulticlassCalibrationError(
            data.num_classes, n_bins=NUM_BINS
        )
    else:
        metric = classification.BinaryCalibrationError(n_bins=NUM_BINS)
    return _torch_stream(metric)


def _torchmetrics_call(data: Data) -> OneCall:
    from torchmetrics.functional import classification

    def call(labels, probs):
        if data.num_classes:
            return float(
                classification.multiclass_calibration_error(
                    probs, labels, data.num_classes, n_bins=NUM_BINS
                )
            )
        return float(
            classification.binary_calibration_error(
                probs, labels, n_bins=NUM_BINS
            )
        )

    return OneCall(_tensors, call)


def _torch_uncertainty(metric: str) -> Callable:
    def make(data: Data) -> Stream:
        if metric == "AURC":
            return _torch_stream(
                _torch_uncertainty_module("risk_coverage").AURC()
            )
        module = _torch_uncertainty_module("calibration")
        if metric == "ClasswiseECE":
            return _torch_stream(
                module.ClasswiseCalibrationError(data.num_classes, NUM_BINS)
            )
        task = {"task": "binary"}
        if data.num_classes:
            task = {"task": "multiclass", "num_classes": data.num_classes}
        return _torch_stream(
            module.AdaptiveCalibrationError(num_bins=NUM_BINS, **task)
        )

    return make


def _torch_uncertainty_module(name: str) -> Any:
    """A module of its metrics, which need torch and torchmetrics only.

    The package itself imports Lightning, torchvision and more.
    """
    parts = ["torch_uncertainty", "metrics", "classification"]
    spec = importlib.util.find_spec(parts[0])
    if spec is None:
        raise ImportError(parts[0])
    root = spec.submodule_search_locations[0]
    for depth in range(1, len(parts) + 1):
        package = types.ModuleType(".".join(parts[:depth]))
        package.__path__ = [os.path.join(root, *parts[1:depth])]
        sys.modules[package.__name__] = package
    return importlib.import_module(".".join([*parts, name]))


def _tfp_ece(data: Data) -> OneCall:
    import tensorflow as tf
    import tensorflow_probability as tfp

    def prepare(labels, probs):
        return tf.constant(labels), tf.constant(np.log(probs))

    @tf.function
    def ece(labels, logits):
        return tfp.stats.expected_calibration_error(
            NUM_BINS, logits=logits, labels_true=labels
        )

    return OneCall(prepare, lambda y, z: float(ece(y, z)))


def _tfp_aece(data: Data) -> OneCall:
    import tensorflow as tf
    import tensorflow_probability as tfp

    @tf.function
    def aece(correct, confidence):
        return tfp.stats.expected_calibration_error_quantiles(
            tf.cast(correct, "bool"), tf.math.log(confidence), NUM_BINS
        )[0]

    def call(labels, probs):
        return float(aece(*map(tf.constant, _top_one(labels, probs))))

    return OneCall(_as_given, call)


def _netcal(**options) -> Callable:
    def make(data: Data) -> OneCall:
        from netcal.metrics import ECE

        metric = ECE(NUM_BINS, **options)
        return OneCall(_as_given, lambda y, p: float(metric.measure(p, y)))

    return make


def _uncertainty_calibration(name: str, mode: str) -> Callable:
    def make(data: Data) -> OneCall:
        import calibration

        function = getattr(calibration.utils, name)
        return OneCall(
            _as_given,
            lambda y, p: float(function(p, y, num_bins=NUM_BINS, mode=mode)),
        )

    return make


def _uncertainty_calibration_aurc(data: Data) -> OneCall:
    import calibration

    def aurc(correct, confidence):
        stats = calibration.utils.get_selective_stats(confidence, correct)
        return 1.0 - stats[0]

    return _of_top_one(aurc)(data)


def _scikit_learn(strategy: str) -> Callable:
    def make(data: Data) -> OneCall:
        from sklearn.calibration import calibration_curve

        def mean_gap(correct, confidence):
            accuracy, mean = calibration_curve(
                correct, confidence, n_bins=NUM_BINS, strategy=strategy
            )
            return np.mean(np.abs(accuracy - mean))

        return _of_top_one(mean_gap)(data)

    return make


def _numpy_ece(data: Data) -> Stream:
    sums = np.zeros(NUM_BINS)

    def reset():
        sums[:] = 0.0

    def update(labels, probs):
        correct, confidence = _top_one(labels, probs)
        bins = np.ceil(confidence * NUM_BINS).astype("int64") - 1
        sums[:] += np.bincount(bins, confidence, NUM_BINS)
        sums[:] -= np.bincount(bins, correct, NUM_BINS)

    return Stream(
        _as_given, reset, update, lambda: np.abs(sums).sum() / data.num
    )


def _numpy_classwise(data: Data) -> Stream:
    size = data.num_classes * NUM_BINS
    starts = NUM_BINS * np.arange(data.num_classes) - 1
    sums = np.zeros(size)

    def reset():
        sums[:] = 0.0

    def update(labels, probs):
        keys = np.ceil(probs * NUM_BINS).astype("int64") + starts
        sums[:] += np.bincount(keys.ravel(), probs.ravel(), size)
        sums[:] -= np.bincount(keys[np.arange(len(labels)), labels], None, size)

    return Stream(
        _as_given,
        reset,
        update,
        lambda: np.abs(sums).sum() / (data.num * data.num_classes),
    )


def _numpy_aece(correct, confidence):
    order = np.argsort(confidence)
    gap = (confidence - correct)[order]
    parts = np.array_split(gap, NUM_BINS)
    return sum(abs(x.sum(dtype="float64")) for x in parts) / len(gap)


def _numpy_aurc(correct, confidence):
    wrong = 1.0 - correct[np.argsort(-confidence)]
    return np.mean(np.cumsum(wrong) / np.arange(1, len(wrong) + 1))


_MODES = ["eager"]
if os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
    _MODES += ["tf.function", "XLA"]
_UNWEIGHTED = "mean of bins, not weighted"
# Metric and name, to what makes it; a note says what else it measures.
CONTENDERS: dict[tuple[str, str], tuple[Callable, str]] = {
    (metric, f"keras_calib, {mode}"): (_keras_calib(metric, mode), "")
    for metric in METRICS
    for mode in _MODES
}
CONTENDERS |= {
    ("ECE", "torchmetrics, stream"): (_torchmetrics_stream, ""),
    ("ECE", "torchmetrics, one call"): (_torchmetrics_call, ""),
    ("ECE", "TFP, one call"): (_tfp_ece, ""),
    ("ECE", "netcal, one call"): (_netcal(), ""),
    ("ECE", "uncertainty-calibration, one call"): (
        _uncertainty_calibration("get_ece", "top-label"),
        "",
    ),
    ("ECE", "scikit-learn curve, one call"): (
        _scikit_learn("uniform"),
        _UNWEIGHTED,
    ),
    ("ECE", "(NumPy float64, stream)"): (_numpy_ece, ""),
    ("AECE", "torch-uncertainty, stream"): (_torch_uncertainty("AECE"), ""),
    ("AECE", "TFP quantiles, one call"): (_tfp_aece, ""),
    ("AECE", "netcal, one call"): (_netcal(equal_intervals=False), ""),
    ("AECE", "uncertainty-calibration, one call"): (
        _uncertainty_calibration("get_ece_em", "top-label"),
        "",
    ),
    ("AECE", "scikit-learn curve, one call"): (
        _scikit_learn("quantile"),
        _UNWEIGHTED,
    ),
    ("AECE", "(NumPy sort, one call)"): (_of_top_one(_numpy_aece), ""),
    ("ClasswiseECE", "torch-uncertainty, stream"): (
        _torch_uncertainty("ClasswiseECE"),
        "",
    ),
    ("ClasswiseECE", "uncertainty-calibration, one call"): (
        _uncertainty_calibration("get_ece", "marginal"),
        "",
    ),
    ("ClasswiseECE", "(NumPy float64, stream)"): (_numpy_classwise, ""),
    ("AURC", "torch-uncertainty, stream"): (
        _torch_uncertainty("AURC"),
        "trapezoids",
    ),
    ("AURC", "uncertainty-calibration, one call"): (
        _uncertainty_calibration_aurc,
        "",
    ),
    ("AURC", "(NumPy sort, one call)"): (_of_top_one(_numpy_aurc), ""),
}

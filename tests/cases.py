"""Every loss, metric and calibrator, with what its laws need to know.

`test_repository.py` fails if an exported class has no case here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import keras
import numpy as np
from keras import ops

import keras_calib as kc


@dataclass(frozen=True)
class LossCase:
    """A loss with hyperparameters that make every part of it active."""

    name: str
    cls: type
    fn: Callable
    hyperparameters: dict = field(default_factory=dict)
    # Hyperparameters under which it is cross entropy.
    limit: dict | None = None
    shift_invariant: bool = True
    soft_labels: bool = True
    # Golden name -> golden hyperparameter id -> hyperparameters.
    goldens: dict = field(default_factory=dict)

    def __str__(self):
        return self.name

    def make(self, **kwargs):
        options = {"from_logits": True, **self.hyperparameters, **kwargs}
        return self.cls(**options)


_NONDEFAULT = {"margin": 3.0, "lambda1": 0.6, "lambda2": 0.15}

LOSSES = [
    LossCase(
        "LabelSmoothing",
        kc.LabelSmoothing,
        kc.label_smoothing,
        {"alpha": 0.1},
        limit={"alpha": 0.0},
        goldens={
            "ls_k": {
                "alpha0.1": {"alpha": 0.1},
                "alpha0.05": {"alpha": 0.05},
            },
            "ls_negative": {"alpha-0.4": {"alpha": -0.4}},
        },
    ),
    LossCase(
        "LabelSmoothing-others",
        kc.LabelSmoothing,
        kc.label_smoothing,
        {"alpha": 0.1, "spread": "others"},
        limit={"alpha": 0.0, "spread": "others"},
        goldens={
            "ls_km1": {
                "alpha0.1": {"alpha": 0.1, "spread": "others"},
                "alpha0.05": {"alpha": 0.05, "spread": "others"},
            },
        },
    ),
    LossCase(
        "MbLS",
        kc.MbLS,
        kc.mbls,
        {"margin": 2.0, "strength": 0.3},
        limit={"strength": 0.0},
        goldens={
            "mbls": {
                "m10_a0.1": {},
                "m6_a0.1": {"margin": 6.0},
                "m3_a1": {"margin": 3.0, "strength": 1.0},
            },
        },
    ),
    LossCase(
        "MbLS-sum",
        kc.MbLS,
        kc.mbls,
        {"margin": 2.0, "class_reduction": "sum"},
        limit={"strength": 0.0, "class_reduction": "sum"},
        goldens={"mbls_sum": {"m10_a0.1": {"class_reduction": "sum"}}},
    ),
    LossCase(
        "ACLS",
        kc.ACLS,
        kc.acls,
        {"margin": 2.0},
        limit={"lambda1": 0.0, "lambda2": 0.0},
        goldens={
            "acls_eq13": {
                "default": {},
                "m6": {"margin": 6.0},
                "nondef": _NONDEFAULT,
            },
        },
    ),
    LossCase(
        "ACLS-zero",
        kc.ACLS,
        kc.acls,
        {"margin": 2.0, "reference": "zero"},
        limit={"lambda1": 0.0, "lambda2": 0.0, "reference": "zero"},
        shift_invariant=False,
        goldens={
            "acls_code": {
                "default": {"reference": "zero"},
                "m6": {"margin": 6.0, "reference": "zero"},
                "nondef": {**_NONDEFAULT, "reference": "zero"},
            },
        },
    ),
    LossCase(
        "FocalLoss",
        kc.FocalLoss,
        kc.focal_loss,
        {"gamma": 3.0},
        limit={"gamma": 0.0},
        goldens={
            "focal_mean": {f"g{g}": {"gamma": float(g)} for g in range(4)},
            "focal_sum": {
                f"g{g}": {"gamma": float(g), "reduction": "sum"}
                for g in range(4)
            },
        },
    ),
    LossCase("FocalLoss-half", kc.FocalLoss, kc.focal_loss, {"gamma": 0.5}),
    LossCase(
        "LabelRelaxation",
        kc.LabelRelaxation,
        kc.label_relaxation,
        {"alpha": 0.1},
        limit={"alpha": 0.0},
        soft_labels=False,
        goldens={
            "label_relaxation": {
                "alpha0.1": {},
                "alpha0.25": {"alpha": 0.25},
            },
        },
    ),
    LossCase(
        "ConfidencePenalty",
        kc.ConfidencePenalty,
        kc.confidence_penalty,
        {"beta": 0.3},
        limit={"beta": 0.0},
        goldens={"ecp_pereyra": {"b0.1": {}, "b1": {"beta": 1.0}}},
    ),
    LossCase(
        "ConfidencePenalty-mean",
        kc.ConfidencePenalty,
        kc.confidence_penalty,
        {"beta": 0.3, "class_reduction": "mean"},
        goldens={
            "ecp_mbls": {
                "a0.1": {"class_reduction": "mean"},
                "a1": {"beta": 1.0, "class_reduction": "mean"},
            },
        },
    ),
    LossCase(
        "ConfidencePenalty-threshold",
        kc.ConfidencePenalty,
        kc.confidence_penalty,
        {"beta": 0.3, "threshold": 1.0},
        goldens={"ecp_threshold": {"b0.1_t1.0": {"threshold": 1.0}}},
    ),
]

DENSE_CASES = ("D", "D0")


def golden_cases(arrays):
    """Every `(loss case, golden key, data case, hyperparameters)` stored."""
    found = []
    for case in LOSSES:
        for method, ids in case.goldens.items():
            for hyper_id, hyperparameters in ids.items():
                for data in ("A", "B", "C", "T", "D", "D0", "OK", "KO"):
                    key = f"loss/{method}/{hyper_id}/{data}"
                    if f"{key}/value" in arrays:
                        found.append((case, key, data, hyperparameters))
    return found


@dataclass(frozen=True)
class MetricCase:
    """A streaming metric and the exact function that it must follow."""

    name: str
    cls: type
    exact: Callable
    kwargs: dict = field(default_factory=dict)
    # Streamed value equals the exact one, rather than bounding it.
    is_exact: bool = True
    aurc_like: bool = False

    def __str__(self):
        return self.name

    def make(self, **kwargs):
        return self.cls(**{**self.kwargs, **kwargs})


METRICS = [
    MetricCase("ECE", kc.ECE, kc.ece),
    MetricCase("NLL", kc.NLL, kc.nll),
    MetricCase("AECE", kc.AECE, kc.adaptive_ece, is_exact=False),
    MetricCase("AURC", kc.AURC, kc.aurc, is_exact=False),
]

CALIBRATORS = [kc.TemperatureScaling]

# Exported bases, which have no case of their own.
ABSTRACT = [kc.PerSampleLoss, kc.StreamingMetric, kc.Calibrator]

METRIC_DATA = (
    "over",
    "real",
    "lowacc",
    "under",
    "missing",
    "edges",
    "onehot",
    "allcorrect",
    "allwrong",
    "topwrong",
)

BACKEND = keras.backend.backend()
# JAX computes in 32 bits.
HAS_FLOAT64 = BACKEND != "jax"


def sample(seed=0, n=24, num_classes=5, scale=4.0, dtype="float32"):
    """Class ids `(n,)` and logits `(n, num_classes)`, without ties."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)) * scale
    return rng.integers(num_classes, size=n), logits.astype(dtype)


def softmax(logits):
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def one_hot(labels, num_classes):
    return np.eye(num_classes)[labels]


def array(x: Any) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(x))

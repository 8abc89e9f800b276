"""Every loss, metric and calibrator, with what its laws need to know.

A test of the repository fails if an exported class has no case here.
"""

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import keras
import numpy as np
from keras import ops
from loss_case import LossCase
from loss_cases import LOSSES, OTHER_LOSSES
from metric_cases import (
    KINDS,
    METRICS,
    OTHER_METRICS,
    TABLE,
    MetricCase,
    accuracy,
    table,
)

import keras_calib as kc

__all__ = [
    "ABSTRACT",
    "BACKEND",
    "CALIBRATORS",
    "CalibratorCase",
    "KINDS",
    "LOSSES",
    "LossCase",
    "METRICS",
    "METRIC_DATA",
    "MetricCase",
    "OTHER_CALIBRATORS",
    "OTHER_LOSSES",
    "OTHER_METRICS",
    "TABLE",
    "accuracy",
    "array",
    "one_hot",
    "sample",
    "softmax",
    "table",
]


@dataclass(frozen=True)
class CalibratorCase:
    """A calibrator, and what its laws need to know."""

    cls: type
    hyperparameters: dict = field(default_factory=dict)
    # By construction, the NLL of the data that it was fitted on can not rise.
    never_raises_nll: bool = False
    # The predicted class never changes.
    keeps_argmax: bool = False
    # To what fits of the same data in another form agree.
    tolerance: float = 1e-4
    # A package beside the backend that a fit needs.
    needs: str = ""

    def __str__(self):
        return "-".join(
            [self.cls.__name__, *map(str, self.hyperparameters.values())]
        )

    @property
    def can_fit(self):
        return not self.needs or find_spec(self.needs) is not None

    def make(self, **kwargs):
        return self.cls(**self.hyperparameters, **kwargs)


CALIBRATORS = [
    CalibratorCase(
        kc.TemperatureScaling, never_raises_nll=True, keeps_argmax=True
    ),
    CalibratorCase(
        kc.TemperatureScaling, {"objective": "mse"}, keeps_argmax=True
    ),
    CalibratorCase(
        kc.TemperatureScaling, {"objective": "ece"}, keeps_argmax=True
    ),
    CalibratorCase(kc.VectorScaling, never_raises_nll=True),
    CalibratorCase(kc.VectorScaling, {"penalty": None}, never_raises_nll=True),
    CalibratorCase(kc.MatrixScaling, never_raises_nll=True),
    CalibratorCase(kc.MatrixScaling, {"penalty": None}, never_raises_nll=True),
    CalibratorCase(kc.DirichletCalibration, never_raises_nll=True),
    CalibratorCase(kc.StructuredVectorScaling),
    CalibratorCase(kc.StructuredMatrixScaling),
    CalibratorCase(
        kc.DirichletCalibration,
        {"off_diagonal_penalty": 0.01, "intercept_penalty": 0.1},
        never_raises_nll=True,
    ),
    CalibratorCase(kc.EnsembleTemperatureScaling, keeps_argmax=True),
    CalibratorCase(
        kc.EnsembleTemperatureScaling,
        {"objective": "nll"},
        never_raises_nll=True,
        keeps_argmax=True,
    ),
    CalibratorCase(
        kc.ParametrizedTemperatureScaling,
        never_raises_nll=True,
        keeps_argmax=True,
    ),
    CalibratorCase(kc.HistogramBinning, {"num_bins": 10}),
    CalibratorCase(kc.HistogramBinning, {"num_bins": 8, "edges": "mass"}),
    CalibratorCase(kc.IsotonicCalibration),
    CalibratorCase(kc.BetaCalibration),
    CalibratorCase(kc.AffineScaling),
    CalibratorCase(kc.QuadraticScaling),
    CalibratorCase(kc.QuadraticScaling, {"penalty": None, "monotone": True}),
    CalibratorCase(kc.VennAbers),
    CalibratorCase(
        kc.GaussianProcessCalibration,
        {"num_inducing_points": 8},
        needs="tensorflow_probability",
    ),
]

# Known for one number of classes, or fitted on images: they have tests of their
# own, test_prior.py and test_local.py.
OTHER_CALIBRATORS = [kc.LocalTemperatureScaling, kc.PriorCorrection]

# Exported bases, which have no case of their own.
ABSTRACT = [
    kc.losses.PerSampleLoss,
    kc.losses.BatchCoupledLoss,
    kc.metrics.StreamingMetric,
    kc.calibrators.Calibrator,
]

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

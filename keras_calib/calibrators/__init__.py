"""Calibrators: layers fitted on held-out logits after training.

- A temperature: `TemperatureScaling`, `EnsembleTemperatureScaling`,
  `ParametrizedTemperatureScaling`, `LocalTemperatureScaling`, `CompactLogits`,
  `refinement_nll`.
- Affine maps of logits: `VectorScaling`, `StructuredVectorScaling`,
  `StructuredMatrixScaling`, `MatrixScaling`, `DirichletCalibration`.
- Two classes: `AffineScaling`, `BetaCalibration`, `QuadraticScaling`,
  `VennAbers`.
- Without a form: `HistogramBinning`, `IsotonicCalibration`,
  `GaussianProcessCalibration`.
- Another prior: `PriorCorrection`.
- Choice: `choose_calibrator`, `CalibratorChoice`,
  `CandidateScore`.
- Base: `Calibrator`.

Lives here: the layers, their fits, and the loss that a fit leaves. Not here:
thresholds (`selection`).
Floor: beside `losses`, `metrics` and `data`.
"""

from keras_calib.calibrators.affine import (
    DirichletCalibration,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    VectorScaling,
)
from keras_calib.calibrators.base import Calibrator
from keras_calib.calibrators.binning import (
    HistogramBinning,
    IsotonicCalibration,
)
from keras_calib.calibrators.choosing import (
    CalibratorChoice,
    CandidateScore,
    choose_calibrator,
)
from keras_calib.calibrators.compact_logits import CompactLogits
from keras_calib.calibrators.gaussian_process import GaussianProcessCalibration
from keras_calib.calibrators.local import LocalTemperatureScaling
from keras_calib.calibrators.logistic import (
    AffineScaling,
    BetaCalibration,
    QuadraticScaling,
)
from keras_calib.calibrators.parametrized import ParametrizedTemperatureScaling
from keras_calib.calibrators.prior import PriorCorrection
from keras_calib.calibrators.temperature import (
    EnsembleTemperatureScaling,
    TemperatureScaling,
    refinement_nll,
)
from keras_calib.calibrators.venn_abers import VennAbers

__all__ = [
    "AffineScaling",
    "BetaCalibration",
    "Calibrator",
    "CalibratorChoice",
    "CandidateScore",
    "CompactLogits",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "GaussianProcessCalibration",
    "HistogramBinning",
    "IsotonicCalibration",
    "LocalTemperatureScaling",
    "MatrixScaling",
    "ParametrizedTemperatureScaling",
    "PriorCorrection",
    "QuadraticScaling",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "VectorScaling",
    "VennAbers",
    "choose_calibrator",
    "refinement_nll",
]

"""Streaming metrics: one pass, fixed memory, exact at any size.

- All at once: `CalibrationMetrics`. By name: `get`.
- Accuracy and confidence: `Accuracy`, `MeanConfidence`, `ConfidenceGap`,
  `Overconfidence`, `Underconfidence`, `ObjectnessDeviation`.
- Proper scores: `NLL`, `BrierScore`.
- Calibration errors: `ECE`, `AECE`, `MCE`, `RMSCE`, `SmoothECE`, `ECCE`,
  `ClasswiseECE`, `DebiasedCalibrationError`, `AverageCalibrationError`,
  `OverconfidenceError`.
- Ranking: `AURC`, `EAURC`, `NAURC`, `AUGRC`, `FailureAUROC`, `FailureFPR95`.
- Selection: `CoverageAtRisk`, `CoverageAtAccuracy`, `RiskAtCoverage`.
- Segmentation: `PerImage`.
- Base: `StreamingMetric`.

Lives here: Keras metrics. Each has a state (`metrics.states`), a formula and a
name. Not here: formulas (`formulas`) and exact functions of whole arrays
(`functional`).
Floor: beside `losses`, `calibrators` and `data`.
"""

from keras_calib.inputs.given_metrics import get
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.calibration_errors import (
    AECE,
    ECCE,
    ECE,
    MCE,
    RMSCE,
    AverageCalibrationError,
    ClasswiseECE,
    DebiasedCalibrationError,
    OverconfidenceError,
    SmoothECE,
)
from keras_calib.metrics.confidence import (
    Accuracy,
    ConfidenceGap,
    MeanConfidence,
    ObjectnessDeviation,
    Overconfidence,
    Underconfidence,
)
from keras_calib.metrics.proper import NLL, BrierScore
from keras_calib.metrics.risk_coverage import (
    AUGRC,
    AURC,
    EAURC,
    NAURC,
    CoverageAtAccuracy,
    CoverageAtRisk,
    FailureAUROC,
    FailureFPR95,
    RiskAtCoverage,
)
from keras_calib.metrics.segmentation import PerImage
from keras_calib.metrics.table import CalibrationMetrics

__all__ = [
    "AECE",
    "AUGRC",
    "AURC",
    "Accuracy",
    "AverageCalibrationError",
    "BrierScore",
    "CalibrationMetrics",
    "ClasswiseECE",
    "ConfidenceGap",
    "CoverageAtAccuracy",
    "CoverageAtRisk",
    "DebiasedCalibrationError",
    "EAURC",
    "ECCE",
    "ECE",
    "FailureAUROC",
    "FailureFPR95",
    "MCE",
    "MeanConfidence",
    "NAURC",
    "NLL",
    "ObjectnessDeviation",
    "Overconfidence",
    "OverconfidenceError",
    "PerImage",
    "RMSCE",
    "RiskAtCoverage",
    "SmoothECE",
    "StreamingMetric",
    "Underconfidence",
    "get",
]

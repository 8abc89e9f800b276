"""Streaming metrics: one pass, fixed memory, exact at any size.

Lives here: Keras metrics. Each has a state (`metrics.states`), a formula and a
name. Not here: formulas (`formulas`) and exact functions of whole arrays
(`functional`).
Floor: beside `losses`, `calibrators` and `data`.
"""

from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.binned import (
    ECE,
    MCE,
    RMSCE,
    AverageCalibrationError,
    DebiasedCalibrationError,
    OverconfidenceError,
)
from keras_calib.metrics.classwise import ClasswiseECE
from keras_calib.metrics.confidence import (
    Accuracy,
    MeanConfidence,
    ObjectnessDeviation,
    Overconfidence,
    Underconfidence,
)
from keras_calib.metrics.cumulative import ECCE
from keras_calib.metrics.equal_mass import AECE
from keras_calib.metrics.proper import NLL, BrierScore
from keras_calib.metrics.risk_coverage import (
    AUGRC,
    AURC,
    EAURC,
    CoverageAtAccuracy,
    CoverageAtRisk,
    FailureAUROC,
    FailureFPR95,
    NormalizedAURC,
    RiskAtCoverage,
)
from keras_calib.metrics.segmentation import PerImage
from keras_calib.metrics.smooth import SmoothECE
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
    "NLL",
    "NormalizedAURC",
    "ObjectnessDeviation",
    "Overconfidence",
    "OverconfidenceError",
    "PerImage",
    "RMSCE",
    "RiskAtCoverage",
    "SmoothECE",
    "StreamingMetric",
    "Underconfidence",
]

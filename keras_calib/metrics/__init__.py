"""Streaming metrics: one pass, fixed memory, exact at any size.

Lives here: Keras metrics. Each has a state (`metrics.states`), a formula and a
name. Not here: formulas (`formulas`) and exact functions of whole arrays
(`functional`).
Floor: beside `losses`, `calibrators` and `data`.
"""

from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.binned import ECE
from keras_calib.metrics.binned import MCE
from keras_calib.metrics.binned import RMSCE
from keras_calib.metrics.binned import AverageCalibrationError
from keras_calib.metrics.binned import DebiasedCalibrationError
from keras_calib.metrics.binned import OverconfidenceError
from keras_calib.metrics.classwise import ClasswiseECE
from keras_calib.metrics.confidence import Accuracy
from keras_calib.metrics.confidence import MeanConfidence
from keras_calib.metrics.confidence import ObjectnessDeviation
from keras_calib.metrics.confidence import Overconfidence
from keras_calib.metrics.confidence import Underconfidence
from keras_calib.metrics.cumulative import ECCE
from keras_calib.metrics.detection import DetectionECE
from keras_calib.metrics.detection import LocalizationAwareECE
from keras_calib.metrics.equal_mass import AECE
from keras_calib.metrics.multi_label import MultiLabelMetric
from keras_calib.metrics.proper import NLL
from keras_calib.metrics.proper import BrierScore
from keras_calib.metrics.risk_coverage import AUGRC
from keras_calib.metrics.risk_coverage import AURC
from keras_calib.metrics.risk_coverage import EAURC
from keras_calib.metrics.risk_coverage import CoverageAtAccuracy
from keras_calib.metrics.risk_coverage import CoverageAtRisk
from keras_calib.metrics.risk_coverage import FailureAUROC
from keras_calib.metrics.risk_coverage import FailureFPR95
from keras_calib.metrics.risk_coverage import NormalizedAURC
from keras_calib.metrics.risk_coverage import RiskAtCoverage
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
    "DetectionECE",
    "EAURC",
    "ECCE",
    "ECE",
    "FailureAUROC",
    "FailureFPR95",
    "LocalizationAwareECE",
    "MCE",
    "MeanConfidence",
    "MultiLabelMetric",
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

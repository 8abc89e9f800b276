"""Streaming metrics: one pass, fixed memory, exact at any size."""

from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.calibration import ECE
from keras_calib.metrics.calibration import MCE
from keras_calib.metrics.calibration import RMSCE
from keras_calib.metrics.calibration import AverageCalibrationError
from keras_calib.metrics.calibration import DebiasedCalibrationError
from keras_calib.metrics.calibration import OverconfidenceError
from keras_calib.metrics.classwise import ClasswiseECE
from keras_calib.metrics.confidence import Accuracy
from keras_calib.metrics.confidence import MeanConfidence
from keras_calib.metrics.confidence import ObjectnessDeviation
from keras_calib.metrics.confidence import Overconfidence
from keras_calib.metrics.confidence import Underconfidence
from keras_calib.metrics.equal_mass import AECE
from keras_calib.metrics.operating import CoverageAtAccuracy
from keras_calib.metrics.operating import CoverageAtRisk
from keras_calib.metrics.operating import RiskAtCoverage
from keras_calib.metrics.per_image import PerImage
from keras_calib.metrics.proper import NLL
from keras_calib.metrics.proper import BrierScore
from keras_calib.metrics.selective import AUGRC
from keras_calib.metrics.selective import AURC
from keras_calib.metrics.selective import EAURC
from keras_calib.metrics.selective import FailureAUROC
from keras_calib.metrics.selective import FailureFPR95
from keras_calib.metrics.selective import NormalizedAURC
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

"""Calibrators: layers fitted on held-out logits after training.

Lives here: the layers and their fits. Not here: thresholds (`selection`).
Floor: beside `losses`, `metrics` and `data`.
"""

from keras_calib.calibrators.affine import DirichletCalibration
from keras_calib.calibrators.affine import MatrixScaling
from keras_calib.calibrators.affine import VectorScaling
from keras_calib.calibrators.base import Calibrator
from keras_calib.calibrators.beta import BetaCalibration
from keras_calib.calibrators.binning import HistogramBinning
from keras_calib.calibrators.binning import IsotonicCalibration
from keras_calib.calibrators.choosing import CalibratorChoice
from keras_calib.calibrators.choosing import CandidateScore
from keras_calib.calibrators.choosing import choose_calibrator
from keras_calib.calibrators.choosing import choose_calibrator_on
from keras_calib.calibrators.ensemble import EnsembleTemperatureScaling
from keras_calib.calibrators.local import LocalTemperatureScaling
from keras_calib.calibrators.parametrized import ParametrizedTemperatureScaling
from keras_calib.calibrators.structured import StructuredMatrixScaling
from keras_calib.calibrators.structured import StructuredVectorScaling
from keras_calib.calibrators.temperature import TemperatureScaling

__all__ = [
    "BetaCalibration",
    "Calibrator",
    "CalibratorChoice",
    "CandidateScore",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "HistogramBinning",
    "IsotonicCalibration",
    "LocalTemperatureScaling",
    "MatrixScaling",
    "ParametrizedTemperatureScaling",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "VectorScaling",
    "choose_calibrator",
    "choose_calibrator_on",
]

"""Displays: arrays first, then a picture.

`from_predictions`, `from_model` and `from_metric` compute, `plot` draws, and
`to_png` and `to_svg` give files. matplotlib is imported when something is
drawn. Not here: the numbers (`functional`, `analysis`).
Floor: above `selection` and `analysis`, beside `exporting`.
"""

from keras_calib.plots.activations import ClassActivationDisplay
from keras_calib.plots.calibrator_choice import CalibratorChoiceDisplay
from keras_calib.plots.classwise import ClasswiseReliabilityDisplay
from keras_calib.plots.cumulative import CumulativeDisplay
from keras_calib.plots.detection import DetectionReliabilityDisplay
from keras_calib.plots.logits import MaxLogitDisplay
from keras_calib.plots.logits import NormalizedLogitDisplay
from keras_calib.plots.logits import SortedLogitsDisplay
from keras_calib.plots.loss_curves import EffectiveLabelsDisplay
from keras_calib.plots.loss_curves import LossCurveDisplay
from keras_calib.plots.loss_curves import RegularizerDisplay
from keras_calib.plots.loss_curves import SmoothingProfileDisplay
from keras_calib.plots.monitor import MonitorDisplay
from keras_calib.plots.planning import PlanDisplay
from keras_calib.plots.reliability import ConfidenceDisplay
from keras_calib.plots.reliability import ReliabilityDisplay
from keras_calib.plots.risk_coverage import RiskCoverageDisplay
from keras_calib.plots.segmentation import SegmentationDisplay

__all__ = [
    "CalibratorChoiceDisplay",
    "ClassActivationDisplay",
    "ClasswiseReliabilityDisplay",
    "ConfidenceDisplay",
    "CumulativeDisplay",
    "DetectionReliabilityDisplay",
    "EffectiveLabelsDisplay",
    "LossCurveDisplay",
    "MaxLogitDisplay",
    "MonitorDisplay",
    "NormalizedLogitDisplay",
    "PlanDisplay",
    "RegularizerDisplay",
    "ReliabilityDisplay",
    "RiskCoverageDisplay",
    "SegmentationDisplay",
    "SmoothingProfileDisplay",
    "SortedLogitsDisplay",
]

"""Displays: arrays first, then a picture.

`from_predictions`, `from_model` and `from_metric` compute, `plot` draws, and
`to_png` and `to_svg` give files. matplotlib is imported when something is
drawn. Not here: the numbers (`functional`), and the figures of papers
(`examples/papers`).
Floor: above `selection`, below `exporting`.
"""

from keras_calib.backend.keywords import answer_wrong_keywords
from keras_calib.plots.choices import CalibratorChoiceDisplay, PlanDisplay
from keras_calib.plots.cumulative import CumulativeDisplay
from keras_calib.plots.monitor import MonitorDisplay
from keras_calib.plots.reliability import (
    ClasswiseReliabilityDisplay,
    ConfidenceDisplay,
    ReliabilityDisplay,
)
from keras_calib.plots.risk_coverage import RiskCoverageDisplay
from keras_calib.plots.segmentation import SegmentationDisplay

__all__ = [
    "CalibratorChoiceDisplay",
    "ClasswiseReliabilityDisplay",
    "ConfidenceDisplay",
    "CumulativeDisplay",
    "MonitorDisplay",
    "PlanDisplay",
    "ReliabilityDisplay",
    "RiskCoverageDisplay",
    "SegmentationDisplay",
]

answer_wrong_keywords(__name__)

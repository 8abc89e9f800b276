"""Displays: arrays first, then a picture.

- Calibration: `ReliabilityDisplay`, `ClasswiseReliabilityDisplay`,
  `ConfidenceDisplay`, `CumulativeDisplay`, `SegmentationDisplay`.
- Selection: `RiskCoverageDisplay`, `PlanDisplay`, `CalibratorChoiceDisplay`.
- Models in use: `MonitorDisplay`.

A display is made of `Predictions`, of several by the name of their model, or of
an updated metric. `plot` draws, and `save` writes a file; matplotlib is
imported then. Not here: the numbers (`functional`), and the figures of papers
(`examples/papers`).
Floor: above `selection`, below `exporting`.
"""

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

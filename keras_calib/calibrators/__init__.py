"""Calibrators: layers fitted on held-out logits after training."""

from keras_calib.calibrators.base import Calibrator
from keras_calib.calibrators.scaling import TemperatureScaling

__all__ = ["Calibrator", "TemperatureScaling"]

"""Selection: when a model should abstain, and how much that guarantees."""

from keras_calib.selection.classifier import SelectiveClassifier
from keras_calib.selection.normalization import LogitNormalization
from keras_calib.selection.thresholds import ChosenThreshold
from keras_calib.selection.thresholds import ThresholdTable
from keras_calib.selection.thresholds import choose_threshold

__all__ = [
    "ChosenThreshold",
    "LogitNormalization",
    "SelectiveClassifier",
    "ThresholdTable",
    "choose_threshold",
]

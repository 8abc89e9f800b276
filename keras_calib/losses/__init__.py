"""Losses that calibrate during training."""

from keras_calib.losses.base import PerSampleLoss
from keras_calib.losses.entropy import ConfidencePenalty
from keras_calib.losses.entropy import LabelRelaxation
from keras_calib.losses.entropy import confidence_penalty
from keras_calib.losses.entropy import label_relaxation
from keras_calib.losses.focal import FocalLoss
from keras_calib.losses.focal import focal_loss
from keras_calib.losses.margin import ACLS
from keras_calib.losses.margin import MbLS
from keras_calib.losses.margin import acls
from keras_calib.losses.margin import mbls
from keras_calib.losses.smoothing import LabelSmoothing
from keras_calib.losses.smoothing import label_smoothing

__all__ = [
    "ACLS",
    "ConfidencePenalty",
    "FocalLoss",
    "LabelRelaxation",
    "LabelSmoothing",
    "MbLS",
    "PerSampleLoss",
    "acls",
    "confidence_penalty",
    "focal_loss",
    "label_relaxation",
    "label_smoothing",
    "mbls",
]

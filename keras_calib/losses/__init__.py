"""Losses that calibrate during training."""

from keras_calib.losses.adaptive_gamma import FLSD
from keras_calib.losses.adaptive_gamma import adaptive_focal
from keras_calib.losses.adaptive_gamma import flsd
from keras_calib.losses.base import PerSampleLoss
from keras_calib.losses.batch import DCA
from keras_calib.losses.batch import MDCA
from keras_calib.losses.batch import dca
from keras_calib.losses.batch import mdca
from keras_calib.losses.batch_base import BatchCoupledLoss
from keras_calib.losses.entropy import ConfidencePenalty
from keras_calib.losses.entropy import LabelRelaxation
from keras_calib.losses.entropy import UniformityPenalty
from keras_calib.losses.entropy import confidence_penalty
from keras_calib.losses.entropy import label_relaxation
from keras_calib.losses.entropy import uniformity_penalty
from keras_calib.losses.focal import FocalLoss
from keras_calib.losses.focal import InverseFocalLoss
from keras_calib.losses.focal import focal_loss
from keras_calib.losses.focal import inverse_focal_loss
from keras_calib.losses.kernel import MMCE
from keras_calib.losses.kernel import mmce
from keras_calib.losses.margin import ACLS
from keras_calib.losses.margin import MbLS
from keras_calib.losses.margin import acls
from keras_calib.losses.margin import mbls
from keras_calib.losses.pairwise import CPC
from keras_calib.losses.pairwise import cpc
from keras_calib.losses.proper import BrierLoss
from keras_calib.losses.proper import brier_loss
from keras_calib.losses.ranking import correctness_ranking
from keras_calib.losses.smoothing import AdaptiveLabelSmoothing
from keras_calib.losses.smoothing import LabelSmoothing
from keras_calib.losses.smoothing import adaptive_label_smoothing
from keras_calib.losses.smoothing import cape_loss
from keras_calib.losses.smoothing import label_smoothing

__all__ = [
    "ACLS",
    "AdaptiveLabelSmoothing",
    "BatchCoupledLoss",
    "BrierLoss",
    "CPC",
    "ConfidencePenalty",
    "DCA",
    "FLSD",
    "FocalLoss",
    "InverseFocalLoss",
    "LabelRelaxation",
    "LabelSmoothing",
    "MDCA",
    "MMCE",
    "MbLS",
    "PerSampleLoss",
    "UniformityPenalty",
    "acls",
    "adaptive_focal",
    "adaptive_label_smoothing",
    "brier_loss",
    "cape_loss",
    "confidence_penalty",
    "correctness_ranking",
    "cpc",
    "dca",
    "flsd",
    "focal_loss",
    "inverse_focal_loss",
    "label_relaxation",
    "label_smoothing",
    "mbls",
    "mdca",
    "mmce",
    "uniformity_penalty",
]

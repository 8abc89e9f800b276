"""Losses that calibrate during training: a function and a class for each.

Lives here: losses per sample, and losses with a term over the whole batch. Not
here: the models that some losses need (`training`).
Floor: above `formulas`, beside `metrics`, `calibrators` and `data`.
"""

from keras_calib.formulas.targets import cape_targets
from keras_calib.formulas.targets import objectness_targets
from keras_calib.formulas.targets import smooth_labels
from keras_calib.losses.average_calibration import L1ACE
from keras_calib.losses.average_calibration import l1_ace
from keras_calib.losses.base import PerSampleLoss
from keras_calib.losses.batch_coupled import BatchCoupledLoss
from keras_calib.losses.brier import BrierLoss
from keras_calib.losses.brier import brier_loss
from keras_calib.losses.confidence_accuracy import DCA
from keras_calib.losses.confidence_accuracy import MDCA
from keras_calib.losses.confidence_accuracy import dca
from keras_calib.losses.confidence_accuracy import mdca
from keras_calib.losses.crl import CRLMargin
from keras_calib.losses.crl import correctness_ranking
from keras_calib.losses.crl import crl_margin
from keras_calib.losses.entropy import ConfidencePenalty
from keras_calib.losses.entropy import LabelRelaxation
from keras_calib.losses.entropy import UniformityPenalty
from keras_calib.losses.entropy import confidence_penalty
from keras_calib.losses.entropy import label_relaxation
from keras_calib.losses.entropy import uniformity_penalty
from keras_calib.losses.focal import FLSD
from keras_calib.losses.focal import FocalLoss
from keras_calib.losses.focal import InverseFocalLoss
from keras_calib.losses.focal import adaptive_focal
from keras_calib.losses.focal import flsd
from keras_calib.losses.focal import focal_loss
from keras_calib.losses.focal import inverse_focal_loss
from keras_calib.losses.kernel import MMCE
from keras_calib.losses.kernel import mmce
from keras_calib.losses.margin import ACLS
from keras_calib.losses.margin import MbLS
from keras_calib.losses.margin import acls
from keras_calib.losses.margin import mbls
from keras_calib.losses.multi_label import MultiLabelLoss
from keras_calib.losses.pairwise import CPC
from keras_calib.losses.pairwise import cpc
from keras_calib.losses.smoothing import AdaptiveLabelSmoothing
from keras_calib.losses.smoothing import LabelSmoothing
from keras_calib.losses.smoothing import adaptive_label_smoothing
from keras_calib.losses.smoothing import cape_loss
from keras_calib.losses.smoothing import label_smoothing
from keras_calib.losses.spatial import NACL
from keras_calib.losses.spatial import SVLS
from keras_calib.losses.spatial import nacl
from keras_calib.losses.spatial import svls

__all__ = [
    "ACLS",
    "AdaptiveLabelSmoothing",
    "BatchCoupledLoss",
    "BrierLoss",
    "CPC",
    "CRLMargin",
    "ConfidencePenalty",
    "DCA",
    "FLSD",
    "FocalLoss",
    "InverseFocalLoss",
    "L1ACE",
    "LabelRelaxation",
    "LabelSmoothing",
    "MDCA",
    "MMCE",
    "MbLS",
    "MultiLabelLoss",
    "NACL",
    "PerSampleLoss",
    "SVLS",
    "UniformityPenalty",
    "acls",
    "adaptive_focal",
    "adaptive_label_smoothing",
    "brier_loss",
    "cape_loss",
    "cape_targets",
    "confidence_penalty",
    "correctness_ranking",
    "cpc",
    "crl_margin",
    "dca",
    "flsd",
    "focal_loss",
    "inverse_focal_loss",
    "l1_ace",
    "label_relaxation",
    "label_smoothing",
    "mbls",
    "mdca",
    "mmce",
    "nacl",
    "objectness_targets",
    "smooth_labels",
    "svls",
    "uniformity_penalty",
]

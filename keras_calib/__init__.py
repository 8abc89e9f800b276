"""Network calibration and selective classification for Keras 3.

Losses that calibrate during training, metrics that stream exactly, and what
repairs, judges and serves a model after training. Everything public is
importable from here; the submodules are the table of contents.
"""

from keras_calib.analysis import EffectiveLabels
from keras_calib.analysis import effective_labels
from keras_calib.analysis import inactive_share
from keras_calib.analysis import prediction_flips
from keras_calib.bins import BinSums
from keras_calib.calibration_error import adaptive_ece
from keras_calib.calibration_error import ece
from keras_calib.calibrators import Calibrator
from keras_calib.calibrators import TemperatureScaling
from keras_calib.exporting import export
from keras_calib.intervals import clopper_pearson
from keras_calib.losses import ACLS
from keras_calib.losses import CPC
from keras_calib.losses import DCA
from keras_calib.losses import FLSD
from keras_calib.losses import MDCA
from keras_calib.losses import MMCE
from keras_calib.losses import AdaptiveLabelSmoothing
from keras_calib.losses import BatchCoupledLoss
from keras_calib.losses import BrierLoss
from keras_calib.losses import ConfidencePenalty
from keras_calib.losses import FocalLoss
from keras_calib.losses import InverseFocalLoss
from keras_calib.losses import LabelRelaxation
from keras_calib.losses import LabelSmoothing
from keras_calib.losses import MbLS
from keras_calib.losses import PerSampleLoss
from keras_calib.losses import UniformityPenalty
from keras_calib.losses import acls
from keras_calib.losses import adaptive_focal
from keras_calib.losses import adaptive_label_smoothing
from keras_calib.losses import brier_loss
from keras_calib.losses import cape_loss
from keras_calib.losses import confidence_penalty
from keras_calib.losses import correctness_ranking
from keras_calib.losses import cpc
from keras_calib.losses import dca
from keras_calib.losses import flsd
from keras_calib.losses import focal_loss
from keras_calib.losses import inverse_focal_loss
from keras_calib.losses import label_relaxation
from keras_calib.losses import label_smoothing
from keras_calib.losses import mbls
from keras_calib.losses import mdca
from keras_calib.losses import mmce
from keras_calib.losses import uniformity_penalty
from keras_calib.metrics import AECE
from keras_calib.metrics import AURC
from keras_calib.metrics import ECE
from keras_calib.metrics import NLL
from keras_calib.metrics import StreamingMetric
from keras_calib.metrics import nll
from keras_calib.plots import ReliabilityDisplay
from keras_calib.plots import RiskCoverageDisplay
from keras_calib.risk_coverage import RiskCoverageCurve
from keras_calib.risk_coverage import augrc
from keras_calib.risk_coverage import aurc
from keras_calib.risk_coverage import coverage_at_risk
from keras_calib.risk_coverage import eaurc
from keras_calib.risk_coverage import risk_at_coverage
from keras_calib.risk_coverage import risk_coverage_curve
from keras_calib.scores import gini
from keras_calib.scores import logit_margin
from keras_calib.scores import max_logit
from keras_calib.scores import msp
from keras_calib.scores import neg_energy
from keras_calib.scores import neg_entropy
from keras_calib.scores import p_norm
from keras_calib.scores import prob_margin
from keras_calib.targets import cape_targets
from keras_calib.targets import objectness_targets
from keras_calib.targets import smooth_labels
from keras_calib.version import __version__

__all__ = [
    "ACLS",
    "AECE",
    "AURC",
    "AdaptiveLabelSmoothing",
    "BatchCoupledLoss",
    "BinSums",
    "BrierLoss",
    "CPC",
    "Calibrator",
    "ConfidencePenalty",
    "DCA",
    "ECE",
    "EffectiveLabels",
    "FLSD",
    "FocalLoss",
    "InverseFocalLoss",
    "LabelRelaxation",
    "LabelSmoothing",
    "MDCA",
    "MMCE",
    "MbLS",
    "NLL",
    "PerSampleLoss",
    "ReliabilityDisplay",
    "RiskCoverageCurve",
    "RiskCoverageDisplay",
    "StreamingMetric",
    "TemperatureScaling",
    "UniformityPenalty",
    "__version__",
    "acls",
    "adaptive_ece",
    "adaptive_focal",
    "adaptive_label_smoothing",
    "augrc",
    "aurc",
    "brier_loss",
    "cape_loss",
    "cape_targets",
    "clopper_pearson",
    "confidence_penalty",
    "correctness_ranking",
    "coverage_at_risk",
    "cpc",
    "dca",
    "eaurc",
    "ece",
    "effective_labels",
    "export",
    "flsd",
    "focal_loss",
    "gini",
    "inactive_share",
    "inverse_focal_loss",
    "label_relaxation",
    "label_smoothing",
    "logit_margin",
    "max_logit",
    "mbls",
    "mdca",
    "mmce",
    "msp",
    "neg_energy",
    "neg_entropy",
    "nll",
    "objectness_targets",
    "p_norm",
    "prediction_flips",
    "prob_margin",
    "risk_at_coverage",
    "risk_coverage_curve",
    "smooth_labels",
    "uniformity_penalty",
]

"""Network calibration and selective classification for Keras 3.

Losses that calibrate during training, metrics that stream exactly, and what
repairs, judges and serves a model after training. Everything public is
importable from here; the submodules are the table of contents.
"""

from keras_calib.bins import BinSums
from keras_calib.calibration_error import adaptive_ece
from keras_calib.calibration_error import ece
from keras_calib.calibrators import Calibrator
from keras_calib.calibrators import TemperatureScaling
from keras_calib.exporting import export
from keras_calib.intervals import clopper_pearson
from keras_calib.losses import ACLS
from keras_calib.losses import ConfidencePenalty
from keras_calib.losses import FocalLoss
from keras_calib.losses import LabelRelaxation
from keras_calib.losses import LabelSmoothing
from keras_calib.losses import MbLS
from keras_calib.losses import PerSampleLoss
from keras_calib.losses import acls
from keras_calib.losses import confidence_penalty
from keras_calib.losses import focal_loss
from keras_calib.losses import label_relaxation
from keras_calib.losses import label_smoothing
from keras_calib.losses import mbls
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
from keras_calib.targets import smooth_labels
from keras_calib.version import __version__

__all__ = [
    "ACLS",
    "AECE",
    "AURC",
    "BinSums",
    "Calibrator",
    "ConfidencePenalty",
    "ECE",
    "FocalLoss",
    "LabelRelaxation",
    "LabelSmoothing",
    "MbLS",
    "NLL",
    "PerSampleLoss",
    "ReliabilityDisplay",
    "RiskCoverageCurve",
    "RiskCoverageDisplay",
    "StreamingMetric",
    "TemperatureScaling",
    "__version__",
    "acls",
    "adaptive_ece",
    "augrc",
    "aurc",
    "clopper_pearson",
    "confidence_penalty",
    "coverage_at_risk",
    "eaurc",
    "ece",
    "export",
    "focal_loss",
    "gini",
    "label_relaxation",
    "label_smoothing",
    "logit_margin",
    "max_logit",
    "mbls",
    "msp",
    "neg_energy",
    "neg_entropy",
    "nll",
    "p_norm",
    "prob_margin",
    "risk_at_coverage",
    "risk_coverage_curve",
    "smooth_labels",
]

"""Network calibration and selective classification for Keras 3.

Losses that calibrate during training, metrics that stream exactly, and what
repairs, judges and serves a model after training. Everything public is
importable from here; the submodules are the table of contents.
"""

from keras_calib.activation_maps import class_activation_maps
from keras_calib.analysis import EffectiveLabels
from keras_calib.analysis import RegularizerHistogram
from keras_calib.analysis import effective_labels
from keras_calib.analysis import inactive_share
from keras_calib.analysis import per_sample_losses
from keras_calib.analysis import prediction_flips
from keras_calib.analysis import regularizer_histogram
from keras_calib.bin_errors import Decomposition
from keras_calib.bins import BinSums
from keras_calib.calibration_error import average_calibration_error
from keras_calib.calibration_error import debiased_calibration_error
from keras_calib.calibration_error import ece
from keras_calib.calibration_error import mce
from keras_calib.calibration_error import rmsce
from keras_calib.calibrators import BetaCalibration
from keras_calib.calibrators import Calibrator
from keras_calib.calibrators import DirichletCalibration
from keras_calib.calibrators import EnsembleTemperatureScaling
from keras_calib.calibrators import HistogramBinning
from keras_calib.calibrators import IsotonicCalibration
from keras_calib.calibrators import MatrixScaling
from keras_calib.calibrators import TemperatureScaling
from keras_calib.calibrators import VectorScaling
from keras_calib.callbacks import ResumableBackup
from keras_calib.canonical import canonical_calibration_error
from keras_calib.classwise import classwise_ece
from keras_calib.confidence_gaps import mean_confidence
from keras_calib.confidence_gaps import objectness_deviation
from keras_calib.confidence_gaps import overconfidence
from keras_calib.confidence_gaps import overconfidence_error
from keras_calib.confidence_gaps import underconfidence
from keras_calib.data import ClassMap
from keras_calib.data import DatasetSummary
from keras_calib.data import EpochBatches
from keras_calib.data import Tally
from keras_calib.data import apply_layers
from keras_calib.data import array_pipeline
from keras_calib.data import boxes_to_mask
from keras_calib.data import cap_classes
from keras_calib.data import center_crop
from keras_calib.data import class_map
from keras_calib.data import clip_boxes
from keras_calib.data import color_jitter
from keras_calib.data import context_examples
from keras_calib.data import crop_boxes
from keras_calib.data import cutmix
from keras_calib.data import describe
from keras_calib.data import flip_boxes
from keras_calib.data import from_folder
from keras_calib.data import from_tfds
from keras_calib.data import from_tfrecords
from keras_calib.data import label_by_largest
from keras_calib.data import map_classes
from keras_calib.data import mask_area
from keras_calib.data import mixup
from keras_calib.data import object_examples
from keras_calib.data import objectness
from keras_calib.data import objectness_from_mask
from keras_calib.data import pixel_mean
from keras_calib.data import random_resized_crop
from keras_calib.data import resize_boxes
from keras_calib.data import ricap
from keras_calib.data import shuffled_epochs
from keras_calib.data import training_pipeline
from keras_calib.data import union_area
from keras_calib.data import valid_examples
from keras_calib.data import validation_pipeline
from keras_calib.data import with_index
from keras_calib.equal_mass import adaptive_ece
from keras_calib.excess_areas import eaugrc
from keras_calib.excess_areas import normalized_aurc
from keras_calib.exporting import export
from keras_calib.failure_detection import failure_auroc
from keras_calib.failure_detection import failure_average_precision
from keras_calib.failure_detection import failure_fpr95
from keras_calib.hypothesis_tests import CalibrationTest
from keras_calib.hypothesis_tests import Comparison
from keras_calib.hypothesis_tests import calibration_test
from keras_calib.hypothesis_tests import compare
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
from keras_calib.metrics import AUGRC
from keras_calib.metrics import AURC
from keras_calib.metrics import EAURC
from keras_calib.metrics import ECE
from keras_calib.metrics import MCE
from keras_calib.metrics import NLL
from keras_calib.metrics import RMSCE
from keras_calib.metrics import Accuracy
from keras_calib.metrics import AverageCalibrationError
from keras_calib.metrics import BrierScore
from keras_calib.metrics import CalibrationMetrics
from keras_calib.metrics import ClasswiseECE
from keras_calib.metrics import CoverageAtAccuracy
from keras_calib.metrics import CoverageAtRisk
from keras_calib.metrics import DebiasedCalibrationError
from keras_calib.metrics import FailureAUROC
from keras_calib.metrics import FailureFPR95
from keras_calib.metrics import MeanConfidence
from keras_calib.metrics import NormalizedAURC
from keras_calib.metrics import ObjectnessDeviation
from keras_calib.metrics import Overconfidence
from keras_calib.metrics import OverconfidenceError
from keras_calib.metrics import PerImage
from keras_calib.metrics import RiskAtCoverage
from keras_calib.metrics import SmoothECE
from keras_calib.metrics import StreamingMetric
from keras_calib.metrics import Underconfidence
from keras_calib.models import AdaptiveFocalModel
from keras_calib.models import CaPEModel
from keras_calib.models import ConfidencePruningModel
from keras_calib.models import CorrectnessRankingModel
from keras_calib.models import DeepEnsemble
from keras_calib.models import EpochModel
from keras_calib.models import MonteCarloDropout
from keras_calib.models import RecordingModel
from keras_calib.models import ScheduledFocalModel
from keras_calib.models import SharpnessAwareModel
from keras_calib.models import fit_workers
from keras_calib.monitoring import CalibrationLogger
from keras_calib.monitoring import LoggedEpoch
from keras_calib.plots import ClassActivationDisplay
from keras_calib.plots import ClasswiseReliabilityDisplay
from keras_calib.plots import ConfidenceDisplay
from keras_calib.plots import EffectiveLabelsDisplay
from keras_calib.plots import LossCurveDisplay
from keras_calib.plots import MaxLogitDisplay
from keras_calib.plots import NormalizedLogitDisplay
from keras_calib.plots import RegularizerDisplay
from keras_calib.plots import ReliabilityDisplay
from keras_calib.plots import RiskCoverageDisplay
from keras_calib.plots import SegmentationDisplay
from keras_calib.plots import SmoothingProfileDisplay
from keras_calib.plots import SortedLogitsDisplay
from keras_calib.proper_scores import brier_score
from keras_calib.proper_scores import calibration_decomposition
from keras_calib.proper_scores import nll
from keras_calib.reporting import Report
from keras_calib.reporting import report
from keras_calib.reporting import report_of_predictions
from keras_calib.risk_coverage import RiskCoverageCurve
from keras_calib.risk_coverage import augrc
from keras_calib.risk_coverage import aurc
from keras_calib.risk_coverage import coverage_at_accuracy
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
from keras_calib.segmentation import per_image
from keras_calib.selection import ChosenThreshold
from keras_calib.selection import LogitNormalization
from keras_calib.selection import SelectiveClassifier
from keras_calib.selection import ThresholdTable
from keras_calib.selection import choose_threshold
from keras_calib.smooth_error import smooth_ece
from keras_calib.targets import cape_targets
from keras_calib.targets import objectness_targets
from keras_calib.targets import smooth_labels
from keras_calib.training_state import finished_epochs
from keras_calib.training_state import load_training_state
from keras_calib.training_state import save_training_state
from keras_calib.version import __version__

__all__ = [
    "ACLS",
    "AECE",
    "AUGRC",
    "AURC",
    "Accuracy",
    "AdaptiveFocalModel",
    "AdaptiveLabelSmoothing",
    "AverageCalibrationError",
    "BatchCoupledLoss",
    "BetaCalibration",
    "BinSums",
    "BrierLoss",
    "BrierScore",
    "CPC",
    "CaPEModel",
    "CalibrationLogger",
    "CalibrationMetrics",
    "CalibrationTest",
    "Calibrator",
    "ChosenThreshold",
    "ClassActivationDisplay",
    "ClassMap",
    "ClasswiseECE",
    "ClasswiseReliabilityDisplay",
    "Comparison",
    "ConfidenceDisplay",
    "ConfidencePenalty",
    "ConfidencePruningModel",
    "CorrectnessRankingModel",
    "CoverageAtAccuracy",
    "CoverageAtRisk",
    "DCA",
    "DatasetSummary",
    "DebiasedCalibrationError",
    "Decomposition",
    "DeepEnsemble",
    "DirichletCalibration",
    "EAURC",
    "ECE",
    "EffectiveLabels",
    "EffectiveLabelsDisplay",
    "EnsembleTemperatureScaling",
    "EpochBatches",
    "EpochModel",
    "FLSD",
    "FailureAUROC",
    "FailureFPR95",
    "FocalLoss",
    "HistogramBinning",
    "InverseFocalLoss",
    "IsotonicCalibration",
    "LabelRelaxation",
    "LabelSmoothing",
    "LoggedEpoch",
    "LogitNormalization",
    "LossCurveDisplay",
    "MCE",
    "MDCA",
    "MMCE",
    "MatrixScaling",
    "MaxLogitDisplay",
    "MbLS",
    "MeanConfidence",
    "MonteCarloDropout",
    "NLL",
    "NormalizedAURC",
    "NormalizedLogitDisplay",
    "ObjectnessDeviation",
    "Overconfidence",
    "OverconfidenceError",
    "PerImage",
    "PerSampleLoss",
    "RMSCE",
    "RecordingModel",
    "RegularizerDisplay",
    "RegularizerHistogram",
    "ReliabilityDisplay",
    "Report",
    "ResumableBackup",
    "RiskAtCoverage",
    "RiskCoverageCurve",
    "RiskCoverageDisplay",
    "ScheduledFocalModel",
    "SegmentationDisplay",
    "SelectiveClassifier",
    "SharpnessAwareModel",
    "SmoothECE",
    "SmoothingProfileDisplay",
    "SortedLogitsDisplay",
    "StreamingMetric",
    "Tally",
    "TemperatureScaling",
    "ThresholdTable",
    "Underconfidence",
    "UniformityPenalty",
    "VectorScaling",
    "__version__",
    "acls",
    "adaptive_ece",
    "adaptive_focal",
    "adaptive_label_smoothing",
    "apply_layers",
    "array_pipeline",
    "augrc",
    "aurc",
    "average_calibration_error",
    "boxes_to_mask",
    "brier_loss",
    "brier_score",
    "calibration_decomposition",
    "calibration_test",
    "canonical_calibration_error",
    "cap_classes",
    "cape_loss",
    "cape_targets",
    "center_crop",
    "choose_threshold",
    "class_activation_maps",
    "class_map",
    "classwise_ece",
    "clip_boxes",
    "clopper_pearson",
    "color_jitter",
    "compare",
    "confidence_penalty",
    "context_examples",
    "correctness_ranking",
    "coverage_at_accuracy",
    "coverage_at_risk",
    "cpc",
    "crop_boxes",
    "cutmix",
    "dca",
    "debiased_calibration_error",
    "describe",
    "eaugrc",
    "eaurc",
    "ece",
    "effective_labels",
    "export",
    "failure_auroc",
    "failure_average_precision",
    "failure_fpr95",
    "finished_epochs",
    "fit_workers",
    "flip_boxes",
    "flsd",
    "focal_loss",
    "from_folder",
    "from_tfds",
    "from_tfrecords",
    "gini",
    "inactive_share",
    "inverse_focal_loss",
    "label_by_largest",
    "label_relaxation",
    "label_smoothing",
    "load_training_state",
    "logit_margin",
    "map_classes",
    "mask_area",
    "max_logit",
    "mbls",
    "mce",
    "mdca",
    "mean_confidence",
    "mixup",
    "mmce",
    "msp",
    "neg_energy",
    "neg_entropy",
    "nll",
    "normalized_aurc",
    "object_examples",
    "objectness",
    "objectness_deviation",
    "objectness_from_mask",
    "objectness_targets",
    "overconfidence",
    "overconfidence_error",
    "p_norm",
    "per_image",
    "per_sample_losses",
    "pixel_mean",
    "prediction_flips",
    "prob_margin",
    "random_resized_crop",
    "regularizer_histogram",
    "report",
    "report_of_predictions",
    "resize_boxes",
    "ricap",
    "risk_at_coverage",
    "risk_coverage_curve",
    "rmsce",
    "save_training_state",
    "shuffled_epochs",
    "smooth_ece",
    "smooth_labels",
    "training_pipeline",
    "underconfidence",
    "uniformity_penalty",
    "union_area",
    "valid_examples",
    "validation_pipeline",
    "with_index",
]

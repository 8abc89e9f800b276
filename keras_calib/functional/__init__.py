"""Exact float64 functions of whole arrays, and scores of logits.

Lives here: one function per quantity. It reads its arrays, calls the formula
and returns numbers. Not here: formulas (`formulas`) and streaming metrics
(`metrics`).
Floor: beside `losses`, `metrics`, `calibrators` and `data`.
"""

from keras_calib.formulas.binned_errors import Decomposition
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.box_matching import match_detections
from keras_calib.formulas.costs import MeanCost
from keras_calib.formulas.cumulative import CumulativeDifferences
from keras_calib.formulas.detection import DetectionRecords
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.formulas.proper import BrierDecomposition
from keras_calib.formulas.risk_coverage import RiskCoverageCurve
from keras_calib.formulas.scores import gini
from keras_calib.formulas.scores import logit_margin
from keras_calib.formulas.scores import max_logit
from keras_calib.formulas.scores import msp
from keras_calib.formulas.scores import neg_energy
from keras_calib.formulas.scores import neg_entropy
from keras_calib.formulas.scores import p_norm
from keras_calib.formulas.scores import prob_margin
from keras_calib.formulas.sequences import choice_logits
from keras_calib.formulas.sequences import sequence_confidence
from keras_calib.formulas.sequences import token_log_probs
from keras_calib.functional.binned import average_calibration_error
from keras_calib.functional.binned import debiased_calibration_error
from keras_calib.functional.binned import ece
from keras_calib.functional.binned import mce
from keras_calib.functional.binned import rmsce
from keras_calib.functional.canonical import canonical_calibration_error
from keras_calib.functional.classwise import classwise_ece
from keras_calib.functional.comparison import Comparison
from keras_calib.functional.comparison import compare
from keras_calib.functional.confidence import mean_confidence
from keras_calib.functional.confidence import objectness_deviation
from keras_calib.functional.confidence import overconfidence
from keras_calib.functional.confidence import overconfidence_error
from keras_calib.functional.confidence import underconfidence
from keras_calib.functional.costs import mean_cost
from keras_calib.functional.costs import mean_cost_of_records
from keras_calib.functional.cumulative import cumulative_differences
from keras_calib.functional.cumulative import ecce
from keras_calib.functional.detection import DetectionCalibrationError
from keras_calib.functional.detection import adaptive_localization_error
from keras_calib.functional.detection import detection_ece
from keras_calib.functional.detection import localization_aware_ece
from keras_calib.functional.equal_mass import adaptive_ece
from keras_calib.functional.failure_detection import failure_auroc
from keras_calib.functional.failure_detection import failure_average_precision
from keras_calib.functional.failure_detection import failure_fpr95
from keras_calib.functional.group_table import GroupMetrics
from keras_calib.functional.group_table import LargestDifference
from keras_calib.functional.groups import by_group
from keras_calib.functional.groups import by_group_from_top1
from keras_calib.functional.hypothesis_tests import CalibrationTest
from keras_calib.functional.hypothesis_tests import calibration_test
from keras_calib.functional.prior import PriorEstimate
from keras_calib.functional.prior import estimate_prior
from keras_calib.functional.proper import brier_decomposition
from keras_calib.functional.proper import brier_score
from keras_calib.functional.proper import calibration_decomposition
from keras_calib.functional.proper import nll
from keras_calib.functional.risk_coverage import augrc
from keras_calib.functional.risk_coverage import aurc
from keras_calib.functional.risk_coverage import coverage_at_accuracy
from keras_calib.functional.risk_coverage import coverage_at_risk
from keras_calib.functional.risk_coverage import eaugrc
from keras_calib.functional.risk_coverage import eaurc
from keras_calib.functional.risk_coverage import normalized_aurc
from keras_calib.functional.risk_coverage import risk_at_coverage
from keras_calib.functional.risk_coverage import risk_coverage_curve
from keras_calib.functional.segmentation import per_image
from keras_calib.functional.smooth import smooth_ece

__all__ = [
    "BinSums",
    "BrierDecomposition",
    "CalibrationTest",
    "Comparison",
    "CumulativeDifferences",
    "Decomposition",
    "DetectionCalibrationError",
    "DetectionRecords",
    "GroupMetrics",
    "LargestDifference",
    "MeanCost",
    "PriorEstimate",
    "RiskCoverageCurve",
    "adaptive_ece",
    "adaptive_localization_error",
    "augrc",
    "aurc",
    "average_calibration_error",
    "brier_decomposition",
    "brier_score",
    "by_group",
    "by_group_from_top1",
    "calibration_decomposition",
    "calibration_test",
    "canonical_calibration_error",
    "choice_logits",
    "classwise_ece",
    "clopper_pearson",
    "compare",
    "coverage_at_accuracy",
    "coverage_at_risk",
    "cumulative_differences",
    "debiased_calibration_error",
    "detection_ece",
    "eaugrc",
    "eaurc",
    "ecce",
    "ece",
    "estimate_prior",
    "failure_auroc",
    "failure_average_precision",
    "failure_fpr95",
    "gini",
    "localization_aware_ece",
    "logit_margin",
    "match_detections",
    "max_logit",
    "mce",
    "mean_confidence",
    "mean_cost",
    "mean_cost_of_records",
    "msp",
    "neg_energy",
    "neg_entropy",
    "nll",
    "normalized_aurc",
    "objectness_deviation",
    "overconfidence",
    "overconfidence_error",
    "p_norm",
    "per_image",
    "prob_margin",
    "risk_at_coverage",
    "risk_coverage_curve",
    "rmsce",
    "sequence_confidence",
    "smooth_ece",
    "token_log_probs",
    "underconfidence",
]

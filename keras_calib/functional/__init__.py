"""Exact float64 functions of whole arrays, and scores of logits.

Lives here: one function per quantity. It reads its arrays, calls the formula
and returns numbers. Not here: formulas (`formulas`) and streaming metrics
(`metrics`).
Floor: beside `losses`, `metrics`, `calibrators` and `data`.
"""

from keras_calib.backend.keywords import answer_wrong_keywords
from keras_calib.formulas.binned_errors import Decomposition
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.costs import MeanCost
from keras_calib.formulas.cumulative import CumulativeDifferences
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.formulas.proper import BrierDecomposition
from keras_calib.formulas.risk_coverage import RiskCoverageCurve
from keras_calib.formulas.scores import (
    gini,
    logit_margin,
    max_logit,
    msp,
    neg_energy,
    neg_entropy,
    p_norm,
    prob_margin,
)
from keras_calib.functional.calibration_errors import (
    adaptive_ece,
    average_calibration_error,
    cumulative_differences,
    debiased_calibration_error,
    ecce,
    ece,
    mce,
    rmsce,
    smooth_ece,
)
from keras_calib.functional.classwise import classwise_ece
from keras_calib.functional.comparison import (
    Comparison,
    compare,
    prediction_flips,
)
from keras_calib.functional.confidence import (
    accuracy,
    mean_confidence,
    objectness_deviation,
    overconfidence,
    overconfidence_error,
    underconfidence,
)
from keras_calib.functional.costs import mean_cost, mean_cost_of_records
from keras_calib.functional.group_table import GroupMetrics, LargestDifference
from keras_calib.functional.groups import by_group, by_group_from_top1
from keras_calib.functional.hypothesis_tests import (
    CalibrationTest,
    calibration_test,
)
from keras_calib.functional.prior import PriorEstimate, estimate_prior
from keras_calib.functional.proper import (
    brier_decomposition,
    brier_score,
    calibration_decomposition,
    nll,
)
from keras_calib.functional.ranking import (
    failure_auroc,
    failure_average_precision,
    failure_fpr95,
)
from keras_calib.functional.risk_coverage import (
    augrc,
    aurc,
    coverage_at_accuracy,
    coverage_at_risk,
    eaugrc,
    eaurc,
    normalized_aurc,
    risk_at_coverage,
    risk_coverage_curve,
)
from keras_calib.functional.segmentation import per_image
from keras_calib.inputs.given_metrics import tell_functions

__all__ = [
    "BinSums",
    "BrierDecomposition",
    "CalibrationTest",
    "Comparison",
    "CumulativeDifferences",
    "Decomposition",
    "GroupMetrics",
    "LargestDifference",
    "MeanCost",
    "PriorEstimate",
    "RiskCoverageCurve",
    "accuracy",
    "adaptive_ece",
    "augrc",
    "aurc",
    "average_calibration_error",
    "brier_decomposition",
    "brier_score",
    "by_group",
    "by_group_from_top1",
    "calibration_decomposition",
    "calibration_test",
    "classwise_ece",
    "clopper_pearson",
    "compare",
    "coverage_at_accuracy",
    "coverage_at_risk",
    "cumulative_differences",
    "debiased_calibration_error",
    "eaugrc",
    "eaurc",
    "ecce",
    "ece",
    "estimate_prior",
    "failure_auroc",
    "failure_average_precision",
    "failure_fpr95",
    "gini",
    "logit_margin",
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
    "prediction_flips",
    "prob_margin",
    "risk_at_coverage",
    "risk_coverage_curve",
    "rmsce",
    "smooth_ece",
    "underconfidence",
]

answer_wrong_keywords(__name__)
tell_functions(__name__)

"""Exact float64 functions of whole arrays, and scores of logits.

- Calibration errors: `ece`, `aece`, `mce`, `rmsce`, `smooth_ece`, `ecce`,
  `classwise_ece`, `debiased_calibration_error`, `average_calibration_error`,
  `overconfidence_error`.
- Tests and curves: `calibration_test`, `CalibrationTestResult`,
  `cumulative_differences`, `CumulativeCurve`, `BinSums`.
- Confidence: `accuracy`, `mean_confidence`, `confidence_gap`,
  `overconfidence`, `underconfidence`, `objectness_deviation`.
- Proper scores: `nll`, `brier_score`, `brier_decomposition`, `BrierComponents`,
  `calibration_decomposition`, `Decomposition`.
- Ranking: `aurc`, `eaurc`, `naurc`, `augrc`, `eaugrc`, `failure_auroc`,
  `failure_average_precision`, `failure_fpr95`.
- Selection: `risk_coverage_curve`, `RiskCoveragePoints`, `coverage_at_risk`,
  `coverage_at_accuracy`, `risk_at_coverage`.
- Scores of logits: `msp`, `max_logit`, `logit_margin`, `prob_margin`,
  `neg_entropy`, `neg_energy`, `p_norm`, `gini`.
- Models and groups: `compare`, `Comparison`, `prediction_flips`, `by_group`,
  `GroupMetrics`, `LargestDifference`, `per_image`, `mean_iou`.
- Costs and priors: `mean_cost`, `CostEstimate`, `estimate_prior`,
  `PriorEstimate`.

Functions of `labels, outputs` take `Predictions` in their place, which tell how
they are read. Those of confidence and correctness take logs too.

Lives here: one function per quantity. It reads its arrays, calls the formula
and returns numbers. Not here: formulas (`formulas`) and streaming metrics
(`metrics`).
Floor: beside `losses`, `metrics`, `calibrators` and `data`.
"""

from keras_calib.formulas.binned_errors import Decomposition
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.costs import CostEstimate
from keras_calib.formulas.cumulative import CumulativeCurve
from keras_calib.formulas.proper import BrierComponents
from keras_calib.formulas.risk_coverage import RiskCoveragePoints
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
    aece,
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
    confidence_gap,
    mean_confidence,
    objectness_deviation,
    overconfidence,
    overconfidence_error,
    underconfidence,
)
from keras_calib.functional.costs import mean_cost
from keras_calib.functional.group_table import GroupMetrics, LargestDifference
from keras_calib.functional.groups import by_group
from keras_calib.functional.hypothesis_tests import (
    CalibrationTestResult,
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
    naurc,
    risk_at_coverage,
    risk_coverage_curve,
)
from keras_calib.functional.segmentation import mean_iou, per_image
from keras_calib.inputs.given_metrics import tell_functions

__all__ = [
    "BinSums",
    "BrierComponents",
    "CalibrationTestResult",
    "Comparison",
    "CostEstimate",
    "CumulativeCurve",
    "Decomposition",
    "GroupMetrics",
    "LargestDifference",
    "PriorEstimate",
    "RiskCoveragePoints",
    "accuracy",
    "aece",
    "augrc",
    "aurc",
    "average_calibration_error",
    "brier_decomposition",
    "brier_score",
    "by_group",
    "calibration_decomposition",
    "calibration_test",
    "classwise_ece",
    "compare",
    "confidence_gap",
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
    "mean_iou",
    "msp",
    "naurc",
    "neg_energy",
    "neg_entropy",
    "nll",
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

tell_functions(__name__)

"""Network calibration and selective classification for Keras 3.

What most scripts use stands here. All of it, and results, functions, scores
and what is for boxes, labels, text and data, stands in a namespace:

- `losses`, `training`, `ensembles`, `data`: train.
- `metrics`, `functional`, `predictions`: measure.
- `calibrators`: repair.
- `selection`: abstain.
- `monitoring`: watch.
- `plots`, `reporting`: show.
- `exporting`: ship.
- `detection`, `labels`, `text`: boxes, several labels, sequences.
- `beam`, `sklearn`: Apache Beam, scikit-learn.

`config` has the settings of the library.
"""

from typing import TYPE_CHECKING

from keras_calib.backend.late import Whole
from keras_calib.inputs import config as config
from keras_calib.version import __version__

if TYPE_CHECKING:
    from keras_calib import beam as beam
    from keras_calib import calibrators as calibrators
    from keras_calib import data as data
    from keras_calib import detection as detection
    from keras_calib import ensembles as ensembles
    from keras_calib import exporting as exporting
    from keras_calib import functional as functional
    from keras_calib import labels as labels
    from keras_calib import losses as losses
    from keras_calib import metrics as metrics
    from keras_calib import monitoring as monitoring
    from keras_calib import plots as plots
    from keras_calib import predictions as predictions
    from keras_calib import reporting as reporting
    from keras_calib import selection as selection
    from keras_calib import sklearn as sklearn
    from keras_calib import text as text
    from keras_calib import training as training
    from keras_calib.calibrators import *
    from keras_calib.ensembles import *
    from keras_calib.exporting import *
    from keras_calib.functional import *
    from keras_calib.labels import *
    from keras_calib.losses import *
    from keras_calib.metrics import *
    from keras_calib.monitoring import *
    from keras_calib.plots import *
    from keras_calib.predictions import *
    from keras_calib.reporting import *
    from keras_calib.selection import *
    from keras_calib.training import *

# The short list; what is in none of these lines is in a namespace alone.
__all__ = [
    "ACLS",
    "AECE",
    "AUGRC",
    "AURC",
    "Accuracy",
    "AdaptiveFocalModel",
    "AdaptiveLabelSmoothing",
    "AffineScaling",
    "AverageCalibrationError",
    "BetaCalibration",
    "BrierLoss",
    "BrierScore",
    "CPC",
    "CRLMargin",
    "CaPEModel",
    "CalibrationLogger",
    "CalibrationMetrics",
    "ClasswiseECE",
    "ConfidenceGap",
    "ConfidencePenalty",
    "ConfidencePruningModel",
    "CorrectnessRankingModel",
    "CoverageAtAccuracy",
    "CoverageAtRisk",
    "DCA",
    "DebiasedCalibrationError",
    "DeepEnsemble",
    "DirichletCalibration",
    "EAURC",
    "ECCE",
    "ECE",
    "EnsembleTemperatureScaling",
    "FLSD",
    "FailureAUROC",
    "FailureFPR95",
    "FocalLoss",
    "GaussianProcessCalibration",
    "HistogramBinning",
    "InverseFocalLoss",
    "IsotonicCalibration",
    "L1ACE",
    "LabelRelaxation",
    "LabelSmoothing",
    "LocalTemperatureScaling",
    "LogitNormalization",
    "MCE",
    "MDCA",
    "MMCE",
    "MatrixScaling",
    "MbLS",
    "MeanConfidence",
    "Monitor",
    "MonteCarloDropout",
    "MultiLabel",
    "NACL",
    "NAURC",
    "NLL",
    "ObjectnessDeviation",
    "Overconfidence",
    "OverconfidenceError",
    "ParametrizedTemperatureScaling",
    "PerImage",
    "Predictions",
    "PriorCorrection",
    "QuadraticScaling",
    "RMSCE",
    "ReliabilityDisplay",
    "RiskAtCoverage",
    "RiskCoverageDisplay",
    "Runs",
    "SVLS",
    "ScheduledFocalModel",
    "SegmentationDisplay",
    "SelectiveClassifier",
    "SharpnessAwareModel",
    "SmoothECE",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "Underconfidence",
    "UniformityPenalty",
    "VectorScaling",
    "VennAbers",
    "__version__",
    "aece",
    "aurc",
    "brier_score",
    "by_group",
    "choose_calibrator",
    "choose_threshold",
    "compare",
    "config",
    "ece",
    "evaluate",
    "export",
    "nll",
    "plan",
    "report",
]

if not TYPE_CHECKING:
    # All at once where Keras is there, else when it comes or a name is used.
    # Help of the command, and what handles records, do without Keras.
    __getattr__, __dir__ = Whole(
        __name__,
        *("calibrators", "data", "detection", "ensembles"),
        *("exporting", "functional", "labels", "losses", "metrics"),
        *("monitoring", "plots", "predictions", "reporting", "selection"),
        *("text", "training"),
        extras={"beam": "apache_beam", "sklearn": "sklearn"},
    ).hooks()

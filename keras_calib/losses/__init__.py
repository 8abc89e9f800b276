"""Losses that calibrate during training: a function and a class for each.

- Smoothed labels: `LabelSmoothing`, `label_smoothing`,
  `AdaptiveLabelSmoothing`, `adaptive_label_smoothing`, `LabelRelaxation`,
  `label_relaxation`.
- Margins: `ACLS`, `acls`, `MbLS`, `mbls`, `CRLMargin`, `crl_margin`,
  `correctness_ranking`.
- Focal losses: `FocalLoss`, `focal_loss`, `FLSD`, `flsd`, `InverseFocalLoss`,
  `inverse_focal_loss`, `adaptive_focal`.
- Penalties and scores: `BrierLoss`, `brier_loss`, `ConfidencePenalty`,
  `confidence_penalty`, `UniformityPenalty`, `uniformity_penalty`, `CPC`, `cpc`.
- Terms over a batch: `MMCE`, `mmce`, `MDCA`, `mdca`, `DCA`, `dca`, `L1ACE`,
  `l1_ace`.
- Segmentation: `NACL`, `nacl`, `SVLS`, `svls`.
- Targets: `smooth_labels`, `objectness_targets`, `cape_targets`, `cape_loss`.
- What a loss does: `effective_labels`, `EffectiveTargets`,
  `regularizer_histogram`, `RegularizerCounts`.
- Bases: `PerSampleLoss`, `BatchCoupledLoss`.

Lives here: losses per sample, losses with a term over the whole batch, and what
a loss adds to cross entropy (`regularizers`). Not here: the models that some
losses need (`training`).
Floor: above `formulas` and `predictions`, beside `metrics` and `data`.
"""

from keras_calib.formulas.targets import (
    cape_targets,
    objectness_targets,
    smooth_labels,
)
from keras_calib.losses.average_calibration import L1ACE, l1_ace
from keras_calib.losses.base import BatchCoupledLoss, PerSampleLoss
from keras_calib.losses.batch_terms import DCA, MDCA, MMCE, dca, mdca, mmce
from keras_calib.losses.crl import CRLMargin, correctness_ranking, crl_margin
from keras_calib.losses.entropy import (
    BrierLoss,
    ConfidencePenalty,
    LabelRelaxation,
    UniformityPenalty,
    brier_loss,
    confidence_penalty,
    label_relaxation,
    uniformity_penalty,
)
from keras_calib.losses.focal import (
    FLSD,
    FocalLoss,
    InverseFocalLoss,
    adaptive_focal,
    flsd,
    focal_loss,
    inverse_focal_loss,
)
from keras_calib.losses.margin import ACLS, MbLS, acls, mbls
from keras_calib.losses.pairwise import CPC, cpc
from keras_calib.losses.regularizers import (
    EffectiveTargets,
    RegularizerCounts,
    effective_labels,
    regularizer_histogram,
)
from keras_calib.losses.smoothing import (
    AdaptiveLabelSmoothing,
    LabelSmoothing,
    adaptive_label_smoothing,
    cape_loss,
    label_smoothing,
)
from keras_calib.losses.spatial import NACL, SVLS, nacl, svls

__all__ = [
    "ACLS",
    "AdaptiveLabelSmoothing",
    "BatchCoupledLoss",
    "BrierLoss",
    "CPC",
    "CRLMargin",
    "ConfidencePenalty",
    "DCA",
    "EffectiveTargets",
    "FLSD",
    "FocalLoss",
    "InverseFocalLoss",
    "L1ACE",
    "LabelRelaxation",
    "LabelSmoothing",
    "MDCA",
    "MMCE",
    "MbLS",
    "NACL",
    "PerSampleLoss",
    "RegularizerCounts",
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
    "effective_labels",
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
    "regularizer_histogram",
    "smooth_labels",
    "svls",
    "uniformity_penalty",
]

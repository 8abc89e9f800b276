"""Analysis of losses and networks: effective labels, activation maps.

Lives here: arrays and sums that `plots` draws. Not here: pictures (`plots`)
and the formulas of the losses themselves (`losses`, `formulas`).
Floor: above `losses` and `predictions`, beside `selection` and `training`.
"""

from keras_calib.analysis.activation_maps import class_activation_maps
from keras_calib.analysis.regularizers import (
    EffectiveLabels,
    RegularizerHistogram,
    effective_labels,
    inactive_share,
    per_sample_losses,
    prediction_flips,
    regularizer_histogram,
)

__all__ = [
    "EffectiveLabels",
    "RegularizerHistogram",
    "class_activation_maps",
    "effective_labels",
    "inactive_share",
    "per_sample_losses",
    "prediction_flips",
    "regularizer_histogram",
]

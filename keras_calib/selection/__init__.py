"""Selection: when a model should abstain, and what that guarantees.

- Layers: `SelectiveClassifier`, `LogitNormalization`.
- Thresholds: `choose_threshold`, `choose_threshold_for_mixtures`,
  `choose_threshold_for_prior`, `control_risks`.
- Planning: `plan`.
- Results: `Choice`, `Target`, `ThresholdTable`, `SampleSizePlan`, `LabelTable`,
  `SizeTable`.

Lives here: scores with a threshold, guarantees, `SelectiveClassifier`. Not
here: the scores (`formulas`) and served files (`exporting`).
Floor: above `calibrators` and `metrics`, beside `training`.
"""

from typing import TYPE_CHECKING

from keras_calib.backend.late import late_names

if TYPE_CHECKING:
    from keras_calib.selection.choice import Choice, ThresholdTable
    from keras_calib.selection.classifier import SelectiveClassifier, Target
    from keras_calib.selection.normalization import LogitNormalization
    from keras_calib.selection.planning import (
        LabelTable,
        SampleSizePlan,
        SizeTable,
        plan,
    )
    from keras_calib.selection.risks import control_risks
    from keras_calib.selection.shift import (
        choose_threshold_for_mixtures,
        choose_threshold_for_prior,
    )
    from keras_calib.selection.thresholds import choose_threshold

__all__ = [
    "Choice",
    "LabelTable",
    "LogitNormalization",
    "SampleSizePlan",
    "SelectiveClassifier",
    "SizeTable",
    "Target",
    "ThresholdTable",
    "choose_threshold",
    "choose_threshold_for_mixtures",
    "choose_threshold_for_prior",
    "control_risks",
    "plan",
]

__getattr__ = late_names(
    __name__,
    {
        "choice": "Choice ThresholdTable",
        "classifier": "SelectiveClassifier Target",
        "normalization": "LogitNormalization",
        "planning": "LabelTable SampleSizePlan SizeTable plan",
        "risks": "control_risks",
        "shift": "choose_threshold_for_mixtures choose_threshold_for_prior",
        "thresholds": "choose_threshold",
    },
)

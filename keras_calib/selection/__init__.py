"""Selection: when a model should abstain, and what that guarantees.

Lives here: scores with a threshold, guarantees, `SelectiveClassifier`. Not
here: the scores (`formulas`) and served files (`exporting`).
Floor: above `calibrators` and `metrics`, beside `training`.
"""

from typing import TYPE_CHECKING

from keras_calib.backend.late import late_names

if TYPE_CHECKING:
    from keras_calib.selection.classifier import SelectiveClassifier
    from keras_calib.selection.cost_records import choose_threshold_by_cost
    from keras_calib.selection.group_names import combined_groups
    from keras_calib.selection.group_thresholds import (
        GroupThresholds,
        choose_group_thresholds,
    )
    from keras_calib.selection.normalization import LogitNormalization
    from keras_calib.selection.planning import (
        LabelTable,
        Plan,
        SizeTable,
        plan,
    )
    from keras_calib.selection.risks import ControlledRisks, control_risks
    from keras_calib.selection.shift import (
        choose_threshold_for_mixtures,
        choose_threshold_for_prior,
    )
    from keras_calib.selection.shifted_facts import (
        MixtureThreshold,
        PriorThreshold,
    )
    from keras_calib.selection.thresholds import (
        ChosenThreshold,
        ThresholdTable,
        choose_threshold,
    )

__all__ = [
    "ChosenThreshold",
    "ControlledRisks",
    "GroupThresholds",
    "LabelTable",
    "LogitNormalization",
    "MixtureThreshold",
    "Plan",
    "PriorThreshold",
    "SelectiveClassifier",
    "SizeTable",
    "ThresholdTable",
    "choose_group_thresholds",
    "choose_threshold",
    "choose_threshold_by_cost",
    "choose_threshold_for_mixtures",
    "choose_threshold_for_prior",
    "combined_groups",
    "control_risks",
    "plan",
]

__getattr__ = late_names(
    __name__,
    {
        "classifier": "SelectiveClassifier",
        "cost_records": "choose_threshold_by_cost",
        "group_names": "combined_groups",
        "group_thresholds": "GroupThresholds choose_group_thresholds",
        "normalization": "LogitNormalization",
        "planning": "LabelTable Plan SizeTable plan",
        "risks": "ControlledRisks control_risks",
        "shift": "choose_threshold_for_mixtures choose_threshold_for_prior",
        "shifted_facts": "MixtureThreshold PriorThreshold",
        "thresholds": "ChosenThreshold ThresholdTable choose_threshold",
    },
)

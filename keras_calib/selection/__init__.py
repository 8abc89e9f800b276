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
    from keras_calib.selection.detection_class_thresholds import (
        DetectionClassThresholds,
    )
    from keras_calib.selection.detection_class_thresholds import (
        choose_detection_class_thresholds,
    )
    from keras_calib.selection.detection_selector import CalibratedDecoder
    from keras_calib.selection.detection_selector import DetectionSelector
    from keras_calib.selection.detection_thresholds import DetectionThreshold
    from keras_calib.selection.detection_thresholds import (
        choose_detection_threshold,
    )
    from keras_calib.selection.group_names import combined_groups
    from keras_calib.selection.group_thresholds import GroupThresholds
    from keras_calib.selection.group_thresholds import choose_group_thresholds
    from keras_calib.selection.label_thresholds import LabelThresholds
    from keras_calib.selection.multi_label import MultiLabel
    from keras_calib.selection.multi_label_selector import MultiLabelSelector
    from keras_calib.selection.normalization import LogitNormalization
    from keras_calib.selection.plan_tables import LabelTable
    from keras_calib.selection.plan_tables import Plan
    from keras_calib.selection.plan_tables import SizeTable
    from keras_calib.selection.planning import plan
    from keras_calib.selection.risks import ControlledRisks
    from keras_calib.selection.risks import control_risks
    from keras_calib.selection.shift import choose_threshold_for_mixtures
    from keras_calib.selection.shift import choose_threshold_for_prior
    from keras_calib.selection.shifted_facts import MixtureThreshold
    from keras_calib.selection.shifted_facts import PriorThreshold
    from keras_calib.selection.thresholds import ChosenThreshold
    from keras_calib.selection.thresholds import ThresholdTable
    from keras_calib.selection.thresholds import choose_threshold

__all__ = [
    "CalibratedDecoder",
    "ChosenThreshold",
    "ControlledRisks",
    "DetectionClassThresholds",
    "DetectionSelector",
    "DetectionThreshold",
    "GroupThresholds",
    "LabelTable",
    "LabelThresholds",
    "LogitNormalization",
    "MixtureThreshold",
    "MultiLabel",
    "MultiLabelSelector",
    "Plan",
    "PriorThreshold",
    "SelectiveClassifier",
    "SizeTable",
    "ThresholdTable",
    "choose_detection_class_thresholds",
    "choose_detection_threshold",
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
        "detection_class_thresholds": (
            "DetectionClassThresholds choose_detection_class_thresholds"
        ),
        "detection_selector": "CalibratedDecoder DetectionSelector",
        "detection_thresholds": (
            "DetectionThreshold choose_detection_threshold"
        ),
        "group_names": "combined_groups",
        "group_thresholds": "GroupThresholds choose_group_thresholds",
        "label_thresholds": "LabelThresholds",
        "multi_label": "MultiLabel",
        "multi_label_selector": "MultiLabelSelector",
        "normalization": "LogitNormalization",
        "plan_tables": "LabelTable Plan SizeTable",
        "planning": "plan",
        "risks": "ControlledRisks control_risks",
        "shift": "choose_threshold_for_mixtures choose_threshold_for_prior",
        "shifted_facts": "MixtureThreshold PriorThreshold",
        "thresholds": "ChosenThreshold ThresholdTable choose_threshold",
    },
)

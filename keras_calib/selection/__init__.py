"""Selection: when a model should abstain, and what that guarantees.

Lives here: scores with a threshold, guarantees, `SelectiveClassifier`. Not
here: the scores (`formulas`) and served files (`exporting`).
Floor: above `calibrators` and `metrics`, beside `training`.
"""

import importlib
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from keras_calib.selection.classifier import SelectiveClassifier
    from keras_calib.selection.cost_records import choose_threshold_by_cost
    from keras_calib.selection.group_names import combined_groups
    from keras_calib.selection.group_thresholds import GroupThresholds
    from keras_calib.selection.group_thresholds import choose_group_thresholds
    from keras_calib.selection.normalization import LogitNormalization
    from keras_calib.selection.plan_tables import LabelTable
    from keras_calib.selection.plan_tables import Plan
    from keras_calib.selection.plan_tables import SizeTable
    from keras_calib.selection.planning import plan
    from keras_calib.selection.risks import ControlledRisks
    from keras_calib.selection.risks import control_risks
    from keras_calib.selection.thresholds import ChosenThreshold
    from keras_calib.selection.thresholds import ThresholdTable
    from keras_calib.selection.thresholds import choose_threshold

__all__ = [
    "ChosenThreshold",
    "ControlledRisks",
    "GroupThresholds",
    "LabelTable",
    "LogitNormalization",
    "Plan",
    "SelectiveClassifier",
    "SizeTable",
    "ThresholdTable",
    "choose_group_thresholds",
    "choose_threshold",
    "choose_threshold_by_cost",
    "combined_groups",
    "control_risks",
    "plan",
]

_MODULES = {
    "ControlledRisks": "risks",
    "GroupThresholds": "group_thresholds",
    "LabelTable": "plan_tables",
    "LogitNormalization": "normalization",
    "Plan": "plan_tables",
    "SelectiveClassifier": "classifier",
    "SizeTable": "plan_tables",
    "choose_group_thresholds": "group_thresholds",
    "choose_threshold_by_cost": "cost_records",
    "combined_groups": "group_names",
    "control_risks": "risks",
    "plan": "planning",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: some need Keras."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "thresholds")
    found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found

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
    from keras_calib.selection.normalization import LogitNormalization
    from keras_calib.selection.thresholds import ChosenThreshold
    from keras_calib.selection.thresholds import ThresholdTable
    from keras_calib.selection.thresholds import choose_threshold

__all__ = [
    "ChosenThreshold",
    "LogitNormalization",
    "SelectiveClassifier",
    "ThresholdTable",
    "choose_threshold",
]

_MODULES = {
    "LogitNormalization": "normalization",
    "SelectiveClassifier": "classifier",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: some need Keras."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "thresholds")
    found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = found
    return found

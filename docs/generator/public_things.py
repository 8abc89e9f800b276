"""Public names: where they stand, and what they are."""

import importlib
from functools import cache

import keras_calib
from keras_calib.inputs.options import ArrayOptions

# What users do, in order, to the namespaces for it with their titles.
TASKS = {
    "Train": {
        "losses": "Losses",
        "training": "Training models and backups",
        "ensembles": "Ensembles",
        "data": "Data",
    },
    "Measure": {
        "metrics": "Metrics",
        "functional": "Functions of arrays",
        "predictions": "Predictions",
        "beam": "Apache Beam",
    },
    "Repair": {"calibrators": "Calibrators", "sklearn": "scikit-learn"},
    "Abstain": {"selection": "Selection"},
    "Watch": {"monitoring": "Monitoring"},
    "Show": {"plots": "Displays", "reporting": "Reports"},
    "Ship": {"exporting": "Export"},
    "Other subjects": {
        "detection": "Boxes",
        "labels": "Several labels",
        "text": "Text",
    },
}


@cache
def public_things():
    """Each public name to its namespace and what it is.

    A class and the function of the same quantity stand side by side.
    """
    found = {}
    for space in (space for spaces in TASKS.values() for space in spaces):
        module = importlib.import_module(f"keras_calib.{space}")
        names = sorted(module.__all__, key=_in_order)
        found |= {name: (space, getattr(module, name)) for name in names}
    options = {"ArrayOptions": ("functional", ArrayOptions)}
    left = {*keras_calib.__all__} - {*found, "__version__", "config"}
    if left:
        raise ValueError(f"no page has the names {sorted(left)}")
    return found | options


def address_of(name):
    """As users write it, such as `keras_calib.functional.mce`."""
    if name in keras_calib.__all__:
        return f"keras_calib.{name}"
    return f"keras_calib.{public_things()[name][0]}.{name}"


def _in_order(name):
    return name.replace("_", "").lower(), name

"""Every public name, the namespace in which it stands, and what it is."""

import importlib
from typing import Any

import keras_calib

NAMESPACES = (
    "calibrators",
    "data",
    "detection",
    "ensembles",
    "exporting",
    "functional",
    "labels",
    "losses",
    "metrics",
    "monitoring",
    "plots",
    "predictions",
    "reporting",
    "selection",
    "text",
    "training",
)
# Those that need a package which not everybody has.
LATE_NAMESPACES = ("beam", "sklearn")

# Without those of `LATE_NAMESPACES`.
HOMES: dict[str, str] = {
    name: space
    for space in NAMESPACES
    for name in importlib.import_module(f"keras_calib.{space}").__all__
}
PUBLIC: dict[str, Any] = {
    name: getattr(getattr(keras_calib, space), name)
    for name, space in HOMES.items()
}

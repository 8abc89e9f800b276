"""Which classes of a data set are kept and merged, read from a JSON file."""

import json
from pathlib import Path

from absl import app

import keras_calib

_KINDS = {"merge": dict, "drop": list, "hierarchy": str}


def read_class_map(path, class_names):
    """The `ClassMapping` that the flag `--class_map` names.

    Args:
        path: A JSON file. Either OpenImages' `bbox_labels_600_hierarchy.json`,
            of which the classes without others below them are kept. Or an
            object with some of `merge`, `drop` and `hierarchy`. `merge` maps
            a class to the one it joins, and `drop` is a list of classes.
            `hierarchy` is the path of such a hierarchy, relative to this file.
        class_names: Names of the classes of the data set. Those of OpenImages
            are identifiers as in its hierarchy: `/m/011k07`.

    Raises:
        app.UsageError: If there is no such file, or it is something else.
        ValueError: If it names classes that there are not, or none is left.
    """
    content = _read(path)
    if "LabelName" in content:
        return keras_calib.data.class_map(class_names, hierarchy=content)
    wrong = [
        name
        for name, value in content.items()
        if not isinstance(value, _KINDS.get(name, ()))
    ]
    if wrong or not content:
        raise app.UsageError(
            "`--class_map` must be OpenImages' hierarchy, or have 'merge' "
            "(an object), 'drop' (a list) or 'hierarchy' (a path). Received: "
            f"--class_map={path}, with {wrong or 'nothing'}"
        )
    if "hierarchy" in content:
        below = _read(Path(path).parent / content["hierarchy"])
        content = {**content, "hierarchy": below}
    return keras_calib.data.class_map(class_names, **content)


def _read(path):
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise app.UsageError(
            f"`--class_map` must be a JSON file that can be read. Received: "
            f"{path}, {error}"
        ) from error
    if not isinstance(found, dict):
        raise app.UsageError(
            "`--class_map` must hold an object. Received: "
            f"{path}, with a {type(found).__name__}"
        )
    return found

"""Files of a monitor's state."""

import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import replacing

__all__ = [
    "VERSION",
    "check_same",
    "load_parts",
    "read_state",
    "state_of",
    "write_state",
]

VERSION = 1
# Name of the configuration in a state: JSON.
_CONFIG = "config"


def write_state(path: Any, state: Mapping[str, Any]) -> None:
    """Writes a state as one file, which replaces `path` when complete."""
    with replacing(path) as file:
        np.savez_compressed(file, **state)


def read_state(path: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Configuration and state of a file; ValueError if it is not one."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            state = dict(arrays)
        config = _config_of(state)
    except (
        EOFError,
        KeyError,
        TypeError,
        ValueError,
        zipfile.BadZipFile,
    ) as error:
        raise value_error(
            "`path` must be a file that `Monitor.save` wrote", path=str(path)
        ) from error
    if config.get("version") != VERSION:
        raise value_error(
            "`path` must be of a version that this one knows: use the version "
            "of keras-calib that wrote it",
            version=config.get("version"),
            known=VERSION,
        )
    return config, state


def check_same(config: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raises ValueError for a state of another version or configuration."""
    try:
        found = _config_of(state)
    except (KeyError, ValueError) as error:
        raise value_error(
            "`state` must be a `state_dict` of a `Monitor`",
            names=sorted(state)[:5],
        ) from error
    differ = {
        name: (found.get(name), config.get(name))
        for name in {**config, **found}
        if found.get(name) != config.get(name)
    }
    if differ:
        raise value_error(
            "`state` must be of a monitor with the same arguments and version "
            "(there, here); `Monitor.load` takes them from the file",
            **differ,
        )


def state_of(
    config: Mapping[str, Any], parts: Mapping[str, Any]
) -> dict[str, Any]:
    """A configuration and the states of parts, as arrays by name."""
    state = {_CONFIG: np.array(json.dumps(config))}
    for name, part in parts.items():
        for key, value in part.state_dict().items():
            state[f"{name}.{key}"] = np.asarray(value)
    return state


def load_parts(parts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Replaces the states of parts, or none if a name is not there."""
    wanted = {_CONFIG, *state_of({}, parts)}
    if missing := sorted(wanted - state.keys()):
        raise value_error(
            "`state` must have the arrays of a monitor with these arguments",
            missing=missing,
        )
    for name, part in parts.items():
        keys = part.state_dict()
        part.load_state_dict({key: state[f"{name}.{key}"] for key in keys})


def _config_of(state: Mapping[str, Any]) -> dict[str, Any]:
    config = json.loads(str(state[_CONFIG]))
    if not isinstance(config, dict):
        raise value_error("`config` must be an object", config=config)
    return config

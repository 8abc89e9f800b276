"""Files of a monitor's state."""

import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import replacing

__all__ = ["VERSION", "check_same", "read_state", "write_state"]

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
        return json.loads(str(state[_CONFIG])), state
    except (EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise value_error(
            "`path` must be a file that `Monitor.save` wrote", path=str(path)
        ) from error


def check_same(config: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raises ValueError for a state of another version or configuration."""
    if _CONFIG not in state:
        raise value_error(
            "`state` must be a `state_dict` of a `Monitor`",
            names=sorted(state)[:5],
        )
    found = json.loads(str(state[_CONFIG]))
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

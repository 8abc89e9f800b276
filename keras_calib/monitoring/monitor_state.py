"""Files of a monitor's state."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import Stored, reading_npz, replacing
from keras_calib.numerics.arrays import as_array

__all__ = [
    "VERSION",
    "differences",
    "load_parts",
    "read_state",
    "state_of",
    "write_state",
]

VERSION = 1
# A file is compressed; ids are random numbers, which stay as they are.
_TIMES = 16
# Name of the configuration in a state: JSON.
_CONFIG = "config"


def write_state(path: Any, state: Mapping[str, Any]) -> None:
    """Writes a state as one file, which replaces `path` when complete."""
    with replacing(path) as file:
        np.savez_compressed(file, **state)


def read_state(path: Any, make: Callable[[dict[str, Any]], Any]) -> Any:
    """The monitor of a file, which `make` makes of a configuration."""
    rule = "`path` must be a file that `Monitor.save` wrote"
    with reading_npz(path, rule, times=_TIMES) as file:
        config = _config_of({_CONFIG: file.read(_CONFIG, Stored("U", ()))})
        if known := config.get("version") == VERSION:
            made = make(config)
            _load(made._parts(), file.names, file.read)
    if known:
        return made
    raise value_error(
        "`path` must be of a version that this one knows: use the version "
        "of keras-calib that wrote it",
        version=config.get("version"),
        known=VERSION,
    )


def load_parts(
    config: Mapping[str, Any],
    parts: Mapping[str, Any],
    state: Mapping[str, Any],
) -> None:
    """Replaces the states of parts; ValueError for another configuration."""
    try:
        found = _config_of(state)
    except (KeyError, ValueError) as error:
        raise value_error(
            "`state` must be a `state_dict` of a `Monitor`",
            names=sorted(state)[:5],
        ) from error
    if differ := differences(config, found):
        raise value_error(
            "`state` must be of a monitor with the same arguments and version "
            "(there, here); `Monitor.load` takes them from the file",
            **differ,
        )
    _load(parts, state, lambda k, x: x.check(k, as_array(state[k], k).copy()))


def differences(
    config: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """What differs between two configurations: there, and here."""
    return {
        name: (other.get(name), config.get(name))
        for name in {**config, **other}
        if other.get(name) != config.get(name)
    }


def state_of(
    config: Mapping[str, Any], parts: Mapping[str, Any]
) -> dict[str, Any]:
    """A configuration and the states of parts, as arrays by name."""
    state = {_CONFIG: np.array(json.dumps(config))}
    for name, part in parts.items():
        for key, value in part.state_dict().items():
            state[f"{name}.{key}"] = np.asarray(value)
    return state


def _load(
    parts: Mapping[str, Any], names: Iterable[str], read: Callable[..., Any]
) -> None:
    stored = {
        f"{name}.{key}": each
        for name, part in parts.items()
        for key, each in part.stored().items()
    }
    wanted, there = {*stored}, {*names} - {_CONFIG}
    if wanted != there:
        raise value_error(
            "`state` must have the arrays of a monitor with these arguments, "
            "and no others",
            missing=sorted(wanted - there),
            unknown=sorted(there - wanted),
        )
    found = {key: read(key, each) for key, each in stored.items()}
    for name, part in parts.items():
        keys = part.stored()
        part.load_state_dict({key: found[f"{name}.{key}"] for key in keys})


def _config_of(state: Mapping[str, Any]) -> dict[str, Any]:
    config = json.loads(str(state[_CONFIG]))
    if not isinstance(config, dict):
        raise value_error("`config` must be an object", config=config)
    return config

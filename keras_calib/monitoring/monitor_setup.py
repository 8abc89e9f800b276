"""What a monitor watches, the delta of each hypothesis, and its files."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from keras_calib.backend.errors import type_error, value_error, warn
from keras_calib.backend.files import Stored, reading_npz
from keras_calib.inputs.checks import (
    check_above,
    check_at_least,
    check_at_most,
    check_integer,
    check_share,
)
from keras_calib.monitoring.watch import (
    CalibrationHolds,
    CoverageHolds,
    RiskHolds,
)
from keras_calib.numerics.arrays import as_array
from keras_calib.selection.choice import Choice

# Of coverage, half is for the interval of the expected share.
_PARTS = {"risk": 0.5, "calibration": 0.25, "coverage": 0.25}
_VERSION = 1
# A file is compressed; ids are random numbers, which stay as they are.
_TIMES = 16
# Name of the configuration in a state: JSON.
_CONFIG = "config"


class Chosen(Protocol):
    """A selector, or the threshold of a file: what has a choice."""

    @property
    def chosen(self) -> Choice | None:
        """What was chosen; None without a fit."""


class Setup(NamedTuple):
    """Arguments of a monitor, resolved."""

    risk: float | None
    coverage: tuple[float, float] | None
    delta: float
    tolerance: float | None
    max_waiting: int
    parts: dict[str, float]

    @classmethod
    def of(
        cls,
        selector: "Chosen | Choice | None",
        risk: float | None,
        coverage: tuple[float, float] | None,
        delta: float,
        tolerance: float | None,
        max_waiting: int,
    ) -> Self:
        """Resolves the arguments of a `Monitor`, and checks them."""
        delta = _inside("delta", delta)
        check_integer("max_waiting", max_waiting, 0)
        chosen = _chosen_of(selector)
        if risk is None and chosen is not None:
            # None without a guarantee, and with costs, which certify another.
            risk = chosen.risk_limit
            if risk is None:
                warn(
                    "`Monitor` does not watch the risk, as the selector has no "
                    "certified one: fit it with `risk` and `delta`, or give "
                    "`risk`"
                )
        if risk is not None:
            risk = _inside("risk", risk)
        if tolerance is not None:
            tolerance = _inside("tolerance", tolerance, check_at_least)
        given = {
            "risk": risk is not None,
            "calibration": tolerance is not None,
            "coverage": coverage is not None or chosen is not None,
        }
        whole = sum(x for name, x in _PARTS.items() if given[name])
        if not whole:
            raise value_error(
                "`selector`, `risk`, `coverage` or `tolerance` must be given",
                selector=selector,
            )
        parts = {k: delta * x / whole for k, x in _PARTS.items() if given[k]}
        if coverage is not None:
            coverage = _interval(coverage)
        elif chosen is not None:
            parts["coverage"] /= 2.0
            # The data chose the threshold, so the interval is of all at once
            # (Dvoretzky, Kiefer and Wolfowitz, with Massart's constant).
            part, share = parts["coverage"], float(chosen.coverage)
            width = math.sqrt(math.log(2.0 / part) / (2.0 * chosen.num_samples))
            coverage = max(share - width, 0.0), min(share + width, 1.0)
        return cls(risk, coverage, delta, tolerance, int(max_waiting), parts)

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Self:
        """That of a `config`, for a file; checked as arguments are."""
        if config.keys() - {"version"} != {*cls._fields}:
            raise value_error(
                "`path` must be a file that `Monitor.save` wrote, with all "
                "arguments",
                names=sorted(config),
            )
        found = {name: config[name] for name in cls._fields}
        given = found.pop("parts")
        made = cls.of(None, **found)
        # Half of it was spent if the data of a selector gave the interval.
        for share in (1.0, 0.5):
            parts = {
                name: part * (share if name == "coverage" else 1.0)
                for name, part in made.parts.items()
            }
            if parts == given:
                return made._replace(parts=parts)
        raise value_error("`parts` must be those of `delta`", parts=given)

    def config(self) -> dict[str, Any]:
        """The arguments as JSON can hold them."""
        found = self._asdict()
        if self.coverage is not None:
            found["coverage"] = [*self.coverage]
        return {"version": _VERSION, **found}

    def marks(self) -> np.ndarray:
        """Three numbers that tell these arguments from others, float64."""
        text = json.dumps(self.config(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).digest()
        return np.frombuffer(digest[:6], "<u2").astype("float64")

    def told(self) -> str:
        """What is watched, in words."""
        ends = [f"{x:.3g}" for x in self.coverage or ()]
        told = {
            "risk": f"risk <= {self.risk:.3g}" if self.risk else "",
            "calibration": f"calibration within {self.tolerance}",
            "coverage": f"coverage in [{', '.join(ends)}]",
        }
        return ", ".join(told[name] for name in self.parts)

    def hypotheses(self) -> dict[str, Any]:
        """Hypotheses by name, the risk first."""
        found: dict[str, Any] = {}
        if self.risk is not None:
            found["risk"] = RiskHolds(self.risk)
        if self.tolerance is not None:
            found["calibration"] = CalibrationHolds(self.tolerance)
        if self.coverage is not None:
            found["coverage"] = CoverageHolds(*self.coverage)
        return found


def alike(monitors: Any, kind: type) -> list[Any]:
    """Monitors to merge, as a list, if they have the same arguments."""
    listed = [*monitors] if isinstance(monitors, Iterable) else [monitors, None]
    if not all(isinstance(x, kind) for x in listed):
        raise type_error(
            "`monitors` must be a list of `Monitor`", monitors=monitors
        )
    if not listed:
        raise value_error("`monitors` must not be empty", monitors=monitors)
    configs = [x._setup.config() for x in listed]
    for config in configs:
        if differ := differences(configs[0], config):
            raise value_error(
                "`monitors` must have the same arguments (here, in the first)",
                **differ,
            )
    return listed


def _chosen_of(selector: Any) -> Choice | None:
    if selector is None:
        return None
    chosen = getattr(selector, "chosen", selector)
    if chosen is None:
        raise value_error(
            "`selector` must have been fitted; without a fit, give `risk` "
            "and `coverage`",
            selector=selector,
        )
    if not isinstance(chosen, Choice):
        raise type_error(
            "`selector` must be a `SelectiveClassifier` or its `chosen`; of a "
            "file of `keras-calib threshold`, what "
            "`exporting.load_threshold(path)` returns",
            selector=selector,
        )
    if isinstance(chosen.threshold, tuple):
        raise value_error(
            "`selector` must have one threshold for all; with thresholds of "
            "groups use one monitor per group: give `risk` and `coverage`",
            groups=chosen.group,
        )
    if chosen.kind not in ("scores", "costs"):
        raise value_error(
            "`selector` must have a threshold for data like those of its fit; "
            "after `target_prior` or `one_threshold` give `risk`, and "
            "`coverage` if you know it",
            kind=chosen.kind,
            limit=chosen.limit,
        )
    return chosen


def _interval(coverage: Any) -> tuple[float, float]:
    try:
        low, high = coverage
    except (TypeError, ValueError) as error:
        raise type_error(
            "`coverage` must be a pair: least and largest accepted share",
            coverage=coverage,
        ) from error
    for end in (low, high):
        check_share("coverage", end)
    if low > high or (low, high) == (0.0, 1.0):
        rule = "`coverage` must be in order, least share first, and not (0, 1)"
        raise value_error(rule, coverage=coverage)
    return float(low), float(high)


def _inside(name: str, value: Any, check_low: Any = check_above) -> float:
    check_low(name, value, 0.0)
    check_at_most(name, value, 1.0)
    if value == 1.0:
        raise value_error(f"`{name}` must be < 1", **{name: value})
    # A float of NumPy is no number of JSON.
    return float(value)


def read_state(path: Any, make: Callable[[dict[str, Any]], Any]) -> Any:
    """The monitor of a file, which `make` makes of a configuration."""
    rule = "`path` must be a file that `Monitor.save` wrote"
    with reading_npz(path, rule, times=_TIMES) as file:
        config = _config_of({_CONFIG: file.read(_CONFIG, Stored("U", ()))})
        if known := config.get("version") == _VERSION:
            made = make(config)
            _load(made._parts(), file.names, file.read)
    if known:
        return made
    raise value_error(
        "`path` must be of a version that this one knows: use the version "
        "of keras-calib that wrote it",
        version=config.get("version"),
        known=_VERSION,
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

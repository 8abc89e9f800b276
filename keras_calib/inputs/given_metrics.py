"""The judge of what may be given as a metric.

That is a key, a function of whole arrays, a class or a new object. Metrics and
exact functions tell their keys here, so that all packages can find them.
"""

import difflib
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.keywords import answering
from keras_calib.backend.late import keras_module
from keras_calib.inputs.options import GivenTogether, ReadOptions, check_classes
from keras_calib.numerics.arrays import to_numpy

metrics = keras_module("keras.metrics")

_CLASSES: dict[str, type] = {}
_FUNCTIONS: dict[str, Callable] = {}


def tell_class(key: str, cls: type) -> None:
    """Tell the key of a metric class; the first class of a key has it."""
    _CLASSES.setdefault(key, cls)


def tell_functions(package: str) -> None:
    """Tell the functions of a package that give one number of `labels`."""
    module = sys.modules[package]
    for name in module.__all__:
        function = answering(getattr(module, name))
        # The one that keys stand for is the one that users call.
        setattr(module, name, function)
        told = getattr(function, "__annotations__", {})
        # The first annotation is that of the first argument.
        if told.get("return") is float and next(iter(told)) == "labels":
            _FUNCTIONS[name] = function


def get(metric: Any, **options: Any) -> Any:
    """Return a new metric of a key, a function, a class or an object.

    Use it where code takes a metric as an argument, as `keras.metrics.get`.
    Every call makes a new metric, so that no two uses share a state.

    Args:
        metric: A key such as `"ece"`, a function of this library such as
            `keras_calib.ece`, a metric class, or a metric object that has no
            samples yet. Classes and objects may be those of Keras.
        **options: Arguments of the class, such as `from_logits`. An object has
            its own.

    Returns:
        A metric object. What has no class, such as your own function
        `(labels, outputs, ...)`, is returned as it is.

    Raises:
        TypeError: If `metric` is something else, or an object with options.
        ValueError: If a key is unknown, or an object has samples.

    Example:

    >>> import keras_calib
    >>> keras_calib.metrics.get("ece", num_bins=10).name
    'ece'

    Reference:
        Keras, `keras.metrics.get`, https://keras.io/api/metrics/
    """
    return _get("metric", metric, options)


def _get(argument: str, metric: Any, options: dict[str, Any]) -> Any:
    key = told_key(argument, metric)
    if key is not None and not isinstance(metric, type):
        metric = _CLASSES.get(key) or _FUNCTIONS[key]
    if isinstance(metric, type) and issubclass(metric, metrics.Metric):
        for x in inspect.signature(metric).parameters.values():
            needed = x.default is x.empty and x.kind is x.POSITIONAL_OR_KEYWORD
            if needed and x.name not in options:
                raise type_error(
                    f"`{argument}` must be an object, as its class needs more: "
                    f"`{metric.__name__}({x.name}=...)`",
                    missing=x.name,
                )
        return metric(**options)
    if isinstance(metric, metrics.Metric):
        if options:
            raise type_error(
                f"`{argument}` must be a key or a class to take options: an "
                "object has its own",
                options=sorted(options),
            )
        return _made_anew(argument, metric)
    if callable(metric) and not isinstance(metric, type):
        return metric
    raise type_error(
        f"`{argument}` must be a key such as 'ece', a function "
        "`(labels, outputs, ...)`, a metric class or a new metric object",
        **{argument: metric},
    )


def made(argument: str, metric: Any, reading: dict[str, Any]) -> Any:
    """A metric object; a class of this library reads outputs as is told."""
    metric = as_told(metric, reading)
    own = told_key(argument, metric) is not None
    found = _get(argument, metric, reading if own else {})
    if not isinstance(found, metrics.Metric):
        raise type_error(
            f"`{argument}` must be keys, metric classes or metric objects: a "
            "function of yours cannot be streamed",
            **{argument: metric},
        )
    return found


def as_told(metric: Any, reading: dict[str, Any]) -> Any:
    """What was given; of metrics of images the key reads as it is told."""
    return metric.as_told(reading) if hasattr(metric, "given") else metric


def of_arrays(argument: str, metric: Any, options: dict[str, Any]) -> Callable:
    """A function `(labels, outputs, **weight)` that gives one number.

    A metric object is made once and reset before each use. `weight` is
    `sample_weight`, or nothing. Errors name `labels` and `outputs`.
    """
    key = told_key(argument, metric)
    if isinstance(metric, str) and key in _FUNCTIONS:
        metric = _FUNCTIONS[key]
    if not inspect.isroutine(metric):
        as_class = {k: x for k, x in options.items() if k != "votes"}
        if options.get("votes"):
            as_class["labels"] = "votes"
        metric = _get(argument, metric, as_class)
    if not isinstance(metric, metrics.Metric):
        return lambda labels, outputs, **weight: metric(
            labels, outputs, **weight, **options
        )

    own = getattr(metric, "options", None)
    if isinstance(own, ReadOptions):
        metric.options = own._replace(names=("labels", "outputs"))

    def value(labels: Any, outputs: Any, **weight: Any) -> float:
        metric.reset_state()
        metric.update_state(labels, outputs, **weight)
        found = metric.result()
        if isinstance(found, dict):
            raise type_error(
                f"`{argument}` must have one value, not several",
                values=sorted(found),
            )
        return float(to_numpy(found))

    return value


def of_predictions(
    argument: str, metric: Any, told: GivenTogether, options: dict[str, Any]
) -> Callable:
    """A function `(sample_weight)` that gives one number of `Predictions`.

    A metric object reads as it was made to, which must be as they tell.
    """
    key = told_key(argument, metric)
    function = _FUNCTIONS.get(metric) if isinstance(metric, str) else metric
    if key is not None and inspect.isroutine(function):
        return lambda weight: function(
            told.with_columns({"sample_weight": weight}), **options
        )
    is_object = isinstance(metric, metrics.Metric)
    if not is_object or told.kind == "records":
        check_classes(told)
    reading = reading_for(argument, metric, told)
    value = of_arrays(argument, metric, {**reading, **options})
    labels, outputs = told.labels, told.outputs
    return lambda weight: value(labels, outputs, sample_weight=weight)


def reading_for(
    argument: str, metric: Any, told: GivenTogether
) -> dict[str, Any]:
    """Options to read `Predictions` by, none for an object, which has its own.

    Raises ValueError for one that reads otherwise.
    """
    if not isinstance(metric, metrics.Metric):
        return told.reading
    own, known = getattr(metric, "options", None), told.options
    if isinstance(own, ReadOptions) and any(
        getattr(own, name) != known[name]
        for name in ("from_logits", "ignore_class", "votes")
    ):
        raise value_error(
            f"`{argument}` must read outputs as the `Predictions` tell: "
            "give its class, or an object made so",
            **{argument: metric.name},
            predictions=told.reading,
        )
    return {}


def key_of(argument: str, metric: Any, known: Sequence[str]) -> str:
    """The key, among those known, of what was given as a metric."""
    key: Any = metric
    if not isinstance(metric, str):
        if isinstance(metric, metrics.Metric):
            cls = type(metric)
            anew = _made_anew(argument, metric)
            if anew.get_config() != cls().get_config():
                raise value_error(
                    f"`{argument}` must name its metrics: give the arguments "
                    f"of `{cls.__name__}` beside them",
                    **{argument: metric.name},
                )
            metric = cls
        key = told_key(argument, metric)
    if key not in known:
        raise _unknown(argument, metric if key is None else key, known)
    return key


def told_key(argument: str, metric: Any) -> str | None:
    """The key of a key, a function or a class; None if it has none."""
    if isinstance(metric, str):
        known = sorted({*_CLASSES, *_FUNCTIONS})
        if metric not in known:
            raise _unknown(argument, metric, known)
        return metric
    told = (*_CLASSES.items(), *_FUNCTIONS.items())
    return next((key for key, x in told if x is metric), None)


def _unknown(argument: str, given: Any, known: Sequence[str]) -> ValueError:
    advice = ""
    if isinstance(given, str):
        near = difflib.get_close_matches(given, known, 1)
        advice = f": did you mean {near[0]!r}?" if near else ""
    return value_error(
        f"`{argument}` must be one of {tuple(known)}{advice}",
        **{argument: given},
    )


def _made_anew(argument: str, metric: Any) -> Any:
    """A metric of the same configuration; raises if this one has samples."""
    try:
        new = type(metric).from_config(metric.get_config())
    except (TypeError, ValueError, NotImplementedError) as error:
        raise type_error(
            f"`{argument}` must be a metric that `from_config(get_config())` "
            "makes anew: give its class, or the function in it",
            type=type(metric).__name__,
        ) from error
    states = [[to_numpy(x) for x in m.variables] for m in (metric, new)]
    if len(states[0]) != len(states[1]):
        # It makes its variables with the first batch.
        states[1] = [np.zeros_like(x) for x in states[0]]
    if not all(map(np.array_equal, *states)):
        raise value_error(
            f"`{argument}` must be a metric without samples: call "
            "`reset_state()`, or give its class",
            **{argument: metric.name},
        )
    return new

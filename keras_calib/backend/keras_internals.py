"""All that is used of Keras beyond its public interface, as of Keras 3.15.

Each use says why there is no public way. Where a version has the part no
more, a function falls back as it says, or raises an error that names it.
"""

import functools
import inspect
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_calib.backend.errors import invalid

__all__ = [
    "backing_value",
    "begin_at_epoch",
    "build_from_batch",
    "callback_model",
    "compiled_metrics",
    "first_epoch",
    "in_stateless_scope",
    "keras_mask",
    "loss_tracker",
    "make_functional",
    "metrics_beside",
    "neighbours",
    "nested_layers",
    "set_direction",
    "unlock_variables",
    "unpickler",
    "updated_metrics",
]

_SEEN = "3.15"


# Metrics.


def set_direction(metric: keras.metrics.Metric, mode: str | None) -> None:
    """Tells Keras whether higher or lower values of a metric are better.

    `EarlyStopping(mode="auto")` asks for it; there is no public way to say it.
    Seen in Keras 3.15: `_direction`.
    """
    if mode is not None:
        metric._direction = {"max": "up", "min": "down"}[mode]


def metrics_beside(
    metric: keras.metrics.Metric,
) -> list[tuple[keras.metrics.Metric, str | None, bool]]:
    """All metrics of the `compile` whose update of a metric runs now.

    Keras tells a metric nothing of the others, so they are looked for among
    the callers. Empty where there are none.
    Seen in Keras 3.15: `CompileMetrics`, `_flat_metrics` and
    `_flat_weighted_metrics`.

    Returns:
        Of each, itself included: the metric, the output whose name Keras puts
        before the metric's, and whether the metric sees sample weights.
    """
    for caller in _callers():
        if type(caller).__name__ != "CompileMetrics":
            continue
        found = [
            (each, getattr(group, "output_name", None), weighted)
            for weighted, name in (
                (False, "_flat_metrics"),
                (True, "_flat_weighted_metrics"),
            )
            for group in getattr(caller, name, ())
            for each in getattr(group, "metrics", ())
        ]
        if any(each is metric for each, _, _ in found):
            return found
    return []


def loss_tracker(model: keras.Model) -> keras.metrics.Metric:
    """The metric that shows the loss.

    `model.metrics` does not tell which. Seen in Keras 3.15: `_loss_tracker`.
    """
    return _part(model, "_loss_tracker")


def compiled_metrics(model: keras.Model) -> keras.metrics.Metric | None:
    """The metric that holds those of `compile`; None where there are none.

    `model.metrics` does not tell which. Seen in Keras 3.15: `_compile_metrics`.
    """
    return _part(model, "_compile_metrics")


def updated_metrics(model: keras.Model) -> Callable[..., tuple]:
    """What a step on JAX calls for its logs and the new state of metrics.

    Only `train_step` is public, which calls it.
    Seen in Keras 3.15: `_update_metrics_variables`.
    """
    return _part(model, "_update_metrics_variables")


# Training.


def begin_at_epoch(model: keras.Model, epoch: int | None) -> None:
    """Makes the `fit` that is beginning start with another epoch, if not None.

    A callback cannot change `initial_epoch`; `BackupAndRestore` does this too.
    Seen in Keras 3.15: `_initial_epoch`.
    """
    # Raises where no `fit` would read it.
    _part(model, "_initial_epoch")
    model._initial_epoch = epoch


def first_epoch(model: keras.Model, initial_epoch: int) -> int:
    """The first epoch: what a callback asked for, or what `fit` was given.

    See `begin_at_epoch`.
    """
    return _part(model, "_initial_epoch") or initial_epoch


def build_from_batch(model: keras.Model, batch: Any) -> None:
    """Makes the variables of a compiled model, its loss and its metrics.

    As `fit` does before its first step. Metrics have no public `build`.
    Seen in Keras 3.15: `_symbolic_build`.
    """
    _part(model, "_symbolic_build")(data_batch=batch)


def callback_model(callback: keras.callbacks.Callback) -> keras.Model:
    """The model of a callback, without bringing its state up to date.

    On JAX `callback.model` copies all variables from the device, which takes
    longer than a step. It is the fallback. Seen in Keras 3.15: `_model`.
    """
    model = getattr(callback, "_model", None)
    return callback.model if model is None else model


def neighbours(
    callback: keras.callbacks.Callback,
) -> tuple[list[keras.callbacks.Callback], list[keras.callbacks.Callback]]:
    """The callbacks before and after one in its list, while the list calls it.

    Keras shows a callback nothing of the others. Empty where no list calls.
    """
    for caller in _callers():
        if isinstance(caller, keras.callbacks.CallbackList):
            places = [x is callback for x in caller.callbacks]
            if True in places:
                place = places.index(True)
                return caller.callbacks[:place], caller.callbacks[place + 1 :]
    return [], []


# Layers and variables.


def nested_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The model and all layers inside it.

    `model.layers` has the outermost. Seen in Keras 3.15: `_flatten_layers`.
    """
    return list(_part(model, "_flatten_layers")())


def unlock_variables(layer: keras.layers.Layer) -> None:
    """Lets a layer that was built take new variables.

    Models that hold it would not see a new layer.
    Seen in Keras 3.15: `_tracker.unlock`.
    """
    _part(_part(layer, "_tracker"), "unlock")()


def unpickler() -> Callable[..., Any]:
    """What pickle calls to make a model of its bytes.

    `Model.__reduce__` names it by the class of the model, and pickle does not
    find classes that are made while a program runs.
    Seen in Keras 3.15: `Model._unpickle_model`.
    """
    return _part(keras.Model, "_unpickle_model")


def make_functional(model: keras.Model) -> None:
    """Makes a model that is given inputs and outputs one of Keras' functional.

    Keras gives the class, and all classes above it, other bases: no class of
    this library could be a base of one with its own `call` then. Here the
    model becomes one of a class of both, before its `__init__`.
    Seen in Keras 3.15: `type(keras.Model(inputs, outputs))` as one of bases.
    """
    # Past Keras' hooks on attributes, which are not there yet.
    object.__setattr__(model, "__class__", _functional_class(model.__class__))


@functools.cache
def _functional_class(cls: type) -> type:
    """The class, as one of models made of inputs and outputs."""
    point = keras.Input((1,))
    # Keras 3.12 makes no model that returns its inputs.
    functional = type(keras.Model(point, keras.layers.Identity()(point)))
    if issubclass(cls, functional):
        return cls
    kept = {name: getattr(cls, name) for name in ("__module__", "__doc__")}
    made = type(cls)(cls.__name__, (cls, functional), kept)
    made.__qualname__ = cls.__qualname__
    package, found, name = keras.saving.get_registered_name(cls).partition(">")
    if found:
        # The name now means what `load_model` is to make.
        keras.saving.register_keras_serializable(package, name)(made)
    return made


def backing_value(variable: keras.Variable) -> Any:
    """What the backend holds for a variable, None if it is not found.

    Public `variable.value` is what a stateless scope has in its place.
    Seen in Keras 3.15: `_value`.
    """
    return getattr(variable, "_value", None)


def in_stateless_scope() -> bool:
    """Whether assigned values go into a `keras.StatelessScope`.

    If that is not known True, for which callers are right and slower.
    Seen in Keras 3.15: `keras.src.backend.common.stateless_scope`.
    """
    try:
        from keras.src.backend.common import stateless_scope

        return stateless_scope.in_stateless_scope()
    except (ImportError, AttributeError):
        return True


# Masks.


def keras_mask(y_pred: Any, rank: int) -> Any:
    """The mask that layers such as `Embedding(mask_zero=True)` attach.

    bool of `rank` axes, those of the samples, or None if there is no mask.
    Seen in Keras 3.15: `keras.src.backend.get_keras_mask`.
    """
    try:
        from keras.src.backend import get_keras_mask

        mask = get_keras_mask(y_pred)
    except ImportError:
        mask = getattr(y_pred, "_keras_mask", None)
    if mask is None:
        return None
    mask = ops.cast(mask, "bool")
    if len(mask.shape) > rank:
        return ops.squeeze(mask, axis=-1)
    while len(mask.shape) < rank:
        mask = ops.expand_dims(mask, -1)
    return mask


def _callers() -> Iterator[Any]:
    """The objects whose methods are on the stack, innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        if "self" in frame.f_locals:
            yield frame.f_locals["self"]
        frame = frame.f_back


def _part(thing: Any, name: str) -> Any:
    """A part of an object of Keras; RuntimeError if there is none."""
    missing = object()
    part = getattr(thing, name, missing)
    if part is missing:
        kind = thing if isinstance(thing, type) else type(thing)
        raise RuntimeError(
            invalid(
                f"Keras must have `{kind.__name__}.{name}`, which was last "
                f"seen in Keras {_SEEN}: install that version, or a newer "
                "keras_calib",
                **{"keras.__version__": keras.__version__},
            )
        )
    return part

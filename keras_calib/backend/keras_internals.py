"""All that is used of Keras beyond its public interface.

Each use says why there is no public way, and in which version of Keras it was
seen. Where a version has the part no more, a function falls back as it says,
or raises an error that names the part. No other module uses such parts.
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

    `EarlyStopping` and `ModelCheckpoint` with `mode="auto"` ask for it, and
    raise where they do not find it. Keras has no public way to say it.

    Seen in Keras 3.15: `_direction`, "up" or "down". A version that does not
    ask for it ignores the attribute. Nothing is set for a mode of None.
    """
    if mode is not None:
        metric._direction = {"max": "up", "min": "down"}[mode]


def metrics_beside(
    metric: keras.metrics.Metric,
) -> list[tuple[keras.metrics.Metric, str | None, bool]]:
    """All metrics of the `compile` whose update of a metric runs now.

    Keras tells a metric nothing of the others, so they are looked for among
    the callers. Look once, at the first update.

    Seen in Keras 3.15: `CompileMetrics` with the lists `_flat_metrics` and
    `_flat_weighted_metrics`. Empty where none calls, and in a version that
    has them no more.

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
    """The metric that shows the loss, which a train step of ours updates.

    A custom `train_step` of Keras' guides makes a tracker of its own, beside
    that of `compile`, which `evaluate` shows.

    Seen in Keras 3.15: `_loss_tracker`.
    """
    return _part(model, "_loss_tracker")


def compiled_metrics(model: keras.Model) -> keras.metrics.Metric | None:
    """The metric that holds those of `compile`; None where there are none.

    Public `model.metrics` lists it, among others, without saying which it is.

    Seen in Keras 3.15: `_compile_metrics`.
    """
    return _part(model, "_compile_metrics")


def updated_metrics(model: keras.Model) -> Callable[..., tuple]:
    """What a step on JAX calls for its logs and the new state of metrics.

    Its public counterpart, `train_step`, is what calls this.

    Seen in Keras 3.15: `_update_metrics_variables`, on JAX only.
    """
    return _part(model, "_update_metrics_variables")


# Training.


def begin_at_epoch(model: keras.Model, epoch: int | None) -> None:
    """Makes the `fit` that is beginning start with another epoch.

    `fit` takes `initial_epoch`, but a callback cannot change it. Keras' own
    `BackupAndRestore` does what is done here, in `on_train_begin`.

    Seen in Keras 3.15: `_initial_epoch`, None for the one that `fit` was
    given.
    """
    # Raises where no `fit` would read it.
    _part(model, "_initial_epoch")
    model._initial_epoch = epoch


def first_epoch(model: keras.Model, initial_epoch: int) -> int:
    """The first epoch: what a callback asked for, or what `fit` was given.

    See `begin_at_epoch`, also of Keras' callbacks.
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

    The public `callback.model` copies all variables from the device on JAX,
    which takes longer than the step after which it is asked.

    Seen in Keras 3.15: `_model`. Falls back on `callback.model`.
    """
    model = getattr(callback, "_model", None)
    return callback.model if model is None else model


def neighbours(
    callback: keras.callbacks.Callback,
) -> tuple[list[keras.callbacks.Callback], list[keras.callbacks.Callback]]:
    """The callbacks before and after one in its list, while the list calls it.

    Keras shows a callback nothing of the others, so they are looked for where
    the list calls. `CallbackList` and its `callbacks` are public. Both are
    empty where no list calls.
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
    """The model and all layers inside it, at any depth.

    Public `model.layers` has the outermost; what a layer holds in an
    attribute of its own is in no public list.

    Seen in Keras 3.15: `_flatten_layers`.
    """
    return list(_part(model, "_flatten_layers")())


def unlock_variables(layer: keras.layers.Layer) -> None:
    """Lets a layer that was built take new variables.

    Keras locks a layer once it is built; public ways would make a new layer,
    which models that hold the old one would not see.

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

    Keras does so in `Model.__new__` and `Model.__init__`, by other bases for
    the class and all classes above it: no class of this library could be a
    base of one with its own `call` then. Here a class of both is made, and
    the model becomes one of it, before its `__init__`.

    Seen in Keras 3.15: the type of `keras.Model(inputs, outputs)` can be a
    base beside others.
    """
    # Past Keras' hooks on attributes, which are not there yet.
    object.__setattr__(model, "__class__", _functional_class(type(model)))


@functools.cache
def _functional_class(cls: type) -> type:
    """The class, as one of models made of inputs and outputs."""
    point = keras.Input((1,))
    functional = type(keras.Model(point, point))
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
    """What the backend holds for a variable, also one of several replicas.

    Public `variable.value` is what a stateless scope has in its place.

    Seen in Keras 3.15: `_value`. None in a version that has it no more.
    """
    return getattr(variable, "_value", None)


def in_stateless_scope() -> bool:
    """Whether assigned values go into a `keras.StatelessScope`.

    The class is public, whether one is entered is not.

    Seen in Keras 3.15: `keras.src.backend.common.stateless_scope`. True in a
    version that has it no more: callers then take the way that is right in
    both cases, and slower.
    """
    try:
        from keras.src.backend.common import stateless_scope

        return stateless_scope.in_stateless_scope()
    except (ImportError, AttributeError):
        return True


# Masks.


def keras_mask(y_pred: Any, rank: int) -> Any:
    """The mask that layers such as `Embedding(mask_zero=True)` attach.

    Seen in Keras 3.15: `keras.src.backend.get_keras_mask`, which reads
    `_keras_mask` of the tensor, to which this falls back.

    Args:
        y_pred: Predictions as the model gave them.
        rank: Number of axes of the samples.

    Returns:
        bool of that rank, or None if there is no mask.
    """
    try:
        from keras.src.backend import get_keras_mask
    except ImportError:
        mask = getattr(y_pred, "_keras_mask", None)
    else:
        mask = get_keras_mask(y_pred)
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
    """A part of an object of Keras.

    Raises:
        RuntimeError: If this version of Keras has it no more.
    """
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

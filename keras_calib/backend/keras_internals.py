"""All uses of private parts of Keras, as of Keras 3.15.

Each function says why there is no public way. If a version of Keras lacks the
part, the function falls back as it says, or raises an error that names it.
"""

import functools
import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from keras_calib.backend.errors import invalid

_SEEN = "3.15"
# Packages that pass a value of a metric on as it is, and those of them whose
# loops put it into the logs.
_LOOPS = {"keras", "keras_calib"}
_PASSING = {*_LOOPS, "contextlib", "jax", "tensorflow", "threading"}


# Metrics.


def set_direction(metric: keras.metrics.Metric, mode: str | None) -> None:
    """Tell Keras whether higher or lower values of a metric are better.

    `EarlyStopping(mode="auto")` needs it, and there is no public way to set it.
    Seen in Keras 3.15: `_direction`.
    """
    if mode is not None:
        metric._direction = {"max": "up", "min": "down"}[mode]


def mode_of_metric(metric: keras.metrics.Metric) -> str | None:
    """`"min"` or `"max"` of a metric of Keras, None if it has none.

    There is no public way to ask it. Seen in Keras 3.15: `_direction`.
    """
    direction = getattr(metric, "_direction", None)
    return {"up": "max", "down": "min"}.get(direction or "")


def show_values(metric: keras.metrics.Metric, modes: dict[str, str]) -> None:
    """Let callbacks find the modes of the values of a metric of several.

    `EarlyStopping(mode="auto")` looks for a metric of the name of the value
    among those of the compiled model that now updates this one. It finds one
    here that Keras neither updates nor reports.
    Seen in Keras 3.15: `MetricsList`, `CompileMetrics`, `_flat_metrics`.
    """
    compiled = _compile_metrics_of(metric)
    groups: Any = getattr(compiled, "_flat_metrics", ())
    shown = [group for group in groups if getattr(group, "shows", 0) is metric]
    if compiled is None or shown:
        return
    from keras.src.trainers.compile_utils import MetricsList

    class Shown(MetricsList):
        shows = metric

        def __bool__(self) -> bool:
            # Keras passes over outputs without metrics.
            return False

    values = []
    for name, mode in modes.items():
        values.append(keras.metrics.Metric(name=name))
        set_direction(values[-1], mode)
    groups.append(Shown(values))


def metrics_beside(
    metric: keras.metrics.Metric,
) -> list[tuple[keras.metrics.Metric, str | None, bool]]:
    """Find all metrics of the compiled model that updates a metric now.

    A metric does not know the others, so they are looked up among the callers.
    The list is empty outside of a compiled model.
    Seen in Keras 3.15: `CompileMetrics`, `_flat_metrics` and
    `_flat_weighted_metrics`.

    Returns:
        For each metric, the given one included: the metric, the output whose
        name Keras puts before its name, and whether it gets sample weights.
    """
    return _in_groups(_compile_metrics_of(metric))


def _in_groups(
    compiled: Any,
) -> list[tuple[keras.metrics.Metric, str | None, bool]]:
    kinds = ("_flat_metrics", "_flat_weighted_metrics")
    return [
        (each, getattr(group, "output_name", None), weighted == 1)
        for weighted, name in enumerate(kinds)
        for group in getattr(compiled, name, ())
        if group
        for each in getattr(group, "metrics", ())
    ]


def _compile_metrics_of(metric: keras.metrics.Metric) -> Any:
    """The metrics of the compiled model that updates a metric now, or None."""
    for caller, _ in _callers():
        if type(caller).__name__ == "CompileMetrics" and any(
            each is metric for each, _, _ in _in_groups(caller)
        ):
            return caller
    return None


def loss_tracker(model: keras.Model) -> keras.metrics.Metric:
    """Return the metric that tracks the loss.

    `model.metrics` does not mark it. Seen in Keras 3.15: `_loss_tracker`.
    """
    return _part(model, "_loss_tracker")


def compiled_metrics(model: keras.Model) -> keras.metrics.Metric | None:
    """Return the metric that holds those of `compile`, None without any.

    `model.metrics` does not mark it. Seen in Keras 3.15: `_compile_metrics`.
    """
    return _part(model, "_compile_metrics")


def updated_metrics(model: keras.Model) -> Callable[..., tuple]:
    """Return the function that gives logs and metric states on JAX.

    Only `train_step`, which calls it, is public.
    Seen in Keras 3.15: `_update_metrics_variables`.
    """
    return _part(model, "_update_metrics_variables")


def logged_name() -> str | None:
    """Return the key of the logs for which a metric now computes its value.

    It is None if anything but the logs may get the value. That is so in a step
    or a loop of a user, and not in those of Keras or of this library. Keras
    calls metrics in both in one way, so they are looked up among the callers.
    Seen in Keras 3.15: `name` in `CompileMetrics.result`, `train_step`,
    `test_step`, and `_symbolic_build`, which only creates variables. Keras 3.12
    takes dicts of metrics apart at once, so before 3.15 it is None.
    """
    if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 15):
        return None
    steps = ("train_step", "test_step", "_symbolic_build")
    callers = list(_functions(inspect.currentframe()))
    places = [i for i, (name, _) in enumerate(callers) if name in steps]
    if callers[-1][1] == "threading":
        # Replicas run in threads, for which the main one waits.
        main = threading.main_thread().ident or 0
        callers += _functions(sys._current_frames().get(main))
    packages = [module.partition(".")[0] for _, module in callers]
    end = max(places, default=-1) + 1
    around = (x for x in packages[end:] if x in _LOOPS or x not in _PASSING)
    if not {*packages[:end], next(around, "")} <= _PASSING:
        return None
    for caller, values in _callers() if end else ():
        if type(caller).__name__ == "CompileMetrics":
            return values.get("name")
    return None


def is_at_batch_end() -> bool:
    """Return whether Keras reads logs for the callbacks of a batch.

    Seen in Keras 3.15: `CallbackList.on_train_batch_end` and its like.
    """
    callers = itertools.islice(_functions(inspect.currentframe()), 10)
    return any(
        name.endswith("batch_end") and module.startswith("keras.")
        for name, module in callers
    )


# Training.


def begin_at_epoch(model: keras.Model, epoch: int | None) -> None:
    """Make the `fit` that is beginning start with `epoch`, if not None.

    A callback cannot change `initial_epoch`. `BackupAndRestore` does this too.
    Seen in Keras 3.15: `_initial_epoch`.
    """
    # This raises if no `fit` would read it.
    _part(model, "_initial_epoch")
    model._initial_epoch = epoch


def fit_arguments(model: keras.Model) -> dict[str, Any]:
    """Return the arguments of the `fit` of a model that now runs, or {}.

    Callbacks are not told. Seen in Keras 3.15: `steps_per_epoch` in `fit`.
    """
    for caller, values in _callers():
        if caller is model and "steps_per_epoch" in values:
            return dict(values)
    return {}


def callback_model(callback: keras.callbacks.Callback) -> keras.Model:
    """Return the model of a callback, without updating its state.

    On JAX `callback.model` copies all variables from the device, which takes
    longer than a step. It is the fallback. Seen in Keras 3.15: `_model`.
    """
    model = getattr(callback, "_model", None)
    return callback.model if model is None else model


def neighbours(
    callback: keras.callbacks.Callback,
) -> tuple[list[keras.callbacks.Callback], list[keras.callbacks.Callback]]:
    """Find the callbacks before and after one, while its list calls it.

    A callback does not know the others. Both are empty if no list calls it.
    """
    for caller, _ in _callers():
        if isinstance(caller, keras.callbacks.CallbackList):
            places = [x is callback for x in caller.callbacks]
            if True in places:
                place = places.index(True)
                return caller.callbacks[:place], caller.callbacks[place + 1 :]
    return [], []


# Layers and variables.


def nested_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the model and all layers inside it.

    `model.layers` has only the outermost. Seen in Keras 3.15:
    `_flatten_layers`.
    """
    return list(_part(model, "_flatten_layers")())


def activation_behind(tensor: Any) -> str | None:
    """Return the name of the activation that made a symbolic tensor, if any.

    A softmax must be that of the last axis. Layers that pass values on are
    looked behind. A tensor does not say publicly which layer made it.
    Seen in Keras 3.15: `_keras_history`, `_inbound_nodes`.
    """
    while (history := getattr(tensor, "_keras_history", None)) is not None:
        layer = history.operation
        nodes = _part(layer, "_inbound_nodes")
        if isinstance(layer, keras.layers.TimeDistributed):
            layer = layer.layer
        kind, outputs = type(layer).__name__, getattr(layer, "outputs", None)
        activation = getattr(layer, "activation", None)
        activation = getattr(activation, "__name__", None)
        passes = (kind, activation) == ("Activation", "linear")
        if isinstance(layer, keras.Model) and outputs:
            tensor = outputs[history.tensor_index]
        elif passes or kind in ("Identity", "Dropout"):
            tensor = nodes[history.node_index].input_tensors[0]
        elif getattr(layer, "returns_logits", False):
            return "logits"
        elif kind == "Softmax":
            # Also the operation, as of `keras.ops.softmax`.
            last = layer.axis in (-1, len(tensor.shape) - 1)
            return "softmax" if last else None
        else:
            return "sigmoid" if kind == "Sigmoid" else activation
    return None


def unlock_variables(layer: keras.layers.Layer) -> None:
    """Let a layer that was built take new variables.

    A new layer would not reach the models that hold this one.
    Seen in Keras 3.15: `_tracker.unlock`.
    """
    _part(_part(layer, "_tracker"), "unlock")()


def unpickler() -> Callable[..., Any]:
    """Return the function that pickle calls to restore a model.

    `Model.__reduce__` names it by the class of the model, and pickle does not
    find classes that are created while a program runs.
    Seen in Keras 3.15: `Model._unpickle_model`.
    """
    return _part(keras.Model, "_unpickle_model")


def make_functional(model: keras.Model) -> None:
    """Make a model of inputs and outputs a functional model of Keras.

    Keras would change the bases of the class, and of all classes above it. Then
    no class of this library could be the base of one with its own `call`. Here
    the model gets a class with both bases, before its `__init__`.
    Seen in Keras 3.15: `type(keras.Model(inputs, outputs))` as one of bases.
    """
    # Keras' hooks on attributes do not exist yet.
    object.__setattr__(model, "__class__", _functional_class(model.__class__))


@functools.cache
def _functional_class(cls: type) -> type:
    """Return the class with the functional model of Keras as a base."""
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
        # `load_model` creates the class registered under this name.
        keras.saving.register_keras_serializable(package, name)(made)
    return made


def backing_value(variable: keras.Variable) -> Any:
    """Return what the backend holds for a variable, None if not found.

    In a stateless scope, public `variable.value` is another value.
    Seen in Keras 3.15: `_value`.
    """
    return getattr(variable, "_value", None)


def in_stateless_scope() -> bool:
    """Return whether assigned values go into a `keras.StatelessScope`.

    It returns True if unknown, which is safe and slower.
    Seen in Keras 3.15: `keras.src.backend.common.stateless_scope`.
    """
    try:
        from keras.src.backend.common import stateless_scope

        return stateless_scope.in_stateless_scope()
    except (ImportError, AttributeError):
        return True


# Masks.


def keras_mask(y_pred: Any, rank: int) -> Any:
    """Return the mask that layers such as `Embedding(mask_zero=True)` attach.

    It is a bool tensor with the `rank` axes of the samples, or None.
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


def set_keras_mask(tensor: Any, mask: Any) -> None:
    """Attach a mask, as layers do, which `keras_mask` reads.

    Seen in Keras 3.15: `keras.src.backend.set_keras_mask`.
    """
    try:
        from keras.src.backend import set_keras_mask as attach
    except ImportError:
        tensor._keras_mask = mask
    else:
        attach(tensor, mask)


def _callers() -> Iterator[tuple[Any, dict]]:
    """Objects and variables of the methods on the stack, innermost first."""
    for frame in _frames(inspect.currentframe()):
        if "self" in frame.f_locals:
            yield frame.f_locals["self"], frame.f_locals


def _functions(frame: Any) -> Iterator[tuple[str, str]]:
    """Name and module of the functions on a stack, innermost first."""
    for each in _frames(frame):
        yield each.f_code.co_name, each.f_globals.get("__name__", "")


def _frames(frame: Any) -> Iterator[Any]:
    """A frame and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _part(thing: Any, name: str) -> Any:
    """Return an attribute of an object of Keras, or raise RuntimeError."""
    if not hasattr(thing, name):
        kind = thing if isinstance(thing, type) else type(thing)
        raise RuntimeError(
            invalid(
                f"Keras must have `{kind.__name__}.{name}`, which was last "
                f"seen in Keras {_SEEN}: install that version, or a newer "
                "keras_calib",
                **{"keras.__version__": keras.__version__},
            )
        )
    return getattr(thing, name)

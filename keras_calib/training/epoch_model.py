"""Base class of models that act between epochs."""

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypedDict, Unpack

import keras
from keras import backend, ops

from keras_calib.backend.arguments import KeepsArguments
from keras_calib.backend.errors import invalid, value_error
from keras_calib.backend.keras_internals import make_functional, unpickler
from keras_calib.backend.late import tensorflow as tf
from keras_calib.backend.replicas import (
    num_processes,
    num_replicas,
    sum_over_replicas,
)
from keras_calib.numerics.arrays import shape_of
from keras_calib.predictions.outputs import setting_of

# Configuration keys of a functional model's layers.
_GRAPH = ("name", "trainable", "layers", "input_layers", "output_layers")
_MEAN = "sum_over_batch_size"
_WEIGHTED = "mean_with_sample_weight"


class KerasOptions(TypedDict, total=False):
    """Options of `keras.Model`, of a functional one too."""

    inputs: Any
    outputs: Any
    name: str | None
    trainable: bool
    dtype: Any
    autocast: bool


def no_data() -> None:
    """Outside of `fit` there are no data."""


@keras.saving.register_keras_serializable(package="keras_calib")
class EpochModel(KeepsArguments, keras.Model):
    """A Keras model with methods that run between epochs.

    Derive from it when your method changes something after each epoch. By
    itself it trains as `keras.Model` does. Build it like any `keras.Model`:
    `Model(inputs, outputs, ...)`, or as the base of a class with its own
    `call`. You can combine several such classes, as in
    `class Both(SharpnessAwareModel, CorrectnessRankingModel)`, but not two
    that record samples.

    `fit` calls `begin_training(arguments)` once at its start, and
    `end_training()` at its end, also after an error. It calls
    `begin_epoch(epoch)` and `end_epoch(epoch)` before your callbacks, so that
    a callback saves the state with which the next epoch begins. A loop of
    your own calls these methods itself.

    `y` may be `{"label": labels, "index": numbers}`, as `with_index` makes it.
    Losses and metrics receive its labels.

    Args:
        *args: Inputs and outputs, as `keras.Model` takes them.
        **kwargs: Other arguments of `keras.Model`.

    Example:

    >>> import keras
    >>> class Counting(EpochModel):
    ...     count = 0
    ...     def end_epoch(self, epoch):
    ...         self.count = epoch + 1
    >>> inputs = keras.Input((4,))
    >>> model = Counting(inputs, keras.layers.Dense(3)(inputs))
    >>> model.end_epoch(0)
    >>> model.count
    1

    Reference:
        Keras, customizing what happens in `fit`,
        https://keras.io/guides/custom_train_step_in_tensorflow/
    """

    def __init__(self, *args: Any, **kwargs: Unpack[KerasOptions]):
        inputs = keras.tree.flatten(args[:1] or kwargs.get("inputs"))
        if any(isinstance(x, keras.KerasTensor) for x in inputs):
            make_functional(self)
        super().__init__(*args, **kwargs)

    # Whether a step of several passes records its batch after the last one.
    postpones = False
    # What it does between epochs with the data of `fit`.
    _update: Callable = staticmethod(no_data)

    def records(self) -> list:
        """Variables that only `remember_batch` changes in a step."""
        return []

    def remember_batch(self, y: Any, y_pred: Any, sample_weight: Any) -> None:
        """Records a training batch, if the model has a record."""

    def begin_training(self, arguments: dict) -> None:
        """Called by `fit` with its arguments, before any training."""
        if arguments.get("class_weight") is not None and _has_index(arguments):
            refuse_class_weight(arguments)

    def begin_epoch(self, epoch: int) -> None:
        """Called before each epoch, numbered from 0."""

    def end_epoch(self, epoch: int) -> None:
        """Called after each epoch and its validation."""

    def end_training(self) -> None:
        """Called at the end of `fit`, also after an error."""
        # Frees the data.
        self._update = no_data

    def fit(self, *args, **kwargs):
        """Trains as `keras.Model.fit` does."""
        signature = inspect.signature(super().fit)
        arguments = signature.bind(*args, **kwargs).arguments
        _refuse_training(self, arguments)
        data = arguments.get("x")
        set_epoch = getattr(data, "set_epoch", None)
        follows = set_epoch is not None
        if follows:
            for name in ("steps_per_epoch", "shuffle"):
                if arguments.get(name) not in (None, False):
                    raise value_error(
                        f"`{name}` must be left out for data that have an "
                        "order and an epoch of their own",
                        **{name: arguments[name]},
                    )
        if follows or hasattr(data, "element_spec"):
            # The data set sets the order.
            arguments.setdefault("shuffle", False)
        callbacks = arguments.get("callbacks")
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = callbacks.callbacks
        given = [] if callbacks is None else keras.tree.flatten(callbacks)

        def begins(epoch, logs=None):
            if set_epoch is not None:
                set_epoch(epoch)
            self.begin_epoch(epoch)

        events = keras.callbacks.LambdaCallback(
            on_epoch_begin=begins,
            on_epoch_end=lambda epoch, logs=None: self.end_epoch(epoch),
        )
        arguments["callbacks"] = [events, *given]
        try:
            self.begin_training(arguments)
            return super().fit(**arguments)
        finally:
            self.end_training()

    def evaluate(self, x=None, y=None, batch_size=None, *args, **kwargs):
        """Evaluates as `keras.Model.evaluate` does."""
        _refuse_uneven_batches(self, x, batch_size)
        return super().evaluate(x, y, batch_size, *args, **kwargs)

    def train_on_batch(
        self, x, y=None, sample_weight=None, class_weight=None, *args, **kwargs
    ):
        """Trains as `keras.Model.train_on_batch` does."""
        if isinstance(y, dict):
            refuse_class_weight({"class_weight": class_weight})
        return super().train_on_batch(
            x, y, sample_weight, class_weight, *args, **kwargs
        )

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        labels, sample_weight = without_index(y, sample_weight)
        _refuse_scalar_loss(self, labels, y_pred)
        loss = super().compute_loss(
            x, labels, y_pred, sample_weight, training=training
        )
        return mean_of_the_whole(loss, self.loss, y_pred, sample_weight)

    def __reduce__(self):
        # Pickle does not find the class of a functional model by its name.
        return (unpickler(), super().__reduce__()[1])

    def added_losses(self) -> Any:
        """Losses that layers add, such as regularizers."""
        added = [ops.sum(ops.cast(x, "float32")) for x in self.losses]
        # Keras adds up the losses of the replicas.
        return sum(added) / num_replicas()

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        labels, sample_weight = without_index(y, sample_weight)
        return super().compute_metrics(x, labels, y_pred, sample_weight)

    def _state(self, name: str, shape: tuple, value: Any = 0.0) -> Any:
        """A variable that is not trained, float32 under any policy."""
        return self.add_weight(
            shape=shape,
            initializer=keras.initializers.Constant(value),
            trainable=False,
            dtype="float32",
            name=name,
        )

    def get_config(self):
        return {**super().get_config(), **self._kept()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if "input_layers" not in config:
            return cls(**config)
        graph = {key: config[key] for key in _GRAPH if key in config}
        own = {key: config[key] for key in config if key not in _GRAPH}
        network = keras.Model.from_config(graph, custom_objects)
        model = cls(network.input, network.output, name=network.name, **own)
        if not graph.get("trainable", True):
            # Only then, as it also affects layers that were frozen.
            model.trainable = False
        return model


def _has_index(arguments: dict) -> bool:
    """Whether labels come with an index, as far as arguments of `fit` tell."""
    data, y = arguments.get("x"), arguments.get("y")
    spec = getattr(data, "element_spec", None)
    if isinstance(data, keras.utils.PyDataset):
        spec = data[0]
    if isinstance(spec, tuple) and len(spec) > 1:
        y = spec[1]
    return isinstance(y, dict) or hasattr(data, "set_epoch")


def without_index(y: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Labels and weights without the index.

    Keras turns a dict of arrays into a dict of weights too.
    """
    if not isinstance(y, dict) or set(y) != {"label", "index"}:
        return y, sample_weight
    if isinstance(sample_weight, dict):
        sample_weight = sample_weight["label"]
    return y["label"], sample_weight


def mean_of_the_whole(
    value: Any, loss: Any, y_pred: Any, sample_weight: Any
) -> Any:
    """A replica's loss with the gradient of the mean over the whole batch.

    Keras takes the mean of the replicas' means. Losses of this library take
    the mean over all replicas by themselves. Raises ValueError if the number
    of valid labels is unknown, or outputs take different means.
    """
    if num_replicas() == 1:
        return value
    losses = [x for x in keras.tree.flatten(loss) if x is not None]
    spans = [getattr(x, "spans_replicas", False) for x in losses]
    if all(spans):
        return value
    ignored = {setting_of(x, "ignore_class") for x in losses} - {None}
    if ignored and not any(spans):
        raise value_error(
            "`ignore_class` of a loss of Keras gives a wrong mean under "
            "several replicas: use a loss of keras_calib",
            ignore_class=ignored.pop(),
        )
    means = {getattr(x, "reduction", _MEAN) for x in losses}
    means = {_MEAN if x == "mean" else x for x in means}
    several = len(keras.tree.flatten(y_pred)) > 1 and sample_weight is not None
    if any(spans) or len(means) > 1 or (several and means == {_WEIGHTED}):
        raise value_error(
            "under several replicas losses of several outputs must all be "
            "of keras_calib, or all of Keras with one reduction, not over "
            "weights",
            losses=[getattr(x, "name", x) for x in losses],
        )
    if means <= {None, "none", "sum"}:
        return value
    count = ops.cast(ops.shape(keras.tree.flatten(y_pred)[0])[0], "float32")
    if means == {_WEIGHTED} and sample_weight is not None:
        count = ops.sum(ops.cast(sample_weight, "float32"))
    share = ops.divide_no_nan(count, sum_over_replicas(count))
    factor = ops.cast(share * num_replicas(), value.dtype)
    # Only the gradient changes: Keras weighs the shown values by part size.
    return value + (factor - 1.0) * (value - ops.stop_gradient(value))


def refuse_class_weight(arguments: dict) -> None:
    """Refuses class weights, as Keras finds no classes in indexed labels."""
    if arguments.get("class_weight") is not None:
        raise value_error(
            "`class_weight` must be None if labels come with an index: give "
            "each sample the weight of its class, as `sample_weight`",
            class_weight=arguments["class_weight"],
        )


def _refuse_training(model: keras.Model, arguments: dict) -> None:
    """Refuses arguments of `fit` that Keras cannot handle with these models."""
    size = arguments.get("batch_size")
    # A split takes rows away, so the last size of `x` is not that of training.
    is_split = bool(arguments.get("validation_split"))
    if backend.backend() == "tensorflow" or not is_split:
        _refuse_uneven_batches(model, arguments.get("x"), size)
    size = arguments.get("validation_batch_size") or size
    _refuse_uneven_batches(model, arguments.get("validation_data"), size)
    if backend.backend() != "tensorflow":
        return
    strategy = model.distribute_strategy
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        cluster = strategy.cluster_resolver.cluster_spec().as_dict()
        if len(cluster.get("worker", ())) > 1:
            raise RuntimeError(
                invalid(
                    "`fit` of Keras 3 does not work on several hosts with "
                    "TensorFlow: train there on the JAX backend, with "
                    "`keras.distribution`, or on one host with "
                    "`MirroredStrategy`",
                    strategy=type(strategy).__name__,
                )
            )
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    on_cpu = any("CPU" in d for d in strategy.extended.worker_devices)
    for wrong, rule in (
        (steps, "`gradient_accumulation_steps` must be None"),
        (model.steps_per_execution != 1, "`steps_per_execution` must be 1"),
        (on_cpu and model.jit_compile, "`jit_compile` must be False on CPUs"),
    ):
        if wrong:
            raise value_error(
                f"under several replicas {rule}",
                num_replicas=replicas,
                gradient_accumulation_steps=steps,
                steps_per_execution=model.steps_per_execution,
                jit_compile=model.jit_compile,
            )


def _refuse_uneven_batches(
    model: keras.Model, data: Any, batch_size: int | None
) -> None:
    """Refuses batches that the devices cannot share, if known."""
    which, sizes = "each", _batch_sizes(data, batch_size)
    distribution = keras.distribution.distribution()
    if backend.backend() == "tensorflow":
        # Keras adds up what replicas have of the first, to find its shape.
        which, sizes = "the first", itertools.islice(sizes, 1)
        devices = model.distribute_strategy.num_replicas_in_sync
    elif distribution is None:
        return
    else:
        mesh = distribution.device_mesh
        axis = mesh.axis_names.index(distribution.batch_dim_name)
        # Each process gives the batches of its own devices.
        devices = max(1, mesh.shape[axis] // num_processes())
    for size in sizes:
        if size % devices:
            raise value_error(
                f"{which} batch must divide evenly among the devices: choose "
                "another batch size, or leave the remainder out",
                batch_size=size,
                devices=devices,
            )


def _batch_sizes(data: Any, batch_size: int | None) -> Iterator[int]:
    """Sizes of the first and the last batch, if known."""
    if hasattr(data, "element_spec"):
        shape = keras.tree.flatten(data.element_spec)[0].shape
        if shape.rank and shape[0] is not None:
            yield shape[0]
    elif isinstance(data, keras.utils.PyDataset):
        for place in (0, (data.num_batches or 1) - 1):
            yield len(keras.tree.flatten(data[place])[0])
    else:
        arrays = [x for x in keras.tree.flatten(data) if hasattr(x, "shape")]
        count = len(arrays[0]) if arrays else 0
        size = min(batch_size or 32, count)
        yield size
        yield count % size if size else 0


def refuse_several_outputs(y_pred: Any) -> None:
    """Refuses predictions that are not one tensor."""
    if not hasattr(y_pred, "shape"):
        raise value_error(
            "the model must have one output, because it trains on one loss",
            y_pred=keras.tree.map_structure(shape_of, y_pred),
        )


def _refuse_scalar_loss(model: keras.Model, labels: Any, y_pred: Any) -> None:
    """Refuses a loss that gives one value for the batch, under replicas.

    Keras would add it up once for each replica.
    """
    if num_replicas() == 1:
        return
    names = getattr(model, "output_names", None) or ["output"]

    def of_outputs(values):
        if isinstance(values, dict):
            return [values.get(name) for name in names]
        several = isinstance(values, list | tuple)
        return values if several else [values] * len(names)

    # Keras reports structures that do not match.
    each = map(of_outputs, (model.loss, labels, y_pred))
    for loss, y, outputs in zip(*each, strict=False):
        if not callable(loss) or y is None or outputs is None:
            continue
        call = loss.call if isinstance(loss, keras.losses.Loss) else loss
        reduction = getattr(loss, "reduction", "mean")
        if reduction in (None, "none") or call(y, outputs).shape != ():
            continue
        raise value_error(
            "`loss` must give one value per sample under several replicas: a "
            "value per batch would enter once per replica",
            loss=getattr(loss, "name", loss),
        )

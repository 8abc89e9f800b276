"""What would train wrongly, or end in an error that says nothing."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
from keras import backend

from keras_calib.backend.errors import invalid
from keras_calib.backend.replicas import num_replicas
from keras_calib.numerics.arrays import shape_of

__all__ = [
    "refuse_accumulation",
    "refuse_class_weight",
    "refuse_scalar_loss",
    "refuse_several_outputs",
    "refuse_training",
    "refuse_uneven_parts",
]


def refuse_class_weight(arguments: dict) -> None:
    """Raises if `fit` is given weights of classes.

    Raises:
        ValueError: If it is: Keras finds no class in labels with an index.
    """
    if arguments.get("class_weight") is not None:
        raise ValueError(
            invalid(
                "`class_weight` must be None where labels come with an "
                "index: give each sample the weight of its class, as "
                "`sample_weight`",
                class_weight=arguments["class_weight"],
            )
        )


def refuse_training(model: keras.Model, arguments: dict) -> None:
    """Raises if Keras cannot train this model with these arguments of `fit`.

    Raises:
        RuntimeError: Under a strategy of several workers, for which `fit`
            fails in Keras 3.
        ValueError: Under several replicas: if several steps make one
            execution or one update, batches do not divide evenly, or XLA is
            asked for on CPUs.
    """
    if backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    strategy = model.distribute_strategy
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        workers = strategy.cluster_resolver.cluster_spec()
        if workers and len(workers.as_dict().get("worker", ())) > 1:
            raise RuntimeError(
                invalid(
                    "`fit` does not work with several workers in Keras 3: "
                    "use `fit_workers`",
                    strategy=type(strategy).__name__,
                )
            )
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return
    if model.steps_per_execution != 1:
        raise ValueError(
            invalid(
                "`steps_per_execution` must be 1 under several replicas",
                steps_per_execution=model.steps_per_execution,
                num_replicas=replicas,
            )
        )
    refuse_accumulation(model)
    on_cpu = any("CPU" in d for d in strategy.extended.worker_devices)
    if on_cpu and model.jit_compile:
        raise ValueError(
            invalid(
                "`jit_compile` must not be True under several replicas on CPU",
                jit_compile=True,
                num_replicas=replicas,
            )
        )
    size = _batch_size(arguments)
    if size is not None and size % replicas:
        raise ValueError(
            invalid(
                "the first batch must divide evenly among the replicas",
                batch_size=size,
                num_replicas=replicas,
            )
        )


def refuse_accumulation(model: keras.Model) -> None:
    """Raises if gradients of several steps make one update, under replicas.

    Raises:
        ValueError: If so: Keras' optimizers fail at it.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    replicas = model.distribute_strategy.num_replicas_in_sync
    if steps and replicas > 1:
        raise ValueError(
            invalid(
                "`gradient_accumulation_steps` must be None under several "
                "replicas",
                gradient_accumulation_steps=steps,
                num_replicas=replicas,
            )
        )


def refuse_several_outputs(y_pred: Any) -> None:
    """Raises unless predictions are one tensor.

    Raises:
        ValueError: If they are not.
    """
    if not hasattr(y_pred, "shape"):
        raise ValueError(
            invalid(
                "the model must have one output: its loss is of one",
                y_pred=keras.tree.map_structure(shape_of, y_pred),
            )
        )


@contextlib.contextmanager
def refuse_uneven_parts() -> Iterator[None]:
    """Says what is wrong with batches that devices cannot share evenly.

    Raises:
        ValueError: If that is what Keras or JAX fails at: under a strategy
            Keras takes the mean of the parts of the first batch, to learn
            its shape; JAX lays out arrays in equal parts.
    """
    try:
        yield
    except Exception as error:
        if type(error) is ValueError:
            # Said already: `fit` evaluates too.
            raise
        # TensorFlow's InvalidArgumentError, JAX' IndivisibleError.
        if "AddN of type AddN must have the same size" in str(error):
            rule = "the first batch must divide evenly among the replicas"
        elif type(error).__name__ == "IndivisibleError":
            rule = (
                "each batch must divide evenly among the devices: choose "
                "another batch size, or leave the remainder out"
            )
        else:
            raise
        raise ValueError(invalid(rule, error=str(error)[:300])) from error


def refuse_scalar_loss(model: keras.Model, labels: Any, y_pred: Any) -> None:
    """Raises if a loss gives one value for the batch, under replicas.

    Keras averages values of samples over the replicas, and adds up the value
    of a whole batch as often as there are replicas.

    Args:
        model: A compiled model.
        labels: As its losses take them, one or one per output.
        y_pred: One output, or a list or dict of them.

    Raises:
        ValueError: If it does.
    """
    if num_replicas() == 1:
        return
    for loss, y, outputs in _each_loss(model, labels, y_pred):
        if not callable(loss):
            continue
        call = loss.call if isinstance(loss, keras.losses.Loss) else loss
        reduction = getattr(loss, "reduction", "mean")
        if reduction in (None, "none") or call(y, outputs).shape != ():
            continue
        raise ValueError(
            invalid(
                "`loss` must give one value per sample under several "
                "replicas, which would count one of a whole batch as often "
                "as there are replicas",
                loss=getattr(loss, "name", loss),
            )
        )


def _each_loss(model, labels, y_pred):
    """`(loss, labels, outputs)` of each output, as Keras pairs them."""
    loss, names = model.loss, getattr(model, "output_names", None)

    def by_name(values):
        is_list = isinstance(values, list | tuple)
        if is_list and names and len(values) == len(names):
            return dict(zip(names, values, strict=True))
        return values

    if isinstance(loss, dict):
        labels, y_pred = by_name(labels), by_name(y_pred)
        if isinstance(labels, dict) and isinstance(y_pred, dict):
            shared = [key for key in loss if key in labels and key in y_pred]
            return [(loss[key], labels[key], y_pred[key]) for key in shared]
    outputs = keras.tree.flatten(y_pred)
    truths = keras.tree.flatten(labels)
    losses = list(loss) if isinstance(loss, list | tuple) else None
    losses = losses or [loss] * len(outputs)
    # What does not fit is Keras' to complain of.
    return list(zip(losses, truths, outputs, strict=False))


def _batch_size(arguments: dict) -> int | None:
    """Size of the first batch, None if unknown."""
    x = arguments.get("x")
    spec = getattr(x, "element_spec", None)
    if spec is not None:
        shape = keras.tree.flatten(spec)[0].shape
        return shape[0] if shape.rank else None
    arrays = [part for part in keras.tree.flatten(x) if hasattr(part, "shape")]
    if not arrays:
        return None
    return min(arguments.get("batch_size") or 32, len(arrays[0]))

"""Refuses what would train wrongly or end in an obscure error."""

from collections.abc import Iterator
from typing import Any

import keras
from keras import backend

from keras_calib.backend.errors import invalid, value_error
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.backend.replicas import num_processes, num_replicas
from keras_calib.numerics.arrays import shape_of

__all__ = [
    "refuse_accumulation",
    "refuse_class_weight",
    "refuse_scalar_loss",
    "refuse_several_outputs",
    "refuse_training",
    "refuse_uneven_batches",
]


def refuse_class_weight(arguments: dict) -> None:
    """Refuses class weights, as Keras finds no classes in indexed labels."""
    if arguments.get("class_weight") is not None:
        raise value_error(
            "`class_weight` must be None if labels come with an index: give "
            "each sample the weight of its class, as `sample_weight`",
            class_weight=arguments["class_weight"],
        )


def refuse_training(model: keras.Model, arguments: dict) -> None:
    """Refuses arguments of `fit` that Keras cannot handle with these models."""
    size = arguments.get("batch_size")
    valid = arguments.get("validation_data")
    # A split takes rows away, so the sizes of `x` are not those of training.
    if not arguments.get("validation_split"):
        refuse_uneven_batches(arguments.get("x"), size)
    refuse_uneven_batches(valid, arguments.get("validation_batch_size") or size)
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
    refuse_accumulation(model)
    on_cpu = any("CPU" in d for d in strategy.extended.worker_devices)
    first = next(_batch_sizes(arguments.get("x"), size), 0)
    for wrong, rule in (
        (model.steps_per_execution != 1, "`steps_per_execution` must be 1"),
        (on_cpu and model.jit_compile, "`jit_compile` must be False on CPUs"),
        (first % replicas, "the first batch must divide evenly"),
    ):
        if wrong:
            raise value_error(
                f"under several replicas {rule}",
                num_replicas=replicas,
                steps_per_execution=model.steps_per_execution,
                jit_compile=model.jit_compile,
                batch_size=first,
            )


def refuse_uneven_batches(data: Any, batch_size: int | None) -> None:
    """Refuses batches that the devices of JAX cannot share, if known."""
    distribution = keras.distribution.distribution()
    if distribution is None or data is None:
        return
    mesh = distribution.device_mesh
    axis = mesh.axis_names.index(distribution.batch_dim_name)
    # Each process gives the batches of its own devices.
    devices = max(1, mesh.shape[axis] // num_processes())
    for size in _batch_sizes(data, batch_size):
        if size % devices:
            raise value_error(
                "each batch must divide evenly among the devices: choose "
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


def refuse_accumulation(model: keras.Model) -> None:
    """Refuses updates in several steps under replicas, where Keras fails."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    steps = getattr(optimizer, "gradient_accumulation_steps", None)
    replicas = model.distribute_strategy.num_replicas_in_sync
    if steps and replicas > 1:
        raise value_error(
            "`gradient_accumulation_steps` must be None under several replicas",
            gradient_accumulation_steps=steps,
            num_replicas=replicas,
        )


def refuse_several_outputs(y_pred: Any) -> None:
    """Refuses predictions that are not one tensor."""
    if not hasattr(y_pred, "shape"):
        raise value_error(
            "the model must have one output, because it trains on one loss",
            y_pred=keras.tree.map_structure(shape_of, y_pred),
        )


def refuse_scalar_loss(model: keras.Model, labels: Any, y_pred: Any) -> None:
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

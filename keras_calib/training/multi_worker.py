"""Training on several hosts, which `fit` of Keras 3 does not support."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.keras_internals import build_from_batch, first_epoch
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.backend.replicas import check_tensorflow
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.arrays import to_numpy
from keras_calib.training.cape import CaPEModel
from keras_calib.training.epoch_model import EpochModel, epoch_events
from keras_calib.training.unsupported import refuse_accumulation

__all__ = ["fit_workers", "is_chief"]


def fit_workers(
    model: keras.Model,
    data: Any,
    *,
    epochs: int,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_data: Any = None,
    calibration_data: Any = None,
    callbacks: Any = (),
    verbose: int = 1,
) -> keras.callbacks.History:
    """Trains a model under MultiWorkerMirroredStrategy, or any strategy.

    Use it to train on several hosts, where `fit` of Keras 3 fails. Run the
    same program on each worker, with its TF_CONFIG. Losses and models of this
    package train on the batch of all workers. Their records, gammas and
    targets are the same on each.

    Args:
        model: A built model that was made and compiled inside
            `strategy.scope()`.
        data: A `tf.data.Dataset` of batches for all workers, which TensorFlow
            shards. Or a function of a `tf.distribute.InputContext` that
            returns the batches of one worker, such as
            `training_pipeline(..., input_context=context)`.
        epochs: Number of the last epoch, as in `keras.Model.fit`.
        initial_epoch: Number of the first epoch, from 0.
        steps_per_epoch: Steps of an epoch; None for one pass over the data.
            Endless data are read on from epoch to epoch.
        validation_data: A `tf.data.Dataset` of batches for all workers, or
            arrays, evaluated after each epoch; or None.
        calibration_data: The samples for the targets of `CaPEModel`, as in
            its `fit`, in the same order on each worker; None for `data`.
        callbacks: Callbacks as for `fit`. If one stops training, it must do
            so on all workers. In a step they receive the mean loss of the
            epoch so far. The first worker writes the files of
            `ResumableBackup` and `CalibrationLogger`; all read the same
            backup.
        verbose: 1 for a progress bar of the first worker, 2 for a line per
            epoch, 0 for silence.

    Returns:
        The `History`, the same on each worker.

    Raises:
        RuntimeError: If the backend is not TensorFlow.
        TypeError: If data are of another kind.
        ValueError: If the model is not compiled and built, or the data have
            no batch. Also if the data are endless and `steps_per_epoch` is
            None.

    Reference:
        TensorFlow, multi-worker training with a custom training loop,
        https://www.tensorflow.org/tutorials/distribute/multi_worker_with_ctl;
        that `fit` does not work:
        https://github.com/keras-team/keras/issues/20585
    """
    check_tensorflow("`fit_workers`")
    check_integer("epochs", epochs, 1)
    check_integer("initial_epoch", initial_epoch, 0)
    if not model.compiled or not model.built:
        raise value_error(
            "`model` must be compiled and built",
            compiled=model.compiled,
            built=model.built,
        )
    if calibration_data is not None and not isinstance(model, CaPEModel):
        raise value_error(
            "`calibration_data` must be None unless the model is a `CaPEModel`",
            model=type(model).__name__,
        )
    refuse_accumulation(model)
    strategy = model.distribute_strategy
    with strategy.scope():
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
    train = _Batches(model, data, steps_per_epoch, model.train_step)
    train.build()
    validate = None
    if validation_data is not None:
        valid = _as_dataset(validation_data)
        validate = _Batches(model, valid, None, model.test_step)
    plans = isinstance(model, EpochModel)
    events = keras.callbacks.CallbackList(
        [
            *([epoch_events(model)] if plans else ()),
            *keras.tree.flatten(callbacks),
        ],
        add_history=True,
        add_progbar=verbose > 0 and is_chief(strategy),
        verbose=verbose,
        epochs=epochs,
        steps=steps_per_epoch,
        model=model,
    )
    arguments = {
        "x": data,
        "steps_per_epoch": steps_per_epoch,
        "validation_data": validation_data,
        "calibration_data": calibration_data,
    }
    model.stop_training = False
    logs: dict = {}
    try:
        if plans:
            model.begin_training(arguments)
        events.on_train_begin()
        # A backup may set the first epoch, as in `fit`.
        for epoch in range(first_epoch(model, initial_epoch), epochs):
            events.on_epoch_begin(epoch)
            model.reset_metrics()
            train.run(events, "train")
            logs = _results(model)
            if validate is not None:
                model.reset_metrics()
                events.on_test_begin()
                validate.run(events, "test")
                values = _results(model)
                events.on_test_end(values)
                logs |= {f"val_{name}": x for name, x in values.items()}
            events.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
        # Optimizers that average weights set the averages here.
        model.optimizer.finalize_variable_values(model.trainable_weights)
        events.on_train_end(logs)
    finally:
        if plans:
            model.end_training()
    return model.history


def is_chief(strategy: Any) -> bool:
    """Whether this process is the worker that writes files."""
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is None or not resolver.task_type:
        return True
    if resolver.task_type == "chief":
        return True
    has_chief = "chief" in resolver.cluster_spec().as_dict()
    return not has_chief and resolver.task_id in (None, 0)


class _Batches:
    """The batches of an epoch, with the function that each runs."""

    def __init__(
        self, model: keras.Model, data: Any, steps: int | None, step: Callable
    ):
        strategy = model.distribute_strategy
        if callable(data):
            self._batches = strategy.distribute_datasets_from_function(data)
        elif not hasattr(data, "element_spec"):
            raise type_error(
                "`data` must be a `tf.data.Dataset`, or a function that "
                "returns one",
                data=type(data).__name__,
            )
        elif steps is None and int(data.cardinality()) == -1:
            raise value_error(
                "`steps_per_epoch` must be given for data that have no end",
                steps_per_epoch=None,
            )
        else:
            options = tf.data.Options()
            options.experimental_distribute.auto_shard_policy = (
                tf.data.experimental.AutoShardPolicy.DATA
            )
            self._batches = strategy.experimental_distribute_dataset(
                data.with_options(options)
            )
        self._model = model
        self._steps = steps
        self._iterator: Any = None
        # A user's own step may return no loss.
        shown = [m for m in model.metrics if m.name == "loss"]

        @tf.function(autograph=False)
        def run_step(batch):
            strategy.run(step, args=(batch,))
            # The same on all workers, so that callbacks act the same on each.
            return {m.name: m.result() for m in shown}

        self._run_step = run_step

    def build(self) -> None:
        """Makes the variables of loss and metrics, as `fit` does."""
        strategy = self._model.distribute_strategy
        first = next(iter(self._batches), None)
        if first is None:
            raise value_error("`data` must have a batch", batches=0)
        batch = keras.tree.map_structure(
            lambda part: strategy.experimental_local_results(part)[0], first
        )
        with strategy.scope():
            build_from_batch(self._model, batch)

    def run(self, events: keras.callbacks.CallbackList, kind: str) -> None:
        """One epoch, with callbacks before and after each step."""
        before = getattr(events, f"on_{kind}_batch_begin")
        after = getattr(events, f"on_{kind}_batch_end")
        if self._steps is None or self._iterator is None:
            self._iterator = iter(self._batches)
        place = 0
        while self._steps is None or place < self._steps:
            batch = next(self._iterator, None)
            if batch is None:
                if self._steps is None:
                    return
                self._iterator = iter(self._batches)
                continue
            before(place)
            after(place, self._run_step(batch))
            place += 1
            if kind == "train" and self._model.stop_training:
                return


def _as_dataset(data: Any) -> Any:
    """Arrays as batches; a data set as it is."""
    if hasattr(data, "element_spec"):
        return data
    if not isinstance(data, tuple | list):
        raise type_error(
            "`validation_data` must be a `tf.data.Dataset` or arrays",
            validation_data=type(data).__name__,
        )
    return tf.data.Dataset.from_tensor_slices(tuple(data)).batch(32)


def _results(model: keras.Model) -> dict:
    """Values of the metrics over all workers, named as in `fit`."""
    values = model.get_metrics_result()
    return {
        name: float(value) if np.ndim(value) == 0 else to_numpy(value)
        for name, value in values.items()
    }

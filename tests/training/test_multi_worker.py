"""`fit_workers`, by one process: what it takes and gives."""

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from keras import ops
from small_trainings import COUNT, data_of, dense, network

import keras_calib as kc

needs_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="it is TensorFlow's"
)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="it is TensorFlow's")
def test_workers_need_what_is_compiled_and_ends():
    import tensorflow as tf

    x, y, labels, _ = data_of("crl", COUNT)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    with pytest.raises(ValueError, match="compiled and built"):
        kc.fit_workers(dense(keras.Model), data, epochs=1)
    with pytest.raises(ValueError, match="`steps_per_epoch` must be given"):
        kc.fit_workers(network("crl"), data.repeat(), epochs=1, verbose=0)
    with pytest.raises(ValueError, match="`data` must have a batch"):
        kc.fit_workers(network("crl"), data.take(0), epochs=1, verbose=0)
    batches = kc.EpochBatches(x, labels)
    with pytest.raises(TypeError, match="`data` must be a `tf.data.Dataset`"):
        kc.fit_workers(network("crl"), batches, epochs=1, verbose=0)
    with pytest.raises(TypeError, match="`validation_data` must be a `tf"):
        kc.fit_workers(
            network("crl"), data, epochs=1, validation_data=batches, verbose=0
        )
    model = network("crl")
    fitted = kc.fit_workers(
        model,
        data.repeat(),
        epochs=2,
        steps_per_epoch=2,
        validation_data=(x, labels),
        verbose=0,
    )
    assert set(fitted.history) == {
        "accuracy",
        "loss",
        "val_accuracy",
        "val_loss",
    }
    assert float(ops.sum(model.view_counts)) == 4 * 32


@pytest.mark.skipif(BACKEND != "tensorflow", reason="it is TensorFlow's")
def test_workers_give_cape_its_data():
    import tensorflow as tf

    x, y, _, _ = data_of("cape", COUNT)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    options = {"epochs": 1, "steps_per_epoch": 2, "verbose": 0}
    for given, calibration, count in (
        (data.repeat(), None, 64),
        (lambda context: data, [x, y], COUNT),
    ):
        model = network("cape")
        kc.fit_workers(model, given, calibration_data=calibration, **options)
        assert np.sum(array(model.targets) >= 0) == count
    with pytest.raises(ValueError, match="`calibration_data` must be given"):
        kc.fit_workers(network("cape"), lambda context: data, **options)
    with pytest.raises(
        ValueError, match="None unless the model is a `CaPEModel`"
    ):
        kc.fit_workers(network("crl"), data, calibration_data=(x, y), **options)


class ByClass(keras.metrics.Metric):
    """How often each class came: a metric of several values."""

    def __init__(self):
        super().__init__(name="by_class")
        self.counts = self.add_weight(shape=(3,), initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = ops.cast(ops.reshape(y_true, (-1,)), "int32")
        self.counts.assign_add(ops.sum(ops.one_hot(labels, 3), axis=0))

    def result(self):
        return self.counts


@pytest.mark.skipif(BACKEND != "tensorflow", reason="it is TensorFlow's")
def test_training_by_workers_stops_within_an_epoch_and_shows_the_loss():
    import tensorflow as tf

    class Stop(keras.callbacks.Callback):
        seen = []

        def on_train_batch_end(self, batch, logs=None):
            self.seen.append(logs["loss"])
            self.model.stop_training = batch == 1

    x, _, labels, _ = data_of("sam", COUNT)
    data = tf.data.Dataset.from_tensor_slices((x, labels)).batch(32)
    model = network("sam")
    model.compile(
        "sgd",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[ByClass()],
    )
    stop = Stop()
    fitted = kc.fit_workers(
        model, data, epochs=5, callbacks=[stop], verbose=0
    ).history
    assert int(model.optimizer.iterations) == 2
    assert len(fitted["loss"]) == 1
    assert stop.seen[-1] == pytest.approx(fitted["loss"][0], rel=1e-6)
    assert fitted["by_class"][0].shape == (3,)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="it works there")
def test_workers_are_of_tensorflow():
    with pytest.raises(RuntimeError, match="TensorFlow backend"):
        kc.fit_workers(network("crl"), [], epochs=1)

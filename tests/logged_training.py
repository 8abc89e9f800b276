"""Small trainings that a `CalibrationLogger` follows."""

import keras
import numpy as np
import pytest
from cases import BACKEND

import keras_calib as kc

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 4)).astype("float32") * 3
Y = RNG.integers(3, size=24)
LOSS = {"margin": 2.0, "strength": 0.05, "from_logits": True}
# To compile takes longer than these runs; JAX is slower without.
QUICK = {"jit_compile": "auto" if BACKEND == "jax" else False}
if BACKEND == "tensorflow":
    QUICK["run_eagerly"] = True
KERNELS = [RNG.normal(size=(4, 3)).astype("float32") for _ in range(4)]


class Step(keras.callbacks.Callback):
    """Sets the kernel of the model at the end of each epoch."""

    def __init__(self, kernels):
        super().__init__()
        self.kernels = kernels

    def on_epoch_end(self, epoch, logs=None):
        bias = np.zeros(self.kernels[epoch].shape[-1], "float32")
        self.model.layers[-1].set_weights([self.kernels[epoch], bias])


def network(loss=None, rate=0.05, channels=3, layers=(), graph=False):
    """A small model; `graph` trains and predicts it as users do."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), *layers, keras.layers.Dense(channels)]
    )
    if loss is None:
        # A logger follows the losses of this package, which takes longer.
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    how = {**QUICK, "run_eagerly": False} if graph else QUICK
    model.compile(keras.optimizers.SGD(rate), loss=loss, **how)
    return model


def in_one_batch(x, y):
    """What `fit` is given to make one step an epoch."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        # Of arrays Keras would make, and trace, a new pipeline in each run.
        return {"x": tf.data.Dataset.from_tensors((x, y))}
    return {"x": x, "y": y, "batch_size": len(x)}


def fit(model, *callbacks, epochs=2, data=(X, Y), **kwargs):
    return model.fit(
        **in_one_batch(*data),
        epochs=epochs,
        verbose=0,
        callbacks=list(callbacks),
        **kwargs,
    )


def logger(data=(X, Y), **kwargs):
    kwargs.setdefault("metrics", ["ece"])
    return kc.CalibrationLogger(data, **kwargs)


def predicted(model, x=X):
    return model.predict_on_batch(x)


def close(got, expected, tolerance=1e-5):
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=1e-6)


def fails_before_training(error, match, model, log, **kwargs):
    begun = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: pytest.fail("training began")
    )
    with pytest.raises(error, match=match):
        fit(model, log, begun, **kwargs)

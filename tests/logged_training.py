"""Small trainings that a `CalibrationLogger` follows."""

import keras
import numpy as np
import pytest
from cases import BACKEND

import keras_calib as kc

__all__ = [
    "KERNELS",
    "LOSS",
    "RNG",
    "Step",
    "X",
    "Y",
    "close",
    "fails_before_training",
    "fit",
    "logger",
    "network",
    "predicted",
]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 4)).astype("float32") * 3
Y = RNG.integers(3, size=24)
LOSS = {"margin": 2.0, "strength": 0.05, "from_logits": True}
KERNELS = [RNG.normal(size=(4, 3)).astype("float32") for _ in range(4)]


class Step(keras.callbacks.Callback):
    """Sets the kernel of the model at the end of each epoch."""

    def __init__(self, kernels):
        super().__init__()
        self.kernels = kernels

    def on_epoch_end(self, epoch, logs=None):
        bias = np.zeros(self.kernels[epoch].shape[-1], "float32")
        self.model.layers[-1].set_weights([self.kernels[epoch], bias])


def network(loss=None, rate=0.05, channels=3, layers=()):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), *layers, keras.layers.Dense(channels)]
    )
    loss = kc.MbLS(**LOSS) if loss is None else loss
    # To compile takes longer than these runs; JAX is slower without.
    jit = "auto" if BACKEND == "jax" else False
    model.compile(keras.optimizers.SGD(rate), loss=loss, jit_compile=jit)
    return model


def fit(model, *callbacks, epochs=2, **kwargs):
    return model.fit(
        X,
        Y,
        batch_size=8,
        epochs=epochs,
        verbose=0,
        shuffle=False,
        callbacks=list(callbacks),
        **kwargs,
    )


def logger(data=(X, Y), **kwargs):
    kwargs.setdefault("metrics", ["ece"])
    return kc.CalibrationLogger(data, **kwargs)


def predicted(model, x=X):
    return model.predict(x, batch_size=8, verbose=0)


def close(got, expected, tolerance=1e-5):
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=1e-6)


def fails_before_training(error, match, model, log, **kwargs):
    begun = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: pytest.fail("training began")
    )
    with pytest.raises(error, match=match):
        fit(model, log, begun, **kwargs)

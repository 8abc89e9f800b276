"""Small models of every kind, and data, for tests of training."""

import keras
import numpy as np
from keras import ops

import keras_calib as kc

__all__ = ["COUNT", "MODELS", "data_of", "network", "trained"]

COUNT = 96
CROSS_ENTROPY = {
    "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)
}


@keras.saving.register_keras_serializable(package="tests")
class Both(kc.SharpnessAwareModel, kc.CorrectnessRankingModel):
    pass


# Name: class, arguments, what it is compiled with, whether for two classes.
RECORDING = {"num_samples": COUNT}
ACLS = kc.ACLS(margin=0.5, condition="ranking", from_logits=True)
HUBER = kc.DCA(huber_delta=0.005, from_logits=True)
MODELS = {
    "crl": (kc.CorrectnessRankingModel, RECORDING, CROSS_ENTROPY),
    "crl acls": (
        kc.CorrectnessRankingModel,
        {**RECORDING, "role": "condition", "condition": "ranking"},
        {"loss": ACLS},
    ),
    "sam": (kc.SharpnessAwareModel, {"rho": 0.5}, CROSS_ENTROPY),
    "asam": (
        kc.SharpnessAwareModel,
        {"rho": 2.0, "adaptive": True},
        {"loss": kc.MMCE(from_logits=True)},
    ),
    "sam crl": (Both, {**RECORDING, "rho": 0.5}, CROSS_ENTROPY),
    "adafocal": (kc.AdaptiveFocalModel, {"from_logits": True}, {}),
    "schedule": (
        kc.ScheduledFocalModel,
        {"schedule": ((0, 3.0), (1, 1.0)), "from_logits": True},
        {},
    ),
    "cape": (
        kc.CaPEModel,
        {**RECORDING, "every": 2},
        {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
    ),
    "pruning": (
        kc.ConfidencePruningModel,
        {**RECORDING, "every": 1, "fraction": 0.3},
        {"loss": HUBER},
    ),
}


def network(name, dropout=0.0, run_eagerly=False):
    """A small model, the same each time, compiled and built."""
    cls, arguments, compiled = MODELS[name]
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(
        5, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01)
    )(inputs)
    if dropout:
        hidden = keras.layers.BatchNormalization()(hidden)
        hidden = keras.layers.Dropout(dropout)(hidden)
    outputs = keras.layers.Dense(num_classes_of(name))(hidden)
    model = cls(inputs, outputs, **arguments)
    compiled = {
        key: type(loss).from_config(loss.get_config())
        for key, loss in compiled.items()
    }
    model.compile(
        optimizer=keras.optimizers.SGD(0.5, momentum=0.9),
        metrics=["accuracy"],
        jit_compile=False if run_eagerly else "auto",
        run_eagerly=run_eagerly,
        **compiled,
    )
    return model


def num_classes_of(name):
    return 2 if name == "cape" else 3


def data_of(name, count):
    """Inputs, labels with an index, labels, and weights with zeros."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(COUNT, 6)).astype("float32")
    labels = rng.integers(num_classes_of(name), size=COUNT)
    weight = rng.uniform(size=COUNT).astype("float32")
    weight[::7] = 0.0
    y = {"label": labels[:count], "index": np.arange(COUNT)[:count]}
    return x[:count], y, labels[:count], weight[:count]


def trained(name, *, uneven, run_eagerly=False):
    """Values of all variables and the losses of two epochs."""
    model = network(name, run_eagerly=run_eagerly)
    # Batches of 32, or 32, 32 and 27, of which replicas get 14 and 13.
    x, y, labels, weight = data_of(name, COUNT - 5 if uneven else COUNT)
    fitted = model.fit(
        x,
        y,
        sample_weight=weight,
        validation_data=(x, labels),
        batch_size=32,
        epochs=2,
        shuffle=False,
        verbose=0,
    ).history
    values = [ops.convert_to_numpy(v).tolist() for v in model.variables]
    return values, fitted


def largest_differences(a, b):
    """Of two trainings: of variables, and by name of what was shown."""
    difference = max(
        float(np.abs(np.array(v) - np.array(w)).max())
        for v, w in zip(a[0], b[0], strict=True)
    )
    shown = {
        key: float(np.abs(np.array(a[1][key]) - b[1][key]).max())
        for key in a[1]
    }
    return difference, shown

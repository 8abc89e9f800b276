"""Small models of every kind, and data, for tests of training."""

import keras
import numpy as np
from keras import ops

import keras_calib as kc
from keras_calib.backend.gradients import value_and_grad

# What no graph is needed for takes less time without.
EAGER = {"run_eagerly": True}

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
    "cape predicted": (
        kc.CaPEModel,
        {**RECORDING, "every": 2, "event": "predicted"},
        {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
    ),
    "pruning": (
        kc.ConfidencePruningModel,
        {**RECORDING, "every": 1, "fraction": 0.3},
        {"loss": HUBER},
    ),
}


def network(name, dropout=0.0, run_eagerly=False, jit_compile="auto"):
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
        jit_compile=False if run_eagerly else jit_compile,
        run_eagerly=run_eagerly,
        **compiled,
    )
    return model


def eager(name):
    """The same, which compiles nothing."""
    return network(name, run_eagerly=True)


def dense(cls, num_classes=3, **arguments):
    """A model of one layer, not compiled."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(num_classes)(inputs)
    return cls(inputs, outputs, **arguments)


class Batches(keras.utils.PyDataset):
    """One batch, of inputs and labels, or weights too."""

    def __init__(self, parts=2, y=None):
        super().__init__()
        x, _, labels, weight = data_of("adafocal", 32)
        self.batch = (x, labels if y is None else y, weight)[:parts]

    def __len__(self):
        return 1

    def __getitem__(self, place):
        return self.batch


def identity(cls, num_classes, **arguments):
    """A model that returns its inputs, compiled with cross entropy."""
    inputs = keras.Input((num_classes,))
    model = cls(inputs, keras.layers.Rescaling(1.0)(inputs), **arguments)
    if not isinstance(model, kc.AdaptiveFocalModel):
        model.compile(**CROSS_ENTROPY, **EAGER)
    return model


def loss_and_gradient(model, logits, y, sample_weight=None):
    """Of `compute_loss` in training, with respect to the logits."""

    def of_logits(logits):
        with keras.StatelessScope():
            return model.compute_loss(
                None, y, logits, sample_weight, training=True
            )

    value, gradient = value_and_grad(of_logits, logits.astype("float32"))
    return float(value), ops.convert_to_numpy(gradient)


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


def trained(name, *, uneven, run_eagerly=False, validates=True):
    """Values of all variables and the losses of two epochs."""
    model = network(name, run_eagerly=run_eagerly)
    # Batches of 32, or 32, 32 and 27, of which replicas get 14 and 13.
    x, y, labels, weight = data_of(name, COUNT - 5 if uneven else COUNT)
    fitted = model.fit(
        x,
        y,
        sample_weight=weight,
        validation_data=(x, labels) if validates else None,
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

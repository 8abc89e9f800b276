"""Run by test_models.py: models trained under N replicas, and under one.

python tests/training_replicas.py NUM_REPLICAS
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import keras_calib as kc

COUNT = 96
CROSS_ENTROPY = {
    "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)
}


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


def trained(name, uneven):
    """Values of all variables and the losses of two epochs."""
    cls, arguments, compiled = MODELS[name]
    num_classes = 2 if name == "cape" else 3
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(
        5, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01)
    )(inputs)
    model = cls(inputs, keras.layers.Dense(num_classes)(hidden), **arguments)
    compiled = {
        key: type(loss).from_config(loss.get_config())
        for key, loss in compiled.items()
    }
    model.compile(
        optimizer=keras.optimizers.SGD(0.5, momentum=0.9),
        metrics=["accuracy"],
        jit_compile=False,
        **compiled,
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(COUNT, 6)).astype("float32")
    labels = rng.integers(num_classes, size=COUNT)
    y = {"label": labels, "index": np.arange(COUNT)}
    # Batches of 32, or 32, 32, 27 of which replicas get 14 and 13.
    count = COUNT - 5 if uneven else COUNT
    y = {key: values[:count] for key, values in y.items()}
    weight = rng.uniform(size=count).astype("float32")
    weight[::7] = 0.0
    fitted = model.fit(
        x[:count],
        y,
        sample_weight=None if uneven else weight,
        validation_data=(x, labels),
        batch_size=32,
        epochs=3,
        shuffle=False,
        verbose=0,
    ).history
    values = [ops.convert_to_numpy(v).tolist() for v in model.variables]
    return values, fitted


def main(num_replicas):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * num_replicas
    )
    cases = [(name, uneven) for name in MODELS for uneven in (False, True)]
    one = [trained(*case) for case in cases]
    names = [f"CPU:{i}" for i in range(num_replicas)]
    with tf.distribute.MirroredStrategy(names).scope():
        many = [trained(*case) for case in cases]
    answer = {}
    for (name, uneven), a, b in zip(cases, one, many, strict=True):
        difference = max(
            float(np.abs(np.array(v) - np.array(w)).max())
            for v, w in zip(a[0], b[0], strict=True)
        )
        shown = {
            key: float(np.abs(np.array(a[1][key]) - b[1][key]).max())
            for key in a[1]
        }
        answer[f"{name}{' uneven' * uneven}"] = [difference, shown]
    print(json.dumps(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]))

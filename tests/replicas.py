"""Run by metrics/test_exactness.py: raw sums under N replicas and under one.

Losses are in training_replicas.py.

python tests/replicas.py NUM_REPLICAS
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf
from cases import KINDS, METRICS

import keras_calib as kc

# Of more replicas fewer: each of them traces each update.
CASES = METRICS if sys.argv[1] == "2" else KINDS
MODEL = ("in a model", "table in a model", "several labels", "their AURC")
NAMES = [*MODEL, *(case.name for case in CASES)]


def model():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])


def evaluated(x, y):
    """Every metric, and a model evaluated with few."""
    network = model()
    metrics = [
        kc.ECE(from_logits=True),
        kc.CalibrationMetrics(
            ["ece", "nll"], prefix="a_", from_logits=True, refresh_every=2
        ),
    ]
    loss = kc.MbLS(from_logits=True)
    network.compile(loss=loss, metrics=metrics, jit_compile=False)
    shown = []
    step = keras.callbacks.LambdaCallback(
        on_test_batch_end=lambda batch, logs: shown.append(logs["ece"])
    )
    network.evaluate(x, y, batch_size=32, verbose=0, callbacks=[step])
    # Replicas too leave values out of the third step.
    assert len(set(shown)) == 3 and shown[1] == shown[2]
    metrics += several_labels(x, y)
    metrics += updated(x[:, :3], y)
    sums = [integers(metric.sums) for metric in metrics]
    values = [
        [float(x) for x in keras.tree.flatten(metric.result())]
        for metric in metrics
    ]
    return sums, values


def several_labels(x, y):
    """Metrics of several labels, which learn their number from the model."""
    network = model()
    options = {"from_logits": True, "ignore_class": -1}
    metrics = [
        kc.MultiLabel(kc.ECE(**options)),
        kc.MultiLabel(kc.AURC(resolution=1024, **options), by="example"),
    ]
    loss = kc.MultiLabel(kc.MbLS(**options))
    network.compile(loss=loss, metrics=metrics, jit_compile=False)
    labels = np.where(y[:, None] == np.arange(3), 1, y[:, None] - 1).clip(-1, 1)
    network.evaluate(x, labels, batch_size=32, verbose=0)
    return metrics


def updated(logits, labels):
    """Every metric, updated without a model, which would compile for long."""
    strategy = tf.distribute.get_strategy()
    metrics = [case.make(3, from_logits=True) for case in CASES]
    data = tf.data.Dataset.from_tensor_slices((labels, logits)).batch(32)

    @tf.function(autograph=False)
    def update(batch):
        for metric in metrics:
            strategy.run(metric.update_state, args=batch)

    for batch in strategy.experimental_distribute_dataset(data):
        update(batch)
    return metrics


def integers(sums):
    """Limbs of replicas are added without a carry: the numbers themselves."""
    limbs = np.asarray(keras.ops.convert_to_numpy(sums)).astype(object)
    return limbs[0] + limbs[1] * 2**24 + limbs[2] * 2**48


def main(num_replicas):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * num_replicas
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 6)).astype("float32")
    y = rng.integers(3, size=128)
    one, values = evaluated(x, y)
    names = [f"CPU:{i}" for i in range(num_replicas)]
    with tf.distribute.MirroredStrategy(names).scope():
        many, same = evaluated(x, y)
    equal = {}
    exact = {case.name for case in CASES if case.has_exact_sums}
    for name, a, b, v, w in zip(NAMES, one, many, values, same, strict=True):
        equal[name] = np.allclose(v, w, rtol=1e-5, atol=1e-7)
        # Losses round to the scale of their batch, and a logarithm may round
        # in another way at the end of an array.
        differ = np.flatnonzero(a != b)
        if name in exact:
            equal[name] &= not len(differ)
        else:
            room = 2**30 * 1e-5 * np.maximum(1.0, a[differ].astype(float))
            equal[name] &= bool((abs(a - b)[differ] <= room).all())
        equal[name] = bool(equal[name])
    print(json.dumps({"equal": equal}))


if __name__ == "__main__":
    main(int(sys.argv[1]))

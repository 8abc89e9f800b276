"""Run by test_metrics.py: raw sums and losses under N replicas and under one.

python tests/replicas.py NUM_REPLICAS
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf
from cases import LOSSES
from cases import METRICS


def model():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])


def evaluated(x, y, shards):
    """A model evaluated with every metric, and with losses in turn.

    A loss that looks at the whole batch sees that of its replica: alone, the
    mean over as many `shards` of the batch is what replicas should give.
    """
    network = model()
    metrics = [case.make(from_logits=True) for case in METRICS]
    network.compile(loss=LOSSES[0].make(), metrics=metrics, jit_compile=False)
    network.evaluate(x, y, batch_size=32, verbose=0)
    losses = {}
    coupled = [case for case in LOSSES if case.batch_coupled]
    for case in LOSSES[::5] + coupled:
        labels = case.labels(y)
        network = model()
        network.compile(
            optimizer=keras.optimizers.SGD(0.5),
            loss=case.make(),
            jit_compile=False,
        )
        data = (x[:32], labels[:32])
        if not case.batch_coupled:
            network.fit(*data, batch_size=32, epochs=2, verbose=0)
        size = 32 // shards if case.batch_coupled else 32
        losses[case.name] = network.evaluate(*data, batch_size=size, verbose=0)
    sums = [np.asarray(metric.sums.value) for metric in metrics]
    return sums, [float(metric.result()) for metric in metrics], losses


def main(num_replicas):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * num_replicas
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 6)).astype("float32")
    y = rng.integers(3, size=128)
    one, values, losses = evaluated(x, y, num_replicas)
    names = [f"CPU:{i}" for i in range(num_replicas)]
    with tf.distribute.MirroredStrategy(names).scope():
        many, same, mirrored = evaluated(x, y, 1)
    equal = {}
    for case, a, b, v, w in zip(METRICS, one, many, values, same, strict=True):
        # Limbs of replicas are added without a carry: compare the numbers.
        a, b = (
            s[0].astype(object)
            + s[1].astype(object) * 2**24
            + s[2].astype(object) * 2**48
            for s in (a, b)
        )
        if case.name == "NLL":
            exact = abs(v - w) <= 1e-6 * v
        else:
            exact = (a == b).all() and abs(v - w) <= 1e-6 * v
        equal[case.name] = bool(exact)
    pairs = {name: (losses[name], mirrored[name]) for name in losses}
    print(json.dumps({"equal": equal, "losses": pairs}))


if __name__ == "__main__":
    main(int(sys.argv[1]))

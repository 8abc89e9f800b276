"""Losses of a batch that a strategy of TensorFlow has split."""

import numpy as np
import tensorflow as tf
from cases import LOSSES as CASES


def gradients(sizes, cases=CASES):
    """Loss and gradient of every loss, on a batch in parts of these sizes.

    They are what `fit` adds up: the optimizer those of the replicas.
    """
    strategy = tf.distribute.get_strategy()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(27, 6)).astype("float32")
    ids = rng.integers(3, size=27)
    weight = rng.uniform(size=27).astype("float32")
    kernel = tf.constant(rng.normal(size=(6, 3)), "float32")
    ends = np.cumsum(sizes)

    def shared_out(values):
        parts = np.split(np.asarray(values), ends[:-1])
        parts = [tf.constant(part) for part in parts]
        return strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )

    found = {}
    for case in cases:
        loss = case.make()

        def step(x, y, weight, loss=loss):
            with tf.GradientTape() as tape:
                tape.watch(kernel)
                value = loss(y, x @ kernel, weight)
            return value, tape.gradient(value, kernel)

        @tf.function(autograph=False)
        def run(*batch, step=step):
            parts = strategy.run(step, args=batch)
            return [strategy.reduce("SUM", part, axis=None) for part in parts]

        batch = (x, case.labels(ids), weight)
        value, gradient = run(*map(shared_out, batch))
        found[case.name] = np.append(gradient.numpy().ravel(), value.numpy())
    return found

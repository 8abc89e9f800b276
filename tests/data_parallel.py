"""Run by metrics/test_exactness.py: raw sums of a batch over devices of JAX.

XLA_FLAGS=--xla_force_host_platform_device_count=N python tests/data_parallel.py
"""

import json

import jax
import keras
import numpy as np
from cases import KINDS, METRICS
from jax.sharding import NamedSharding, PartitionSpec

import keras_calib as kc

EACH = [case for case in METRICS if case in KINDS or case.name == "Accuracy"]
FEW = [case for case in KINDS if case.cls is not kc.CalibrationMetrics]


def evaluated(x, y):
    """Metrics of a model that is evaluated."""
    keras.utils.set_random_seed(0)
    network = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    metrics = [case.make(3, from_logits=True) for case in FEW]
    options = {"from_logits": True, "prefix": "table_"}
    metrics.append(kc.CalibrationMetrics(["ece", "nll"], **options))
    network.compile(loss=kc.LabelSmoothing(from_logits=True), metrics=metrics)
    network.evaluate(x, y, batch_size=64, verbose=0)
    return metrics


def updated(logits, labels):
    """One of each kind, updated without a model."""
    metrics = []
    layout = None
    distribution = keras.distribution.distribution()
    if distribution is not None:
        mesh = distribution.device_mesh.backend_mesh
        layout = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    for case in EACH:
        metric = case.make(3, from_logits=True)
        update = jax.jit(metric.stateless_update_state)
        variables = metric.stateless_reset_state()
        for start in (0, 64):
            part = slice(start, start + 64)
            batch = jax.device_put((labels[part], logits[part]), layout)
            variables = update(variables, *batch)
        for own, value in zip(metric.variables, variables, strict=True):
            own.assign(value)
        metrics.append(metric)
    return metrics


def read(metrics):
    """Sums as whole numbers."""
    limbs = [np.asarray(metric.sums.value).astype(object) for metric in metrics]
    return [x[0] + x[1] * 2**24 + x[2] * 2**48 for x in limbs]


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 6)).astype("float32")
    y = rng.integers(3, size=128)
    logits = 2 * x[:, :3]
    one = evaluated(x, y) + updated(logits, y)
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    many = evaluated(x, y)
    spread = {len(m.sums.value.sharding.device_set) for m in many}
    many += updated(logits, y)
    names = [f"{case.name} in a model" for case in FEW] + ["table in a model"]
    names += [case.name for case in EACH]
    differ = {}
    for name, a, b in zip(names, read(one), read(many), strict=True):
        largest = abs(a - b) / np.maximum(2.0**30, abs(a).astype(float))
        differ[name] = [int((a != b).sum()), float(largest.max())]
    (devices,) = spread
    print(json.dumps({"devices": devices, "differ": differ}))


if __name__ == "__main__":
    main()

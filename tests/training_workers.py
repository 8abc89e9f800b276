"""Run by training/test_distribution.py: models of one of N workers, or alone.

TF_CONFIG={...} python tests/training_workers.py FILE
"""

import os
import sys

import numpy as np
import tensorflow as tf
from keras import ops
from small_trainings import COUNT, data_of, network

import keras_calib as kc

NAMES = ("crl", "asam", "adafocal", "pruning")


def trained(name, strategy):
    """Values of all variables and the losses of two epochs."""
    with strategy.scope():
        model = network(name)
    x, y, labels, weight = data_of(name, COUNT)
    data = tf.data.Dataset.from_tensor_slices((x, y, weight)).batch(32)
    valid = tf.data.Dataset.from_tensor_slices((x, labels)).batch(32)
    fitted = kc.fit_workers(
        model, data, epochs=2, validation_data=valid, verbose=0
    ).history
    return [ops.convert_to_numpy(v) for v in model.variables], fitted


def main(path):
    several = "TF_CONFIG" in os.environ
    strategy = tf.distribute.get_strategy()
    if several:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    found = {}
    for name in NAMES:
        values, fitted = trained(name, strategy)
        for i, value in enumerate(values):
            found[f"{name}/{i}"] = value
        for key, value in fitted.items():
            found[f"{name}/{key}"] = np.array(value)
    if several:
        with strategy.scope():
            model = network("crl")
        try:
            model.fit(np.zeros((32, 6)), np.zeros(32))
        except RuntimeError as error:
            found["refused"] = np.array("fit_workers" in str(error))
    np.savez(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])

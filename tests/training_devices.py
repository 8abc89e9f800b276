"""Run by training/test_distribution.py: trainings over devices of JAX, or one.

XLA_FLAGS=--xla_force_host_platform_device_count=N \\
    KERAS_BACKEND=jax python tests/training_devices.py
"""

import json

import jax
import keras
from small_trainings import data_of, largest_differences, network, trained

# Those that look at all of a batch, and in two passes.
NAMES = ("crl acls", "sam crl")


def main():
    one = [trained(name, uneven=False) for name in NAMES]
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    many = [trained(name, uneven=False) for name in NAMES]
    answer = {
        name: largest_differences(a, b)
        for name, a, b in zip(NAMES, one, many, strict=True)
    }
    try:
        trained("crl", uneven=True)
        refused = "trained"
    except ValueError as error:
        refused = str(error)
    x, y, labels, _ = data_of("crl", 64)
    valid = (x[:31], labels[:31])
    try:
        network("crl").fit(x, y, validation_data=valid, verbose=0)
        refused_once = "trained"
    except ValueError as error:
        refused_once = str(error)
    facts = {"validation": refused_once.count("each batch must divide")}
    facts |= {"devices": jax.device_count(), "uneven": refused}
    print(json.dumps({**facts, **answer}))


if __name__ == "__main__":
    main()

"""The devices that a script trains on, by its flags.

`--strategy=mirrored` trains on all GPUs of the machine, each with its part of
the batch. `--logical_devices=2` splits the CPU into two devices instead, to
try that out where there is no GPU.
"""

import contextlib
import functools

import keras
from absl import app


def check_batch_size(batch_size, strategy, logical_devices=None):
    """Raises unless the devices can share a batch evenly.

    Scripts call it first: TensorFlow splits the CPU only before it is used.

    Args:
        batch_size: Samples of a step, on all devices together.
        strategy: `"none"` or `"mirrored"`.
        logical_devices: How many devices the CPU is split into, or None.

    Raises:
        app.UsageError: If they cannot, or flags do not go together.
    """
    if strategy == "none":
        if logical_devices is not None:
            raise app.UsageError(
                "`--logical_devices` must come with --strategy=mirrored. "
                f"Received: --logical_devices={logical_devices}"
            )
        return
    if keras.backend.backend() != "tensorflow":
        raise app.UsageError(
            "`--strategy` must be none on this backend: set "
            "KERAS_BACKEND=tensorflow to train on several devices. Received: "
            f"--strategy={strategy}, backend={keras.backend.backend()}"
        )
    count = mirrored(logical_devices).num_replicas_in_sync
    if batch_size % count == 0:
        return
    below = batch_size // count * count
    sizes = [size for size in (below, below + count) if size]
    fewer = max(n for n in range(1, count) if batch_size % n == 0)
    numbers = ",".join(map(str, range(fewer)))
    devices = f"on {fewer} with CUDA_VISIBLE_DEVICES={numbers}"
    if logical_devices is not None:
        devices = f"on {fewer} with --logical_devices={fewer}"
    if fewer == 1:
        devices = "on one with --strategy=none"
    raise app.UsageError(
        f"`--batch_size` must be a multiple of the {count} devices that share "
        "it: set "
        + " or ".join(f"--batch_size={size}" for size in sizes)
        + f", or train {devices}. "
        f"Received: --batch_size={batch_size}, {count} devices"
    )


def scope(strategy, logical_devices=None):
    """Where models are made and compiled, by the names of the flags."""
    if strategy == "none":
        return contextlib.nullcontext()
    return mirrored(logical_devices).scope()


def make_alike(model):
    """Gives all replicas of a trained model the variables of the first.

    Each moves the statistics of plain batch normalizations by itself, and a
    saved file holds those of the first: what is measured must be what is
    saved.

    Args:
        model: After training, before it predicts or is saved.
    """
    model.set_weights(model.get_weights())


@functools.cache
def mirrored(logical_devices=None):
    """The `MirroredStrategy` of this process, which has one."""
    import tensorflow as tf

    if logical_devices is None:
        return tf.distribute.MirroredStrategy()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * logical_devices,
    )
    names = [f"CPU:{place}" for place in range(logical_devices)]
    return tf.distribute.MirroredStrategy(names)

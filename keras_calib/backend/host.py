"""Data that lie in the memory of the host, where NumPy can read them."""

from typing import Any

import numpy as np
from keras import backend, ops

from keras_calib.backend.traced import is_traced

__all__ = ["host_array"]


def host_array(x: Any) -> np.ndarray | None:
    """The NumPy array of data in host memory, not copied; None for others."""
    if isinstance(x, np.ndarray):
        return x
    if not ops.is_tensor(x) or is_traced(x):
        return None
    name = backend.backend()
    if name == "jax":
        local = [device.platform for device in x.devices()] == ["cpu"]
    elif name == "torch":
        local, x = x.device.type == "cpu", x.detach()
        if local and "bfloat16" in str(x.dtype):
            # NumPy has none for torch.
            x = x.float()
    else:
        import tensorflow as tf

        # A variable is no tensor.
        x = x if isinstance(x, tf.Tensor) else tf.convert_to_tensor(x)
        local = "CPU" in x.device
    try:
        return np.asarray(x) if local else None
    except (NotImplementedError, RuntimeError, TypeError):
        return None

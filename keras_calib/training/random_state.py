"""The random numbers of Python, NumPy and torch, as a backup keeps them."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import backend

from keras_calib.backend.array_files import ArrayFile

__all__ = ["checked_random_state", "random_state"]


def random_state() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What JSON takes, and arrays, both by name.

    Those of Keras' generators are variables of the model.
    """
    kind, keys, *rest = np.random.get_state()
    numbers = {
        "python_random": random.getstate(),
        "numpy_random": [kind, *rest],
    }
    arrays = {"numpy_random_keys": keys}
    if backend.backend() == "torch":
        # On which Keras' dropout draws there.
        import torch

        states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
        for i, state in enumerate(states):
            arrays[f"torch_random_{i}"] = state.numpy()
    return numbers, arrays


def checked_random_state(
    numbers: dict[str, Any], arrays: ArrayFile
) -> Callable[[], None]:
    """A function that sets all of them, which were tried on other generators.

    Raises:
        LookupError, OverflowError, TypeError, ValueError: If they are none.
    """
    version, internal, gauss = numbers["python_random"]
    ours = version, tuple(internal), gauss
    random.Random().setstate(ours)
    kind, *rest = numbers["numpy_random"]
    theirs = kind, arrays.read("numpy_random_keys"), *rest
    np.random.RandomState().set_state(theirs)
    set_torch = _checked_torch(arrays)

    def set_all():
        random.setstate(ours)
        np.random.set_state(theirs)
        set_torch()

    return set_all


def _checked_torch(arrays: ArrayFile) -> Callable[[], None]:
    count = sum(name.startswith("torch_random_") for name in arrays.names)
    if backend.backend() != "torch" or not count:
        return lambda: None
    import torch

    own, *others = [
        torch.from_numpy(arrays.read(f"torch_random_{i}")) for i in range(count)
    ]
    try:
        torch.Generator().set_state(own)
    except RuntimeError as error:
        raise ValueError(str(error)) from error

    def set_torch():
        torch.set_rng_state(own)
        if len(others) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(others)

    return set_torch

"""Products of matrices with all digits of float32."""

import functools
from collections.abc import Callable
from typing import Any

from keras_calib.backend.late import keras_module

__all__ = ["exact_products"]

backend = keras_module("keras.backend")


def exact_products(function: Callable) -> Callable:
    """A function whose products and convolutions JAX does not round.

    By default it rounds their factors to 10 bits on GPUs, for speed. On torch
    and TensorFlow only the program can choose that, not an operation, and
    `docs/devices.md` says how.
    """

    @functools.wraps(function)
    def exact(*args: Any, **kwargs: Any) -> Any:
        if backend.backend() != "jax":
            return function(*args, **kwargs)
        import jax

        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return exact

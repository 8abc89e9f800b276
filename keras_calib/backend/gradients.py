"""Derivatives on the three backends, which keras.ops does not have."""

from collections.abc import Callable
from typing import Any

from keras import backend
from keras import ops

__all__ = ["value_and_grad", "with_gradient"]


def value_and_grad(fn: Callable, x: Any) -> tuple[Any, Any]:
    """Value and gradient of a scalar function at a float tensor."""
    x = ops.convert_to_tensor(x)
    if backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(x)
            value = fn(x)
        return value, tape.gradient(value, x)
    if backend.backend() == "jax":
        import jax

        return jax.value_and_grad(fn)(x)
    if backend.backend() == "torch":
        import torch

        x = x.detach().requires_grad_(True)
        value = fn(x)
        (gradient,) = torch.autograd.grad(value, x)
        return value.detach(), gradient
    raise RuntimeError(
        "`value_and_grad` needs the tensorflow, jax or torch backend. "
        f"Received: backend={backend.backend()!r}"
    )


def with_gradient(forward: Callable, logits: Any) -> Any:
    """Compute values per sample, with a gradient in closed form.

    It takes fewer passes over the logits than automatic differentiation. There
    is no second derivative, and no forward mode on JAX.

    Args:
        forward: Function of logits that returns `(values, gradient)`. The
            values have shape `(...)`. `gradient` is a function without
            arguments that returns d values / d logits, `(..., num_classes)`.
        logits: Float tensor `(..., num_classes)`.
    """

    @ops.custom_gradient
    def run(logits):
        values, gradient = forward(logits)

        def backward(*args, upstream=None):
            if upstream is None:
                (upstream,) = args
            return ops.expand_dims(upstream, -1) * gradient()

        return values, backward

    return run(logits)

"""Derivatives on the three backends, which keras.ops does not have."""

import functools
from collections.abc import Callable
from typing import Any

from keras import backend, ops

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

    It takes fewer passes over the logits than automatic differentiation.
    Second derivatives are those of the closed form.

    Args:
        forward: Function of logits that returns `(values, gradient)`. The
            values have shape `(...)`. `gradient` is a function without
            arguments that returns d values / d logits, `(..., num_classes)`.
            What else it uses is constant.
        logits: Float tensor `(..., num_classes)`.
    """
    if backend.backend() == "jax":
        return _with_jvp(forward, logits)
    if backend.backend() == "torch":
        return _torch_function().apply(forward, logits)

    @ops.custom_gradient
    def run(logits):
        values, gradient = forward(logits)

        def backward(*args, upstream=None):
            if upstream is None:
                (upstream,) = args
            return ops.expand_dims(upstream, -1) * gradient()

        return values, backward

    return run(logits)


def _with_jvp(forward: Callable, logits: Any) -> Any:
    """`with_gradient` by a rule that JAX uses forwards and backwards."""
    import jax

    @jax.custom_jvp
    def run(logits):
        return forward(logits)[0]

    @run.defjvp
    def rule(primals, tangents):
        values, gradient = forward(*primals)
        axes = tuple(range(values.ndim, tangents[0].ndim))
        return values, ops.sum(gradient() * tangents[0], axis=axes)

    return run(logits)


@functools.cache
def _torch_function() -> Any:
    """`with_gradient` for torch, with derivatives of the gradient."""
    import torch

    class ClosedForm(torch.autograd.Function):
        @staticmethod
        def forward(context, forward, logits):
            values, context.gradient = forward(logits)
            context.formula = forward
            context.save_for_backward(logits)
            return values

        @staticmethod
        def backward(context, upstream):
            gradient = context.gradient
            if torch.is_grad_enabled():
                # Once more, now that its operations are recorded.
                gradient = context.formula(*context.saved_tensors)[1]
            return None, ops.expand_dims(upstream, -1) * gradient()

    return ClosedForm

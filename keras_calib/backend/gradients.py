"""Derivatives on the three backends, which keras.ops does not have."""

import functools
import math
from collections.abc import Callable
from typing import Any

from keras import backend, ops

from keras_calib.backend.compiled import run_by_xla
from keras_calib.backend.late import jax, torch
from keras_calib.backend.late import tensorflow as tf


def value_and_grad(fn: Callable, x: Any) -> tuple[Any, Any]:
    """Value and gradient of a scalar function at a float tensor."""
    x = ops.convert_to_tensor(x)
    if backend.backend() == "tensorflow":
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = fn(x)
        return value, tape.gradient(value, x)
    if backend.backend() == "jax":
        return jax.value_and_grad(fn)(x)
    if backend.backend() == "torch":
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


# Rows as wide as a vocabulary leave no room for copies of all of them: beside
# the rows and their gradient there are the temporaries of one block only. From
# so many classes and logits on, rows are read in blocks; few are faster whole.
_WIDE = 4096
_MANY = 2**22
# Blocks that all rows are read in. Time of a kernel's start, times this, must
# stay small; temporaries are some rows' share of it.
_BLOCKS = 16
# Logits of a block on torch, where each operation leaves a temporary.
_OF_BLOCK = 2**20


def is_wide(logits: Any) -> bool:
    """Whether to read rows of logits in blocks.

    Not over several devices of JAX, which may each hold a part of the rows.
    """
    shape = tuple(logits.shape)
    if not shape or shape[-1] is None or shape[-1] < _WIDE:
        return False
    if None not in shape and math.prod(shape) < _MANY:
        return False
    if backend.backend() == "jax":
        return jax.device_count() == 1
    return backend.backend() in ("tensorflow", "torch")


def with_gradient_by_rows(forward: Callable, logits: Any, *beside: Any) -> Any:
    """`with_gradient` of values that depend on their own row each.

    Args:
        forward: Function of logits and of what is beside them, which returns
            `(values, gradient)` as in `with_gradient`.
        logits: Float tensor `(n, num_classes)`.
        *beside: Tensors `(n, ...)` without a gradient, or None.
    """
    name = backend.backend()
    if logits.shape[0] == 0:
        return with_gradient(lambda z: forward(z, *beside), logits)
    if name == "jax":
        return _of_jax(forward, logits, beside)
    if name == "torch":
        return _torch_by_rows().apply(forward, beside, logits)
    return _of_tensorflow(forward, logits, beside)


def add_by_rows(
    of_rows: Callable, add: Callable, zero: Any, arrays: list
) -> Any:
    """Add what blocks of rows give, without a gradient.

    Args:
        of_rows: Function of `(arrays, is_new)` of a block to what `add` takes.
            `is_new` is False for rows that another block has too.
        add: Function of two results to their sum.
        zero: Sum of nothing.
        arrays: Tensors `(n, ...)`.
    """
    count = ops.shape(arrays[0])[0]
    size = -(-count // _BLOCKS)
    name = backend.backend()

    def step(i, total):
        # The last block may overlap the one before it.
        start = ops.minimum(i * size, count - size)
        rows = [_rows_at(x, start, size) for x in arrays]
        is_new = start + ops.arange(size, dtype="int32") >= i * size
        return add(total, of_rows(rows, is_new))

    if name == "jax":
        return jax.lax.fori_loop(0, -(-count // size), step, zero)
    if name == "tensorflow" and not tf.executing_eagerly():
        return tf.while_loop(
            lambda i, _: i * size < count,
            lambda i, total: (i + 1, step(i, total)),
            (0, zero),
            parallel_iterations=1,
        )[1]
    for i in range(-(-int(count) // int(size))):
        zero = step(i, zero)
    return zero


def _rows_at(x: Any, start: Any, size: Any) -> Any:
    name = backend.backend()
    if name == "jax":
        return jax.lax.dynamic_slice_in_dim(x, start, size)
    if name == "tensorflow":
        # XLA reads no other rows of `x[start:end]` than the first.
        rest = list(x.shape[1:])
        return tf.slice(x, [start, *[0] * len(rest)], [size, *rest])
    return x[int(start) : int(start) + size]


def _values(forward: Callable) -> Callable:
    return lambda *parts: (forward(*parts)[0],)


def _slopes(forward: Callable) -> Callable:
    def slopes(upstream, *parts):
        return (ops.expand_dims(upstream, -1) * forward(*parts)[1](),)

    return slopes


def _parts(arrays: tuple, cut: Callable) -> list:
    return [None if x is None else cut(x) for x in arrays]


def _of_jax(forward: Callable, logits: Any, beside: tuple) -> Any:
    """By a rule for derivatives forwards, of which JAX makes the others."""
    count = logits.shape[0]
    size = -(-count // _BLOCKS)

    def loop(fn, arrays, results):
        def of_block(i, results):
            start = jax.numpy.minimum(i * size, count - size)
            parts = _parts(arrays, lambda x: _rows_at(x, start, size))
            update = jax.lax.dynamic_update_slice_in_dim
            return tuple(
                update(whole, part, start, 0)
                for whole, part in zip(results, fn(*parts), strict=True)
            )

        # The last block may overlap the one before it.
        return jax.lax.fori_loop(0, -(-count // size), of_block, results)

    def both(*parts):
        values, gradient = forward(*parts)
        return values, gradient()

    nothing = jax.numpy.zeros(count, logits.dtype)

    @jax.custom_jvp
    def run(logits):
        return loop(_values(forward), (logits, *beside), (nothing,))[0]

    @run.defjvp
    def rule(primals, tangents):
        (rows,), (tangent,) = primals, tangents
        # Overwritten. XLA would allocate zeros before the logits.
        start = nothing, jax.numpy.broadcast_to(rows[0, 0], rows.shape)
        values, slopes = loop(both, (rows, *beside), start)
        return values, ops.sum(slopes * tangent, axis=-1)

    return run(logits)


@functools.cache
def _torch_by_rows() -> Any:
    def loop(fn, arrays, result, width):
        size = max(1, _OF_BLOCK // width)
        for start in range(0, len(result), size):
            rows = slice(start, start + size)
            (result[rows],) = fn(*_parts(arrays, lambda x, r=rows: x[r]))
        return result

    class ByRows(torch.autograd.Function):
        @staticmethod
        def forward(context, forward, beside, logits):
            context.formula, context.beside = forward, beside
            context.save_for_backward(logits)
            values = torch.empty_like(logits[:, 0])
            width = logits.shape[-1]
            return loop(_values(forward), (logits, *beside), values, width)

        @staticmethod
        def backward(context, upstream):
            (logits,) = context.saved_tensors
            arrays = (upstream, logits, *context.beside)
            slopes = _slopes(context.formula)
            if torch.is_grad_enabled():
                # Its operations are recorded, which needs them whole.
                return None, None, slopes(*arrays)[0]
            result = torch.empty_like(logits)
            loop(slopes, arrays, result, logits.shape[-1])
            return None, None, result

    return ByRows


def _of_tensorflow(forward: Callable, logits: Any, beside: tuple) -> Any:
    """A loop as a cluster of XLA, which updates its result in place."""
    given = [i for i, x in enumerate(beside) if x is not None]

    def loop(fn, like, start, *arrays):
        count = tf.shape(arrays[0])[0]
        size = -(-count // _BLOCKS)

        def block(i):
            row = tf.minimum(i * size, count - size)
            return row, *fn(*[_rows_at(x, row, size) for x in arrays])

        if tf.executing_eagerly():
            steps = -(-int(count) // int(size))
            # The last block may overlap the one before it.
            parts = [block(i)[1] for i in range(steps)]
            skip = steps * size - count
            return tf.concat([*parts[:-1], parts[-1][skip:]], axis=0)

        def step(i, result):
            row, part = block(i)
            zeros = [0] * (len(part.shape) - 1)
            return i + 1, ops.slice_update(result, [row, *zeros], part)

        return tf.while_loop(
            lambda i, _: i < _BLOCKS,
            step,
            (0, tf.fill(tf.shape(like(arrays)), start)),
            maximum_iterations=_BLOCKS,
            parallel_iterations=1,
        )[1]

    def run_loop(fn, like, start, *arrays):
        return run_by_xla(lambda *x: loop(fn, like, *x), start, *arrays)

    def whole(*parts):
        """`forward` with None where nothing is given."""
        rows, *rest = parts
        full = [None] * len(beside)
        for place, x in zip(given, rest, strict=True):
            full[place] = x
        return forward(rows, *full)

    constant = [tf.stop_gradient(beside[i]) for i in given]

    @tf.custom_gradient
    def run(logits):
        arrays = (logits, *constant)

        def backward(upstream):
            # It is overwritten, and depends on the values: XLA would allocate
            # zeros before the logits, and once more while it compiles.
            start, parts = tf.reduce_sum(values), (upstream, *arrays)
            return run_loop(_slopes(whole), lambda x: x[1], start, *parts)

        start = tf.zeros((), logits.dtype)
        values = run_loop(_values(whole), lambda x: x[0][:, 0], start, *arrays)
        return values, backward

    return run(logits)

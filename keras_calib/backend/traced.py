"""Where tensors have their values: in a graph, not at all, or on the host."""

import gc
import weakref
from typing import Any

import numpy as np
from keras import backend, ops

from keras_calib.backend.keras_internals import (
    activation_behind,
    in_stateless_scope,
)
from keras_calib.backend.late import jax
from keras_calib.backend.late import tensorflow as tf

# The graphs of TensorFlow that hold variables of an object.
_GRAPHS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# Objects whose variables are constants of functions that JAX compiled.
_CONSTANT: weakref.WeakSet = weakref.WeakSet()

# Operations that keep logits logits, and probabilities probabilities.
_PASSING = {
    "Cast",
    "ExpandDims",
    "Identity",
    "Reshape",
    "ResizeBilinear",
    "ResizeNearestNeighbor",
    "Squeeze",
}
# Operations of layers, before the bias.
_PRODUCTS = {"Conv2D", "Conv2DBackpropInput", "Conv3D", "MatMul"}
_SUMS = {"Add", "AddV2", "BiasAdd"}
# Operations that gather and mix probabilities.
_MIXING = _PASSING | _SUMS
_MIXING |= {"AddN", "Mean", "Mul", "RealDiv", "Sub", "Sum"}
_MIXING |= {"ConcatV2", "Pack", "StridedSlice", "Transpose"}


def is_traced(x: Any) -> bool:
    """Whether a tensor has no values, because it is traced or symbolic."""
    if isinstance(x, np.ndarray | np.generic):
        return False
    name = backend.backend()
    if backend.is_keras_tensor(x):
        return True
    if name == "jax":
        return isinstance(x, jax.core.Tracer)
    if name == "torch":
        return x.device.type == "meta"
    if isinstance(x, tf.Tensor):
        return not hasattr(x, "numpy")
    return not tf.executing_eagerly()


def note_graph(holder: Any) -> None:
    """Remember that the graph traced now, if any, holds an object's variables.

    Graphs of TensorFlow do. Torch reads variables at each call. Keras passes
    those of a model to JAX as arguments; a function that a user compiles holds
    their values.
    """
    if backend.backend() == "jax":
        if not in_stateless_scope() and is_traced(ops.zeros(())):
            _CONSTANT.add(holder)
        return
    if backend.backend() != "tensorflow":
        return
    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        _GRAPHS.setdefault(holder, weakref.WeakSet()).add(graph)


def forget_constants(holder: Any) -> bool:
    """Whether functions of JAX held an object's values; asked once for each."""
    held = holder in _CONSTANT
    _CONSTANT.discard(holder)
    return held


def is_in_live_graph(holder: Any) -> bool:
    """Whether a graph that `note_graph` remembers is still in use."""
    if not _GRAPHS.get(holder):
        return False
    # Graphs are part of cycles.
    gc.collect()
    return bool(_GRAPHS[holder])


def made_by(tensor: Any) -> str | None:
    """Return the kind of operation that made a traced or symbolic tensor.

    - `"layer"`: A dense layer or a convolution, whose rows cannot all sum to 1.
      A symbolic tensor does not say so.
    - `"softmax"`: A softmax, or the sigmoid of one channel.
    - None: Any other operation, or no graph. Probabilities may be mixed,
      multiplied by a matrix of transitions, or divided by a sum.
    """
    if backend.is_keras_tensor(tensor):
        wanted = "sigmoid" if tensor.shape[-1] == 1 else "softmax"
        return "softmax" if activation_behind(tensor) == wanted else None
    # A tensor with values has no operation.
    if backend.backend() != "tensorflow" or not hasattr(tensor, "op"):
        return None
    source = _source(tensor)
    kind, channels = source.op.type, tensor.shape[-1]
    if kind == "Sigmoid":
        return "softmax" if channels == 1 else None
    if kind == "Softmax":
        # The softmax of another axis would have another number of columns.
        several = channels is not None and channels > 1
        return "softmax" if several and source.shape[-1] == channels else None
    return "layer" if _is_of_layer(source) else None


def _source(tensor: Any) -> Any:
    while tensor.op.type in _PASSING:
        tensor = tensor.op.inputs[0]
    return tensor


def _is_of_layer(tensor: Any) -> bool:
    tensor = _source(tensor)
    kind, inputs = tensor.op.type, tensor.op.inputs
    if kind in _SUMS:
        return any(map(_is_of_layer, inputs))
    return kind in _PRODUCTS and not any(map(_is_mixed, inputs))


def _is_mixed(tensor: Any) -> bool:
    """Whether a softmax feeds this tensor without a layer in between."""
    seen, left = set(), [tensor]
    while left:
        operation = left.pop().op
        if operation.type in ("Exp", "Softmax"):
            return True
        if operation.type in _MIXING and operation.name not in seen:
            seen.add(operation.name)
            left.extend(operation.inputs)
    return False


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
        # A variable is no tensor.
        x = x if isinstance(x, tf.Tensor) else tf.convert_to_tensor(x)
        local = "CPU" in x.device
    try:
        return np.asarray(x) if local else None
    except (NotImplementedError, RuntimeError, TypeError):
        return None

"""A SavedModel loaded with TensorFlow only, for both servers."""

import struct

import numpy as np
import tensorflow as tf
from limits import Limits
from tensorflow.core.protobuf import saved_model_pb2


class LoadedModel:
    """Signatures of a SavedModel as functions of arrays.

    Args:
        path: Folder of the SavedModel.
        limits: Limits; None for the default ones.
    """

    def __init__(self, path, limits=None):
        self._limits = limits or Limits()
        self._loaded = tf.saved_model.load(str(path))
        # Loaded functions have names that Python takes, not the clients'.
        with tf.io.gfile.GFile(f"{path}/saved_model.pb", "rb") as file:
            saved = saved_model_pb2.SavedModel.FromString(file.read())
        self._defs = saved.meta_graphs[0].signature_def

    def specs(self, signature_name=""):
        """Inputs of a signature: TensorSpecs by name."""
        name = self._known(signature_name)
        return {
            key: tf.TensorSpec(info.tensor_shape, info.dtype)
            for key, info in self._defs[name].inputs.items()
        }

    def predict(self, inputs, signature_name="", only=()):
        """Outputs by name, as arrays.

        Args:
            inputs: Inputs of the signature, by name.
            signature_name: "" for `serving_default`.
            only: Names of the outputs to return; empty for all.

        Raises:
            LookupError: If there is no such signature or output.
            ValueError: If the inputs do not suit the signature: other names or
                shapes, values that its type cannot hold, or more than the
                limits allow.
        """
        specs = self.specs(signature_name)
        signature = self._loaded.signatures[self._known(signature_name)]
        if set(inputs) != set(specs):
            raise ValueError(
                f"inputs must be {sorted(specs)}, not {sorted(inputs)}"
            )
        missing = set(only) - set(signature.structured_outputs)
        if missing:
            raise LookupError(f"the signature has no output {sorted(missing)}")
        try:
            given = {
                name: _tensor(name, inputs[name], spec, self._limits)
                for name, spec in specs.items()
            }
            outputs = signature(**given)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            raise ValueError(str(error)) from error
        return {name: outputs[name].numpy() for name in only or outputs}

    def _known(self, name):
        name = name or "serving_default"
        if name not in self._loaded.signatures:
            raise LookupError(
                f"there is no signature {name!r}, only "
                f"{sorted(self._loaded.signatures)}"
            )
        return name


def _tensor(name, value, spec, limits):
    array = np.asarray(value)
    limits.check(name, array.shape)
    if not spec.shape.is_compatible_with(array.shape):
        raise ValueError(
            f"`{name}` must have shape {spec.shape}, not {array.shape}"
        )
    # Floats may lose digits, nothing else may change.
    casting = "same_kind" if spec.dtype.is_floating else "safe"
    if not np.can_cast(array.dtype, spec.dtype.as_numpy_dtype, casting):
        raise ValueError(
            f"`{name}` must be {spec.dtype.name}, not {array.dtype}"
        )
    if spec.dtype == "string":
        for file in array.flat:
            if isinstance(file, bytes) and _pixels(file) > limits.pixels:
                raise ValueError(f"`{name}` has over {limits.pixels} pixels")
    return tf.constant(array, spec.dtype)


def _pixels(file):
    """Number of pixels that an image file states, without decoding; else 0."""
    if file.startswith(b"\x89PNG"):
        sides = struct.unpack(">II", file[16:24].ljust(8, b"\0"))
    elif file.startswith(b"GIF8"):
        sides = struct.unpack("<HH", file[6:10].ljust(4, b"\0"))
    elif file.startswith(b"BM"):
        sides = struct.unpack("<ii", file[18:26].ljust(8, b"\0"))
    elif file.startswith(b"\xff\xd8"):
        try:
            sides = tf.io.extract_jpeg_shape(file).numpy()[:2]
        except tf.errors.OpError:
            return 0
    else:
        return 0
    return abs(int(sides[0]) * int(sides[1]))

"""The SavedModel: three signatures, and variables that can be replaced."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.exporting.served_model import ServedModel
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.arrays import fits, shape_of
from keras_calib.selection import SelectiveClassifier

__all__ = ["ImageReader", "check_no_python", "write_savedmodel"]

# Operators that name a function of the process that wrote them.
_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


class ImageReader:
    """Reads encoded images into a model's input: decode, resize, preprocess.

    `resize` takes one image to `size`; None stretches it bilinearly.
    Its errors name the arguments of `export`.
    """

    def __init__(
        self,
        served: ServedModel,
        preprocessing: Callable[[Any], Any],
        size: tuple[int, int] | None,
        resize: Callable[[Any], Any] | None = None,
    ):
        if not callable(preprocessing):
            raise type_error(
                "`image_preprocessing` must be a function or layer of "
                "images, such as keras.layers.Rescaling(1 / 255)",
                image_preprocessing=preprocessing,
            )
        shapes = [shape_of(tensor) for tensor in served.inputs.values()]
        images = len(shapes) == 1 and len(shapes[0]) == 4
        if not images or shapes[0][-1] not in (1, 3, 4):
            raise value_error(
                "`image_preprocessing` needs a model with one input "
                "(batch, height, width, channels), of 1, 3 or 4 channels",
                shapes=shapes,
            )
        ((name, tensor),) = served.inputs.items()
        size = shapes[0][1:3] if size is None else size
        if np.shape(size) != (2,) or None in size:
            raise value_error(
                "`image_size` must be a height and a width; the model "
                "gives them only if its input has a fixed size",
                image_size=size,
                shape=shapes[0],
            )
        size = tuple(size)
        for side in size:
            check_integer("image_size", side, 1)
        self.input_name = name
        self.shape = (*size, shapes[0][-1])
        self._preprocessing = preprocessing
        self._resize = resize
        self._dtype = tensor.dtype
        # A first call, so that a layer creates its variables outside a graph.
        given = shape_of(self._prepare(ops.zeros((1, *self.shape))))
        if not fits(given, shapes[0]):
            raise value_error(
                "`image_preprocessing` must return what the model takes",
                returned=given,
                taken=shapes[0],
            )

    def read(self, encoded: Any) -> Any:
        """The model's input from encoded images `(batch,)`."""
        import tensorflow as tf

        images = tf.map_fn(
            self._decode,
            encoded,
            fn_output_signature=tf.TensorSpec(self.shape, tf.float32),
        )
        return self._prepare(images)

    def _decode(self, encoded: Any) -> Any:
        import tensorflow as tf

        image = tf.io.decode_image(
            encoded, channels=self.shape[-1], expand_animations=False
        )
        if self._resize is None:
            image = tf.image.resize(image, self.shape[:2])
        else:
            image = self._resize(tf.cast(image, tf.float32))
        return tf.ensure_shape(image, self.shape)

    def _prepare(self, images: Any) -> Any:
        images = self._preprocessing(images)
        if keras.backend.is_float_dtype(self._dtype):
            return ops.cast(images, self._dtype)
        # Resizing turned whole numbers into fractions.
        return ops.cast(ops.round(images), self._dtype)


def write_savedmodel(
    served: ServedModel, path: Path, images: ImageReader | None = None
) -> None:
    """Writes the folder of a SavedModel, with or without a reader of images.

    Raises ValueError if the model calls Python, which no other process can.
    """
    import tensorflow as tf

    def specs(tensors):
        return {
            name: tf.TensorSpec(tensor.shape, tensor.dtype, name=name)
            for name, tensor in tensors.items()
        }

    groups = list(specs(served.group_input).values())
    archive = keras.export.ExportArchive()
    # Tracks the tables of text layers. Signatures track variables already; a
    # model tracked directly would be stored with a second copy of them.
    holder = tf.Module()
    holder.model = served.model
    archive.track(holder)
    archive.add_endpoint(
        "serving_default",
        lambda inputs: served.model(inputs, training=False),
        [specs(served.client_inputs)],
    )
    archive.add_endpoint(
        "serving_logits",
        lambda logits, group=None: served.select(
            logits, from_logits=True, groups=group
        ),
        [
            tf.TensorSpec(served.logits_shape, tf.float32, name="logits"),
            *groups,
        ],
    )
    if images is not None:
        archive.add_endpoint(
            "serving_bytes",
            lambda encoded, *group: served.model(
                {
                    images.input_name: images.read(encoded),
                    **dict(zip(served.group_input, group, strict=True)),
                },
                training=False,
            ),
            [tf.TensorSpec((None,), tf.string, name="image_bytes"), *groups],
        )
    for name, variables in _collections(served.selector).items():
        archive.add_variable_collection(name, variables)
    archive.write_out(str(path), verbose=False)
    check_no_python(path)


def check_no_python(path: Path) -> None:
    """Raises if a file calls Python, as loading it here would not show that."""
    from tensorflow.core.protobuf import saved_model_pb2

    stored = saved_model_pb2.SavedModel.FromString(
        (path / "saved_model.pb").read_bytes()
    )
    for meta in stored.meta_graphs:
        # Includes the operators of the graph's functions.
        names = {op.name for op in meta.meta_info_def.stripped_op_list.op}
        if names & _PYTHON_OPS:
            raise value_error(
                "`model` must not call Python (tf.numpy_function, "
                "tf.py_function), which no other process can",
                operations=sorted(names & _PYTHON_OPS),
            )


def _collections(selector: Any) -> dict[str, list]:
    """Variables by the attribute name that they have in the loaded model."""
    found = {"threshold": [selector._threshold]}
    parts = {"calibration": selector.calibrator, "score": None}
    if isinstance(selector, SelectiveClassifier):
        parts["score"] = selector.score
    for name, part in parts.items():
        if isinstance(part, keras.layers.Layer) and part.variables:
            found[name] = part.variables
    return found

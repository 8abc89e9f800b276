"""The served model: a network, its calibrator and its selector in one.

A SavedModel of it has three signatures, and variables that can be replaced.
"""

import keyword
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.keras_internals import nested_layers
from keras_calib.backend.late import tensorflow as tf
from keras_calib.calibrators import Calibrator
from keras_calib.ensembles.base import input_structure
from keras_calib.inputs.checks import check_integer
from keras_calib.labels.calibrator import MultiLabelCalibrator
from keras_calib.labels.selector import MultiLabelSelector
from keras_calib.numerics.arrays import fits, shape_of
from keras_calib.selection import SelectiveClassifier

OUTPUT_NAMES = (
    "logits",
    "probabilities",
    "confidence",
    "score",
    "accept",
    "label",
    "probability_low",
    "probability_high",
    "expected_cost",
    "labels",
)
# Operators that name a function of the process that wrote them.
_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
# Names that Keras numbers differ between processes.
_MADE_UP = re.compile(r"(keras_tensor|input_layer)(_\d+)?")


class ServedModel:
    """A network and a selector, with inputs and outputs by name."""

    def __init__(
        self,
        network: keras.Model,
        selector: SelectiveClassifier | MultiLabelSelector,
        from_logits: bool,
    ):
        self.network = network
        self.selector = selector
        self.from_logits = from_logits
        self.structure = input_structure(network)
        flat = keras.tree.flatten(self.structure)
        names = _input_names(self.structure)
        if self.groups:
            names = [f"input_{x}" if x == "group" else x for x in names]
        self.inputs = {
            name: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=name)
            for name, tensor in zip(names, flat, strict=True)
        }
        # What clients send besides the network's inputs.
        self.group_input = {}
        if self.groups:
            group = keras.Input((), dtype="int32", name="group")
            self.group_input = {"group": group}
        outputs = self._call(self.inputs)
        answers = self.select(
            outputs, from_logits, self.group_input.get("group")
        )
        self.model = keras.Model(self.client_inputs, answers)

    @property
    def groups(self) -> tuple:
        """Ids or names of the selector's groups; empty without groups."""
        return getattr(self.selector, "groups", ())

    @property
    def several_labels(self) -> bool:
        """Whether each output is a label of its own."""
        return isinstance(self.selector, MultiLabelSelector)

    def select(
        self, outputs: Any, from_logits: bool, groups: Any = None
    ) -> Any:
        """The selector's named answers to outputs of the network."""
        if self.several_labels:
            return self.selector(outputs, from_logits=from_logits)
        return self.selector(outputs, groups=groups, from_logits=from_logits)

    @property
    def client_inputs(self) -> dict:
        """All inputs of the served model by name."""
        return {**self.inputs, **self.group_input}

    @property
    def logits_shape(self) -> tuple:
        """Shape of the network's output; one channel may stand for two."""
        return (None, *self.network.outputs[0].shape[1:])

    def outputs(self, inputs: dict) -> Any:
        """Outputs of the network for inputs by name."""
        return self._call(inputs, training=False)

    def answers(
        self, outputs: Any, from_logits: bool | None = None, groups: Any = None
    ) -> dict[str, np.ndarray]:
        """The selector's named answers in Keras to outputs of the network."""
        if from_logits is None:
            from_logits = self.from_logits
        answers = self.select(outputs, from_logits, groups)
        return {k: ops.convert_to_numpy(v) for k, v in answers.items()}

    def _call(self, inputs: dict, **options: Any) -> Any:
        flat = [inputs[name] for name in self.inputs]
        packed = keras.tree.pack_sequence_as(self.structure, flat)
        # Some models return their one output in a dict or list.
        (outputs,) = keras.tree.flatten(self.network(packed, **options))
        return outputs


def computes_in_half(network: keras.Model) -> bool:
    """Whether a layer of a network computes in half precision."""
    dtypes = {x.compute_dtype for x in nested_layers(network)}
    return not dtypes.isdisjoint(["float16", "bfloat16"])


def _input_names(structure: Any) -> list[str]:
    """Input names for clients; the user's own if there are any."""
    flat = keras.tree.flatten_with_path(structure)
    names = [tensor.name for _, tensor in flat]
    if isinstance(structure, dict) and len(structure) == len(flat):
        names = [path[0] for path, _ in flat]
    names = [_client_name(str(name)) for name in names]
    # TensorFlow ignores the case of names.
    if len({name.lower() for name in names}) < len(names):
        names = [f"inputs_{i}" for i in range(len(names))]
    return names


def _client_name(name: str) -> str:
    """A name that every format takes: a Python argument that is no output."""
    if _MADE_UP.fullmatch(name):
        return "inputs"
    name = re.sub(r"\W", "_", name, flags=re.ASCII)
    taken = name in ("self", *OUTPUT_NAMES) or keyword.iskeyword(name)
    if taken or not name[0].isalpha():
        name = "input_" + name.lstrip("_")
    return name


def selector_to_serve(
    calibrator: Any, selector: Any
) -> SelectiveClassifier | MultiLabelSelector:
    """The selector that brings a calibrator; raises unless both are fitted."""
    for part in (calibrator, getattr(selector, "calibrator", None)):
        if getattr(part, "use_image", False):
            raise value_error(
                "`calibrator` must be a map of logits alone, and this one "
                "reads the image too: export "
                "`keras.Model(x, calibrator([network(x), x]))` with "
                "`from_logits=True`",
                use_image=True,
            )
    if calibrator is not None:
        if not isinstance(calibrator, Calibrator | MultiLabelCalibrator):
            raise type_error(
                "`calibrator` must be a Calibrator; a choice has one, "
                "`choice.calibrator`",
                calibrator=type(calibrator).__name__,
            )
        calibrator.check_fitted()
    infinity = float("inf")
    if selector is None and isinstance(calibrator, MultiLabelCalibrator):
        # Of examples, as one threshold serves any number of labels.
        return MultiLabelSelector(
            calibrator=calibrator, by="example", threshold=-infinity
        )
    if selector is None:
        return SelectiveClassifier(calibrator=calibrator, threshold=-infinity)
    if not isinstance(selector, SelectiveClassifier | MultiLabelSelector):
        raise type_error(
            "`selector` must be a SelectiveClassifier or MultiLabelSelector",
            selector=type(selector).__name__,
        )
    selector.check_fitted()
    if isinstance(selector.calibrator, Calibrator | MultiLabelCalibrator):
        selector.calibrator.check_fitted()
    if calibrator is not None and calibrator is not selector.calibrator:
        raise value_error(
            "`calibrator` must be that of `selector`, whose threshold is "
            "for its logits; leave `calibrator` out",
            calibrator=type(calibrator).__name__,
            selector_calibrator=type(selector.calibrator).__name__,
        )
    return selector


class ImageReader:
    """Reads encoded images into a model's input: decode, resize, preprocess.

    `resize` takes one image to `size`; None stretches it bilinearly.
    Its errors name the arguments of `export`.
    """

    def __init__(
        self,
        inputs: dict[str, Any],
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
        shapes = [shape_of(tensor) for tensor in inputs.values()]
        images = len(shapes) == 1 and len(shapes[0]) == 4
        if not images or shapes[0][-1] not in (1, 3, 4):
            raise value_error(
                "`image_preprocessing` needs a model with one input "
                "(batch, height, width, channels), of 1, 3 or 4 channels",
                shapes=shapes,
            )
        ((name, tensor),) = inputs.items()
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
        images = tf.map_fn(
            self._decode,
            encoded,
            fn_output_signature=tf.TensorSpec(self.shape, tf.float32),
        )
        return self._prepare(images)

    def _decode(self, encoded: Any) -> Any:
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


def converted_images(
    inputs: dict[str, Any],
    converter: Any,
    size: tuple[int, int] | None,
    sides: tuple,
) -> ImageReader:
    """The reader of images for a task of KerasHub, which prepares them itself.

    `size` is that of the user, and `sides` those of the network's input.
    """
    resize = None
    if size is None and getattr(converter, "image_size", None) is not None:
        # Images may differ in size: the converter resizes them one by one,
        # and the network then finds them as large as it wants them.
        size, resize = converter.image_size, converter.resizing
    identity = keras.layers.Identity()
    return ImageReader(inputs, identity, size or sides, resize)


def write_savedmodel(
    served: ServedModel, path: Path, images: ImageReader | None = None
) -> None:
    """Writes the folder of a SavedModel, with or without a reader of images.

    Raises ValueError if the model calls Python, which no other process can.
    """

    def specs(tensors):
        return {
            name: tf.TensorSpec(tensor.shape, tensor.dtype, name=name)
            for name, tensor in tensors.items()
        }

    def of_logits(logits, group=None):
        return served.select(logits, from_logits=True, groups=group)

    groups = list(specs(served.group_input).values())
    logits = tf.TensorSpec(served.logits_shape, tf.float32, name="logits")
    signatures = {
        "serving_default": (
            lambda inputs: served.model(inputs, training=False),
            [specs(served.client_inputs)],
        ),
        "serving_logits": (of_logits, [logits, *groups]),
    }
    if images is not None:

        def of_bytes(encoded, *group):
            inputs = dict(zip(served.group_input, group, strict=True))
            inputs[images.input_name] = images.read(encoded)
            return served.model(inputs, training=False)

        encoded = tf.TensorSpec((None,), tf.string, name="image_bytes")
        signatures["serving_bytes"] = of_bytes, [encoded, *groups]
    write_signatures(path, signatures, [served.model], served.selector)


def write_signatures(
    path: Path, signatures: dict[str, tuple], parts: list, selector: Any
) -> None:
    """Writes the folder of a SavedModel of functions and their inputs, by name.

    `parts` are what the functions call. The variables of a selector can be
    replaced in the file. Raises ValueError if a function calls Python.
    """
    archive = keras.export.ExportArchive()
    # Tracks the tables of text layers. Signatures track variables already; a
    # model tracked directly would be stored with a second copy of them.
    holder = tf.Module()
    holder.parts = parts
    archive.track(holder)
    for name, (function, inputs) in signatures.items():
        archive.add_endpoint(name, function, inputs)
    for name, variables in _collections(selector).items():
        archive.add_variable_collection(name, variables)
    archive.write_out(str(path), verbose=False)
    _check_no_python(path)


def _check_no_python(path: Path) -> None:
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
    if selector is None:
        return {}
    found = {"threshold": [selector._threshold]}
    parts = {"calibration": selector.calibrator}
    if isinstance(selector, SelectiveClassifier):
        parts["score"] = selector.score
    for name, part in parts.items():
        if isinstance(part, keras.layers.Layer) and part.variables:
            found[name] = part.variables
    return found

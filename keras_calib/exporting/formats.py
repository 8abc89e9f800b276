"""File formats: how each is written and loaded again."""

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import replacing
from keras_calib.exporting.file_runner import FileRunner
from keras_calib.exporting.onnx_ops import HANDLERS
from keras_calib.exporting.savedmodel import ImageReader, write_savedmodel
from keras_calib.exporting.served_model import ServedModel
from keras_calib.inputs.checks import check_in

__all__ = [
    "FORMATS",
    "FileFormat",
    "Signatures",
    "file_format",
    "format_of",
    "write_litert",
    "write_onnx",
]

# Endings of files and their formats.
_ENDINGS = {".onnx": "onnx", ".tflite": "litert", ".litert": "litert"}
# Endings of other formats. Other dots belong to names such as v1.2.
_FOREIGN = {
    *(".keras", ".h5", ".hdf5", ".ckpt", ".pb", ".pt", ".pth"),
    *(".json", ".npy", ".npz", ".pickle", ".pkl", ".safetensors"),
    *(".gz", ".tar", ".tgz", ".zip"),
}

# Functions of arrays by name that return arrays by name.
Signatures = dict[str, Callable[..., dict[str, np.ndarray]]]


class FileFormat(NamedTuple):
    """One way to store a model: what it needs, how to write and load it."""

    name: str
    packages: tuple[str, ...]
    write: Callable[[ServedModel, Path, ImageReader | None], None]
    load: Callable[[Path], Signatures]


def format_of(path: Path, name: str | None) -> str:
    """The format to write, by `name` or by the ending of the path."""
    ending = path.suffix.lower()
    if ending in _FOREIGN:
        raise value_error(
            "`path` must end in .onnx or .tflite, or be the name of a folder; "
            "for Keras' own format call `model.save(path)`",
            path=str(path),
        )
    meant = _ENDINGS.get(ending, name or "savedmodel")
    if name not in (None, meant):
        raise value_error(
            f"`path` must not end in {ending} unless `format` is {meant!r}",
            path=str(path),
            format=name,
        )
    return meant


def file_format(name: str) -> FileFormat:
    """A format by its name; ImportError if its packages are absent."""
    check_in("format", name, tuple(FORMATS))
    for package in FORMATS[name].packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ImportError(
                f"`export` with format={name!r} needs {package}: "
                f"pip install 'keras-calib[{name}]'"
            ) from error
    return FORMATS[name]


def _load_savedmodel(path: Path) -> Signatures:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))

    # A signature alone does not keep `loaded` and its variables alive.
    def run(signature, /, **inputs):
        given = {k: tf.constant(v) for k, v in inputs.items()}
        answers = loaded.signatures[signature](**given)
        return {k: v.numpy() for k, v in answers.items()}

    return {name: partial(run, name) for name in loaded.signatures}


def write_onnx(
    served: ServedModel,
    path: Path,
    images: ImageReader | None = None,
    opset: int | None = None,
) -> None:
    """Writes an ONNX file, of the converter's usual version or another."""
    import tensorflow as tf
    import tf2onnx

    names = list(served.client_inputs)
    specs = [
        tf.TensorSpec(tensor.shape, tensor.dtype, name=name)
        for name, tensor in served.client_inputs.items()
    ]
    # Flat arguments, as for a dict it would join argument and key names.
    function = tf.function(
        lambda *flat: served.model(
            dict(zip(names, flat, strict=True)), training=False
        ),
        input_signature=specs,
        autograph=False,
    )
    tf2onnx.convert.from_function(
        function,
        specs,
        opset=opset,
        custom_op_handlers=dict(HANDLERS),
        output_path=str(path),
    )


def _load_file(path: Path, litert: bool) -> Signatures:
    runner = FileRunner(path, litert, batch_size=1)
    return {"serving_default": lambda **inputs: runner.run_batch(inputs)}


def write_litert(
    served: ServedModel, path: Path, images: ImageReader | None = None
) -> None:
    """Writes a LiteRT file."""
    import tensorflow as tf

    # Converts a SavedModel, as that names inputs and outputs.
    folder = path.with_name("savedmodel")
    write_savedmodel(served, folder)
    converter = tf.lite.TFLiteConverter.from_saved_model(
        str(folder), signature_keys=["serving_default"]
    )
    converter.experimental_enable_resource_variables = True
    content = converter.convert()
    with replacing(path) as file:
        file.write(content)


_load_onnx = partial(_load_file, litert=False)
_load_litert = partial(_load_file, litert=True)

FORMATS = {
    made.name: made
    for made in (
        FileFormat("savedmodel", (), write_savedmodel, _load_savedmodel),
        FileFormat("onnx", ("tf2onnx", "onnxruntime"), write_onnx, _load_onnx),
        FileFormat("litert", ("ai_edge_litert",), write_litert, _load_litert),
    )
}

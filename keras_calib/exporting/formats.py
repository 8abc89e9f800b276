"""File formats: how each is written whole, and loaded again."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import invalid, value_error
from keras_calib.backend.files import replacing
from keras_calib.backend.late import imported
from keras_calib.exporting.file_runners import ENDINGS, runners_of
from keras_calib.exporting.served_model import (
    ImageReader,
    ServedModel,
    write_savedmodel,
)
from keras_calib.inputs.checks import check_in

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
    meant = ENDINGS.get(ending, name or "savedmodel")
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
        imported(package, f"`export` with format={name!r}", name)
    return FORMATS[name]


def _select(context: Any, node: Any, name: str, arguments: list) -> None:
    """Where(c, x, y).

    The converter prefers c x + (1 - c) y, which is NaN where the value that
    is not taken is infinite.
    """
    node.type = "Where"


def _log1p(context: Any, node: Any, name: str, arguments: list) -> None:
    """log(1 + x), which ONNX lacks.

    x log(u) / (u - 1) with u = 1 + x, and x where u rounds to 1: the error
    of u cancels (Kahan).
    """
    (x,), (output,) = node.input, node.output
    dtype = context.get_dtype(output)
    shape = context.get_shape(output)
    context.remove_node(node.name)

    def constant(value):
        values = np.array(value, np.float64)
        made = context.make_const(f"{name}_{value}", values)
        return make("Cast", made.output, {"to": dtype})

    def make(kind, inputs, attributes=None, **options):
        attributes = attributes or {}
        made = context.make_node(kind, inputs, attr=attributes, **options)
        return made.output[0]

    one, zero = constant(1), constant(0)
    u = make("Add", [x, one])
    rest = make("Sub", [u, one])
    lost = make("Equal", [rest, zero])
    rest = make("Where", [lost, one, rest])
    scaled = make("Div", [make("Log", [u]), rest])
    make(
        "Where",
        [lost, x, make("Mul", [scaled, x])],
        outputs=[output],
        name=name,
        shapes=[shape],
        dtypes=[dtype],
    )


# TensorFlow's operator to (function, [new name of the operator]).
_HANDLERS = {"SelectV2": (_select, ["Where"]), "Log1p": (_log1p, ["Log1p"])}


def _write_onnx(
    served: ServedModel,
    path: Path,
    images: ImageReader | None = None,
) -> None:
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
        custom_op_handlers=dict(_HANDLERS),
        output_path=str(path),
    )


def _load(made: str, path: Path) -> Signatures:
    def answer(runner, /, **inputs):
        return runner.run(inputs)

    found = runners_of(path, made)
    return {name: partial(answer, runner) for name, runner in found.items()}


def _write_litert(
    served: ServedModel, path: Path, images: ImageReader | None = None
) -> None:
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


FORMATS = {
    name: FileFormat(name, packages, write, partial(_load, name))
    for name, packages, write in (
        ("savedmodel", (), write_savedmodel),
        ("onnx", ("tf2onnx", "onnxruntime"), _write_onnx),
        ("litert", ("ai_edge_litert",), _write_litert),
    )
}


def check_replaced(path: Path, made: str, overwrite: bool) -> None:
    """Raises unless what is at the path is an export, to be overwritten."""
    if not overwrite:
        raise value_error(
            "`path` must not exist: give a new one, such as the version "
            "'serving/2', or `overwrite=True`",
            path=str(path),
        )
    file = path / "saved_model.pb" if made == "savedmodel" else path
    if path.is_symlink() or not file.is_file():
        raise value_error(
            "`path` must be an earlier export of this format, or not exist, "
            "with `overwrite=True`",
            path=str(path),
            format=made,
        )


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Context in which GPUs multiply float32 exactly, as other runtimes do."""
    import tensorflow as tf

    settings = tf.config.experimental
    before = settings.tensor_float_32_execution_enabled()
    settings.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        settings.enable_tensor_float_32_execution(before)


@contextlib.contextmanager
def scratch_of(path: Path) -> Iterator[Path]:
    """A path to write to, in a temporary folder beside the final path.

    A crash leaves nothing incomplete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f".{path.name[:50]}."
    with tempfile.TemporaryDirectory(".tmp", head, path.parent) as scratch:
        yield Path(scratch) / "model"


def written_and_loaded(
    write: Callable[[Path], None],
    load: Callable[[Path], Signatures],
    written: Path,
    made: str,
) -> Signatures:
    """Writes and loads a model; RuntimeError if the format cannot hold it."""
    step = "written"
    try:
        write(written)
        step = "loaded"
        return load(written)
    except Exception as error:
        if step == "written" and isinstance(error, OSError | MemoryError):
            raise
        raise RuntimeError(
            invalid(
                f"`model` cannot be {step} as {made}, and nothing "
                "was kept: choose another `format`, or change what the "
                "error names",
                error=f"{type(error).__name__}: {str(error)[:400]}",
            )
        ) from error


def put(written: Path, path: Path, made: str, overwrite: bool) -> None:
    """Renames what was written to its place."""
    if overwrite and os.path.lexists(path):
        check_replaced(path, made, overwrite)
        _replace(written, path)
    else:
        _move(written, path)


def _replace(written: Path, path: Path) -> None:
    """Renames in place of an earlier export, which stays if that fails."""
    if written.is_file():
        os.replace(written, path)
        return
    # No folder is renamed over a full one. The earlier one is deleted with the
    # folder of the new one.
    earlier = written.with_name("earlier")
    try:
        os.rename(path, earlier)
        os.rename(written, path)
    except BaseException:
        if not os.path.lexists(path):
            os.rename(earlier, path)
        raise


def _move(written: Path, path: Path) -> None:
    """Renames, unless another process has created the path meanwhile."""
    try:
        # A renamed folder replaces only an empty one, and a link nothing.
        (os.rename if written.is_dir() else os.link)(written, path)
    except OSError as error:
        if os.path.lexists(path):
            raise value_error("`path` must not exist", path=str(path)) from (
                error
            )
        # Some file systems have no links.
        os.rename(written, path)

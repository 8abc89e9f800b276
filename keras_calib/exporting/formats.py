"""File formats: how each is written whole, loaded again and run on arrays."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import invalid, value_error
from keras_calib.backend.files import replacing
from keras_calib.backend.late import imported
from keras_calib.backend.late import tensorflow as tf
from keras_calib.exporting.served_model import (
    ImageReader,
    ServedModel,
    write_savedmodel,
)
from keras_calib.exporting.statement import statement_path
from keras_calib.inputs.checks import check_in

# Endings of files and their formats; a folder is a SavedModel.
_ENDINGS = {".onnx": "onnx", ".tflite": "litert", ".litert": "litert"}
# Endings of other formats. Other dots belong to names such as v1.2.
_FOREIGN = {
    *(".keras", ".h5", ".hdf5", ".ckpt", ".pb", ".pt", ".pth"),
    *(".json", ".npy", ".npz", ".pickle", ".pkl", ".safetensors"),
    *(".gz", ".tar", ".tgz", ".zip"),
}


class _Input(NamedTuple):
    """An input of a file: open sides are None, float values may be scaled."""

    shape: tuple
    dtype: np.dtype
    scale: float = 0.0
    zero_point: int = 0


class Runner(NamedTuple):
    """A signature of a file, which answers arrays by name.

    `run` takes them as the file does, and the names of the outputs to compute;
    None computes all. Quantised outputs become float32.
    """

    inputs: dict[str, _Input]
    outputs: tuple[str, ...]
    run: Callable[..., dict[str, np.ndarray]]


class FileFormat(NamedTuple):
    """One way to store a model: what it needs, how to write and load it.

    `extra` of this library installs the `packages`, of which the first runs
    the files.
    """

    name: str
    extra: str
    packages: tuple[str, ...]
    write: Callable[[ServedModel, Path, ImageReader | None], None]
    load: Callable[[Path], dict[str, Runner]]


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
    """A format to write by its name; ImportError if its packages are absent."""
    check_in("format", name, tuple(FORMATS))
    made = FORMATS[name]
    for package in made.packages:
        imported(package, f"`export` with format={name!r}", made.extra)
    return made


def format_of_file(path: Path) -> FileFormat:
    """The format of a file that is there; ImportError if nothing runs it."""
    name = "savedmodel" if path.is_dir() else _ENDINGS.get(path.suffix.lower())
    if name is None or not path.exists():
        raise value_error(
            "`path` must be the folder of a SavedModel, or a file that ends "
            f"in {', '.join(_ENDINGS)}",
            path=str(path),
        )
    made = FORMATS[name]
    imported(made.packages[0], f"`FileModel` of {name}", made.extra)
    return made


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
    served: ServedModel, path: Path, images: ImageReader | None = None
) -> None:
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


def _write_litert(
    served: ServedModel, path: Path, images: ImageReader | None = None
) -> None:
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


def _load_savedmodel(path: Path) -> dict[str, Runner]:
    loaded = tf.saved_model.load(str(path))

    def runner(signature):
        function = loaded.signatures[signature]
        specs = function.structured_input_signature[1]

        # A signature alone does not keep `loaded` and its variables alive.
        def run(batch, names=None):
            given = {k: tf.constant(v) for k, v in batch.items()}
            answers = loaded.signatures[signature](**given)
            return {k: answers[k].numpy() for k in names or answers}

        inputs = {
            name: _Input(tuple(spec.shape), np.dtype(spec.dtype.as_numpy_dtype))
            for name, spec in specs.items()
        }
        return Runner(inputs, tuple(function.structured_outputs), run)

    return {name: runner(name) for name in loaded.signatures}


def _load_litert(path: Path) -> dict[str, Runner]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))

    def runner(signature):
        made = interpreter.get_signature_runner(signature)
        inputs = {}
        for name, told in made.get_input_details().items():
            sides = told.get("shape_signature", told["shape"])
            shape = tuple(None if n < 0 else int(n) for n in sides)
            dtype = np.dtype(told["dtype"])
            inputs[name] = _Input(shape, dtype, *told["quantization"])
        scales = {
            name: told["quantization"]
            for name, told in made.get_output_details().items()
        }

        def value(name, answer):
            scale, zero_point = scales[name]
            if not scale or answer.dtype.kind not in "iu":
                # Copied, as the next run overwrites the interpreter's arrays.
                return np.array(answer)
            return np.float32(scale) * (answer.astype("float32") - zero_point)

        def run(batch, names=None):
            answers = made(**batch)
            return {k: value(k, answers[k]) for k in names or answers}

        return Runner(inputs, tuple(scales), run)

    return {name: runner(name) for name in interpreter.get_signature_list()}


def _load_onnx(path: Path) -> dict[str, Runner]:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(path), providers=["CPUExecutionProvider"]
    )
    inputs = {}
    for told in session.get_inputs():
        shape = tuple(n if isinstance(n, int) else None for n in told.shape)
        kind = told.type.removeprefix("tensor(").removesuffix(")")
        kind = {"float": "float32", "double": "float64"}.get(kind, kind)
        dtype = np.dtype(object if kind == "string" else kind)
        inputs[told.name] = _Input(shape, dtype)
    outputs = tuple(output.name for output in session.get_outputs())

    def run(batch, names=None):
        names = names or outputs
        return dict(zip(names, session.run([*names], batch), strict=True))

    return {"serving_default": Runner(inputs, outputs, run)}


FORMATS = {
    made.name: made
    for made in (
        FileFormat(
            "savedmodel",
            "tensorflow",
            ("tensorflow",),
            write_savedmodel,
            _load_savedmodel,
        ),
        FileFormat(
            "onnx", "onnx", ("onnxruntime", "tf2onnx"), _write_onnx, _load_onnx
        ),
        FileFormat(
            "litert", "litert", ("ai_edge_litert",), _write_litert, _load_litert
        ),
    )
}


def cast(name: str, x: np.ndarray, kind: _Input) -> np.ndarray:
    """Values of the type that the file takes; quantised as a client would."""
    whole = kind.dtype.kind in "iu"
    if whole and x.dtype.kind == "f":
        if not kind.scale:
            raise value_error(
                "`inputs` must be whole numbers for this input",
                name=name,
                dtype=x.dtype.name,
                taken=kind.dtype.name,
            )
        finite = np.isfinite(x)
        if not finite.all():
            raise value_error(
                "`inputs` must be finite for a file of whole numbers, which "
                "has no NaN and no infinity",
                name=name,
                taken=kind.dtype.name,
                bad_values=int((~finite).sum()),
            )
        ends = np.iinfo(kind.dtype)
        x = np.round(x / kind.scale) + kind.zero_point
        x = np.clip(x, ends.min, ends.max)
    elif whole and x.dtype.kind in "iu":
        ends = np.iinfo(kind.dtype)
        low, high = int(x.min(initial=0)), int(x.max(initial=0))
        if low < ends.min or high > ends.max:
            raise value_error(
                "`inputs` must lie in the range of the type that the file "
                "takes: quantise them, or give floats where it is quantised",
                name=name,
                found=[low, high],
                taken=kind.dtype.name,
            )
    return x.astype(kind.dtype)


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
    settings = tf.config.experimental
    before = settings.tensor_float_32_execution_enabled()
    settings.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        settings.enable_tensor_float_32_execution(before)


@contextlib.contextmanager
def written_whole(
    path: Path, made: FileFormat, overwrite: bool, write: Callable[[Path], None]
) -> Iterator[tuple[dict[str, Runner], Path]]:
    """What was written of a format, loaded, and the path that it has so far.

    It is written to a temporary folder beside the final path. At the end of the
    context it takes its place, with a statement that was written for it. After
    an error nothing is kept. Raises RuntimeError if the format cannot hold it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    head, step = f".{path.name[:50]}.", "written"
    with tempfile.TemporaryDirectory(".tmp", head, path.parent) as scratch:
        written = Path(scratch) / "model"
        try:
            write(written)
            step = "loaded"
            runners = made.load(written)
        except Exception as error:
            if step == "written" and isinstance(error, OSError | MemoryError):
                raise
            raise RuntimeError(
                invalid(
                    f"`model` cannot be {step} as {made.name}, and nothing "
                    "was kept: choose another `format`, or change what the "
                    "error names",
                    error=f"{type(error).__name__}: {str(error)[:400]}",
                )
            ) from error
        yield runners, written
        of_file, beside = written.is_file(), statement_path(written)
        if overwrite and os.path.lexists(path):
            check_replaced(path, made.name, overwrite)
            _replace(written, path)
        else:
            _move(written, path)
        # A crash here leaves a certificate of the earlier file, if any, which
        # does not fit the new one.
        if of_file and beside.exists():
            os.replace(beside, statement_path(path))
        elif of_file:
            statement_path(path).unlink(missing_ok=True)


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

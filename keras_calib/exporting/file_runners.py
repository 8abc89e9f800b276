"""What runs a SavedModel, ONNX or LiteRT file over arrays."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.late import imported

# Endings of files and their formats; a folder is a SavedModel.
ENDINGS = {".onnx": "onnx", ".tflite": "litert", ".litert": "litert"}


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


def format_of_file(path: Path) -> str:
    """The format of a file that is there; ImportError if nothing runs it."""
    made = "savedmodel" if path.is_dir() else ENDINGS.get(path.suffix.lower())
    if made is None or not path.exists():
        raise value_error(
            "`path` must be the folder of a SavedModel, or a file that ends "
            f"in {', '.join(ENDINGS)}",
            path=str(path),
        )
    package, extra, _ = _RUNTIMES[made]
    imported(package, f"`FileModel` of {made}", extra)
    return made


def runners_of(path: Path, made: str) -> dict[str, Runner]:
    """The signatures of a file of a format, by name."""
    *_, load = _RUNTIMES[made]
    return load(path)


def _load_savedmodel(path: Path) -> dict[str, Runner]:
    import tensorflow as tf

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


# What runs each format, what installs that, and how a file is loaded.
_RUNTIMES: dict[str, tuple[str, str, Callable[[Path], dict[str, Runner]]]] = {
    "savedmodel": ("tensorflow", "tensorflow", _load_savedmodel),
    "onnx": ("onnxruntime", "onnx", _load_onnx),
    "litert": ("ai_edge_litert", "litert", _load_litert),
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

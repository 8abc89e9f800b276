"""A stored model that answers arrays of inputs, batch by batch."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.numerics.arrays import fits
from keras_calib.numerics.softmax import filled

__all__ = ["FileRunner"]

# Rows that are also run one by one.
_ROWS_ALONE = 16


class _Input(NamedTuple):
    """An input of a file: open sides are None, float values may be scaled."""

    shape: tuple
    dtype: np.dtype
    scale: float
    zero_point: int


class FileRunner:
    """Runs a LiteRT or ONNX file over arrays.

    Args:
        path: The file.
        litert: Whether it is a LiteRT file.
        batch_size: Rows in a batch, if the file leaves that open.
    """

    def __init__(self, path: Path, litert: bool, batch_size: int):
        load = self._load_litert if litert else self._load_onnx
        load(path)
        sizes = {x.shape[0] for x in self.inputs.values()} - {None}
        self.is_fixed = bool(sizes)
        self.batch_size = sizes.pop() if sizes else batch_size

    def read(self, inputs: Any) -> dict[str, np.ndarray]:
        """Inputs by name as the file takes them; raises ValueError."""
        given = inputs if isinstance(inputs, dict) else {None: inputs}
        if not isinstance(inputs, dict) and len(self.inputs) == 1:
            given = dict.fromkeys(self.inputs, inputs)
        if set(given) != set(self.inputs):
            raise value_error(
                "`inputs` must be an array for each input of the file, by name",
                inputs=sorted(map(str, given)),
                names=sorted(self.inputs),
            )
        read = {}
        for name, kind in self.inputs.items():
            x = np.asarray(given[name])
            if not fits(x.shape[1:], kind.shape[1:]) or not len(x):
                raise value_error(
                    "`inputs` must have the shape that the file takes, and at "
                    "least one row",
                    name=name,
                    shape=x.shape,
                    taken=(None, *kind.shape[1:]),
                )
            read[name] = _cast(name, x, kind)
        if len({len(x) for x in read.values()}) > 1:
            raise value_error(
                "`inputs` must have as many rows for each input",
                rows={name: len(x) for name, x in read.items()},
            )
        return read

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The answers to inputs that were read, float32 where quantised."""
        rows = len(next(iter(inputs.values())))
        found: dict[str, list] = {}
        for start in range(0, rows, self.batch_size):
            stop = min(start + self.batch_size, rows)
            # A batch of fixed size is filled up with its last row.
            place = np.minimum(
                np.arange(start, start + self.batch_size), rows - 1
            )
            batch = {k: x[place] for k, x in inputs.items()}
            for name, answer in self.run_batch(batch).items():
                found.setdefault(name, []).append(answer[: stop - start])
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def check_rows_alone(
        self, inputs: dict[str, np.ndarray], logits: np.ndarray, tolerance: Any
    ) -> None:
        """Raises ValueError if the logits of a row depend on its batch."""
        if self.is_fixed or self.batch_size == 1:
            return
        rows = np.arange(min(_ROWS_ALONE, len(logits)))
        size, self.batch_size = self.batch_size, 1
        alone = self.run({name: x[rows] for name, x in inputs.items()})
        self.batch_size = size
        logits = filled(logits[rows])
        error = np.abs(filled(alone["logits"]) - logits)
        allowed = tolerance * max(1.0, float(np.abs(logits).max()))
        # NaN is told elsewhere.
        if (error > allowed).any():
            raise value_error(
                "`path` must answer a row as it does alone, and this file "
                "was quantised dynamically, by the values of a whole batch: "
                "quantise it statically, or give `batch_size=1` and serve row "
                "by row",
                batch_size=size,
                largest_difference=float(np.nanmax(error)),
            )

    def _load_litert(self, path: Path) -> None:
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(model_path=str(path))
        runner = interpreter.get_signature_runner("serving_default")
        self.inputs = {}
        for name, told in runner.get_input_details().items():
            sides = told.get("shape_signature", told["shape"])
            shape = tuple(None if n < 0 else int(n) for n in sides)
            dtype = np.dtype(told["dtype"])
            self.inputs[name] = _Input(shape, dtype, *told["quantization"])
        scales = {
            name: told["quantization"]
            for name, told in runner.get_output_details().items()
        }

        def run(batch):
            # Copied, as the next run overwrites the interpreter's arrays.
            return {
                name: (np.float32(scale) * (answer.astype("float32") - zero))
                if (scale := scales[name][0]) and answer.dtype.kind in "iu"
                else np.array(answer)
                for name, answer in runner(**batch).items()
                for zero in [scales[name][1]]
            }

        self.run_batch = run

    def _load_onnx(self, path: Path) -> None:
        import onnxruntime

        session = onnxruntime.InferenceSession(
            str(path), providers=["CPUExecutionProvider"]
        )
        self.inputs = {}
        for told in session.get_inputs():
            shape = tuple(n if isinstance(n, int) else None for n in told.shape)
            kind = told.type.removeprefix("tensor(").removesuffix(")")
            kind = {"float": "float32", "double": "float64"}.get(kind, kind)
            dtype = np.dtype(object if kind == "string" else kind)
            self.inputs[told.name] = _Input(shape, dtype, 0.0, 0)
        names = [output.name for output in session.get_outputs()]
        self.run_batch = lambda batch: dict(
            zip(names, session.run(None, batch), strict=True)
        )


def _cast(name: str, x: np.ndarray, kind: _Input) -> np.ndarray:
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

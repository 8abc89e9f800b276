"""A model in a file, which predicts as a Keras model does."""

import base64
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.files import path_of
from keras_calib.calibrators import Calibrator
from keras_calib.exporting.certificates import certificate_of, plain
from keras_calib.exporting.formats import (
    FileFormat,
    Runner,
    cast,
    format_of_file,
)
from keras_calib.exporting.served_model import selector_to_serve
from keras_calib.exporting.statement import (
    differing_files,
    read_statement,
    statement_path,
    write_statement,
)
from keras_calib.exporting.verification import near
from keras_calib.inputs.checks import check_flag, check_integer
from keras_calib.numerics.arrays import fits, to_numpy
from keras_calib.numerics.softmax import filled
from keras_calib.predictions.batches import predict_batches
from keras_calib.selection import SelectiveClassifier

_SIGNATURE = "serving_default"
# What the names of outputs say of them, in files of `export`.
_RETURN_LOGITS = {"logits": True, "probabilities": False}
# Rows that are also run one by one, and their largest error.
_ROWS_ALONE, _TOLERANCE = 16, 1e-3
# Largest error of a file on another machine, where whole numbers may round
# otherwise, and of the answers of a selector to the same outputs.
_OF_FILE, _OF_SELECTOR = 5e-2, 1e-4


class FileModel:
    """A model in a SavedModel, ONNX or LiteRT file.

    Use it to calibrate what ships: a file that was quantised answers otherwise
    than the model that it was made of. It is taken where a model is:
    `TemperatureScaling().fit_on(FileModel("q.tflite"), (x, y))`,
    `SelectiveClassifier.fit_on`, `Predictions.of_model`, `report`. Then
    `attach` writes calibrator and threshold into the certificate beside the
    file, and `answers` applies them.

    Quantise a network itself rather than its export: converters would make the
    steps behind the logits int8 too.

    Args:
        path: The folder of a SavedModel, or a file that ends in `.onnx`,
            `.tflite` or `.litert`.
        output: Name of the output to read. None takes `logits`, as `export`
            names them, or the only one.
        from_logits: Whether this output is logits. None knows it of files of
            `export`, and else leaves it to the caller.
        batch_size: Most rows that the file gets at once, >= 1, such as 1 for
            a file whose answer to a row depends on its batch. None gives it
            the batches that it is called on.

    Attributes:
        path: The same path.
        output_names: A list of the output that is read.
        returns_logits: Whether it is logits; None if unknown.
        selector: The `SelectiveClassifier` of the certificate beside the
            file, or None.

    Raises:
        ValueError: If there is no file that can be read, or the certificate
            beside it is broken or of another file.
        TypeError: If the file has several outputs and `output` is None.
        ImportError: If the package that runs the format is not installed.

    Example:

    >>> import numpy as np, tempfile, keras_calib
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Identity()])
    >>> path = tempfile.mkdtemp() + "/model.tflite"
    >>> path = keras_calib.export(model, path, from_logits=True)
    >>> file = keras_calib.exporting.FileModel(path)
    >>> x = np.repeat([[6.0, 0.0], [0.0, 6.0]], 99, axis=0)
    >>> y = [0, 0, 1] * 33 + [1, 1, 0] * 33
    >>> scaling = keras_calib.TemperatureScaling().fit_on(
    ...     file, (x, y), verbose=0)
    >>> round(scaling.temperature, 1)
    8.7

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        https://arxiv.org/abs/1706.04599
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        output: str | None = None,
        from_logits: bool | None = None,
        batch_size: int | None = None,
    ):
        self.path = path_of(path)
        self.name = self.path.stem
        made = format_of_file(self.path)
        self.format = made.name
        if from_logits is not None:
            check_flag("from_logits", from_logits)
        if batch_size is not None:
            check_integer("batch_size", batch_size, 1)
        self.selector: SelectiveClassifier | None = None
        found = self._attached()
        given: dict[str, Any] = {
            "output": output,
            "from_logits": from_logits,
            "batch_size": batch_size,
        }
        for name, value in given.items():
            if found is not None and value not in (None, found[name]):
                raise value_error(
                    f"`{name}` must be that of the certificate beside the "
                    "file: leave it out",
                    **{name: value, "certificate": found[name]},
                )
        given = found or given
        if found is not None:
            self.selector = _read_selector(found["selector"])
        self._runner = _served(self.path, made)
        self._output = _chosen(self._runner.outputs, given["output"])
        self.output_names = [self._output]
        self.returns_logits = _says(self._output, given["from_logits"])
        sizes = {x.shape[0] for x in self._runner.inputs.values()} - {None}
        self._is_fixed = bool(sizes)
        self.batch_size = sizes.pop() if sizes else given["batch_size"]
        # Whether a row was found to be answered alone as in a batch.
        self._are_rows_alone = self._is_fixed or self.batch_size == 1

    def __call__(self, inputs: Any, training: bool | None = None) -> Any:
        """The output that is read, as a tensor."""
        return ops.convert_to_tensor(self.predict_on_batch(inputs))

    def predict_on_batch(self, inputs: Any) -> np.ndarray:
        """The output that is read `(batch, ...)`.

        Args:
            inputs: An array, or a dict of arrays by name, as the file takes
                them. Floats are quantised for inputs of whole numbers.
        """
        read = self._read(inputs)
        found = self._run(read, [self._output])[self._output]
        if not self._are_rows_alone and len(found) > 1:
            self._check_rows_alone(read, found)
        return found

    def predict(
        self,
        x: Any,
        batch_size: int = 32,
        verbose: str | int = "auto",
        steps: int | None = None,
    ) -> np.ndarray:
        """The output that is read, of all data `(n, ...)`.

        Args:
            x: Arrays as for `predict_on_batch`, or a data set of batches.
            batch_size: Size of the batches of arrays.
            verbose: `"auto"` or 1 for a progress bar, 0 for silence.
            steps: Number of batches to use; None uses all.
        """
        is_array = isinstance(x, dict | list) or hasattr(x, "shape")
        data = (x,) if is_array else x
        batches = predict_batches(
            self, data, batch_size, steps, verbose=verbose
        )
        return np.concatenate([batch.outputs for batch in batches])

    def answers(self, inputs: Any, groups: Any = None) -> dict[str, Any]:
        """Arrays by name: what the file answers, or its selector to that.

        With a selector these are calibrated `logits`, `probabilities`,
        `confidence`, `score`, `accept` and `label`, as a selector gives them.

        Args:
            inputs: Inputs as for `predict_on_batch`.
            groups: Groups of the rows, for a selector with thresholds by
                group.
        """
        if self.selector is None:
            return self._run(self._read(inputs))
        outputs = self.predict_on_batch(inputs)
        return self._selected(self.selector, outputs, groups)

    def attach(
        self,
        selector: SelectiveClassifier | Calibrator,
        sample_inputs: Any,
        *,
        groups: Any = None,
        overwrite: bool = False,
    ) -> Path:
        """Writes calibrator and threshold into the certificate of the file.

        From then on `FileModel(path)` answers with them. `check_certificate`
        and `keras-calib verify` find whether the file was changed, and whether
        file, calibrator and threshold answer the samples as they do now. What
        a fit with `delta` guaranteed is certified as by `export`.

        Args:
            selector: A selector that was fitted on this file, or a calibrator
                to accept everything.
            sample_inputs: Inputs to record with their answers, as for
                `predict_on_batch`; some 10 rows are enough.
            groups: Groups of these rows, for thresholds by group.
            overwrite: Whether to replace the certificate that is there.

        Returns:
            The path of the certificate.

        Raises:
            ValueError: If there is a certificate, it is unknown whether the
                file returns logits, or the guarantee is of a kind that no
                certificate is for.
            TypeError: If the selector is of another kind, or cannot be stored.
            RuntimeError: If it is not fitted.
        """
        check_flag("overwrite", overwrite)
        place = statement_path(self.path)
        if place.exists() and not overwrite:
            raise value_error(
                "The file must have no certificate, or `overwrite` be True",
                certificate=str(place),
            )
        if self.returns_logits is None:
            raise value_error(
                "`from_logits` of the `FileModel` must be True or False, as "
                "the file does not say whether it returns logits",
                output=self._output,
            )
        if isinstance(selector, Calibrator):
            chosen: Any = selector_to_serve(selector, None)
        elif isinstance(selector, SelectiveClassifier):
            chosen = selector_to_serve(None, selector)
        else:
            raise type_error(
                "`selector` must be a SelectiveClassifier or a calibrator of "
                "classes",
                selector=type(selector).__name__,
            )
        told = plain(keras.saving.serialize_keras_object(chosen))
        loaded, inputs = _read_selector(told), self._read(sample_inputs)
        outputs = self.predict_on_batch(inputs)
        answers = self._selected(loaded, outputs, groups)
        replay = {
            "output": self._output,
            "from_logits": self.returns_logits,
            "batch_size": None if self._is_fixed else self.batch_size,
            "selector": told,
            "inputs": {k: _packed(x) for k, x in inputs.items()},
            "groups": None if groups is None else _packed(np.asarray(groups)),
            "outputs": _packed(outputs),
            "answers": {k: _packed(x) for k, x in answers.items()},
        }
        made = certificate_of(chosen, [], self.path, self.format, replay)
        write_statement(place, made)
        self.selector = loaded
        return place

    def _attached(self) -> dict[str, Any] | None:
        """What is told of the selector in a certificate beside the file."""
        place = statement_path(self.path)
        if not place.is_file():
            return None
        found = read_statement(place, check=True)
        if "replay" not in found:
            return None
        if differences := [*differing_files(found, self.path)]:
            raise value_error(
                "`path` must be the file that the certificate beside it is of",
                path=str(self.path),
                differences=differences,
            )
        return found["replay"]

    def _selected(
        self, selector: Any, outputs: Any, groups: Any
    ) -> dict[str, Any]:
        answers = selector(
            outputs, groups=groups, from_logits=self.returns_logits
        )
        return {k: to_numpy(x) for k, x in answers.items()}

    def _read(self, inputs: Any) -> dict[str, np.ndarray]:
        """Inputs by name as the file takes them; raises ValueError."""
        taken = self._runner.inputs
        given = inputs if isinstance(inputs, dict) else {None: inputs}
        if not isinstance(inputs, dict) and len(taken) == 1:
            given = dict.fromkeys(taken, inputs)
        if set(given) != set(taken):
            raise value_error(
                "`inputs` must be an array for each input of the file, by name",
                inputs=sorted(map(str, given)),
                names=sorted(taken),
            )
        read = {}
        for name, kind in taken.items():
            x = to_numpy(given[name])
            if not fits(x.shape[1:], kind.shape[1:]) or not len(x):
                raise value_error(
                    "`inputs` must have the shape that the file takes, and at "
                    "least one row",
                    name=name,
                    shape=x.shape,
                    taken=(None, *kind.shape[1:]),
                )
            read[name] = cast(name, x, kind)
        if len({len(x) for x in read.values()}) > 1:
            raise value_error(
                "`inputs` must have as many rows for each input",
                rows={name: len(x) for name, x in read.items()},
            )
        return read

    def _run(
        self,
        inputs: dict[str, np.ndarray],
        names: Sequence[str] | None = None,
        size: int | None = None,
    ) -> dict[str, np.ndarray]:
        """The outputs for inputs that were read, so many rows at a time."""
        rows = len(next(iter(inputs.values())))
        size = size or self.batch_size or rows
        found: dict[str, list] = {}
        for start in range(0, rows, size):
            # A batch of fixed size is filled up with its last row.
            stop = start + size if self._is_fixed else min(start + size, rows)
            place = np.minimum(np.arange(start, stop), rows - 1)
            batch = {k: x[place] for k, x in inputs.items()}
            for name, answer in self._runner.run(batch, names).items():
                found.setdefault(name, []).append(answer[: rows - start])
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def _check_rows_alone(
        self, inputs: dict[str, np.ndarray], outputs: np.ndarray
    ) -> None:
        """Raises ValueError if the answer to a row depends on its batch."""
        first = {name: x[:_ROWS_ALONE] for name, x in inputs.items()}
        alone = self._run(first, [self._output], size=1)[self._output]
        outputs = filled(outputs[:_ROWS_ALONE])
        error = np.abs(filled(alone) - outputs)
        allowed = _TOLERANCE * max(1.0, float(np.abs(outputs).max()))
        # NaN is told elsewhere.
        if (error > allowed).any():
            raise value_error(
                "`path` must answer a row as it does alone, and this file "
                "was quantised dynamically, by the values of a whole batch: "
                "quantise it statically, or give `batch_size=1` and serve row "
                "by row",
                rows=len(outputs),
                largest_difference=float(np.nanmax(error)),
            )
        self._are_rows_alone = True


def replayed(path: Path, found: dict[str, Any]) -> Iterator[str]:
    """Differences between recorded answers and those of file and selector."""
    replay, file = found["replay"], FileModel(path)
    inputs = {k: _unpacked(x) for k, x in replay["inputs"].items()}
    groups, outputs = replay["groups"], _unpacked(replay["outputs"])
    groups = None if groups is None else _unpacked(groups)
    if not _are_near(file.predict_on_batch(inputs), outputs, _OF_FILE):
        yield (
            "replay: the file returns something else for the recorded samples"
        )
    again = file._selected(file.selector, outputs, groups)
    recorded = {k: _unpacked(x) for k, x in replay["answers"].items()}
    for name in sorted({*again, *recorded}):
        one, two = again.get(name), recorded.get(name)
        if one is None or two is None or not _are_near(one, two, _OF_SELECTOR):
            yield (
                f"replay: calibrator and threshold give another {name} for "
                "the recorded samples"
            )


def _served(path: Path, made: FileFormat) -> Runner:
    """The signature for clients, or the only one."""
    try:
        found = made.load(path)
    except Exception as error:
        raise value_error(
            f"`path` must be a file that the runtime of {made.name} can load",
            path=str(path),
            error=f"{type(error).__name__}: {str(error)[:400]}",
        ) from error
    if _SIGNATURE not in found and len(found) != 1:
        raise value_error(
            f"`path` must have the signature {_SIGNATURE}, or one alone",
            path=str(path),
            signatures=sorted(found),
        )
    return found.get(_SIGNATURE) or next(iter(found.values()))


def _chosen(names: tuple[str, ...], output: str | None) -> str:
    if output is None and "logits" in names:
        return "logits"
    if output is None and len(names) > 1:
        raise type_error(
            "`output` must name the output to read, for a file that has "
            "several",
            output=None,
            outputs=names,
        )
    if output is not None and output not in names:
        raise value_error(
            "`output` must be the name of an output of the file",
            output=output,
            outputs=names,
        )
    return names[0] if output is None else output


def _says(output: str, from_logits: bool | None) -> bool | None:
    """Whether an output is logits, by its name or by the user."""
    says = _RETURN_LOGITS.get(output)
    if from_logits is not None and says not in (None, from_logits):
        raise value_error(
            f"`from_logits` must be None or {says} for this output",
            from_logits=from_logits,
            output=output,
        )
    return from_logits if says is None else says


def _read_selector(told: Any) -> SelectiveClassifier:
    """The selector of a certificate; raises unless it can be made."""
    try:
        found = keras.saving.deserialize_keras_object(_revived(told))
    except Exception as error:
        raise type_error(
            "`selector` must be one that Keras can store: register your own "
            "functions with `keras.saving.register_keras_serializable`",
            error=f"{type(error).__name__}: {str(error)[:400]}",
        ) from error
    if not isinstance(found, SelectiveClassifier):
        raise type_error(
            "`selector` of the certificate must be a SelectiveClassifier",
            selector=type(found).__name__,
        )
    return found


def _revived(told: Any) -> Any:
    """The values that `plain` made fit for JSON."""
    if isinstance(told, list):
        return [_revived(x) for x in told]
    if not isinstance(told, dict):
        return told
    if told.keys() == {"number"}:
        return float(told["number"])
    return {k: _revived(x) for k, x in told.items()}


def _packed(x: np.ndarray) -> dict[str, Any]:
    """An array as JSON."""
    shape, kind = [*x.shape], x.dtype.kind
    if kind in "OSU":
        texts = [
            v.decode() if isinstance(v, bytes) else str(v)
            for v in x.reshape(-1).tolist()
        ]
        return {"dtype": "str", "shape": shape, "values": texts}
    data = np.ascontiguousarray(x, x.dtype.newbyteorder("<")).tobytes()
    text = base64.b64encode(data).decode("ascii")
    return {"dtype": x.dtype.name, "shape": shape, "values": text}


def _unpacked(told: dict[str, Any]) -> np.ndarray:
    if told["dtype"] == "str":
        return np.array(told["values"], object).reshape(told["shape"])
    dtype = np.dtype(told["dtype"]).newbyteorder("<")
    data = base64.b64decode(told["values"])
    found = np.frombuffer(data, dtype).reshape(told["shape"])
    return found.astype(told["dtype"])


def _are_near(given: np.ndarray, wanted: np.ndarray, tolerance: float) -> bool:
    if given.shape != wanted.shape or given.dtype != wanted.dtype:
        return False
    if given.dtype.kind != "f":
        return np.array_equal(given, wanted)
    return bool(near(tolerance, wanted, given, ruled_out=False).all())

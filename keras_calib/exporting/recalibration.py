"""Recalibration of exported files on their own answers."""

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from keras_calib.backend.errors import invalid, value_error
from keras_calib.backend.files import path_of, replacing
from keras_calib.backend.replicas import check_tensorflow
from keras_calib.calibrators import TemperatureScaling
from keras_calib.exporting.answer_graph import answer_graph, check_kept
from keras_calib.exporting.file_runner import FileRunner
from keras_calib.exporting.formats import (
    file_format,
    format_of,
    write_litert,
    write_onnx,
)
from keras_calib.exporting.litert_graph import LiteRTGraph
from keras_calib.exporting.onnx_graph import OnnxGraph
from keras_calib.exporting.placing import scratch_of
from keras_calib.exporting.statement import statement_path
from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.bins import bin_index, bin_sums
from keras_calib.inputs.checks import check_integer, check_share
from keras_calib.numerics.arrays import as_array
from keras_calib.selection import ChosenThreshold, SelectiveClassifier
from keras_calib.selection.candidates import check_units
from keras_calib.selection.thresholds import Target
from keras_calib.selection.tuning import HeldOut

__all__ = ["Recalibration", "recalibrate_file"]

_BINS = 15
# Largest error of a written answer.
_TOLERANCE = 1e-3


class Recalibration(NamedTuple):
    """What `recalibrate_file` found and wrote.

    Attributes:
        path: The file that was written.
        temperature: T, by which the file now divides the logits that it
            answered before.
        chosen: Threshold, coverage, risk and guarantee on the file's own
            answers.
        ece_before: ECE of 15 bins of the logits that the file answered before,
            on the rows that chose the threshold.
        ece_after: The same of the file that was written.
        num_tuned: Number of rows that fitted the temperature.
    """

    path: Path
    temperature: float
    chosen: ChosenThreshold
    ece_before: float
    ece_after: float
    num_tuned: int


def recalibrate_file(
    path: str | os.PathLike,
    labels: Any,
    inputs: Any,
    *,
    risk: float | None = None,
    delta: float | None = None,
    coverage: float | None = None,
    method: str = "ltt",
    tune_fraction: float = 0.3,
    seed: int = 0,
    score: Any = None,
    ignore_class: int | None = None,
    batch_size: int = 64,
    out: str | os.PathLike | None = None,
) -> Recalibration:
    """Recalibrates an exported file on its own answers, and writes it back.

    Use it after quantising: an int8 file answers otherwise than the model
    whose logits chose temperature and threshold. It runs the file, fits a
    temperature on a share of the rows and chooses the threshold on the rest.
    The file then divides its logits by T, and computes every other answer from
    them in float32, also where a quantiser had made these steps int8.

    The temperature stands on top of any calibrator that the file holds. The
    guarantee of `delta` is for the scores that the written file itself
    computes. The file is run again and checked before it replaces the old one;
    an error leaves that untouched.

    Args:
        path: A `.tflite` or `.onnx` file of `export`, or one that was
            quantised from it, with the same names of outputs.
        labels: Class ids `(n, ...)` of held-out data that chose nothing else.
        inputs: The inputs as the file takes them `(n, ...)`, or a dict of
            them by name. Floats are quantised for a file of int8 inputs.
        risk: Largest allowed share of errors among the accepted.
        delta: Probability that the guarantee may fail, in (0, 1).
        coverage: Least share to accept, instead of `risk`.
        method: `"ltt"` or `"sgr"`, with `delta`, as in
            `SelectiveClassifier.fit`.
        tune_fraction: Share of the rows, in (0, 1), that fits the temperature.
        seed: Seed of this split.
        score: The score that the file ranks by afterwards, a name or a
            function as in `SelectiveClassifier`. None keeps `"msp"`, and
            refuses a file with another score.
        ignore_class: Class id to leave out.
        batch_size: Rows in a batch, >= 1, unless the file fixes it.
        out: Path of a new file; None replaces `path`.

    Returns:
        A `Recalibration`.

    Raises:
        ValueError: If the file is none of `export`, or labels or inputs do not
            fit it, or new answers would lose some of its own. If the target
            is out of reach, or a path cannot be used: a file at `out`, a
            read-only file, or one with a certificate.
        ImportError: If the packages of the format are not installed.
        OSError: If nothing can be written to the folder.
        RuntimeError: If the backend is not TensorFlow, or the written file
            would answer otherwise than expected.

    Example:

    >>> import keras, keras_calib, tempfile, numpy as np
    >>> x = np.random.default_rng(0).normal(size=(400, 2)).astype("float32")
    >>> y = (x[:, 0] + 0.5 * x[:, 1] > 0).astype(int)
    >>> layer = keras.layers.Dense(2)
    >>> model = keras.Sequential([keras.Input((2,)), layer])
    >>> layer.set_weights([np.array([[-9.0, 9], [0, 0]]), np.zeros(2)])
    >>> path = tempfile.mkdtemp() + "/model.tflite"
    >>> path = keras_calib.export(model, path, from_logits=True)
    >>> found = keras_calib.recalibrate_file(path, y, x, risk=0.05)
    >>> found.temperature > 3, found.ece_after < found.ece_before
    (True, True)

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        https://arxiv.org/abs/1706.04599; Angelopoulos et al., Learn then
        Test, 2021, https://arxiv.org/abs/2110.01052
    """
    check_tensorflow("`recalibrate_file`")
    target = Target(risk, coverage, delta, method).check()
    check_share("tune_fraction", tune_fraction, positive=True)
    check_integer("batch_size", batch_size, 1)
    name = format_of(path_of(path), None)
    if name == "savedmodel":
        raise value_error(
            "`path` must end in .tflite or .onnx; for a SavedModel assign its "
            "variables `calibration` and `threshold` after loading, or fit "
            "and export again",
            path=str(path),
        )
    path, written = _read_paths(path, out)
    file_format(name)
    litert = name == "litert"
    graph = (LiteRTGraph if litert else OnnxGraph)(path.read_bytes())
    # Made first, as no run is needed to find that a folder cannot be written.
    with scratch_of(written) as scratch:
        load = partial(FileRunner, litert=litert, batch_size=batch_size)
        made = scratch.with_suffix(path.suffix)
        found = _recalibrated(
            graph,
            load,
            path,
            made,
            _Data(labels, inputs, ignore_class),
            target,
            score,
            tune_fraction,
            seed,
        )
        shutil.copymode(path, made)
        os.replace(made, written)
    return found._replace(path=written)


class _Data(NamedTuple):
    labels: Any
    inputs: Any
    ignore_class: int | None


def _recalibrated(
    graph: Any,
    load: Any,
    path: Path,
    made: Path,
    data: _Data,
    target: Target,
    score: Any,
    tune_fraction: float,
    seed: int,
) -> Recalibration:
    """Writes the new file to `made`."""
    inputs = load(path).read(data.inputs)
    labels = _read_labels(data.labels, len(next(iter(inputs.values()))))
    _check_ids(labels, graph.logits_shape()[-1], data.ignore_class)
    # The old answers are not run: int8 steps of them can abort the process.
    known = _graft(graph, score)
    before = _written(graph, load, made, inputs)
    load(made).check_rows_alone(inputs, before["logits"], _TOLERANCE)
    if labels.shape != before["label"].shape:
        raise value_error(
            "`labels` must be class ids of the shape of the file's answers",
            **{"labels.shape": labels.shape, "shape": before["label"].shape},
        )
    check_units(target.delta, labels.shape)
    # The split of `SelectiveClassifier.fit`, here of the rows' numbers.
    rows = HeldOut(np.arange(len(labels)), before["logits"], None, None)
    tune, rest = rows.split(tune_fraction, seed)
    scaling = TemperatureScaling().fit(
        labels[tune.labels],
        tune.logits,
        ignore_class=data.ignore_class,
        num_folds=0,
    )
    temperature = scaling.temperature
    _set_temperature(graph, known * temperature)
    inputs = {name: x[rest.labels] for name, x in inputs.items()}
    after = _written(graph, load, made, inputs)
    _check_scaled(after, rest.logits / np.float32(temperature))
    labels = labels[rest.labels]
    counted = labels != data.ignore_class
    correct = (after["label"] == labels)[counted]
    selector = SelectiveClassifier(score=score or "msp").fit_scores(
        after["score"][counted], correct, **target._asdict()
    )
    threshold = selector.threshold
    graph.set_constant("threshold", threshold)
    final = _written(graph, load, made, inputs)
    expected = final["score"] >= np.float32(threshold)
    same = np.array_equal(final["score"], after["score"])
    if not same or not np.array_equal(final["accept"], expected):
        raise _wrong("accept")
    old = before["confidence"][rest.labels][counted]
    return Recalibration(
        made,
        temperature,
        cast(ChosenThreshold, selector.chosen),
        _ece(old, correct),
        _ece(after["confidence"][counted], correct),
        len(tune.labels),
    )


def _graft(graph: Any, score: Any) -> float:
    """Puts new answers behind the network's logits; returns T as it was."""
    before = graph.constant("temperature")
    inverse = graph.constant("inverse_temperature")
    known = before or (1.0 / inverse if inverse else 1.0)
    write = write_litert
    if isinstance(graph, OnnxGraph):
        write = partial(write_onnx, opset=graph.opset)
    shape = graph.logits_shape()
    tail = type(graph)(answer_graph(shape, score or "msp", write))
    check_kept(graph, tail if score is None else None)
    graph.graft(tail)
    _set_temperature(graph, known)
    graph.set_constant("threshold", -np.inf)
    return known


def _set_temperature(graph: Any, value: float) -> None:
    if graph.constant("temperature") is None:
        graph.set_constant("inverse_temperature", 1.0 / value)
    else:
        graph.set_constant("temperature", value)


def _written(graph: Any, load: Any, path: Path, inputs: dict) -> dict:
    with replacing(path) as file:
        file.write(graph.packed())
    return load(path).run(inputs)


def _check_scaled(after: dict, expected: np.ndarray) -> None:
    """Raises unless a file answers the softmax of scaled logits."""
    logits = after["logits"]
    size = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max()))
    if not np.allclose(logits, expected, _TOLERANCE, _TOLERANCE * size):
        raise _wrong("logits")
    exact = logits.astype("float64")
    probs = np.exp(exact - exact.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    if not np.allclose(after["probabilities"], probs, 0, _TOLERANCE):
        raise _wrong("probabilities")
    if not np.allclose(after["confidence"], probs.max(-1), 0, _TOLERANCE):
        raise _wrong("confidence")
    of_label = np.take_along_axis(logits, after["label"][..., None], -1)
    if (of_label[..., 0] < logits.max(axis=-1)).any():
        raise _wrong("label")


def _wrong(output: str) -> RuntimeError:
    return RuntimeError(
        invalid(
            "The written file must answer as expected, and nothing was kept: "
            "quantise the file anew from an export",
            output=output,
        )
    )


def _ece(confidence: np.ndarray, correct: np.ndarray) -> float:
    confidence = confidence.astype("float64")
    index = bin_index(confidence, _BINS)
    return float(
        calibration_error(bin_sums(confidence, correct, index, _BINS, None))
    )


def _read_labels(labels: Any, rows: int) -> np.ndarray:
    labels = as_array(labels, "labels")
    if labels.dtype.kind not in "iub":
        raise value_error("`labels` must be class ids", dtype=labels.dtype.name)
    if labels.shape[:1] != (rows,):
        raise value_error(
            "`labels` must have as many rows as `inputs`",
            rows=rows,
            **{"labels.shape": labels.shape},
        )
    return labels


def _check_ids(
    labels: np.ndarray, num_classes: int, ignore_class: int | None
) -> None:
    known = (labels >= 0) & (labels < num_classes)
    if not (known | (labels == ignore_class)).all():
        raise value_error(
            "`labels` must be class ids of the file",
            num_classes=num_classes,
            found=[int(labels.min()), int(labels.max())],
        )


def _read_paths(path: Any, out: Any) -> tuple[Path, Path]:
    """The file to read and the one to write; raises ValueError."""
    path = path_of(path).resolve()
    if not path.is_file():
        raise value_error("`path` must be an existing file", path=str(path))
    written = path if out is None else path_of(out, "out").resolve()
    if written != path:
        if os.path.lexists(written) or written.suffix != path.suffix:
            raise value_error(
                "`out` must not exist, and have the ending of `path`",
                out=str(written),
            )
        return path, written
    if not path.stat().st_mode & 0o222:
        raise value_error(
            "`path` must not be read-only: give another with `out`",
            path=str(path),
        )
    certificate = statement_path(path)
    if os.path.lexists(certificate):
        raise value_error(
            "`path` must have no certificate, which is for the file as it is: "
            "give another path with `out`; that file has no certificate",
            certificate=str(certificate),
        )
    return path, written

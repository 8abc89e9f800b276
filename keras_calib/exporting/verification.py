"""Verification: a written file is loaded and must answer as Keras does."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid, value_error
from keras_calib.backend.late import tensorflow as tf
from keras_calib.exporting.formats import Runner
from keras_calib.exporting.served_model import (
    ImageReader,
    ServedModel,
    computes_in_half,
)
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.softmax import is_ruled_out
from keras_calib.selection.served_groups import ids_of

# Two sizes for each open axis, so that it must be open in the file too.
_SIZES = (2, 32), (1, 64)
# Largest error of answers in float32 and in half precision, and the share of
# answers allowed beyond it: rounding can cross the edge of a calibrator's bin.
_TOLERANCE = 1e-3, 5e-2
_SHARE = 1e-3


class Probe(NamedTuple):
    """One batch for one signature of a file, and Keras' answers."""

    signature: str
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    tolerance: float
    compared: np.ndarray
    threshold: np.ndarray | None = None  # of each score, with groups


def probes(
    served: ServedModel,
    sample_inputs: Any = None,
    images: ImageReader | None = None,
    *,
    client_logits: bool = True,
) -> Iterator[Probe]:
    """Yields batches of two sizes for every signature of a file.

    Raises ValueError if `sample_inputs` do not suit the model, the model fails
    on random inputs, or its probabilities do not sum to 1.
    """
    rng = np.random.default_rng(0)
    if sample_inputs is None:
        batches = [_random_inputs(served, rng, *size) for size in _SIZES]
    else:
        given = _read_samples(served, sample_inputs)
        batches = [given, {k: v[:1] for k, v in given.items()}]
    network = served.from_logits, computes_in_half(served.network)
    groups_of = _groups_in_turn(served)
    for inputs in batches:
        try:
            outputs = served.outputs(inputs)
        except Exception as error:
            if sample_inputs is not None:
                raise
            raise value_error(
                "`sample_inputs` must be given: the model fails on "
                "random inputs",
                error=str(error)[:200],
            ) from error
        inputs = inputs | groups_of(outputs)
        yield _probe("serving_default", inputs, served, outputs, *network)
    for size in _SIZES if client_logits else ():
        shape = _with_sides(served.logits_shape, *size)
        logits = 3 * rng.standard_normal(shape, "float32")
        inputs = {"logits": logits, **groups_of(logits)}
        yield _probe("serving_logits", inputs, served, logits, True, False)
    if images is not None:
        height, width, channels = images.shape
        # Of another size than the model's input.
        other = height + 3, 2 * width, channels
        encoded = encoded_images([images.shape, other], rng)
        for files in (encoded, encoded[:1]):
            outputs = served.outputs({images.input_name: images.read(files)})
            inputs = {"image_bytes": files, **groups_of(files)}
            yield _probe("serving_bytes", inputs, served, outputs, *network)


def check_answers(
    runners: dict[str, Runner],
    probes: Iterable[Probe],
    threshold: float,
    costs: np.ndarray | None = None,
) -> None:
    """Raises RuntimeError unless a loaded file answers as Keras did.

    `costs` are those that choose the label, or None.
    """
    for probe in probes:
        name, wanted = probe.signature, probe.expected
        given = given_answers(runners, name, probe.inputs, wanted)
        judge = _wrong_answers
        if "labels" in wanted:
            judge = _wrong_labels
        found = judge(given, probe, threshold, costs)
        for output, wrong in found.items():
            if wrong.sum() > _SHARE * wrong.size:
                facts = {"wrong": int(wrong.sum()), "compared": wrong.size}
                raise wrong_file(name, output=output, **facts)


def given_answers(
    runners: dict[str, Runner],
    name: str,
    inputs: dict[str, np.ndarray],
    wanted: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """What a file answers; RuntimeError unless shapes are as wanted."""
    try:
        given = runners[name].run(inputs)
    except Exception as error:
        raise wrong_file(name, error=str(error)[:400]) from error
    if set(given) != set(wanted):
        raise wrong_file(name, outputs=sorted(given))
    for output, value in wanted.items():
        kind = value.shape, value.dtype.name
        got = given[output].shape, given[output].dtype.name
        if got != kind:
            raise wrong_file(name, output=output, expected=kind, answered=got)
    return given


def _wrong_answers(
    given: dict[str, np.ndarray],
    probe: Probe,
    threshold: float,
    costs: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """Masks of the wrong answers, by output."""
    given = {k: v[probe.compared] for k, v in given.items()}
    wanted = {k: v[probe.compared] for k, v in probe.expected.items()}
    if costs is not None:
        # Small costs in units of the largest, for the tolerance.
        unit = min(1.0, float(costs.max()))
        costs, threshold = costs / unit, threshold / unit
        for answers in (given, wanted):
            for output in ("score", "expected_cost"):
                answers[output] = answers[output] / unit

    close = partial(near, probe.tolerance)

    wrong = {
        output: ~close(wanted[output], given[output])
        for output in ("logits", "probabilities", "confidence", "score")
    }
    if probe.threshold is not None:
        threshold = probe.threshold[probe.compared]
    # At the threshold, and between tied classes, both answers are right.
    apart = ~close(wanted["score"], threshold)
    wrong["accept"] = apart & (given["accept"] != wanted["accept"])
    logits, ids = wanted["logits"], given["label"][:, None].astype("int64")
    exists = (ids >= 0) & (ids < logits.shape[-1])
    # What the label has the largest of.
    worth = logits if costs is None else -wanted["probabilities"] @ costs
    of_label = np.take_along_axis(worth, np.where(exists, ids, 0), axis=-1)
    ties = close(worth.max(axis=-1, keepdims=True), of_label)
    wrong["label"] = ~(exists & ties)
    # These are of the predicted class; without costs tied classes share one
    # confidence.
    of_class = {"probability_low", "probability_high"}
    same = given["label"] == wanted["label"]
    if costs is not None:
        of_class.add("confidence")
        expected = wanted["expected_cost"], given["expected_cost"]
        wrong["expected_cost"] = ~close(*expected)
    for output in wanted.keys() & of_class:
        wrong[output] = same & ~close(wanted[output], given[output])
    return wrong


def _wrong_labels(
    given: dict[str, np.ndarray],
    probe: Probe,
    threshold: Any,
    costs: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """As `_wrong_answers`, of several labels."""
    wanted, close = probe.expected, partial(near, probe.tolerance)
    wrong = {
        output: ~close(wanted[output], given[output])
        for output in ("logits", "probabilities", "confidence", "score")
    }
    # At the threshold, and between two answers, both are right.
    between = {"accept": ("score", threshold), "labels": ("logits", 0.0)}
    for output, (name, edge) in between.items():
        other = given[output] != wanted[output]
        wrong[output] = other & ~close(wanted[name], edge)
    if probe.compared.all():
        return wrong
    # By example a score is of all its labels.
    whole = probe.compared.all(axis=-1)
    kept = {True: probe.compared, False: whole}
    same = probe.compared.shape
    return {k: v[kept[v.shape == same]] for k, v in wrong.items()}


def near(
    tolerance: float, a: np.ndarray, b: Any, ruled_out: bool = True
) -> np.ndarray:
    """Which answers b are those that are wanted, a, within a tolerance.

    With `ruled_out` logits that rule out a class are all the same.
    """
    # The median ignores a few classes that are masked by -1e9.
    sizes = np.abs(a[np.isfinite(a)])
    scale = max(1.0, np.median(sizes)) if sizes.size else 1.0
    found = np.isclose(b, a, tolerance, tolerance * scale, equal_nan=True)
    # LiteRT gives the least float for logits of -inf.
    return found | (ruled_out & is_ruled_out(a) & is_ruled_out(b))


def _groups_in_turn(
    served: ServedModel,
) -> Callable[[Any], dict[str, np.ndarray]]:
    """A function from a batch to its input of groups; none without groups.

    All groups and an unknown one come in turn.
    """
    known = ids_of(served.groups)
    unknown = np.setdiff1d(np.arange(len(known) + 1), known)[:1]
    turns = itertools.cycle([*known, *unknown])

    def of_batch(batch: Any) -> dict[str, np.ndarray]:
        if not served.group_input:
            return {}
        ids = list(itertools.islice(turns, len(batch)))
        return {"group": np.array(ids, "int32")}

    return of_batch


def wrong_file(signature: str, **facts: Any) -> RuntimeError:
    """The error of a file that answers otherwise than its model."""
    return RuntimeError(
        invalid(
            "The written file must answer as the model does, and nothing was "
            "kept: give `sample_inputs` like those to be served, or choose "
            "another `format`",
            signature=signature,
            **facts,
        )
    )


def _probe(
    signature: str,
    inputs: dict[str, np.ndarray],
    served: ServedModel,
    outputs: Any,
    from_logits: bool,
    half: bool,
) -> Probe:
    outputs = ops.convert_to_numpy(ops.cast(outputs, "float32"))
    groups = inputs.get("group") if served.group_input else None
    expected = served.answers(outputs, from_logits, groups)
    threshold = None
    if groups is not None:
        shape = expected["score"].shape
        found = served.selector.threshold_for(groups, shape)
        threshold = np.broadcast_to(
            ops.convert_to_numpy(found), expected["score"].shape
        )
    tolerance = _TOLERANCE[half]
    compared = np.ones(outputs.shape[:-1], bool)
    if outputs.shape[-1] == 1 and not from_logits:
        # Near 0 and 1 rounding of p changes its logit much.
        compared = np.abs(outputs[..., 0] - 0.5) < 0.5 - tolerance
    if served.several_labels:
        compared = np.ones(outputs.shape, bool)
        if not from_logits:
            compared = np.abs(outputs - 0.5) < 0.5 - tolerance
    return Probe(signature, inputs, expected, tolerance, compared, threshold)


def _with_sides(shape: tuple, batch: int, side: int) -> list[int]:
    return [batch, *(side if n is None else n for n in shape[1:])]


def _random_inputs(
    served: ServedModel, rng: np.random.Generator, batch: int, side: int
) -> dict[str, np.ndarray]:
    inputs = {}
    for name, tensor in served.inputs.items():
        shape = _with_sides(tensor.shape, batch, side)
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        if dtype == "string":
            raise value_error(
                "`sample_inputs` must be given for a model of strings",
                sample_inputs=None,
            )
        if keras.backend.is_float_dtype(dtype):
            values = rng.standard_normal(shape, "float32")
        else:
            # Every embedding table has the ids 0 and 1.
            values = rng.integers(256 if dtype == "uint8" else 2, size=shape)
        values = ops.convert_to_tensor(values, dtype=dtype)
        inputs[name] = ops.convert_to_numpy(values)
    return inputs


def _read_samples(served: ServedModel, samples: Any) -> dict[str, np.ndarray]:
    names = list(served.inputs)
    wanted = [x for x, _ in keras.tree.flatten_with_path(served.structure)]
    given = dict(keras.tree.flatten_with_path(samples))
    if set(given) == {(name,) for name in names}:
        wanted = [(name,) for name in names]
    elif len(wanted) == len(given) == 1:
        wanted = list(given)
    if set(given) != set(wanted):
        raise value_error(
            "`sample_inputs` must have the structure of the model's inputs, "
            "and hold arrays",
            sample_inputs=type(samples).__name__,
            inputs=names,
        )
    inputs = {}
    for path, (name, tensor) in zip(wanted, served.inputs.items(), strict=True):
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        x = np.asarray(given[path])
        inputs[name] = x if dtype == "string" else x.astype(dtype)
    shapes = {name: x.shape for name, x in inputs.items()}
    expected = {name: shape_of(x) for name, x in served.inputs.items()}
    counts = {shape[:1] for shape in shapes.values()}
    # Keras would add a missing axis, but a client must send it.
    ranks = [len(shapes[x]) == len(expected[x]) for x in names]
    if len(counts) > 1 or (0,) in counts or not all(ranks):
        raise value_error(
            "`sample_inputs` must have the axes of the model's inputs, with "
            "the same number of samples for each input, at least one",
            shapes=shapes,
            expected=expected,
        )
    return inputs


def encoded_images(
    shapes: Iterable[tuple[int, ...]], rng: np.random.Generator
) -> np.ndarray:
    """PNG files of random images."""
    images = [rng.integers(256, size=x, dtype="uint8") for x in shapes]
    return np.array([tf.io.encode_png(x).numpy() for x in images], object)

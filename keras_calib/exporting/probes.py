"""Probes of a written file: inputs, answers of Keras, and tolerances."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.exporting.savedmodel import ImageReader
from keras_calib.exporting.served_model import ServedModel
from keras_calib.numerics.arrays import shape_of

__all__ = ["Probe", "perturbation_bound", "probes", "scales"]

# Two sizes for each axis that is open, so that it must be open in the file.
_SIZES = (2, 32), (1, 64)
# How far answers may be off, and how far one network's outputs differ between
# runtimes by rounding that adds up over the layers, relative to their scale.
# In float32, and in half precision.
_TOLERANCE = 1e-3, 5e-2
_ROUNDING = 1e-5, 1e-2
# A probability is rounded to this at best, next to 1.
_LAST_PLACE = 2.0**-23
# A class so far below the largest logit has probability 0 in float32.
_VANISHES = 104.0


class Probe(NamedTuple):
    """One batch for one signature of a file.

    Attributes:
        signature: Name of the signature.
        inputs: Arrays by name.
        expected: Keras' answers: arrays by name.
        tolerance: How far `logits`, `probabilities`, `confidence` and `score`
            may be off, arrays by name.
    """

    signature: str
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    tolerance: dict[str, np.ndarray]


def probes(
    served: ServedModel,
    sample_inputs: Any = None,
    images: ImageReader | None = None,
    *,
    client_logits: bool = True,
) -> Iterator[Probe]:
    """Batches of two sizes for every signature that a file has, one at a time.

    Maps of many classes are large: keep none of them.

    Args:
        served: The model.
        sample_inputs: Inputs as the model takes them, or None for random
            ones.
        images: What reads encoded images, if the file will.
        client_logits: Whether the file takes logits that a client computed.

    Raises:
        ValueError: If `sample_inputs` is not what the model takes, the model
            fails on random inputs, or its probabilities do not sum to 1.
    """
    rng = np.random.default_rng(0)
    random = sample_inputs is None
    if random:
        batches = (_random_inputs(served, rng, *size) for size in _SIZES)
    else:
        given = _read_samples(served, sample_inputs)
        batches = (given, {k: v[:1] for k, v in given.items()})
    network = served.from_logits, served.computes_in_half
    for inputs in batches:
        try:
            outputs = served.outputs(inputs)
        except Exception as error:
            if not random:
                raise
            raise value_error(
                "`sample_inputs` must be given: the model fails on "
                "random inputs",
                error=str(error)[:200],
            ) from error
        yield _probe("serving_default", inputs, served, outputs, *network)
    for size in _SIZES if client_logits else ():
        shape = _with_sides(served.logits_shape, *size)
        logits = 3 * rng.standard_normal(shape, "float32")
        inputs = {"logits": logits}
        yield _probe("serving_logits", inputs, served, logits, True, False)
    if images is not None:
        encoded = _encoded_images(images.shape, rng)
        for files in (encoded, encoded[:1]):
            outputs = served.outputs({images.input_name: images.read(files)})
            inputs = {"image_bytes": files}
            yield _probe("serving_bytes", inputs, served, outputs, *network)


def scales(logits: np.ndarray) -> np.ndarray:
    """What the rounding of each of these logits is relative to.

    Its own size, or that of the largest logit of its row, or of most rows;
    among classes whose probability is not 0, so that the -1e9 of a class that
    is masked says nothing about the others.
    """
    finite = np.isfinite(logits)
    sizes = np.where(finite, np.abs(logits), np.float32(0))
    top = np.where(finite, logits, -np.inf).max(axis=-1, keepdims=True)
    near = np.where(logits >= top - _VANISHES, sizes, np.float32(0))
    of_row = near.max(axis=-1, keepdims=True)
    of_most = np.float32(max(np.median(of_row), 1e-3))
    return np.maximum(sizes, np.maximum(of_row, of_most))


def perturbation_bound(
    answer: Callable[[np.ndarray], dict[str, np.ndarray]],
    outputs: np.ndarray,
    steps: np.ndarray,
    here: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """How far the answers `here` move where network outputs round otherwise.

    By much across the edge of a bin of a calibrator, and where a probability
    is next to 1. The largest output of a row moves against the others, by a
    step up and a step down, which moves its confidence most.
    """
    largest = outputs == outputs.max(axis=-1, keepdims=True)
    steps = np.where(largest, steps, -steps)
    up, down = answer(outputs + steps), answer(outputs - steps)
    with np.errstate(invalid="ignore"):
        return {
            name: np.nan_to_num(
                np.abs(up[name] - value) + np.abs(down[name] - value),
                posinf=np.inf,
            )
            for name, value in here.items()
            if value.dtype.kind == "f"
        }


def _probe(
    signature: str,
    inputs: dict[str, np.ndarray],
    served: ServedModel,
    outputs: Any,
    from_logits: bool,
    half: bool,
) -> Probe:
    outputs = ops.convert_to_numpy(ops.cast(outputs, "float32"))
    expected = served.answers(outputs, from_logits)
    steps = _ROUNDING[half] * scales(outputs)
    if not from_logits:
        steps = _ROUNDING[half] * outputs + _LAST_PLACE

    def rounded(moved):
        if not from_logits:
            moved = np.clip(moved, 0.0, 1.0)
        # Sums that rounding moves off 1 are not judged.
        nowhere = np.zeros(moved.shape[:-1], bool)
        return served.answers(moved, from_logits, nowhere)

    units = {
        "logits": scales(expected["logits"]),
        "score": np.maximum(np.abs(expected["score"]), 1.0),
    }
    bounds = perturbation_bound(rounded, outputs, steps, expected)
    tolerance = {
        name: bound + _TOLERANCE[half] * units.get(name, 1.0)
        for name, bound in bounds.items()
    }
    return Probe(signature, inputs, expected, tolerance)


def _with_sides(shape: tuple, batch: int, side: int) -> list[int]:
    return [batch, *(side if n is None else n for n in shape[1:])]


def _random_inputs(
    served: ServedModel, rng: np.random.Generator, batch: int, side: int
) -> dict[str, np.ndarray]:
    inputs = {}
    for name, tensor in served.inputs.items():
        shape = _with_sides(tensor.shape, batch, side)
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        if keras.backend.is_float_dtype(dtype):
            values = rng.standard_normal(shape, "float32")
        elif dtype == "uint8":
            values = rng.integers(256, size=shape)
        elif dtype == "string":
            raise value_error(
                "`sample_inputs` must be given for a model of strings",
                sample_inputs=None,
            )
        else:
            # Ids that every table has.
            values = rng.integers(2, size=shape)
        values = ops.convert_to_tensor(values, dtype=dtype)
        inputs[name] = ops.convert_to_numpy(values)
    return inputs


def _read_samples(served: ServedModel, samples: Any) -> dict[str, np.ndarray]:
    flat = _flatten_like(served.structure, samples)
    if isinstance(samples, dict) and set(samples) == set(served.inputs):
        flat = [samples[name] for name in served.inputs]
    if flat is None:
        raise value_error(
            "`sample_inputs` must have the structure of the model's "
            "inputs, of arrays",
            sample_inputs=type(samples).__name__,
            inputs=list(served.inputs),
        )
    inputs = {}
    for (name, tensor), x in zip(served.inputs.items(), flat, strict=True):
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        x = np.asarray(x)
        inputs[name] = x if dtype == "string" else x.astype(dtype)
    shapes = {name: x.shape for name, x in inputs.items()}
    wanted = {name: shape_of(x) for name, x in served.inputs.items()}
    counts = {shape[:1] for shape in shapes.values()}
    # Keras would add an axis that a client has to send.
    if (
        len(counts) > 1
        or not counts.isdisjoint([(), (0,)])
        or any(
            len(shapes[name]) != len(shape) for name, shape in wanted.items()
        )
    ):
        raise value_error(
            "`sample_inputs` must have the axes of the model's inputs, "
            "and as many samples of each, at least one",
            shapes=shapes,
            expected=wanted,
        )
    return inputs


def _flatten_like(structure: Any, samples: Any) -> list | None:
    """Samples in the order of the model's inputs, or None if they differ."""
    wanted = [path for path, _ in keras.tree.flatten_with_path(structure)]
    # By keys and places: a list fits a tuple, and a dict any kind of dict.
    given = dict(keras.tree.flatten_with_path(samples))
    if len(wanted) == len(given) == 1 and not set(given).isdisjoint([(), (0,)]):
        return list(given.values())
    if set(given) != set(wanted):
        return None
    return [given[path] for path in wanted]


def _encoded_images(shape: tuple, rng: np.random.Generator) -> np.ndarray:
    """PNG files, one of them of another size than the model's."""
    import tensorflow as tf

    height, width, channels = shape
    files = []
    for sides in ((height, width), (height + 3, 2 * width)):
        image = rng.integers(256, size=(*sides, channels), dtype="uint8")
        files.append(tf.io.encode_png(image).numpy())
    return np.array(files, dtype=object)

"""What a written file is asked: inputs, and what Keras answers to them."""

import math
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import keras
import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.exporting.savedmodel import ImageReader
from keras_calib.exporting.served_model import ServedModel
from keras_calib.inputs.values import SUM_TOLERANCE
from keras_calib.inputs.values import check_probabilities
from keras_calib.numerics.arrays import shape_of

__all__ = ["Probe", "either_way", "questions", "scales"]

# Two sizes for each axis that is open, so that it must be open in the file.
_BATCHES, _SIDES = (3, 1), (32, 64)
# Of samples with more numbers than this, such as maps of many classes.
_LARGE, _FEW = 1_000_000, (2, 1)
# How far one network's outputs differ between runtimes, relative to their
# scale: by rounding that adds up over the layers.
_ROUNDING = {"float32": 1e-5, "half": 1e-2}
# A probability is rounded to this at best, next to 1.
_LAST_PLACE = 2.0**-23
# A class so far below the largest logit has probability 0 in float32.
_VANISHES = 104.0


class Probe(NamedTuple):
    """One batch for one signature of a file.

    Attributes:
        signature: Name of the signature.
        inputs: Arrays by name.
        expected: What Keras answers: arrays by name.
        movement: How far `logits` move if what the network returns is rounded
            otherwise, `(batch, ..., num_classes)` or one number: across the
            edge of a bin, or by much where a probability is next to 1.
    """

    signature: str
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    movement: np.ndarray


def questions(
    served: ServedModel,
    sample_inputs: Any = None,
    images: ImageReader | None = None,
    *,
    client_logits: bool = True,
) -> Iterator[Probe]:
    """Batches of two sizes for every signature that a file has, one at a time.

    Args:
        served: The model.
        sample_inputs: Inputs as the model takes them, or None for random
            ones.
        images: What reads encoded images, if the file will.
        client_logits: Whether the file takes logits that a client computed.

    Yields:
        Questions; maps of many classes are large, so keep none of them.

    Raises:
        ValueError: If `sample_inputs` is not what the model takes, the model
            fails on random inputs, or its probabilities do not sum to 1.
    """
    rng = np.random.default_rng(0)
    sizes = list(zip(_batch_sizes(served), _SIDES, strict=True))
    random = sample_inputs is None
    if random:
        batches = (_random_inputs(served, rng, *size) for size in sizes)
    else:
        given = _read_samples(served, sample_inputs)
        batches = (given, {k: v[:1] for k, v in given.items()})
    for inputs in batches:
        try:
            outputs = served.outputs(inputs)
        except Exception as error:
            if not random:
                raise
            raise ValueError(
                invalid(
                    "`sample_inputs` must be given: the model fails on "
                    "random inputs",
                    error=str(error)[:200],
                )
            ) from error
        yield _about("serving_default", served, inputs, outputs)
    for size in sizes if client_logits else ():
        shape = _with_sides(served.logits_shape, *size)
        logits = 3 * rng.standard_normal(shape, "float32")
        expected = served.answers_of_logits(logits)
        still = np.zeros((), "float32")
        yield Probe("serving_logits", {"logits": logits}, expected, still)
    if images is not None:
        encoded = _encoded_images(images.shape, rng)
        for files in (encoded, encoded[:1]):
            inputs = {images.input_name: images.read(files)}
            outputs = served.outputs(inputs)
            named = {"image_bytes": files}
            yield _about("serving_bytes", served, named, outputs)


def scales(logits: np.ndarray) -> np.ndarray:
    """What the rounding of each logit is relative to.

    Its own size, or that of the largest logit of its row, or of most rows;
    among classes whose probability is not 0, so that the -1e9 of a class that
    is masked says nothing about the others.

    Args:
        logits: Array `(..., num_classes)`.

    Returns:
        Numbers > 0 of that shape.
    """
    finite = np.isfinite(logits)
    sizes = np.where(finite, np.abs(logits), np.float32(0))
    top = np.where(finite, logits, -np.inf).max(axis=-1, keepdims=True)
    near = np.where(logits >= top - _VANISHES, sizes, np.float32(0))
    of_row = near.max(axis=-1, keepdims=True)
    of_most = np.float32(max(np.median(of_row), 1e-3))
    return np.maximum(sizes, np.maximum(of_row, of_most))


def either_way(
    function: Callable[[np.ndarray], np.ndarray],
    values: np.ndarray,
    steps: np.ndarray,
) -> np.ndarray:
    """How far a function moves where each value is moved up or down.

    Args:
        function: Of `values`, for example logits to scores.
        values: Array of any shape.
        steps: How far to move them, of that shape.

    Returns:
        Distances >= 0, of the shape of what `function` returns.
    """
    up = np.random.default_rng(0).integers(2, size=values.shape, dtype="bool")
    steps = np.where(up, steps, -steps)
    here = function(values)
    with np.errstate(invalid="ignore"):
        distances = np.abs(function(values + steps) - here)
        distances += np.abs(function(values - steps) - here)
    return np.nan_to_num(distances, copy=False, posinf=np.inf)


def _about(
    signature: str, served: ServedModel, inputs: dict, outputs: Any
) -> Probe:
    outputs = keras.ops.cast(outputs, "float32")
    outputs = keras.ops.convert_to_numpy(outputs)
    if not served.from_logits:
        check_probabilities(outputs, "y_pred")
        _check_one_of_several(outputs)
    expected = served.answers(outputs)
    rounding = _ROUNDING["half" if served.computes_in_half else "float32"]

    def logits_of(values):
        if not served.from_logits:
            values = np.clip(values, 0.0, 1.0)
        # Moved by the rounding of half precision, sums are off 1: none counts.
        counts = np.zeros(values.shape[:-1], bool)
        return served.logits(values.astype("float32", copy=False), counts)

    if served.from_logits:
        steps = rounding * scales(outputs)
    else:
        steps = rounding * outputs + _LAST_PLACE
    movement = either_way(logits_of, outputs, steps)
    return Probe(signature, inputs, expected, movement)


def _check_one_of_several(probs: np.ndarray) -> None:
    """Raises where the classes do not exclude each other."""
    sums = probs.sum(axis=-1)
    if probs.shape[-1] > 1 and np.any(np.abs(sums - 1) > SUM_TOLERANCE):
        raise ValueError(
            invalid(
                "`model` must return probabilities that sum to 1 over the "
                "classes; models of several labels are not classifiers",
                smallest_sum=float(sums.min()),
                largest_sum=float(sums.max()),
            )
        )


def _batch_sizes(served: ServedModel) -> tuple[int, int]:
    shapes = [tensor.shape for tensor in served.inputs.values()]
    shapes.append(served.logits_shape)
    largest = max(math.prod(_with_sides(s, 1, max(_SIDES))) for s in shapes)
    return _BATCHES if largest <= _LARGE else _FEW


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
            raise ValueError(
                invalid(
                    "`sample_inputs` must be given for a model of strings",
                    sample_inputs=None,
                )
            )
        else:
            # Ids that every table has.
            values = rng.integers(2, size=shape)
        values = keras.ops.convert_to_tensor(values, dtype=dtype)
        inputs[name] = keras.ops.convert_to_numpy(values)
    return inputs


def _read_samples(served: ServedModel, samples: Any) -> dict[str, np.ndarray]:
    flat = _flatten_like(served.structure, samples)
    if isinstance(samples, dict) and set(samples) == set(served.inputs):
        flat = [samples[name] for name in served.inputs]
    if flat is None:
        raise ValueError(
            invalid(
                "`sample_inputs` must have the structure of the model's "
                "inputs, of arrays",
                sample_inputs=type(samples).__name__,
                inputs=list(served.inputs),
            )
        )
    flat = [np.asarray(x) for x in flat]
    lengths = [len(x) if x.ndim else 0 for x in flat]
    if len(set(lengths)) != 1 or not lengths[0]:
        raise ValueError(
            invalid(
                "`sample_inputs` must hold as many samples of each input, and "
                "at least one",
                shapes=[x.shape for x in flat],
            )
        )
    inputs = {}
    for (name, tensor), x in zip(served.inputs.items(), flat, strict=True):
        if x.ndim != len(tensor.shape):
            raise ValueError(
                invalid(
                    "`sample_inputs` must have the axes of the model's inputs, "
                    "the batch among them",
                    input=name,
                    shape=x.shape,
                    expected=shape_of(tensor),
                )
            )
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        inputs[name] = x if dtype == "string" else x.astype(dtype)
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

"""What a written file is asked: inputs, and what Keras answers to them."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import keras
import numpy as np

from keras_calib.checks import invalid
from keras_calib.exporting.served_model import ServedModel
from keras_calib.exporting.signatures import ImageReader

__all__ = ["Question", "either_way", "questions"]

# Two sizes for each axis that is open, so that it must be open in the file.
_BATCHES, _SIDES = (3, 1), (32, 64)
# How far one network's outputs differ between runtimes, relative to the
# largest: by rounding that adds up over the layers.
_ROUNDING = {"float32": 1e-5, "half": 1e-2}
# A probability is rounded to this at best, next to 1.
_LAST_PLACE = 2.0**-23


class Question(NamedTuple):
    """One batch for one signature of a file.

    Attributes:
        signature: Name of the signature.
        inputs: Arrays by name.
        expected: What Keras answers: arrays by name.
        movement: How far `logits` move if what the network returns is rounded
            otherwise, `(batch, ..., num_classes)`: across the edge of a bin,
            or by much where a probability is next to 1.
    """

    signature: str
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    movement: np.ndarray


def questions(
    served: ServedModel,
    sample_inputs: Any = None,
    images: ImageReader | None = None,
) -> list[Question]:
    """Batches for every signature that a file may have.

    Args:
        served: The model.
        sample_inputs: Inputs as the model takes them, or None for random
            ones.
        images: What reads encoded images, if the file will.

    Raises:
        ValueError: If `sample_inputs` is not what the model takes, or the
            model fails on random inputs.
    """
    rng = np.random.default_rng(0)
    random = sample_inputs is None
    if random:
        sizes = zip(_BATCHES, _SIDES, strict=True)
        batches = [_random_inputs(served, rng, *size) for size in sizes]
    else:
        given = _read_samples(served, sample_inputs)
        batches = [given, {k: v[:1] for k, v in given.items()}]
    asked = []
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
        asked.append(_about("serving_default", served, inputs, outputs))
    for batch, side in zip(_BATCHES, _SIDES, strict=True):
        shape = [side if n is None else n for n in served.logits_shape[1:]]
        logits = rng.normal(scale=3.0, size=(batch, *shape)).astype("float32")
        expected = served.answers_of_logits(logits)
        still = np.zeros_like(expected["logits"])
        asked.append(
            Question("serving_logits", {"logits": logits}, expected, still)
        )
    if images is not None:
        encoded = _encoded_images(images.shape, rng)
        inputs = {images.input_name: images.read(encoded)}
        outputs = served.outputs(inputs)
        named = {"image_bytes": encoded}
        asked.append(_about("serving_bytes", served, named, outputs))
    return asked


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
    signs = np.random.default_rng(0).choice([-1, 1], values.shape)
    here = function(values)
    with np.errstate(invalid="ignore"):
        up = np.abs(function(values + signs * steps) - here)
        down = np.abs(function(values - signs * steps) - here)
    return np.nan_to_num(up + down, posinf=np.inf)


def _about(
    signature: str, served: ServedModel, inputs: dict, outputs: Any
) -> Question:
    outputs = keras.ops.cast(outputs, "float32")
    outputs = keras.ops.convert_to_numpy(outputs)
    rounding = _ROUNDING["half" if served.computes_in_half else "float32"]
    finite = np.abs(outputs[np.isfinite(outputs)])
    largest = finite.max(initial=0.0)

    def logits_of(values):
        if not served.from_logits:
            values = np.clip(values, 0.0, 1.0)
        return served.answers(values.astype("float32"))["logits"]

    if served.from_logits:
        steps = np.full_like(outputs, rounding * largest)
    else:
        steps = rounding * outputs + _LAST_PLACE
    movement = either_way(logits_of, outputs, steps)
    return Question(signature, inputs, served.answers(outputs), movement)


def _random_inputs(
    served: ServedModel, rng: np.random.Generator, batch: int, side: int
) -> dict[str, np.ndarray]:
    inputs = {}
    for name, tensor in served.inputs.items():
        shape = [batch, *(side if n is None else n for n in tensor.shape[1:])]
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        if keras.backend.is_float_dtype(dtype):
            values = rng.normal(size=shape)
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
    try:
        keras.tree.assert_same_structure(served.structure, samples)
    except (TypeError, ValueError) as error:
        raise ValueError(
            invalid(
                "`sample_inputs` must have the structure of the model's "
                "inputs, of arrays",
                sample_inputs=type(samples).__name__,
                inputs=list(served.inputs),
            )
        ) from error
    flat = [np.asarray(x) for x in keras.tree.flatten(samples)]
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
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        inputs[name] = x if dtype == "string" else x.astype(dtype)
    return inputs


def _encoded_images(shape: tuple, rng: np.random.Generator) -> np.ndarray:
    """PNG files, one of them of another size than the model's."""
    import tensorflow as tf

    height, width, channels = shape
    files = []
    for sides in ((height, width), (height + 3, 2 * width)):
        image = rng.integers(256, size=(*sides, channels), dtype="uint8")
        files.append(tf.io.encode_png(image).numpy())
    return np.array(files, dtype=object)

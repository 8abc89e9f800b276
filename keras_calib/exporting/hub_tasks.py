"""Tasks of KerasHub with their preprocessing, as one network to export."""

import sys
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.backend.late import imported
from keras_calib.backend.predict import preparation
from keras_calib.ensembles.base import input_structure
from keras_calib.exporting.served_model import (
    ImageReader,
    ServedModel,
    converted_images,
)

# Words in the made-up texts for the comparison of answers.
_LENGTHS = (0, 1, 3, 8, 40)


def whole_model(
    model: keras.Model, sample_inputs: Any, made: str, has_images: bool
) -> tuple[keras.Model, Any, Any]:
    """A model, or a KerasHub task behind its own preprocessing.

    It returns the network to export, inputs for the comparison of answers or
    None, and the task's converter of images or None. Two texts for each
    example, as a tuple, make a network of two inputs. `image_preprocessing`
    takes the place of the task's own. Raises ValueError if the format `made`,
    or this library, cannot hold it.
    """
    # A task exists only where KerasHub is loaded.
    hub: Any = sys.modules.get("keras_hub")
    is_task = hub is not None and isinstance(model, hub.models.Task)
    preprocessor = model.preprocessor if is_task else None
    if has_images or preprocessor is None:
        return model, sample_inputs, None
    tokenizer = getattr(preprocessor, "tokenizer", None)
    converter = getattr(preprocessor, "image_converter", None)
    known = isinstance(preprocessor, hub.models.Preprocessor)
    if known and tokenizer is None and converter is None:
        # It changes nothing.
        return model, sample_inputs, None
    if not known or (tokenizer is None) == (converter is None):
        raise value_error(
            "`model` must be a KerasHub task that reads texts or images by a "
            "preprocessor of KerasHub: export the network alone, "
            "`keras.Model(task.input, task.output)`, with `from_logits`",
            preprocessor=type(preprocessor).__name__,
        )
    if made != "savedmodel":
        raise value_error(
            "`format` must be 'savedmodel' for a KerasHub task with its "
            "preprocessing, which other formats do not hold: export "
            "`keras.Model(task.input, task.output)` with `from_logits`, and "
            "let clients send what `task.preprocessor` returns",
            format=made,
        )
    if converter is not None:
        channels = model.inputs[0].shape[-1]
        raw = keras.Input((None, None, channels), name="images")
        return _behind(model, raw), sample_inputs, converter
    what = "`export` of a KerasHub task of texts"
    imported("tensorflow_text", what, "hub")
    samples = _texts(tokenizer) if sample_inputs is None else sample_inputs
    if isinstance(samples, dict):
        samples = _by_place(samples)
    if not isinstance(samples, tuple):
        raw = keras.Input((), dtype="string", name="text")
        return _behind(model, raw), np.asarray(samples, object), None
    raw = tuple(
        keras.Input((), dtype="string", name=f"text_{i + 1}")
        for i in range(len(samples))
    )
    samples = tuple(np.asarray(x, object) for x in samples)
    return _behind(model, raw), samples, None


def image_reader(
    served: ServedModel,
    model: keras.Model,
    converter: Any,
    preprocessing: Any,
    size: tuple[int, int] | None,
    made: str,
) -> ImageReader | None:
    """The reader of encoded images, or None for a file without one.

    `converter` is that of a KerasHub task. `preprocessing` and `size` are the
    user's arguments, `made` the format.
    """
    if converter is not None:
        sides = tuple(model.inputs[0].shape[1:3])
        return converted_images(served.inputs, converter, size, sides)
    if preprocessing is None:
        if size is not None:
            raise value_error(
                "`image_size` needs `image_preprocessing`", image_size=size
            )
        return None
    if made != "savedmodel":
        raise value_error(
            "`image_preprocessing` needs a SavedModel, which can decode images",
            format=made,
        )
    return ImageReader(served.inputs, preprocessing, size)


class _WholeTask(keras.layers.Layer):
    """A task behind its preprocessor, as a layer of raw inputs."""

    def __init__(self, task: keras.Model):
        super().__init__(name="task", dtype="float32", autocast=False)
        # Raw inputs may be strings.
        self._convert_input_args = False
        self.task = task
        # Tracked for its tables.
        self.preprocessor = task.preprocessor
        self._prepare: Any = preparation(task)
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if isinstance(inputs, list):
            # Several texts of an example; a list would be a batch.
            inputs = tuple(inputs)
        x, taken = self._prepare(inputs), input_structure(self.task)
        x = (
            # In this order, as Keras warns of another.
            {key: ops.cast(x[key], taken[key].dtype) for key in taken}
            if isinstance(taken, dict)
            else ops.cast(x, taken.dtype)
        )
        return self.task(x, training=training)

    def compute_output_spec(self, inputs: Any, **options: Any) -> Any:
        outputs = self.task.outputs[0]
        return keras.KerasTensor(outputs.shape, outputs.dtype)


def _behind(task: keras.Model, raw: Any) -> keras.Model:
    """The task as a network of raw inputs."""
    return keras.Model(raw, _WholeTask(task)(raw), name=task.name)


def _by_place(samples: dict[str, Any]) -> Any:
    """Texts that are given by the names that clients use."""
    if set(samples) == {"text"}:
        return samples["text"]
    names = [f"text_{i + 1}" for i in range(len(samples))]
    if set(samples) != set(names) or len(names) < 2:
        raise value_error(
            "`sample_inputs` must be texts, a tuple of lists of texts, or a "
            "dict of texts by name: 'text' alone, or 'text_1', 'text_2', ...",
            names=sorted(map(str, samples)),
        )
    return tuple(samples[name] for name in names)


def _texts(tokenizer: Any) -> list[str]:
    """Texts of the tokenizer's words, short and long ones."""
    rng = np.random.default_rng(0)
    known = map(str, tokenizer.get_vocabulary())
    words = [x for x in known if x.isascii() and x.isalpha()] or ["a", "b"]
    return [" ".join(rng.choice(words, size)) for size in _LENGTHS]

"""Export of KerasHub's object detectors, with calibration and threshold."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.late import tensorflow as tf
from keras_calib.detection.scaling import DetectionScaling
from keras_calib.detection.selector import CalibratedDecoder, DetectionSelector
from keras_calib.exporting.formats import (
    FileFormat,
    Runner,
    exact_float32,
    written_whole,
)
from keras_calib.exporting.served_model import (
    computes_in_half,
    converted_images,
    write_signatures,
)
from keras_calib.exporting.verification import (
    encoded_images,
    given_answers,
    wrong_file,
)
from keras_calib.numerics.arrays import shape_of

# Sizes of random images, where a detector takes any.
_SIDES = (96, 64), (70, 110)
# Largest error of confidence and of coordinates in sides of the image, and the
# share of boxes that may differ, as rounding can change which box suppresses
# another: in float32 and in half precision.
_TOLERANCE = (1e-3, 1e-2), (5e-2, 0.5)


def is_detector(model: Any) -> bool:
    """Whether it is an object detector of KerasHub."""
    # A task exists only where KerasHub is loaded.
    hub = sys.modules.get("keras_hub")
    return hub is not None and isinstance(model, hub.models.ObjectDetector)


def export_detector(
    detector: keras.Model,
    path: Path,
    made: FileFormat,
    *,
    calibrator: Any,
    selector: Any,
    image_size: tuple[int, int] | None,
    sample_inputs: Any,
    overwrite: bool,
) -> Path:
    """Writes a detector for serving; arguments and errors are of `export`."""
    if made.name != "savedmodel":
        raise value_error(
            "`format` must be 'savedmodel' for an object detector, whose "
            "suppression of boxes other formats do not hold",
            format=made.name,
        )
    selector = _selector_of(detector, calibrator, selector)
    served = _ServedDetector(detector, selector, image_size)
    with exact_float32():
        given = [*served.samples(sample_inputs)]
        # Before the write, so that errors cost little.
        expected = [served.answers(images) for images in given]
        height, width, channels = served.size
        # Of another size than the detector takes.
        other = height + 8, width + 16, channels
        rng = np.random.default_rng(0)
        encoded = encoded_images([other, served.size], rng)
        from_bytes = served.answers(served.reader.read(encoded))
        files = written_whole(path, made, overwrite, served.write)
        with files as (runners, _):
            for images, wanted in zip(given, expected, strict=True):
                served.check(runners, "serving_default", wanted, images=images)
            served.check(
                runners, "serving_bytes", from_bytes, image_bytes=encoded
            )
    return path


def _selector_of(
    detector: keras.Model, calibrator: Any, selector: Any
) -> DetectionSelector | None:
    """What is applied behind the detector's own decoder."""
    if calibrator is not None and selector is not None:
        raise value_error(
            "`calibrator` must be that of `selector`; leave it out",
            calibrator=type(calibrator).__name__,
            selector=type(selector).__name__,
        )
    if calibrator is not None:
        if not isinstance(calibrator, DetectionScaling):
            raise type_error(
                "`calibrator` must be a DetectionScaling for an object "
                "detector",
                calibrator=type(calibrator).__name__,
            )
        selector = DetectionSelector(calibrator)
    if not isinstance(selector, DetectionSelector | None):
        raise type_error(
            "`selector` must be a DetectionSelector for an object detector",
            selector=type(selector).__name__,
        )
    own = getattr(detector.prediction_decoder, "selector", None)
    if own is not None and selector is not None:
        raise value_error(
            "`selector` must be left out, as the `CalibratedDecoder` of the "
            "detector has one",
            selector=type(selector).__name__,
        )
    return selector


class _ServedDetector:
    """A detector from images to detections that are selected."""

    def __init__(
        self,
        detector: keras.Model,
        selector: DetectionSelector | None,
        image_size: tuple[int, int] | None,
    ):
        self.detector = detector
        self.selector = selector
        preprocessor = detector.preprocessor
        converter = getattr(preprocessor, "image_converter", None)
        taken = tuple(detector.inputs[0].shape[1:])
        own = getattr(converter, "image_size", None)
        if own is not None and image_size not in (None, tuple(own)):
            raise value_error(
                "`image_size` must be that of the detector's converter: "
                "leave it out, or set `image_converter.image_size`",
                image_size=image_size,
                converter=tuple(own),
            )
        # Of any size, if the converter resizes them.
        sides = (None, None) if own else image_size or taken[:2]
        images = keras.Input((*sides, taken[-1]), name="images")
        self.inputs = {"images": images}
        self.reader = converted_images(
            self.inputs, converter, None if own else image_size, taken[:2]
        )
        self.size = self.reader.shape

    def __call__(self, images: Any) -> dict[str, Any]:
        """Answers by name, as tensors."""
        x = images
        if self.detector.preprocessor is not None:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(
                self.detector.preprocessor(x, y=None)
            )
        x = ops.reshape(x, (-1, *self.size))
        x = ops.cast(x, self.detector.inputs[0].dtype)
        outputs = self.detector(x, training=False)
        # Some detectors return more than predictions for each image.
        outputs = {
            name: value
            for name, value in outputs.items()
            if value.shape[:1] == x.shape[:1]
        }
        # Of one image each, as KerasHub's suppression must know their number.
        found = ops.map(self._of_one, (outputs, x))
        if self.selector is not None:
            found = self.selector(found)
        labels = ops.cast(found["labels"], "int32")
        number = ops.cast(found["num_detections"], "int32")
        places = ops.arange(labels.shape[-1], dtype="int32")
        return {
            "boxes": ops.cast(found["boxes"], "float32"),
            "confidence": ops.cast(found["confidence"], "float32"),
            "labels": labels,
            "num_detections": number,
            "accept": places < number[:, None],
        }

    def _of_one(self, given: tuple) -> Any:
        outputs, image = keras.tree.map_structure(lambda x: x[None], given)
        found = self.detector.decode_predictions(outputs, image)
        return keras.tree.map_structure(lambda x: x[0], dict(found))

    def answers(self, images: Any) -> dict[str, np.ndarray]:
        """Answers by name, as arrays."""
        found = self(ops.convert_to_tensor(images, "float32"))
        return {k: ops.convert_to_numpy(v) for k, v in found.items()}

    def write(self, path: Path) -> None:
        """Writes the folder of a SavedModel."""
        (images,) = self.inputs.values()
        image = tf.TensorSpec(images.shape, tf.float32, name="images")
        encoded = tf.TensorSpec((None,), tf.string, name="image_bytes")
        decoder, selector = self.detector.prediction_decoder, self.selector
        parts = [self.detector, *([] if selector is None else [selector])]
        signatures = {
            "serving_default": (lambda images: self(images), [image]),
            "serving_bytes": (
                lambda encoded: self(self.reader.read(encoded)),
                [encoded],
            ),
        }
        if selector is None and isinstance(decoder, CalibratedDecoder):
            selector = decoder.selector
        write_signatures(path, signatures, parts, selector)

    def samples(self, sample_inputs: Any) -> Iterator[np.ndarray]:
        """Batches of images for the comparison of answers."""
        shape = shape_of(self.inputs["images"])
        if sample_inputs is not None:
            given = np.asarray(sample_inputs, "float32")
            fits = given.ndim == 4 and len(given) > 0
            fits = fits and given.shape[-1] == shape[-1]
            if not fits or (shape[1] and given.shape[1:] != shape[1:]):
                raise value_error(
                    "`sample_inputs` must be images as the detector takes "
                    "them, (batch, height, width, channels)",
                    shape=given.shape,
                    taken=shape,
                )
            yield from (given, given[:1])
            return
        rng = np.random.default_rng(0)
        for count, sides in zip((2, 1), _SIDES, strict=True):
            size = (*sides, shape[-1]) if shape[1] is None else shape[1:]
            yield rng.uniform(0, 255, (count, *size)).astype("float32")

    def check(
        self, runners: dict[str, Runner], name: str, wanted: dict, **inputs: Any
    ) -> None:
        """Raises RuntimeError unless a loaded file answers as Keras did."""
        given = given_answers(runners, name, inputs, wanted)
        tolerance, share = _TOLERANCE[computes_in_half(self.detector)]
        side = max(self.size[:2])
        if "rel" in self.detector.bounding_box_format:
            side = 1
        first, second = (_rows(x, side) for x in (wanted, given))
        missing = _missing(first, second, tolerance)
        missing += _missing(second, first, tolerance)
        if missing > share * (len(first) + len(second)):
            raise wrong_file(name, boxes=len(first), wrong=missing)


def _rows(answers: dict, side: int) -> np.ndarray:
    """Image, label, confidence and coordinates of each accepted box."""
    image, place = np.nonzero(answers["accept"])
    parts = [answers[k][image, place] for k in ("labels", "confidence")]
    boxes = answers["boxes"][image, place] / side
    return np.column_stack([image, *parts, boxes])


def _missing(rows: np.ndarray, among: np.ndarray, tolerance: float) -> int:
    """How many boxes have no equal among others."""
    count = 0
    for row in rows:
        others = among[(among[:, :2] == row[:2]).all(axis=1)]
        # Large boxes have large errors.
        allowed = tolerance * np.maximum(1.0, np.abs(row))
        near = np.abs(others - row) <= allowed
        count += not near.all(axis=1).any()
    return count

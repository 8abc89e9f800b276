"""A detector that answers calibrated, and only with boxes that are sure."""

from typing import Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.calibrators.fitted_layer import LayerOptions
from keras_calib.detection.boxes import read_entries
from keras_calib.detection.scaling import DetectionScaling
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.values import in_unit_interval
from keras_calib.numerics.arrays import as_array, value_if_eager
from keras_calib.selection.choice import Choice
from keras_calib.selection.selector import Selector


@keras.saving.register_keras_serializable(package="keras_calib")
class DetectionSelector(Selector):
    """Calibrated confidence of detections, and a threshold for boxes.

    Use it behind any detector, or inside one of KerasHub by
    `CalibratedDecoder`. It calibrates the confidence, takes the surest
    `max_boxes` of an image, and keeps those whose confidence is at least the
    threshold. Kept boxes come first, in the order of confidence. What is left
    out becomes padding, -1, and `num_detections` is the number of kept boxes.

    Args:
        calibrator: A fitted `DetectionScaling`, or None.
        threshold: Least confidence of a box, after calibration: a number, one
            for each class `(num_classes,)`, or what
            `choose_detection_threshold` returns. inf leaves a class out.
            Defaults to `0.0`.
        max_boxes: Most boxes that an image keeps, of each class if classes
            have thresholds. Leave it out where `threshold` is a choice, which
            has one. None keeps all.
        chosen: Facts about the threshold, which a choice has.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Raises:
        RuntimeError: If the calibrator is not fitted, or was fitted again
            after the choice of its threshold.
        TypeError: If arguments or detections are of the wrong kind.
        ValueError: If a value is out of range, or detections lack labels or
            confidence.

    Example:

    >>> selector = DetectionSelector(threshold=0.5)
    >>> found = selector({"confidence": np.array([[0.4, 0.9]]),
    ...                   "labels": np.array([[0, 2]])})
    >>> {name: x.tolist() for name, x in sorted(found.items())
    ...  for x in [keras.ops.convert_to_numpy(x)] if name != "confidence"}
    {'labels': [[2, -1]], 'num_detections': [1]}

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052 (the threshold)
    """

    how_to_fit_again = (
        "choose a threshold for matches of the calibrated boxes, and make a "
        "selector with it"
    )

    def __init__(
        self,
        calibrator: DetectionScaling | None = None,
        threshold: Any = 0.0,
        *,
        max_boxes: int | None = None,
        chosen: Choice | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        if calibrator is not None:
            if not isinstance(calibrator, DetectionScaling):
                raise type_error(
                    "`calibrator` must be a DetectionScaling or None",
                    calibrator=type(calibrator).__name__,
                )
            calibrator.check_fitted()
        if isinstance(threshold, Choice):
            chosen, threshold = threshold, threshold.threshold
        if chosen is not None:
            own = chosen.facts.get("max_boxes")
            if own is None or max_boxes not in (None, own):
                raise value_error(
                    "`max_boxes` must be left out where `threshold` is a "
                    "choice for boxes, as its guarantee is for its own",
                    max_boxes=max_boxes,
                    **{"kind of the choice": chosen.kind},
                )
            max_boxes = own
        if max_boxes is not None:
            check_integer("max_boxes", max_boxes, 1)
        self.calibrator = calibrator
        self.max_boxes = max_boxes
        self.set_threshold(_read_threshold(threshold), chosen)

    @property
    def by_class(self) -> bool:
        """Whether each class has a threshold and `max_boxes` of its own."""
        return len(self._threshold.shape) > 0

    # It is called by keyword too.
    def __call__(self, detections, *args, **kwargs):  # type: ignore[override]
        return super().__call__(detections, *args, **kwargs)

    def read_inputs(self, detections: Any) -> dict:
        """The detections, whose confidence is none above 1."""
        # Keras' own error for what is no dict names no argument.
        detections, _, name = read_entries(detections)
        values = value_if_eager(detections[name])
        if values is not None:
            # Padding may be below 0.
            outside = np.isfinite(values) & (values > 1.0 + 1e-3)
            if outside.any():
                raise value_error(
                    f'`detections["{name}"]` must lie in [0, 1]: take the '
                    "sigmoid of logits, and divide percent by 100",
                    value=float(values[outside][0]),
                )
        return detections

    def check_inputs(self, detections: Any) -> None:
        """Nothing more: they are probabilities."""

    def check_threshold(self, threshold: np.ndarray) -> None:
        """Nothing more: they were checked before they were rounded."""

    def call(self, detections):
        """Returns the detections that are kept, padded.

        Args:
            detections: A dict of arrays as KerasHub's detectors return it:
                `"confidence"` (or `"scores"`) and `"labels"` (or `"classes"`)
                `(..., boxes)`, -1 for padding. `"boxes"` `(..., boxes, 4)`,
                which are kept if they are finite, and other entries of that
                form are sorted with them.
        """
        self.check_fitted()
        found, label_name, score_name = read_entries(detections)
        if self.calibrator is not None:
            found = dict(self.calibrator(found))
        labels = ops.cast(found[label_name], "int32")
        found[label_name] = labels
        found[score_name] = ops.cast(found[score_name], "float32")
        places = ops.arange(labels.shape[-1], dtype="int32")
        # What is outside of [0, 1], or NaN, is no confidence.
        valid = ops.logical_and(
            labels >= 0, in_unit_interval(found[score_name])
        )
        if "boxes" in found:
            far = ops.abs(ops.cast(found["boxes"], "float32"))
            valid = ops.logical_and(valid, ops.all(far < float("inf"), axis=-1))
        if "num_detections" in found:
            count = ops.cast(found.pop("num_detections"), "int32")
            valid = ops.logical_and(valid, places < count[..., None])
        # Padding comes last.
        order = ops.argsort(ops.where(valid, -found[score_name], 2.0), axis=-1)
        boxes = {
            name: _in_order(x, order)
            for name, x in found.items()
            if len(x.shape) >= len(labels.shape)
        }
        kept = self._kept(
            boxes[label_name],
            boxes[score_name],
            _in_order(valid, order),
            places,
        )
        order = ops.argsort(
            ops.where(kept, places, places + labels.shape[-1]), axis=-1
        )
        number = ops.sum(ops.cast(kept, "int32"), axis=-1)
        inside = places < number[..., None]
        padded = {
            name: _padded(_in_order(x, order), inside)
            for name, x in boxes.items()
        }
        return {**found, **padded, "num_detections": number}

    def _kept(self, labels: Any, confidence: Any, valid: Any, rank: Any) -> Any:
        """Which boxes are kept, of those of an image in order."""
        cut = self.threshold_for(None, ())
        if self.by_class:
            last = cut.shape[0] - 1
            valid = ops.logical_and(valid, labels <= last)
            cut = ops.take(cut, ops.clip(labels, 0, last))
            before = ops.logical_and(
                labels[..., :, None] == labels[..., None, :],
                rank[None, :] < rank[:, None],
            )
            rank = ops.sum(ops.cast(before, "int32"), axis=-1)
        kept = ops.logical_and(valid, confidence >= cut)
        if self.max_boxes is not None:
            kept = ops.logical_and(kept, rank < self.max_boxes)
        return kept

    def fitted_summary(self) -> dict[str, Any]:
        """Threshold, most boxes and calibrator."""
        return {
            "threshold": self._threshold,
            "max_boxes": self.max_boxes,
            "calibrator": self.calibrator,
        }

    def get_config(self):
        return {**super().get_config(), "max_boxes": self.max_boxes}


@keras.saving.register_keras_serializable(package="keras_calib")
class CalibratedDecoder(keras.layers.Layer):
    """Prediction decoder of a KerasHub detector that answers calibrated.

    Use it so that `predict` of a `keras_hub.models.ObjectDetector` returns
    calibrated confidence, and only boxes that a threshold keeps:

    detector.prediction_decoder = CalibratedDecoder(
        detector.prediction_decoder, selector)

    It is saved and loaded with the detector. It also decodes batches of a
    size that is not known beforehand, such as the last one of a data set,
    which KerasHub's `NonMaxSuppression` refuses.

    Args:
        decoder: The decoder of the detector, such as
            `keras_hub.layers.NonMaxSuppression`.
        selector: A `DetectionSelector`, or None to return what the decoder
            finds.
        **kwargs: `name` of `keras.layers.Layer`.

    Raises:
        TypeError: If an argument is of the wrong kind.

    Example:

    >>> class Decoder(keras.layers.Layer):
    ...     bounding_box_format = "xyxy"
    ...     def call(self, boxes, scores, images=None):
    ...         return {"boxes": boxes, "confidence": scores[..., 0],
    ...                 "labels": keras.ops.zeros(scores.shape[:2], "int32")}
    >>> decoder = CalibratedDecoder(Decoder(), DetectionSelector(threshold=0.5))
    >>> found = decoder(np.ones((1, 2, 4)), np.array([[[0.9], [0.2]]]))
    >>> keras.ops.convert_to_numpy(found["labels"]).tolist()
    [[0, -1]]

    Reference:
        Kuzucu et al., On Calibration of Object Detectors: Pitfalls,
        Evaluation and Baselines, ECCV 2024, https://arxiv.org/abs/2405.20459
    """

    def __init__(
        self,
        decoder: keras.layers.Layer,
        selector: DetectionSelector | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        bare = isinstance(decoder, keras.layers.Layer)
        if not bare or isinstance(decoder, CalibratedDecoder):
            raise type_error(
                "`decoder` must be the detector's own layer, "
                "`detector.prediction_decoder`; that of a CalibratedDecoder "
                "is its attribute `decoder`",
                decoder=type(decoder).__name__,
            )
        if not isinstance(selector, DetectionSelector | None):
            raise type_error(
                "`selector` must be a DetectionSelector, "
                "`DetectionSelector(scaling, threshold)`, or None",
                selector=type(selector).__name__,
            )
        self.decoder = decoder
        self.selector = selector
        # What KerasHub's detectors ask of a decoder.
        self.bounding_box_format = getattr(decoder, "bounding_box_format", None)
        self.max_detections = getattr(decoder, "max_detections", None)
        self.built = True

    def call(self, box_prediction, class_prediction, images=None):
        """Returns the detections of a batch, as the decoder forms them.

        Args:
            box_prediction: Boxes `(batch, boxes, 4)`.
            class_prediction: Logits or confidence `(batch, boxes, classes)`.
            images: Images `(batch, height, width, channels)`, or None.
        """
        given = box_prediction, class_prediction
        given += () if images is None else (images,)
        if class_prediction.shape[0] is None:
            # KerasHub's suppression needs to know the number of images.
            found = ops.map(self._of_one, given)
        else:
            found = self.decoder(*given)
        return found if self.selector is None else self.selector(found)

    def _of_one(self, given: tuple) -> Any:
        """Detections of one image, without an axis of the batch."""
        found = self.decoder(*(x[None] for x in given))
        return keras.tree.map_structure(lambda x: x[0], found)

    def get_config(self):
        store = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "decoder": store(self.decoder),
            "selector": store(self.selector),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        for part in ("decoder", "selector"):
            found = keras.saving.deserialize_keras_object(config[part])
            config[part] = found
        return cls(**config)


def _read_threshold(threshold: Any) -> Any:
    """Thresholds as the least float32 that are not below them."""
    given = as_array(threshold, "threshold", "float64")
    good = ((given >= 0.0) & (given <= 1.0)) | (given == np.inf)
    if given.ndim > 1 or not given.size or not good.all():
        raise value_error(
            "`threshold` must be a number in [0, 1], one for each class "
            "(inf to leave a class out), or what "
            "`choose_detection_threshold` returns",
            threshold=threshold,
        )
    cut = given.astype("float32")
    # Confidence is float32, and exact comparisons are those of the choice.
    cut = np.where(cut < given, np.nextafter(cut, np.float32(np.inf)), cut)
    # A number, not an array without axes.
    return cut[()]


def _in_order(x: Any, order: Any) -> Any:
    """Values of boxes `(..., boxes)` or `(..., boxes, 4)` in another order."""
    x = ops.convert_to_tensor(x)
    axis = len(order.shape) - 1
    if len(x.shape) > len(order.shape):
        order = order[..., None]
    return ops.take_along_axis(x, order, axis=axis)


def _padded(x: Any, inside: Any) -> Any:
    """-1 in place of values outside."""
    if len(x.shape) > len(inside.shape):
        inside = inside[..., None]
    return ops.where(inside, x, ops.cast(-1, x.dtype))

"""The parts that a crop passes to its batch, and the labels of a batch.

The areas of all examples of a batch are computed together, which is faster.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import backend

from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.boxes import NO_BOX, selected
from keras_calib.data.transforms.covered_share import (
    check_mask_classes,
    covered_share,
    known_boxes,
    objectness_from_mask,
)
from keras_calib.data.transforms.crops import Cropping, shown_window
from keras_calib.data.transforms.examples import name_of, require, without
from keras_calib.data.transforms.validity import BOX_RULE, bad_boxes, read_parts
from keras_calib.formulas.targets import objectness_targets
from keras_calib.inputs.readers import CONTEXT

__all__ = ["Labelling", "labels_of", "to_batch"]


class Labelling(NamedTuple):
    """Arguments of `training_pipeline` that set the labels of batches."""

    targets: str
    num_classes: int
    source: str | None
    classes: Sequence[int] | None
    max_boxes: int
    beta: float = 1.0
    floor: str | None = None


def to_batch(
    cropping: Cropping,
    example: dict,
    seed: Any,
    labelling: Labelling,
    augment: Callable[[dict], dict] | None = None,
) -> dict:
    """Crops one example and keeps the parts that its batch needs."""
    source, classes = labelling.source, labelling.classes
    kept = {
        k: example[k] for k in ("index", "context", "boxed") if k in example
    }
    kept["label"] = tf.cast(example["label"], "int64")
    kept["name"] = name_of(example)
    example = read_parts(example)
    if augment is not None:
        counted = _counted(example, source, classes)
        shown = augment(cropping.complete(counted, seed, classes, source))
        kept["image"] = tf.cast(shown["image"], "float32")
        if labelling.targets in ("soft", "pairs"):
            kept["objectness"] = tf.cast(shown["objectness"], "float32")
        return kept
    shown = cropping.cut(example, seed)
    kept["image"] = shown["image"]
    if source == "mask":
        kept["objectness"] = objectness_from_mask(
            shown["mask_in_window"], classes=classes
        )
    elif source == "boxes":
        kept["pixels"], kept["size"] = shown["pixels"], shown["size"]
        kept["boxes"] = _padded(example["boxes"], NO_BOX, labelling.max_boxes)
        if classes is not None:
            labels = tf.cast(example["box_labels"], "int64")
            kept["box_labels"] = _padded(labels, -1, labelling.max_boxes)
    return kept


def labels_of(batch: dict, labelling: Labelling) -> Any:
    """Labels of the requested kind; errors name the bad examples."""
    labels, context = batch["label"], batch.get("context")
    _require_none(
        (labels < 0) | (labels >= labelling.num_classes),
        f"Labels must be >= 0 and < num_classes={labelling.num_classes}",
        batch["name"],
        label=labels,
    )
    shares: Any = batch.get("objectness")
    if "boxes" in batch:
        shares = _shares(batch, labelling)
    if "boxed" in batch and shares is not None:
        shares = tf.where(batch["boxed"], shares, 1.0)
    if labelling.targets == "ids":
        return labels
    if labelling.targets == "pairs":
        if context is not None:
            shares = tf.where(context, tf.cast(CONTEXT, shares.dtype), shares)
        return tf.stack([tf.cast(labels, shares.dtype), shares], axis=-1)
    if labelling.targets == "one_hot":
        shares = tf.ones_like(labels, "float32")
    return _targets(labels, shares, context, labelling)


def _shares(batch: dict, labelling: Labelling) -> Any:
    """Objectness of all examples at once."""
    names, boxes = batch["name"], batch["boxes"]
    box_labels = batch.get("box_labels")
    _require_none(
        tf.reduce_any(bad_boxes(boxes), axis=-1), BOX_RULE, names, boxes=boxes
    )
    if boxes.shape[1] == labelling.max_boxes + 1:
        _require_none(
            boxes[:, -1, 0] != NO_BOX,
            "Examples must have no more boxes than "
            f"max_boxes={labelling.max_boxes}",
            names,
        )
        # As many boxes as the richest example of the batch has.
        counts = tf.math.count_nonzero(boxes[..., 0] != NO_BOX, axis=-1)
        most = tf.maximum(tf.reduce_max(counts), 1)
        boxes = boxes[:, :most]
        if box_labels is not None:
            box_labels = box_labels[:, :most]
    boxes = known_boxes(boxes, labelling.classes, box_labels)
    return covered_share(shown_window(batch["pixels"], batch["size"]), boxes)


def _counted(
    example: dict, source: str | None, classes: Sequence[int] | None
) -> dict:
    """The example with the objects of the chosen classes only."""
    if source == "mask":
        example = without(example, "boxes", "box_labels")
        if classes is not None:
            check_mask_classes(classes)
            mask = example["mask"]
            example["mask"] = tf.where(selected(mask, classes), mask, 0)
    elif source == "boxes":
        example = without(example, "mask")
        if classes is not None:
            among = selected(example["box_labels"], classes)
            for part in ("boxes", "box_labels"):
                example[part] = tf.boolean_mask(example[part], among)
    return example


def _targets(
    labels: Any, shares: Any, context: Any, labelling: Labelling
) -> Any:
    """`objectness_targets` in TensorFlow, whatever backend Keras uses."""
    num_classes, smoothing = labelling.num_classes, labelling[-2:]

    def make(labels: Any, shares: Any, context: Any = None) -> Any:
        return objectness_targets(
            labels, shares, num_classes, *smoothing, context
        )

    given = [labels, shares] if context is None else [labels, shares, context]
    if backend.backend() == "tensorflow":
        # For alpha = 1, 1 - alpha can round to less than 0.
        return tf.maximum(make(*given), 0.0)
    targets = tf.numpy_function(
        lambda *arrays: np.maximum(make(*arrays), 0).astype("float32"),
        given,
        tf.float32,
    )
    return tf.ensure_shape(targets, [labels.shape[0], num_classes])


def _padded(values: Any, filler: Any, most: int) -> Any:
    """Padded to one row more than allowed, so that too many are noticed."""
    if values.shape[0] is not None and values.shape[0] <= 1:
        return values
    filler = tf.cast(filler, values.dtype)
    rest = tf.fill([most + 1, *values.shape[1:]], filler)
    padded = tf.concat([values, rest], axis=0)[: most + 1]
    return tf.ensure_shape(padded, rest.shape)


def _require_none(wrong: Any, rule: str, names: Any, **values: Any) -> None:
    """Raises with the names, and values, of bad examples."""
    require(
        ~tf.reduce_any(wrong),
        rule,
        example=tf.boolean_mask(names, wrong),
        **{k: tf.boolean_mask(v, wrong) for k, v in values.items()},
    )

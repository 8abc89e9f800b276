"""What travels from a crop to a batch, and how a batch is labelled.

Boxes and windows are carried to the batch: there the areas of all examples
are found at once, for a fraction of what they cost one by one.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
from keras import backend

from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.boxes import NO_BOX
from keras_calib.data.transforms.boxes import selected
from keras_calib.data.transforms.covered_share import check_mask_classes
from keras_calib.data.transforms.covered_share import covered_share
from keras_calib.data.transforms.covered_share import known_boxes
from keras_calib.data.transforms.covered_share import objectness_from_mask
from keras_calib.data.transforms.cropping import Cropping
from keras_calib.data.transforms.cropping import complete
from keras_calib.data.transforms.cropping import read_parts
from keras_calib.data.transforms.cropping import shown_window
from keras_calib.data.transforms.require import require
from keras_calib.data.transforms.validity import BOX_RULE
from keras_calib.data.transforms.validity import bad_boxes
from keras_calib.formulas.targets import objectness_targets
from keras_calib.inputs.readers import CONTEXT

__all__ = ["Labelling", "checked", "finish", "labels_of", "to_batch"]


class Labelling(NamedTuple):
    """What the batches of a pipeline carry beside the images."""

    targets: str
    num_classes: int
    beta: float = 1.0
    floor: str | None = None
    source: str | None = None
    classes: Sequence[int] | None = None
    max_boxes: int = 100
    with_index: bool = False


def to_batch(
    cropping: Cropping,
    example: dict,
    seed: Any,
    labelling: Labelling,
    augment: Callable[[dict], dict] | None,
) -> dict:
    """One cropped example: the parts that a batch of it needs."""
    source, classes = labelling.source, labelling.classes
    kept = {"label": tf.cast(example["label"], "int64")}
    kept["name"] = _name(example)
    for part in ("index", "context", "boxed"):
        if part in example:
            kept[part] = example[part]
    example = read_parts(example)
    if augment is not None:
        counted = _counted(example, source, classes)
        shown = augment(complete(cropping, counted, seed, classes, source))
        kept["image"] = tf.cast(shown["image"], "float32")
        if labelling.targets in ("soft", "pairs"):
            kept["objectness"] = tf.cast(shown["objectness"], "float32")
        return kept
    shown = cropping.apply(example, seed)
    kept["image"] = shown["image"]
    if source == "mask":
        kept["objectness"] = objectness_from_mask(
            shown["mask_in_window"], classes=classes
        )
    elif source == "boxes":
        kept["pixels"], kept["size"] = shown["pixels"], shown["size"]
        kept["boxes"] = _padded(example["boxes"], NO_BOX, labelling.max_boxes)
        if classes is not None:
            kept["box_labels"] = _padded(
                tf.cast(example["box_labels"], "int64"),
                -1,
                labelling.max_boxes,
            )
    return kept


def _name(example: dict) -> Any:
    """What errors call the example."""
    if "name" in example:
        return example["name"]
    if "index" in example:
        number = tf.strings.as_string(example["index"])
        return tf.strings.join(["index ", number])
    return tf.constant("(no name)")


def checked(batch: dict, labelling: Labelling) -> dict:
    """The batch, with `objectness` if there is something to find it by.

    Raises:
        tf.errors.InvalidArgumentError: With the names of the examples, for
            labels out of range, boxes that are none, or too many of them.
    """
    names, labels = batch["name"], batch["label"]
    wrong = tf.logical_or(labels < 0, labels >= labelling.num_classes)
    _require_none(
        wrong,
        f"Labels must be >= 0 and < num_classes={labelling.num_classes}",
        names,
        label=labels,
    )
    if "boxes" in batch:
        batch = {**batch, "objectness": _shares(batch, labelling)}
    if "boxed" in batch and "objectness" in batch:
        shares = tf.where(batch["boxed"], batch["objectness"], 1.0)
        batch = {**batch, "objectness": shares}
    return batch


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
        # Only as many as some example has.
        most = tf.reduce_max(
            tf.math.count_nonzero(boxes[..., 0] != NO_BOX, axis=-1)
        )
        most = tf.maximum(most, 1)
        boxes = boxes[:, :most]
        if box_labels is not None:
            box_labels = box_labels[:, :most]
    boxes = known_boxes(boxes, labelling.classes, box_labels)
    return covered_share(shown_window(batch["pixels"], batch["size"]), boxes)


def _counted(
    example: dict, source: str | None, classes: Sequence[int] | None
) -> dict:
    """The example with those objects alone that count."""
    other = {"boxes": ("mask",), "mask": ("boxes", "box_labels")}
    left = other.get(source, ())
    example = {k: v for k, v in example.items() if k not in left}
    if source == "mask" and classes is not None:
        check_mask_classes(classes)
        mask = tf.convert_to_tensor(example["mask"])
        nothing = tf.zeros_like(mask)
        example["mask"] = tf.where(selected(mask, classes), mask, nothing)
    elif source == "boxes" and classes is not None:
        among = selected(example["box_labels"], classes)
        for part in ("boxes", "box_labels"):
            example[part] = tf.boolean_mask(example[part], among)
    return example


def labels_of(batch: dict, labelling: Labelling) -> Any:
    """Labels of the kind asked for."""
    labels, context = batch["label"], batch.get("context")
    if labelling.targets == "ids":
        return labels
    if labelling.targets == "pairs":
        shares = batch["objectness"]
        if context is not None:
            shares = tf.where(context, tf.cast(CONTEXT, shares.dtype), shares)
        return tf.stack([tf.cast(labels, shares.dtype), shares], axis=-1)
    hard = labelling.targets == "one_hot"
    shares = tf.ones_like(labels, "float32") if hard else batch["objectness"]
    return _targets(labels, shares, context, labelling)


def finish(
    images: Any,
    labels: Any,
    batch: dict,
    labelling: Labelling,
    preprocess: Callable[[Any], Any] | None,
) -> tuple[Any, Any]:
    """What `fit` gets."""
    if preprocess is not None:
        images = preprocess(images)
    if labelling.with_index:
        labels = {"label": labels, "index": batch["index"]}
    return images, labels


def _targets(
    labels: Any, shares: Any, context: Any, labelling: Labelling
) -> Any:
    """`objectness_targets`, on whatever backend Keras runs."""
    options = {
        "num_classes": labelling.num_classes,
        "beta": labelling.beta,
        "floor": labelling.floor,
    }
    given = [labels, shares] if context is None else [labels, shares, context]

    def make(labels: Any, shares: Any, context: Any = None) -> Any:
        return objectness_targets(labels, shares, context=context, **options)

    if backend.backend() == "tensorflow":
        # 1 - alpha rounds to less than 0 where alpha is 1.
        return tf.maximum(make(*given), 0.0)
    targets = tf.numpy_function(
        lambda *arrays: np.maximum(make(*arrays), 0).astype("float32"),
        given,
        tf.float32,
    )
    targets.set_shape([labels.shape[0], labelling.num_classes])
    return targets


def _padded(values: Any, filler: Any, most: int) -> Any:
    """One row more than there may be, so that too many are seen."""
    if values.shape[0] is not None and values.shape[0] <= 1:
        return values
    rest = tf.constant(
        np.full((most + 1, *values.shape[1:]), filler), values.dtype
    )
    padded = tf.concat([values, rest], axis=0)[: most + 1]
    return tf.ensure_shape(padded, rest.shape)


def _require_none(wrong: Any, rule: str, names: Any, **values: Any) -> None:
    """Raises with the names, and values, of the examples that are wrong."""
    require(
        tf.logical_not(tf.reduce_any(wrong)),
        rule,
        example=tf.boolean_mask(names, wrong),
        **{k: tf.boolean_mask(v, wrong) for k, v in values.items()},
    )

"""Invalid examples: how they are found, left out and counted."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypedDict

import numpy as np

from keras_calib.backend.late import tensorflow as tf
from keras_calib.data.boxes import as_boxes, selected
from keras_calib.data.examples import (
    as_text,
    decoded,
    name_of,
    named_like,
    require,
    required,
)
from keras_calib.inputs.checks import check_in, check_integer
from keras_calib.inputs.options import filled

BOX_RULE = (
    "Boxes must be [ymin, xmin, ymax, xmax] as shares of the image, finite, "
    "with a height and a width above 0, at least partly inside it"
)
_REASONS = (
    "without boxes",
    "bad boxes",
    "bad label",
    "bad mask",
    "unreadable image",
    "unknown class",
)
# Number of names kept for each reason.
_MOST_NAMES = 1000


class Tally:
    """Counts examples that were left out, or kept without boxes.

    Use it as `tally` of a builder with `on_error="skip"`, to see how many
    examples you lost and why. Counts grow each time the data set is read, and
    are right at the end of a pass. Annotation files are counted once, when
    the data set is built. Under a strategy each worker counts its own
    examples.

    Args:
        None.

    Example:

    >>> tally = Tally()
    >>> print(tally.counts()["bad boxes"], tally.names()["bad boxes"])
    0 []

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432,
        section 4.1 (62 % of ImageNet's images have no boxes)
    """

    def __init__(self):
        self._variables = {
            reason: tf.Variable(0, dtype="int64", trainable=False)
            for reason in _REASONS
        }
        # A dict of keys keeps each name once, in order.
        self._names: dict[str, dict] = {reason: {} for reason in _REASONS}

    def add(self, reason: str, condition: Any, name: Any = None) -> None:
        """Counts one more if `condition` holds.

        Args:
            reason: One of the reasons.
            condition: A bool scalar.
            name: Name of the example, a string scalar; not kept if empty.
        """
        self._variables[reason].assign_add(tf.cast(condition, "int64"))
        if name is None:
            return

        def note(name: Any) -> np.int64:
            text, names = as_text(name), self._names[reason]
            if text and len(names) < _MOST_NAMES:
                names[text] = None
            return np.int64(0)

        tf.cond(
            tf.convert_to_tensor(condition),
            lambda: tf.numpy_function(
                note, [tf.convert_to_tensor(name)], tf.int64
            ),
            lambda: tf.constant(0, "int64"),
        )

    def counts(self) -> dict[str, int]:
        """Number of examples (of objects: `unknown class`) by reason."""
        return {k: int(v.numpy()) for k, v in self._variables.items()}

    def names(self) -> dict[str, list[str]]:
        """Names of the first 1000 examples left out, by reason.

        Annotation files have their path for a name. Examples without boxes
        and objects of unknown classes are only counted, as they are not
        errors.
        """
        return {reason: [*names] for reason, names in self._names.items()}

    def reset(self) -> None:
        """Sets all counts to 0."""
        for variable in self._variables.values():
            variable.assign(0)
        for names in self._names.values():
            names.clear()


def valid_examples(
    dataset: Any, *, num_classes: int | None = None, tally: Tally | None = None
) -> Any:
    """Leaves out examples with bad boxes, labels, masks or images.

    Use it if a bad example would stop the pipeline with an error. It decodes
    every image, which costs as much as an epoch without training.

    Args:
        dataset: Examples as `random_resized_crop` takes them.
        num_classes: Number of classes; None skips the check of labels.
        tally: A `Tally` that counts examples by the first reason, or None.

    Returns:
        A `tf.data.Dataset` of the other examples, unchanged.

    Raises:
        ValueError: If `num_classes` is below 2.

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. A.2
    """
    if num_classes is not None:
        check_integer("num_classes", num_classes, 2)

    def is_valid(size: Any, example: dict) -> Any:
        good = tf.constant(True)
        for reason, bad in _problems(size, example, num_classes):
            if tally is not None:
                tally.add(reason, good & bad, name=name_of(example))
            good &= ~bad
        return good

    sized = dataset.map(
        lambda example: (_image_size(example), example),
        tf.data.AUTOTUNE,
        deterministic=True,
    )
    valid = sized.filter(is_valid).map(lambda _, example: example)
    return named_like(valid, dataset)


def _image_size(example: dict) -> Any:
    """Height and width of the image, 0 if it cannot be read."""
    image = example.get("image", tf.zeros([1, 1]))
    if image.dtype != tf.string:
        return tf.shape(image)[:2]

    def read(data: Any) -> np.ndarray:
        try:
            return np.array(decoded(data).shape[:2], "int32")
        except (tf.errors.InvalidArgumentError, ValueError):
            return np.zeros(2, "int32")

    return tf.ensure_shape(tf.numpy_function(read, [image], tf.int32), [2])


def _problems(
    size: Any, example: dict, num_classes: int | None
) -> Iterator[tuple[str, Any]]:
    """Reasons to leave out an example, and whether each holds."""
    yield "unreadable image", tf.reduce_any(size == 0)
    if "boxes" in example:
        bad = tf.reduce_any(bad_boxes(example["boxes"]))
        if "box_labels" in example:
            counts = [tf.shape(example[k])[0] for k in ("boxes", "box_labels")]
            bad |= counts[0] != counts[1]
        yield "bad boxes", bad
    if num_classes is not None:
        for part in ("label", "box_labels"):
            if part in example:
                ids = example[part]
                wrong = (ids < 0) | (ids >= num_classes)
                yield "bad label", tf.reduce_any(wrong)
    if "image" not in example:
        return
    if "mask" in example:
        differs = tf.shape(example["mask"])[:2] != size
        yield "bad mask", tf.reduce_any(differs)
    if "image_size" in example:
        yield "bad boxes", ~same_shape(example["image_size"], size)


def bad_boxes(boxes: Any) -> Any:
    """Which rows `(..., n, 4)` are invalid boxes."""
    low, high = boxes[..., :2], boxes[..., 2:]
    # Corners beyond these limits are pixels, not shares of the image.
    near = (low >= -1) & (high <= 2)
    good = (low < high) & (low < 1) & (high > 0) & near
    return ~(good[..., 0] & good[..., 1])


def required_boxes(boxes: Any, example: dict) -> Any:
    """Boxes that wait in a graph for the check that all are valid."""
    return required(
        boxes,
        ~tf.reduce_any(bad_boxes(boxes)),
        BOX_RULE,
        example=name_of(example),
        boxes=boxes,
    )


def read_parts(example: dict) -> dict:
    """The example as tensors of the types and shapes that crops need."""
    example = dict(example)
    for part in ("image", "name", "painted", "painted_mask", "image_size"):
        if part in example:
            example[part] = tf.convert_to_tensor(example[part])
    if "boxes" in example:
        boxes = tf.cast(example["boxes"], "float32")
        if boxes.shape.rank != 2:
            boxes = tf.reshape(boxes, [-1, 4])
        example["boxes"] = as_boxes("boxes", boxes)
    if {"boxes", "box_labels"} <= set(example):
        labels = tf.convert_to_tensor(example["box_labels"])
        counts = tf.shape(example["boxes"])[0], tf.shape(labels)[0]
        example["box_labels"] = required(
            labels,
            tf.equal(*counts),
            "Each box must have one label",
            example=name_of(example),
            boxes=counts[0],
            box_labels=counts[1],
        )
    if "mask" in example:
        mask = tf.convert_to_tensor(example["mask"])
        if mask.dtype == tf.bool:
            mask = tf.cast(mask, "uint8")
        require(
            mask.shape.rank == 3
            and mask.shape[-1] in (None, 1)
            and mask.dtype.is_integer,
            "`mask` must hold integers of shape (height, width, 1)",
            **{"mask.shape": mask.shape, "dtype": mask.dtype.name},
        )
        example["mask"] = mask
    return example


def has_objects(example: dict, classes: Sequence[int] | None = None) -> Any:
    """Whether there is a box, or without boxes, an object in the mask."""
    if "boxes" in example:
        return tf.shape(example["boxes"])[0] > 0
    return tf.reduce_any(selected(example["mask"], classes))


def same_shape(size: Any, other: Any) -> Any:
    """Whether two images can be the same one at two resolutions.

    Some boxes of ImageNet were drawn on smaller versions. As shares of the
    image they are right, unless height and width are exchanged.
    """
    size, other = tf.cast(size, "int64"), tf.cast(other, "int64")
    across = size[0] * other[1] - size[1] * other[0]
    return tf.abs(across) <= tf.reduce_max(tf.maximum(size, other))


class Cleaning(TypedDict, total=False):
    """Options of readers about examples with faults, as `from_folder` has."""

    without_boxes: Annotated[str, "drop"]
    on_error: Annotated[str, "raise"]
    tally: Tally | None


class Reading(Cleaning, total=False):
    """Options of `from_tfds` and `from_tfrecords`, besides their own."""

    mask_classes: Sequence[int] | None
    input_context: Any


def policies(name: str, given: Mapping[str, Any], options: Any) -> Any:
    """Options of a builder, checked; ValueError for an unknown policy."""
    how = filled(name, given, options)
    check_in("without_boxes", how.without_boxes, ("drop", "keep"))
    check_in("on_error", how.on_error, ("raise", "skip"))
    return how


def clean(dataset: Any, how: Any, num_classes: int | None = None) -> Any:
    """Raises for, or leaves out, rows that are invalid or have no objects."""
    tally = how.tally
    if how.on_error == "skip":
        dataset = valid_examples(dataset, num_classes=num_classes, tally=tally)
    if {"boxes", "mask"}.isdisjoint(dataset.element_spec):
        return dataset

    def missing(example: dict) -> Any:
        # An earlier step has counted examples that it kept without boxes.
        none = ~has_objects(example) & example.get("boxed", True)
        if tally is not None:
            tally.add("without boxes", none)
        return none

    if how.without_boxes == "drop":
        cleaned = dataset.filter(lambda example: ~missing(example))
    else:
        cleaned = dataset.map(
            lambda example: {
                **example,
                "boxed": ~missing(example) & example.get("boxed", True),
            }
        )
    return named_like(cleaned, dataset)

"""Examples that cannot be what they say: found, left out, counted."""

from collections.abc import Sequence
from typing import Any

from keras_calib.checks import check_in
from keras_calib.checks import check_integer
from keras_calib.data.boxes import NO_BOX
from keras_calib.data.boxes import selected
from keras_calib.data.image_reading import decoded
from keras_calib.data.image_reading import is_encoded
from keras_calib.data.naming import named_like
from keras_calib.data.tally import Tally
from keras_calib.extras import tensorflow as tf

__all__ = [
    "BOX_RULE",
    "bad_boxes",
    "check_policies",
    "clean",
    "has_objects",
    "same_shape",
    "valid_examples",
    "without_errors",
]

BOX_RULE = (
    "Boxes must be [ymin, xmin, ymax, xmax] as shares of the image, finite, "
    "with a height and a width above 0, at least partly inside it"
)
# Of the decoded image, while examples are looked at.
_SIZE = "size of the image"


def valid_examples(
    dataset: Any, *, num_classes: int | None = None, tally: Tally | None = None
) -> Any:
    """The examples that are what they say; the others are left out.

    Looks at boxes (finite, with an area, not outside the image), labels,
    the size of masks, and decodes the images to see whether they can be read,
    which costs as much as an epoch without training. Without this, such an
    example stops the pipeline, with an error that names it, unless only a
    decoder can tell that the middle of a file is broken.

    Args:
        dataset: Examples, see `random_resized_crop`.
        num_classes: Number of classes, to look at labels; if None, these are
            only looked at where training needs them.
        tally: Where to count what is left out, by its first reason.

    Returns:
        A `tf.data.Dataset` of the other examples, unchanged.

    Raises:
        ValueError: If `num_classes` is below 2.

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020, section A.2,
        https://arxiv.org/abs/2009.06432
    """
    if num_classes is not None:
        check_integer("num_classes", num_classes, 2)

    def is_valid(example: dict) -> Any:
        good = tf.constant(True)
        for reason, bad in _problems(example, num_classes):
            bad = tf.logical_and(good, bad)
            if tally is not None:
                tally.add(reason, bad, name=_name_of(example))
            good = tf.logical_and(good, tf.logical_not(bad))
        return good

    checked = dataset
    if "image" in dataset.element_spec:
        checked = _readable(dataset, tally)
    valid = checked.filter(is_valid)
    if _SIZE in valid.element_spec:
        valid = valid.map(
            lambda example: {k: v for k, v in example.items() if k != _SIZE}
        )
    return named_like(valid, dataset)


def without_errors(
    dataset: Any, work: Any, reason: str, tally: Any, name_of: Any
) -> Any:
    """The data set mapped by `work`, without the examples that it fails on.

    Args:
        dataset: A `tf.data.Dataset`.
        work: What is done to each of its elements.
        reason: Why those are left out that it fails on.
        tally: A `Tally`, or None.
        name_of: What an element is called, a string scalar, of the element.
    """
    if tally is None:
        worked = dataset.map(work, tf.data.AUTOTUNE, deterministic=True)
        return worked.ignore_errors()

    def begin(*example: Any) -> Any:
        name = name_of(*example)
        with tf.control_dependencies(tally.add(reason, True, name=name)):
            example = tf.nest.map_structure(tf.identity, example)
        return name, work(*example)

    def end(name: Any, worked: Any) -> Any:
        # It came through: counted in vain.
        with tf.control_dependencies(tally.add(reason, True, -1, name=name)):
            return tf.nest.map_structure(tf.identity, worked)

    worked = dataset.map(begin, tf.data.AUTOTUNE, deterministic=True)
    return worked.ignore_errors().map(end)


def _readable(dataset: Any, tally: Any) -> Any:
    """Leaves out files that no decoder can read, by decoding them."""
    if not is_encoded(dataset.element_spec["image"]):
        return dataset

    def look(example: dict) -> dict:
        size = tf.shape(decoded(example["image"]))
        with tf.control_dependencies([tf.debugging.Assert(size[0] > 0, [0])]):
            image = tf.identity(example["image"])
        return {**example, "image": image, _SIZE: size[:2]}

    return without_errors(dataset, look, "unreadable image", tally, _name_of)


def _name_of(example: dict) -> Any:
    return example.get("name", tf.constant(""))


def bad_boxes(boxes: Any) -> Any:
    """Which rows `(..., n, 4)` are no boxes of an image; `NO_BOX` is fine.

    Of tensors, and of NumPy arrays as they are.
    """
    low, high = boxes[..., :2], boxes[..., 2:]
    # Further out than the image is wide, they are not shares of it.
    near = (low >= -1) & (high <= 2)
    good = (low < high) & (low < 1) & (high > 0) & near
    return ~((good[..., 0] & good[..., 1]) | (boxes[..., 0] == NO_BOX))


def has_objects(example: dict, classes: Sequence[int] | None = None) -> Any:
    """Whether there is a box, or without boxes, an object in the mask."""
    if "boxes" in example:
        return tf.shape(example["boxes"])[0] > 0
    return tf.reduce_any(selected(example["mask"], classes))


def same_shape(size: Any, other: Any) -> Any:
    """Whether two images can be the same one at two resolutions.

    Boxes of ImageNet were partly drawn on smaller versions: as shares of the
    image they are right, unless height and width are exchanged.
    """
    size, other = tf.cast(size, "int64"), tf.cast(other, "int64")
    across = size[0] * other[1] - size[1] * other[0]
    pixel = tf.reduce_max(tf.maximum(size, other))
    return tf.abs(across) <= pixel


def check_policies(without_boxes: str, on_error: str) -> None:
    """Raises ValueError unless both are as the builders take them."""
    check_in("without_boxes", without_boxes, ("drop", "keep"))
    check_in("on_error", on_error, ("raise", "skip"))


def clean(
    dataset: Any,
    *,
    without_boxes: str,
    tally: Tally | None,
    on_error: str = "raise",
    num_classes: int | None = None,
    masks: bool = True,
) -> Any:
    """What the builders do with rows that are wrong or have no objects."""
    if on_error == "skip":
        dataset = valid_examples(dataset, num_classes=num_classes, tally=tally)
    spec = dataset.element_spec
    by_boxes = "boxes" in spec
    if not by_boxes and not (masks and "mask" in spec):
        return dataset

    def look(example: dict) -> Any:
        some = has_objects(example)
        if tally is not None:
            tally.add("without boxes", tf.logical_not(some))
        return some

    if without_boxes == "drop":
        return named_like(dataset.filter(look), dataset)

    def fill(example: dict) -> dict:
        boxed = look(example)
        kept = {**example, "boxed": boxed}
        if "boxed" in example:
            kept["boxed"] = tf.logical_and(boxed, example["boxed"])
        if by_boxes:
            missing = tf.cast(tf.logical_not(boxed), "int32")
            # The whole image, of no class.
            whole = tf.tile([[0.0, 0.0, 1.0, 1.0]], [missing, 1])
            kept["boxes"] = tf.concat([example["boxes"], whole], axis=0)
            if "box_labels" in example:
                labels = example["box_labels"]
                none = tf.fill([missing], tf.cast(-1, labels.dtype))
                kept["box_labels"] = tf.concat([labels, none], axis=0)
        return kept

    return named_like(dataset.map(fill), dataset)


def _problems(example: dict, num_classes: int | None):
    """Reasons not to take an example, and whether each holds."""
    if "boxes" in example:
        bad = tf.reduce_any(bad_boxes(example["boxes"]))
        if "box_labels" in example:
            counts = [tf.shape(example[k])[0] for k in ("boxes", "box_labels")]
            bad = tf.logical_or(bad, counts[0] != counts[1])
        yield "bad boxes", bad
    if num_classes is not None:
        for part in ("label", "box_labels"):
            if part in example:
                ids = example[part]
                wrong = tf.logical_or(ids < 0, ids >= num_classes)
                yield "bad label", tf.reduce_any(wrong)
    if "image" not in example:
        return
    size = example.get(_SIZE)
    if size is None:
        size = tf.shape(example["image"])[:2]
        yield "unreadable image", tf.reduce_any(size == 0)
    if "mask" in example:
        differs = tf.shape(example["mask"])[:2] != size
        yield "bad mask", tf.reduce_any(differs)
    if "image_size" in example:
        fits = same_shape(example["image_size"], size)
        yield "bad boxes", tf.logical_not(fits)

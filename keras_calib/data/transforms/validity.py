"""Examples that cannot be what they say: found, left out, counted."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.boxes import NO_BOX
from keras_calib.data.transforms.boxes import selected
from keras_calib.data.transforms.class_names import named_like
from keras_calib.data.transforms.decoding import decoded
from keras_calib.data.transforms.decoding import is_encoded
from keras_calib.data.transforms.require import require
from keras_calib.data.transforms.tally import Tally
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer

__all__ = [
    "BOX_RULE",
    "bad_boxes",
    "check_box_labels",
    "check_policies",
    "clean",
    "has_objects",
    "require_boxes",
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
    dataset: Any,
    work: Callable[..., Any],
    needed: Callable[..., Any],
    name_of: Callable[..., Any],
    reason: str,
    tally: Tally | None,
) -> Any:
    """The elements that `work` does not fail on.

    Errors from where the elements come are none of `work`, and stay errors.

    Args:
        dataset: A `tf.data.Dataset`.
        work: What may fail, done eagerly; returns integers, or None.
        needed: The tensors that it takes, a sequence, of an element.
        name_of: What an element is called, a string scalar, of the element.
        reason: Why those are left out that it fails on.
        tally: Where to count them.

    Returns:
        A `tf.data.Dataset` of pairs: what `work` returned, int32, and the
        element, a tuple.
    """

    def attempt(*values: Any) -> tuple[np.bool_, np.ndarray]:
        try:
            found = work(*map(tf.convert_to_tensor, values)) or ()
        except (tf.errors.InvalidArgumentError, ValueError):
            return np.bool_(False), np.zeros([0], "int32")
        return np.bool_(True), np.array(found, "int32")

    def judge(*element: Any) -> tuple[Any, Any, Any]:
        good, found = tf.numpy_function(
            attempt, needed(*element), (tf.bool, tf.int32)
        )
        good.set_shape([])
        found.set_shape([None])
        return good, found, element

    def look(good: Any, _: Any, element: Any) -> Any:
        if tally is not None:
            bad = tf.logical_not(good)
            tally.add(reason, bad, name=name_of(*element))
        return good

    judged = dataset.map(judge, tf.data.AUTOTUNE, deterministic=True)
    return judged.filter(look).map(lambda _, found, element: (found, element))


def _readable(dataset: Any, tally: Any) -> Any:
    """Leaves out files that no decoder can read, by decoding them."""
    if not is_encoded(dataset.element_spec["image"]):
        return dataset

    def size_of(image: Any) -> list[int]:
        return decoded(image).shape[:2].as_list()

    def image_of(example: dict) -> list[Any]:
        return [example["image"]]

    readable = without_errors(
        dataset, size_of, image_of, _name_of, "unreadable image", tally
    )
    return readable.map(lambda size, example: {**example[0], _SIZE: size})


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


def require_boxes(boxes: Any, example: dict) -> Any:
    """Raises, with the name of the example, unless all of them are boxes.

    Returns:
        The operation that looks, as `require`.
    """
    return require(
        tf.logical_not(tf.reduce_any(bad_boxes(boxes))),
        BOX_RULE,
        example=_name_of(example),
        boxes=boxes,
    )


def check_box_labels(example: dict) -> dict:
    """The example, if each of its boxes has one label."""
    if not {"boxes", "box_labels"} <= set(example):
        return example
    boxes, labels = (
        tf.convert_to_tensor(example[k]) for k in ("boxes", "box_labels")
    )
    counts = tf.shape(boxes)[0], tf.shape(labels)[0]
    known = boxes.shape[0] is not None and boxes.shape[0] == labels.shape[0]
    if not known:
        match = require(
            tf.equal(*counts),
            "Each box must have one label",
            example=_name_of(example),
            boxes=counts[0],
            box_labels=counts[1],
        )
        with tf.control_dependencies([match]):
            labels = tf.identity(labels)
    return {**example, "box_labels": labels}


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

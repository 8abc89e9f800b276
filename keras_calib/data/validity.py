"""Examples that cannot be what they say: found, left out, counted."""

from typing import Any

from keras_calib.checks import check_in
from keras_calib.checks import check_integer
from keras_calib.data.boxes import NO_BOX
from keras_calib.data.image_reading import is_encoded
from keras_calib.data.image_reading import readable
from keras_calib.extras import tensorflow as tf

__all__ = [
    "BOX_RULE",
    "Tally",
    "bad_boxes",
    "check_policies",
    "clean",
    "same_shape",
    "valid_examples",
]

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


class Tally:
    """Counts what is left out, or kept without boxes, as data are read.

    Counts grow each time the data set is read; those of one pass are right
    after it has been read to its end. With a data set that a strategy
    distributes to several workers, each counts its own.

    Args:
        None.

    Example:

    >>> tally = Tally()
    >>> print(tally.counts()["bad boxes"])
    0

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020, section 4.1
        (62 % of ImageNet's images have no boxes),
        https://arxiv.org/abs/2009.06432
    """

    def __init__(self):
        self._variables = {
            reason: tf.Variable(0, dtype="int64", trainable=False)
            for reason in _REASONS
        }

    def add(self, reason: str, condition: Any) -> None:
        """Counts one more where `condition` holds."""
        check_in("reason", reason, _REASONS)
        self._variables[reason].assign_add(tf.cast(condition, "int64"))

    def counts(self) -> dict[str, int]:
        """Number of examples (of objects: `unknown class`) by reason."""
        return {k: int(v.numpy()) for k, v in self._variables.items()}

    def reset(self) -> None:
        """Starts again from 0."""
        for variable in self._variables.values():
            variable.assign(0)


def valid_examples(
    dataset: Any, *, num_classes: int | None = None, tally: Tally | None = None
) -> Any:
    """The examples that are what they say; the others are left out.

    Looks at boxes (finite, with an area, not outside the image), labels,
    the size of masks, and whether images can be read. Without this, such an
    example stops the pipeline, with an error that names it.

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
                tally.add(reason, bad)
            good = tf.logical_and(good, tf.logical_not(bad))
        return good

    return dataset.filter(is_valid)


def bad_boxes(boxes: Any) -> Any:
    """Which rows `(..., n, 4)` are no boxes of an image; `NO_BOX` is fine."""
    low, high = boxes[..., :2], boxes[..., 2:]
    # Further out than the image is wide, they are not shares of it.
    inside = tf.logical_and(low < 1, high > 0)
    near = tf.logical_and(low >= -1, high <= 2)
    good = tf.logical_and(low < high, tf.logical_and(inside, near))
    good = tf.reduce_all(good, axis=-1)
    return tf.logical_not(tf.logical_or(good, boxes[..., 0] == NO_BOX))


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
    on_error: str,
    num_classes: int | None,
    tally: Tally | None,
) -> Any:
    """What the builders do with rows that are wrong or have no boxes."""
    if on_error == "skip":
        dataset = valid_examples(dataset, num_classes=num_classes, tally=tally)
    if "boxes" not in dataset.element_spec:
        return dataset

    def has_boxes(example: dict) -> Any:
        boxed = tf.shape(example["boxes"])[0] > 0
        if tally is not None:
            tally.add("without boxes", tf.logical_not(boxed))
        return boxed

    if without_boxes == "drop":
        return dataset.filter(has_boxes)

    def fill(example: dict) -> dict:
        boxed, boxes = has_boxes(example), example["boxes"]
        missing = tf.cast(tf.logical_not(boxed), "int32")
        # The whole image: objectness is 1 in every crop.
        whole = tf.tile([[0.0, 0.0, 1.0, 1.0]], [missing, 1])
        example = {
            **example,
            "boxes": tf.concat([boxes, whole], axis=0),
            "boxed": boxed,
        }
        if "box_labels" in example:
            labels = example["box_labels"]
            own = tf.cast(example.get("label", -1), labels.dtype)
            example["box_labels"] = tf.concat(
                [labels, tf.fill([missing], own)], axis=0
            )
        return example

    return dataset.map(fill)


def _problems(example: dict, num_classes: int | None):
    """Reasons not to take an example, and whether each holds."""
    if "boxes" in example:
        yield "bad boxes", tf.reduce_any(bad_boxes(example["boxes"]))
    if num_classes is not None and "label" in example:
        label = example["label"]
        yield "bad label", tf.logical_or(label < 0, label >= num_classes)
    image = example["image"]
    if is_encoded(image):
        yield "unreadable image", tf.logical_not(readable(image))
    else:
        yield "unreadable image", tf.reduce_any(tf.shape(image)[:2] == 0)
    size = None
    if "mask" in example or "image_size" in example:
        size = _size(image)
    if "mask" in example:
        differs = tf.shape(example["mask"])[:2] != size
        yield "bad mask", tf.reduce_any(differs)
    if "image_size" in example:
        fits = same_shape(example["image_size"], size)
        yield "bad boxes", tf.logical_not(fits)


def _size(image: Any) -> Any:
    """Height and width; of bytes that are no JPEG, found by decoding."""
    if not is_encoded(image):
        return tf.shape(image)[:2]
    return tf.cond(
        readable(image),
        lambda: tf.shape(tf.io.decode_image(image, 3, expand_animations=False))[
            :2
        ],
        lambda: tf.constant([0, 0]),
    )

"""Examples that cannot be what they say: found, left out, counted."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.boxes import NO_BOX
from keras_calib.data.transforms.boxes import as_boxes
from keras_calib.data.transforms.boxes import selected
from keras_calib.data.transforms.decoding import decoded
from keras_calib.data.transforms.examples import check_box_labels
from keras_calib.data.transforms.examples import name_of
from keras_calib.data.transforms.examples import named_like
from keras_calib.data.transforms.examples import require
from keras_calib.data.transforms.tally import Tally
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer

__all__ = [
    "BOX_RULE",
    "bad_boxes",
    "check_policies",
    "clean",
    "has_objects",
    "read_parts",
    "require_boxes",
    "same_shape",
    "valid_examples",
    "without_errors",
]

BOX_RULE = (
    "Boxes must be [ymin, xmin, ymax, xmax] as shares of the image, finite, "
    "with a height and a width above 0, at least partly inside it"
)


def valid_examples(
    dataset: Any, *, num_classes: int | None = None, tally: Tally | None = None
) -> Any:
    """Leaves out examples with bad boxes, labels, masks or images.

    Boxes must be finite, with an area, not outside the image. Images are
    decoded to see whether they can be read, which costs as much as an epoch
    without training. A bad example that is not left out stops the pipeline,
    with an error that names it, unless only a decoder can tell that the
    middle of a file is broken.

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

    def is_valid(size: Any, example: dict) -> Any:
        good = tf.constant(True)
        for reason, bad in _problems(size, example, num_classes):
            if tally is not None:
                tally.add(reason, good & bad, name=name_of(example))
            good &= ~bad
        return good

    valid = _with_size(dataset, tally).filter(is_valid)
    return named_like(valid.map(lambda _, example: example), dataset)


def without_errors(
    dataset: Any,
    work: Callable[..., Any],
    needed: Callable[..., Any],
    name_of: Callable[..., Any],
    reason: str,
    tally: Tally | None,
) -> Any:
    """Leaves out the elements that `work` fails on, and counts them.

    Errors from where the elements come are not caught. `work` runs eagerly on
    the tensors that `needed` takes from an element, and returns integers or
    None. The result has pairs of these integers and the element, a tuple.
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
            tally.add(reason, ~good, name=name_of(*element))
        return good

    judged = dataset.map(judge, tf.data.AUTOTUNE, deterministic=True)
    return judged.filter(look).map(lambda _, found, element: (found, element))


def _with_size(dataset: Any, tally: Tally | None) -> Any:
    """Pairs of height and width of the image and the example.

    Files that no decoder can read are left out, which decodes all of them.
    """
    image = dataset.element_spec.get("image")
    if image is None:
        return dataset.map(lambda example: (tf.constant([0, 0]), example))
    if image.dtype != tf.string:
        return dataset.map(lambda e: (tf.shape(e["image"])[:2], e))
    readable = without_errors(
        dataset,
        lambda image: decoded(image).shape[:2].as_list(),
        lambda example: [example["image"]],
        name_of,
        "unreadable image",
        tally,
    )
    return readable.map(lambda size, element: (size, element[0]))


def bad_boxes(boxes: Any) -> Any:
    """Which rows `(..., n, 4)` are no boxes; `NO_BOX` is fine."""
    low, high = boxes[..., :2], boxes[..., 2:]
    # Further out than the image is wide, they are not shares of it.
    near = (low >= -1) & (high <= 2)
    good = (low < high) & (low < 1) & (high > 0) & near
    return ~((good[..., 0] & good[..., 1]) | (boxes[..., 0] == NO_BOX))


def require_boxes(boxes: Any, example: dict) -> Any:
    """`require`, with the name of the example, that all of them are boxes."""
    return require(
        ~tf.reduce_any(bad_boxes(boxes)),
        BOX_RULE,
        example=name_of(example),
        boxes=boxes,
    )


def read_parts(example: dict) -> dict:
    """The example with tensors of the types and shapes that crops need."""
    example = check_box_labels(dict(example))
    for part in ("image", "name", "painted", "painted_mask", "image_size"):
        if part in example:
            example[part] = tf.convert_to_tensor(example[part])
    if "boxes" in example:
        boxes = tf.cast(example["boxes"], "float32")
        if boxes.shape.rank != 2:
            boxes = tf.reshape(boxes, [-1, 4])
        example["boxes"] = as_boxes("boxes", boxes)
    if "mask" in example:
        mask = tf.convert_to_tensor(example["mask"])
        if mask.dtype == tf.bool:
            mask = tf.cast(mask, "uint8")
        require(
            mask.shape.rank == 3 and mask.shape[-1] in (None, 1),
            "`mask` must have shape (height, width, 1)",
            **{"mask.shape": mask.shape},
        )
        require(
            mask.dtype.is_integer,
            "`mask` must hold integers",
            dtype=mask.dtype.name,
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
            tally.add("without boxes", ~some)
        return some

    if without_boxes == "drop":
        return named_like(dataset.filter(look), dataset)

    def fill(example: dict) -> dict:
        boxed = look(example)
        kept = {**example, "boxed": boxed}
        if "boxed" in example:
            kept["boxed"] = boxed & example["boxed"]
        if by_boxes:
            missing = tf.cast(~boxed, "int32")
            # The whole image, of no class.
            whole = tf.tile([[0.0, 0.0, 1.0, 1.0]], [missing, 1])
            kept["boxes"] = tf.concat([example["boxes"], whole], axis=0)
            if "box_labels" in example:
                labels = example["box_labels"]
                none = tf.fill([missing], tf.cast(-1, labels.dtype))
                kept["box_labels"] = tf.concat([labels, none], axis=0)
        return kept

    return named_like(dataset.map(fill), dataset)


def _problems(size: Any, example: dict, num_classes: int | None):
    """Reasons not to take an example, and whether each holds."""
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
    yield "unreadable image", tf.reduce_any(size == 0)
    if "mask" in example:
        differs = tf.shape(example["mask"])[:2] != size
        yield "bad mask", tf.reduce_any(differs)
    if "image_size" in example:
        yield "bad boxes", ~same_shape(example["image_size"], size)

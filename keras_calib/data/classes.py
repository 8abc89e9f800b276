"""Choice of classes: merge, keep leaves, cap, label by largest object."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.backend.late import tensorflow as tf
from keras_calib.data.boxes import clip_boxes
from keras_calib.data.examples import (
    check_parts,
    name_of,
    named_like,
    require,
    required,
)
from keras_calib.data.painting import with_objects
from keras_calib.data.validity import (
    Cleaning,
    Tally,
    clean,
    policies,
    read_parts,
    required_boxes,
)
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.results import Result


class ClassMapping(Result):
    """Map from the classes of a data set to those of a model.

    Attributes:
        ids: New id of each old one, -1 for classes left out,
            `(old classes,)`.
        class_names: Names of the new classes, in the order of their ids.
    """

    ids: np.ndarray
    class_names: Sequence[str]


def class_map(
    class_names: Sequence[str],
    *,
    merge: Mapping[str, str] | None = None,
    drop: Iterable[str] = (),
    hierarchy: Mapping[str, Any] | None = None,
) -> ClassMapping:
    """Merges classes, drops them, or keeps the leaves of a hierarchy.

    Use it with `map_classes` if a data set has other classes than your model
    needs.

    Args:
        class_names: Names of the classes in the order of their ids.
        merge: From the name of a class to that of the class it joins, which
            may be new.
        drop: Names of classes to leave out.
        hierarchy: Leaves out classes with others below them. Give a dict from
            the name of a parent to those of its children, or nested dicts of
            `LabelName` and `Subcategory`, as OpenImages has them.

    Returns:
        A `ClassMapping`. New classes are in the order of the first old one.

    Raises:
        ValueError: If a name is of no class, a class joins one that is left
            out or merged itself, or none is left.

    Example:

    >>> names = ["animal", "cat", "kitten", "dog"]
    >>> class_map(names, merge={"kitten": "cat"}, drop=["animal"]).class_names
    ['cat', 'dog']

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. A.2
    """
    if isinstance(drop, str):
        raise type_error(
            "`drop` must be several names, not one text", drop=drop
        )
    merge, drop = dict(merge or {}), set(drop)
    known = set(class_names)
    unknown = sorted(({*merge} | drop) - known)
    require(
        not unknown, "`merge` and `drop` must name classes", unknown=unknown
    )
    parents = _parents(hierarchy or {})
    require(
        not hierarchy or bool(parents & known),
        "`hierarchy` must have a parent class that is named in `class_names`",
        parents=sorted(parents)[:9],
    )
    drop |= parents & known
    onto = set(merge.values())
    lost = drop & ({*merge} | onto) | {*merge} & onto
    require(
        not lost,
        "`merge` must not name classes that are left out or merged themselves",
        lost=sorted(lost),
    )
    merged = [None if n in drop else merge.get(n, n) for n in class_names]
    names = [name for name in dict.fromkeys(merged) if name is not None]
    require(
        bool(names), "`drop` must leave at least one class", drop=sorted(drop)
    )
    new = {None: -1} | {name: place for place, name in enumerate(names)}
    return ClassMapping(
        np.array([new[name] for name in merged], "int64"), names
    )


def map_classes(
    dataset: Any,
    classes: ClassMapping,
    *,
    without_boxes: str = "drop",
    tally: Tally | None = None,
) -> Any:
    """Gives labels and boxes their new classes.

    Use it to apply a `ClassMapping` to a data set.

    Args:
        dataset: Examples with `label` or `box_labels` or both.
        classes: A `ClassMapping`.
        without_boxes: `"drop"` to leave out examples that had boxes of left
            out classes only, or `"keep"` to give them objectness 1.
        tally: A `Tally` that counts these examples, or None.

    Returns:
        A `tf.data.Dataset` with the new ids, without boxes and examples of
        classes that are left out. Invalid ids become 2^31 - 1, so that later
        checks of labels find them.

    Raises:
        ValueError: If examples have no labels at all.

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. A.2
    """
    spec = dataset.element_spec
    require(
        not {"label", "box_labels"}.isdisjoint(spec),
        "Examples must have labels",
        parts=sorted(spec),
    )
    told = {"without_boxes": without_boxes, "tally": tally}
    how = policies("map_classes", told, Cleaning)
    ids, count = tf.constant(classes.ids), len(classes.ids)
    # -1 leaves a class out. An id that no class has must not be left out in
    # silence: it stays impossible, and later checks name its example.
    none = tf.constant(2**31 - 1, "int64")

    def new(old: Any) -> Any:
        old = tf.cast(old, "int64")
        known = (old >= 0) & (old < count)
        return tf.where(known, tf.gather(ids, tf.where(known, old, 0)), none)

    def convert(example: dict) -> dict:
        example = read_parts(example)
        if "label" in example:
            example["label"] = new(example["label"])
        if "box_labels" in example:
            labels = new(example["box_labels"])
            kept = labels >= 0
            example["box_labels"] = tf.boolean_mask(labels, kept)
            if "boxes" in example:
                example["boxes"] = tf.boolean_mask(example["boxes"], kept)
        return example

    dataset = dataset.map(convert, tf.data.AUTOTUNE)
    if "label" in spec:
        dataset = dataset.filter(lambda example: example["label"] >= 0)
    if {"boxes", "box_labels"} <= set(spec):
        dataset = clean(dataset, how)
    dataset.class_names = classes.class_names
    return dataset


def cap_classes(dataset: Any, cap: int, num_classes: int) -> Any:
    """Keeps the first `cap` examples of each class.

    Use it against classes with far too many examples. The first examples are
    a random choice only if files are in random order.

    Args:
        dataset: Examples with `label`, in an order that does not change.
        cap: Largest number of examples of a class.
        num_classes: Number of classes.

    Returns:
        A `tf.data.Dataset` of these examples, in their order.

    Raises:
        ValueError: If a number is below 1, or examples have no label. On
            reading, `tf.errors.InvalidArgumentError` for a label out of range.

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432,
        section A.2 (50,000 per class of OpenImages)
    """
    check_integer("cap", cap, 1)
    check_integer("num_classes", num_classes, 1)
    check_parts(dataset.element_spec, "label")

    def count(counts: Any, example: dict) -> tuple[Any, Any]:
        label = tf.cast(example["label"], "int64")
        label = required(
            label,
            (label >= 0) & (label < num_classes),
            f"Labels must be >= 0 and < num_classes={num_classes}",
            example=name_of(example),
            label=label,
        )
        counts = tf.tensor_scatter_nd_add(counts, [[label]], [1])
        return counts, (example, counts[label] <= cap)

    start = tf.zeros([num_classes], "int64")
    capped = dataset.scan(start, count).filter(lambda _, kept: kept)
    return named_like(capped.map(lambda example, _: example), dataset)


def label_by_largest(dataset: Any) -> Any:
    """Labels each image by the class of its largest box.

    Use it for detection data, whose images have no class of their own.

    Args:
        dataset: Examples with `boxes` and `box_labels`, and without label.

    Returns:
        A `tf.data.Dataset` of examples with `label`, without those that have
        no boxes. All boxes still count for objectness.

    Raises:
        ValueError: If examples have no labelled boxes.

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. A.2
    """
    check_parts(dataset.element_spec, "boxes", "box_labels")

    def label(example: dict) -> dict:
        example = read_parts(example)
        boxes = required_boxes(example["boxes"], example)
        boxes = clip_boxes(boxes, [0.0, 0.0, 1.0, 1.0])
        area = tf.reduce_prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
        return {**example, "label": example["box_labels"][tf.argmax(area)]}

    return named_like(with_objects(dataset).map(label), dataset)


def _parents(hierarchy: Mapping[str, Any]) -> set[str]:
    """Names that have others below them."""
    if "LabelName" not in hierarchy:
        return {name for name, below in hierarchy.items() if below}
    below = hierarchy.get("Subcategory", [])
    # Parts of an object are not subclasses of it, but may have subclasses.
    inside = [*below, *hierarchy.get("Part", [])]
    found = set().union(*(_parents(part) for part in inside))
    return found | ({hierarchy["LabelName"]} if below else set())

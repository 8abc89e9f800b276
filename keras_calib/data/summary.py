"""Summary of a data set."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib.backend.late import tensorflow as tf
from keras_calib.data.boxes import (
    NO_BOX,
    covered_share,
    known_boxes,
    object_source,
    objectness_from_mask,
)
from keras_calib.data.examples import read_spec, require
from keras_calib.data.validity import bad_boxes, read_parts
from keras_calib.numerics.results import Result


class DatasetSummary(Result):
    """Counts of classes, objects and boxes of a data set, from `describe`.

    Attributes:
        num_examples: Number of examples.
        counts: Number of examples of each class, by name or id, and of
            `(no class)` for labels without a name; empty without labels.
        mean_objectness: Mean share of the image that objects cover, over the
            examples that have objects; None if there are none.
        without_boxes: Number of examples without an object of the chosen
            classes.
        bad_boxes: Number of examples with an invalid box.
        num_boxes: Number of boxes.
        max_boxes: Largest number of boxes of an example.
        context: Number of examples whose objects are painted out.
    """

    num_examples: int
    counts: dict
    mean_objectness: float | None
    without_boxes: int
    bad_boxes: int
    num_boxes: int
    max_boxes: int
    context: int

    __repr__ = Result.__str__

    def _columns(self) -> dict[str, Any]:
        names, counts = [*self.counts], [*self.counts.values()]
        return {"class": names, "examples": counts} if counts else {}

    def _note(self) -> str:
        share, most = self.mean_objectness, self.max_boxes
        known = "unknown" if share is None else f"{share:.4f}"
        parts = [
            f"{self.num_examples:,} examples",
            f"{self.num_boxes:,} boxes, at most {most} in an example",
            f"{self.without_boxes:,} without boxes",
            f"mean objectness {known}",
        ]
        if self.bad_boxes:
            parts.append(f"{self.bad_boxes:,} with bad boxes")
        if self.context:
            parts.append(f"{self.context:,} with context alone")
        return "; ".join(parts)


def describe(
    dataset: Any,
    class_names: Sequence[str] | None = None,
    *,
    objects: str | None = None,
    classes: Sequence[int] | None = None,
) -> DatasetSummary:
    """Prints a summary of a data set: classes, objects, examples without boxes.

    Use it before training to check what a builder has read. It reads the
    whole data set once, without decoding images.

    Args:
        dataset: Examples as `random_resized_crop` takes them.
        class_names: Names of the classes. None takes the `class_names` of the
            data set, and ids if it has none.
        objects, classes: As for `random_resized_crop`.

    Returns:
        The printed numbers, a `DatasetSummary`.

    Raises:
        ValueError: If the data set is empty or batched.

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432,
        section 4.2 (mean objectness of ImageNet's validation set: 0.49)
    """
    spec = read_spec(dataset)
    source = object_source(spec, objects, classes)
    if class_names is None:
        class_names = getattr(dataset, "class_names", None)

    def read(example: dict) -> tuple[Any, ...]:
        count, missing, bad, share = 0, True, False, -1.0
        if "boxes" in example:
            example = read_parts(example)
            count = tf.shape(example["boxes"])[0]
            bad = tf.reduce_any(bad_boxes(example["boxes"]))
        if source == "boxes":
            labels = example.get("box_labels")
            known = known_boxes(example["boxes"], classes, labels)
            missing = tf.reduce_all(known[:, 0] == NO_BOX)
            share = covered_share(tf.constant([0.0, 0.0, 1.0, 1.0]), known)
        elif source == "mask":
            share = objectness_from_mask(example["mask"], classes=classes)
            missing = share == 0
        return (
            tf.cast(example.get("label", -1), "int64"),
            tf.cast(count, "int32"),
            tf.cast(missing, "bool"),
            tf.cast(bad, "bool"),
            tf.cast(share, "float32"),
            tf.cast(example.get("context", False), "bool"),
        )

    batches = dataset.map(read, tf.data.AUTOTUNE).batch(1024)
    columns = list(zip(*batches.as_numpy_iterator(), strict=True))
    require(bool(columns), "`dataset` must have examples", examples=0)
    labels, boxes, missing, bad, shares, context = map(np.concatenate, columns)
    known = shares[(shares >= 0) & ~missing & ~bad].astype("float64")
    summary = DatasetSummary(
        num_examples=len(labels),
        counts=_counts(labels, class_names) if "label" in spec else {},
        mean_objectness=float(known.mean()) if len(known) else None,
        without_boxes=int(missing.sum()),
        bad_boxes=int(bad.sum()),
        num_boxes=int(boxes.sum()),
        max_boxes=int(boxes.max()),
        context=int(context.sum()),
    )
    print(summary)
    return summary


def _counts(labels: np.ndarray, class_names: Sequence[str] | None) -> dict:
    """Number of examples by name or id."""
    if class_names is None:
        ids, counts = np.unique(labels, return_counts=True)
        return dict(zip(ids.tolist(), counts.tolist(), strict=True))
    known = labels[(labels >= 0) & (labels < len(class_names))]
    counts = np.bincount(known, minlength=len(class_names)).tolist()
    # Two classes can share a name: ImageNet has two classes `crane`.
    several = Counter(class_names)
    found = {
        name if several[name] == 1 else f"{name} ({k})": counts[k]
        for k, name in enumerate(class_names)
    }
    unknown = len(labels) - len(known)
    return found | ({"(no class)": unknown} if unknown else {})

"""Boxes from Pascal VOC files."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.examples import require
from keras_calib.data.transforms.validity import BOX_RULE, Tally, bad_boxes

__all__ = ["Annotations", "NO_FILE", "read_annotations"]

# Row of images without a file; invalid files have rows below it.
NO_FILE = 0


class Annotations(NamedTuple):
    """Boxes of many images.

    Attributes:
        rows: The row of each file.
        class_names: Names of the classes, in the order of their ids.
        at: From a row to its `boxes`, `box_labels` and `image_size`.
    """

    rows: dict[Path, int]
    class_names: list[str]
    at: Callable[[Any], dict]


def read_annotations(
    paths: Sequence[Path],
    class_names: Sequence[str] | None,
    *,
    on_error: str,
    tally: Tally | None,
    first_pixel: int = 0,
    required: bool = True,
) -> Annotations:
    """Reads Pascal VOC files; objects of unknown names are left out.

    If `required`, some object must have a name among `class_names`.
    """
    if isinstance(class_names, str):
        raise type_error(
            "`class_names` must be several names, not one text",
            class_names=class_names,
        )
    rows: dict[Path, int] = {}
    read: list[Any] = [([], np.zeros((0, 4)), (0, 0))]
    for path in paths:
        try:
            read.append(_read_file(path, first_pixel))
            rows[path] = len(read) - 1
        except (ValueError, OSError):
            if on_error == "raise":
                raise
            if tally is not None:
                tally.add("bad boxes", True, name=str(path))
            rows[path] = -1
    marked = {name for names, *_ in read for name in names}
    names = sorted(marked) if class_names is None else list(class_names)
    ids = {name: place for place, name in enumerate(names)}
    require(
        len(ids) == len(names),
        "`class_names` must not repeat",
        class_names=names,
    )
    require(
        not (marked and required) or not marked.isdisjoint(ids),
        "Some object must have a name among `class_names`",
        names=sorted(marked)[:9],
        class_names=names[:9],
    )
    labels, boxes, sizes = [], [], []
    for marks, own, size in read:
        known = [name in ids for name in marks]
        if tally is not None:
            for _ in range(known.count(False)):
                tally.add("unknown class", True)
        labels.append([ids[name] for name in marks if name in ids])
        boxes.append(own[np.array(known, bool)])
        sizes.append(size)
    columns = {
        "boxes": np.concatenate(boxes).astype("float32"),
        "box_labels": np.concatenate(labels).astype("int64"),
    }
    ragged = {
        part: tf.RaggedTensor.from_row_lengths(values, [*map(len, labels)])
        for part, values in columns.items()
    }
    ragged["image_size"] = tf.constant(sizes, "int32")
    return Annotations(
        rows,
        names,
        at=lambda row: {part: values[row] for part, values in ragged.items()},
    )


def _read_file(
    path: Path, first_pixel: int
) -> tuple[list[str], np.ndarray, tuple[int, ...]]:
    """Names of the objects of one file, boxes as shares, size in pixels."""
    try:
        root = ElementTree.parse(path).getroot()
        size = tuple(
            int(float(root.findtext(f"size/{side}", "nan")))
            for side in ("height", "width")
        )
        # Sizes become int32.
        if not 0 < min(size) <= max(size) < 2**31:
            raise ValueError(f"an image of {size[0]} x {size[1]} pixels")
        objects = list(root.iter("object"))
        names = [item.findtext("name", "").strip() for item in objects]
        if "" in names:
            raise ValueError("an object without <name>")
        boxes = [
            float(item.findtext(f"bndbox/{corner}", "nan"))
            for item in objects
            for corner in ("ymin", "xmin", "ymax", "xmax")
        ]
        corners = np.array(boxes, "float64").reshape(-1, 4)
        shares = (corners - [first_pixel, first_pixel, 0, 0]) / [*size, *size]
        if bad_boxes(shares).any():
            raise ValueError(f"{BOX_RULE}: {boxes} in {size}")
    except (
        ElementTree.ParseError,
        LookupError,
        OverflowError,
        ValueError,
    ) as error:
        raise value_error(
            "Annotations must be Pascal VOC files with <size> and <bndbox>",
            file=str(path),
            error=str(error),
        ) from error
    return names, np.clip(shares, 0.0, 1.0), size

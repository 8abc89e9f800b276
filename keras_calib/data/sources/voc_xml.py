"""Boxes from Pascal VOC files."""

import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.examples import require
from keras_calib.data.transforms.tally import Tally
from keras_calib.data.transforms.validity import BOX_RULE
from keras_calib.data.transforms.validity import bad_boxes

__all__ = ["Annotations", "read_annotations"]

# Sizes are kept in 32 bits.
_LONGEST_SIDE = 2**31 - 1


class Annotations(NamedTuple):
    """Boxes of many images.

    Attributes:
        rows: The row of each file.
        bad: Files that were wrong and left out.
        class_names: Names of the classes, in the order of their ids.
        at: From a row to its `boxes`, `box_labels` and `image_size`. After
            those of the files stands one without boxes.
    """

    rows: dict[Path, int]
    bad: list[Path]
    class_names: list[str]
    at: Callable[[Any], dict]

    def lookup(self) -> Callable[[Any], dict]:
        """From the name of an image file to the boxes of that image."""
        none = len(self.rows)
        # Wrong files come after the row that stands for none.
        rows = [*self.rows.values(), *[none + 1] * len(self.bad)]
        stems = [path.stem for path in [*self.rows, *self.bad]]
        twice = {stem for stem, count in Counter(stems).items() if count > 1}
        require(
            not twice,
            "`annotations` must have one file for each name of an image",
            twice=sorted(twice)[:9],
        )
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(stems, "string"), tf.constant(rows, "int64")
            ),
            default_value=none,
        )

        def find(name: Any) -> dict:
            stem = tf.strings.regex_replace(name, r"^.*/|\.[^./]*$", "")
            row = table.lookup(stem)
            return {**self.at(tf.minimum(row, none)), "bad_file": row > none}

        return find


def read_annotations(
    folder: Path,
    class_names: Sequence[str] | None,
    *,
    on_error: str,
    tally: Tally | None,
    first_pixel: int = 0,
    paths: Sequence[Path] | None = None,
    required: bool = True,
) -> Annotations:
    """All Pascal VOC files of a folder, or those given.

    Objects whose name is not among `class_names` are none of those that
    count, and are left out.
    """
    if paths is None:
        paths = sorted(
            path for path in folder.rglob("*") if path.suffix.lower() == ".xml"
        )
    require(
        len(paths) > 0,
        "`annotations` must hold the .xml files of the images",
        annotations=str(folder),
    )
    if isinstance(class_names, str):
        raise type_error(
            "`class_names` must be several names, not one text",
            class_names=class_names,
        )
    read = {}
    bad = []
    for path in paths:
        try:
            read[path] = _read_file(path, first_pixel)
        except (ValueError, OSError):
            if on_error == "raise":
                raise
            if tally is not None:
                tally.add("bad boxes", True, name=str(path))
            bad.append(path)
    marked = {name for names, *_ in read.values() for name in names}
    names = sorted(marked) if class_names is None else list(class_names)
    ids = {name: place for place, name in enumerate(names)}
    require(
        len(ids) == len(names), "`class_names` must differ", class_names=names
    )
    require(
        not (marked and required) or not marked.isdisjoint(ids),
        "Objects must have names of classes",
        names=sorted(marked)[:9],
        class_names=names[:9],
    )
    labels, boxes = [], []
    for marks, own, _ in read.values():
        known = [i for i, name in enumerate(marks) if name in ids]
        if tally is not None:
            for _ in range(len(marks) - len(known)):
                tally.add("unknown class", True)
        labels.append([ids[marks[i]] for i in known])
        boxes.append(own[known])
    # The row without boxes.
    lengths = [*map(len, labels), 0]
    sizes = [*(size for *_, size in read.values()), (0, 0)]
    columns = {
        "boxes": np.concatenate([*boxes, np.zeros((0, 4))]).astype("float32"),
        "box_labels": np.array([i for row in labels for i in row], "int64"),
    }
    ragged = {
        part: tf.RaggedTensor.from_row_lengths(values, lengths)
        for part, values in columns.items()
    }
    ragged["image_size"] = tf.constant(sizes, "int32")
    return Annotations(
        rows={path: row for row, path in enumerate(read)},
        bad=bad,
        class_names=names,
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
        objects = list(root.iter("object"))
        names = [item.findtext("name", "").strip() for item in objects]
        if "" in names:
            raise ValueError("an object without <name>")
        boxes = [
            [
                float(item.findtext(f"bndbox/{corner}", "nan"))
                for corner in ("ymin", "xmin", "ymax", "xmax")
            ]
            for item in objects
        ]
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
    require(
        0 < min(size) <= max(size) <= _LONGEST_SIDE,
        f"An image must have a height and a width of 1 to {_LONGEST_SIDE} "
        "pixels",
        file=str(path),
        size=size,
    )
    corners = np.array(boxes, "float64").reshape(-1, 4)
    corners -= [first_pixel, first_pixel, 0, 0]
    shares = corners / [*size, *size]
    require(
        not bad_boxes(shares).any(),
        BOX_RULE,
        file=str(path),
        boxes=boxes,
        size=size,
    )
    return names, np.clip(shares, 0.0, 1.0), size

"""Boxes from Pascal VOC files."""

import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.tally import Tally
from keras_calib.data.transforms.validity import BOX_RULE
from keras_calib.data.transforms.validity import bad_boxes
from keras_calib.inputs.checks import check_in

__all__ = ["Annotations", "VocObjects", "read_annotations", "read_voc_xml"]

# Sizes are kept in 32 bits.
_LONGEST_SIDE = 2**31 - 1


class VocObjects(NamedTuple):
    """What one file says.

    Attributes:
        names: Names of the classes of the objects.
        boxes: Boxes `(n, 4)` as shares of the image, float64.
        size: Height and width of the image in pixels.
    """

    names: list[str]
    boxes: np.ndarray
    size: tuple[int, int]


class Annotations(NamedTuple):
    """Boxes of many images.

    Attributes:
        paths: The files.
        bad: Files that were wrong and left out.
        class_names: Names of the classes, in the order of their ids.
        labels: Their ids, int64 `(boxes,)`.
        boxes: Boxes `(boxes, 4)`, float32.
        splits: Where the boxes of each file begin, and their end,
            `(files + 1,)`.
        sizes: Heights and widths of the images `(files, 2)`, int32.
    """

    paths: list[Path]
    bad: list[Path]
    class_names: list[str]
    labels: np.ndarray
    boxes: np.ndarray
    splits: np.ndarray
    sizes: np.ndarray

    def lookup(self) -> Callable[[Any], dict]:
        """From the name of an image file to the boxes of that image."""
        stems = [path.stem for path in self.paths + self.bad]
        twice = {stem for stem, count in Counter(stems).items() if count > 1}
        if twice:
            raise ValueError(
                invalid(
                    "`annotations` must have one file for each name of an "
                    "image",
                    twice=sorted(twice)[:9],
                )
            )
        # Wrong files come after the row that stands for none.
        rows = np.arange(len(stems), dtype="int64")
        rows[len(self.paths) :] += 1
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(stems, "string"),
                rows,
            ),
            default_value=-1,
        )
        # One row more, without boxes, for images that have no file.
        splits = tf.constant(np.append(self.splits, self.splits[-1]))
        sizes = tf.constant(np.append(self.sizes, [[0, 0]], axis=0), "int32")
        labels, boxes = tf.constant(self.labels), tf.constant(self.boxes)
        none = tf.constant(len(self.paths), "int64")

        def find(name: Any) -> dict:
            stem = tf.strings.regex_replace(name, r"^.*/|\.[^./]*$", "")
            row = table.lookup(stem)
            bad = row > none
            row = tf.where(tf.logical_or(row < 0, bad), none, row)
            start, end = splits[row], splits[row + 1]
            return {
                "boxes": boxes[start:end],
                "box_labels": labels[start:end],
                "image_size": sizes[row],
                "bad_file": bad,
            }

        return find


def read_voc_xml(path: str | Path, *, first_pixel: int = 0) -> VocObjects:
    """The objects of one Pascal VOC file.

    Args:
        path: The file.
        first_pixel: What the first pixel is called, 0 or 1. With 1, as in
            Pascal VOC itself, `xmin` is lowered by 1; TFDS does not.

    Returns:
        Names, boxes and size, a `VocObjects`.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not in this form, the image has no pixels or
            too many, or a box is none.

    Reference:
        Everingham et al., The PASCAL Visual Object Classes Challenge, IJCV
        2010, https://doi.org/10.1007/s11263-009-0275-4
    """
    check_in("first_pixel", first_pixel, (0, 1))
    try:
        root = ElementTree.parse(path).getroot()
        size = tuple(
            int(float(root.findtext(f"size/{side}", "nan")))
            for side in ("height", "width")
        )
        names, boxes = [], []
        for item in root.iter("object"):
            name = item.findtext("name", "").strip()
            if not name:
                raise ValueError("an object without <name>")
            names.append(name)
            corners = [
                float(item.findtext(f"bndbox/{corner}", "nan"))
                for corner in ("ymin", "xmin", "ymax", "xmax")
            ]
            boxes.append(corners)
    except (
        ElementTree.ParseError,
        LookupError,
        OverflowError,
        ValueError,
    ) as error:
        raise ValueError(
            invalid(
                "Annotations must be Pascal VOC files with <size> and <bndbox>",
                file=str(path),
                error=str(error),
            )
        ) from error
    if not 0 < min(size) <= max(size) <= _LONGEST_SIDE:
        raise ValueError(
            invalid(
                "An image must have a height and a width of 1 to "
                f"{_LONGEST_SIDE} pixels",
                file=str(path),
                size=size,
            )
        )
    corners = np.array(boxes, "float64").reshape(-1, 4)
    corners -= [first_pixel, first_pixel, 0, 0]
    shares = corners / [*size, *size]
    if bad_boxes(shares).any():
        raise ValueError(
            invalid(BOX_RULE, file=str(path), boxes=boxes, size=size)
        )
    return VocObjects(names, np.clip(shares, 0.0, 1.0), size)


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
    if not paths:
        raise ValueError(
            invalid(
                "`annotations` must hold the .xml files of the images",
                annotations=str(folder),
            )
        )
    read, kept, bad = [], [], []
    for path in paths:
        try:
            read.append(read_voc_xml(path, first_pixel=first_pixel))
        except (ValueError, OSError):
            if on_error == "raise":
                raise
            if tally is not None:
                tally.add("bad boxes", True, name=str(path))
            bad.append(path)
            continue
        kept.append(path)
    if isinstance(class_names, str):
        raise TypeError(
            invalid(
                "`class_names` must be several names, not one text",
                class_names=class_names,
            )
        )
    names = class_names
    if names is None:
        names = sorted({name for one in read for name in one.names})
    ids = {name: place for place, name in enumerate(names)}
    if len(ids) < len(names):
        raise ValueError(
            invalid("`class_names` must differ", class_names=list(names))
        )
    marked = {name for one in read for name in one.names}
    if marked and not marked & set(ids) and required:
        raise ValueError(
            invalid(
                "Objects must have names of classes",
                names=sorted(marked)[:9],
                class_names=list(names)[:9],
            )
        )
    labels, boxes, counts = [], [], []
    for one in read:
        known = [i for i, name in enumerate(one.names) if name in ids]
        if tally is not None:
            for _ in range(len(one.names) - len(known)):
                tally.add("unknown class", True)
        labels += [ids[one.names[i]] for i in known]
        boxes.append(one.boxes[known])
        counts.append(len(known))
    return Annotations(
        paths=kept,
        bad=bad,
        class_names=list(names),
        labels=np.array(labels, "int64"),
        boxes=np.concatenate([*boxes, np.zeros((0, 4))]).astype("float32"),
        splits=np.concatenate([[0], np.cumsum(counts)]).astype("int64"),
        sizes=np.array([one.size for one in read], "int32").reshape(-1, 2),
    )

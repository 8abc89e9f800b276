"""Examples from a folder of images with Pascal VOC files."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.late import tensorflow as tf
from keras_calib.data.examples import require, shard
from keras_calib.data.validity import (
    BOX_RULE,
    Cleaning,
    bad_boxes,
    clean,
    policies,
)
from keras_calib.inputs.checks import check_in

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif"}


def from_folder(
    images: str | Path,
    annotations: str | Path,
    *,
    class_names: Sequence[str] | None = None,
    labels: str | None = None,
    first_pixel: int = 0,
    input_context: Any = None,
    **cleaning: Unpack[Cleaning],
) -> Any:
    """Reads examples from a folder of images and one of Pascal VOC files.

    Use it for your own images with boxes. An image and its file have the same
    path but for the suffix: `images/dogs/7.jpg` and `annotations/dogs/7.xml`.
    Both may lie in one folder. Files are read in the order of their paths.

    Args:
        images: Folder of the images, read with its subfolders.
        annotations: Folder of the `.xml` files.
        class_names: Names of the classes in the order of their ids; objects
            with other names are left out. None takes all names found, sorted.
        labels: `"folder"` if the class of an image is the name of its folder.
            With None examples have no `label`; add one by `object_examples`
            or `label_by_largest`.
        first_pixel: Number of the first pixel in the files, 0 or 1.
        without_boxes: `"drop"` to leave out examples without a box, or
            `"keep"` to give them objectness 1.
        on_error: `"raise"` to stop at an error, or `"skip"` to leave out
            examples with bad boxes, masks or labels or an unreadable image.
        tally: A `Tally` that counts these examples, or None.
        input_context: A `tf.distribute.InputContext`; each worker reads its
            share of the images.

    Returns:
        A `tf.data.Dataset` of examples as `random_resized_crop` takes them,
        with `boxes` `(n, 4)` and `box_labels` `(n,)`. Its `class_names` are
        those of the ids.

    Raises:
        ValueError: If there are no images, a file is wrong, or the folder of
            an image is no class.

    Reference:
        Everingham et al., The PASCAL Visual Object Classes Challenge, IJCV
        2010, https://doi.org/10.1007/s11263-009-0275-4
    """
    how = policies("from_folder", cleaning, Cleaning)
    check_in("labels", labels, (None, "folder"))
    check_in("first_pixel", first_pixel, (0, 1))
    images, annotations = Path(images), Path(annotations)
    paths = sorted(
        path
        for path in images.rglob("*")
        if path.suffix.lower() in _SUFFIXES and path.is_file()
    )
    require(
        len(paths) > 0,
        "`images` must be a folder with images",
        images=str(images),
    )
    if labels == "folder" and class_names is None:
        class_names = sorted({path.parent.name for path in paths})
    found = {
        path.relative_to(annotations).with_suffix(""): path
        for path in annotations.rglob("*")
        if path.suffix.lower() == ".xml"
    }
    files = {p: found.get(p.relative_to(images).with_suffix("")) for p in paths}
    used = [*dict.fromkeys(file for file in files.values() if file)]
    require(
        len(used) > 0,
        "`annotations` must hold the .xml files of the images",
        annotations=str(annotations),
    )
    row_of, class_names, at = read_annotations(
        used,
        class_names,
        how,
        first_pixel=first_pixel,
        # If folders name the classes, objects may have other names.
        required=labels is None,
    )
    rows = {
        path: NO_FILE if file is None else row_of[file]
        for path, file in files.items()
    }
    rows = {path: row for path, row in rows.items() if row >= 0}
    require(
        len(rows) > 0,
        "`annotations` must hold at least one valid .xml file",
        annotations=str(annotations),
    )
    columns = {"name": [*map(str, rows)], "row": [*rows.values()]}
    if labels == "folder":
        ids = {name: place for place, name in enumerate(class_names)}
        folders = [path.parent.name for path in rows]
        require(
            set(folders) <= set(ids),
            "The folder of each image must be one of `class_names`",
            unknown=sorted(set(folders) - set(ids))[:9],
        )
        columns["label"] = [ids[folder] for folder in folders]

    def load(example: dict) -> dict:
        row = example.pop("row")
        image = tf.io.read_file(example["name"])
        return {**example, "image": image, **at(row)}

    dataset = tf.data.Dataset.from_tensor_slices(columns)
    dataset = shard(dataset, input_context).map(load, tf.data.AUTOTUNE)
    dataset = clean(dataset, how)
    dataset.class_names = class_names
    return dataset


# Row of images without a file; invalid files have rows below it.
NO_FILE = 0


def read_annotations(
    paths: Sequence[Path],
    class_names: Sequence[str] | None,
    how: Any,
    *,
    first_pixel: int = 0,
    required: bool = True,
) -> tuple[dict[Path, int], list[str], Callable[[Any], dict]]:
    """Reads Pascal VOC files; objects of unknown names are left out.

    If `required`, some object must have a name among `class_names`. Returns
    the row of each file, the names of the classes in the order of their ids,
    and a function from a row to `boxes`, `box_labels` and `image_size`.
    """
    tally = how.tally
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
            if how.on_error == "raise":
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
    return rows, names, lambda row: {k: v[row] for k, v in ragged.items()}


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

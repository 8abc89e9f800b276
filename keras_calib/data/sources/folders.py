"""Examples from a folder of images with Pascal VOC files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.sources.voc_xml import read_annotations
from keras_calib.data.transforms.tally import Tally
from keras_calib.data.transforms.validity import check_policies
from keras_calib.data.transforms.validity import clean
from keras_calib.inputs.checks import check_in

__all__ = ["from_folder"]

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif"}


def from_folder(
    images: str | Path,
    annotations: str | Path,
    *,
    class_names: Sequence[str] | None = None,
    labels: str | None = None,
    first_pixel: int = 0,
    without_boxes: str = "drop",
    on_error: str = "raise",
    tally: Tally | None = None,
    input_context: Any = None,
) -> Any:
    """Examples of a folder of images and one of Pascal VOC files.

    An image and its file have the same path but for the suffix:
    `images/dogs/7.jpg` and `annotations/dogs/7.xml`; one folder for both will
    do. Files are taken in the order of their paths.

    Args:
        images: Folder of the images, read with those inside it.
        annotations: Folder of the `.xml` files.
        class_names: Names of the classes in the order of their ids; objects
            with other names do not count. By default all names found, sorted.
        labels: `"folder"` where the class of an image is the name of the
            folder it lies in; by default there is no `label`, see
            `object_examples` and `label_by_largest`.
        first_pixel: What the first pixel is called in the files, 0 or 1.
        without_boxes: Whether to `"drop"` images without a box, or to
            `"keep"` them, with objectness 1.
        on_error: Whether to `"raise"` an error, or to `"skip"` examples with
            bad boxes or an unreadable image.
        tally: Where to count these images and examples.
        input_context: A `tf.distribute.InputContext`: each worker reads its
            share of the images.

    Returns:
        A `tf.data.Dataset` of examples, see `random_resized_crop`, with
        `boxes` `(n, 4)` and `box_labels` `(n,)`. Its `class_names` are those
        of the ids.

    Raises:
        ValueError: If there are no images, a file is wrong, or the folder of
            an image is no class.

    Reference:
        Everingham et al., The PASCAL Visual Object Classes Challenge, IJCV
        2010, https://doi.org/10.1007/s11263-009-0275-4
    """
    check_policies(without_boxes, on_error)
    check_in("labels", labels, (None, "folder"))
    check_in("first_pixel", first_pixel, (0, 1))
    images, annotations = Path(images), Path(annotations)
    paths = sorted(
        path
        for path in images.rglob("*")
        if path.suffix.lower() in _SUFFIXES and path.is_file()
    )
    if not paths:
        raise ValueError(
            invalid("`images` must hold images", images=str(images))
        )
    if labels == "folder" and class_names is None:
        class_names = sorted({path.parent.name for path in paths})
    files = {
        path: _with_suffix(annotations / path.relative_to(images))
        for path in paths
    }
    marked = [path for path in paths if files[path].exists()]
    read = read_annotations(
        annotations,
        class_names,
        on_error=on_error,
        tally=tally,
        first_pixel=first_pixel,
        paths=[*dict.fromkeys(files[path] for path in marked)],
        # A folder can be a class whose objects have other names.
        required=labels is None,
    )
    usable = dict(zip(read.paths, range(len(read.paths)), strict=True))
    kept = [
        path
        for path in paths
        if not files[path].exists() or files[path] in usable
    ]
    # One row more, without boxes, for images that have no file.
    if not kept:
        raise ValueError(
            invalid(
                "`annotations` must have a file without an error",
                annotations=str(annotations),
            )
        )
    rows = np.array([usable.get(files[path], len(usable)) for path in kept])
    splits = np.append(read.splits, read.splits[-1])
    sizes = np.append(read.sizes, [[0, 0]], axis=0).astype("int32")
    columns = {
        "path": [str(path) for path in kept],
        "start": splits[rows],
        "end": splits[rows + 1],
        "image_size": sizes[rows],
    }
    if labels == "folder":
        columns["label"] = _folder_ids(kept, read.class_names)
    boxes, box_labels = tf.constant(read.boxes), tf.constant(read.labels)

    def load(row: dict) -> dict:
        start, end = row.pop("start"), row.pop("end")
        path = row.pop("path")
        return {
            **row,
            "image": tf.io.read_file(path),
            "boxes": boxes[start:end],
            "box_labels": box_labels[start:end],
            "name": path,
        }

    dataset = tf.data.Dataset.from_tensor_slices(columns)
    if input_context is not None:
        dataset = dataset.shard(
            input_context.num_input_pipelines, input_context.input_pipeline_id
        )
    dataset = clean(
        dataset.map(load, tf.data.AUTOTUNE),
        without_boxes=without_boxes,
        on_error=on_error,
        num_classes=None,
        tally=tally,
    )
    dataset.class_names = read.class_names
    return dataset


def _with_suffix(path: Path) -> Path:
    """The file of an image, `.xml` in small or in capital letters."""
    small = path.with_suffix(".xml")
    large = path.with_suffix(".XML")
    return large if large.exists() and not small.exists() else small


def _folder_ids(paths: Sequence[Path], class_names: Sequence[str]) -> Any:
    ids = {name: place for place, name in enumerate(class_names)}
    for path in paths:
        if path.parent.name not in ids:
            raise ValueError(
                invalid(
                    "The folder of each image must be one of `class_names`",
                    image=str(path),
                    class_names=list(class_names),
                )
            )
    return np.array([ids[path.parent.name] for path in paths], "int64")

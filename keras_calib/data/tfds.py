"""Examples from TFDS, with features found by their type."""

from collections import Counter
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from keras_calib.backend.errors import type_error
from keras_calib.backend.late import tensorflow as tf
from keras_calib.backend.late import tensorflow_datasets as tfds
from keras_calib.data.boxes import selected
from keras_calib.data.examples import require, without
from keras_calib.data.folders import NO_FILE, read_annotations
from keras_calib.data.validity import Reading, clean, policies
from keras_calib.inputs.checks import check_in

_PARTS = ["box_labels", "boxes", "image", "label", "mask"]


class _Leaf(NamedTuple):
    """A feature with its path, its number of sequences, and its type."""

    path: tuple[str, ...]
    depth: int
    feature: Any

    @property
    def name(self) -> str:
        return "/".join(self.path)


def from_tfds(
    name: Any,
    split: str,
    *,
    data_dir: str | None = None,
    download: bool = False,
    objects: str | None = None,
    features: dict[str, str] | None = None,
    annotations: str | Path | None = None,
    **reading: Unpack[Reading],
) -> Any:
    """Reads examples of a TFDS data set of images with boxes or masks.

    Use it for any data set of the TFDS catalogue, ImageNet included. The types
    of the features identify the image, its class, boxes with their classes,
    and the mask. If several have one type, it takes the one named `label`;
    otherwise `features` must name one. Images stay encoded, in the order of
    the files. Boxes of TFDS' kitti count from the bottom.

    Args:
        name: Name of the data set, or its builder.
        split: As in `tfds.load`: `"train"`, `"train[:90%]"`.
        data_dir: Folder of the prepared data.
        download: Whether to download and prepare missing data.
        objects: `"boxes"`, `"mask"` or `"both"`, the parts to read; None
            takes boxes, or without boxes the mask. Boxes of a part of the
            object (`head_bbox` of oxford_iiit_pet) are boxes too: ask for the
            mask there, with `mask_classes=(1, 3)`.
        features: Names of the features to take for `image`, `label`,
            `boxes`, `box_labels`, `mask`, as paths: `{"boxes":
            "objects/bbox"}`.
        mask_classes: Values of the mask that are objects; they are read as 1
            and all others as 0. None takes all values but 0.
        annotations: Folder of one Pascal VOC file per image with its boxes,
            as ImageNet's are: `n01440764/n01440764_18.xml`. Images are
            matched by the name of their file, classes by their names.
        without_boxes, on_error, tally: As for `from_folder`.
        input_context: A `tf.distribute.InputContext`; each worker reads its
            share of the files.

    Returns:
        A `tf.data.Dataset` of examples as `random_resized_crop` takes them.
        They have a `label` if the data set has a class per image; otherwise
        add one by `object_examples` or `label_by_largest`. Its `class_names`
        are those of the labels, or without labels those of the boxes.

    Raises:
        ValueError: If a feature is missing, or there are several to choose
            from.
        ImportError: Without `tensorflow_datasets`.

    Reference:
        TensorFlow Datasets, https://www.tensorflow.org/datasets
    """
    how = policies("from_tfds", reading, Reading)
    check_in("objects", objects, (None, "boxes", "mask", "both"))
    asked = dict(features or {})
    require(
        set(asked) <= set(_PARTS),
        f"`features` must have keys among {_PARTS}",
        features=asked,
    )
    if not isinstance(split, str):
        raise type_error("`split` must be one text", split=split)
    builder = name
    if isinstance(name, str):
        builder = tfds.builder(name, data_dir=data_dir)
    if download:
        builder.download_and_prepare()
    leaves = _find(
        builder.info.features, objects, asked, annotations is not None
    )
    # Skips other features, such as instance masks of each object.
    wanted: dict = {}
    for leaf in leaves.values():
        _put(wanted, leaf.path, True)
    skipped: dict = {}
    _put(skipped, leaves["image"].path, tfds.decode.SkipDecoding())
    dataset = builder.as_dataset(
        split=split,
        shuffle_files=False,
        decoders=tfds.decode.PartialDecoding(wanted, decoders=skipped),
        read_config=tfds.ReadConfig(
            try_autocache=False, input_context=how.input_context
        ),
    )
    names = None
    for part in ("box_labels", "label"):
        if part in leaves:
            names = list(leaves[part].feature.names)

    def convert(raw: dict) -> dict:
        example = {
            part: reduce(getitem, leaf.path, raw)
            for part, leaf in leaves.items()
        }
        if "boxes" in example and not leaves["boxes"].depth:
            # All zeros stand for no box.
            box = example["boxes"][None]
            some = tf.reduce_any(box != 0, axis=-1)
            example["boxes"] = tf.boolean_mask(box, some)
        if "mask" in example and how.mask_classes is not None:
            mask = selected(example["mask"], how.mask_classes)
            example["mask"] = tf.cast(mask, "uint8")
        return example

    examples = dataset.map(convert, tf.data.AUTOTUNE)
    if annotations is not None:
        examples, names = _annotated(examples, Path(annotations), names, how)
    num_classes = len(names) if names and "label" in leaves else None
    dataset = clean(examples, how, num_classes)
    dataset.class_names = names
    return dataset


def _find(
    features: Any, objects: str | None, asked: dict, annotated: bool
) -> dict[str, _Leaf]:
    """The features to read, by their part in an example."""
    types = tfds.features
    leaves = list(_leaves(features))

    def of(kind: Any) -> list[_Leaf]:
        return [x for x in leaves if isinstance(x.feature, kind)]

    def single(kind: Any) -> list[_Leaf]:
        return [x for x in of(kind) if not x.depth]

    def choose(part: str, candidates: list[_Leaf]) -> None:
        if candidates or part in asked:
            found[part] = _choose(part, candidates, asked)

    pictures = single(types.Image)
    colored = [x for x in pictures if x.feature.shape[-1] != 1]
    found = {"image": _choose("image", colored or pictures, asked)}
    masks = [x for x in pictures if x not in (*colored, found["image"])]
    boxes = [x for x in of(types.BBoxFeature) if _is_corners(x.feature)]
    if objects is None and not annotated:
        objects = "boxes" if boxes or "boxes" in asked else None
        if objects is None and (masks or "mask" in asked):
            objects = "mask"
    choose("label", single(types.ClassLabel))
    if objects in ("boxes", "both") and not annotated:
        found["boxes"] = _choose("boxes", boxes, asked)
        beside = found["boxes"].path[:-1]
        marks = [x for x in of(types.ClassLabel) if x.path[:-1] == beside]
        choose("box_labels", [x for x in marks if x.depth])
    if objects in ("mask", "both"):
        found["mask"] = _choose("mask", masks, asked)
    texts = single(types.Text)
    files = [x for x in texts if "file" in x.name] or texts
    require(
        bool(files) or not annotated,
        "`annotations` needs a feature with the name of the file",
        features=sorted(x.name for x in leaves),
    )
    if files:
        found["name"] = files[0]
    return found


def _is_corners(feature: Any) -> bool:
    """Whether boxes are stored as ymin, xmin, ymax, xmax, as is the rule."""
    stored = getattr(feature, "bbox_format", None)
    return stored is None or getattr(stored, "name", stored) == "REL_YXYX"


def _leaves(
    feature: Any, path: tuple[str, ...] = (), depth: int = 0
) -> Iterator[_Leaf]:
    types = tfds.features
    if isinstance(feature, types.FeaturesDict):
        for name, part in feature.items():
            yield from _leaves(part, (*path, name), depth)
    elif isinstance(feature, types.Sequence):
        yield from _leaves(feature.feature, path, depth + 1)
    else:
        yield _Leaf(path, depth, feature)


def _choose(part: str, candidates: list[_Leaf], asked: dict) -> _Leaf:
    """The feature asked for, the only one, or the one named 'label'."""
    if part in asked:
        chosen = [x for x in candidates if x.name == asked[part]]
    elif len(candidates) > 1:
        chosen = [x for x in candidates if x.path[-1] == "label"]
    else:
        chosen = candidates
    require(
        len(chosen) == 1,
        f"`features` must name the feature for {part!r}, one of those of its "
        "type",
        features=asked,
        of_this_type=[x.name for x in candidates],
    )
    return chosen[0]


def _put(tree: dict, path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _annotated(
    dataset: Any, folder: Path, names: list[str] | None, how: Any
) -> tuple[Any, list[str]]:
    """Examples with boxes from the files of their names; class names."""
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() == ".xml")
    twice = [k for k, n in Counter(p.stem for p in paths).items() if n > 1]
    require(
        len(paths) > 0 and not twice,
        "`annotations` must hold one .xml file for each name of an image",
        annotations=str(folder),
        twice=twice[:9],
    )
    rows, names, at = read_annotations(paths, names, how)
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(
            [path.stem for path in rows], [*rows.values()]
        ),
        default_value=NO_FILE,
    )

    def find(example: dict) -> dict:
        stem = tf.strings.regex_replace(example["name"], r"^.*/|\.[^./]*$", "")
        return {**example, "row": table.lookup(stem)}

    # Invalid files have a negative row and are counted already.
    found = dataset.map(find).filter(lambda e: e["row"] >= 0)
    boxed = found.map(lambda e: {**without(e, "row"), **at(e["row"])})
    return boxed, names

"""Examples from TFRecord files of tf.train.Example."""

from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.boxes import selected
from keras_calib.data.transforms.examples import require
from keras_calib.data.transforms.examples import required
from keras_calib.data.transforms.tally import Tally
from keras_calib.data.transforms.validity import check_policies
from keras_calib.data.transforms.validity import clean
from keras_calib.data.transforms.validity import without_errors
from keras_calib.inputs.checks import check_integer

__all__ = ["from_tfrecords"]

_CORNERS = ("ymin", "xmin", "ymax", "xmax")
# As the conversion scripts for ImageNet and for object detection write them.
_KEYS = {
    "image": "image/encoded",
    "label": "image/class/label",
    "name": "image/filename",
    **{corner: f"image/object/bbox/{corner}" for corner in _CORNERS},
}


def from_tfrecords(
    files: str | Path | Sequence[str | Path],
    *,
    keys: Mapping[str, str | None] | None = None,
    first_label: int = 0,
    mask_classes: Sequence[int] | None = None,
    without_boxes: str = "drop",
    on_error: str = "raise",
    tally: Tally | None = None,
    input_context: Any = None,
    num_parallel_reads: int = 16,
) -> Any:
    """Reads examples of TFRecord files with encoded images and boxes.

    Args:
        files: Their paths, or a pattern such as `"train-*"`; `.gz` files are
            decompressed. They are read in the order of their names.
        keys: Where they differ from those below, the keys of the parts of an
            example: `image` (image/encoded), `label` (image/class/label),
            `name` (image/filename; else the file and the number of the record
            in it), `ymin`, `xmin`, `ymax`, `xmax`
            (image/object/bbox/ymin and so on), `box_labels` (none by default;
            image/object/class/label in detection data), `mask` (none by
            default; a PNG of class ids). None: not there.
        first_label: The class id that stands for the first class: 1 in
            ImageNet's files, where 0 is the background.
        mask_classes: As in `from_tfds`.
        without_boxes: As in `from_tfds`.
        on_error: Whether to `"raise"` an error, or to `"skip"` examples with
            bad boxes or an unreadable image, and records that cannot be
            parsed.
        tally: Where to count these rows and examples.
        input_context: A `tf.distribute.InputContext`: each worker reads its
            share of the files.
        num_parallel_reads: How many files are read in turn. The order of the
            examples depends on it.

    Returns:
        A `tf.data.Dataset` of examples, see `random_resized_crop`.

    Raises:
        ValueError: If there are no such files, or fewer than workers, or a
            key is of no part.

    Reference:
        TensorFlow, TFRecord and tf.train.Example,
        https://www.tensorflow.org/tutorials/load_data/tfrecord
    """
    check_policies(without_boxes, on_error)
    check_integer("first_label", first_label)
    check_integer("num_parallel_reads", num_parallel_reads, 1)
    used = _read_keys(keys)
    paths = _paths(files)
    if input_context is not None:
        count = input_context.num_input_pipelines
        require(
            len(paths) >= count,
            "There must be a file for each worker",
            files=len(paths),
            workers=count,
        )
        paths = paths[input_context.input_pipeline_id :: count]
    zipped = [path.endswith(".gz") for path in paths]
    require(
        any(zipped) == all(zipped),
        "All `files` must be .gz, or none",
        files=paths,
    )
    kind = "GZIP" if any(zipped) else ""

    def read(path: Any) -> Any:
        records = tf.data.TFRecordDataset(path, compression_type=kind)
        return tf.data.Dataset.zip(
            tf.data.Dataset.from_tensors(path).repeat(), records.enumerate()
        )

    dataset = tf.data.Dataset.from_tensor_slices(paths).interleave(
        read,
        cycle_length=min(num_parallel_reads, len(paths)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    features = _features(used)

    def place(path: Any, numbered: Any) -> Any:
        return tf.strings.join([path, ":", tf.strings.as_string(numbered[0])])

    def parse(path: Any, numbered: Any) -> dict:
        raw = tf.io.parse_single_example(numbered[1], features)
        raw = {part: raw[key] for part, key in used.items()}
        name = raw.get("name", tf.constant(""))
        # A record without a name is called by its place.
        name = tf.cond(
            tf.equal(name, ""), lambda: place(path, numbered), lambda: name
        )
        example = {"image": raw["image"], "name": name}
        for part in ("label", "box_labels"):
            if part in raw:
                example[part] = raw[part] - first_label
        if "ymin" in raw:
            example["boxes"] = _boxes(raw, name)
        if "mask" in raw:
            example["mask"] = _mask(raw["mask"], mask_classes, name)
        return example

    if on_error == "skip":

        def attempt(path: Any, number: Any, record: Any) -> None:
            parse(path, (number, record))

        def parts(path: Any, numbered: Any) -> list[Any]:
            return [path, *numbered]

        dataset = without_errors(
            dataset, attempt, parts, place, "bad record", tally
        ).map(lambda _, element: element)
    return clean(
        dataset.map(parse, tf.data.AUTOTUNE),
        without_boxes=without_boxes,
        on_error=on_error,
        tally=tally,
    )


def _read_keys(keys: Mapping[str, str | None] | None) -> dict[str, str]:
    keys = dict(keys or {})
    parts = {*_KEYS, "box_labels", "mask"}
    require(
        set(keys) <= parts,
        "`keys` must be of these parts",
        keys=keys,
        parts=parts,
    )
    used = {k: v for k, v in {**_KEYS, **keys}.items() if v is not None}
    require(
        "image" in used and len({*_CORNERS} & {*used}) in (0, 4),
        "`keys` must leave the image, and all four corners or none",
        keys=keys,
    )
    return used


def _paths(files: str | Path | Sequence[str | Path]) -> list[str]:
    if isinstance(files, str | Path):
        pattern = str(files)
        exists = tf.io.gfile.exists(pattern)
        found = [pattern] if exists else sorted(tf.io.gfile.glob(pattern))
    else:
        found = sorted(str(file) for file in files)
    missing = [
        path
        for path in found
        if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path)
    ]
    require(
        bool(found) and not missing,
        "`files` must be files",
        files=str(files),
        missing=missing,
    )
    return found


def _features(used: dict[str, str]) -> dict:
    one = tf.io.FixedLenFeature
    ragged = partial(tf.io.FixedLenSequenceFeature, (), allow_missing=True)
    kinds = {
        "image": one((), tf.string),
        "label": one((), tf.int64),
        "name": one((), tf.string, ""),
        "mask": one((), tf.string),
        **dict.fromkeys(_CORNERS, ragged(tf.float32)),
        "box_labels": ragged(tf.int64),
    }
    return {used[part]: kinds[part] for part in kinds if part in used}


def _boxes(raw: dict, name: Any) -> Any:
    corners = [raw[corner] for corner in _CORNERS]
    lengths = [tf.size(corner) for corner in corners]
    if "box_labels" in raw:
        lengths.append(tf.size(raw["box_labels"]))
    lengths = tf.stack(lengths)
    # Where lengths differ, this is to speak before `tf.stack`.
    lengths = required(
        lengths,
        tf.reduce_all(tf.equal(lengths, lengths[0])),
        "Every box must have four corners, and a label if `keys` names one",
        example=name,
        lengths=lengths,
    )
    return tf.stack([corner[: lengths[0]] for corner in corners], axis=-1)


def _mask(data: Any, mask_classes: Sequence[int] | None, name: Any) -> Any:
    """The mask of a PNG file, `(height, width, 1)`."""
    # Bits of a channel, and kind of colours.
    header = tf.strings.substr(tf.strings.join([data, "\0" * 26]), 24, 2)
    bits, kind = tf.unstack(
        tf.cast(tf.io.decode_raw(header, "uint8"), "int32"), 2
    )
    png = tf.equal(tf.strings.substr(data, 0, 4), b"\x89PNG")
    data = required(
        data,
        png & (bits > 0) & (bits <= 8) & ((kind == 0) | (kind == 4)),
        "Masks must hold class ids: PNG files in grey of at most 8 bits, "
        "without colours or a palette",
        example=name,
        bits=bits,
        kind_of_colours=kind,
    )
    most = tf.bitwise.left_shift(1, bits) - 1
    mask = tf.io.decode_png(data, channels=1)
    # Of fewer bits, decoders make the largest value 255.
    mask = tf.cond(
        most < 255, lambda: mask // tf.cast(255 // most, "uint8"), lambda: mask
    )
    if mask_classes is None:
        return mask
    return tf.cast(selected(mask, mask_classes), "uint8")

"""Examples from TFRecord files of tf.train.Example."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from keras_calib.backend.late import tensorflow as tf
from keras_calib.data.boxes import selected
from keras_calib.data.examples import require, required
from keras_calib.data.validity import Reading, clean, policies
from keras_calib.inputs.checks import check_integer

_CORNERS = ("ymin", "xmin", "ymax", "xmax")
# Keys of the conversion scripts for ImageNet and for object detection.
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
    num_parallel_reads: int = 16,
    **reading: Unpack[Reading],
) -> Any:
    """Reads examples of TFRecord files with encoded images and boxes.

    Use it for files written by the conversion scripts for ImageNet or for
    object detection, or by others with `keys`.

    Args:
        files: Their paths, or a pattern such as `"train-*"`; `.gz` files are
            decompressed. They are read in the order of their names.
        keys: Keys of the parts of an example that differ from the defaults:
            `image` (image/encoded), `label` (image/class/label), `name`
            (image/filename), and `ymin`, `xmin`, `ymax`, `xmax`
            (image/object/bbox/ymin and so on). Without a name an example is
            named by its file and number. `box_labels` and `mask`, a PNG of
            class ids, are not read by default. The key None says that a part
            is missing.
        first_label: Class id of the first class: 1 in ImageNet's files, where
            0 is the background.
        mask_classes: As for `from_tfds`.
        without_boxes, on_error, tally: As for `from_folder`. A record that
            cannot be parsed always raises.
        input_context: As for `from_tfds`.
        num_parallel_reads: Number of files read in turn. The order of the
            examples depends on it.

    Returns:
        A `tf.data.Dataset` of examples as `random_resized_crop` takes them.

    Raises:
        ValueError: If no file matches, there are fewer files than workers, or
            `keys` names an unknown part.

    Reference:
        TensorFlow, TFRecord and tf.train.Example,
        https://www.tensorflow.org/tutorials/load_data/tfrecord
    """
    how = policies("from_tfrecords", reading, Reading)
    check_integer("first_label", first_label)
    check_integer("num_parallel_reads", num_parallel_reads, 1)
    used = _read_keys(keys)
    paths = _paths(files)
    if (context := how.input_context) is not None:
        count = context.num_input_pipelines
        require(
            len(paths) >= count,
            "`files` must be at least as many as workers",
            files=len(paths),
            workers=count,
        )
        paths = paths[context.input_pipeline_id :: count]

    def read(path: Any) -> Any:
        zipped = tf.strings.regex_full_match(path, r".*\.gz")
        records = tf.data.TFRecordDataset(path, tf.where(zipped, "GZIP", ""))
        # A record without a name is named by file and number.
        return records.enumerate().map(
            lambda number, record: (
                tf.strings.join([path, ":", tf.strings.as_string(number)]),
                record,
            )
        )

    dataset = tf.data.Dataset.from_tensor_slices(paths).interleave(
        read,
        cycle_length=min(num_parallel_reads, len(paths)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    features = _features(used)

    def parse(place: Any, record: Any) -> dict:
        raw = tf.io.parse_single_example(record, features)
        raw = {part: raw[key] for part, key in used.items()}
        name = raw.get("name", "")
        example = {"image": raw["image"]}
        example["name"] = tf.where(tf.equal(name, ""), place, name)
        for part in ("label", "box_labels"):
            if part in raw:
                example[part] = raw[part] - first_label
        if "ymin" in raw:
            example["boxes"] = _boxes([raw[corner] for corner in _CORNERS])
        if "mask" in raw:
            example["mask"] = _mask(
                raw["mask"], how.mask_classes, example["name"]
            )
        return example

    return clean(dataset.map(parse, tf.data.AUTOTUNE), how)


def _read_keys(keys: Mapping[str, str | None] | None) -> dict[str, str]:
    keys = _KEYS | dict(keys or {})
    used = {part: key for part, key in keys.items() if key is not None}
    parts = {*_KEYS, "box_labels", "mask"}
    require(
        set(keys) <= parts
        and "image" in used
        and len({*_CORNERS} & {*used}) in (0, 4),
        f"`keys` must be of the parts {sorted(parts)}, with the image, and "
        "all four corners or none",
        keys=keys,
    )
    return used


def _paths(files: str | Path | Sequence[str | Path]) -> list[str]:
    patterns = [files] if isinstance(files, str | Path) else files
    found: list[str] = []
    for pattern in map(str, patterns):
        exists = tf.io.gfile.exists(pattern)
        paths = [pattern] if exists else tf.io.gfile.glob(pattern)
        some = len(paths) > 0 and not any(map(tf.io.gfile.isdir, paths))
        require(some, "`files` must name files that exist", files=pattern)
        found += paths
    require(len(found) > 0, "`files` must name files that exist", files=files)
    return sorted(found)


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
    return {key: kinds[part] for part, key in used.items()}


def _boxes(corners: Sequence[Any]) -> Any:
    """Boxes `(n, 4)`, with NaN for a missing corner, which no box has."""
    count = tf.reduce_max([tf.size(corner) for corner in corners])
    padded = [
        tf.pad(x, [[0, count - tf.size(x)]], constant_values=float("nan"))
        for x in corners
    ]
    return tf.stack(padded, axis=-1)


def _mask(data: Any, mask_classes: Sequence[int] | None, name: Any) -> Any:
    """The mask of a PNG file, `(height, width, 1)`."""
    # Bytes of the PNG header: bits of a channel, and kind of colours.
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
    # Decoders scale masks of fewer bits up to 255.
    mask //= tf.cast(255 // most, "uint8")
    if mask_classes is None:
        return mask
    return tf.cast(selected(mask, mask_classes), "uint8")

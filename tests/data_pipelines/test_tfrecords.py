"""Examples from TFRecord files."""

import gzip
import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from examples_with_boxes import jpeg
from PIL import Image

import keras_calib as kc

CORNERS = ("ymin", "xmin", "ymax", "xmax")
SIZE = (30, 40)
BOX = [[0.0, 0.0, 0.5, 0.5]]


def record(data, label, boxes, **more):
    def feature(kind, values):
        lists = {
            "bytes_list": tf.train.BytesList,
            "float_list": tf.train.FloatList,
            "int64_list": tf.train.Int64List,
        }
        return tf.train.Feature(**{kind: lists[kind](value=values)})

    features = {
        "image/encoded": feature("bytes_list", [data]),
        "image/filename": feature("bytes_list", [b"image %d" % label]),
        "image/class/label": feature("int64_list", [label]),
    }
    for corner, values in zip(
        CORNERS, np.reshape(boxes, (-1, 4)).T, strict=True
    ):
        features[f"image/object/bbox/{corner}"] = feature("float_list", values)
    for name, values in more.items():
        kind = "bytes_list" if isinstance(values[0], bytes) else "int64_list"
        features[name] = feature(kind, values)
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString()


def write_records(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for one in records:
            writer.write(one)


def labels_of(data):
    return [int(example["label"]) for example in data]


@pytest.fixture
def file(tmp_path):
    """Writes records to a file."""

    def write(*records):
        write_records(tmp_path / "a", records)
        return tmp_path / "a"

    return write


@pytest.fixture
def records(tmp_path, picture):
    data = jpeg(picture)
    for part in range(4):
        rows = [
            record(data, 10 * part + k, [[0.0, 0.1, 0.5, 0.2 + 0.1 * k]] * k)
            for k in range(3)
        ]
        write_records(tmp_path / f"part-{part}", rows)
    return str(tmp_path / "part-*")


def test_records_are_read_in_the_same_order_always(records):
    first = labels_of(kc.data.from_tfrecords(records))
    again = labels_of(kc.data.from_tfrecords(records))
    assert first == again
    assert sorted(first) == [1, 2, 11, 12, 21, 22, 31, 32]


def test_records_without_boxes_are_kept_on_request_and_counted(records):
    tally = kc.data.Tally()
    data = kc.data.from_tfrecords(records, without_boxes="keep", tally=tally)
    rows = list(data)
    assert len(rows) == 12 and tally.counts()["without boxes"] == 4
    whole = [r for r in rows if not r["boxed"]]
    assert len(whole) == 4
    for row in whole:
        crop = kc.data.random_resized_crop(row, 8, seed=(0, 1))
        assert crop["objectness"] == 1
    # Nothing is painted out where nothing says what.
    assert len(list(kc.data.context_examples(data))) == 8
    tally.reset()
    assert tally.counts()["without boxes"] == 0


def test_each_worker_reads_its_own_files(records):
    contexts = [tf.distribute.InputContext(2, k, 2) for k in (0, 1)]
    parts = [
        labels_of(kc.data.from_tfrecords(records, input_context=one))
        for one in contexts
    ]
    assert sorted(sum(parts, [])) == [1, 2, 11, 12, 21, 22, 31, 32]
    many = tf.distribute.InputContext(9, 0, 9)
    with pytest.raises(ValueError, match="at least as many as workers"):
        kc.data.from_tfrecords(records, input_context=many)


def test_keys_of_records_can_be_others(file, picture):
    mask = tf.io.encode_png(np.ones((*SIZE, 1), "uint8")).numpy()
    boxes = [[0.0, 0.0, 0.5, 0.5], [0.0, 0.5, 1.0, 1.0]]
    path = file(record(jpeg(picture), 4, boxes, kinds=[3, 9], mask=[mask]))
    keys = {"box_labels": "kinds", "mask": "mask", "name": None}
    (example,) = kc.data.from_tfrecords(path, keys=keys, first_label=1)
    assert example["label"] == 3
    assert example["box_labels"].numpy().tolist() == [2, 8]
    np.testing.assert_allclose(example["boxes"], boxes)
    assert example["mask"].shape == (*SIZE, 1)
    # Called by its place, where nothing names it.
    assert example["name"] == f"{path}:0".encode()


def test_compressed_records_are_read(tmp_path, records):
    with open(records.replace("*", "1"), "rb") as plain:
        (tmp_path / "z.gz").write_bytes(gzip.compress(plain.read()))
    assert labels_of(kc.data.from_tfrecords([tmp_path / "z.gz"])) == [11, 12]
    mixed = [tmp_path / "z.gz", records.replace("*", "2")]
    assert sorted(labels_of(kc.data.from_tfrecords(mixed))) == [11, 12, 21, 22]


def test_bad_arguments_for_records_are_refused(records):
    for options, rule in (
        ({"files": "nowhere/part-*"}, "`files` must name files that exist"),
        ({"keys": {"colour": "x"}}, "`keys` must be of the parts"),
        ({"keys": {"xmax": None}}, "all four corners or none"),
        ({"without_boxes": "maybe"}, "`without_boxes` must be one of"),
        ({"on_error": "ignore"}, "`on_error` must be one of"),
        ({"num_parallel_reads": 0}, "`num_parallel_reads` must be >= 1"),
    ):
        with pytest.raises(ValueError, match=rule):
            kc.data.from_tfrecords(**{"files": records, **options})


# Records that are wrong.


def test_a_box_that_lacks_its_label_is_refused_by_name(file, picture):
    path = file(record(jpeg(picture), 4, BOX * 2, kinds=[3]))
    data = kc.data.from_tfrecords(path, keys={"box_labels": "kinds"})
    batches = kc.data.validation_pipeline(data, 8, 1, 5, labels="pairs")
    with pytest.raises(tf.errors.InvalidArgumentError, match="image 4"):
        list(batches)


def test_what_is_no_box_is_named_or_skipped_and_counted(file, picture):
    data = jpeg(picture)
    bad = [
        [np.nan, 0.0, 0.5, 0.5],
        [0.5, 0.0, 0.2, 0.5],
        [0.5, 0.0, 0.5, 0.5],
        [1.5, 0.0, 1.7, 0.5],
        [0.0, 0.0, 200.0, 300.0],
    ]
    rows = [record(data, k, [*BOX, box]) for k, box in enumerate(bad, 1)]
    over_the_edge = record(data, 6, [[-0.2, 0.5, 0.5, 1.3]])
    path = file(record(data, 0, BOX), *rows, over_the_edge)
    tally = kc.data.Tally()
    read = kc.data.from_tfrecords(path, on_error="skip", tally=tally)
    assert labels_of(read) == [0, 6]
    assert tally.counts()["bad boxes"] == sum(tally.counts().values()) == 5
    names = tally.names()["bad boxes"]
    assert names == [f"image {k}" for k in range(1, 6)]
    # A box over the edge is clipped: the middle of 40 x 30 pixels, 30 wide.
    options = {"labels": "pairs", "fraction": 1.0}
    for _, y in kc.data.validation_pipeline(read.skip(1), 8, 1, 9, **options):
        np.testing.assert_allclose(y, [[6, 0.5 * 15 / 30]], atol=1e-6)
    batches = kc.data.validation_pipeline(
        kc.data.from_tfrecords(path), 8, 7, 9, labels="pairs"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="image [1-5]"):
        list(batches)


def test_broken_images_are_named_or_skipped_and_counted(file, picture):
    data = jpeg(picture)
    files = [data, data[:-20], b"no image", data, b""]
    path = file(*(record(x, k, BOX) for k, x in enumerate(files)))
    batches = kc.data.validation_pipeline(kc.data.from_tfrecords(path), 8, 2, 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"image [124]"):
        list(batches)
    tally = kc.data.Tally()
    data = kc.data.from_tfrecords(path, on_error="skip", tally=tally)
    assert labels_of(data) == [0, 3]
    assert tally.counts()["unreadable image"] == 3
    # Each once, and none of the good ones.
    names = [f"image {k}" for k in (1, 2, 4)]
    assert sorted(tally.names()["unreadable image"]) == names
    tally.reset()
    assert not any(tally.names().values())


def test_files_broken_in_their_middle_are_left_out(file, picture):
    whole = [jpeg(picture), tf.io.encode_png(picture).numpy()]
    broken = [x[:20] + bytes(len(x) - 40) + x[-20:] for x in whole]
    files = [whole[0], *broken, whole[1]]
    path = file(*(record(x, k, BOX) for k, x in enumerate(files)))
    tally = kc.data.Tally()
    read = kc.data.from_tfrecords(path, on_error="skip", tally=tally)
    assert labels_of(read) == [0, 3]
    assert tally.counts()["unreadable image"] == 2
    assert tally.names()["unreadable image"] == ["image 1", "image 2"]
    # Training stops, and says what finds it.
    for place in (1, 2):
        one = kc.data.from_tfrecords(path).skip(place).take(1)
        one = one.map(lambda e: {k: e[k] for k in ("image", "label")})
        unnamed = kc.data.validation_pipeline(one, 8, 1, 5)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="valid_examples"
        ):
            next(iter(unnamed))
        with pytest.raises(ValueError, match="example='x'"):
            kc.data.center_crop({"image": broken[place - 1], "name": "x"}, 8)


def test_records_that_lack_a_part_stop_reading(file, picture):
    good = record(jpeg(picture), 1, BOX)
    uneven = tf.train.Example.FromString(good)
    feature = uneven.features.feature
    feature["image/object/bbox/xmax"].float_list.value.append(0.9)
    path = file(good, uneven.SerializeToString(), good)
    tally = kc.data.Tally()
    data = kc.data.from_tfrecords(path, on_error="skip", tally=tally)
    assert labels_of(data) == [1, 1] and tally.counts()["bad boxes"] == 1
    nothing = tf.train.Example.FromString(good)
    del nothing.features.feature["image/class/label"]
    for wrong in (nothing.SerializeToString(), b"no example"):
        data = kc.data.from_tfrecords(file(good, wrong), on_error="skip")
        with pytest.raises(tf.errors.InvalidArgumentError):
            list(data)


def test_a_damaged_file_is_an_error_that_is_not_skipped(file, picture):
    path = file(*(record(jpeg(picture), k, []) for k in range(9)))
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 255
    path.write_bytes(damaged)
    keys = dict.fromkeys(CORNERS)
    with pytest.raises(tf.errors.DataLossError):
        list(kc.data.from_tfrecords(path, keys=keys, on_error="skip"))


# Masks.


def test_images_without_an_object_in_their_mask_are_left_out_or_kept(
    file, picture
):
    masks = [np.full((*SIZE, 1), value, "uint8") for value in (1, 0, 2)]
    masks = [tf.io.encode_png(mask).numpy() for mask in masks]
    data = jpeg(picture)
    path = file(*(record(data, k, [], mask=[m]) for k, m in enumerate(masks)))
    keys = dict.fromkeys(CORNERS) | {"mask": "mask"}
    tally = kc.data.Tally()
    data = kc.data.from_tfrecords(path, keys=keys, tally=tally)
    assert labels_of(data) == [0, 2]
    assert tally.counts()["without boxes"] == 1
    kept = kc.data.from_tfrecords(path, keys=keys, without_boxes="keep")
    shares = [
        float(kc.data.random_resized_crop(e, 8, seed=(0, 1))["objectness"])
        for e in kept
    ]
    assert shares == [1.0, 1.0, 1.0]
    # But nothing of it can be painted out.
    assert labels_of(kc.data.context_examples(kept)) == [0, 2]
    only = kc.data.from_tfrecords(path, keys=keys, mask_classes=(2,))
    assert labels_of(only) == [2]


def grey_png(values, bits):
    """A grey PNG file `(height, width)` of that many bits a pixel."""

    def chunk(kind, data):
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    height, width = values.shape
    shifts = np.arange(bits - 1, -1, -1)
    rows = (values[..., None].astype(int) >> shifts & 1).reshape(height, -1)
    lines = b"".join(b"\0" + np.packbits(row).tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


def test_masks_have_the_values_of_their_files_whatever_the_bits(file, picture):
    values = np.zeros(SIZE, "int64")
    values[:5, :8] = 1
    data = jpeg(picture)
    path = file(
        *(record(data, b, [], mask=[grey_png(values, b)]) for b in (1, 2, 4, 8))
    )
    keys = {"mask": "mask", **dict.fromkeys(CORNERS)}
    for classes in (None, (1,)):
        read = kc.data.from_tfrecords(path, keys=keys, mask_classes=classes)
        masks = [row["mask"][..., 0] for row in read]
        assert len(masks) == 4
        for mask in masks:
            np.testing.assert_array_equal(mask, values)


def test_masks_of_colours_or_of_16_bits_are_refused_by_name(file, picture):
    palette = Image.new("P", SIZE[::-1], 5)
    palette.putpalette([k for k in range(256) for _ in range(3)])
    colours = io.BytesIO()
    palette.save(colours, "PNG")
    deep = grey_png(np.ones(SIZE, "int64"), 16)
    for label, mask in enumerate((colours.getvalue(), deep)):
        path = file(record(jpeg(picture), label, BOX, mask=[mask]))
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=f"8 bits(.|\n)*image {label}"
        ):
            list(kc.data.from_tfrecords(path, keys={"mask": "mask"}))

"""Builders of examples: TFDS, TFRecord files, folders with Pascal VOC files."""

import gzip
import struct
import types
import zlib

import numpy as np
import pytest
from cases import BACKEND

import keras_calib as kc

if BACKEND != "tensorflow":
    pytest.skip("pipelines are TensorFlow's", allow_module_level=True)
import tensorflow as tf
import tensorflow_datasets as tfds
from examples_with_boxes import coherent
from examples_with_boxes import jpeg
from examples_with_boxes import smooth_image
from examples_with_boxes import write_voc

CORNERS = ("ymin", "xmin", "ymax", "xmax")
SIZE = (30, 40)


@pytest.fixture(scope="module")
def picture():
    return smooth_image(np.random.default_rng(0), *SIZE)


def worker(index, count=2):
    return tf.distribute.InputContext(count, index, count)


# TFDS.

OBJECTS = {
    "voc/2012": ("objects", ("label", "pose")),
    "coco/2017": ("objects", ("label",)),
    "stanford_dogs": ("objects", ()),
    "open_images_v4": ("bobjects", ("label", "source")),
}


def read(name, picture, **options):
    with tfds.testing.mock_data(as_dataset_fn=coherent(picture)):
        return kc.from_tfds(name, "train", **options)


@pytest.mark.parametrize("name", OBJECTS)
def test_boxes_and_their_labels_are_found_by_type(name, picture):
    data = read(name, picture)
    parts = set(data.element_spec)
    assert {"image", "boxes", "name"} <= parts
    _, labels = OBJECTS[name]
    assert ("box_labels" in parts) == bool(labels)
    rows = list(data)
    # The row without boxes is left out.
    assert [len(row["boxes"]) for row in rows] == [2, 1]
    assert rows[1]["name"] == f"{name.split('/')[0]}_2.jpg".encode()
    if labels:
        assert rows[1]["box_labels"].numpy().tolist() == [2]
    assert len(data.class_names) > 2


@pytest.mark.parametrize("name", ["caltech_birds2011", "oxford_iiit_pet"])
def test_one_box_or_the_mask_is_taken(name, picture):
    (row, *_) = read(name, picture)
    np.testing.assert_allclose(row["boxes"], [[0.1, 0.2, 0.6, 0.9]])
    assert row["label"] == 0 and "mask" not in row
    data = read(name, picture, objects="mask")
    (row, *_) = data
    assert row["mask"].shape == (*SIZE, 1) and "boxes" not in row
    assert set(read(name, picture, objects="both").element_spec) >= {
        "boxes",
        "mask",
    }


@pytest.mark.parametrize("name", [*OBJECTS, "caltech_birds2011"])
def test_examples_of_tfds_can_be_trained_on(name, picture):
    data = read(name, picture)
    if "box_labels" in data.element_spec:
        data = kc.object_examples(data)
    classes = len(data.class_names) if hasattr(data, "class_names") else 700
    batches = kc.training_pipeline(data, 16, 2, classes, epochs=1)
    ((images, targets),) = batches.take(1)
    assert images.shape == (2, 16, 16, 3)
    np.testing.assert_allclose(targets.numpy().sum(-1), 1, rtol=1e-5)


def test_the_feature_named_label_is_taken_of_several(picture):
    data = read("oxford_iiit_pet", picture)
    assert len(data.class_names) == 37
    data = read("oxford_iiit_pet", picture, features={"label": "species"})
    assert len(data.class_names) == 2
    data = read("voc/2012", picture, features={"box_labels": "objects/pose"})
    assert len(data.class_names) == 5


def test_a_feature_of_another_name_or_type_is_refused(picture):
    for features in ({"boxes": "image"}, {"boxes": "objects/box"}):
        with pytest.raises(ValueError, match="`features` must name"):
            read("voc/2012", picture, features=features)
    with pytest.raises(ValueError, match="`features` must name"):
        read("voc/2012", picture, objects="mask")


def test_imagenet_gets_its_boxes_from_files(picture, tmp_path):
    data = read("imagenet2012", picture)
    assert set(data.element_spec) == {"image", "label", "name"}
    names = data.class_names
    write_voc(tmp_path / "n1" / "imagenet2012_0.xml", [(names[7], BOX)])
    write_voc(
        tmp_path / "n2" / "imagenet2012_2.xml",
        [(names[3], BOX), ("none of them", BOX)],
    )
    tally = kc.Tally()
    data = read("imagenet2012", picture, annotations=tmp_path, tally=tally)
    rows = list(data)
    assert [int(row["label"]) for row in rows] == [0, 2]
    assert [row["box_labels"].numpy().tolist() for row in rows] == [[7], [3]]
    np.testing.assert_allclose(rows[0]["boxes"], [SHARES], rtol=1e-6)
    counts = tally.counts()
    assert counts["without boxes"] == 1 and counts["unknown class"] == 1
    kept = read(
        "imagenet2012",
        picture,
        annotations=tmp_path,
        without_boxes="keep",
    )
    np.testing.assert_array_equal(list(kept)[1]["boxes"], [[0, 0, 1, 1]])


@pytest.mark.data
def test_real_boxes_are_read_with_their_images(data_dir):
    folder = data_dir / "tfds"
    tally = kc.Tally()
    data = kc.from_tfds(
        "tiny_imagenet_boxes", "train", data_dir=str(folder), tally=tally
    )
    assert data.element_spec["image"].dtype == "string"
    summary = kc.describe(data)
    assert summary.num_examples == summary.num_boxes == 6400
    assert set(summary.counts.values()) == {400}
    assert tally.counts()["without boxes"] == 0
    # A plain loop over what TFDS reads.
    raw = tfds.builder("tiny_imagenet_boxes", data_dir=str(folder))
    areas = [
        np.prod(row["objects"]["bbox"][0, 2:] - row["objects"]["bbox"][0, :2])
        for row in tfds.as_numpy(raw.as_dataset(split="train"))
    ]
    assert abs(summary.mean_objectness - np.mean(areas)) < 1e-6


@pytest.mark.data
def test_segmentation_masks_are_objects_by_class(data_dir):
    data = kc.from_tfds(
        "camvid", "test", data_dir=str(data_dir / "tfds"), objects="mask"
    )
    summary = kc.describe(data, classes=(8, 9, 10))
    raw = tfds.builder("camvid", data_dir=str(data_dir / "tfds"))
    shares = [
        np.isin(row["segmentation_mask"], (8, 9, 10)).mean()
        for row in tfds.as_numpy(raw.as_dataset(split="test"))
    ]
    shares = np.array([share for share in shares if share > 0])
    assert abs(summary.mean_objectness - shares.mean()) < 1e-6
    assert summary.num_examples == 233


# TFRecord files.


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
    first = [int(e["label"]) for e in kc.from_tfrecords(records)]
    again = [int(e["label"]) for e in kc.from_tfrecords(records)]
    assert first == again and len(first) == 8
    assert sorted(first) == [1, 2, 11, 12, 21, 22, 31, 32]


def test_records_without_boxes_are_kept_on_request_and_counted(records):
    tally = kc.Tally()
    data = kc.from_tfrecords(records, without_boxes="keep", tally=tally)
    rows = list(data)
    assert len(rows) == 12 and tally.counts()["without boxes"] == 4
    whole = [r for r in rows if not r["boxed"]]
    assert len(whole) == 4
    for row in whole:
        crop = kc.random_resized_crop(row, 8, seed=(0, 1))
        assert crop["objectness"] == 1
    # Nothing is painted out where nothing says what.
    assert len(list(kc.context_examples(data))) == 8
    tally.reset()
    assert tally.counts()["without boxes"] == 0


def test_each_worker_reads_its_own_files(records):
    parts = [
        [int(e["label"]) for e in kc.from_tfrecords(records, input_context=w)]
        for w in (worker(0), worker(1))
    ]
    assert not set(parts[0]) & set(parts[1])
    assert sorted(sum(parts, [])) == [1, 2, 11, 12, 21, 22, 31, 32]
    with pytest.raises(ValueError, match="file for each worker"):
        kc.from_tfrecords(records, input_context=worker(0, 9))


def test_keys_of_records_can_be_others(tmp_path, picture):
    mask = tf.io.encode_png(np.ones((*SIZE, 1), "uint8")).numpy()
    boxes = [[0.0, 0.0, 0.5, 0.5], [0.0, 0.5, 1.0, 1.0]]
    row = record(jpeg(picture), 4, boxes, kinds=[3, 9], mask=[mask])
    write_records(tmp_path / "a", [row])
    (example,) = kc.from_tfrecords(
        tmp_path / "a",
        keys={"box_labels": "kinds", "mask": "mask", "name": None},
        first_label=1,
    )
    assert example["label"] == 3
    assert example["box_labels"].numpy().tolist() == [2, 8]
    np.testing.assert_allclose(example["boxes"], boxes)
    assert example["mask"].shape == (*SIZE, 1)
    # Called by its place, where nothing names it.
    assert example["name"] == str(tmp_path / "a").encode() + b":0"


def test_compressed_records_are_read(tmp_path, records):
    with open(records.replace("*", "1"), "rb") as plain:
        (tmp_path / "z.gz").write_bytes(gzip.compress(plain.read()))
    rows = list(kc.from_tfrecords([tmp_path / "z.gz"]))
    assert [int(row["label"]) for row in rows] == [11, 12]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"files": "nowhere/part-*"}, "`files` must be files"),
        ({"keys": {"colour": "x"}}, "`keys` must be of these parts"),
        ({"keys": {"xmax": None}}, "all four corners or none"),
        ({"without_boxes": "maybe"}, "`without_boxes` must be one of"),
        ({"on_error": "ignore"}, "`on_error` must be one of"),
    ],
)
def test_bad_arguments_for_records_are_refused(records, options, rule):
    with pytest.raises(ValueError, match=rule):
        kc.from_tfrecords(**{"files": records, **options})


def test_a_box_that_lacks_its_label_is_refused_by_name(tmp_path, picture):
    row = record(jpeg(picture), 4, [[0.0, 0.0, 0.5, 0.5]] * 2, kinds=[3])
    write_records(tmp_path / "a", [row])
    data = kc.from_tfrecords(tmp_path / "a", keys={"box_labels": "kinds"})
    with pytest.raises(tf.errors.InvalidArgumentError, match="image 4"):
        list(data)


BAD = {
    "nan": [[np.nan, 0.0, 0.5, 0.5]],
    "inverted": [[0.5, 0.0, 0.2, 0.5]],
    "empty": [[0.5, 0.0, 0.5, 0.5]],
    "outside": [[1.5, 0.0, 1.7, 0.5]],
    "in pixels": [[0.0, 0.0, 200.0, 300.0]],
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_box_is_named_or_skipped_and_counted(
    tmp_path, picture, name
):
    good = record(jpeg(picture), 1, [[0.0, 0.0, 0.5, 0.5]])
    bad = record(jpeg(picture), 2, [[0.0, 0.0, 0.5, 0.5], *BAD[name]])
    write_records(tmp_path / "a", [good, bad, good])
    data = kc.from_tfrecords(tmp_path / "a")
    batches = kc.training_pipeline(data, 8, 3, 5, epochs=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="image 2"):
        list(batches)
    tally = kc.Tally()
    data = kc.from_tfrecords(tmp_path / "a", on_error="skip", tally=tally)
    assert [int(row["label"]) for row in data] == [1, 1]
    assert tally.counts()["bad boxes"] == 1
    assert sum(tally.counts().values()) == 1


def test_a_box_over_the_edge_is_clipped(tmp_path, picture):
    row = record(jpeg(picture), 1, [[-0.2, 0.5, 0.5, 1.3]])
    write_records(tmp_path / "a", [row])
    data = kc.from_tfrecords(tmp_path / "a", on_error="skip")
    ((_, y),) = kc.validation_pipeline(
        data, 8, 1, 5, targets="pairs", fraction=1.0
    )
    # The middle of 40 x 30 pixels: 30 wide.
    np.testing.assert_allclose(y, [[1, 0.5 * 15 / 30]], atol=1e-6)


def test_broken_images_are_named_or_skipped_and_counted(tmp_path, picture):
    box = [[0.0, 0.0, 0.5, 0.5]]
    data = jpeg(picture)
    rows = [
        record(data, 0, box),
        record(data[:-20], 1, box),
        record(b"no image", 2, box),
        record(data, 3, box),
        record(b"", 4, box),
    ]
    write_records(tmp_path / "a", rows)
    batches = kc.training_pipeline(
        kc.from_tfrecords(tmp_path / "a"), 8, 2, 5, epochs=1
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"image [124]"):
        list(batches)
    tally = kc.Tally()
    data = kc.from_tfrecords(tmp_path / "a", on_error="skip", tally=tally)
    assert [int(row["label"]) for row in data] == [0, 3]
    assert tally.counts()["unreadable image"] == 3
    # Each once, and none of the good ones.
    assert sorted(tally.names()["unreadable image"]) == [
        f"image {k}" for k in (1, 2, 4)
    ]


# Folders.

BOX = (4, 3, 36, 27)
SHARES = [3 / 30, 4 / 40, 27 / 30, 36 / 40]


@pytest.fixture
def folder(tmp_path, picture):
    places = types.SimpleNamespace(
        images=tmp_path / "images", annotations=tmp_path / "marks"
    )
    rows = {
        "cats/1": [("cat", BOX)],
        "cats/2": [("cat", BOX), ("dog", (0, 0, 9, 9))],
        "dogs/1": [("dog", BOX)],
        "dogs/none": [],
    }
    for name, objects in rows.items():
        path = places.images / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(picture))
        write_voc(places.annotations / f"{name}.xml", objects)
    (places.images / "dogs" / "bare.png").write_bytes(
        tf.io.encode_png(picture).numpy()
    )
    return places


def test_a_folder_is_read_with_its_boxes(folder):
    tally = kc.Tally()
    data = kc.from_folder(folder.images, folder.annotations, tally=tally)
    assert data.class_names == ["cat", "dog"]
    rows = list(data)
    assert len(rows) == 3 and tally.counts()["without boxes"] == 2
    np.testing.assert_allclose(rows[0]["boxes"], [SHARES], rtol=1e-6)
    assert rows[1]["box_labels"].numpy().tolist() == [0, 1]
    alone = list(kc.object_examples(data))
    assert [int(e["label"]) for e in alone] == [0, 0, 1, 1]
    largest = list(kc.label_by_largest(data))
    assert [int(e["label"]) for e in largest] == [0, 0, 1]


def test_folders_can_be_classes(folder):
    data = kc.from_folder(
        folder.images,
        folder.annotations,
        labels="folder",
        without_boxes="keep",
    )
    assert data.class_names == ["cats", "dogs"]
    assert [int(e["label"]) for e in data] == [0, 0, 1, 1, 1]
    # The names of the objects are other ones: none counts.
    assert not any(bool(e["boxed"]) for e in data)
    with pytest.raises(ValueError, match="must be one of `class_names`"):
        kc.from_folder(
            folder.images,
            folder.annotations,
            class_names=["cat", "dog"],
            labels="folder",
        )


def test_objects_of_other_classes_do_not_count(folder):
    tally = kc.Tally()
    data = kc.from_folder(
        folder.images, folder.annotations, class_names=["dog"], tally=tally
    )
    assert [len(e["boxes"]) for e in data] == [1, 1]
    assert tally.counts()["unknown class"] == 2


def test_pixels_can_be_counted_from_1(folder):
    data = kc.from_folder(folder.images, folder.annotations, first_pixel=1)
    (row, *_) = data
    expected = [2 / 30, 3 / 40, 27 / 30, 36 / 40]
    np.testing.assert_allclose(row["boxes"][0], expected, rtol=1e-6)


def test_workers_share_the_images_of_a_folder(folder):
    parts = [
        [
            e["name"].numpy()
            for e in kc.from_folder(
                folder.images, folder.annotations, input_context=worker(k)
            )
        ]
        for k in (0, 1)
    ]
    assert len(parts[0]) + len(parts[1]) == 3
    assert not set(parts[0]) & set(parts[1])


SIZED = (
    "<annotation><size><height>{}</height><width>9</width></size></annotation>"
)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("no xml", "Pascal VOC files"),
        ("<annotation></annotation>", "Pascal VOC files"),
        (SIZED.format("1e11"), "1 to 2147483647 pixels"),
        (SIZED.format("1e999"), "Pascal VOC files"),
        (SIZED.format("-3"), "1 to 2147483647 pixels"),
    ],
)
def test_files_of_another_form_are_named_or_skipped(folder, text, rule):
    bad = folder.annotations / "cats" / "2.xml"
    bad.write_text(text)
    with pytest.raises(ValueError, match=rule) as raised:
        kc.from_folder(folder.images, folder.annotations)
    assert str(bad) in str(raised.value)
    tally = kc.Tally()
    data = kc.from_folder(
        folder.images, folder.annotations, on_error="skip", tally=tally
    )
    assert len(list(data)) == 2 and tally.counts()["bad boxes"] == 1
    assert tally.names()["bad boxes"] == [str(bad)]
    # A file that cannot be read.
    bad.unlink()
    bad.mkdir()
    with pytest.raises(OSError, match="2.xml"):
        kc.from_folder(folder.images, folder.annotations)
    data = kc.from_folder(folder.images, folder.annotations, on_error="skip")
    assert len(list(data)) == 2


@pytest.mark.parametrize("box", [(36, 3, 4, 27), (50, 3, 60, 9), (4, 3, 4, 9)])
def test_files_with_what_is_no_box_are_named(folder, box):
    bad = folder.annotations / "cats" / "2.xml"
    write_voc(bad, [("cat", box)])
    with pytest.raises(ValueError, match="Boxes must be") as raised:
        kc.from_folder(folder.images, folder.annotations)
    assert str(bad) in str(raised.value)


def test_a_file_without_a_size_is_named(folder):
    bad = folder.annotations / "cats" / "2.xml"
    write_voc(bad, [("cat", BOX)], size=(0, 0))
    with pytest.raises(ValueError, match="must have a height") as raised:
        kc.from_folder(folder.images, folder.annotations)
    assert str(bad) in str(raised.value)


def test_boxes_of_an_image_on_its_side_are_named_or_skipped(folder):
    write_voc(
        folder.annotations / "cats" / "2.xml", [("cat", BOX)], size=SIZE[::-1]
    )
    data = kc.label_by_largest(
        kc.from_folder(folder.images, folder.annotations)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"2\.jpg"):
        list(kc.training_pipeline(data, 8, 1, 2, epochs=1))
    tally = kc.Tally()
    data = kc.from_folder(
        folder.images, folder.annotations, on_error="skip", tally=tally
    )
    assert len(list(data)) == 2 and tally.counts()["bad boxes"] == 1


def test_empty_folders_are_refused(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="`images` must hold images"):
        kc.from_folder(tmp_path / "empty", folder.annotations)
    with pytest.raises(ValueError, match="`annotations` must hold"):
        kc.from_folder(folder.images, tmp_path / "empty")


# What was wrong once.


def bad_file(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_voc(path, [("x", (36, 3, 4, 27))])


def test_an_image_whose_file_is_wrong_is_skipped_and_counted_once(
    picture, tmp_path
):
    names = read("imagenet2012", picture).class_names
    bad_file(tmp_path / "imagenet2012_0.xml")
    write_voc(tmp_path / "imagenet2012_2.xml", [(names[3], BOX)])
    for policy, kept in (("keep", [1, 2]), ("drop", [2])):
        tally = kc.Tally()
        data = read(
            "imagenet2012",
            picture,
            annotations=tmp_path,
            on_error="skip",
            without_boxes=policy,
            tally=tally,
        )
        assert [int(e["label"]) for e in data] == kept
        assert tally.counts()["bad boxes"] == 1
        assert tally.counts()["without boxes"] == 1


def test_rows_kept_without_boxes_have_objectness_1_for_every_class(
    picture, tmp_path
):
    names = read("imagenet2012", picture).class_names
    write_voc(tmp_path / "imagenet2012_0.xml", [(names[0], BOX)])
    data = read(
        "imagenet2012", picture, annotations=tmp_path, without_boxes="keep"
    )
    (one,) = kc.training_pipeline(
        data, 8, 3, 1000, targets="pairs", classes=(0, 5), epochs=1
    )
    pairs = {int(label): float(share) for label, share in one[1]}
    assert pairs[1] == pairs[2] == 1.0 and 0 < pairs[0] <= 1
    for row in data.skip(1):
        crop = kc.random_resized_crop(row, 8, seed=(0, 1), classes=(0, 5))
        assert crop["objectness"] == 1


def test_names_of_files_must_tell_images_apart(picture, tmp_path):
    names = read("imagenet2012", picture).class_names
    for part in ("a", "b"):
        write_voc(tmp_path / part / "imagenet2012_0.xml", [(names[0], BOX)])
    with pytest.raises(ValueError, match="one file for each name"):
        read("imagenet2012", picture, annotations=tmp_path)


def test_objects_that_no_class_is_named_after_are_refused(picture, tmp_path):
    write_voc(tmp_path / "imagenet2012_0.xml", [("tench", BOX)])
    with pytest.raises(ValueError, match="names of classes.*tench"):
        read("imagenet2012", picture, annotations=tmp_path)


def test_parts_and_names_that_are_none_are_refused(folder, picture):
    with pytest.raises(ValueError, match="must be for parts of.*lable"):
        read("voc/2012", picture, features={"lable": "objects/pose"})
    with pytest.raises(TypeError, match="`class_names` must be several"):
        kc.from_folder(folder.images, folder.annotations, class_names="cat")
    with pytest.raises(TypeError, match="`split` must be one text"):
        kc.from_tfds("voc/2012", ["train"])


def test_a_box_of_zeros_is_no_box(picture):
    def one(builder, split, **_):
        spec = builder.info.features.get_tensor_spec()
        rows = []
        for box in (np.zeros(4), np.array([0.1, 0.2, 0.6, 0.9])):
            rows.append(
                {
                    "image": picture,
                    "label": 1,
                    "species": 0,
                    "file_name": "x",
                    "head_bbox": box.astype("float32"),
                    "segmentation_mask": np.full((*SIZE, 1), 2, "uint8"),
                }
            )
        rows[1]["segmentation_mask"][:5, :8] = 1
        return tf.data.Dataset.from_generator(
            lambda: rows, output_signature=spec
        )

    with tfds.testing.mock_data(as_dataset_fn=one):
        tally = kc.Tally()
        data = kc.from_tfds("oxford_iiit_pet", "test", tally=tally)
        assert len(list(data)) == 1 and tally.counts()["without boxes"] == 1
        # 1 is the animal, 2 what is behind it, 3 its outline.
        data = kc.from_tfds(
            "oxford_iiit_pet", "test", objects="mask", mask_classes=(1, 3)
        )
        (row,) = data
    share = kc.center_crop(row, SIZE, 1.0)["objectness"]
    assert abs(float(share) - 40 / 1200) < 1e-6
    (bare,) = kc.context_examples(data, fill=(0.0, 0.0, 0.0))
    got = kc.center_crop(bare, SIZE, 1.0)["image"].numpy()
    expected = picture.astype("float32")
    expected[:5, :8] = 0
    np.testing.assert_allclose(got, expected, atol=1e-3)


def test_records_that_cannot_be_parsed_are_skipped_and_counted(
    tmp_path, picture
):
    good = record(jpeg(picture), 1, [[0.0, 0.0, 0.5, 0.5]])
    uneven = tf.train.Example.FromString(good)
    feature = uneven.features.feature
    feature["image/object/bbox/xmax"].float_list.value.append(0.9)
    nothing = tf.train.Example.FromString(good)
    del nothing.features.feature["image/class/label"]
    rows = [
        good,
        uneven.SerializeToString(),
        nothing.SerializeToString(),
        b"no example",
        good,
    ]
    write_records(tmp_path / "a", rows)
    tally = kc.Tally()
    data = kc.from_tfrecords(tmp_path / "a", on_error="skip", tally=tally)
    assert [int(row["label"]) for row in data] == [1, 1]
    assert tally.counts()["bad record"] == 3
    assert sum(tally.counts().values()) == 3
    assert sorted(tally.names()["bad record"]) == [
        f"{tmp_path / 'a'}:{k}" for k in (1, 2, 3)
    ]
    tally.reset()
    assert not any(tally.names().values())
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(kc.from_tfrecords(tmp_path / "a"))


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_files_broken_in_their_middle_are_left_out(tmp_path, picture, kind):
    encode = {"jpeg": jpeg, "png": lambda x: tf.io.encode_png(x).numpy()}[kind]
    data = encode(picture)
    middle = len(data) // 2
    broken = data[:20] + bytes(len(data) - 40) + data[-20:]
    assert len(broken) == len(data) and middle > 40
    box = [[0.0, 0.0, 0.5, 0.5]]
    rows = [record(data, 0, box), record(broken, 1, box), record(data, 2, box)]
    write_records(tmp_path / "a", rows)
    tally = kc.Tally()
    read_back = kc.from_tfrecords(tmp_path / "a", on_error="skip", tally=tally)
    assert [int(row["label"]) for row in read_back] == [0, 2]
    assert tally.counts()["unreadable image"] == 1
    assert tally.names()["unreadable image"] == ["image 1"]
    # Training stops, and says what finds it.
    unnamed = kc.training_pipeline(kc.from_tfrecords(tmp_path / "a"), 8, 3, 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="valid_examples"):
        next(iter(unnamed))
    with pytest.raises(ValueError, match="example='x'"):
        kc.center_crop({"image": broken, "name": "x"}, 8)


def test_masks_of_colours_are_refused_by_name(tmp_path, picture):
    import io

    from PIL import Image

    palette = Image.new("P", SIZE[::-1], 5)
    palette.putpalette([k for k in range(256) for _ in range(3)])
    file = io.BytesIO()
    palette.save(file, "PNG")
    box = [[0.0, 0.0, 0.5, 0.5]]
    row = record(jpeg(picture), 3, box, mask=[file.getvalue()])
    write_records(tmp_path / "a", [row])
    data = kc.from_tfrecords(tmp_path / "a", keys={"mask": "mask"})
    with pytest.raises(tf.errors.InvalidArgumentError, match="image 3"):
        list(data)


def test_images_without_an_object_in_their_mask_are_left_out_or_kept(
    tmp_path, picture
):
    rows = []
    for label, value in enumerate((1, 0, 2)):
        mask = tf.io.encode_png(np.full((*SIZE, 1), value, "uint8")).numpy()
        rows.append(record(jpeg(picture), label, [], mask=[mask]))
    write_records(tmp_path / "a", rows)
    keys = dict.fromkeys(CORNERS) | {"mask": "mask"}
    tally = kc.Tally()
    data = kc.from_tfrecords(tmp_path / "a", keys=keys, tally=tally)
    assert [int(e["label"]) for e in data] == [0, 2]
    assert tally.counts()["without boxes"] == 1
    kept = kc.from_tfrecords(tmp_path / "a", keys=keys, without_boxes="keep")
    shares = [
        float(kc.random_resized_crop(e, 8, seed=(0, 1))["objectness"])
        for e in kept
    ]
    assert shares == [1.0, 1.0, 1.0]
    # But nothing of it can be painted out.
    assert [int(e["label"]) for e in kc.context_examples(kept)] == [0, 2]
    only = kc.from_tfrecords(tmp_path / "a", keys=keys, mask_classes=(2,))
    assert [int(e["label"]) for e in only] == [2]


def test_annotations_in_capital_letters_are_found(folder):
    old = folder.annotations / "dogs" / "1.xml"
    old.rename(old.with_suffix(".XML"))
    data = kc.from_folder(folder.images, folder.annotations)
    assert len(list(data)) == 3


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


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_masks_have_the_values_of_their_files_whatever_the_bits(
    tmp_path, picture, bits
):
    values = np.zeros(SIZE, "int64")
    values[:5, :8] = 1
    mask = [grey_png(values, bits)]
    write_records(tmp_path / "a", [record(jpeg(picture), 1, [], mask=mask)])
    keys = {"mask": "mask", **dict.fromkeys(["ymin", "xmin", "ymax", "xmax"])}
    read = kc.from_tfrecords(tmp_path / "a", keys=keys, mask_classes=(1,))
    if bits == 16:
        with pytest.raises(tf.errors.InvalidArgumentError, match="8 bits"):
            list(read)
        return
    (row,) = read
    np.testing.assert_array_equal(row["mask"][..., 0], values)
    (row,) = kc.from_tfrecords(tmp_path / "a", keys=keys)
    np.testing.assert_array_equal(row["mask"][..., 0], values)


def test_images_may_share_a_file_and_others_have_none(folder):
    cats = folder.images / "cats"
    (cats / "2.png").write_bytes((folder.images / "dogs/bare.png").read_bytes())
    data = kc.from_folder(
        folder.images, folder.annotations, without_boxes="keep"
    )
    found = {
        row["name"].numpy().decode(): (bool(row["boxed"]), len(row["boxes"]))
        for row in data
    }
    assert found.pop(str(cats / "2.png")) == (True, 2)
    assert found.pop(str(cats / "2.jpg")) == (True, 2)
    assert found.pop(str(folder.images / "dogs" / "bare.png")) == (False, 1)
    assert sorted(found.values()) == [(False, 1), (True, 1), (True, 1)]
    with pytest.raises(ValueError, match="`class_names` must differ"):
        kc.from_folder(
            folder.images, folder.annotations, class_names=["dog", "dog"]
        )


def test_errors_of_where_examples_come_from_are_not_skipped(tmp_path, picture):
    data = jpeg(picture)
    write_records(tmp_path / "a", [record(data, k, []) for k in range(9)])
    damaged = bytearray((tmp_path / "a").read_bytes())
    damaged[len(damaged) // 2] ^= 255
    (tmp_path / "a").write_bytes(damaged)
    keys = dict.fromkeys(["ymin", "xmin", "ymax", "xmax"])
    with pytest.raises(tf.errors.DataLossError):
        list(kc.from_tfrecords(tmp_path / "a", keys=keys, on_error="skip"))

    rows = tf.data.Dataset.from_tensor_slices({"image": [data] * 9})
    short = rows.apply(tf.data.experimental.assert_cardinality(10))
    with pytest.raises(tf.errors.FailedPreconditionError):
        list(kc.valid_examples(short))

    def wrong(number):
        if number == 5:
            raise RuntimeError("of the user")
        return number

    failing = rows.enumerate().map(
        lambda place, row: {
            **row,
            "number": tf.numpy_function(wrong, [place], tf.int64),
        }
    )
    with pytest.raises(tf.errors.UnknownError, match="of the user"):
        list(kc.valid_examples(failing))


def test_good_examples_that_were_read_ahead_are_not_counted(picture):
    rows = {"image": [jpeg(picture)] * 64, "name": [str(k) for k in range(64)]}
    tally = kc.Tally()
    good = kc.valid_examples(
        tf.data.Dataset.from_tensor_slices(rows), tally=tally
    )
    assert len(list(good.prefetch(4).take(3))) == 3
    assert not any(tally.counts().values())
    assert not any(tally.names().values())

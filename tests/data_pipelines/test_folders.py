"""Examples from folders of images with Pascal VOC files."""

import types

import numpy as np
import pytest
import tensorflow as tf
from examples_with_boxes import jpeg, write_voc

import keras_calib as kc

SIZE = (30, 40)
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


def read(folder, **options):
    return kc.data.from_folder(folder.images, folder.annotations, **options)


def labels_of(data):
    return [int(example["label"]) for example in data]


def test_a_folder_is_read_with_its_boxes(folder):
    tally = kc.data.Tally()
    data = read(folder, tally=tally)
    assert data.class_names == ["cat", "dog"]
    rows = list(data)
    assert len(rows) == 3 and tally.counts()["without boxes"] == 2
    np.testing.assert_allclose(rows[0]["boxes"], [SHARES], rtol=1e-6)
    assert rows[1]["box_labels"].numpy().tolist() == [0, 1]
    assert labels_of(kc.data.object_examples(data)) == [0, 0, 1, 1]
    assert labels_of(kc.data.label_by_largest(data)) == [0, 0, 1]


def test_folders_can_be_classes(folder):
    data = read(folder, labels="folder", without_boxes="keep")
    assert data.class_names == ["cats", "dogs"]
    assert labels_of(data) == [0, 0, 1, 1, 1]
    # The names of the objects are other ones: none counts.
    assert not any(bool(e["boxed"]) for e in data)
    with pytest.raises(ValueError, match="must be one of `class_names`"):
        read(folder, class_names=["cat", "dog"], labels="folder")


def test_objects_of_other_classes_do_not_count(folder):
    tally = kc.data.Tally()
    data = read(folder, class_names=["dog"], tally=tally)
    assert [len(e["boxes"]) for e in data] == [1, 1]
    assert tally.counts()["unknown class"] == 2


def test_pixels_can_be_counted_from_1(folder):
    (row, *_) = read(folder, first_pixel=1)
    expected = [2 / 30, 3 / 40, 27 / 30, 36 / 40]
    np.testing.assert_allclose(row["boxes"][0], expected, rtol=1e-6)


def test_workers_share_the_images_of_a_folder(folder):
    contexts = [tf.distribute.InputContext(2, k, 2) for k in (0, 1)]
    parts = [
        {e["name"].numpy() for e in read(folder, input_context=one)}
        for one in contexts
    ]
    assert len(parts[0]) + len(parts[1]) == len(parts[0] | parts[1]) == 3


def test_images_may_share_a_file_and_others_have_none(folder):
    cats = folder.images / "cats"
    bare = folder.images / "dogs" / "bare.png"
    (cats / "2.png").write_bytes(bare.read_bytes())
    old = folder.annotations / "dogs" / "1.xml"
    # Suffixes may be in capital letters.
    old.rename(old.with_suffix(".XML"))
    found = {
        row["name"].numpy().decode(): (bool(row["boxed"]), len(row["boxes"]))
        for row in read(folder, without_boxes="keep")
    }
    assert found.pop(str(cats / "2.png")) == (True, 2)
    assert found.pop(str(cats / "2.jpg")) == (True, 2)
    assert found.pop(str(bare)) == (False, 0)
    assert sorted(found.values()) == [(False, 0), (True, 1), (True, 1)]


# Files that are wrong.

SIZED = (
    "<annotation><size><height>{}</height><width>9</width></size></annotation>"
)


def test_files_of_another_form_are_named(folder):
    bad = folder.annotations / "cats" / "2.xml"
    for text, rule in (
        ("no xml", "Pascal VOC files"),
        ("<annotation></annotation>", "Pascal VOC files"),
        (SIZED.format("1e11"), "100000000000 x 9 pixels"),
        (SIZED.format("1e999"), "Pascal VOC files"),
        (SIZED.format("-3"), "Pascal VOC files"),
        (SIZED.format("0"), "Pascal VOC files"),
    ):
        bad.write_text(text)
        with pytest.raises(ValueError, match=rule) as raised:
            read(folder)
        assert str(bad) in str(raised.value)
    for name, box, rule in (
        ("cat", (36, 3, 4, 27), "Boxes must be"),
        ("cat", (50, 3, 60, 9), "Boxes must be"),
        ("cat", (4, 3, 4, 9), "Boxes must be"),
        (" ", BOX, "without <name>"),
    ):
        write_voc(bad, [(name, box)])
        with pytest.raises(ValueError, match=rule) as raised:
            read(folder)
        assert str(bad) in str(raised.value)


def test_files_that_are_wrong_are_skipped_and_counted(folder):
    bad = folder.annotations / "cats" / "2.xml"
    bad.write_text("no xml")
    tally = kc.data.Tally()
    data = read(folder, on_error="skip", tally=tally)
    assert len(list(data)) == 2 and tally.counts()["bad boxes"] == 1
    assert tally.names()["bad boxes"] == [str(bad)]
    # A file that cannot be read.
    bad.unlink()
    bad.mkdir()
    with pytest.raises(OSError, match="2.xml"):
        read(folder)
    assert len(list(read(folder, on_error="skip"))) == 2


def test_boxes_of_an_image_on_its_side_are_named_or_skipped(folder):
    on_its_side = folder.annotations / "cats" / "2.xml"
    write_voc(on_its_side, [("cat", BOX)], size=SIZE[::-1])
    data = kc.data.label_by_largest(read(folder))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"2\.jpg"):
        list(kc.data.validation_pipeline(data, 8, 1, 2))
    tally = kc.data.Tally()
    data = read(folder, on_error="skip", tally=tally)
    assert len(list(data)) == 2 and tally.counts()["bad boxes"] == 1


def test_folders_and_names_that_are_none_are_refused(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match="`images` must be a folder with images"
    ):
        kc.data.from_folder(tmp_path / "empty", folder.annotations)
    with pytest.raises(ValueError, match="`annotations` must hold"):
        kc.data.from_folder(folder.images, tmp_path / "empty")
    with pytest.raises(ValueError, match="`class_names` must not repeat"):
        read(folder, class_names=["dog", "dog"])
    with pytest.raises(TypeError, match="`class_names` must be several"):
        read(folder, class_names="cat")
    for path in folder.annotations.rglob("*.xml"):
        path.write_text("no xml")
    (folder.images / "dogs" / "bare.png").unlink()
    with pytest.raises(
        ValueError, match="must hold at least one valid .xml file"
    ):
        read(folder, on_error="skip")

"""Examples from TFDS, with boxes of its features or of Pascal VOC files."""

import numpy as np
import pytest
import tensorflow as tf
from examples_with_boxes import coherent, write_voc

import keras_calib as kc

SIZE = (30, 40)
BOX = (4, 3, 36, 27)
SHARES = [3 / 30, 4 / 40, 27 / 30, 36 / 40]
# Data sets, and whether their boxes have labels.
OBJECTS = {
    "voc/2012": True,
    "coco/2017": True,
    "stanford_dogs": False,
    "open_images_v4": True,
}


def read(name, picture, **options):
    with mocked(coherent(picture)):
        return kc.data.from_tfds(name, "train", **options)


def mocked(as_dataset):
    # Not every process that collects these tests runs one of them.
    import tensorflow_datasets as tfds

    return tfds.testing.mock_data(as_dataset_fn=as_dataset)


@pytest.mark.parametrize("name", OBJECTS)
def test_boxes_and_their_labels_are_found_by_type(name, picture):
    data = read(name, picture)
    parts = set(data.element_spec)
    assert {"image", "boxes", "name"} <= parts
    assert ("box_labels" in parts) == OBJECTS[name]
    rows = list(data)
    # The row without boxes is left out.
    assert [len(row["boxes"]) for row in rows] == [2, 1]
    assert rows[1]["name"] == f"{name.split('/')[0]}_2.jpg".encode()
    if OBJECTS[name]:
        assert rows[1]["box_labels"].numpy().tolist() == [2]
    assert len(data.class_names) > 2


def test_one_box_or_the_mask_is_taken(picture):
    for name in ("caltech_birds2011", "oxford_iiit_pet"):
        (row, *_) = read(name, picture)
        np.testing.assert_allclose(row["boxes"], [[0.1, 0.2, 0.6, 0.9]])
        assert row["label"] == 0 and "mask" not in row
        (row, *_) = read(name, picture, objects="mask")
        assert row["mask"].shape == (*SIZE, 1) and "boxes" not in row
        both = read(name, picture, objects="both")
        assert set(both.element_spec) >= {"boxes", "mask"}


def test_examples_of_tfds_can_be_trained_on(picture):
    data = kc.data.object_examples(read("voc/2012", picture))
    classes = len(data.class_names)
    batches = kc.data.training_pipeline(data, 16, 2, classes, epochs=1)
    ((images, targets),) = batches.take(1)
    assert images.shape == (2, 16, 16, 3)
    np.testing.assert_allclose(targets.numpy().sum(-1), 1, rtol=1e-5)


def test_the_feature_named_label_is_taken_of_several(picture):
    for name, features, classes in (
        ("oxford_iiit_pet", {}, 37),
        ("oxford_iiit_pet", {"label": "species"}, 2),
        ("voc/2012", {"box_labels": "objects/pose"}, 5),
    ):
        data = read(name, picture, features=features)
        assert len(data.class_names) == classes


def test_a_feature_of_another_name_or_type_is_refused(picture):
    for options, rule in (
        ({"features": {"boxes": "image"}}, "`features` must name"),
        ({"features": {"boxes": "objects/box"}}, "`features` must name"),
        ({"objects": "mask"}, "`features` must name"),
        ({"features": {"lable": "x"}}, "must have keys among.*lable"),
        ({"objects": "dots"}, "`objects` must be one of"),
        ({"without_boxes": "maybe"}, "`without_boxes` must be one of"),
    ):
        with pytest.raises(ValueError, match=rule):
            read("voc/2012", picture, **options)
    with pytest.raises(TypeError, match="`split` must be one text"):
        kc.data.from_tfds("voc/2012", ["train"])


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

    with mocked(one):
        tally = kc.data.Tally()
        data = kc.data.from_tfds("oxford_iiit_pet", "test", tally=tally)
        assert len(list(data)) == 1 and tally.counts()["without boxes"] == 1
        # 1 is the animal, 2 what is behind it, 3 its outline.
        data = kc.data.from_tfds(
            "oxford_iiit_pet", "test", objects="mask", mask_classes=(1, 3)
        )
        (row,) = data
    share = kc.data.center_crop(row, SIZE, 1.0)["objectness"]
    assert abs(float(share) - 40 / 1200) < 1e-6
    (bare,) = kc.data.context_examples(data, fill=(0.0, 0.0, 0.0))
    got = kc.data.center_crop(bare, SIZE, 1.0)["image"].numpy()
    expected = picture.astype("float32")
    expected[:5, :8] = 0
    np.testing.assert_allclose(got, expected, atol=1e-3)


# Boxes from files.


@pytest.fixture(scope="module")
def names(picture):
    data = read("imagenet2012", picture)
    assert set(data.element_spec) == {"image", "label", "name"}
    return data.class_names


def imagenet(picture, folder, **options):
    return read("imagenet2012", picture, annotations=folder, **options)


def test_imagenet_gets_its_boxes_from_files(names, picture, tmp_path):
    write_voc(tmp_path / "n1" / "imagenet2012_0.xml", [(names[7], BOX)])
    write_voc(
        tmp_path / "n2" / "imagenet2012_2.xml",
        [(names[3], BOX), ("none of them", BOX)],
    )
    tally = kc.data.Tally()
    rows = list(imagenet(picture, tmp_path, tally=tally))
    assert [int(row["label"]) for row in rows] == [0, 2]
    assert [row["box_labels"].numpy().tolist() for row in rows] == [[7], [3]]
    np.testing.assert_allclose(rows[0]["boxes"], [SHARES], rtol=1e-6)
    counts = tally.counts()
    assert counts["without boxes"] == 1 and counts["unknown class"] == 1


def test_an_image_whose_file_is_wrong_is_skipped_and_counted_once(
    names, picture, tmp_path
):
    write_voc(tmp_path / "imagenet2012_0.xml", [("x", (36, 3, 4, 27))])
    write_voc(tmp_path / "imagenet2012_2.xml", [(names[3], BOX)])
    for policy, kept in (("keep", [1, 2]), ("drop", [2])):
        tally = kc.data.Tally()
        options = {"without_boxes": policy, "tally": tally}
        data = imagenet(picture, tmp_path, on_error="skip", **options)
        assert [int(e["label"]) for e in data] == kept
        assert tally.counts()["bad boxes"] == 1
        assert tally.counts()["without boxes"] == 1


def test_rows_kept_without_boxes_have_objectness_1_for_every_class(
    names, picture, tmp_path
):
    write_voc(tmp_path / "imagenet2012_0.xml", [(names[0], BOX)])
    data = imagenet(picture, tmp_path, without_boxes="keep")
    options = {"labels": "pairs", "classes": (0, 5)}
    ((_, y),) = kc.data.validation_pipeline(data, 8, 3, 1000, **options)
    pairs = {int(label): float(share) for label, share in y}
    assert pairs[1] == pairs[2] == 1.0 and 0 < pairs[0] <= 1
    for row in data.skip(1):
        assert not row["boxed"] and not len(row["boxes"])
        crop = kc.data.random_resized_crop(row, 8, seed=(0, 1), classes=(0, 5))
        assert crop["objectness"] == 1


def test_files_that_name_no_image_or_class_are_refused(
    names, picture, tmp_path
):
    write_voc(tmp_path / "imagenet2012_0.xml", [("tench", BOX)])
    with pytest.raises(ValueError, match="among `class_names`.*tench"):
        imagenet(picture, tmp_path)
    for part in ("a", "b"):
        write_voc(tmp_path / part / "imagenet2012_0.xml", [(names[0], BOX)])
    with pytest.raises(ValueError, match="one .xml file for each name"):
        imagenet(picture, tmp_path)


# Real data.


@pytest.mark.data
@pytest.mark.slow
def test_real_boxes_are_read_with_their_images(data_dir):
    folder = data_dir / "tfds"
    tally = kc.data.Tally()
    data = kc.data.from_tfds(
        "tiny_imagenet_boxes", "train", data_dir=str(folder), tally=tally
    )
    assert data.element_spec["image"].dtype == "string"
    summary = kc.data.describe(data)
    assert summary.num_examples == summary.num_boxes == 6400
    assert set(summary.counts.values()) == {400}
    assert tally.counts()["without boxes"] == 0
    # A plain loop over what TFDS reads.
    import tensorflow_datasets as tfds

    raw = tfds.builder("tiny_imagenet_boxes", data_dir=str(folder))
    areas = [
        np.prod(row["objects"]["bbox"][0, 2:] - row["objects"]["bbox"][0, :2])
        for row in tfds.as_numpy(raw.as_dataset(split="train"))
    ]
    assert abs(summary.mean_objectness - np.mean(areas)) < 1e-6


@pytest.mark.data
@pytest.mark.slow
def test_segmentation_masks_are_objects_by_class(data_dir):
    data = kc.data.from_tfds(
        "camvid", "test", data_dir=str(data_dir / "tfds"), objects="mask"
    )
    summary = kc.data.describe(data, classes=(8, 9, 10))
    import tensorflow_datasets as tfds

    raw = tfds.builder("camvid", data_dir=str(data_dir / "tfds"))
    shares = [
        np.isin(row["segmentation_mask"], (8, 9, 10)).mean()
        for row in tfds.as_numpy(raw.as_dataset(split="test"))
    ]
    shares = np.array([share for share in shares if share > 0])
    assert abs(summary.mean_objectness - shares.mean()) < 1e-6
    assert summary.num_examples == 233

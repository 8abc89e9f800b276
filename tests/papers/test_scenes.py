"""Scenes: masks go the way of their images."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import app
from data import scenes as scene_sets
from recipe_cases import (
    NUM_IMAGES,
    marked_scenes,
    write_mask,
    write_segmentation,
)
from results import runs as run_results
from runs import scenes as scene_tasks


@pytest.mark.parametrize("augment", ["crop", "crop_flip", "resized_crop"])
def test_masks_go_the_way_of_their_images(augment, parse):
    setup, *_ = parse(
        "camvid_deeplabv3plus_small",
        "cross_entropy",
        f"--augment={augment}",
        "--image_size=50,50",
        "--batch_size=5",
        "--jitter=0",
    )
    scenes = marked_scenes()
    batches = scene_sets.training_batches(scenes, setup, seed=0)
    for images, masks in batches.take(3):
        assert images.shape == (5, 50, 50, 3) and masks.shape == (5, 50, 50)
        images, masks = images.numpy(), masks.numpy()
        void = masks == 255
        # Images of 40 x 60 are filled up to the height of a crop.
        assert (augment == "resized_crop") != bool(void.any())
        np.testing.assert_array_equal(images[void], 127.5)
        sure = ~void & ((images[..., 0] < 1) | (images[..., 0] > 99))
        assert sure.mean() > 0.6
        expected = images[sure][:, 0] > 50
        # Of a pixel on an edge, mask and image may be rounded apart.
        assert np.mean(masks[sure] == expected) > 0.99


def test_resumed_scenes_are_those_of_the_run_without_a_break(parse):
    setup, *_ = parse(
        "camvid_deeplabv3plus_small", "cross_entropy", "--image_size=20,20"
    )
    setup = setup._replace(batch_size=2)
    scenes = marked_scenes()
    training_batches = scene_sets.training_batches

    def shown(first_epoch, skip, take):
        data = training_batches(scenes, setup, seed=3, first_epoch=first_epoch)
        return [x.numpy() for x, _ in data.skip(skip).take(take)]

    # Two steps an epoch: an image is left over, and begins the next one.
    whole = shown(0, 6, 2)
    np.testing.assert_array_equal(shown(3, 0, 2), whole)
    assert not np.array_equal(shown(2, 0, 2), whole)


def test_masks_of_sbd_are_taken_where_they_lie_beside_those_of_voc(
    parse, picture, tmp_path
):
    write_segmentation(tmp_path, picture)
    beside = tmp_path / "SegmentationClassAug"
    beside.mkdir()
    for place in range(NUM_IMAGES):
        mask = np.full((60, 120), 20, "uint8")
        write_mask(mask, beside / f"image_{place}.png")

    def first_classes(name):
        setup, _, options = parse(name)
        options = options._replace(data_dir=str(tmp_path))
        scenes = scene_sets.load_scenes(setup, options)
        parts = scenes.train, scenes.test
        return [
            np.unique(next(iter(part.as_numpy_iterator()))["mask"]).tolist()
            for part in parts
        ]

    assert first_classes("voc_deeplabv3_acls") == [[20], [0, 255]]
    assert first_classes("voc_deeplabv3_mbls") == [[0, 255], [0, 255]]


def test_images_of_cityscapes_are_drawn_into_validation_and_test(parse, mocked):
    setup, _, options = parse(
        "cityscapes_deeplabv3plus_resnet101", "cross_entropy", "--validation=2"
    )
    assert setup.random_split and setup.validation_of == "test"
    scenes = scene_sets.load_scenes(setup, options)
    parts = (scenes.train, scenes.validation, scenes.test)
    assert [int(part.cardinality()) for part in parts] == [8, 2, 6]
    assert len(list(scenes.test)) == 6
    numbers = tf.data.Dataset.range(500)

    def drawn(share, seed=0):
        parts = scene_sets._drawn(numbers, share, seed)
        return [[int(n) for n in part] for part in parts]

    test, held = drawn(100)
    assert sorted(test + held) == list(range(500)) and len(held) == 100
    assert test == sorted(test) and held == sorted(held)
    assert [test, held] == drawn(0.2) != drawn(100, seed=1)
    # Neither the first nor every n-th.
    assert 30 < sum(n >= 250 for n in held) < 70
    with pytest.raises(app.UsageError, match="`--validation` must hold"):
        scene_sets.load_scenes(setup._replace(validation=0.0), options)


def test_logits_before_the_interpolation_are_kept_with_labels_of_their_place(
    parse,
):
    scenes = marked_scenes()
    recipe = parse(
        "camvid_deeplabv3plus_small", "cross_entropy", "--before_interpolation"
    )
    recipe = (recipe[0]._replace(ignore_class=255), *recipe[1:])
    task = scene_tasks.scene_task(scenes, *recipe)
    model = keras.Model(*task.network())
    coarse = task.predictor(model)
    rows = {}
    for name, predictor in (("whole", model), ("coarse", coarse)):
        meter = task.meter()
        labels, logits = run_results.predict(
            predictor, task.test, ignore_class=255, meter=meter
        )
        rows[name] = meter.row()
    assert rows["coarse"] == pytest.approx(rows["whole"], rel=1e-4)
    # Of images of 40 x 60 pixels, in steps of four.
    masks = np.array([e["mask"] for e in scenes.test.as_numpy_iterator()])
    np.testing.assert_array_equal(labels, masks[:, 2::4, 2::4].ravel())
    images = np.concatenate([np.asarray(x) for x, _ in task.test])
    np.testing.assert_allclose(
        logits.reshape(5, 10, 15, 2), coarse(images), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "flag",
    [{"validation": 0.1}, {"stratified": True}, {"random_split": True}],
)
def test_the_lists_of_voc_are_not_split(flag, parse):
    setup, _, options = parse("voc_deeplabv3_mbls")
    with pytest.raises(app.UsageError, match="`--validation` must be 0"):
        scene_sets.load_scenes(setup._replace(**flag), options)


@pytest.mark.parametrize("name", ["crl", "cutmix"])
def test_methods_of_whole_images_are_refused_for_pixels(name, parse):
    recipe = parse("camvid_deeplabv3plus_small", name)
    with pytest.raises(app.UsageError, match="`--method` must not mix"):
        scene_tasks.scene_task(marked_scenes(), *recipe)


def test_ids_of_cityscapes_become_those_of_its_classes():
    mask = np.array([[[7], [33], [0], [11]]], "uint8")
    example = scene_sets._example(
        {
            "image_id": "a",
            "image_left": np.zeros((1, 4, 3), "uint8"),
            "segmentation_label": mask,
        },
        scene_sets._CITYSCAPES_IDS,
        255,
    )
    assert example["mask"].numpy().ravel().tolist() == [0, 18, 255, 2]
    assert example["image"].shape == (1, 4, 3)

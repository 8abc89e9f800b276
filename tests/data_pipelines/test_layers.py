"""Keras layers and colours, for images with objects in them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_calib as kc

LAYERS = keras.layers


def one_object(size=(20, 20), **more):
    """A black image whose left half is an object."""
    image = np.zeros((*size, 3), "uint8")
    return {"image": image, "boxes": [[0.0, 0.0, 1.0, 0.5]], **more}


def pairs_of(examples, layer, convert=False, **options):
    """Labels of a pipeline whose examples go through a layer."""

    def augment(example):
        return kc.data.apply_layers(example, layer)

    if not convert:
        # AutoGraph takes seconds to convert Keras, which does not need it.
        augment = tf.autograph.experimental.do_not_convert(augment)
    whole = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "labels": "pairs"}
    ((_, y),) = kc.data.training_pipeline(
        examples, 20, 1, 2, augment=augment, epochs=1, **whole, **options
    )
    return y


def lit(example):
    return example["image"].numpy().mean(-1) > 127


def test_every_layer_that_moves_objects_moves_their_mask_with_them():
    white = np.zeros((80, 100, 3), "uint8")
    white[20:50, 30:70] = 255
    box = np.array([[20 / 80, 0.3, 50 / 80, 0.7]], "float32")
    crop = kc.data.center_crop({"image": white, "boxes": box}, (80, 100), 1.0)
    for fill, kept in ((0.0, slice(1)), (100.0, slice(None))):
        filled = {"fill_value": fill, "seed": 1}
        constant = {"fill_mode": "constant", **filled}
        moving = [
            # Keras distorts masks otherwise than their images.
            LAYERS.RandomElasticTransform((0.99, 1.0), (0.4, 1.0), **constant),
            LAYERS.RandomPerspective(1.0, 0.5, **filled),
            LAYERS.RandomRotation(0.3, **constant),
            LAYERS.RandomShear(0.5, 0.5, **constant),
            LAYERS.RandomTranslation(0.3, 0.3, **constant),
            LAYERS.RandomZoom((0.1, 0.5), **constant),
        ]
        moving.append(LAYERS.Pipeline([moving[2], moving[0]]))
        # Elastic distortion tells the fill from the picture by its value.
        for layer in moving[kept]:
            moved = kc.data.apply_layers(crop, layer)
            mask = moved["mask"].numpy()[..., 0] == 1
            # A quarter of the outline: edges are blurred twice in a row.
            assert (lit(moved) != mask).sum() <= 35, layer.name
            assert moved["objectness"].numpy() == np.float32(mask.mean())
            assert (mask[20:50, 30:70] == 0).any(), layer.name
            assert "boxes" not in moved


def test_layers_of_colour_leave_objectness_as_it_is():
    crop = kc.data.random_resized_crop(one_object(), 32, seed=(0, 1))
    layer = LAYERS.RandomBrightness((0.2, 0.5), seed=3)
    coloured = kc.data.apply_layers(crop, layer, moves=False)
    assert coloured["objectness"] == crop["objectness"]
    assert "boxes" in coloured
    assert np.abs(coloured["image"] - crop["image"]).max() > 1


def test_layers_move_those_objects_that_count():
    boxes = [[0.0, 0.0, 1.0, 0.5], [0.0, 0.5, 1.0, 1.0]]
    one = one_object(boxes=boxes, box_labels=np.array([0, 1]))
    still = LAYERS.RandomRotation(0.0)
    crop = kc.data.center_crop(one, 16, 1.0)
    assert kc.data.apply_layers(crop, still)["objectness"] == 1
    assert kc.data.apply_layers(crop, still, classes=(0,))["objectness"] == 0.5
    data = tf.data.Dataset.from_tensors({**one, "label": 0})
    y = pairs_of(data, still, classes=(0,))
    np.testing.assert_allclose(y, [[0, 0.5]], atol=1e-6)


@pytest.mark.slow
def test_layers_need_no_decorator_in_a_pipeline():
    data = tf.data.Dataset.from_tensors(one_object(label=0))
    y = pairs_of(data, LAYERS.RandomRotation(0.0), convert=True)
    np.testing.assert_allclose(y, [[0, 0.5]], atol=1e-6)


def test_classes_of_masks_are_found_again_after_layers():
    mask = np.ones((20, 20, 1), "uint8")
    mask[10:] = 2
    one = {"image": np.zeros((20, 20, 3), "uint8"), "mask": mask, "label": 0}
    crop = kc.data.center_crop(one, 20, 1.0)
    still = LAYERS.Pipeline(
        [LAYERS.RandomRotation(0.0), LAYERS.RandomGrayscale(1.0)]
    )
    once = kc.data.apply_layers(crop, still, classes=(2,))
    again = kc.data.apply_layers(once, still, classes=(2,))
    assert once["objectness"] == again["objectness"] == 0.5
    own = kc.data.objectness_from_mask(again["mask"], classes=(2,))
    assert own == 0.5 and again["mask"].dtype == "uint8"
    examples = tf.data.Dataset.from_tensors(one)
    y = pairs_of(examples, still, classes=(2,))
    np.testing.assert_array_equal(y, [[0, 0.5]])
    with pytest.raises(ValueError, match="must be above 0"):
        kc.data.apply_layers(crop, still, classes=(0, 2))
    with pytest.raises(ValueError, match="must be above 0"):
        kc.data.training_pipeline(
            examples, 20, 1, 2, classes=(0,), augment=lambda e: e, epochs=1
        )
    # Boxes become a mask of their classes.
    crop = kc.data.center_crop(one_object(box_labels=np.array([700])), 20, 1.0)
    for _ in range(2):
        crop = kc.data.apply_layers(crop, still, classes=(5, 700))
        assert crop["objectness"] == 0.5


def test_objects_of_rows_without_boxes_stay_1():
    crop = kc.data.center_crop(one_object(boxed=False), 20, 1.0)
    moved = kc.data.apply_layers(crop, LAYERS.RandomRotation(0.0))
    assert crop["objectness"] == moved["objectness"] == 1


def test_layers_that_take_no_masks_are_named():
    crop = kc.data.center_crop(one_object(), 20, 1.0)
    scaling = LAYERS.Rescaling(1 / 255, offset=1.0)
    with pytest.raises(ValueError, match="Rescaling"):
        kc.data.apply_layers(crop, scaling)
    scaled = kc.data.apply_layers(crop, scaling, moves=False)
    assert np.max(scaled["image"]) == 1 and scaled["objectness"] == 0.5


# Colours.


def test_each_image_gets_its_own_brightness():
    images = np.full((50, 4, 4, 3), 100, "float32")
    got = kc.data.color_jitter(images, (0, 1), contrast=0, saturation=0).numpy()
    factors = got[:, 0, 0, 0] / 100
    assert np.ptp(got, axis=(1, 2, 3)).max() < 1e-4
    assert len(np.unique(factors)) == 50
    assert 0.6 <= factors.min() < 0.75 and 1.25 < factors.max() <= 1.4


def test_contrast_and_saturation_blend_with_grey():
    rng = np.random.default_rng(0)
    image = rng.uniform(60, 180, (6, 6, 3)).astype("float32")
    none = {"brightness": 0, "contrast": 0, "saturation": 0}
    still = kc.data.color_jitter(image[None], (0, 1), **none)
    np.testing.assert_allclose(still[0], image, atol=1e-3)
    grey = image @ [0.299, 0.587, 0.114]
    got = kc.data.color_jitter(
        image, (0, 2), brightness=0, saturation=0
    ).numpy()
    slope = (got - grey.mean()) / (image - grey.mean())
    np.testing.assert_allclose(slope, np.median(slope), rtol=1e-3)
    assert abs(np.median(slope) - 1) > 0.01
    got = kc.data.color_jitter(image, (0, 2), brightness=0, contrast=0).numpy()
    np.testing.assert_allclose(got @ [0.299, 0.587, 0.114], grey, rtol=1e-4)
    assert np.abs(got - image).max() > 1

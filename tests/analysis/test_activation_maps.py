"""Class activation maps are what their formulas say."""

import keras
import numpy as np
import pytest
from image_networks import (
    CLASSES,
    METHODS,
    SIDE,
    assert_close,
    convolution,
    dense_like,
    features_of,
    flattened,
    head_of,
    pictures,
    pooled,
    same_at_the_end,
    scaled,
)
from keras import layers, ops

import keras_calib as kc
from keras_calib.analysis.activation_maps import class_activations


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(3)


# Closed forms.


def test_grad_cam_behind_global_pooling_is_cam():
    model, images = pooled(), pictures()
    features, kernel = features_of(model, images), head_of(model)
    for k in range(CLASSES):
        cam = np.maximum(features @ kernel[:, k], 0.0)
        maps = kc.class_activation_maps(model, images, classes=k)
        assert maps.shape == (5, SIDE, SIDE)
        assert maps.dtype == np.float32
        assert cam.max() > 0
        assert_close(maps, scaled(cam))


def derivatives(score, slope):
    """First to third of exp(score + slope x) at 0, by differences."""
    h = 1e-2 / abs(slope)
    y = {k: np.exp(score + slope * k * h) for k in (-2, -1, 0, 1, 2)}
    first = (y[1] - y[-1]) / (2 * h)
    second = (y[1] - 2 * y[0] + y[-1]) / h**2
    third = (y[2] - 2 * y[1] + 2 * y[-1] - y[-2]) / (2 * h**3)
    return first, second, third


def by_hand(features, gradient, scores):
    """Grad-CAM++ of exp(score), place by place."""
    maps = np.zeros(features.shape[:3])
    for n, score in enumerate(scores.astype("float64")):
        for k in range(features.shape[-1]):
            total = features[n, ..., k].sum()
            weight = 0.0
            for slope in gradient[n, ..., k].ravel():
                first, second, third = derivatives(score, slope)
                alpha = second / (2 * second + total * third)
                weight += alpha * max(first, 0.0)
            maps[n] += weight * features[n, ..., k]
    return np.maximum(maps, 0.0)


@pytest.mark.portable
@pytest.mark.parametrize("method", METHODS)
def test_maps_are_the_formula_where_gradients_differ_by_place(method):
    model, images = flattened(), pictures()
    features = features_of(model, images).astype("float64")
    kernel = head_of(model).astype("float64")
    logits = ops.convert_to_numpy(model(images))
    for k in range(CLASSES):
        gradient = np.broadcast_to(
            kernel[:, k].reshape(features.shape[1:]), features.shape
        )
        if method == "grad_cam":
            weight = gradient.mean((1, 2))
            small = np.einsum("nijk,nk->nij", features, weight).clip(0.0)
        else:
            small = by_hand(features, gradient, logits[:, k])
        maps = kc.class_activation_maps(model, images, classes=k, method=method)
        resized = ops.image.resize(
            small[..., None].astype("float32"),
            (SIDE, SIDE),
            interpolation="bilinear",
            data_format="channels_last",
        )
        assert_close(maps, scaled(ops.convert_to_numpy(resized)[..., 0]))


@pytest.mark.portable
def test_a_map_follows_the_place_that_matters():
    # One bright pixel through a network that looks for brightness.
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(1, 1, activation="relu", kernel_initializer="ones"),
            layers.MaxPooling2D(2),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2, kernel_initializer=keras.initializers.Ones()),
        ]
    )
    images = np.zeros((2, 8, 8, 1), "float32")
    images[0, 1, 6] = images[1, 5, 2] = 1.0
    for method in METHODS:
        maps = kc.class_activation_maps(model, images, classes=0, method=method)
        # Where the pixel was pooled with three others.
        assert maps[0, 0:2, 6:8].max() == maps[1, 4:6, 2:4].max() == 1.0
        assert maps[0, 4:].max() == maps[1, :2].max() == 0.0


# Classes and logits.


def test_predicted_classes_are_the_default():
    model, images = flattened(), pictures()
    ids = ops.convert_to_numpy(model(images)).argmax(-1)
    assert len(set(ids)) > 1
    default = kc.class_activation_maps(model, images)
    np.testing.assert_array_equal(
        default, kc.class_activation_maps(model, images, classes=ids)
    )
    other = kc.class_activation_maps(model, images, classes=(ids + 1) % CLASSES)
    assert np.abs(default - other).max() > 0.1


def test_the_gradient_of_a_probability_would_be_another_map():
    # p_k(1 - p_k) dz_k is a factor only if two classes are left.
    linear, images = pooled(), pictures()
    features, kernel = features_of(linear, images), head_of(linear)
    probs = ops.convert_to_numpy(ops.softmax(linear(images)))
    of_log = kernel[:, 0] - probs @ kernel.T
    wrong = np.einsum("nijk,nk->nij", features, of_log).clip(0.0)
    model = same_at_the_end(linear, lambda head: [dense_like(head, "softmax")])
    maps = kc.class_activation_maps(model, images, classes=0)
    assert np.abs(maps - scaled(wrong)).max() > 0.05


def test_of_one_output_the_classes_pull_in_opposite_directions():
    linear, images = pooled(num_outputs=1), pictures()
    model = same_at_the_end(linear, lambda head: [dense_like(head, "sigmoid")])
    features, kernel = features_of(linear, images), head_of(linear)[:, 0]
    for k, sign in ((0, -1.0), (1, 1.0)):
        cam = scaled((sign * features @ kernel).clip(0.0))
        for each in (linear, model):
            maps = kc.class_activation_maps(each, images, classes=k)
            assert_close(maps, cam)
    read = class_activations(model, images)
    z = ops.convert_to_numpy(linear(images))[:, 0]
    assert_close(read.logits, np.stack([0.0 * z, z], -1))
    with pytest.raises(ValueError, match=r"`classes` must hold class ids in"):
        kc.class_activation_maps(model, images, classes=2)


# Laws.


@pytest.mark.parametrize("method", METHODS)
def test_batches_change_nothing(method):
    inputs = keras.Input((SIDE, SIDE, 3))
    x = convolution(activation=None)(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Dropout(0.5)(layers.MaxPooling2D()(x))
    model = keras.Model(inputs, layers.Dense(CLASSES)(layers.Flatten()(x)))
    images = pictures()
    weights = model.get_weights()
    whole = kc.class_activation_maps(model, images, method=method)
    for size in (1, 2):
        maps = kc.class_activation_maps(
            model, images, method=method, batch_size=size
        )
        assert_close(maps, whole)
    for one, other in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("method", METHODS)
def test_a_map_of_zero_gradient_is_zero(method):
    model, images = pooled(), pictures()
    head = model.get_layer("head")
    head.kernel.assign(np.zeros_like(head_of(model)))
    maps = kc.class_activation_maps(model, images, method=method)
    np.testing.assert_array_equal(maps, 0.0)
    # And one on which the score does not depend at all.
    inputs = keras.Input((SIDE, SIDE, 3))
    unused = convolution(name="conv")(inputs)
    x = layers.Dense(CLASSES)(layers.Flatten()(inputs))
    x = layers.Lambda(lambda pair: pair[0])([x, unused])
    model = keras.Model(inputs, x)
    maps = kc.class_activation_maps(
        model, images, layer="conv", method=method, from_logits=True
    )
    np.testing.assert_array_equal(maps, 0.0)


def test_maps_lie_in_the_unit_interval_and_reach_one():
    model, images = flattened(), 100.0 * pictures()
    for method in METHODS:
        maps = kc.class_activation_maps(model, images, method=method)
        assert maps.min() >= 0.0
        tops = maps.max(axis=(1, 2))
        assert np.isin(tops, (0.0, 1.0)).all()
        assert tops.any()


@pytest.mark.portable
def test_half_precision_gives_nearly_the_same_maps():
    exact, images = pooled(), pictures()
    half = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            convolution(dtype="mixed_bfloat16"),
            layers.GlobalAveragePooling2D(dtype="mixed_bfloat16"),
            layers.Dense(CLASSES, "softmax", dtype="mixed_bfloat16"),
        ]
    )
    half.set_weights(exact.get_weights())
    assert_close(
        kc.class_activation_maps(half, images, classes=0),
        kc.class_activation_maps(exact, images, classes=0),
        atol=0.03,
    )


# Errors.

BAD = {
    "method": ({"method": "cam"}, ValueError, "`method` must be one of"),
    "batch size": ({"batch_size": 0}, ValueError, "`batch_size` must be >= 1"),
    "class": ({"classes": 3}, ValueError, r"`classes` must hold class ids in"),
    "negative class": ({"classes": -1}, ValueError, "`classes` must hold"),
    "fraction": ({"classes": 0.5}, TypeError, "`classes` must be integers"),
    "one-hot": ({"classes": [[1, 0, 0]] * 5}, ValueError, "one per image"),
    "too few": ({"classes": [0, 1]}, ValueError, "one per image"),
    "no name": ({"layer": "block9"}, ValueError, "name of one layer"),
    "no layer": ({"layer": 3}, TypeError, "a layer or the name of one"),
    "flat": ({"layer": "head"}, ValueError, "`layer` must return maps"),
    "not called": (
        {"layer": layers.Conv2D(1, 1)},
        ValueError,
        "a layer of the model that its call uses",
    ),
}


def test_bad_arguments_are_refused():
    model, images = pooled(), pictures()
    for options, error, rule in BAD.values():
        with pytest.raises(error, match=rule + ".*Received: "):
            kc.class_activation_maps(model, images, **options)

"""Feature maps and logits of a model are found; it is left as it was."""

import keras
import numpy as np
import pytest
from image_networks import (
    CLASSES,
    FEATURES,
    METHODS,
    SIDE,
    assert_close,
    convolution,
    dense_like,
    features_of,
    head_of,
    pictures,
    pooled,
    same_at_the_end,
    scaled,
)
from keras import layers, ops

import keras_calib as kc


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(3)


ENDS = {
    "dense": lambda head: [dense_like(head, "softmax")],
    "dense and dropout": lambda head: [
        dense_like(head, "softmax"),
        layers.Dropout(0.5),
    ],
    "Softmax": lambda head: [head, layers.Softmax()],
    "Activation": lambda head: [
        head,
        layers.Activation("softmax", dtype="float32"),
    ],
}


@pytest.mark.parametrize("end", ENDS)
def test_softmax_at_the_end_is_read_at_its_logits(end):
    linear, images = pooled(), pictures()
    model = same_at_the_end(linear, ENDS[end])
    before = ops.convert_to_numpy(model(images))
    np.testing.assert_allclose(before.sum(-1), 1.0, rtol=1e-5)
    assert_close(
        kc.class_activation_maps(model, images, classes=1),
        kc.class_activation_maps(linear, images, classes=1),
    )
    # The model is left as it was.
    np.testing.assert_array_equal(ops.convert_to_numpy(model(images)), before)
    assert not any("call" in vars(layer) for layer in model.layers)


class Averaged(keras.Model):
    """Probabilities from which no layer's logits can be read."""

    def __init__(self, returns_logits=None):
        super().__init__()
        self.conv = convolution()
        self.pool = layers.GlobalAveragePooling2D()
        self.head = layers.Dense(CLASSES)
        if returns_logits is not None:
            self.returns_logits = returns_logits

    def call(self, x):
        logits = self.head(self.pool(self.conv(x)))
        if getattr(self, "returns_logits", False):
            return 1.0 * logits
        return ops.softmax(logits)


def test_probabilities_without_logits_are_refused():
    images = pictures()
    model = Averaged(returns_logits=False)
    model(images)
    with pytest.raises(ValueError, match="must return logits, or end in a"):
        kc.class_activation_maps(model, images)
    model = Averaged()
    model(images)
    with pytest.raises(ValueError, match="`from_logits` must be True or False"):
        kc.class_activation_maps(model, images)
    with pytest.raises(ValueError, match="must return logits, or end in a"):
        kc.class_activation_maps(model, images, from_logits=False)
    softmax = pooled("softmax")
    with pytest.raises(ValueError, match="`from_logits` must be False or None"):
        kc.class_activation_maps(softmax, images, from_logits=True)


@pytest.mark.portable
def test_models_without_a_graph_are_read():
    images = pictures()
    model = Averaged(returns_logits=True)
    model(images)
    features = ops.convert_to_numpy(model.conv(images))
    kernel = ops.convert_to_numpy(model.head.kernel)
    cam = scaled((features @ kernel[:, 1]).clip(0.0))
    assert_close(kc.class_activation_maps(model, images, classes=1), cam)


# Layers.


def backbone():
    inputs = keras.Input((SIDE, SIDE, 3))
    x = convolution(name="first")(inputs)
    y = convolution(name="second")(x)
    return keras.Model(inputs, layers.Add(name="sum")([x, y]), name="backbone")


def nested(inner):
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.Rescaling(2.0)(inputs)
    x = layers.GlobalAveragePooling2D()(inner(x))
    return keras.Model(inputs, layers.Dense(CLASSES, name="head")(x))


@pytest.mark.portable
def test_layers_inside_nested_models_are_found():
    inner = backbone()
    model, images = nested(inner), pictures()
    features = ops.convert_to_numpy(inner(2.0 * images))
    cam = scaled((features @ head_of(model)[:, 2]).clip(0.0))
    for layer in (None, "backbone", "sum", inner, inner.get_layer("sum")):
        maps = kc.class_activation_maps(model, images, classes=2, layer=layer)
        assert_close(maps, cam)
    # One branch of the sum: the other does not depend on it.
    features = keras.Model(inner.input, inner.get_layer("second").output)
    features = ops.convert_to_numpy(features(2.0 * images))
    cam = scaled((features @ head_of(model)[:, 2]).clip(0.0))
    maps = kc.class_activation_maps(model, images, classes=2, layer="second")
    assert_close(maps, cam)


def test_a_softmax_inside_a_nested_model_is_found():
    images, inner = pictures(), backbone()
    linear = nested(inner)
    inputs = keras.Input((FEATURES,))
    head = dense_like(linear.get_layer("head"), "softmax")
    head = keras.Model(inputs, head(inputs))
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.GlobalAveragePooling2D()(inner(layers.Rescaling(2.0)(inputs)))
    model = keras.Model(inputs, head(x))
    assert_close(
        kc.class_activation_maps(model, images, classes=0),
        kc.class_activation_maps(linear, images, classes=0),
    )


def test_maps_pooled_to_one_place_are_passed_over():
    inputs = keras.Input((SIDE, SIDE, 3))
    x = convolution(name="conv")(inputs)
    x = layers.GlobalAveragePooling2D(keepdims=True)(x)
    x = layers.Conv2D(CLASSES, 1, name="head")(x)
    model, images = keras.Model(inputs, layers.Flatten()(x)), pictures()
    cam = features_of(model, images) @ head_of(model)[0, 0, :, 1]
    maps = kc.class_activation_maps(model, images, classes=1, from_logits=True)
    assert_close(maps, scaled(cam.clip(0.0)))


def test_of_a_layer_called_twice_the_last_call_counts():
    inputs = keras.Input((SIDE, SIDE, 3))
    relu = layers.ReLU(name="relu")
    x = relu(convolution(activation=None)(inputs))
    x = relu(convolution(activation=None)(x))
    last = keras.Model(inputs, x)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(CLASSES, name="head")(x))
    images = pictures()
    features = ops.convert_to_numpy(last(images))
    cam = scaled((features @ head_of(model)[:, 0]).clip(0.0))
    for layer in (None, "relu"):
        maps = kc.class_activation_maps(model, images, classes=0, layer=layer)
        assert_close(maps, cam)


class PlaceByPlace(layers.Layer):
    """A 1 x 1 convolution, which some devices lack with channels first."""

    def __init__(self, data_format):
        super().__init__()
        self.data_format = data_format

    def build(self, shape):
        last = self.data_format == "channels_last"
        self.kernel = self.add_weight((shape[-1 if last else 1], FEATURES))

    def call(self, x):
        if self.data_format == "channels_last":
            return ops.relu(ops.einsum("nijc,cf->nijf", x, self.kernel))
        return ops.relu(ops.einsum("ncij,cf->nfij", x, self.kernel))


@pytest.mark.portable
@pytest.mark.parametrize("method", METHODS)
def test_channels_first_gives_the_same_maps(method):
    # Of another height than width.
    images = pictures()[:, :8]
    last, first = (
        keras.Sequential(
            [
                keras.Input(shape),
                PlaceByPlace(f"channels_{order}"),
                layers.ReLU(),
                *turn,
                layers.Flatten(),
                layers.Dense(CLASSES),
            ]
        )
        for order, shape, turn in (
            ("last", (8, SIDE, 3), []),
            ("first", (3, 8, SIDE), [layers.Permute((2, 3, 1))]),
        )
    )
    first.set_weights(last.get_weights())
    turned = np.moveaxis(images, -1, 1)
    options = {"classes": 1, "method": method}
    for i in (None, 0, 1):
        one, other = (
            kc.class_activation_maps(
                model,
                x,
                layer=None if i is None else model.layers[i],
                **options,
            )
            for model, x in ((last, images), (first, turned))
        )
        assert one.shape == (5, 8, SIDE)
        assert_close(one, other)


@pytest.mark.portable
def test_losses_of_layers_are_not_left_behind():
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            convolution(activity_regularizer="l2"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES),
        ]
    )
    kc.class_activation_maps(model, pictures())
    assert model.losses == []


def test_a_model_that_fails_is_left_as_it_was():
    inputs = keras.Input((SIDE, SIDE, 3))
    x = layers.GlobalAveragePooling2D()(convolution(name="conv")(inputs))
    x = layers.Dense(CLASSES, "softmax", name="head")(x)
    model, images = keras.Model(inputs, x), pictures()
    before = ops.convert_to_numpy(model(images))
    # Of another size than the model was built for.
    with pytest.raises(ValueError, match="incompatible with the layer"):
        kc.class_activation_maps(model, images[..., :1])
    conv = model.get_layer("conv")
    calls = []

    def fails_later(x, call=conv.call):
        calls.append(x)
        if len(calls) > 2:
            raise RuntimeError("no more")
        return call(x)

    conv.call = fails_later
    with pytest.raises(RuntimeError, match="no more"):
        kc.class_activation_maps(model, images)
    assert conv.call is fails_later
    del conv.call
    assert model.get_layer("head").activation is keras.activations.softmax
    np.testing.assert_array_equal(ops.convert_to_numpy(model(images)), before)
    assert not any("call" in vars(layer) for layer in model.layers)


def test_bad_images_and_models_are_refused():
    model, images = pooled(), pictures()
    with pytest.raises(ValueError, match="`images` must have shape"):
        kc.class_activation_maps(model, images[0])
    with pytest.raises(ValueError, match="`images` must not be empty"):
        kc.class_activation_maps(model, images[:0])
    with pytest.raises(ValueError, match="`model` must be built"):
        kc.class_activation_maps(Averaged(), images)
    flat = keras.Sequential(
        [keras.Input((SIDE, SIDE, 3)), layers.Flatten(), layers.Dense(2)]
    )
    with pytest.raises(ValueError, match="no layer of the model returns maps"):
        kc.class_activation_maps(flat, images)
    dense = keras.Sequential([keras.Input((SIDE, SIDE, 3)), convolution()])
    with pytest.raises(ValueError, match="must have one output of shape"):
        kc.class_activation_maps(dense, images)

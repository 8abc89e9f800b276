"""Small networks of images, whose activation maps are known."""

import keras
import numpy as np
from keras import layers, ops

SIDE, FEATURES, CLASSES = 12, 4, 3
METHODS = ("grad_cam", "grad_cam++")


def pictures(count=5, side=SIDE):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, side, side, 3)).astype("float32")


def convolution(**options):
    options = {"activation": "relu", "padding": "same", **options}
    return layers.Conv2D(
        FEATURES, 3, bias_initializer="random_normal", **options
    )


def known(model):
    """With the same weights on every backend."""
    rng = np.random.default_rng(3)
    model.set_weights([rng.normal(size=w.shape) / 2 for w in model.weights])
    return model


def pooled(activation=None, num_outputs=CLASSES):
    """conv, global average pooling, dense: where CAM is defined."""
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            convolution(name="conv"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(num_outputs, activation, name="head"),
        ]
    )
    return known(model)


def flattened():
    """A gradient that differs from place to place."""
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            convolution(name="conv", strides=2),
            layers.Flatten(),
            layers.Dense(CLASSES, name="head"),
        ]
    )
    return known(model)


def features_of(model, images):
    return ops.convert_to_numpy(model.get_layer("conv")(images))


def head_of(model):
    return ops.convert_to_numpy(model.get_layer("head").kernel)


def scaled(maps):
    top = maps.max(axis=(1, 2), keepdims=True)
    return np.divide(maps, top, out=np.zeros_like(maps), where=top > 0)


def assert_close(one, other, atol=1e-5):
    np.testing.assert_allclose(one, other, rtol=2e-4, atol=atol)


def same_at_the_end(linear, end):
    """The network with other last layers, of the same weights."""
    first = keras.Input((SIDE, SIDE, 3))
    *body, head = linear.layers
    return keras.Sequential([first, *body, *end(head)])


def dense_like(layer, activation):
    copy = layers.Dense.from_config(
        {**layer.get_config(), "activation": activation, "name": "copy"}
    )
    copy.build((None, FEATURES))
    copy.set_weights(layer.get_weights())
    return copy

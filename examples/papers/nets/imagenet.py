"""Weights that Keras' ResNets have learnt from ImageNet."""

import keras
import numpy as np

__all__ = ["convert", "load_imagenet"]

_SOURCES = {
    (3, 4, 6, 3): keras.applications.ResNet50,
    (3, 4, 23, 3): keras.applications.ResNet101,
}
# Standard deviations of red, green and blue, of pixels in [0, 1].
_DEVIATIONS = np.array([0.229, 0.224, 0.225])


def load_imagenet(model, blocks, weights, name):
    """Gives a network of bottlenecks what Keras' ResNets have learnt.

    The weights are downloaded when they are first used, into the folder
    `models` of `KERAS_HOME`.

    Args:
        model: A `keras.Model` with layers as `nets.resnet.features` makes.
        blocks: Bottlenecks of each stage.
        weights: `"imagenet"`.
        name: What the names of its layers begin with.

    Raises:
        ValueError: If there are no such weights.
        Exception: Keras', if they cannot be downloaded.
    """
    if weights != "imagenet":
        raise ValueError(
            f"`weights` must be None or 'imagenet'. Received: {weights=}"
        )
    if tuple(blocks) not in _SOURCES:
        raise ValueError(
            f"`blocks` must be one of {tuple(_SOURCES)} if there are "
            f"`weights`. Received: blocks={blocks}"
        )
    build = _SOURCES[tuple(blocks)]
    convert(build(include_top=False, weights=weights), model, name)


def convert(source, model, name):
    """Copies weights of Keras' ResNet50 or ResNet101.

    Its convolutions have biases, which here the moving means subtract; its
    normalizations add more to the variance; its images are BGR in [0, 255]
    less their means, here RGB in [0, 1] less them, by standard deviations.
    The means of the two differ by less than half of one of 255 levels.

    Args:
        source: The network of `keras.applications`.
        model: A `keras.Model` with layers as `nets.resnet.features` makes.
        name: What the names of its layers begin with.

    Raises:
        ValueError: If the shapes of weights differ.
    """
    for layer in source.layers:
        if not isinstance(layer, keras.layers.Conv2D):
            continue
        kernel, bias = layer.get_weights()
        if layer.name == "conv1_conv":
            scales = 255 * _DEVIATIONS
            kernel = kernel[:, :, ::-1] * scales[:, np.newaxis]
        model.get_layer(f"{name}_{layer.name}").set_weights([kernel])
        theirs = source.get_layer(layer.name.replace("_conv", "_bn"))
        ours = model.get_layer(f"{name}_{theirs.name}")
        gamma, beta, mean, variance = theirs.get_weights()
        variance = variance + (theirs.epsilon - ours.epsilon)
        ours.set_weights([gamma, beta, mean - bias, variance])

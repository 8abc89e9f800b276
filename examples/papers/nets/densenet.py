"""Densely connected convolutions, for small images."""

import keras

from nets.convolutions import convolution, normalization


def densenet_bc(input_shape, num_classes, *, depth=100, growth=12):
    """Three blocks of layers that each read all before them in the block.

    B: layers convolve 1 x 1 to 4 `growth` channels first. C: between blocks
    half of the channels are left.

    Args:
        input_shape: Height, width and channels.
        num_classes: Number of logits.
        depth: 6 n + 4 for n layers of two convolutions in each block.
        growth: Channels that a layer adds.

    Raises:
        ValueError: If there is no such n >= 1.

    Reference:
        Huang et al., Densely Connected Convolutional Networks, CVPR 2017,
        section 3, DenseNet-BC, https://arxiv.org/abs/1608.06993
    """
    layers, rest = divmod(depth - 4, 6)
    if layers < 1 or rest:
        raise ValueError(
            f"`depth` must be 6 n + 4 with n >= 1. Received: depth={depth}"
        )
    inputs = keras.Input(input_shape)
    x = convolution(inputs, 2 * growth)
    for block in range(3):
        if block:
            x = convolution(normalization(x), x.shape[-1] // 2, 1)
            x = keras.layers.AveragePooling2D(2)(x)
        for _ in range(layers):
            y = convolution(normalization(x), 4 * growth, 1)
            y = convolution(normalization(y), growth)
            x = keras.layers.Concatenate()([x, y])
    x = keras.layers.GlobalAveragePooling2D()(normalization(x))
    logits = keras.layers.Dense(num_classes, dtype="float32")(x)
    return keras.Model(inputs, logits)

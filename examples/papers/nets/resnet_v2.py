"""A residual network of pre-activated bottlenecks, for small images."""

import keras

from nets.convolutions import convolution, normalization


def resnet56_v2(input_shape, num_classes, *, depth=56, width=16):
    """Three stages of bottlenecks that normalize before they convolve.

    Convolutions have biases, the inner ones of the first stage `width`
    channels; stages put out 4, 8 and 16 times as many.

    Args:
        input_shape: Height, width and channels.
        num_classes: Number of logits.
        depth: 9 n + 2 for n bottlenecks in each stage.
        width: Channels of the first convolution.

    Raises:
        ValueError: If there is no such n >= 1.

    Reference:
        He et al., Identity Mappings in Deep Residual Networks, ECCV 2016,
        https://arxiv.org/abs/1603.05027, with the widths of
        https://github.com/keras-team/keras/pull/8231, as in the code of Lienen,
        Hüllermeier, From Label Smoothing to Label Relaxation, AAAI 2021,
        https://github.com/julilien/LabelRelaxation
    """
    blocks, rest = divmod(depth - 2, 9)
    if blocks < 1 or rest:
        raise ValueError(
            f"`depth` must be 9 n + 2 with n >= 1. Received: depth={depth}"
        )
    inputs = keras.Input(input_shape)
    x = normalization(convolution(inputs, width, bias=True))
    inner, outer = width, 4 * width
    for stage in range(3):
        for block in range(blocks):
            first = block == 0
            # What enters the first block was normalized above.
            y = x if first and not stage else normalization(x)
            stride = 2 if first and stage else 1
            y = convolution(y, inner, 1, stride=stride, bias=True)
            y = convolution(normalization(y), inner, bias=True)
            y = convolution(normalization(y), outer, 1, bias=True)
            if first:
                x = convolution(x, outer, 1, stride=stride, bias=True)
            x = keras.layers.Add()([x, y])
        inner, outer = outer, 2 * outer
    x = keras.layers.GlobalAveragePooling2D()(normalization(x))
    logits = keras.layers.Dense(num_classes, dtype="float32")(x)
    return keras.Model(inputs, logits)

"""A residual network that trains in minutes without an accelerator."""

import keras


def small_resnet(input_shape, num_classes, *, width=32, blocks=1):
    """Three stages of basic blocks, as in ResNets for small images.

    Args:
        input_shape: Height, width and channels.
        num_classes: Number of logits.
        width: Channels of the first stage; each further one has twice as
            many, at half the resolution.
        blocks: Blocks of two convolutions per stage.

    Reference:
        He et al., Deep Residual Learning for Image Recognition, CVPR 2016,
        section 4.2, https://arxiv.org/abs/1512.03385
    """
    inputs = keras.Input(input_shape)
    x = _convolution(inputs, width, stride=2)
    for stage in range(3):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            x = _block(x, width * 2**stage, stride)
    x = keras.layers.GlobalAveragePooling2D()(x)
    logits = keras.layers.Dense(num_classes, dtype="float32")(x)
    return keras.Model(inputs, logits)


def _block(x, width, stride):
    skip = x
    if stride != 1 or x.shape[-1] != width:
        skip = _convolution(x, width, size=1, stride=stride, active=False)
    x = _convolution(x, width, stride=stride)
    x = _convolution(x, width, active=False)
    return keras.layers.ReLU()(keras.layers.Add()([x, skip]))


def _convolution(x, width, *, size=3, stride=1, active=True):
    x = keras.layers.Conv2D(
        width,
        size,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(5e-4),
    )(x)
    x = keras.layers.BatchNormalization()(x)
    return keras.layers.ReLU()(x) if active else x

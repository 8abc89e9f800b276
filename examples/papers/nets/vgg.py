"""VGG with batch normalization, for images of 32 pixels."""

import keras

from nets.convolutions import convolution, normalization


def vgg16(input_shape, num_classes, *, width=64, hidden_layers=2, dropout=0.5):
    """13 convolutions and three dense layers.

    Args:
        input_shape: Height and width, multiples of 32, and channels.
        num_classes: Number of logits.
        width: Channels of the first stage; the last two have eight times as
            many, and so have the hidden dense layers.
        hidden_layers: Dense layers before the logits.
        dropout: Share dropped before each of them.

    Reference:
        Simonyan, Zisserman, Very Deep Convolutional Networks for Large-Scale
        Image Recognition, ICLR 2015, configuration D,
        https://arxiv.org/abs/1409.1556; normalized, and with 512 units in
        place of 4096, as in the code of Moon et al., Confidence-Aware
        Learning for Deep Neural Networks, ICML 2020,
        https://github.com/daintlab/confidence-aware-learning

    Differs:
        The code of Lienen, Hüllermeier, From Label Smoothing to Label
        Relaxation, AAAI 2021, normalizes after the ReLU, has one hidden
        layer, normalized too, and drops out between convolutions.
    """
    inputs = x = keras.Input(input_shape)
    for factor, depth in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
        for _ in range(depth):
            x = convolution(x, factor * width, bias=True)
            x = normalization(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Flatten()(x)
    for _ in range(hidden_layers):
        x = keras.layers.Dropout(dropout)(x)
        x = keras.layers.Dense(8 * width, activation="relu")(x)
    logits = keras.layers.Dense(num_classes, dtype="float32")(x)
    return keras.Model(inputs, logits)

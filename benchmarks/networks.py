"""Networks that more than one benchmark trains."""

import keras


def resnet20(num_classes: int = 100) -> keras.Model:
    """He et al.: three stages of three blocks, 16 to 64 filters."""
    inputs = keras.Input((32, 32, 3))

    def convolution(x, filters, stride=1):
        x = keras.layers.Conv2D(
            filters, 3, stride, padding="same", use_bias=False
        )(x)
        return keras.layers.BatchNormalization()(x)

    x = keras.layers.ReLU()(convolution(inputs, 16))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage > 0 and block == 0 else 1
            y = keras.layers.ReLU()(convolution(x, filters, stride))
            y = convolution(y, filters)
            if stride == 2:
                x = keras.layers.Conv2D(filters, 1, 2)(x)
            x = keras.layers.ReLU()(keras.layers.Add()([x, y]))
    x = keras.layers.GlobalAveragePooling2D()(x)
    outputs = keras.layers.Dense(num_classes)(x)
    return keras.Model(inputs, outputs, name="resnet20")

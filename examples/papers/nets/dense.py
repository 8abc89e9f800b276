"""A network of dense layers."""

import keras


def dense(input_shape, num_classes, *, width=1024, depth=2, dropout=0.0):
    """Dense layers with ReLUs on flattened inputs.

    Args:
        input_shape: Shape of one input.
        num_classes: Number of logits.
        width: Units of each hidden layer.
        depth: Number of hidden layers.
        dropout: Share of the units to drop behind each hidden layer.

    Reference:
        Lienen, Hüllermeier, From Label Smoothing to Label Relaxation, AAAI
        2021, https://ojs.aaai.org/index.php/AAAI/article/view/17041
    """
    inputs = keras.Input(input_shape)
    x = keras.layers.Flatten()(inputs)
    for _ in range(depth):
        x = keras.layers.Dense(width, activation="relu")(x)
        if dropout:
            x = keras.layers.Dropout(dropout)(x)
    logits = keras.layers.Dense(num_classes, dtype="float32")(x)
    return keras.Model(inputs, logits)

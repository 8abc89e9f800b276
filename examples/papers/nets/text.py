"""A convolutional network for texts."""

import keras


def gpcn(
    input_shape,
    num_classes,
    *,
    vectors,
    trainable=False,
    width=128,
    pool_stride=1,
    dropout=0.3,
):
    """Convolutions over word vectors, and the largest of each channel.

    Three convolutions of five words, pooled over five between them and
    globally after them, and one hidden dense layer.

    Args:
        input_shape: `(length,)`, ids of that many tokens, at least 21 if
            `pool_stride` is 1. A text that is shorter is filled up with an
            id, usually that of a vector of zeros.
        num_classes: Number of logits.
        vectors: Matrix `(tokens, dimension)`; row i is the vector of id i.
        trainable: Whether the vectors are trained too.
        width: Channels of the convolutions, units of the dense layer.
        pool_stride: Step of the inner poolings. Defaults to `1`.
        dropout: Share dropped before the logits.

    Reference:
        Kumar et al., Trainable Calibration Measures For Neural Networks From
        Kernel Mean Embeddings, ICML 2018, for 20 Newsgroups,
        https://github.com/aviralkumar2907/MMCE; the same in Mukhoti et al.,
        Calibrating Deep Neural Networks using Focal Loss, NeurIPS 2020,
        https://github.com/torrvision/focal_calibration; global pooling: Lin
        et al., Network In Network, ICLR 2014,
        https://arxiv.org/abs/1312.4400

    Differs:
        The code of Liu et al., The Devil is in the Margin, CVPR 2022, has
        `dropout=0.0`. https://keras.io/examples/nlp/pretrained_word_embeddings
        has `pool_stride=5` and `dropout=0.5`.
    """
    inputs = keras.Input(input_shape, dtype="int32")
    embedding = keras.layers.Embedding(*vectors.shape, trainable=trainable)
    x = embedding(inputs)
    # As an initializer they would be written into every saved config.
    embedding.set_weights([vectors])
    for layer in range(3):
        if layer:
            x = keras.layers.MaxPooling1D(5, pool_stride)(x)
        x = keras.layers.Conv1D(width, 5, activation="relu")(x)
    x = keras.layers.GlobalMaxPooling1D()(x)
    x = keras.layers.Dense(width, activation="relu")(x)
    x = keras.layers.Dropout(dropout)(x)
    logits = keras.layers.Dense(num_classes, dtype="float32")(x)
    return keras.Model(inputs, logits)

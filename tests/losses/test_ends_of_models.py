"""A compiled loss tells by the end of a model whether it returns logits."""

import warnings

import keras
import numpy as np
import pytest
from cases import BACKEND
from keras import ops

import keras_calib as kc


def dense(x, activation=None, units=3):
    return keras.layers.Dense(units, activation)(x)


def softmax(x):
    return dense(x, "softmax")


def mixed(x):
    return 0.5 * softmax(x) + 0.5 * softmax(x)


def transposed(x):
    stacked = ops.stack([softmax(x), softmax(x)], axis=-1)
    return ops.matmul(stacked, np.full((2, 1), 0.5, "float32"))[..., 0]


def divided(x):
    shares = dense(x, "softplus")
    return shares / ops.sum(shares, axis=-1, keepdims=True)


# What the last operations of a model are.
ENDS = {
    "layer": [
        dense,
        lambda x: keras.layers.Dense(3, use_bias=False)(x),
        lambda x: keras.layers.Activation("linear", dtype="float16")(dense(x)),
        lambda x: keras.layers.Reshape((2, 3))(dense(x, units=6)),
        lambda x: dense(dense(x, "swish")) + dense(x),
        lambda x: keras.layers.Conv2D(3, 1)(x[:, None, None]),
        lambda x: keras.layers.UpSampling2D(interpolation="bilinear")(
            keras.layers.Conv2DTranspose(3, 2)(x[:, None, None])
        ),
    ],
    "softmax": [
        softmax,
        lambda x: keras.layers.Softmax(dtype="float16")(dense(x)),
        lambda x: keras.layers.Conv2D(3, 1, activation="softmax")(
            x[:, None, None]
        ),
        lambda x: dense(x, "sigmoid", 1),
    ],
    # May be either, so nothing is said.
    None: [
        mixed,
        transposed,
        divided,
        lambda x: keras.layers.Average()([softmax(x), softmax(x)]),
        lambda x: keras.layers.Dense(3, use_bias=False)(softmax(x)),
        lambda x: dense(mixed(x)),
        # Weights of features, which are not known from probabilities.
        lambda x: dense(softmax(x) * dense(x)),
        lambda x: ops.matmul(ops.exp(ops.log_softmax(dense(x))), np.eye(3)),
        lambda x: ops.log_softmax(dense(x)),
        lambda x: keras.layers.BatchNormalization()(dense(x)),
        lambda x: dense(x, "sigmoid"),
    ],
}


@pytest.mark.skipif(BACKEND != "tensorflow", reason="graphs of TensorFlow")
@pytest.mark.parametrize("kind", ENDS)
def test_a_compiled_loss_tells_by_the_end_of_the_model(kind):
    for end in ENDS[kind]:
        inputs = keras.Input((4,))
        model = keras.Model(inputs, end(inputs))
        for from_logits in (False, True):
            loss = kc.LabelSmoothing(alpha=0.1, from_logits=from_logits)
            told = told_of(loss, model)
            if kind == ("softmax" if from_logits else "layer"):
                rule = f"pass `from_logits={not from_logits}`"
                assert len(told) == 1 and rule in told[0], told
                # Once for each loss.
                told = told_of(loss, model)
            assert told == []


def told_of(loss, model):
    """What is told while the loss of a model is traced."""
    import tensorflow as tf

    labels = tf.zeros((2, *model.output_shape[1:-1]), "int32")
    step = tf.function(lambda x: loss(labels, model(x)), autograph=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        step.get_concrete_function(tf.zeros((2, 4)))
    return [str(x.message) for x in told if x.category is RuntimeWarning]

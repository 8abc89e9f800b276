"""Networks as small as their builders allow, for tests."""

import math

import keras
import numpy as np
from keras import ops
from nets import catalogue
from nets.resnet import features

# As small as the builders allow: input shape and options.
SMALL = {
    "dense": ((4, 4, 1), {"width": 8}),
    "densenet_bc_100_12": ((8, 8, 3), {"depth": 10, "growth": 2}),
    "gpcn": ((21,), {"vectors": np.eye(30, 6), "width": 8}),
    "resnet20": ((8, 8, 3), {"width": 2}),
    "resnet50": ((32, 32, 3), {"width": 2}),
    "resnet56_v2": ((8, 8, 3), {"depth": 11, "width": 2}),
    "small_resnet": ((8, 8, 3), {"width": 2}),
    "vgg16": ((32, 32, 3), {"width": 2}),
    "vit_s16": ((8, 8, 3), {"width": 12, "depth": 2, "heads": 3}),
    "deeplabv3_small": ((33, 50, 3), {}),
    "deeplabv3plus_small": ((33, 50, 3), {"output_stride": 8}),
}


# `num_params` in torchvision/models/segmentation/deeplabv3.py, less those of
# its auxiliary classifier: 3 x 3 from 1024 channels to 256, normalized, and
# the logits.
DEEPLABV3_RESNET50 = 42_004_074 - (9 * 1024 * 256 + 2 * 256 + 257 * 21)


def build(name, *args, **options):
    return catalogue.build(name, *args, **options)


def build_small(name, **options):
    shape, small = SMALL[name]
    return build(name, shape, 5, **small, **options)


def random_inputs(model, batch=2):
    rng = np.random.default_rng(0)
    shape = (batch, *model.input_shape[1:])
    if model.input.dtype == "int32":
        return rng.integers(30, size=shape)
    return rng.normal(size=shape).astype("float32")


def answers(model, inputs):
    return keras.tree.map_structure(
        ops.convert_to_numpy, model(inputs, training=False)
    )


def trainable(model):
    return sum(math.prod(v.shape) for v in model.trainable_variables)


def features_model(shape, blocks, **options):
    inputs = keras.Input(shape)
    return keras.Model(inputs, features(inputs, blocks, **options))

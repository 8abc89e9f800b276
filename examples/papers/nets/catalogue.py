"""Networks by name, as recipes name them."""

from functools import partial

import keras

from nets.convolutions import synchronize
from nets.deeplab import BACKBONES, deeplabv3, deeplabv3plus
from nets.dense import dense
from nets.densenet import densenet_bc
from nets.resnet import resnet20, resnet50, resnet101
from nets.resnet_v2 import resnet56_v2
from nets.small_resnet import small_resnet
from nets.text import gpcn
from nets.vgg import vgg16
from nets.vit import vit_b16, vit_s16


def stem(input_shape):
    """How images of a size enter a ResNet.

    Args:
        input_shape: Height, width and channels.

    Returns:
        `"cifar"` if no side is longer than 32 pixels, `"tiny_imagenet"` if
        none is longer than 64, or `"imagenet"`.
    """
    side = max(input_shape[:2])
    if side <= 32:
        return "cifar"
    return "tiny_imagenet" if side <= 64 else "imagenet"


def patch_size(input_shape):
    """Side of the patches that images of a size are cut into.

    Args:
        input_shape: Height, width and channels.

    Returns:
        16 if no side is shorter than 128 pixels, or 4.
    """
    return 16 if min(input_shape[:2]) >= 128 else 4


def _with_stem(network, input_shape, num_classes, **options):
    options = {"stem": stem(input_shape), **options}
    return network(input_shape, num_classes, **options)


def _with_patches(network, input_shape, num_classes, **options):
    options = {"patch_size": patch_size(input_shape), **options}
    return network(input_shape, num_classes, **options)


# Logits `(batch, num_classes)`.
NETS = {
    "dense": dense,
    "densenet_bc_100_12": densenet_bc,
    "gpcn": gpcn,
    "resnet20": resnet20,
    "resnet50": partial(_with_stem, resnet50),
    "resnet56_v2": resnet56_v2,
    "resnet101": partial(_with_stem, resnet101),
    "small_resnet": small_resnet,
    "small_resnet16": partial(small_resnet, width=16),
    "vgg16": vgg16,
    "vit_b16": partial(_with_patches, vit_b16),
    "vit_s16": partial(_with_patches, vit_s16),
}

# Logits `(batch, height, width, num_classes)`: "deeplabv3_resnet50" ...
SEGMENTERS = {
    f"{network.__name__}_{backbone}": partial(network, backbone=backbone)
    for network in (deeplabv3, deeplabv3plus)
    for backbone in BACKBONES
}


def build(
    name,
    input_shape,
    num_classes,
    model_class=keras.Model,
    model_arguments=None,
    synchronized=False,
    **options,
):
    """A network of the catalogue, as a model that trains as one likes.

    Args:
        name: In `NETS` or `SEGMENTERS`.
        input_shape: Shape of one input.
        num_classes: Number of logits.
        model_class: `keras.Model`, or a subclass that takes inputs, outputs
            and `model_arguments`.
        model_arguments: Keyword arguments of that class.
        synchronized: Whether batch normalizations take the statistics of all
            replicas together, as `nets.convolutions.synchronize` does.
        **options: Arguments of the network. Without `stem` of ResNets and
            `patch_size` of the transformer, the image size chooses them.

    Returns:
        A `model_class`, whose outputs are float32 logits.

    Raises:
        ValueError: If the catalogue has no such name.
    """
    catalogue = {**NETS, **SEGMENTERS}
    if name not in catalogue:
        raise ValueError(
            f"`name` must be one of {tuple(catalogue)}. Received: {name=}"
        )
    model = catalogue[name](tuple(input_shape), num_classes, **options)
    synchronize(model, synchronized)
    return model_class(model.input, model.output, **(model_arguments or {}))

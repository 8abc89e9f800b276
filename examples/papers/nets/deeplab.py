"""DeepLabv3 and DeepLabv3+: logits for each pixel."""

from typing import NamedTuple

import keras
from keras import ops

from nets.convolutions import convolution, normalization
from nets.resnet import RESNET50, RESNET101, features

_LAST = "interpolation"


class Backbone(NamedTuple):
    """What features are made by, and how many channels read them.

    Attributes:
        blocks: Bottlenecks of each of the four stages.
        width: Inner channels of the first stage.
        head: Channels of what follows the backbone.
    """

    blocks: tuple[int, int, int, int]
    width: int
    head: int


BACKBONES = {
    "resnet50": Backbone(RESNET50, 64, 256),
    "resnet101": Backbone(RESNET101, 64, 256),
    # Trains without an accelerator.
    "small": Backbone((1, 1, 1, 1), 16, 64),
}


@keras.saving.register_keras_serializable(package="examples")
class ResizeLike(keras.layers.Layer):
    """Interpolates images bilinearly to height and width of others.

    Args:
        **kwargs: As in `keras.layers.Layer`.
    """

    def call(self, x, like):
        """`(batch, height, width, channels)`, with the sizes of `like`."""
        size = ops.shape(like)[1:3]
        if all(isinstance(side, int) for side in size):
            x = ops.image.resize(x, size, data_format="channels_last")
        else:
            # Keras compares sizes with 0, which a graph does not know.
            import tensorflow as tf

            x = tf.image.resize(x, size)
        return ops.cast(x, self.compute_dtype)

    def compute_output_shape(self, x_shape, like_shape):
        """Shape of what `call` returns."""
        return (x_shape[0], *like_shape[1:3], x_shape[-1])


def deeplabv3(
    input_shape,
    num_classes,
    *,
    backbone="resnet50",
    output_stride=16,
    dropout=0.5,
    weights=None,
    resize=True,
):
    """Logits from the last features, pooled at several dilations.

    Args:
        input_shape: Height, width and channels; height and width are any, or
            None.
        num_classes: Number of logits of each pixel.
        backbone: `"resnet50"`, `"resnet101"` or `"small"`. Its variables have
            `"backbone"` in their paths.
        output_stride: Pixels between last features: 8 or 16.
        dropout: Share dropped of the pooled features.
        weights: None, or `"imagenet"` for the backbone; see
            `nets.resnet.features`.
        resize: Whether logits are interpolated to the size of the image.
            Defaults to `True`; without, there are some for each feature.

    Raises:
        ValueError: If the backbone, its stride or its weights are none of
            these.

    Reference:
        Chen et al., Rethinking Atrous Convolution for Semantic Image
        Segmentation, 2017, https://arxiv.org/abs/1706.05587

    Differs:
        A convolution 3 x 3 before the logits, and dropout, are torchvision's,
        which has no multi-grid either.
    """
    inputs = keras.Input(input_shape)
    _, high, head = _features(inputs, backbone, output_stride, weights)
    x = _pyramid(high, head, output_stride, dropout)
    x = normalization(convolution(x, head))
    return keras.Model(inputs, _logits(x, num_classes, inputs, resize))


def deeplabv3plus(
    input_shape,
    num_classes,
    *,
    backbone="resnet50",
    output_stride=16,
    dropout=0.5,
    weights=None,
    resize=True,
):
    """As `deeplabv3`, refined by features of stride 4.

    Args:
        input_shape: Height, width and channels; height and width are any, or
            None.
        num_classes: Number of logits of each pixel.
        backbone: `"resnet50"`, `"resnet101"` or `"small"`.
        output_stride: Pixels between last features: 8 or 16.
        dropout: Share dropped of the pooled features.
        weights: None, or `"imagenet"` for the backbone.
        resize: Whether logits are interpolated to the size of the image.
            Defaults to `True`; without, there are some for each 4 x 4 pixels.

    Raises:
        ValueError: If the backbone, its stride or its weights are none of
            these.

    Reference:
        Chen et al., Encoder-Decoder with Atrous Separable Convolution for
        Semantic Image Segmentation, ECCV 2018, sections 3.1 and 4.1,
        https://arxiv.org/abs/1802.02611

    Differs:
        Convolutions are not separable, as with the paper's ResNet.
    """
    inputs = keras.Input(input_shape)
    low, high, head = _features(inputs, backbone, output_stride, weights)
    x = _pyramid(high, head, output_stride, dropout)
    # 48 of 256: more would outweigh what the pyramid has seen.
    low = normalization(convolution(low, head * 3 // 16, 1))
    x = keras.layers.Concatenate()([ResizeLike()(x, low), low])
    for _ in range(2):
        x = normalization(convolution(x, head))
    return keras.Model(inputs, _logits(x, num_classes, inputs, resize))


def before_interpolation(model):
    """A model of images to the logits that the last layer interpolates.

    Args:
        model: Model of layers in a row, the last of them a network of this
            module. The layers are shared.
    """
    *first, net = model.layers[1:]
    logits, _ = net.get_layer(_LAST).input
    x = model.input
    for layer in [*first, keras.Model(net.input, logits)]:
        x = layer(x)
    return keras.Model(model.input, x)


def _features(inputs, backbone, output_stride, weights):
    if backbone not in BACKBONES:
        raise ValueError(
            f"`backbone` must be one of {tuple(BACKBONES)}. "
            f"Received: {backbone=}"
        )
    if output_stride not in (8, 16):
        raise ValueError(
            "`output_stride` must be 8 or 16. "
            f"Received: output_stride={output_stride}"
        )
    blocks, width, head = BACKBONES[backbone]
    low, high = features(
        inputs,
        blocks,
        output_stride=output_stride,
        width=width,
        weights=weights,
        name="backbone",
    )
    return low, high, head


def _pyramid(x, width, output_stride, dropout):
    mean = keras.layers.GlobalAveragePooling2D(keepdims=True)(x)
    mean = normalization(convolution(mean, width, 1))
    parts = [normalization(convolution(x, width, 1))]
    for rate in (6, 12, 18):
        dilation = rate * 16 // output_stride
        parts.append(normalization(convolution(x, width, dilation=dilation)))
    parts.append(ResizeLike()(mean, x))
    x = convolution(keras.layers.Concatenate()(parts), width, 1)
    return keras.layers.Dropout(dropout)(normalization(x))


def _logits(x, num_classes, inputs, resize):
    logits = keras.layers.Conv2D(num_classes, 1, dtype="float32")(x)
    if not resize:
        return logits
    return ResizeLike(dtype="float32", name=_LAST)(logits, inputs)

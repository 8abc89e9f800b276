"""Residual networks, and their features for dense prediction."""

import keras
from keras import ops

from nets.convolutions import convolution, normalization
from nets.imagenet import load_imagenet

# Bottlenecks of each stage.
RESNET50 = (3, 4, 6, 3)
RESNET101 = (3, 4, 23, 3)

_STEMS = ("cifar", "tiny_imagenet", "imagenet")


def resnet20(input_shape, num_classes, *, width=16):
    """Three stages of three basic blocks, for small images.

    Shortcuts have no parameters: where channels double, zeros are appended.

    Args:
        input_shape: Height, width and channels.
        num_classes: Number of logits.
        width: Channels of the first stage; each further one has twice as
            many, at half the resolution.

    Reference:
        He et al., Deep Residual Learning for Image Recognition, CVPR 2016,
        section 4.2 with option A, https://arxiv.org/abs/1512.03385
    """
    inputs = keras.Input(input_shape)
    x = normalization(convolution(inputs, width))
    for stage in range(3):
        for block in range(3):
            stride = 2 if stage and not block else 1
            y = convolution(x, width * 2**stage, stride=stride)
            y = convolution(normalization(y), width * 2**stage)
            y = normalization(y, active=False)
            if stride > 1:
                x = keras.layers.MaxPooling2D(1, stride)(x)
                added = y.shape[-1] - x.shape[-1]
                x = ops.pad(x, [[0, 0], [0, 0], [0, 0], [0, added]])
            x = keras.layers.ReLU()(keras.layers.Add()([x, y]))
    x = keras.layers.GlobalAveragePooling2D()(x)
    logits = keras.layers.Dense(num_classes, dtype="float32")(x)
    return keras.Model(inputs, logits)


def resnet50(
    input_shape,
    num_classes,
    *,
    stem="imagenet",
    width=64,
    dropout=0.0,
    weights=None,
):
    """Four stages of 3, 4, 6 and 3 bottlenecks.

    Args:
        input_shape: Height, width and channels; with the stem
            `"tiny_imagenet"` height and width are multiples of 16.
        num_classes: Number of logits.
        stem: How images enter. `"imagenet"`: a convolution 7 x 7 and a
            pooling, each of stride 2. `"cifar"`: a convolution 3 x 3.
            `"tiny_imagenet"`: that too, and the last features are averaged
            over four quarters of the image, not over all of it.
        width: Inner channels of the first stage. Defaults to `64`.
        dropout: Share dropped of what the first three stages put out and of
            the averaged features, in front of the logits.
        weights: None, or `"imagenet"`; see `features`.

    Raises:
        ValueError: If the stem is none of these, does not fit the image, or
            there are no weights for the network.

    Reference:
        He et al., Deep Residual Learning for Image Recognition, CVPR 2016,
        table 1, https://arxiv.org/abs/1512.03385; small images: Mukhoti et
        al., Calibrating Deep Neural Networks using Focal Loss, NeurIPS 2020,
        https://github.com/torrvision/focal_calibration

    Differs:
        Bottlenecks step by two in their convolution 3 x 3, as those of torch
        do, the paper's in the one before; so do these with weights.
    """
    options = {"width": width, "dropout": dropout, "weights": weights}
    return _classifier(input_shape, num_classes, RESNET50, stem, **options)


def resnet101(
    input_shape,
    num_classes,
    *,
    stem="imagenet",
    width=64,
    dropout=0.0,
    weights=None,
):
    """Four stages of 3, 4, 23 and 3 bottlenecks; otherwise as `resnet50`.

    Args:
        input_shape: Height, width and channels.
        num_classes: Number of logits.
        stem: How images enter, as in `resnet50`.
        width: Inner channels of the first stage. Defaults to `64`.
        dropout: As in `resnet50`.
        weights: None, or `"imagenet"`.

    Reference:
        As `resnet50`.
    """
    options = {"width": width, "dropout": dropout, "weights": weights}
    return _classifier(input_shape, num_classes, RESNET101, stem, **options)


def _classifier(input_shape, num_classes, blocks, stem, dropout, **options):
    if stem == "tiny_imagenet" and any(side % 16 for side in input_shape[:2]):
        raise ValueError(
            "Height and width of `input_shape` must be multiples of 16 if "
            f"`stem` is 'tiny_imagenet'. Received: input_shape={input_shape}"
        )
    inputs = keras.Input(input_shape)
    options = {"stem": stem, "dropout": dropout, **options}
    _, x = features(inputs, blocks, name="resnet", **options)
    if stem == "tiny_imagenet":
        half = (x.shape[1] // 2, x.shape[2] // 2)
        x = keras.layers.AveragePooling2D(half)(x)
        x = keras.layers.Flatten()(x)
    else:
        x = keras.layers.GlobalAveragePooling2D()(x)
    if dropout:
        x = keras.layers.Dropout(dropout)(x)
    logits = keras.layers.Dense(num_classes, dtype="float32")(x)
    return keras.Model(inputs, logits)


def features(
    inputs,
    blocks,
    *,
    stem="imagenet",
    output_stride=None,
    width=64,
    dropout=0.0,
    weights=None,
    name="backbone",
):
    """Early and last features of four stages of bottlenecks.

    With an `output_stride` below that of the stem's network, late stages have
    stride 1, and their convolutions 3 x 3 are dilated instead. The features at
    the positions of the original strides are the same.

    Args:
        inputs: Images, `(batch, height, width, channels)`.
        blocks: Bottlenecks of each of the four stages.
        stem: `"imagenet"`, `"cifar"` or `"tiny_imagenet"`.
        output_stride: Pixels between last features: 8, 16 or 32, with a stem
            for small images 2, 4 or 8. Defaults to the largest.
        width: Inner channels of the first stage.
        dropout: Share dropped of what each stage but the last puts out.
        weights: None, or `"imagenet"`: those of Keras' ResNet50 and
            ResNet101, for images as torchvision normalizes them: RGB in
            [0, 1], less (0.485, 0.456, 0.406), by (0.229, 0.224, 0.225).
            Bottlenecks then step in their first convolution, as theirs do.
        name: The names of layers begin with it.

    Returns:
        `(low, high)`: features of the first stage, at stride 4 or 1, with
        `4 * width` channels, and of the last, with `32 * width`.

    Raises:
        ValueError: If an argument is none of these, or there are no weights
            for the network.

    Reference:
        He et al., Deep Residual Learning for Image Recognition, CVPR 2016,
        https://arxiv.org/abs/1512.03385; dilation: Chen et al., Rethinking
        Atrous Convolution for Semantic Image Segmentation, 2017, section 3.1,
        https://arxiv.org/abs/1706.05587
    """
    if stem not in _STEMS:
        raise ValueError(f"`stem` must be one of {_STEMS}. Received: {stem=}")
    if weights is not None and stem != "imagenet":
        raise ValueError(
            "`stem` must be 'imagenet' if there are `weights`. "
            f"Received: {stem=}"
        )
    entry = 4 if stem == "imagenet" else 1
    strides = tuple(entry * factor for factor in (2, 4, 8))
    if output_stride is None:
        output_stride = strides[-1]
    if output_stride not in strides:
        raise ValueError(
            f"`output_stride` must be one of {strides} if `stem` is {stem!r}. "
            f"Received: output_stride={output_stride}"
        )
    x = _stem(inputs, stem, width, name)
    reached, dilation = entry, 1
    for stage, count in enumerate(blocks):
        stride = 2 if stage else 1
        before = dilation
        if reached * stride > output_stride:
            dilation *= stride
            stride = 1
        reached *= stride
        for block in range(count):
            x = _bottleneck(
                x,
                width * 2**stage,
                stride=1 if block else stride,
                # Its 3 x 3 read before the step that dilation replaces.
                dilation=dilation if block or weights else before,
                early=weights is not None,
                name=f"{name}_conv{stage + 2}_block{block + 1}",
            )
        if not stage:
            low = x
        if dropout and stage < len(blocks) - 1:
            x = keras.layers.Dropout(dropout)(x)
    if weights is not None:
        load_imagenet(keras.Model(inputs, x), blocks, weights, name)
    return low, x


def _stem(x, stem, width, name):
    if stem != "imagenet":
        x = convolution(x, width, name=f"{name}_conv1_conv")
        return normalization(x, name=f"{name}_conv1_bn")
    x = convolution(x, width, 7, stride=2, name=f"{name}_conv1_conv")
    x = normalization(x, name=f"{name}_conv1_bn")
    # Zeros change no maximum: what is pooled is not negative.
    x = keras.layers.ZeroPadding2D(1)(x)
    return keras.layers.MaxPooling2D(3, 2)(x)


def _bottleneck(x, width, *, stride, dilation, early, name):
    def step(x, channels, part, size=1, active=True, **steps):
        x = convolution(x, channels, size, name=f"{name}_{part}_conv", **steps)
        return normalization(x, active=active, name=f"{name}_{part}_bn")

    y = step(x, width, 1, stride=stride if early else 1)
    middle = {"dilation": dilation} if dilation > 1 else {}
    if not early and stride > 1:
        middle = {"stride": stride}
    y = step(y, width, 2, 3, **middle)
    y = step(y, 4 * width, 3, active=False)
    if stride > 1 or x.shape[-1] != 4 * width:
        x = step(x, 4 * width, 0, active=False, stride=stride)
    return keras.layers.ReLU()(keras.layers.Add()([x, y]))

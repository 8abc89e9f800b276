"""Convolution and normalization as the papers' torch code has them."""

import keras

from nets.fused import FusedBatchNormalization


def convolution(
    x, width, size=3, *, stride=1, dilation=1, bias=False, name=None
):
    """A convolution with zeros of half the kernel on all sides.

    Args:
        x: Images, `(batch, height, width, channels)`.
        width: Channels of the output.
        size: Height and width of the kernel, odd.
        stride: Step of the kernel.
        dilation: Distance between what the kernel reads; 1 if `stride` is not.
        bias: Whether a bias is added. Defaults to `False`, because a
            normalization that follows would subtract it again.
        name: Name of the layer.

    Returns:
        Images `(batch, ceil(height / stride), ceil(width / stride), width)`.

    Reference:
        He et al., Delving Deep into Rectifiers, ICCV 2015, section 2.2 with
        the fan of the backward pass, https://arxiv.org/abs/1502.01852
    """
    padding = "same"
    if stride > 1 and size > 1:
        # "same" would put the zeros of an even image on two sides only.
        x = keras.layers.ZeroPadding2D(size // 2)(x)
        padding = "valid"
    return keras.layers.Conv2D(
        width,
        size,
        strides=stride,
        padding=padding,
        dilation_rate=dilation,
        use_bias=bias,
        kernel_initializer=keras.initializers.VarianceScaling(
            2.0, "fan_out", "untruncated_normal"
        ),
        name=name,
    )(x)


def normalization(x, *, active=True, name=None):
    """Batch normalization, and a ReLU.

    Args:
        x: Images or features, channels last.
        active: Whether the ReLU follows.
        name: Name of the normalization.

    Returns:
        Images or features of the shape of `x`.

    Reference:
        Ioffe, Szegedy, Batch Normalization, ICML 2015,
        https://arxiv.org/abs/1502.03167
    """
    x = FusedBatchNormalization(momentum=0.9, epsilon=1e-5, name=name)(x)
    return keras.layers.ReLU()(x) if active else x


def synchronize(model, synchronized=True):
    """Whether batch normalizations take statistics of all replicas together.

    With it, training on several devices is that on one device; without it,
    each device normalizes its part of a batch by itself.

    Args:
        model: A network, before its first step of training.
        synchronized: As in `keras.layers.BatchNormalization`.
    """
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            synchronize(layer, synchronized)
        elif isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = synchronized

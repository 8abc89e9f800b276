"""RetinaNet, on the features of a network that was trained to classify."""

import math
from typing import NamedTuple

import keras
from keras import ops

from keras_calib.backend.replicas import num_replicas, sum_over_replicas

try:
    import keras_hub
except ImportError as error:
    raise ImportError(
        "Detectors need KerasHub: pip install keras-calib[detection]"
    ) from error

_FORMAT = "yxyx"


class Pyramid(NamedTuple):
    """What is built on the features of a network.

    Attributes:
        levels: First and last level; features of level k have stride 2^k.
        width: Channels of all levels.
        depth: Convolutions of each head before its last.
        anchor_size: Side of the smallest anchor, in strides.
        num_scales: Sides of anchors of each level, up to twice the smallest.
    """

    levels: tuple[int, int]
    width: int
    depth: int
    anchor_size: float
    num_scales: int


DETECTORS = {
    # As in the paper on RetinaNet, table 1 and section 4.
    "retinanet": Pyramid((3, 7), 256, 4, 4.0, 3),
    # Trains without an accelerator, on canvases of about 100 pixels.
    "retinanet_small": Pyramid((2, 4), 32, 1, 3.0, 2),
}


class Detector(keras_hub.models.RetinaNetObjectDetector):
    """KerasHub's RetinaNet with the loss and beginning of its paper.

    Heads begin with small weights, and all anchors as background with the
    probability 0.99. The loss is the focal loss with gamma 2, in which objects
    have the share 0.25, plus the absolute errors of boxes. The sum is divided
    by the number of anchors with an object in the whole batch, on all devices
    together.

    Args:
        *args: As in `keras_hub.models.RetinaNetObjectDetector`.
        **kwargs: As there.

    Reference:
        Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, sections
        3 and 4.1, https://arxiv.org/abs/1708.02002

    Differs:
        KerasHub gives the prior probability to boxes, not to classes. It
        averages over classes, so each weighs less if there are more. Its loss
        of boxes is Huber's, this one torchvision's. It divides by the anchors
        of each device, so two devices take steps twice as long as one. It
        suppresses boxes among all classes, this model within a class.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for head in (self.box_head, self.classification_head):
            for layer in (*head.conv_layers, head.prediction_layer):
                draw = keras.initializers.RandomNormal(stddev=0.01)
                layer.kernel.assign(draw(layer.kernel.shape))
                layer.bias.assign(ops.zeros_like(layer.bias))
        bias = self.classification_head.prediction_layer.bias
        bias.assign(ops.full_like(bias, -math.log(99.0)))
        # Else boxes would be rounded to the few digits of mixed precision.
        for layer in (self.label_encoder, self.label_encoder.box_matcher):
            layer.dtype_policy = "float32"

    def fit(self, *args, **kwargs):
        """As in `keras.Model`, of batches that come in their order."""
        return super().fit(*args, **{"shuffle": False, **kwargs})

    def compute_loss(self, x, y, y_pred, sample_weight=None, **_):
        """This device's share of the loss."""
        boxes, labels = self.label_encoder(
            images=x, gt_boxes=y["boxes"], gt_classes=y["labels"]
        )
        logits = ops.cast(y_pred["cls_logits"], "float32")
        deltas = ops.cast(y_pred["bbox_regression"], "float32")
        # -1 is background; -2 neither counts as such nor as an object.
        found = ops.cast(labels > -1.0, "float32")[..., None]
        known = ops.cast(labels > -2.0, "float32")[..., None]
        targets = ops.one_hot(ops.cast(labels, "int32"), self.num_classes)
        errors = ops.softplus(logits) - targets * logits
        missing = 1.0 - ops.exp(-errors)
        shares = 0.25 * targets + 0.75 * (1.0 - targets)
        loss = ops.sum(known * shares * missing**2 * errors)
        loss += ops.sum(found * ops.abs(deltas - boxes))
        loss /= ops.maximum(sum_over_replicas(ops.sum(found)), 1.0)
        # Of weights; the same on each device.
        return loss + sum(self.losses, 0.0) / num_replicas()

    def detect(self, images):
        """Boxes that are the best of their class where they are.

        Args:
            images: Pixels in [0, 255], `(batch, height, width, 3)`.

        Returns:
            Boxes `(batch, 100, 4)`, the pixels ymin, xmin, ymax, xmax; scores
            and class ids `(batch, 100)`, of which the first `(batch,)` are
            there.
        """
        import tensorflow as tf

        found = self(images, training=False)
        anchors = ops.concatenate([*self.anchor_generator(images).values()])
        boxes = keras.utils.bounding_boxes.decode_deltas_to_boxes(
            anchors,
            ops.cast(found["bbox_regression"], "float32"),
            anchor_format=_FORMAT,
            box_format=_FORMAT,
            encoded_format="center_xywh",
            image_shape=images.shape[1:],
        )
        # As KerasHub's and torchvision's RetinaNet; COCO takes 100 boxes.
        return tf.image.combined_non_max_suppression(
            boxes[:, :, None],
            ops.sigmoid(ops.cast(found["cls_logits"], "float32")),
            max_output_size_per_class=100,
            max_total_size=100,
            iou_threshold=0.5,
            score_threshold=0.05,
            clip_boxes=False,
        )


def stages(model):
    """The last features of each stride of a residual network.

    Args:
        model: A functional model of images of one size, of which networks may
            be layers.

    Returns:
        `{stride: tensor}` of the strides 2, 4, 8 ... that sums followed by a
        ReLU have, in the network that is the last layer of `model`, or in
        `model`.
    """
    network = _network(model)
    side = network.inputs[0].shape[1]
    sums = {
        id(layer.output)
        for layer in network.layers
        if isinstance(layer, keras.layers.Add)
    }
    active = (keras.layers.ReLU, keras.layers.Activation)
    found = {}
    for layer in network.layers:
        if isinstance(layer, active) and id(layer.input) in sums:
            stride, rest = divmod(side, layer.output.shape[1])
            if not rest and stride & (stride - 1) == 0:
                found[stride] = layer.output
    return found


def build_detector(model, pyramid, side, num_classes):
    """A detector whose backbone is a classifier's, with its weights.

    The first stage keeps its weights, and batch normalizations their
    statistics, scales and offsets.

    Args:
        model: A classifier of RGB images as `stages` takes them; what comes
            before its network, but for a change of size, is kept.
        pyramid: A `Pyramid`.
        side: Height and width of images, a multiple of 2^k for its last level
            k.
        num_classes: Number of classes.

    Returns:
        A `Detector`, not compiled.

    Raises:
        ValueError: If the network has no features of the first level, or the
            images are not of a size for the last.

    Reference:
        Lin et al., Feature Pyramid Networks for Object Detection, CVPR 2017,
        section 3, https://arxiv.org/abs/1612.03144; what is not trained:
        https://github.com/jwyang/faster-rcnn.pytorch
    """
    first, last = pyramid.levels
    if side % 2**last:
        raise ValueError(
            f"`side` must be a multiple of {2**last}. Received: side={side}"
        )
    known = stages(model)
    levels = [k for k in range(first, last + 1) if 2**k in known]
    if first not in levels or levels != [*range(first, levels[-1] + 1)]:
        raise ValueError(
            "`model` must be a residual network with features of stride "
            f"{2**first}. Received: strides {sorted(known)}"
        )
    lowest = known[min(known)]
    network = keras.Model(
        _network(model).inputs[0], [lowest, *(known[2**k] for k in levels)]
    )
    inputs = keras.Input((side, side, 3))
    x = inputs
    kept = keras.layers.Normalization | keras.layers.Rescaling
    for layer in model.layers:
        if isinstance(layer, kept):
            x = type(layer).from_config(layer.get_config())(x)
    clone = keras.models.clone_model(
        network, input_tensors=keras.Input((side, side, 3))
    )
    clone.set_weights(network.get_weights())
    fixed = keras.Model(clone.inputs[0], clone.outputs[0]).layers
    for layer in clone.layers:
        if layer in fixed or isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    features = dict(zip(levels, clone(x)[1:], strict=True))
    outputs = _pyramid(features, pyramid)
    backbone = keras.Model(inputs, outputs)
    # What KerasHub reads.
    backbone.image_shape = (side, side, 3)
    backbone.min_level, backbone.max_level = pyramid.levels
    return Detector(
        backbone,
        num_classes,
        bounding_box_format=_FORMAT,
        anchor_generator=keras_hub.layers.AnchorGenerator(
            _FORMAT,
            first,
            last,
            num_scales=pyramid.num_scales,
            aspect_ratios=[0.5, 1.0, 2.0],
            anchor_size=pyramid.anchor_size,
        ),
        pre_logits_num_conv_layers=pyramid.depth,
    )


def _network(model):
    inner = [x for x in model.layers if isinstance(x, keras.Model)]
    return inner[-1] if inner else model


def _pyramid(features, pyramid):
    """Features of all levels, by their names."""

    def convolution(x, size, name, stride=1):
        return keras.layers.Conv2D(
            pyramid.width, size, stride, "same", name=f"pyramid_{name}"
        )(x)

    x, merged = None, {}
    for level in sorted(features, reverse=True):
        lateral = convolution(features[level], 1, f"lateral_{level}")
        if x is not None:
            lateral = keras.layers.Add()(
                [lateral, keras.layers.UpSampling2D()(x)]
            )
        x = merged[level] = lateral
    found = {k: convolution(x, 3, f"output_{k}") for k, x in merged.items()}
    for level in range(max(features) + 1, pyramid.levels[1] + 1):
        x = found[level - 1]
        if level > max(features) + 1:
            x = keras.layers.ReLU()(x)
        found[level] = convolution(x, 3, f"output_{level}", 2)
    return {f"P{level}": found[level] for level in sorted(found)}

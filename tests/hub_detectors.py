"""A small detector of KerasHub with random weights, and boxes for it."""

import hub_tasks
import keras
import numpy as np

SIDE = 32


def detector(**options):
    """A RetinaNet with random weights, whose boxes are the anchors."""
    keras.utils.set_random_seed(0)
    hub = hub_tasks.keras_hub()
    encoder = hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 16, 16, 16],
        stackwise_num_blocks=[1, 1, 1, 1],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="basic_block",
        image_shape=(SIDE, SIDE, 3),
    )
    backbone = hub.models.RetinaNetBackbone(
        image_encoder=encoder,
        min_level=3,
        max_level=5,
        use_p5=False,
        image_shape=(SIDE, SIDE, 3),
    )
    # Boxes move with their images in the format of the converter.
    converter = hub.layers.RetinaNetImageConverter(
        image_size=(SIDE, SIDE), scale=1 / 255, bounding_box_format="yxyx"
    )
    found = hub.models.RetinaNetObjectDetector(
        backbone=backbone,
        num_classes=3,
        bounding_box_format="yxyx",
        pre_logits_num_conv_layers=1,
        preprocessor=hub.models.RetinaNetObjectDetectorPreprocessor(
            image_converter=converter
        ),
        prediction_decoder=hub.layers.NonMaxSuppression(
            bounding_box_format="yxyx",
            from_logits=True,
            confidence_threshold=0.01,
            max_detections=12,
        ),
        **options,
    )
    for weight in found.box_head.weights:
        weight.assign(keras.ops.zeros_like(weight))
    return found


def boxes(count):
    """Two boxes of each image of `hub_tasks.images`."""
    corners = [[2, 3, 18, 27], [0, 0, 20, 14]]
    return {
        "boxes": np.tile(np.array(corners, "float32"), (count, 1, 1)),
        "labels": np.tile([0, 1], (count, 1)),
    }


def true_of(found):
    """True boxes: the surest or, of each third image, the third surest."""
    kept = (
        np.arange(3)
        == np.where(np.arange(len(found["labels"])) % 3, 0, 2)[:, None]
    )
    labels = np.where(kept, found["labels"][:, :3], -1)
    return {"boxes": found["boxes"][:, :3].copy(), "labels": labels}

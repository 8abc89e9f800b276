"""KerasHub's object detectors are measured as they come."""

import hub_tasks
import keras
import numpy as np
import pytest

import keras_calib as kc

pytestmark = [pytest.mark.slow, hub_tasks.NEEDS_HUB]


def _detector():
    """A small RetinaNet with random weights, whose boxes are the anchors."""
    keras.utils.set_random_seed(0)
    encoder = hub_tasks.keras_hub().models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 16, 16, 16],
        stackwise_num_blocks=[1, 1, 1, 1],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="basic_block",
        image_shape=(32, 32, 3),
    )
    backbone = hub_tasks.keras_hub().models.RetinaNetBackbone(
        image_encoder=encoder,
        min_level=3,
        max_level=4,
        use_p5=False,
        image_shape=(32, 32, 3),
    )
    detector = hub_tasks.keras_hub().models.RetinaNetObjectDetector(
        backbone=backbone,
        num_classes=3,
        bounding_box_format="yxyx",
        pre_logits_num_conv_layers=1,
    )
    detector.prediction_decoder = (
        hub_tasks.keras_hub().layers.NonMaxSuppression(
            bounding_box_format="yxyx",
            from_logits=True,
            confidence_threshold=0.0,
            max_detections=12,
        )
    )
    for weight in detector.box_head.weights:
        weight.assign(keras.ops.zeros_like(weight))
    return detector


def test_what_a_keras_hub_detector_predicts_is_read_and_scaled():
    rng = np.random.default_rng(0)
    images = rng.random((6, 32, 32, 3)).astype("float32")
    found = _detector().predict(images, batch_size=3, verbose=0)
    # The first box of each image is there.
    true = {"boxes": found["boxes"][:, :2].copy(), "classes": -np.ones((6, 2))}
    true["classes"][:, 0] = found["labels"][:, 0]
    records = kc.match_detections(
        true, found, box_format="yxyx", image_shape=(32, 32)
    )
    assert len(records.label) == found["num_detections"].sum() > 0
    assert records.max_detections == 12
    assert records.correct.sum() == records.num_true == 6
    metric = kc.DetectionECE(num_classes=3, box_format="yxyx")
    metric.update_state(true, found)
    value = kc.detection_ece(records).value
    np.testing.assert_allclose(float(metric.result()), value, rtol=1e-6)
    scaled = kc.DetectionScaling(3, by_class=False).fit(records)(found)
    assert set(scaled) == set(found)
    after = kc.match_detections(true, scaled, box_format="yxyx")
    assert kc.detection_ece(after).value < value

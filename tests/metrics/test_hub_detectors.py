"""KerasHub's object detectors go from training to calibrated answers."""

import hub_detectors
import hub_tasks
import keras
import numpy as np
import pytest

import keras_calib as kc

pytestmark = [pytest.mark.slow, hub_tasks.NEEDS_HUB]


def repeated(boxes):
    """Boxes of enough images for a guarantee."""
    return {k: np.concatenate([x] * 60) for k, x in boxes.items()}


# Of the optimizer, which KerasHub does not restore.
@pytest.mark.filterwarnings("ignore:Skipping variable loading")
def test_a_keras_hub_detector_is_trained_measured_and_calibrated(tmp_path):
    images = hub_tasks.images(7).astype("float32")
    detector = hub_detectors.detector()
    log = detector.fit(images, hub_detectors.boxes(7), batch_size=4, verbose=0)
    assert np.isfinite(log.history["loss"]).all() and log.history["loss"][0] > 0
    for weight in detector.box_head.weights:
        weight.assign(keras.ops.zeros_like(weight))
    suppression = detector.prediction_decoder
    # Seven images in batches of three, of which the last is not full.
    detector.prediction_decoder = kc.detection.CalibratedDecoder(suppression)
    found = detector.predict(images, batch_size=3, verbose=0)
    detector.prediction_decoder = suppression
    whole = detector.predict(images[:6], batch_size=6, verbose=0)
    for name, value in whole.items():
        np.testing.assert_allclose(found[name][:6], value, atol=1e-3)
    true = hub_detectors.true_of(found)
    records = kc.detection.match(
        true, found, box_format="yxyx", image_shape=(32, 32)
    )
    assert len(records.groups["class"]) == found["num_detections"].sum() > 0
    assert records.max_detections == 12
    assert records.correct.sum() == 7
    metric = kc.detection.DetectionECE(num_classes=3, box_format="yxyx")
    metric.update_state(true, found)
    value = kc.detection.detection_ece(records).value
    np.testing.assert_allclose(float(metric.result()), value, rtol=1e-6)
    scaling = kc.detection.DetectionScaling(3, by_class=False).fit(records)
    chosen = kc.detection.choose_detection_threshold(
        kc.detection.match(
            *map(repeated, (true, scaling(found))), box_format="yxyx"
        ),
        precision=0.05,
        max_boxes=5,
    )
    selector = kc.detection.DetectionSelector(scaling, chosen)
    detector.prediction_decoder = kc.detection.CalibratedDecoder(
        suppression, selector
    )
    answers = detector.predict(images, batch_size=3, verbose=0)
    assert 0 < answers["num_detections"].sum() <= 5 * 7
    for name, value in selector(found).items():
        np.testing.assert_allclose(answers[name], value, atol=1e-3)
    after = kc.detection.match(true, answers, box_format="yxyx")
    assert (
        kc.detection.detection_ece(after).value
        < kc.detection.detection_ece(records).value
    )
    detector.save(tmp_path / "detector.keras")
    loaded = keras.models.load_model(tmp_path / "detector.keras", compile=False)
    for name, value in loaded.predict(images, batch_size=7, verbose=0).items():
        np.testing.assert_allclose(answers[name], value, atol=1e-3)

"""KerasHub's object detectors are served as they predict, and selected."""

import re

import hub_detectors
import hub_tasks
import numpy as np
import pytest

import keras_calib as kc

tf = pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.slow, hub_tasks.NEEDS_HUB]


@pytest.fixture(scope="module")
def detector():
    """With random weights."""
    return hub_detectors.detector()


@pytest.fixture(scope="module")
def selector():
    scaling = kc.detection.DetectionScaling(
        3, coefficients=[[1, 0.5], [0.5, 0], [2, 1]]
    )
    return kc.detection.DetectionSelector(
        scaling, [0.6, 0.5, np.inf], max_boxes=4
    )


@pytest.fixture(scope="module")
def folder(detector, selector, tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "1"
    return kc.export(detector, path, selector=selector)


def test_served_boxes_are_those_of_predict(detector, selector, folder):
    images = hub_tasks.images(5).astype("float32")
    bare = detector.prediction_decoder
    detector.prediction_decoder = kc.detection.CalibratedDecoder(bare, selector)
    expected = detector.predict(images, batch_size=5, verbose=0)
    detector.prediction_decoder = bare
    served = tf.saved_model.load(str(folder))
    answers = served.signatures["serving_default"](images=images)
    files = tf.stack([tf.io.encode_png(x) for x in hub_tasks.images(5)])
    of_files = served.signatures["serving_bytes"](image_bytes=files)
    number = expected["num_detections"]
    assert 0 < number.sum() < 60 and set(expected["labels"].ravel()) > {-1}
    for found in (answers, of_files):
        assert set(found) == {*expected, "accept"}
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, atol=1e-3)
        np.testing.assert_array_equal(
            found["accept"], np.arange(12) < number[:, None]
        )
    # A threshold may be replaced in the file.
    served.threshold[0].assign([2.0, 2.0, 2.0])
    answers = served.signatures["serving_default"](images=images)
    assert not answers["num_detections"].numpy().any()


def test_what_serves_no_detector_is_refused(detector, selector, tmp_path):
    path = tmp_path / "served"
    temperature = kc.TemperatureScaling(temperature=2.0)
    refused = {
        "`from_logits` must be left out": {"from_logits": True},
        "`certificate` must be left out": {"certificate": True},
        "`format` must be 'savedmodel'": {"format": "onnx"},
        "`calibrator` must be a DetectionScaling": {"calibrator": temperature},
        "`selector` must be a DetectionSelector": {"selector": temperature},
        "leave it out": {
            "calibrator": selector.calibrator,
            "selector": selector,
        },
        "`image_size` must be that of": {"image_size": (64, 64)},
        "`sample_inputs` must be images": {"sample_inputs": np.ones((2, 3))},
    }
    for message, options in refused.items():
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            kc.export(detector, path, **options)
    assert not path.exists()

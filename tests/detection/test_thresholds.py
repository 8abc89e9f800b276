"""Thresholds of detectors keep their precision, whatever an image holds."""

import re

import numpy as np
import pytest
from scored_boxes import images, made, records

import keras_calib as kc
from keras_calib.formulas.bounded_means import betting_p_value

NUM, MOST = 250, 12
TRIED = np.arange(95, 0, -6) / 100


def _drawn(rng, wrong, *, together=True):
    """Boxes of `NUM` images, all right or all wrong in each if `together`."""
    count = rng.integers(0, MOST + 1, NUM)
    image = np.repeat(np.arange(NUM), count)
    size = len(image)
    right = rng.uniform(size=NUM if together else size) >= wrong
    right = right[image] if together else right
    confidence = rng.uniform(size=size)
    return made(confidence, right, image, num_images=NUM, most=MOST)


def _chosen(found, **options):
    try:
        return kc.detection.choose_detection_threshold(
            found, thresholds=TRIED, **options
        ).threshold
    except ValueError:
        return None


@pytest.mark.parametrize("average", ["boxes", "images"])
def test_a_precision_that_is_missed_is_seldom_certified(average):
    rng = np.random.default_rng(0)
    failed = [
        _chosen(_drawn(rng, 0.2), precision=0.8, delta=0.1, average=average)
        is not None
        for _ in range(60)
    ]
    # Bin(60, 0.1) exceeds 12 with a probability of 0.4 %.
    assert sum(failed) <= 12


@pytest.mark.parametrize("average", ["boxes", "images"])
def test_a_precision_that_is_kept_is_certified(average):
    rng = np.random.default_rng(1)
    found = [
        _chosen(_drawn(rng, 0.05), precision=0.7, average=average)
        for _ in range(10)
    ]
    assert None not in found


def test_losses_are_those_of_the_boxes_that_an_image_keeps():
    found = records()
    one = kc.detection.choose_detection_threshold(
        found, precision=0.15, max_boxes=3, thresholds=[0.9, 0.5, 0.1]
    )
    for place, threshold in enumerate((0.9, 0.5, 0.1)):
        losses = []
        for image in range(found.num_images):
            own = found.units == image
            order = np.argsort(-found.confidence[own], kind="stable")[:3]
            kept = found.confidence[own][order] >= threshold
            wrong = kept & (found.correct[own][order] == 0)
            losses.append(0.85 + (wrong.sum() - 0.85 * kept.sum()) / 3)
        p_value = betting_p_value(np.clip(losses, 0, 1), 0.85)
        np.testing.assert_allclose(
            one.facts["p_values"][place], p_value, rtol=1e-9
        )
    kept = one.facts["boxes_per_image"] * found.num_images
    assert round(one.facts["precision"] * kept) == round(
        one.facts["recall"] * found.num_true
    )
    assert one.threshold == one.table().threshold[one.table().certified][-1]


REFUSED = {
    "precision": ({"precision": 1.0}, "`precision` must be < 1"),
    "delta": ({"delta": 0.0}, "`delta` must be > 0"),
    "average": ({"average": "classes"}, "`average` must be one of"),
    "max_boxes": ({"max_boxes": None}, "`max_boxes` must be given"),
    "thresholds": ({"thresholds": [0.0]}, "`thresholds` must lie in (0, 1]"),
    "reach": ({"precision": 0.99}, "No threshold is certified"),
    "shape": ({"thresholds": 0.5}, "(num_thresholds,)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_certified_is_refused(name):
    changed, message = REFUSED[name]
    options = {"precision": 0.15, "max_boxes": 40} | changed
    with pytest.raises(ValueError, match=re.escape(message)):
        kc.detection.choose_detection_threshold(records(), **options)


def test_only_records_have_thresholds():
    with pytest.raises(TypeError, match="detection.match"):
        kc.detection.choose_detection_threshold(images("found"), precision=0.9)

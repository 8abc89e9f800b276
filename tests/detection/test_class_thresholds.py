"""Thresholds by class keep the precision of all classes at once."""

import re

import numpy as np
import pytest
from scored_boxes import changed, images, made, records

import keras_calib as kc

NUM, MOST = 200, 4


def _drawn(rng, wrong, *, alike):
    """Boxes of `NUM` images; those of one class are right or wrong together.

    If `alike`, an image is right or wrong for all of its classes.
    """
    num_classes = len(wrong)
    count = rng.integers(0, MOST + 1, (NUM, num_classes))
    ease = rng.uniform(size=(NUM, 1 if alike else num_classes))
    right = np.broadcast_to(ease, count.shape) >= wrong
    image, label = (
        np.repeat(x.ravel(), count.ravel()) for x in np.indices(count.shape)
    )
    right = np.repeat(right.ravel(), count.ravel())
    confidence = rng.uniform(size=len(image))
    return made(
        confidence, right, image, label=label, num_images=NUM, most=MOST
    )


def _chosen(found, num_classes, **options):
    try:
        return kc.detection.choose_detection_threshold(
            found, num_classes=num_classes, **options
        )
    except ValueError:
        return None


@pytest.mark.parametrize("average", ["boxes", "images"])
@pytest.mark.parametrize("alike", [True, False])
def test_a_class_that_misses_its_precision_is_seldom_certified(average, alike):
    rng = np.random.default_rng(0)
    wrong = np.full(8, 0.2)
    failed = [
        _chosen(
            _drawn(rng, wrong, alike=alike),
            8,
            precision=0.8,
            delta=0.1,
            average=average,
            thresholds=[0.2],
        )
        is not None
        for _ in range(60)
    ]
    # Bin(60, 0.1) exceeds 12 with a probability of 0.4 %.
    assert sum(failed) <= 12


def test_good_classes_get_a_threshold_and_others_an_advice():
    rng = np.random.default_rng(1)
    found = _drawn(rng, np.array([0.02, 0.9, 0.05, 0.0, 0.0]), alike=False)
    rare = (found.groups["class"] == 3) & (found.units >= 10)
    rare |= found.groups["class"] == 4
    chosen = kc.detection.choose_detection_threshold(
        found[~rare],
        num_classes=5,
        precision=[0.7, 0.7, 0.8, 0.7, 0.7],
        average="images",
    )
    assert np.isfinite(chosen.threshold).tolist() == [True, False, True] + 2 * [
        False
    ]
    advice = chosen.facts["advice"]
    assert advice[0] == advice[2] == ""
    assert "ask for less" in advice[1] and "no box" in advice[4]
    fewest = int(re.search(r"at least (\d+) images", advice[3])[1])
    assert fewest > chosen.group_samples[3] > 0
    assert advice[1] in repr(chosen) and "3 of 5" not in repr(chosen)
    # So many images do, if all of their boxes are right.
    options = {"num_classes": 5, "precision": 0.7, "average": "images"}
    for number, enough in ((fewest, True), (fewest - 1, False)):
        one = made(
            np.full(number, 0.995),
            np.ones(number, bool),
            np.arange(number),
            label=3,
            num_images=number,
            most=MOST,
        )
        chosen = _chosen(one, **options, thresholds=[0.5])
        assert (chosen is not None) == enough
        assert not enough or chosen.threshold[3] == 0.5


def test_one_class_alone_has_the_threshold_of_all_boxes():
    found = changed(records(), classes=np.zeros_like(records().groups["class"]))
    options = {"precision": 0.15, "max_boxes": 3, "thresholds": [0.9, 0.5, 0.1]}
    one = kc.detection.choose_detection_threshold(found, **options)
    by_class = kc.detection.choose_detection_threshold(
        found, num_classes=1, **options
    )
    # Images without a box say nothing, and are left out here.
    assert by_class.threshold[0] <= one.threshold
    assert by_class.facts["level"] == one.delta
    kept = kc.detection.DetectionSelector(threshold=by_class)
    assert kept.by_class and kept.max_boxes == 3


REFUSED = {
    "reach": ({"precision": 0.99}, "class 0: "),
    "precision": ({"precision": [0.5, 0.5]}, "or have one for each class"),
    "range": ({"precision": [0.5, 0.5, 1.0, 0.5]}, "`precision` must be < 1"),
    "classes": ({"num_classes": 2}, "must be < `num_classes`"),
    "max_boxes": ({"max_boxes": None}, "`max_boxes` must be given"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_certified_is_refused(name):
    changed, message = REFUSED[name]
    options = {"num_classes": 4, "precision": 0.1, "max_boxes": 9} | changed
    with pytest.raises(ValueError, match=re.escape(message)):
        kc.detection.choose_detection_threshold(records(), **options)


def test_only_records_have_thresholds():
    with pytest.raises(TypeError, match="detection.match"):
        kc.detection.choose_detection_threshold(
            images("found"), num_classes=4, precision=0.5
        )

"""Thresholds of boxes by class: how often one misses its precision.

Images hold a random number of boxes of each class. In the rows "flat" every
class misses its precision at each threshold by nothing, the hardest case. In
"mixed" every second class does, and the others are right in 97 of 100 boxes,
so that they pass their share of delta on. Boxes of one class in one image are
right or wrong together; "alike" images are right or wrong for all classes.

Failures are shares of draws in which any class has a certified threshold that
misses its precision, at delta = 0.1: with `choose_detection_threshold`,
and with a threshold for each class at delta as if it stood alone. "Kept" is the
share of good classes that have a threshold.

    python benchmarks/detection_classes.py --num_draws=100 \
        --out=benchmarks/results/detection_classes.md

It takes about two minutes on one CPU core.
"""

from collections.abc import Iterator

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish

import keras_calib as kc

_NUM_DRAWS = flags.DEFINE_integer("num_draws", 100, "Per row.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

MOST = 4
PRECISION, DELTA = 0.8, 0.1


def drawn(
    rng: np.random.Generator, images: int, wrong: np.ndarray, alike: bool
) -> kc.detection.BoxPredictions:
    """Images with up to four boxes of each class."""
    count = rng.integers(0, MOST + 1, (images, len(wrong)))
    ease = rng.uniform(size=(images, 1 if alike else len(wrong)))
    right = np.broadcast_to(ease, count.shape) >= wrong
    image, label = (
        np.repeat(x.ravel(), count.ravel()) for x in np.indices(count.shape)
    )
    right = np.repeat(right.ravel(), count.ravel())
    confidence = rng.uniform(size=len(image))
    return kc.detection.BoxPredictions(
        right,
        confidence,
        classes=label,
        images=image,
        overlap=right * 1.0,
        true_boxes=np.bincount(image[right], minlength=images),
        max_detections=MOST,
    )


def certified(
    records: kc.detection.BoxPredictions, num_classes: int, average: str
) -> np.ndarray:
    """Whether each class has a threshold."""
    try:
        found = kc.detection.choose_detection_threshold(
            records,
            num_classes=num_classes,
            precision=PRECISION,
            delta=DELTA,
            average=average,
            thresholds=[0.75, 0.5, 0.25],
        )
    except ValueError:
        return np.zeros(num_classes, bool)
    return np.isfinite(found.threshold)


def of_class(
    boxes: kc.detection.BoxPredictions, label: int
) -> kc.detection.BoxPredictions:
    """The boxes of one class, as the only class."""
    own = boxes[boxes.groups["class"] == label]
    own.groups["class"][:] = 0
    return own


def rows(rng: np.random.Generator) -> Iterator[list]:
    for kind in ("flat", "mixed"):
        for num_classes in (3, 10):
            for alike in (False, True):
                for average in ("boxes", "images"):
                    good = np.arange(num_classes) % 2 < (kind == "mixed")
                    wrong = np.where(good, 0.03, 1.0 - PRECISION)
                    found = []
                    for _ in range(_NUM_DRAWS.value):
                        one = drawn(rng, 400, wrong, alike)
                        together = certified(one, num_classes, average)
                        alone = np.concatenate(
                            [
                                certified(of_class(one, k), 1, average)
                                for k in range(num_classes)
                            ]
                        )
                        kept = together[good].mean() if good.any() else np.nan
                        found.append(
                            [together[~good].any(), alone[~good].any(), kept]
                        )
                    values = np.mean(found, axis=0)
                    yield [
                        kind,
                        num_classes,
                        "yes" if alike else "no",
                        average,
                        *(f"{x:.3f}" for x in values[:2]),
                        "" if np.isnan(values[2]) else f"{values[2]:.3f}",
                    ]


def main(_):
    rng = np.random.default_rng(_SEED.value)
    header = ["classes are", "number", "alike", "average", "failed"]
    text = [
        f"Seed {_SEED.value}. {machine()}.",
        f"400 images, precision {PRECISION}, delta = {DELTA}, "
        f"{_NUM_DRAWS.value} draws a row:",
        markdown_table([*header, "failed, not shared", "kept"], rows(rng)),
    ]
    publish("\n\n".join(text), _OUT.value)


if __name__ == "__main__":
    app.run(main)

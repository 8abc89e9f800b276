"""Detections: time of each step, and what intervals and thresholds promise.

The times are those of the CPU, for made-up boxes: 5,000 images of 100
detections and about 8 true boxes, of 80 classes. The peer is COCOeval of
pycocotools, its matching at one overlap (`evaluate` after `loadRes`), where it
is installed.

Coverage is that of 95 % intervals on images with a random number of boxes,
whose confidence and correctness depend on each other by a shared part ("alike",
the share of the variance that the boxes of an image have in common). The true
precision is the confidence less gap sin(pi confidence). The true value of an
error is that of 60,000 images.

Failures are shares of draws in which `choose_detection_threshold` certifies a
precision that the population misses, at delta = 0.1. Rows "flat" miss it at
each threshold by nothing: the hardest case. In "full" images, a share of 2 %
are full of wrong boxes. In "crossing", precision rises with the threshold, and
is the target at 0.5.

    python benchmarks/detections.py --num_draws=60 \
        --out=benchmarks/results/detections.md

It takes about two minutes on one CPU core.
"""

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish
from scipy.special import ndtr

import keras_calib as kc

_NUM_DRAWS = flags.DEFINE_integer("num_draws", 60, "Per row.")
_NUM_IMAGES = flags.DEFINE_integer("num_images", 5000, "Of the times.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

NUM_CLASSES = 80
SIDE = 640


def boxes(rng: np.random.Generator, images: int) -> tuple[dict, dict]:
    """True boxes, and 100 detections near some of them in each image."""
    corners = rng.uniform(0, SIDE - 140, (images, 20, 2))
    sizes = rng.uniform(20, 140, (images, 20, 2))
    true = np.concatenate([corners, corners + sizes], axis=-1)
    labels = rng.integers(0, NUM_CLASSES, (images, 20))
    labels[rng.random((images, 20)) < 0.6] = -1
    pick = rng.integers(0, 20, (images, 100))
    found = np.take_along_axis(true, pick[..., None], axis=1)
    found = found + rng.normal(0, 15, found.shape)
    found[..., 2:] = np.maximum(found[..., 2:], found[..., :2] + 1.0)
    classes = np.take_along_axis(labels, pick, axis=1)
    guess = rng.integers(0, NUM_CLASSES, classes.shape)
    return {"boxes": true, "labels": labels}, {
        "boxes": found,
        "labels": np.where(classes < 0, guess, classes),
        "confidence": rng.beta(0.6, 2.0, (images, 100)),
    }


def _coco(true: dict, found: dict) -> Callable[[], Any] | None:
    """The matching of COCOeval, or None without it."""
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError:
        return None

    def extents(x):
        return np.concatenate([x[..., :2], x[..., 2:] - x[..., :2]], axis=-1)

    known, annotations = COCO(), []
    for image, box in np.argwhere(true["labels"] >= 0):
        extent = extents(true["boxes"][image, box])
        annotations.append(
            {
                "id": len(annotations) + 1,
                "image_id": int(image),
                "category_id": int(true["labels"][image, box]),
                "bbox": extent.tolist(),
                "area": float(extent[2] * extent[3]),
                "iscrowd": 0,
            }
        )
    known.dataset = {
        "images": [{"id": i} for i in range(len(true["labels"]))],
        "categories": [{"id": k} for k in range(NUM_CLASSES)],
        "annotations": annotations,
    }
    known.createIndex()
    image = np.repeat(np.arange(len(found["labels"])), 100)
    rows = np.concatenate(
        [
            image[:, None],
            extents(found["boxes"]).reshape(-1, 4),
            found["confidence"].reshape(-1, 1),
            found["labels"].reshape(-1, 1),
        ],
        axis=1,
    )

    def run():
        part = COCOeval(known, known.loadRes(rows), "bbox")
        part.params.iouThrs = np.array([0.5])
        part.params.areaRng = [part.params.areaRng[0]]
        part.params.areaRngLbl = ["all"]
        part.params.maxDets = [100]
        part.evaluate()

    return run


def times(rng: np.random.Generator) -> Iterator[list]:
    true, found = boxes(rng, _NUM_IMAGES.value)
    records = kc.detection.match(true, found, image_shape=(SIDE, SIDE))
    features = ("center_x", "center_y", "width", "height")

    def stream():
        metric = kc.detection.DetectionECE(num_classes=NUM_CLASSES)
        for start in range(0, _NUM_IMAGES.value, 50):
            rows = slice(start, start + 50)
            metric.update_state(
                *(
                    {k: x[rows] for k, x in part.items()}
                    for part in (true, found)
                )
            )
        return metric.result()

    steps = {
        "match": lambda: kc.detection.match(true, found),
        "detection_ece": lambda: kc.detection.detection_ece(records),
        "detection_ece, 4 features": lambda: kc.detection.detection_ece(
            records, num_bins=5, features=features
        ),
        "localization_aware_ece": lambda: kc.detection.localization_aware_ece(
            records
        ),
        "adaptive_localization_error": lambda: (
            kc.detection.adaptive_localization_error(records)
        ),
        "DetectionScaling.fit": lambda: kc.detection.DetectionScaling(
            NUM_CLASSES
        ).fit(records),
        "choose_detection_threshold": lambda: (
            kc.detection.choose_detection_threshold(records, precision=0.05)
        ),
        "DetectionECE, batches of 50": stream,
    }
    peer = _coco(true, found)
    with contextlib.redirect_stdout(io.StringIO()):
        taken = {name: _seconds(step) for name, step in steps.items()}
        if peer is not None:
            taken["COCOeval, matching at 0.5"] = _seconds(peer)
    whole = taken["match"]
    for name, seconds in taken.items():
        yield [name, f"{seconds:.2f}", f"{seconds / whole:.2f}"]


def _seconds(step: Callable[[], Any]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def _records(image, confidence, right, overlap, label, images, most):
    return kc.detection.BoxPredictions(
        right,
        confidence,
        classes=label,
        images=image,
        overlap=overlap,
        true_boxes=np.bincount(image[right], minlength=images),
        max_detections=most,
    )


def dependent(
    rng: np.random.Generator,
    images: int,
    alike: float,
    gap: float,
    classes: int,
) -> Any:
    """Detections whose confidence and correctness depend within an image."""
    image = np.repeat(np.arange(images), rng.poisson(rng.gamma(2, 4, images)))
    size = len(image)

    def shared():
        common = rng.normal(size=images)[image]
        return np.sqrt(alike) * common + np.sqrt(1.0 - alike) * rng.normal(
            size=size
        )

    confidence = np.clip(ndtr(shared()), 0.001, 0.999)
    chance = confidence - gap * np.sin(np.pi * confidence)
    right = ndtr(shared()) < np.clip(chance, 0.0, 1.0)
    overlap = np.where(right, 0.5 + 0.5 * rng.random(size), 0.0)
    label = rng.integers(0, classes, size)
    return _records(image, confidence, right, overlap, label, images, 100)


ERRORS = {
    "D-ECE": (1, lambda x: kc.detection.detection_ece(x)),
    "D-ECE, mean of 5 classes": (
        5,
        lambda x: kc.detection.detection_ece(x, average="macro"),
    ),
    "LaECE, 10 bins": (
        1,
        lambda x: kc.detection.localization_aware_ece(x, num_bins=10),
    ),
}


def coverage(rng: np.random.Generator) -> Iterator[list]:
    for name, (classes, error) in ERRORS.items():
        for images in (100, 1000):
            for alike in (0.0, 0.3, 0.7):
                for gap in (0.0, 0.1):
                    whole = dependent(rng, 60_000, alike, gap, classes)
                    true = error(whole).value
                    if gap == 0.0 and name.startswith("D-ECE"):
                        true = 0.0
                    found = []
                    for _ in range(_NUM_DRAWS.value):
                        one = error(dependent(rng, images, alike, gap, classes))
                        holds = one.low <= true <= one.high
                        found.append([holds, one.high - one.low])
                    covered, width = np.mean(found, axis=0)
                    yield [
                        name,
                        f"{images:,}",
                        f"{alike:g}",
                        f"{true:.4f}",
                        f"{covered:.3f}",
                        f"{width:.4f}",
                    ]


def thresholded(
    rng: np.random.Generator, kind: str, images: int, most: int
) -> Any:
    count = rng.integers(0, most + 1, images)
    bad = rng.random(images) < 0.02
    if kind == "full":
        count = np.where(bad, most, rng.integers(1, 3, images))
    image = np.repeat(np.arange(images), count)
    size = len(image)
    confidence = rng.uniform(0.05, 1.0, size)
    right = rng.random(size) >= 0.1
    if kind == "flat, alike":
        right = (rng.random(images) >= 0.1)[image]
    elif kind == "full":
        right = ~bad[image]
    elif kind == "crossing":
        right = rng.random(size) >= np.clip(0.4 * (1.0 - confidence), 0, 1)
    label = np.zeros(size, int)
    return _records(image, confidence, right, right * 1.0, label, images, most)


def failures(rng: np.random.Generator) -> Iterator[list]:
    tried = np.arange(97, 5, -3) / 100
    for kind in ("flat, alike", "flat, independent", "full", "crossing"):
        for most, images in ((10, 300), (10, 2000), (100, 2000)):
            for average in ("boxes", "images"):
                wrong = 0.1
                if kind == "full":
                    full = 0.02 * most
                    wrong = full / (full + 0.98 * 1.5)
                    wrong = wrong if average == "boxes" else 0.02
                certified = failed = 0
                for _ in range(_NUM_DRAWS.value):
                    try:
                        found = kc.detection.choose_detection_threshold(
                            thresholded(rng, kind, images, most),
                            precision=1.0 - wrong,
                            delta=0.1,
                            average=average,
                            thresholds=tried,
                        )
                    except ValueError:
                        continue
                    certified += 1
                    missed = kind != "crossing" or found.threshold < 0.499
                    failed += missed
                yield [
                    kind,
                    f"{images:,}",
                    most,
                    average,
                    f"{1.0 - wrong:.3f}",
                    f"{certified / _NUM_DRAWS.value:.3f}",
                    f"{failed / _NUM_DRAWS.value:.3f}",
                ]


def main(_):
    rng = np.random.default_rng(_SEED.value)
    parts = [
        f"Seed {_SEED.value}. {machine()}.",
        f"{_NUM_IMAGES.value:,} images of 100 detections, {NUM_CLASSES} "
        "classes:",
        markdown_table(["step", "CPU seconds", "to matching"], times(rng)),
        f"95 % intervals, {_NUM_DRAWS.value} draws a row:",
        markdown_table(
            ["error", "images", "alike", "true", "coverage", "mean width"],
            coverage(rng),
        ),
        f"Thresholds, delta = 0.1, {_NUM_DRAWS.value} draws a row:",
        markdown_table(
            ["boxes", "images", "at most", "average", "precision"]
            + ["certified", "failed"],
            failures(rng),
        ),
    ]
    publish("\n\n".join(parts), _OUT.value)


if __name__ == "__main__":
    app.run(main)

"""Scores of logits, targets of labels, sequences, shares of boxes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from frozen.api import kc
from frozen.data_sets import CLASSES, TOKENS
from frozen.results import tried
from frozen.stored import Tolerance

# Softmax in float32.
TOLERANCE = Tolerance(relative=1e-6, absolute=1e-6)

SCORES = {
    "largest probability": kc.functional.msp,
    "largest logit": kc.functional.max_logit,
    "margin of logits": kc.functional.logit_margin,
    "margin of probabilities": kc.functional.prob_margin,
    "negative entropy": kc.functional.neg_entropy,
    "negative energy": kc.functional.neg_energy,
    "sum of squares": kc.functional.gini,
    "largest logit after its norm": kc.functional.p_norm,
}


def _sequences() -> Iterator[tuple[str, Any]]:
    ids = TOKENS.labels
    for moved in (False, True):
        found = kc.text.token_log_probs(TOKENS.logits, ids, next_token=moved)
        yield f"log-probabilities of tokens, moved {moved}/tokens", found
    log_probs = kc.text.token_log_probs(TOKENS.logits, ids)
    for reduction in ("geometric_mean", "product", "minimum", "mean"):
        for log_odds in (False, True):
            found = tried(
                kc.text.sequence_confidence,
                log_probs,
                TOKENS.weight > 0,
                reduction=reduction,
                log_odds=log_odds,
            )
            yield f"of sequences, {reduction}, {log_odds}/tokens", found
    found = kc.text.choice_logits(TOKENS.logits[:, -1], [[0, 3], [1], [5, 6]])
    yield "logits of choices/tokens", found


def _targets() -> Iterator[tuple[str, Any]]:
    data = CLASSES["ten classes"]
    labels = data.labels[:20]
    hot = np.eye(10)[labels]
    for spread in ("all", "others"):
        found = kc.losses.smooth_labels(hot, alpha=0.1, spread=spread)
        yield f"smoothed labels, {spread}/ten classes", found
    share = np.arange(20) % 9 / 8
    for floor in (None, "uniform"):
        found = kc.losses.objectness_targets(labels, share, 10, 0.75, floor)
        yield f"labels by objectness, {floor}/ten classes", found
    two = CLASSES["two classes"]
    for method in ("bins", "kernel"):
        for event in ("second", "predicted"):
            found = kc.losses.cape_targets(
                two.labels,
                two.probs,
                method=method,
                event=event,
                num_bins=8,
                window=30,
            )
            yield f"target probabilities, {method}, {event}/two classes", found


def _boxes() -> Iterator[tuple[str, Any]]:
    rng = np.random.default_rng(40)
    corner = rng.integers(0, 40, (3, 6, 2)) / 2
    size = rng.integers(1, 40, (3, 6, 2)) / 2
    boxes = np.concatenate([corner, corner + size], axis=-1).astype("float32")
    window = np.array([2.0, 3.0, 18.0, 21.0], "float32")
    kinds = rng.integers(0, 3, (3, 6))
    yield "boxes inside a window", kc.data.clip_boxes(boxes, window)
    yield "boxes of a crop", kc.data.crop_boxes(boxes, window)
    yield "boxes mirrored", kc.data.flip_boxes(boxes, (40.0, 40.0))
    yield (
        "boxes mirrored, vertical",
        kc.data.flip_boxes(boxes, (40.0, 40.0), "vertical"),
    )
    yield (
        "boxes of another size",
        kc.data.resize_boxes(boxes, (40, 40), (20, 60)),
    )
    yield "area of boxes", kc.data.union_area(boxes, window)
    yield "share of boxes", kc.data.objectness(window, boxes)
    found = kc.data.objectness(window, boxes, classes=(0, 2), box_labels=kinds)
    yield "share of boxes of some classes", found
    for touched in (False, True):
        mask = kc.data.boxes_to_mask(boxes[0] + 0.25, (40, 40), touched)
        yield f"area of a mask, touched {touched}", kc.data.mask_area(mask)
        yield (
            f"share of a mask, touched {touched}",
            kc.data.objectness_from_mask(mask),
        )


def quantities() -> Iterator[tuple[str, Any]]:
    """All of them."""
    for name in ("ten classes", "ties", "two classes", "pixels"):
        logits = CLASSES[name].logits
        logits = logits[:2, :3] if logits.ndim > 2 else logits[:20]
        for quantity, function in SCORES.items():
            yield f"{quantity}/{name}", function(logits)
        found = kc.functional.p_norm(logits, p=2.0, center=False)
        yield f"largest logit after its norm, not centred/{name}", found
    yield from _sequences()
    yield from _targets()
    yield from _boxes()
    counts = np.array([0, 1, 5, 17, 40])
    for level in (0.95, 0.8):
        low, high = kc.formulas.intervals.clopper_pearson(
            counts, 40, level=level
        )
        yield f"interval of a share, {level}", {"low": low, "high": high}

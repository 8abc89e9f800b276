"""Canvases: a background each, and several images with boxes placed on it."""

import numpy as np

# Images of a canvas, at most, and their longer side as a share of its side.
_COUNT, _SHARES = 4, (0.25, 0.6)
# How often a free place is looked for, with a new size each time.
_TRIES = 20


def make_canvases(examples, side, *, seed):
    """Places each image once, on as many canvases as that takes.

    A canvas holds one to four images, at random scales and places where they
    do not overlap. Its background is smooth noise.

    Args:
        examples: Dicts of an `image`, uint8 `(height, width, 3)`, its `boxes`
            `(n, 4)`, the shares ymin, xmin, ymax, xmax, and `labels` `(n,)`.
        side: Height and width of a canvas in pixels.
        seed: Seed of the order of the images, scales, places and backgrounds.

    Returns:
        A list of such dicts.
    """
    random = np.random.default_rng(seed)
    waiting = [examples[place] for place in random.permutation(len(examples))]
    canvases = []
    while waiting:
        image = _background(random, side)
        taken, boxes, labels = [], [], []
        for _ in range(random.integers(1, _COUNT + 1)):
            place = waiting and _free_place(
                random, side, waiting[-1]["image"].shape, taken
            )
            if not place:
                break
            example = waiting.pop()
            taken.append(place)
            top, left, height, width = place
            image[top : top + height, left : left + width] = _resized(
                example["image"], height, width
            )
            extent = np.array([height, width, height, width])
            corner = np.array([top, left, top, left])
            boxes.append((example["boxes"] * extent + corner) / side)
            labels.append(example["labels"])
        canvases.append(
            {
                "image": image,
                "boxes": np.concatenate(boxes).astype("float32"),
                "labels": np.concatenate(labels),
            }
        )
    return canvases


def _background(random, side):
    coarse = random.integers(0, 256, (4, 4, 3), dtype="uint8")
    return _resized(coarse, side, side)


def _resized(image, height, width):
    from PIL import Image

    resized = Image.fromarray(image).resize((width, height), Image.BILINEAR)
    return np.array(resized)


def _free_place(random, side, shape, taken):
    """Top, left, height and width where nothing is yet, or None."""
    for _ in range(_TRIES):
        scale = side * random.uniform(*_SHARES) / max(shape[:2])
        height, width = (max(1, round(scale * part)) for part in shape[:2])
        top = int(random.integers(0, side - height + 1))
        left = int(random.integers(0, side - width + 1))
        if all(
            max(top, y) >= min(top + height, y + h)
            or max(left, x) >= min(left + width, x + w)
            for y, x, h, w in taken
        ):
            return top, left, height, width
    return None

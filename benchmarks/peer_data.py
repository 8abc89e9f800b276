"""The same predictions for every library, and what is true of them.

Rows are probabilities of all classes, scores are top-1 confidences with
correctness; both come in batches from a fixed seed. The references are plain
NumPy in float64 and share no code with the library.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

NUM_BINS = 15


class Data(NamedTuple):
    """What is measured on.

    Attributes:
        num: Number of predictions.
        num_classes: Number of classes; 0 for top-1 scores.
    """

    num: int
    num_classes: int

    @property
    def batch_size(self) -> int:
        """Predictions in a batch; it divides `num`."""
        size = 10_000 if self.num_classes else 1_000_000
        return min(size, self.num)

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """`(labels, probs)`, or `(correct, confidence)` of scores."""
        make = self._rows if self.num_classes else self._scores
        rng = np.random.default_rng(0)
        size = self.batch_size
        noise = rng.standard_normal((size, self.num_classes), "float32")
        for _ in range(self.num // size):
            yield make(rng, noise)

    def whole(self) -> tuple[np.ndarray, np.ndarray]:
        """All batches in one."""
        width = [self.num_classes] if self.num_classes else []
        probs = np.empty([self.num, *width], "float32")
        labels = np.empty(self.num, "int32")
        for i, (y, p) in enumerate(self.batches()):
            part = slice(i * len(y), (i + 1) * len(y))
            labels[part], probs[part] = y, p
        return labels, probs

    def _rows(self, rng, noise):
        """Mostly sure and mostly right: confidences from 0.2 to 1."""
        size, num_classes = noise.shape
        labels = rng.integers(num_classes, size=size, dtype="int32")
        # One block of noise, stretched anew: normal deviates cost more than
        # what is measured.
        spread = rng.uniform(0.5, 1.5, (size, 1)).astype("float32")
        logits = noise * spread
        rise = rng.uniform(2.0, 11.0, size) + np.log(num_classes / 10)
        # Some point to a wrong class with the same certainty.
        guess = rng.integers(num_classes, size=size)
        honest = rng.random(size) < 0.9
        logits[np.arange(size), np.where(honest, labels, guess)] += rise
        logits -= logits.max(axis=-1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(axis=-1, keepdims=True)
        return labels, logits

    def _scores(self, rng, noise):
        """Of a sure network, in (0.5, 1]; overconfident by 0.01."""
        u = rng.random(len(noise), "float32")
        confidence = 1 - u**6 / 2
        correct = rng.random(len(u), "float32") < confidence - 0.01
        return correct.astype("int32"), confidence


def reference(data: Data) -> dict[str, float]:
    """ECE, AECE, AURC, and of rows also ClasswiseECE, in float64."""
    if not data.num_classes:
        return _top_one(*_scores_by_value(data))
    confidence, correct = [], []
    by_class = np.zeros((2, data.num_classes, NUM_BINS))
    for labels, probs in data.batches():
        confidence.append(probs.max(axis=-1))
        correct.append(probs.argmax(axis=-1) == labels)
        _add_classes(by_class, labels, probs)
    gaps = np.abs(by_class[0] - by_class[1])
    value, inverse, mass = np.unique(
        np.concatenate(confidence), return_inverse=True, return_counts=True
    )
    wrong = np.bincount(inverse, weights=~np.concatenate(correct))
    return {
        **_top_one(value.astype("float64"), mass, wrong),
        "ClasswiseECE": gaps.sum() / (data.num * data.num_classes),
    }


def _add_classes(by_class, labels, probs):
    """Adds p and labels by class and bin."""
    size, num_classes = probs.shape
    shape = (num_classes, NUM_BINS)
    for start in range(0, size, 1000):
        p = probs[start : start + 1000].astype("float64")
        y = labels[start : start + 1000]
        keys = NUM_BINS * np.arange(num_classes) + _bin(p)
        by_class[0] += np.bincount(
            keys.ravel(), p.ravel(), by_class[0].size
        ).reshape(shape)
        keys = keys[np.arange(len(y)), y]
        by_class[1] += np.bincount(keys, minlength=by_class[1].size).reshape(
            shape
        )


def _bin(p):
    return np.clip(np.ceil(p * NUM_BINS) - 1, 0, NUM_BINS - 1).astype("int64")


def _scores_by_value(data: Data):
    """Every distinct float32 confidence, how many have it, how many wrong."""
    first = np.float32(0.5).view("int32")
    counts = np.zeros((2, np.float32(1).view("int32") - first + 1), "int64")
    for correct, confidence in data.batches():
        bits = confidence.view("int32") - first
        for right in (0, 1):
            which = np.bincount(bits[correct == right])
            counts[right, : len(which)] += which
    seen = np.flatnonzero(counts.sum(axis=0))
    value = (seen + first).astype("int32").view("float32").astype("float64")
    return value, counts[:, seen].sum(axis=0), counts[0, seen].astype("float64")


def _top_one(value, mass, wrong) -> dict[str, float]:
    """From groups of tied confidences, ascending; ties in any order alike."""
    total = mass.sum()
    residual = mass * value - (mass - wrong)
    gaps = np.bincount(_bin(value), residual, NUM_BINS)
    # Sizes of equal-mass bins as in np.array_split.
    sizes = np.full(NUM_BINS, total // NUM_BINS)
    sizes[: total % NUM_BINS] += 1
    ends = np.concatenate([[0], np.cumsum(sizes)])
    running = np.interp(
        ends,
        np.concatenate([[0], np.cumsum(mass)]),
        np.concatenate([[0.0], np.cumsum(residual)]),
    )
    return {
        "ECE": np.abs(gaps).sum() / total,
        "AECE": np.abs(np.diff(running)).sum() / total,
        "AURC": _aurc(mass[::-1], wrong[::-1]) / total,
    }


def _aurc(mass, wrong) -> float:
    """Sum of the risk at every rank, surest first, by blocks of groups."""
    total, ranked, failed = 0.0, 0, 0.0
    for start in range(0, len(mass), 2**20):
        part = slice(start, start + 2**20)
        errors = np.repeat(wrong[part] / mass[part], mass[part])
        errors = failed + np.cumsum(errors)
        ranks = ranked + np.arange(1, len(errors) + 1)
        total += (errors / ranks).sum()
        ranked, failed = ranks[-1], errors[-1]
    return total

"""Some thirty small data sets, by name.

All numbers come from seeded generators and lie on grids: logits on steps of
2^-14, weights on eighths, probabilities on 12 decimals. So they are the same
bits on every machine, and whatever a result differs by comes from the
package.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

IGNORED = 255


@dataclass(frozen=True)
class Classes:
    """Labels and predictions of classes.

    Attributes:
        labels: Class ids, or soft labels, or votes.
        logits: Logits `(..., num_classes)`.
        options: How they are read, besides as logits or probabilities:
            `sample_weight`, `ignore_class`, `votes`.
        probs: Probabilities; None takes the softmax of the logits.
    """

    labels: np.ndarray
    logits: np.ndarray
    options: dict[str, Any] = field(default_factory=dict)
    probs: Any = None

    def __post_init__(self):
        if self.probs is None:
            object.__setattr__(self, "probs", softmax(self.logits))

    @property
    def num_classes(self) -> int:
        """Number of classes, two for one column."""
        return max(self.logits.shape[-1], 2)

    @property
    def weight(self) -> Any:
        """Weights, or None."""
        return self.options.get("sample_weight")


def grid(x, step=2**14):
    """The nearest multiples of `1 / step`, which float32 holds.

    A coarser step would make equal logits, whose probabilities may differ in
    the last digit by their place in a batch: calibrators that sort them then
    have other steps on another machine.
    """
    return np.round(np.asarray(x) * step) / step + 0.0


def softmax(logits):
    """Probabilities on 12 decimals; of one column those of the second."""
    z = np.asarray(logits, "float64")
    if z.shape[-1] == 1:
        return np.round(1.0 / (1.0 + np.exp(-z)), 12)
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return np.round(e / e.sum(axis=-1, keepdims=True), 12)


def drawn(seed, n, num_classes, *, sharpness=1.0, signal=2.0):
    """Class ids and logits; a sharpness of 1 is nearly calibrated."""
    rng = np.random.default_rng(seed)
    logits = grid(signal * rng.normal(size=(n, num_classes)))
    u = rng.random((n, num_classes))
    labels = np.argmax(logits - np.log(-np.log(u)), axis=-1)
    return labels, grid(sharpness * logits).astype("float32")


def _ties():
    labels, logits = drawn(4, 180, 4, sharpness=1.5)
    return Classes(labels, logits[np.arange(180) % 9])


def _weighted():
    labels, logits = drawn(5, 240, 4, sharpness=2.0)
    weight = np.random.default_rng(55).integers(0, 25, 240) / 8
    return Classes(labels, logits, {"sample_weight": weight})


def _repeated():
    labels, logits = drawn(6, 200, 3, sharpness=1.5)
    weight = np.random.default_rng(66).integers(0, 4, 200)
    return Classes(labels, logits, {"sample_weight": weight})


def _masked():
    labels, logits = drawn(7, 200, 4, sharpness=1.5)
    mask = np.random.default_rng(77).random(200) < 0.6
    logits[~mask] = 99.0
    return Classes(labels, logits, {"sample_weight": mask.astype("float64")})


def _ignored():
    labels, logits = drawn(8, 220, 5, sharpness=1.5)
    labels[np.random.default_rng(88).random(220) < 0.3] = IGNORED
    return Classes(labels, logits, {"ignore_class": IGNORED})


def _one_class():
    _, logits = drawn(9, 60, 3)
    return Classes(np.ones(60, int), logits)


def _rare():
    labels, logits = drawn(10, 400, 5, sharpness=2.0)
    rare = np.random.default_rng(110).random(400) < 0.95
    labels[rare & (labels == 4)] = 3
    return Classes(labels, logits)


def _all(right):
    labels, logits = drawn(11, 60, 3)
    best = logits.argmax(axis=-1)
    return Classes(best if right else (best + 1) % 3, logits)


def _separable():
    labels, logits = drawn(12, 90, 3)
    logits = logits / 8 + 3.0 * np.eye(3, dtype="float32")[labels]
    return Classes(labels, grid(logits).astype("float32"))


def _sure():
    labels, logits = drawn(13, 160, 3, sharpness=2.0)
    probs = softmax(logits)
    rows = np.arange(160) % 4 == 0
    probs[rows] = np.eye(3)[logits[rows].argmax(axis=-1)]
    # No row is wrong with certainty but two.
    found = probs.argmax(axis=-1)
    kept = ~rows | (np.arange(160) < 8)
    labels = np.where(kept, labels, found)
    return Classes(labels, logits, probs=probs)


def _on_edges():
    """Confidences that are edges of 10, of 15 or of 20 bins."""
    rng = np.random.default_rng(22)
    confidence = rng.integers(30, 61, 160) / 60.0
    right = rng.random(160) < confidence
    best = rng.integers(0, 2, 160)
    probs = np.where(
        np.arange(2) == best[:, None],
        confidence[:, None],
        1.0 - confidence[:, None],
    )
    labels = np.where(right, best, 1 - best)
    logits = grid(np.log(np.maximum(probs, 1e-3))).astype("float32")
    return Classes(labels, logits, probs=probs)


def _half():
    labels, logits = drawn(14, 150, 4, sharpness=1.5)
    logits = logits.astype("float16")
    return Classes(labels, logits, probs=softmax(logits).astype("float16"))


def _soft():
    labels, logits = drawn(15, 150, 4, sharpness=1.5)
    other = np.random.default_rng(115).integers(4, size=150)
    soft = 0.75 * np.eye(4)[labels] + 0.25 * np.eye(4)[other]
    return Classes(soft, logits)


def _votes(shares):
    _, logits = drawn(16, 160, 4, sharpness=1.5)
    rng = np.random.default_rng(116)
    probs = softmax(logits / 1.5)
    votes = np.stack([rng.multinomial(5, p / p.sum()) for p in probs])
    votes[np.arange(160), logits.argmax(axis=-1)] += 1
    votes = votes / votes.sum(axis=-1, keepdims=True) if shares else votes
    return Classes(votes, logits, {"votes": True})


def _pixels(ignored=True):
    rng = np.random.default_rng(17)
    labels, logits = drawn(17, 4 * 6 * 7, 3, sharpness=2.0)
    labels[rng.random(len(labels)) < 0.2] = IGNORED if ignored else 0
    options = {"ignore_class": IGNORED} if ignored else {}
    return Classes(labels.reshape(4, 6, 7), logits.reshape(4, 6, 7, 3), options)


def _tokens():
    labels, logits = drawn(18, 12 * 10, 8, sharpness=1.5)
    ends = np.random.default_rng(118).integers(3, 11, 12)
    mask = (np.arange(10) < ends[:, None]).astype("float64")
    return Classes(
        labels.reshape(12, 10),
        logits.reshape(12, 10, 8),
        {"sample_weight": mask},
    )


def _binary():
    labels, logits = drawn(19, 240, 2, sharpness=2.0)
    return Classes(labels, logits[:, 1:] - logits[:, :1])


def _grouped():
    """Four groups: well calibrated, too sure, small and tiny."""
    labels, logits = drawn(20, 420, 3)
    place = np.where(np.arange(420) < 200, 0, 1)
    place[np.arange(420) >= 360] = 2
    place[np.arange(420) >= 410] = 3
    logits[place == 1] *= 2.5
    return Classes(labels, logits), np.array(["b", "a", "d é", "c"])[place]


CLASSES: dict[str, Classes] = {
    "ten classes": Classes(*drawn(0, 300, 10, sharpness=1.5)),
    "two classes": Classes(*drawn(1, 240, 2, sharpness=2.0)),
    "binary column": _binary(),
    "hundred classes": Classes(*drawn(2, 200, 100, sharpness=1.25)),
    "overconfident": Classes(*drawn(3, 300, 5, sharpness=3.0)),
    "underconfident": Classes(*drawn(33, 300, 5, sharpness=0.5)),
    "calibrated": Classes(*drawn(34, 300, 5)),
    "ties": _ties(),
    "weights": _weighted(),
    "frequency weights": _repeated(),
    "masked": _masked(),
    "ignored class": _ignored(),
    "one class": _one_class(),
    "rare class": _rare(),
    "all right": _all(True),
    "all wrong": _all(False),
    "separable": _separable(),
    "few rows": Classes(*drawn(21, 12, 3)),
    "zeros and ones": _sure(),
    "on edges of bins": _on_edges(),
    "float16": _half(),
    "soft labels": _soft(),
    "votes": _votes(False),
    "shares of votes": _votes(True),
    "pixels": _pixels(),
    "tokens": _tokens(),
}
PIXELS = CLASSES["pixels"]
ALL_PIXELS = _pixels(ignored=False)
TOKENS = CLASSES["tokens"]
CLASSES["groups"], GROUPS = _grouped()

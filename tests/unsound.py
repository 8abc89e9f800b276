"""Rows of logits of which some have no confidence, and what to fit on."""

import numpy as np
from cases import array

INF, NAN, LARGE = np.inf, np.nan, 3e38
ROWS = np.array(
    [
        [2.0, 1.0, 0.0],
        [LARGE, 0.0, 0.0],
        [-LARGE, 0.0, 0.0],
        [-INF, 1.0, 0.0],
        [NAN, 0.0, 0.0],
        [NAN, NAN, NAN],
        [INF, 0.0, 0.0],
        [INF, INF, 0.0],
        [INF, -INF, 0.0],
        [NAN, INF, -INF],
        [-INF, -INF, -INF],
        [-LARGE, -1e30, -INF],
    ],
    "float32",
)
SOUND = np.arange(len(ROWS)) < 4
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(150, 3)).astype("float32") * 2
LABELS = np.where(
    RNG.random(150) < 0.3, RNG.integers(3, size=150), LOGITS.argmax(-1)
)


def check(answers, sound=SOUND):
    """An ordinary row is accepted, and nothing that has no confidence."""
    accept = array(answers["accept"])
    assert accept[0].all()
    confidence = array(answers["confidence"])
    assert np.isfinite(confidence[accept]).all()
    assert not accept[~sound].any()

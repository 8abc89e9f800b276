"""Logits of which labels are noise, for displays and reports."""

import numpy as np


def noisy_predictions(count=600, num_classes=4, scale=3.0, seed=0):
    """Labels `(count,)` drawn from probabilities that logits overstate.

    The logits are `scale` times those of the probabilities.
    """
    rng = np.random.default_rng(seed)
    true = 1.5 * rng.normal(size=(count, num_classes))
    labels = (true + rng.gumbel(size=true.shape)).argmax(-1)
    return labels, (scale * true).astype("float32")


def softmax(logits):
    """Probabilities in the precision of the logits."""
    z = np.exp(logits - logits.max(-1, keepdims=True))
    return z / z.sum(-1, keepdims=True)

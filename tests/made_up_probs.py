"""Overconfident probabilities, and bins of them by loops."""

import numpy as np


def made_up(seed=0, count=300, num_classes=4, sharpness=2.0):
    """Overconfident predictions, some of them on edges of bins."""
    rng = np.random.default_rng(seed)
    logits = sharpness * rng.normal(size=(count, num_classes))
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    truth = probs**0.6 / np.sum(probs**0.6, axis=-1, keepdims=True)
    labels = np.array([rng.choice(num_classes, p=p) for p in truth])
    on_edge = np.arange(0, count, 10)
    sure = rng.integers(0, num_classes, len(on_edge))
    probs[on_edge] = np.eye(num_classes)[sure]
    probs[on_edge[::2]] = 0.5 * probs[on_edge[::2]] + 0.5 / num_classes
    weight = rng.choice([0.0, 0.5, 1.7, 3.0], size=count)
    return labels, probs, weight


def loop_bins(confidence, outcome, weight, num_bins, closed):
    """Mass, mean confidence, mean outcome and effective number by bin."""
    edges = np.arange(num_bins + 1) / num_bins
    bins = []
    for b in range(num_bins):
        low, high = edges[b], edges[b + 1]
        if closed == "right":
            inside = (confidence > low) & (confidence <= high)
            inside |= (b == 0) & (confidence == 0)
        else:
            inside = (confidence >= low) & (confidence < high)
            inside |= (b == num_bins - 1) & (confidence == 1)
        w = weight[inside]
        if w.sum() > 0:
            c = (w * confidence[inside]).sum() / w.sum()
            a = (w * outcome[inside]).sum() / w.sum()
            bins.append((w.sum(), c, a, w.sum() ** 2 / (w**2).sum()))
    return bins


def same(value, expected, name=""):
    np.testing.assert_allclose(
        value, expected, rtol=1e-9, atol=1e-15, err_msg=name
    )

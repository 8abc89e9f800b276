"""Classes that a logit of -inf rules out: losses of those that are left."""

import numpy as np
import pytest
from loss_batches import HERE
from loss_batches import K
from loss_batches import agree
from loss_batches import eager

import keras_calib as kc

pytestmark = pytest.mark.portable

# Means over all K classes, whatever rows allow.
OF_ALL_CLASSES = (kc.MDCA, kc.L1ACE)


def batch(num_ruled_out, n=12, seed=0):
    """Labels and logits, and the same of the classes that are left.

    Each row rules out other classes; the third value marks those left.
    """
    rng = np.random.default_rng(seed)
    logits = (3.0 * rng.normal(size=(n, K))).astype("float32")
    ids = rng.integers(K, size=n)
    # The label is not ruled out.
    order = rng.random(logits.shape)
    order[np.arange(n), ids] = 2.0
    left = np.sort(order.argsort(axis=1)[:, num_ruled_out:], axis=1)
    reduced = np.take_along_axis(logits, left, axis=1)
    kept = np.zeros(logits.shape, bool)
    np.put_along_axis(kept, left, True, axis=1)
    places = np.argmax(left == ids[:, None], axis=1)
    return ids, np.where(kept, logits, -np.inf), places, reduced, kept


def same_as_reduced(case, ids, logits, places, reduced, kept):
    losses, gradient = eager(case, ids, logits.astype("float32"))
    expected, slopes = eager(case, places, reduced)
    agree(case, losses, expected)
    assert (gradient[~kept] == 0.0).all(), case
    agree(case, gradient[kept].reshape(slopes.shape), slopes)


def test_a_row_has_the_loss_of_the_classes_that_it_leaves():
    for case in HERE:
        if case.cls in OF_ALL_CLASSES:
            continue
        for count in (1, 3):
            same_as_reduced(case, *batch(count))

"""Calibration of every class, and bins of equal mass."""

import itertools

import numpy as np
from cases import METRIC_DATA
from made_up_probs import loop_bins, made_up, same

import keras_calib as kc
from keras_calib.functional import classwise
from keras_calib.functional.classwise import classwise_ece


def loop_classwise(labels, probs, weight, num_bins, closed, threshold=0.0):
    total = 0.0
    for k in range(probs.shape[1]):
        p, y = probs[:, k], labels == k
        keep = p >= threshold
        bins = loop_bins(p[keep], y[keep], weight[keep], num_bins, closed)
        total += sum(n * abs(c - a) for n, c, a, _ in bins)
    return total / weight.sum() / probs.shape[1]


def test_classwise_error_equals_a_loop(monkeypatch):
    labels, probs, weight = made_up(num_classes=5)
    for closed, threshold in itertools.product(
        ("right", "left"), (0.0, 1e-37, 0.1)
    ):
        options = {"num_bins": 8, "closed": closed, "threshold": threshold}
        expected = loop_classwise(labels, probs, weight, 8, closed, threshold)
        # However many classes are in work at a time.
        for block in (2**22, 1, 700):
            monkeypatch.setattr(classwise, "_BLOCK", block)
            value = classwise_ece(
                labels, probs, sample_weight=weight, **options
            )
            same(value, expected, f"{closed} {threshold} {block}")


def test_classwise_error_is_the_mean_of_each_class_against_the_rest():
    labels, probs, weight = made_up(num_classes=4)
    sure = np.array([[1.0, 0.0, 0.0, 0.0]] * 9)
    votes = np.random.default_rng(0).multinomial(5, [0.25] * 4, len(labels))
    for function, given in (
        (kc.ece, {}),
        (kc.ece, {"closed": "left", "num_bins": 7}),
        (kc.functional.aece, {"edges": "mass", "num_bins": 6}),
    ):
        for truth, p, options in (
            (labels, probs, {}),
            (labels, probs, {"sample_weight": weight}),
            (np.r_[labels, 9], np.r_[probs, probs[:1]], {"ignore_class": 9}),
            (votes, probs, {"votes": True}),
            (np.arange(9) % 4, sure, {}),
            (labels, probs.astype("float16"), {}),
            (labels, (probs * 1.00002).clip(0, 1), {}),
        ):
            options = options | given
            value = classwise_ece(truth, p, **options)
            of_each = []
            for k in range(4):
                if truth.ndim == 2:
                    event = truth / truth.sum(-1, keepdims=True)
                    event = np.stack([1 - event[:, k], event[:, k]], -1)
                else:
                    event = np.where(truth == 9, 9, truth == k)
                of_each.append(
                    function(event, p[:, k : k + 1], mode="binary", **options)
                )
            same(value, np.mean(of_each), f"{given} {options}")
    assert classwise_ece([1] * 4, [[1.0, 0.0]] * 4) == 1.0


def test_classwise_error_of_logits_is_that_of_their_softmax(monkeypatch):
    labels, _, weight = made_up(num_classes=5)
    logits = np.random.default_rng(0).normal(size=(len(labels), 5))
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for block in (classwise._BLOCK, 700):
        monkeypatch.setattr(classwise, "_BLOCK", block)
        for options in ({}, {"edges": "mass"}, {"sample_weight": weight}):
            value = classwise_ece(
                labels, logits + 3.0, from_logits=True, **options
            )
            same(value, classwise_ece(labels, probs, **options))


def test_classwise_error_of_two_classes_counts_both():
    labels, probs, weight = made_up(num_classes=2)
    keep = probs.max(-1) < 1
    labels, probs = labels[keep], probs[keep]
    # A gap of one class is the opposite gap of the other.
    sums = loop_bins(probs[:, 1], labels == 1, np.ones(len(labels)), 7, "right")
    expected = sum(n * abs(c - a) for n, c, a, _ in sums) / len(labels)
    same(classwise_ece(labels, probs[:, 1:], num_bins=7), expected)


def test_classwise_error_of_equal_mass_is_the_adaptive_one_of_each_class():
    labels, probs, weight = made_up(num_classes=3)
    for used in (None, weight):
        value = classwise_ece(
            labels, probs, edges="mass", num_bins=6, sample_weight=used
        )
        one_by_one = [
            loop_mass(probs[:, k], labels == k, used, 6) for k in range(3)
        ]
        same(value, np.mean(one_by_one))


def loop_mass(p, y, weight, num_bins):
    """Equal-mass error by sharing each tied group between bins."""
    if weight is None:
        y = y.astype("float64")
        for value in np.unique(p):
            y[p == value] = y[p == value].mean()
        parts = np.array_split((p - y)[np.argsort(p, kind="stable")], num_bins)
        return sum(abs(part.sum()) for part in parts) / len(p)
    values = np.unique(p)
    mass = np.array([weight[p == v].sum() for v in values])
    residual = np.array([(weight * (p - y))[p == v].sum() for v in values])
    total, error = mass.sum(), 0.0
    for b in range(num_bins):
        low, high = b * total / num_bins, (b + 1) * total / num_bins
        gap, start = 0.0, 0.0
        for m, r in zip(mass, residual, strict=True):
            shared = max(0.0, min(high, start + m) - max(low, start))
            gap += r * shared / m if m else 0.0
            start += m
        error += abs(gap)
    return error / total


def test_threshold_leaves_out_small_probabilities_of_equal_mass():
    labels, probs, _ = made_up(num_classes=3)
    expected = 0.0
    for k in range(3):
        keep = probs[:, k] >= 0.2
        expected += keep.sum() * loop_mass(
            probs[keep, k], labels[keep] == k, None, 5
        )
    value = classwise_ece(
        labels, probs, edges="mass", num_bins=5, threshold=0.2
    )
    same(value, expected / len(labels) / 3)
    below = 0.9 * probs + 0.1 / 3
    assert classwise_ece(labels, below, edges="mass", threshold=1.0) == 0


def test_fewer_samples_than_bins_are_no_error():
    labels, probs, _ = made_up(count=3)
    for edges in ("width", "mass", "rank"):
        value = classwise_ece(labels, probs, edges=edges, num_bins=20)
        assert 0 <= value <= 1


def test_default_adaptive_ece_differs_from_the_goldens_only_on_ties(goldens):
    for data in METRIC_DATA:
        labels = goldens[f"in/m_{data}/labels"]
        probs = goldens[f"in/m_{data}/probs"]
        difference = abs(
            kc.functional.aece(labels, probs)
            - goldens[f"metric/aece_tu_15/{data}"]
        )
        assert (difference > 1e-9) == (data == "edges")

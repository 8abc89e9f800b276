"""Scores of right and wrong predictions, and areas of them by loops."""

import itertools

import numpy as np


def binary(correct, score):
    """Labels and probabilities of these scores in (0.5, 1]."""
    score = np.asarray(score, "float64")
    return np.where(correct, 0, 1), np.stack([score, 1 - score], axis=-1)


def tied_data(seed=0, n=40):
    rng = np.random.default_rng(seed)
    score = 0.5 + rng.integers(1, 9, n) / 16.0
    return rng.random(n) < score, score


def loop_areas(correct, score):
    """AURC, AUGRC, AUROC of samples without ties, by loops."""
    order = sorted(range(len(score)), key=lambda i: -score[i])
    wrong, risks, area, previous = 0.0, [], 0.0, 0.0
    for k, i in enumerate(order, start=1):
        wrong += not correct[i]
        risks.append(wrong / k)
        area += 0.5 * (previous + wrong) / len(order) ** 2
        previous = wrong
    pairs = [
        float(score[i] > score[j]) + 0.5 * (score[i] == score[j])
        for i, j in itertools.product(order, order)
        if correct[i] and not correct[j]
    ]
    return np.mean(risks), area, np.mean(pairs)

"""Intervals of means over labels are those of examples, whatever the order."""

import numpy as np
import pytest
from scipy.stats import norm

from keras_calib.formulas.bins import bin_index, bin_sums
from keras_calib.formulas.intervals import Moments, mean_interval
from keras_calib.labels.example_sums import ExampleSums


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def drawn(n, num_labels=4, scale=1.0, seed=0):
    """Labels that depend on each other, and logits `scale` times too large."""
    rng = np.random.default_rng(seed)

    def normals():
        own = rng.standard_normal((n, num_labels))
        return 0.7 * (own + rng.standard_normal((n, 1)))

    logits = np.linspace(-1.0, 1.0, num_labels) + 1.5 * normals()
    return (norm.cdf(normals()) < sigmoid(logits)).astype(int), scale * logits


def means(labels, logits, weight=None, example=None, parts=3):
    sums = ExampleSums(10)
    weight = np.ones(labels.shape) if weight is None else weight
    example = np.arange(len(labels)) if example is None else example
    rows = labels, weight, logits, logits > 0, example
    for each in zip(*(np.array_split(x, parts) for x in rows), strict=True):
        sums.add(*each)
    p = sigmoid(logits)
    bins = [
        bin_sums(p[:, k], y, bin_index(p[:, k], 10), 10, weight[:, k])
        for k, y in enumerate(labels.T)
    ]
    return sums.means(bins)


def ends(found, name):
    return found[f"{name}_low"], found[f"{name}_high"]


def test_an_example_is_one_value_however_many_labels_it_has():
    labels, logits = drawn(200)
    nll = np.logaddexp(0.0, logits) - labels * logits
    values = nll.mean(axis=1)
    expected = np.ravel(mean_interval(Moments.of(values, np.ones(200))))
    for found in means(labels, logits).values():
        assert found["nll"] == pytest.approx(nll.mean())
        assert ends(found, "nll") == pytest.approx(expected, abs=1e-3)
    # Labels of one example that say the same tell no more than one of them.
    copies = np.repeat(labels[:, :1], 6, 1), np.repeat(logits[:, :1], 6, 1)
    one, six = means(labels[:, :1], logits[:, :1]), means(*copies)
    for mean, found in six.items():
        for name in ("brier_score", "auroc", "precision", "recall"):
            expected = ends(one[mean], name)
            assert ends(found, name) == pytest.approx(expected, abs=0.02)
    # Nor do places of one example.
    nested = np.repeat(labels, 3, 0), np.repeat(logits, 3, 0)
    found = means(*nested, example=np.repeat(np.arange(200), 3))["macro"]
    expected = ends(means(labels, logits)["macro"], "accuracy")
    assert ends(found, "accuracy") == pytest.approx(expected, abs=1e-3)


def test_influences_are_those_of_leaving_an_example_out():
    labels, logits = drawn(250, scale=2.0)
    sums = ExampleSums(10)
    sums.add(labels, np.ones(labels.shape), logits, logits > 0, np.arange(250))
    sums = sums._sums[:250]
    influences = ExampleSums(10).influences
    left = [influences(np.delete(sums, i, axis=0)) for i in range(250)]
    for name in ("auroc", "precision", "recall", "ece"):
        spread = 249 * np.var([x[name][0] for x in left], axis=0)
        influence = influences(sums)[name][2]
        np.testing.assert_allclose(influence.sum(axis=0), 0.0, atol=1e-12)
        found = (influence**2).sum(axis=0)
        np.testing.assert_allclose(found, spread, rtol=0.1, err_msg=name)


def test_sorted_data_have_the_intervals_of_shuffled_ones():
    labels, logits = drawn(6000)
    hard = np.argsort((np.logaddexp(0.0, logits) - labels * logits).sum(1))
    found = means(labels[hard], logits[hard])["macro"]
    values = (np.logaddexp(0.0, logits) - labels * logits).mean(axis=1)
    error = values.std() / np.sqrt(6000)
    low, high = ends(found, "nll")
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_missing_labels_and_weights_count_as_they_should():
    labels, logits = drawn(300)
    weight = np.ones(labels.shape)
    weight[::3, 1] = 0.0
    weight[:, 3] = 0.0
    found = means(labels, logits, weight)
    nll = np.logaddexp(0.0, logits) - labels * logits
    some = weight[:, 1] > 0
    by_label = nll[:, 0].mean(), nll[some, 1].mean(), nll[:, 2].mean()
    assert found["macro"]["nll"] == pytest.approx(np.mean(by_label))
    expected = np.average(nll, weights=weight)
    assert found["micro"]["nll"] == pytest.approx(expected)
    twice = means(labels, logits, 2.0 * weight)["micro"]
    expected = ends(found["micro"], "nll")
    assert ends(twice, "nll") == pytest.approx(expected, abs=1e-3)
    # No answer is yes, and every answer is right.
    found = means(np.zeros((50, 2), int), np.full((50, 2), -3.0))["macro"]
    assert np.isnan([found["precision"], *ends(found, "recall")]).all()
    assert found["accuracy"] == 1.0
    assert 0.9 < found["accuracy_low"] < 0.99


def test_many_labels_take_little_memory():
    sums = ExampleSums(15)
    labels = np.zeros((2, 1000), int)
    rows = labels, np.ones(labels.shape), labels - 1.0, labels > 0
    sums.add(*rows, np.array([0, 10**9]))
    assert sums._sums.nbytes < 45e6


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 1.6])
def test_intervals_cover_the_means_of_the_population(scale):
    truth = means(*drawn(500_000, scale=scale), parts=1)
    names, inside = ("nll", "brier_score", "accuracy", "auroc", "ece"), []
    for seed in range(1000):
        found = means(*drawn(200, scale=scale, seed=seed + 1), parts=1)
        inside.append(
            [
                found[mean][f"{name}_low"] <= true[name]
                and true[name] <= found[mean][f"{name}_high"]
                for mean, true in truth.items()
                for name in names
            ]
        )
    assert np.mean(inside, axis=0).min() >= 0.92

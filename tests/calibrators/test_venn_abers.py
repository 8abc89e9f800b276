"""Venn-Abers prediction: two isotonic regressions for each new score."""

import numpy as np
import pytest
from cases import array, softmax
from scipy.optimize import isotonic_regression

import keras_calib as kc
from keras_calib.calibrators.venn_abers import _table
from keras_calib.numerics.softmax import sigmoid

# Compiled code may take smaller numbers for 0.
TINY = np.finfo("float32").tiny


def oracle(scores, labels, weight, new):
    """p0 and p1 of one new score, by refitting."""
    found = []
    for label in (0.0, 1.0):
        x, index = np.unique(np.append(scores, new), return_inverse=True)
        total = np.bincount(index, np.append(weight, 1.0))
        mean = np.bincount(index, np.append(weight * labels, label)) / total
        fit = isotonic_regression(mean, weights=total).x
        found.append(fit[np.searchsorted(x, new)])
    return found


def pair(scores):
    scores = np.asarray(scores, "float32")
    return np.stack([np.zeros_like(scores), scores], axis=-1)


def sampled(n, seed, *, step=0.0, soft=False):
    """Float32 scores, with ties where `step` > 0, and labels."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=n).astype("float32")
    scores = np.round(scores / step) * step if step else scores
    chance = sigmoid(2.0 * scores.astype("float64"))
    labels = (rng.uniform(size=n) < chance).astype("float64")
    labels[:2] = 0.0, 1.0
    return scores.astype("float32"), 0.1 + 0.8 * labels if soft else labels


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("plain", marks=pytest.mark.portable),
        pytest.param("ties", marks=pytest.mark.portable),
        "weights",
        "soft",
        pytest.param("neighbours", marks=pytest.mark.portable),
        "two",
    ],
)
def test_every_score_gets_what_two_new_regressions_give(how):
    for seed in range(3):
        n = 2 if how == "two" else 30
        scores, labels = sampled(
            n, seed, step=0.5 * (how != "plain"), soft=how == "soft"
        )
        weight = np.ones(n)
        if how == "neighbours":
            # No float32 lies between some.
            scores[15:] = np.nextafter(scores[:15], np.float32(9))
            scores[np.abs(scores) < TINY] = 0.0
        if how == "weights":
            weight = np.array([0.0, 0.5, 1.0, 2.0, 3.5] * 6)
        given = np.stack([1 - labels, labels], axis=-1)
        fitted = kc.VennAbers()
        fitted.fit(given, pair(scores), weight, num_folds=0)
        others, _ = sampled(20, seed + 10)
        around = [np.nextafter(scores, np.float32(x)) for x in (-9, 9)]
        new = np.concatenate([scores, others, *around, [-50.0, 50.0]])
        new[np.abs(new) < TINY] = 0.0
        low, high = map(array, fitted.interval(pair(new)))
        used = weight > 0
        expected = np.array(
            [oracle(scores[used], labels[used], weight[used], s) for s in new]
        )
        np.testing.assert_allclose(low[:, 1], expected[:, 0], atol=2e-7)
        np.testing.assert_allclose(high[:, 1], expected[:, 1], atol=2e-7)
        np.testing.assert_allclose(low[:, 0], 1 - expected[:, 1], atol=2e-7)
        np.testing.assert_allclose(high[:, 0], 1 - expected[:, 0], atol=2e-7)
        p0, p1 = expected.T
        found = softmax(array(fitted(pair(new))).astype("float64"))[:, 1]
        np.testing.assert_allclose(found, p1 / (1 - p0 + p1), atol=1e-6)


def test_weights_are_frequencies():
    scores, labels = sampled(40, 0, step=0.25)
    weight = np.arange(40) % 3
    index = np.repeat(np.arange(40), weight)
    ids = labels.astype("int64")
    one = kc.VennAbers().fit(ids, pair(scores), weight)
    other = kc.VennAbers().fit(ids[index], pair(scores[index]))
    for name in one.fitted_values:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_more_classes_are_each_against_the_rest():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(300, 3)).astype("float32")
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(-1)
    fitted = kc.VennAbers().fit(labels, logits, num_folds=0)
    low, high = map(array, fitted.interval(logits))
    scores = array(fitted.features(logits))
    q = np.empty(low.shape)
    for k in range(3):
        mine = (labels == k).astype("float64")
        for i in range(0, 300, 30):
            p0, p1 = oracle(scores[:, k], mine, np.ones(300), scores[i, k])
            np.testing.assert_allclose([low[i, k], high[i, k]], [p0, p1], 1e-5)
    q = high / (1 - low + high)
    np.testing.assert_allclose(
        softmax(array(fitted(logits))),
        q / q.sum(axis=-1, keepdims=True),
        atol=1e-5,
    )


def test_one_output_has_the_interval_of_the_second_class():
    scores, labels = sampled(60, 3)
    fitted = kc.VennAbers().fit(labels.astype("int64"), scores[:, None])
    both = [array(x) for x in fitted.interval(pair(scores))]
    alone = [array(x) for x in fitted.interval(scores[:, None])]
    for two, one in zip(both, alone, strict=True):
        assert one.shape == (60, 1)
        np.testing.assert_array_equal(two[:, 1:], one)
    probs = sigmoid(scores.astype("float64"))[:, None]
    for one, two in zip(
        alone, fitted.interval(probs, from_logits=False), strict=True
    ):
        # The probabilities round otherwise.
        assert np.mean(np.abs(one - array(two)) > 1e-6) < 0.5


def test_one_end_of_the_interval_is_calibrated():
    # With y known, p_y has the mean of y, for any exchangeable data.
    rng = np.random.default_rng(0)
    differences = []
    for _ in range(2000):
        scores = rng.normal(size=21).astype("float32")
        labels = rng.uniform(size=21) < sigmoid(2.0 * scores - 1.0)
        edges, p1, p0_complement = _table(scores[1:], labels[1:], None, 0.0)
        place = np.searchsorted(edges, scores[0])
        ends = 1.0 - p0_complement[place], p1[place]
        differences.append(ends[int(labels[0])] - labels[0])
    error = np.std(differences) / np.sqrt(len(differences))
    assert abs(np.mean(differences)) < 3.0 * error
    assert error < 0.01


def test_the_range_contains_less_than_half_of_the_true_probabilities():
    # So it is no confidence interval, though the model is calibrated.
    rng = np.random.default_rng(0)
    logits = 2.0 * rng.normal(size=(3000, 1)).astype("float32")
    true = sigmoid(logits)
    labels = (rng.uniform(size=true.shape) < true).astype(int)[:, 0]
    venn = kc.VennAbers().fit(labels[:1000], logits[:1000])
    low, high = map(array, venn.interval(logits[1000:]))
    inside = (low <= true[1000:]) & (true[1000:] <= high)
    assert 0.1 < inside.mean() < 0.5


def test_it_needs_a_fit_and_its_classes():
    with pytest.raises(RuntimeError, match="must be fitted before use"):
        kc.VennAbers().interval([[0.0, 1.0]])
    scores, labels = sampled(30, 0)
    fitted = kc.VennAbers()
    fitted.fit(labels.astype("int64"), pair(scores), num_folds=0)
    with pytest.raises(ValueError, match="must have 2 classes"):
        fitted.interval(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="must be given together"):
        kc.VennAbers(upper_edges=[[0.0, 1.0]], p1=[[0.5, 0.6]])

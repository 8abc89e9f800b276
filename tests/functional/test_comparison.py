"""Comparisons of two networks."""

import numpy as np
import pytest
from keras import ops
from noisy_predictions import softmax
from scipy.stats import binom

import keras_calib as kc
from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.bins import bin_index, bin_sums
from keras_calib.functional.comparison import compare


def enough(hits, draws, level=0.95):
    """Whether so many hits could come from coverage of at least `level`."""
    return hits >= binom.ppf(1e-3, draws, level)


def networks(n, rng):
    """Labels, probabilities of a good network and of a noisier, sharper one."""
    labels = rng.integers(0, 3, n)
    evidence = 2.0 * np.eye(3)[labels] + rng.normal(size=(n, 3))
    noisy = evidence + 0.7 * rng.normal(size=(n, 3))
    outputs = []
    for logits in (2.0 * evidence, 2.6 * noisy):
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        outputs.append(powers / powers.sum(axis=1, keepdims=True))
    return labels, *outputs


def two(labels, good, bad, **facts):
    """Predictions of two networks for the same rows."""
    return [kc.Predictions(labels, x, **facts) for x in (good, bad)]


def quick(formula):
    """A metric without the reading of arguments, which takes the time."""

    def metric(labels, probs, *, sample_weight):
        correct = (probs.argmax(axis=1) == labels).astype("float64")
        weight = (
            np.ones(len(labels)) if sample_weight is None else sample_weight
        )
        return formula(labels, probs, correct, weight)

    return metric


@quick
def quick_ece(labels, probs, correct, weight):
    confidence = probs.max(axis=1)
    index = bin_index(confidence, 10)
    sums = bin_sums(confidence, correct, index, 10, weight)
    return float(calibration_error(sums))


@quick
def quick_nll(labels, probs, correct, weight):
    chosen = probs[np.arange(len(labels)), labels]
    return -np.sum(weight * np.log(chosen)) / weight.sum()


@pytest.mark.parametrize(
    ("metric", "exact", "draws"),
    [
        (quick_nll, kc.nll, 50),
        pytest.param(quick_ece, kc.ece, 200, marks=pytest.mark.slow),
        pytest.param(quick_nll, kc.nll, 200, marks=pytest.mark.slow),
    ],
)
def test_comparisons_cover_the_difference(metric, exact, draws):
    rng = np.random.default_rng(10)
    n = 500
    labels, probs, _ = networks(n, rng)
    options = {"num_bins": 10} if metric is quick_ece else {}
    value = metric(labels, probs, sample_weight=None)
    assert value == pytest.approx(exact(labels, probs, **options), rel=1e-9)
    results = [
        compare(*two(*networks(n, rng)), metric, num_draws=50, seed=i)
        for i in range(draws)
    ]
    # ECE is biased at any n: the difference to expect at this one.
    truth = np.mean([r.value for r in results])
    hits = sum(r.low <= truth <= r.high for r in results)
    assert enough(hits, draws, 0.94)
    spread = 2 * 1.96 * np.std([r.value for r in results])
    width = np.mean([r.high - r.low for r in results])
    assert 0.8 < width / spread < 1.3


def test_comparison_of_a_network_with_itself_and_of_weights():
    labels, good, bad = networks(200, np.random.default_rng(11))
    same = compare(*two(labels, good, good), kc.aurc, num_draws=10)
    assert same.value == same.low == same.high == 0.0
    assert same.p_value == 1.0
    ab = compare(*two(labels, good, bad), kc.nll, num_draws=50)
    ba = compare(*two(labels, bad, good), kc.nll, num_draws=50)
    assert ab.a == ba.b == kc.nll(labels, good)
    assert ab.low == pytest.approx(-ba.high) and ab.p_value == ba.p_value
    # Rows of weight 0 are not there.
    weight = (np.arange(200) < 150).astype("float64")
    p, q = two(labels, good, bad, sample_weight=weight)
    kept = compare(p, q, "ece", num_draws=10, num_bins=10)
    assert kept.a == kc.ece(labels[:150], good[:150], num_bins=10)


def test_what_is_not_of_the_same_rows_is_not_compared():
    labels, good, bad = networks(20, np.random.default_rng(13))
    p, q = two(labels, good, bad)
    weighted = kc.Predictions(labels, bad, sample_weight=labels + 1)
    units = [kc.Predictions(labels, bad, units=labels % x) for x in (2, 3)]
    log = kc.Predictions(correct=labels > 0, confidence=bad[:, 0])
    for one, other, rule in (
        (p, q[:10], "`b` must have as many rows as `a`"),
        (p, q[::-1], "the same `labels` in the same order"),
        (p, weighted, "the same `sample_weight` in"),
        (*units, "the same `units` in"),
        (p, log, "`a` and `b` must agree on `kind`"),
    ):
        with pytest.raises(ValueError, match=rule):
            compare(one, other, "ece")
    with pytest.raises(TypeError, match=r"`b` must be `Predictions\(labels"):
        compare(p, bad, "ece")
    with pytest.raises(
        TypeError, match="`a` must be .* of one model, or of se"
    ):
        compare([p, p], [q, q], "ece")
    with pytest.raises(TypeError, match="`from_logits` must not be given besi"):
        compare(p, q, "ece", from_logits=True)
    logits = kc.Predictions(labels, np.log(bad), from_logits=True)
    with pytest.raises(ValueError, match="must read outputs as the `Predicti"):
        compare(p, logits, kc.ECE())


def test_logs_forms_and_votes_are_compared():
    labels, good, bad = networks(100, np.random.default_rng(14))
    p, q = two(labels, good, bad)
    wanted = compare(p, q, "ece", num_draws=5)
    logits = kc.Predictions(labels, np.log(bad), from_logits=True)
    mixed = compare(p, logits, "ece", num_draws=5)
    assert mixed.b == pytest.approx(wanted.b)
    logs = [
        kc.Predictions(correct=x.correct, confidence=x.confidence)
        for x in (p, q)
    ]
    assert compare(*logs, kc.ece, num_draws=5) == wanted
    for metric in (kc.nll, kc.ECE, quick_ece):
        with pytest.raises(ValueError, match="a log of correctness and conf"):
            compare(*logs, metric, num_draws=5)
    votes = two(np.eye(3)[labels] * 2, good, bad, votes=True)
    found = [compare(*votes, x, num_draws=5) for x in (kc.ece, kc.ECE)]
    assert found[0].value == pytest.approx(found[1].value, abs=1e-6)
    several = two(np.eye(3)[labels], good, bad, multi_label=True)
    with pytest.raises(ValueError, match=r"labels\.MultiLabelMetric"):
        compare(*several, "ece")
    metric = kc.labels.MultiLabelMetric(kc.ECE)
    assert compare(*several, metric, num_draws=3).a > 0


def test_dense_predictions_are_resampled_by_image():
    rng = np.random.default_rng(12)
    # Four pixels of an image say the same: worth one.
    labels, good, bad = networks(60, rng)
    dense = [np.repeat(v, 4, axis=0) for v in (labels, good, bad)]
    images = [v.reshape(60, 4, *v.shape[1:]) for v in dense]
    one = compare(*two(labels, good, bad), kc.nll, num_draws=50)
    four = compare(*two(*images), kc.nll, num_draws=50)
    assert four.low == pytest.approx(one.low, rel=1e-6)
    assert four.high == pytest.approx(one.high, rel=1e-6)
    pixels = compare(*two(*dense), kc.nll, num_draws=50)
    assert pixels.high - pixels.low < 0.7 * (one.high - one.low)
    # Patients are units too, whatever the order of their rows.
    places = np.random.default_rng(0).permutation(240)
    patients = np.repeat(np.arange(60), 4)[places]
    rows = two(*(v[places] for v in dense), units=patients)
    found = compare(*rows, kc.nll, num_draws=50)
    assert found.low == pytest.approx(one.low, rel=1e-6)


def test_prediction_flips_by_hand():
    before = np.array([[[3, 1, 2], [0, 1, 1]], [[1, 1, 0], [0, 0, 4]]])
    after = np.array([[[3, 1, 4], [0, 1, 2]], [[1, 0, 0], [0, 0, 5]]])
    assert kc.functional.prediction_flips(before, after) == 2 / 4
    tensor = ops.convert_to_tensor(before)
    assert kc.functional.prediction_flips(tensor, softmax(before / 3.0)) == 0
    for other in (after[:1], after[..., :2]):
        with pytest.raises(ValueError, match="same shape"):
            kc.functional.prediction_flips(before, other)
    with pytest.raises(ValueError, match="two classes or more"):
        kc.functional.prediction_flips([[1.0]], [[-1.0]])

"""Real votes: CIFAR-10H, from the folder KERAS_CALIB_DATA."""

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import bin_index, bin_sums

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def voted(data_dir):
    """Counts, shares and logits of a DenseNet-40, in the same order."""
    with np.load(data_dir / "cifar10h" / "cifar10h.npz") as arrays:
        counts, ids = arrays["counts"].astype("int64"), arrays["labels"]
    path = data_dir / "logits" / "markus93_densenet40_cifar10.npz"
    with np.load(path) as arrays:
        assert (arrays["labels_test"].reshape(-1) == ids).all()
        logits = arrays["logits_test"].astype("float32")
    share = counts / counts.sum(axis=-1, keepdims=True)
    return counts, share.astype("float32"), logits


def test_exact_shares_are_calibrated_to_the_votes(voted):
    counts, share, _ = voted
    assert kc.ece(counts, share, votes=True) < 1e-8
    # Each as its largest class.
    assert kc.ece(share, share) == pytest.approx(0.0456, abs=1e-4)
    for metric in (kc.ECE(labels="votes"), kc.AECE(labels="votes")):
        metric.update_state(counts, share)
        low, high = metric.interval()
        assert low == 0.0
        assert high < 1e-3


def test_the_interval_of_votes_drawn_from_the_shares_holds_0(voted):
    counts, share, _ = voted
    rng = np.random.default_rng(0)
    total = counts.sum(axis=-1)
    confidence = share.max(axis=-1).astype("float64")
    index, kept, highest = bin_index(confidence, 15), 0, []
    for _ in range(40):
        drawn = rng.binomial(total, confidence) / total
        low, high = error_interval(
            bin_sums(confidence, drawn, index, 15, votes=True)
        )
        kept += low == 0.0
        highest.append(high)
    assert kept >= 36
    # As classes it would be 0.007.
    assert np.mean(highest) < 0.002


def test_a_fit_on_shares_has_a_lower_nll_of_held_out_votes(voted):
    counts, share, logits = voted
    half = np.random.default_rng(1).permutation(len(counts)) < 5000
    values = {}
    for name, labels in (("shares", share), ("ids", share.argmax(axis=-1))):
        fitted = kc.TemperatureScaling().fit(labels[half], logits[half])
        values[name] = kc.nll(
            counts[~half],
            np.asarray(fitted(logits[~half])),
            votes=True,
            from_logits=True,
        )
    assert values["shares"] < values["ids"] - 0.03

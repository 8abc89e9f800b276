"""Displays of labels that are votes of annotators."""

import keras
import matplotlib as mpl
import numpy as np
import pytest

import keras_calib as kc

mpl.use("Agg")


@pytest.fixture(scope="module")
def voted():
    """Counts of 1 to 9 votes, logits, weights; and each vote on its own."""
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2.0, size=(300, 4)).astype("float32")
    share = np.exp(0.5 * logits)
    share /= share.sum(axis=-1, keepdims=True)
    counts = np.array(
        [
            rng.multinomial(rng.integers(1, 10), p.astype("float64"))
            for p in share
        ]
    )
    row, label = np.nonzero(counts)
    weight = rng.choice([0.5, 1.0, 1.7], 300)
    share = counts / counts.sum(axis=-1, keepdims=True)
    one_by_one = label, logits[row], share[row, label] * weight[row]
    return counts, logits, weight, one_by_one


def _numbers(display):
    """What a display draws, as one array."""
    if isinstance(display, kc.plots.CumulativeDisplay):
        return np.array([display.ecce_range, display.ecce_maximum])
    if isinstance(display, kc.RiskCoverageDisplay):
        return np.array([*display.values.values()])
    if isinstance(display, kc.plots.ClasswiseReliabilityDisplay):
        return display.errors
    return np.ravel([display.sums.correct, display.sums.confidence])


@pytest.mark.parametrize(
    "cls",
    [
        pytest.param(kc.ReliabilityDisplay, marks=pytest.mark.portable),
        kc.plots.ConfidenceDisplay,
        kc.plots.ClasswiseReliabilityDisplay,
        kc.plots.CumulativeDisplay,
        kc.RiskCoverageDisplay,
    ],
)
def test_a_display_of_votes_is_that_of_the_votes_one_by_one(cls, voted):
    counts, logits, weight, (labels, rows, weights) = voted
    wanted = cls(
        kc.Predictions(labels, rows, sample_weight=weights, from_logits=True)
    )
    options = {"votes": True, "from_logits": True}
    found = cls(kc.Predictions(counts, logits, sample_weight=weight, **options))
    np.testing.assert_allclose(_numbers(found), _numbers(wanted), rtol=1e-6)
    assert found.to_svg().startswith("<?xml")
    model = keras.Sequential([keras.layers.Activation("linear")])
    data = logits, counts, weight
    of_model = cls(kc.Predictions.of_model(model, data, **options))
    np.testing.assert_allclose(
        _numbers(of_model), _numbers(found), rtol=1e-3, atol=1e-4
    )
    with pytest.raises(ValueError, match="votes"):
        cls(kc.Predictions.of_model(model, (logits, counts), from_logits=True))


def test_votes_have_shorter_error_bars_and_the_band_of_one_vote_each(voted):
    counts, logits, *_ = voted
    ids = counts.argmax(axis=-1)
    options = {"from_logits": True}
    bars = []
    for labels, votes in ((ids, False), (50 * counts, True)):
        display = kc.ReliabilityDisplay(
            kc.Predictions(labels, logits, votes=votes, **options), num_bins=3
        ).plot()
        bars.append(
            [
                np.ptp(line.get_segments()[0][:, 1])
                for line in display.ax_.collections
            ]
        )
    assert np.sum(bars[1]) < 0.9 * np.sum(bars[0])
    both = [
        kc.plots.CumulativeDisplay(
            kc.Predictions(labels, logits, **x, **options)
        )
        for labels, x in ((ids, {}), (counts, {"votes": True}))
    ]
    assert both[0].band == both[1].band

"""Certified bounds of what is read off a histogram."""

import itertools

import keras
import numpy as np
import pytest
from cases import METRIC_DATA, TABLE
from keras import ops
from streams import predictions

import keras_calib as kc

BOUNDED = {name: case for name, case in TABLE.items() if case.has_bounds}
# Of the histogram: cells of many predictions.
RESOLUTION = 64


def tied(rng, n):
    confidence = rng.choice(np.linspace(0.51, 0.99, 7), n)
    return confidence, rng.uniform(size=n) < confidence


def saturated(rng, n):
    return 1 - 10.0 ** -rng.uniform(0.5, 9, n), rng.uniform(size=n) < 0.8


def all_in_one_cell(rng, n):
    return 0.7 + 1e-5 * rng.uniform(size=n), rng.uniform(size=n) < 0.4


def right_ones_last(rng, n):
    # Inside each of a few narrow clusters the least sure are right.
    inside = np.arange(n) % 50
    confidence = 0.6 + 0.05 * (np.arange(n) // 50 % 6) + 1e-7 * inside
    return confidence, inside < rng.integers(1, 50)


def spread(rng, n):
    confidence = rng.beta(5, 1.5, n) / 2 + 0.5
    return confidence, rng.uniform(size=n) < confidence - 0.1


KINDS_OF_DATA = [tied, saturated, all_in_one_cell, right_ones_last, spread]


def two_classes(confidence, right):
    """Predictions of class 0 with these confidences."""
    confidence = np.asarray(confidence, "float32")
    labels = np.where(right, 0, 1)
    return labels, np.stack([confidence, 1 - confidence], axis=-1)


def cells_of(labels, probs):
    """Which cell of the histogram each prediction falls in.

    Of a few at a time: their weights are powers of two, so that the mass of
    a cell says which of them are in it.
    """
    metric, found = kc.AURC(resolution=RESOLUTION), []
    for start in range(0, len(labels), 10):
        part = slice(start, start + 10)
        count = len(labels[part])
        metric.reset_state()
        metric.update_state(labels[part], probs[part], 2.0 ** np.arange(count))
        sums = keras.ops.convert_to_numpy(metric.sums)
        mass = metric.summary.cells(sums).mass.astype(int)
        found += [np.flatnonzero(mass >> i & 1)[0] for i in range(count)]
    return np.array(found)


@pytest.mark.parametrize("make", KINDS_OF_DATA)
def test_any_order_inside_the_cells_is_within_the_bounds(make):
    rng = np.random.default_rng(1)
    for n in (17, 150):
        confidence, right = make(np.random.default_rng(0), n)
        labels, probs = two_classes(confidence, right)
        cells = cells_of(labels, probs)
        metric = kc.CalibrationMetrics(list(BOUNDED), resolution=RESOLUTION)
        metric.update_state(labels, probs)
        values, bounds = metric.result(), metric.bounds()
        assert set(bounds) == set(BOUNDED)
        data = [
            two_classes(*reordered(rng, cells, probs, right, right_first))
            for right_first in (True, False, None)
        ]
        for name, (low, high) in bounds.items():
            # As float32 has it.
            assert low - 1e-6 <= float(values[name]) <= high + 1e-6, name
            for some in ((labels, probs), *data):
                assert low <= BOUNDED[name].exact(*some) <= high, (n, name)


def reordered(rng, cells, probs, right, right_first):
    """The same confidences, correctness dealt anew inside each cell.

    The mean confidence of a cell stays, and so what the metric sees of it,
    but for the offsets of right and wrong ones.
    """
    confidence, right = probs[:, 0].copy(), right.copy()
    for cell in np.unique(cells):
        inside = np.flatnonzero(cells == cell)
        inside = inside[np.argsort(-confidence[inside], kind="stable")]
        dealt = rng.permutation(right[inside])
        if right_first is not None:
            dealt = np.sort(dealt)[::-1] if right_first else np.sort(dealt)
        right[inside] = dealt
    return confidence, right


def test_bounds_of_the_areas_are_reached():
    # One cell: all right ones first, or last.
    confidence = 0.7 + 1e-6 * np.arange(40)
    low, high = [], []
    for right in (np.arange(40) >= 12, np.arange(40) < 28):
        labels, probs = two_classes(confidence, right)
        for cls, exact in ((kc.AURC, kc.aurc), (kc.AUGRC, kc.functional.augrc)):
            metric = cls(resolution=64)
            metric.update_state(labels, probs)
            bounds = metric.bounds()
            value = exact(labels, probs)
            (low if right[-1] else high).append((value, bounds))
    for value, bounds in low:
        assert bounds[0] == pytest.approx(value, rel=1e-5)
    for value, bounds in high:
        assert bounds[1] == pytest.approx(value, rel=1e-5)


def test_aece_bounds_are_reached():
    # Two bins share one cell: right ones all in the one, or spread evenly.
    confidence = np.full(40, 0.7)
    apart = two_classes(confidence, np.arange(40) < 20)
    mixed = two_classes(confidence, np.arange(40) % 2 == 0)
    metric = kc.AECE(2)
    metric.update_state(*apart)
    low, high = metric.bounds()
    options = {"num_bins": 2, "ties": "order"}
    assert kc.functional.aece(*apart, **options) == pytest.approx(
        high, abs=1e-3
    )
    assert kc.functional.aece(*mixed, **options) == pytest.approx(low, abs=1e-3)
    assert high - low > 0.2


def test_aece_by_the_edges_of_the_papers_follows_their_code(goldens):
    for data, num_bins in itertools.product(METRIC_DATA, (8, 15)):
        labels = goldens[f"in/m_{data}/labels"]
        probs = goldens[f"in/m_{data}/probs"]
        expected = goldens[f"metric/aece_{num_bins}/{data}"]
        metric = kc.AECE(num_bins, edges="interp")
        metric.update_state(labels, probs)
        low, high = metric.bounds()
        assert low <= expected <= high, data
        value = float(metric.result())
        assert low <= value <= high, data
        if data not in ("edges", "onehot"):
            # The smallest confidence is left out of both.
            assert value == pytest.approx(expected, abs=1e-5), data


@pytest.mark.portable
def test_aece_by_the_edges_of_the_papers_takes_ratios_of_weights_alone():
    labels, probs = predictions(n=300)
    kept = np.arange(300) % 3 > 0
    random = np.random.default_rng(0).random(300) + 0.1

    def found(weight, rows=slice(None)):
        metric = kc.AECE(edges="interp")
        metric.update_state(labels[rows], probs[rows], sample_weight=weight)
        value, bounds = float(metric.result()), metric.bounds()
        assert bounds[0] <= value <= bounds[1]
        return value, *bounds

    every, some, uneven = found(None), found(None, kept), found(random)
    exact = kc.functional.aece(labels, probs, edges="interp")
    assert every[1] <= exact <= every[2]
    for scale in (1.0, 0.5, 0.1, 1e-3, 7.3):
        of = found(np.full(300, scale))
        np.testing.assert_allclose(of, every, atol=3e-6)
        np.testing.assert_allclose(found(scale * kept), some, atol=3e-6)
        if scale >= 0.1:
            np.testing.assert_allclose(found(scale * random), uneven, atol=3e-6)


def test_bounds_narrow_with_the_resolution():
    labels, probs = predictions(n=2000)
    widths = []
    for resolution in (64, 512, 8192):
        metric = kc.AURC(resolution=resolution)
        metric.update_state(labels, probs)
        low, high = metric.bounds()
        assert low <= kc.aurc(labels, probs) <= high
        widths.append(high - low)
    assert widths[0] > 4 * widths[1] > 16 * widths[2]


def test_the_slope_of_a_cell_is_no_steeper_than_a_linear_risk_allows():
    metric = kc.AURC(resolution=64)
    # One cell of the histogram, right ones at its upper end, wrong ones
    # (whose confidence is a little smaller) at its lower end.
    edges = metric.summary.lower_confidence()
    widest = np.argmax(np.diff(edges[1:])) + 1
    low, high = edges[widest : widest + 2]
    confidence = np.array([low + 1e-4] * 5 + [high - 1e-4] * 5, "float32")
    metric.update_scores(confidence, np.repeat([0, 1], 5))
    groups = metric.summary.ranked(ops.convert_to_numpy(metric.sums), True)
    np.testing.assert_array_equal(groups.slope[groups.mass > 0], [1 / 3])
    low, high = metric.bounds()
    assert low < float(metric.result()) < high


def test_scores_beyond_the_last_cell_are_tied():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 500)
    logits = 9.0 + rng.normal(size=(500, 4)) + np.eye(4)[labels]
    large = (1e9 * logits).astype("float32")
    rate = np.mean(large.argmax(-1) != labels)
    for options in ({}, {"score": "max_logit"}):
        metric = kc.AURC(from_logits=True, **options)
        metric.update_state(labels, large)
        # Nothing is known of their order: that of real ties.
        with pytest.warns(RuntimeWarning, match="treats 100.0% of the scores"):
            value = float(metric.result())
        np.testing.assert_allclose(value, rate, rtol=1e-4)
        low, high = metric.bounds()
        assert low <= value <= high


@pytest.mark.parametrize("kind", ["range", "maximum"])
def test_bounds_of_the_cumulative_error_are_reached(kind):
    # Two cells, one below the other: first the right ones of the lower cell,
    # then all wrong ones of both; and the other way round.
    confidence = np.repeat([0.62, 0.87], 20) + 1e-6 * np.tile(np.arange(20), 2)
    inside = np.arange(20)
    reached, high = [], []
    for right in (
        np.r_[inside < 10, inside >= 5],
        np.r_[inside >= 10, inside < 15],
    ):
        labels, probs = two_classes(confidence, right)
        metric = kc.ECCE(kind)
        metric.update_state(labels, probs)
        low, above = metric.bounds()
        reached.append(kc.functional.ecce(labels, probs, kind=kind))
        high.append(above)
        # The ends of the cells are between them in any order.
        tied = kc.functional.ecce(labels, probs.round(4), kind=kind)
        assert low == pytest.approx(tied, abs=2e-5)
        assert low <= float(metric.result()) <= min(reached)
    assert max(reached) == pytest.approx(np.mean(high), abs=5e-6)

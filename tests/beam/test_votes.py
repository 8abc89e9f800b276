"""The CombineFn of labels that are votes of annotators."""

import numpy as np
import pytest
from beam_logs import (
    accumulate,
    assert_same,
    assert_same_sums,
    keras_metric,
    predictions,
)
from cases import BACKEND

import keras_calib

beam = pytest.importorskip("apache_beam")
from keras_calib import beam as calib_beam  # noqa: E402

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="one backend shows it"
)
CalibrationCombineFn = calib_beam.CalibrationCombineFn
_VOTES = {"labels": "votes", "from_logits": True}


def _voted(n, num_classes=6):
    _, logits, weight = predictions(n, num_classes)
    rng = np.random.default_rng(1)
    share = np.exp(logits / 2).astype("float64")
    share /= share.sum(axis=-1, keepdims=True)
    counts = [rng.multinomial(rng.integers(1, 9), p) for p in share]
    return np.array(counts), logits, weight


def test_votes_have_the_sums_of_the_keras_metric():
    counts, logits, weight = _voted(1500)
    metric = keras_metric(counts, logits, weight, **_VOTES)
    rows = [*zip(counts[:700], logits, weight, strict=False)]
    rows += [(counts[700:], logits[700:], weight[700:])]
    values = CalibrationCombineFn(**_VOTES)
    assert_same(values.extract_output(accumulate(values, rows)), metric)
    parts = CalibrationCombineFn(output="state", **_VOTES)
    merged = parts.merge_accumulators(
        accumulate(parts, part) for part in (rows[:300], rows[300:])
    )
    assert_same_sums(parts.extract_output(merged), metric, moved=5)


@pytest.mark.parametrize("width", [1, 2])
def test_votes_of_one_output_are_of_both_classes_or_a_share(width):
    counts, logits, _ = _voted(200, 2)
    outputs = logits[:, 1:] - logits[:, :1]
    votes = counts
    if width == 1:
        votes = (counts / counts.sum(axis=-1, keepdims=True))[:, 1:]
    fn = CalibrationCombineFn(["ece", "nll", "aurc"], **_VOTES)
    metric = keras_metric(
        votes, outputs, include=["ece", "nll", "aurc"], **_VOTES
    )
    for rows in ([(votes, outputs)], [*zip(votes, outputs, strict=True)]):
        assert_same(fn.extract_output(accumulate(fn, rows)), metric)


def test_shares_take_the_place_of_correct():
    rng = np.random.default_rng(2)
    confidence = rng.beta(5, 1, 500).astype("float32")
    share = rng.binomial(4, 0.8, 500) / 4
    metric = keras_calib.CalibrationMetrics(["ece", "aurc"], labels="votes")
    metric.update_scores(confidence, share)
    fn = CalibrationCombineFn(["ece", "aurc"], top1=True, labels="votes")
    rows = [(confidence, share), (0.5, 1.5), (0.5, -0.1)]
    found = fn.extract_output(accumulate(fn, rows))
    assert found["num_invalid"] == 2.0
    for name, value in metric.result().items():
        assert found[name] == pytest.approx(float(value), abs=1e-6)


def test_rows_that_are_no_votes_are_left_out_and_counted():
    fn = CalibrationCombineFn(["accuracy"], **_VOTES)
    bad = [
        ([0, 0], [0.0, 1.0]),
        ([-1, 2], [0.0, 1.0]),
        ([0.5, 0.7], [0.0, 1.0]),
        ([np.nan, 1.0], [0.0, 1.0]),
        (None, [0.0, 1.0]),
        ([1, 3], None),
        (None, [0.5]),
    ]
    rows = [([1, 3], [0.0, 1.0]), ([], []), ([0, 0], [0.0, 1.0], 0.0), *bad]
    found = fn.extract_output(accumulate(fn, rows))
    assert found == {
        "accuracy": 0.75,
        "num_invalid": float(len(bad)),
        "weight": 1.0,
    }
    for element in (([1, 2, 3], [0.0, 1.0]), (1, [0.0, 1.0, 2.0])):
        with pytest.raises(ValueError, match="one number for each class"):
            fn.add_input(fn.create_accumulator(), element)
    with pytest.raises(ValueError, match="without `ignore_class`"):
        CalibrationCombineFn(ignore_class=0, **_VOTES)

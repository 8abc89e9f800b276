"""Metrics that rank by another score than the confidence."""

import keras
import numpy as np
import pytest
from cases import METRICS, sample, softmax

import keras_calib as kc
from keras_calib.formulas.scores import SCORE_NAMES

RANK_METRICS = (
    "AURC",
    "EAURC",
    "NAURC",
    "AUGRC",
    "FailureAUROC",
    "FailureFPR95",
    "CoverageAtRisk",
    "CoverageAtAccuracy",
    "RiskAtCoverage",
)


@keras.saving.register_keras_serializable(package="keras_calib_tests")
def largest_gap(logits):
    """A score of any size: how far the largest logit is from the smallest."""
    return keras.ops.max(logits, axis=-1) - keras.ops.min(logits, axis=-1)


@keras.saving.register_keras_serializable(package="keras_calib_tests")
def collision(logits):
    """A score in [0, 1]: the probability that two draws agree."""
    return keras.ops.sum(keras.ops.square(keras.ops.softmax(logits)), axis=-1)


SCORES = [
    *((name, None) for name in SCORE_NAMES),
    (largest_gap, None),
    (collision, "unit"),
]


def test_every_score_ranks_as_the_exact_function_does():
    labels, logits = sample(n=500, num_classes=6, scale=3.0)
    labels = np.where(np.arange(500) % 3, logits.argmax(-1), labels)
    for score, score_range in SCORES:
        metric = kc.AURC(score=score, score_range=score_range, from_logits=True)
        metric.update_state(labels, logits)

        def exact_score(z, score=score):
            return keras.ops.convert_to_numpy(score(z))

        exact = kc.aurc(
            labels,
            logits,
            score=exact_score if callable(score) else score,
            from_logits=True,
        )
        low, high = metric.bounds()
        assert low <= exact <= high, score
        assert float(metric.result()) == pytest.approx(exact, abs=3e-4), score
        again = keras.metrics.deserialize(keras.metrics.serialize(metric))
        assert again.score == score
        again.merge_state(metric)
        assert float(again.result()) == float(metric.result()), score


def test_scores_beyond_the_histogram_are_told():
    labels, logits = sample(n=90, num_classes=3, scale=3.0)
    labels = np.where(np.arange(90) % 3, logits.argmax(-1), labels)
    for metric, value in (
        (kc.AURC(from_logits=True), float),
        (
            kc.CalibrationMetrics(["aurc"], from_logits=True),
            lambda x: x["aurc"],
        ),
        (kc.AURC(score="max_logit", from_logits=True), float),
    ):
        metric.update_state(labels, logits)
        expected = float(value(metric.result()))
        metric.reset_state()
        metric.update_state(labels, logits * 2000)
        rule = (
            rf"`{metric.name}` treats .* scores as tied, .* within `bounds\(\)`"
        )
        with pytest.warns(RuntimeWarning, match=rule):
            found = float(value(metric.result()))
        assert found != pytest.approx(expected, rel=1e-3)
    # Probabilities of 1 are tied indeed, and so are right ones among them.
    probs = softmax(logits * 2000)
    metric = kc.AURC()
    metric.update_state(labels, probs)
    metric.result()
    metric = kc.AURC(from_logits=True)
    metric.update_scores(probs.max(-1), labels == probs.argmax(-1))
    metric.result()
    metric.reset_state()
    metric.update_state(logits.argmax(-1), logits * 2000)
    metric.result()


def test_every_rank_metric_takes_a_function():
    labels, logits = sample(n=300, num_classes=4, scale=3.0)
    for case in METRICS:
        if case.name.partition("-")[0] not in RANK_METRICS:
            continue
        options = {**case.kwargs, "score": largest_gap}
        metric = case.cls(**options, from_logits=True)
        assert metric.summary.is_unbounded
        metric.update_state(labels, logits)
        exact = case.exact.func(
            labels,
            logits,
            **{
                **case.exact.keywords,
                "score": lambda z: z.max(axis=-1) - z.min(axis=-1),
            },
            from_logits=True,
        )
        low, high = metric.bounds()
        assert low <= exact <= high, case
        again = keras.metrics.deserialize(keras.metrics.serialize(metric))
        assert again.get_config() == metric.get_config()


def test_unknown_scores_are_refused():
    with pytest.raises(ValueError, match="`score` must be a function or one"):
        kc.AURC(score="best")
    with pytest.raises(ValueError, match="`score_range` must be one of"):
        kc.AURC(score="gini", score_range="all")

"""Whole data sets ranked by a score."""

import keras
import numpy as np
import pytest
from keras import ops
from scored import binary, loop_areas

from keras_calib.formulas import scores
from keras_calib.functional.ranking import (
    failure_auroc,
    failure_average_precision,
    failure_fpr95,
)
from keras_calib.functional.risk_coverage import (
    augrc,
    aurc,
    coverage_at_accuracy,
    eaurc,
    naurc,
    risk_coverage_curve,
)


def scored_logits(seed=0, n=40):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (n, 5))
    labels = np.where(
        rng.random(n) < 0.6, logits.argmax(-1), rng.integers(0, 5, n)
    )
    return labels, logits


def reference_scores(z):
    """Every score of float64 logits, by NumPy."""
    p = np.exp(z - z.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    by_logit, by_prob = np.sort(z, -1), np.sort(p, -1)
    v = z - z.mean(-1, keepdims=True)
    return {
        "msp": p.max(-1),
        "max_logit": z.max(-1),
        "logit_margin": by_logit[:, -1] - by_logit[:, -2],
        "prob_margin": by_prob[:, -1] - by_prob[:, -2],
        "neg_entropy": np.sum(p * np.log(p), -1),
        "neg_energy": np.log(np.sum(np.exp(z), -1)),
        "gini": np.sum(p**2, -1),
        "p_norm": v.max(-1) / np.sum(np.abs(v) ** 4, -1) ** 0.25,
    }


def test_each_score_ranks_as_its_formula():
    labels, logits = scored_logits()
    correct = labels == logits.argmax(-1)
    for name, score in reference_scores(logits).items():
        options = {"score": name, "from_logits": True}
        found = [
            function(labels, logits, **options)
            for function in (aurc, augrc, failure_auroc)
        ]
        expected = loop_areas(correct, score)
        np.testing.assert_allclose(found, expected, atol=1e-12, err_msg=name)


def test_probabilities_are_scored_by_their_logarithm():
    labels, logits = scored_logits(1)
    probs = np.exp(logits) / np.sum(np.exp(logits), -1, keepdims=True)
    for name, score in reference_scores(np.log(probs)).items():
        if name == "neg_energy":
            # The energy of log p is 0: rounding alone would rank.
            continue
        expected = loop_areas(labels == probs.argmax(-1), score)[2]
        found = failure_auroc(labels, probs, score=name)
        assert abs(found - expected) < 1e-12, name


def test_monotone_transforms_of_a_score_change_nothing():
    labels, logits = scored_logits(2)

    def margin(z):
        return np.round(np.sort(z, -1)[:, -1] - np.sort(z, -1)[:, -2], 1)

    for function in (aurc, failure_average_precision):
        plain, other, reversed_score = (
            function(labels, logits, score=score, from_logits=True)
            for score in (
                margin,
                lambda z: np.exp(margin(z)) - 7,
                lambda z: -margin(z),
            )
        )
        assert plain == other != reversed_score


def test_the_order_of_the_classes_breaks_no_ties():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(6, 10)).astype("float32")
    logits = np.stack(
        [rng.permutation(base[i]) for i in rng.integers(6, size=300)]
    )
    guess = rng.integers(10, size=300)
    labels = np.where(rng.random(300) < 0.6, logits.argmax(-1), guess)

    def p_norm(logits):
        return scores.p_norm(logits, p=1.0)

    names = ["msp", "max_logit", "logit_margin", p_norm]
    if keras.backend.backend() != "jax":
        # There these are of float32, too coarse to tell ties by rounding.
        names += ["prob_margin", "neg_entropy", "neg_energy", "gini"]
    for score in names:
        values = []
        for _ in range(4):
            order = rng.permutation(10)
            moved = np.argsort(order)[labels], logits[:, order]
            values.append(aurc(*moved, score=score, from_logits=True))
            curve = risk_coverage_curve(*moved, score=score, from_logits=True)
            # One threshold for each of the six rows at most.
            assert len(curve.threshold) == len(curve.risk) <= 6
        np.testing.assert_allclose(values, values[0], rtol=1e-12)


def test_a_score_of_keras_ops_and_its_thresholds():
    labels, logits = scored_logits(3)
    curve = risk_coverage_curve(
        labels,
        logits,
        score=lambda z: ops.max(z, axis=-1),
        from_logits=True,
    )
    expected = np.sort(logits.max(-1))[::-1]
    np.testing.assert_allclose(curve.threshold, expected, rtol=1e-6)


def test_bad_scores_are_refused():
    labels, logits = scored_logits(4)
    options = {"from_logits": True}
    with pytest.raises(ValueError, match="`score` must be a function or one"):
        aurc(labels, logits, score="entropy", **options)
    with pytest.raises(ValueError, match="`score` must be a function or one"):
        scores.get(3)
    with pytest.raises(ValueError, match="finite"):
        aurc(labels, logits, score=lambda z: z[:, 0] * np.inf, **options)
    with pytest.raises(ValueError, match="one value per sample"):
        aurc(labels, logits, score=lambda z: z, **options)


def test_bad_options_are_refused():
    labels, probs = binary([True, False], [0.9, 0.6])
    for function, options in (
        (aurc, {"area": "median"}),
        (augrc, {"area": "mean"}),
        (naurc, {"area": "median"}),
        (eaurc, {"optimum": "best"}),
        (aurc, {"ties": "random"}),
        (augrc, {"ties": "random"}),
        (coverage_at_accuracy, {"accuracy": 1.5}),
        (coverage_at_accuracy, {"accuracy": -0.5}),
        (failure_fpr95, {"tpr": 0.0}),
        (failure_fpr95, {"tpr": 1.5}),
        (failure_average_precision, {"positive": "wrong"}),
    ):
        with pytest.raises(ValueError, match=f"`{list(options)[0]}` must be"):
            function(labels, probs, **options)

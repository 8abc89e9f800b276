"""The NLL after the best temperature, against a search in float64."""

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import keras_calib as kc


def overconfident(n=400, num_classes=5, seed=0):
    rng = np.random.default_rng(seed)
    logits = 4.0 * rng.normal(size=(n, num_classes))
    labels = np.where(
        rng.random(n) < 0.6,
        logits.argmax(-1),
        rng.integers(0, num_classes, n),
    )
    return labels, logits, rng.gamma(2.0, size=n)


def test_refinement_is_the_least_nll_of_all_temperatures():
    labels, logits, weight = overconfident()
    for some in (None, weight):
        least = minimize_scalar(
            lambda beta, some=some: kc.nll(
                labels, beta * logits, from_logits=True, sample_weight=some
            ),
            bounds=(1e-3, 5.0),
            method="bounded",
            options={"xatol": 1e-10},
        ).fun
        for scale in (1.0, 0.01, 100.0):
            found = kc.calibrators.refinement_nll(
                labels, scale * logits, sample_weight=some
            )
            assert found == pytest.approx(least, rel=1e-9)
    ignored = np.r_[labels, np.full(9, 255)]
    found = kc.calibrators.refinement_nll(
        ignored, np.r_[logits, logits[:9]], ignore_class=255
    )
    assert found == pytest.approx(
        kc.calibrators.refinement_nll(labels, logits), rel=1e-9
    )
    assert found < kc.nll(labels, logits, from_logits=True)


def test_refinement_without_an_optimum_is_the_limit_and_does_not_warn():
    _, logits, _ = overconfident()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kc.calibrators.refinement_nll(logits.argmax(-1), logits) < 1e-9
        worst = kc.calibrators.refinement_nll(logits.argmin(-1), logits)
        assert worst == pytest.approx(np.log(5), rel=1e-12)
        assert kc.calibrators.refinement_nll(
            [0, 1], np.zeros((2, 4))
        ) == np.log(4)

"""Samples of two files are told to be the same only if they are."""

import numpy as np
import pytest
from noisy_predictions import softmax

from keras_calib import Predictions
from keras_calib.reporting.commands.repeated_samples import check_apart


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "trials", [20, pytest.param(200, marks=pytest.mark.slow)]
)
def test_samples_that_are_independent_are_apart(trials):
    random = np.random.default_rng(0)
    for trial in range(trials):
        num_classes = (2, 3, 10)[trial % 3]
        files = {}
        for name, size in zip("ab", random.choice([100, 1000], 2), strict=True):
            # Of one distribution or two, confident or not, coarse or not.
            logits = 2.0 * random.normal(size=(size, num_classes))
            sure = random.integers(num_classes, size=size)
            logits[np.arange(size), sure] += random.choice([0.0, 8.0, 14.0])
            probs = softmax(logits)
            if random.random() < 0.3:
                probs = probs.round(3)
            files[name] = Predictions(sure, probs)
        check_apart(files)

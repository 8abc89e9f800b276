"""A table says the same of the points it was fitted on, however rounded."""

import numpy as np
import pytest
from cases import CALIBRATORS, array, sample, softmax

import keras_calib as kc
from keras_calib.calibrators.columns import OneVsRest

pytestmark = pytest.mark.portable
TABLES = [case for case in CALIBRATORS if issubclass(case.cls, OneVsRest)]


@pytest.mark.parametrize("num_classes", [2, 4])
@pytest.mark.parametrize("case", TABLES, ids=str)
def test_rounding_by_another_backend_moves_no_fitted_point(case, num_classes):
    labels, logits = sample(n=300, num_classes=num_classes, scale=3.0)
    logits = logits.astype("float32")
    calibrator = case.make().fit(labels, logits, num_folds=0)
    expected = softmax(array(calibrator(logits)).astype("float64"))
    # A shift of all logits leaves the probabilities, but for their rounding.
    for shift in (0.1, -0.3, 1.7):
        if case.cls is kc.VennAbers and num_classes == 2:
            # It reads their difference, which is exact where nothing is added.
            continue
        moved = logits + np.float32(shift)
        found = softmax(array(calibrator(moved)).astype("float64"))
        np.testing.assert_allclose(found, expected, atol=1e-4)

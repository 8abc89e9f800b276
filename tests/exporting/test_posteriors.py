"""Export of a calibrator with a posterior: draws and tables as constants."""

import numpy as np
import pytest
from cases import BACKEND, array
from exported import answers, trained
from keras import ops

import keras_calib as kc

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BACKEND != "tensorflow", reason="export needs TensorFlow"
    ),
]
K = 4


def calibrators():
    """Each way to answer, with values made up: no fit is needed."""
    rng = np.random.default_rng(0)
    knots = rng.normal(size=(3, 33))
    for average in (False, True):
        yield kc.GaussianProcessCalibration(
            average=average,
            temperature=1.5,
            uniform_share=0.01,
            bounds=[-6, 0],
            offsets=knots[0],
            deviations=knots[1:],
        )


@pytest.mark.parametrize("made", ["savedmodel", "onnx", "litert"])
def test_posteriors_survive(tmp_path, made):
    model, x = trained(K)
    for place, calibrator in enumerate(calibrators()):
        path = kc.export(model, tmp_path / str(place), calibrator, format=made)
        np.testing.assert_allclose(
            answers(path, made, x=x)["probabilities"],
            array(ops.softmax(calibrator(model(x)))),
            atol=1e-5,
            err_msg=f"{calibrator}",
        )

"""Tests of `keras_calib.data`; `tests/data` holds reference values instead.

The pipelines are TensorFlow's, whatever backend Keras trains with.
"""

import numpy as np
import pytest
from cases import BACKEND

if BACKEND == "tensorflow":
    from examples_with_boxes import smooth_image
else:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def picture():
    return smooth_image(np.random.default_rng(0), 30, 40)

"""Tests of `keras_calib.data`; `tests/data` holds reference values instead.

The pipelines are TensorFlow's, whatever backend Keras trains with.
"""

from pathlib import Path

import numpy as np
import pytest
from cases import BACKEND

if BACKEND == "tensorflow":
    import tensorflow as tf
    from examples_with_boxes import smooth_image
else:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(config, items):
    """In the fast tier one file alone has its functions converted.

    AutoGraph would take five seconds of each process to convert functions of
    `tf.data` in which it finds nothing to convert.
    """
    if config.option.markexpr != "not slow":
        return
    for item in items:
        here = Path(__file__).parent in item.path.parents
        if here and item.path.stem != "test_autograph":
            item.obj = tf.autograph.experimental.do_not_convert(item.obj)


@pytest.fixture(scope="module")
def picture():
    return smooth_image(np.random.default_rng(0), 30, 40)

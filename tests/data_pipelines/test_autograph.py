"""Functions of `tf.data` as AutoGraph converts them, as users get them.

In the fast tier all other tests of this folder run without; see conftest.py.
"""

import numpy as np
import pytest
import tensorflow as tf
from examples_with_boxes import CLASSES, numbered_squares, square_batches

import keras_calib as kc


def same_as_unconverted(make):
    plain = tf.autograph.experimental.do_not_convert(make)()
    for one, other in zip(make(), plain, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)


def test_converted_functions_find_the_same_examples():
    rows = numbered_squares(8)
    same_as_unconverted(
        lambda: kc.data.valid_examples(rows, num_classes=CLASSES)
    )


@pytest.mark.slow
def test_converted_functions_make_the_same_batches():
    same_as_unconverted(lambda: square_batches(context_share=0.3, jitter=0.1))

"""What compiled code does in another way on each backend."""

import functools
import sys

import pytest
from cases import BACKEND
from keras import ops

import keras_calib as kc
from keras_calib.backend.compiled import read_later

pytestmark = pytest.mark.portable


class Owner:
    def total(self, name, array):
        return {name: 3.0 if array is None else float(ops.sum(array))}


def test_values_are_read_where_nothing_is_compiled():
    owner = Owner()
    state = functools.partial(ops.convert_to_tensor, [1.0, 2.0])
    later = read_later(owner, "sum", Owner.total, state)
    if BACKEND == "torch":
        assert later is None
        return
    # Keras takes an empty dict for none.
    assert later
    assert dict(later.items())["sum"] == later["sum"] == float(later) == 3.0
    with pytest.raises(KeyError):
        later["mean"]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="it has tf.function")
def test_functions_of_tensorflow_trace_metrics_and_losses_as_they_are():
    import tensorflow as tf

    callers = []

    def score(logits):
        callers.append(sys._getframe(1).f_code.co_filename)
        return logits[..., 0]

    metric = kc.AURC(score=score, from_logits=True)
    loss = kc.losses.PerSampleLoss(lambda _, z: score(z), from_logits=True)

    @tf.function
    def step(labels, logits):
        metric.update_state(labels, logits)
        return loss(labels, logits)

    step(tf.constant([0, 1]), tf.constant([[2.0, 0.0], [2.0, 0.0]]))
    assert len(callers) == 2
    # What is rewritten is in a file of TensorFlow.
    assert all("autograph" not in name for name in callers), callers

"""Records of the training samples: read and changed at some of them."""

import keras
import numpy as np
import pytest
from cases import array
from keras import backend, ops

import keras_calib as kc
from keras_calib.training.recording_model import add_at, read_at, set_at

on_tensorflow = pytest.mark.skipif(
    backend.backend() != "tensorflow", reason="tests tf.Variable"
)

INDEX = np.array([4, 1, 4, 0, 4], "int32")
VALUES = np.array([1.0, 2.0, 3.0, 4.0, 6.0], "float32")
BEFORE = np.array([10.0, 20.0, 30.0, 40.0, 50.0, 60.0], "float32")


def variable():
    return keras.Variable(BEFORE, trainable=False)


def changed(change):
    record = variable()
    change(record)
    return array(record).tolist()


def add(record):
    add_at(record, ops.convert_to_tensor(INDEX), ops.convert_to_tensor(VALUES))


def set_chosen(record):
    chosen = np.array([True, True, True, False, False])
    given = map(ops.convert_to_tensor, (INDEX, VALUES, chosen))
    set_at(record, *given)


ADDED = [14.0, 22.0, 30.0, 40.0, 60.0, 60.0]
SET = [10.0, 2.0, 30.0, 40.0, 2.0, 60.0]


@pytest.mark.portable
def test_what_is_read_are_the_values_of_the_samples():
    read = array(read_at(variable(), ops.convert_to_tensor(INDEX)))
    assert read.tolist() == BEFORE[INDEX].tolist()


@pytest.mark.portable
def test_a_sample_that_comes_three_times_is_counted_three_times():
    assert changed(add) == ADDED


@pytest.mark.portable
def test_a_sample_that_comes_twice_gets_the_mean_of_its_chosen_values():
    assert changed(set_chosen) == SET


@on_tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_in_a_graph_what_was_read_before_a_change_is_the_old_value(jit_compile):
    import tensorflow as tf

    record = variable()

    @tf.function(jit_compile=jit_compile, autograph=False)
    def step():
        least = ops.min(ops.convert_to_tensor(record))
        before = read_at(record, tf.constant(INDEX))
        add(record)
        set_chosen(record)
        return least, before, read_at(record, tf.constant(INDEX))

    for _ in range(2):
        record.assign(BEFORE)
        least, before, after = step()
        assert float(least) == 10.0
        assert array(before).tolist() == BEFORE[INDEX].tolist()
        assert array(after).tolist() == [2.0, 2.0, 2.0, 14.0, 2.0]


class Both(kc.SharpnessAwareModel, kc.ConfidencePruningModel):
    pass


@pytest.mark.slow
@on_tensorflow
@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (kc.CorrectnessRankingModel, {"normalization": "views"}),
        (kc.ConfidencePruningModel, {}),
        (kc.CaPEModel, {}),
        (Both, {}),
    ],
)
def test_no_step_makes_a_copy_of_the_record(cls, arguments):
    import tensorflow as tf

    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(2)(inputs)
    # Keras cannot make the first model of its kind of classes that share a
    # base.
    kc.SharpnessAwareModel(inputs, outputs)
    model = cls(inputs, outputs, num_samples=77, **arguments)
    model.compile(
        "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    y = {"label": tf.constant([0, 1]), "index": tf.constant([5, 5])}
    step = tf.function(lambda x: model.train_step((x, y)))
    graph = step.get_concrete_function(tf.zeros((2, 3))).graph
    outputs = [out for op in graph.get_operations() for out in op.outputs]
    assert [x.name for x in outputs if x.shape == (77,)] == []


@on_tensorflow
def test_under_a_strategy_of_one_replica_records_change_too():
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        record = variable()
    assert isinstance(record.value, tf.distribute.DistributedValues)
    for change, expected in ((add, ADDED), (set_chosen, SET)):
        record.assign(BEFORE)
        strategy.run(
            tf.function(lambda change=change: change(record), autograph=False)
        )
        assert array(record).tolist() == expected


@pytest.mark.portable
def test_a_stateless_scope_holds_the_change():
    record = variable()
    scope = keras.StatelessScope([(record, ops.convert_to_tensor(BEFORE + 1))])
    with scope:
        add(record)
        read = read_at(record, ops.convert_to_tensor(INDEX))
    assert array(read)[0] == ADDED[4] + 1
    assert array(scope.get_current_value(record))[4] == ADDED[4] + 1
    assert array(record).tolist() == BEFORE.tolist()

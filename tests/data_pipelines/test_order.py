"""Order and random numbers: epochs, seeds, workers, numbers of examples."""

import contextlib
import json
import os
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from examples_with_boxes import (
    CLASSES,
    arrays_of,
    numbered_squares,
    square_batches,
    squares,
)
from paths import TESTS

import keras_calib as kc
from keras_calib.data import epochs


def ids_of(dataset=None, **options):
    """Batches of class ids, which are the quickest to make."""
    return square_batches(dataset, labels="ids", **options)


@pytest.fixture(scope="module")
@tf.autograph.experimental.do_not_convert
def through():
    """Batches of three epochs of seed 5, and what is in them."""
    batches = ids_of(epochs=3, seed=5)
    return batches, arrays_of(batches)


@pytest.fixture(scope="module")
@tf.autograph.experimental.do_not_convert
def jittered():
    """Two epochs of 44 examples, read twice under different conditions."""
    found = []
    for seed, calls in ((1, 1), (2, 7)):
        keras.utils.set_random_seed(seed)
        options = {"jitter": 0.4, "num_parallel_calls": calls, "epochs": 2}
        found.append(arrays_of(ids_of(numbered_squares(44), **options)))
    return found


def test_batches_do_not_depend_on_parallel_calls_or_on_other_seeds(jittered):
    for one, other in zip(*jittered, strict=True):
        np.testing.assert_array_equal(one, other)


def test_each_epoch_leaves_out_its_own_last_examples(jittered):
    first, second = jittered[0][2].reshape(2, 40)
    assert len(np.unique(first)) == len(np.unique(second)) == 40
    assert set(first) != set(second)


def test_epochs_differ_and_resumed_training_sees_what_it_would_have_seen(
    through,
):
    _, through = through
    rest = arrays_of(ids_of(epochs=1, first_epoch=2, seed=5))
    for whole, part in zip(through, rest, strict=True):
        assert len(whole) == 120 and len(part) == 40
        np.testing.assert_array_equal(whole[80:], part)
    images, ids, index = through
    np.testing.assert_array_equal(ids, squares(40, CLASSES)["label"][index])
    epochs, shown = index.reshape(3, 40), images.reshape(3, 40, -1)
    plain = kc.data.epochs.shuffled_epochs(
        tf.data.Dataset.range(40), seed=5, buffer_size=4096, epochs=3
    )
    # The order is that of the seed, of which crops are independent.
    assert index.tolist() == [int(number) for _, number in plain]
    for one in epochs:
        np.testing.assert_array_equal(np.sort(one), np.arange(40))
    assert (epochs[0] != epochs[1]).any() and (epochs[1] != epochs[2]).any()
    # An image at the same place of two epochs is cropped anew.
    same = 0
    for one, other in ((0, 1), (0, 2), (1, 2)):
        for place in np.flatnonzero(epochs[one] == epochs[other]):
            same += 1
            assert np.abs(shown[one, place] - shown[other, place]).max() > 0
    assert same


def test_the_order_of_an_epoch_is_a_function_of_seed_and_epoch():
    def shown(**options):
        pairs = kc.data.epochs.shuffled_epochs(
            tf.data.Dataset.range(30), buffer_size=30, **options
        )
        return [(int(e), int(x)) for e, x in pairs]

    tf.random.set_seed(3)
    whole = shown(seed=0, epochs=3)
    tf.random.set_seed(4)
    assert shown(seed=0, epochs=1, first_epoch=2) == whole[60:]
    assert [e for e, _ in whole] == [0] * 30 + [1] * 30 + [2] * 30
    assert shown(seed=1, epochs=1) != whole[:30]
    numbers = [[x for e, x in whole if e == k] for k in range(3)]
    assert numbers[0] != numbers[1] != numbers[2]


def test_what_has_no_end_says_so():
    some = tf.data.Dataset.range(3)
    for dataset in (some, some.filter(lambda x: x > 0)):
        endless = kc.data.epochs.shuffled_epochs(dataset, seed=0, buffer_size=3)
        assert int(endless.cardinality()) == tf.data.INFINITE_CARDINALITY
        assert len(list(endless.take(7))) == 7


def test_epochs_without_a_batch_do_not_go_on_for_ever():
    few = tf.data.Dataset.range(16).filter(lambda number: number < 5)
    nothing = few.filter(lambda number: number < 0)
    options = {"seed": 0, "buffer_size": 2}
    batches = epochs.shuffled_epochs(
        few,
        lambda epoch, shuffled: shuffled.batch(8, drop_remainder=True),
        epochs=None,
        first_epoch=0,
        **options,
    )
    for endless in (
        batches,
        kc.data.epochs.shuffled_epochs(nothing, **options),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="for a batch"):
            next(iter(endless))
    with pytest.raises(ValueError, match="examples for a batch"):
        ids_of(numbered_squares(5), epochs=None)


def test_batches_are_the_same_where_the_size_is_not_known(through):
    unknown = numbered_squares().filter(lambda example: example["index"] >= 0)
    got = ids_of(unknown, epochs=None, seed=5)
    assert got.element_spec == through[0].element_spec
    # The sixth is one of the second epoch.
    for one, other in zip(arrays_of(got.take(6)), through[1], strict=True):
        np.testing.assert_array_equal(one, other[:48])


# Numbers of examples.


def test_the_index_stays_with_its_example():
    values = np.random.default_rng(0).normal(size=20)
    pairs = tf.data.Dataset.from_tensor_slices((values, np.arange(20) % 3))
    for shuffled in (
        kc.data.with_index(pairs).shuffle(20).repeat(2),
        kc.data.with_index(pairs).repeat(2).shuffle(40),
    ):
        rows = list(shuffled.as_numpy_iterator())
        assert len(rows) == 40
        for x, y in rows:
            assert values[y["index"]] == x and y["index"] % 3 == y["label"]


def test_an_index_is_given_once_to_examples():
    with pytest.raises(ValueError, match="must not have an index"):
        kc.data.with_index(numbered_squares())
    with pytest.raises(ValueError, match="dicts, or pairs"):
        kc.data.with_index(tf.data.Dataset.range(3))


# Workers.


def test_workers_see_different_examples_with_different_numbers():
    contexts = [tf.distribute.InputContext(2, k, 2) for k in (0, 1)]
    options = {"epochs": 2, "drop_remainder": False}
    indices = []
    for context in contexts:
        batches = ids_of(input_context=context, **options)
        parts = [y["index"].numpy() for _, y in batches]
        # The rest of an epoch is a batch of its own.
        assert [len(part) for part in parts] == [8, 8, 4] * 2
        indices += [*parts[:3]]
    assert sorted(np.concatenate(indices)) == list(range(40))
    rows = tf.data.Dataset.from_tensor_slices({"x": np.arange(6)})
    numbers = []
    for k, context in enumerate(contexts):
        own = kc.data.with_index(rows.shard(2, k), input_context=context)
        numbers += [int(e["index"]) for e in own]
    assert sorted(numbers) == list(range(6))


def test_workers_that_read_shares_of_their_own_draw_different_crops(through):
    context = tf.distribute.InputContext(2, 1, 2)
    batches = ids_of(input_context=context, sharded=True, seed=5)
    images, _, index = arrays_of(batches)
    # The first worker draws what one alone does.
    first, _, again = (part[:40] for part in through[1])
    np.testing.assert_array_equal(index, again)
    assert np.abs(images - first).max() > 1


REPLICAS = """
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
import keras_calib as kc
from examples_with_boxes import squares
rows = squares(40, 5)
rows["boxes"][3] = np.nan
tally = kc.data.Tally()
data = tf.data.Dataset.from_tensor_slices(rows)
data = kc.data.valid_examples(data, num_classes=5, tally=tally)
batches = kc.data.training_pipeline(
    kc.data.with_index(data), 16, 8, 5, epochs=1, drop_remainder=False
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
seen, sizes = [], []
for x, y in strategy.experimental_distribute_dataset(batches):
    parts = strategy.experimental_local_results(y["index"])
    sizes.append([len(part) for part in parts])
    seen += [int(i) for part in parts for i in part]
assert sorted(seen) == list(range(39)), seen
assert sizes[0] == [4, 4], sizes
assert tally.counts()["bad boxes"] == 1, tally.counts()
print("done")
"""


@pytest.mark.slow
def test_two_replicas_read_every_example_once():
    run = subprocess.run(
        [sys.executable, "-c", REPLICAS],
        capture_output=True,
        text=True,
        cwd=TESTS,
    )
    assert "done" in run.stdout, run.stderr[-2000:]


WORKERS = """
import json
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import keras_calib as kc
from examples_with_boxes import squares

def make(context=None):
    data = tf.data.Dataset.from_tensor_slices(squares(32, 5))
    data = kc.data.with_index(data)
    size = context.get_per_replica_batch_size(8) if context else 8
    return kc.data.training_pipeline(
        data, 16, size, 5, epochs=1, input_context=context
    )

def indices(batches):
    seen = []
    for _, y in batches:
        for part in strategy.experimental_local_results(y["index"]):
            seen += part.numpy().tolist()
    return seen

by_function = strategy.distribute_datasets_from_function(make)
by_itself = strategy.experimental_distribute_dataset(make())
print(json.dumps([indices(by_function), indices(by_itself)]))
"""


@pytest.mark.slow
def test_two_workers_read_every_example_once_however_they_share():
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(2):
            free = stack.enter_context(socket.socket())
            free.bind(("localhost", 0))
            ports.append(f"localhost:{free.getsockname()[1]}")
    workers = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        cluster = {"cluster": {"worker": ports}, "task": task}
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKERS],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=TESTS,
            env={**os.environ, "TF_CONFIG": json.dumps(cluster)},
        )
        workers.append(worker)
    try:
        outputs = [worker.communicate(timeout=200) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (_, errors) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, errors[-2000:]
    shares = [json.loads(output) for output, _ in outputs]
    for first, second in zip(*shares, strict=True):
        assert len(first) == len(second) == 16
        assert sorted(first + second) == list(range(32))

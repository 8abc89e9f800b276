"""Batches to train and evaluate on."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from cases import BACKEND

import keras_calib as kc

if BACKEND != "tensorflow":
    pytest.skip("pipelines are TensorFlow's", allow_module_level=True)
import keras
import tensorflow as tf
from examples_with_boxes import jpeg
from examples_with_boxes import make_examples
from examples_with_boxes import smooth_image
from examples_with_boxes import squares

CLASSES = 5


def data(count=40, **options):
    rows = squares(count, CLASSES, **options)
    return kc.with_index(tf.data.Dataset.from_tensor_slices(rows))


def batches(dataset=None, **options):
    options = {
        "size": 16,
        "batch_size": 8,
        "num_classes": CLASSES,
        "epochs": 1,
        **options,
    }
    return kc.training_pipeline(
        data() if dataset is None else dataset, **options
    )


def arrays(dataset):
    """Images, labels and indices of all batches."""
    parts = [
        (x, y["label"], y["index"]) for x, y in dataset.as_numpy_iterator()
    ]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def same(first, second):
    for a, b in zip(arrays(first), arrays(second), strict=True):
        np.testing.assert_array_equal(a, b)


# What is in a batch.


def test_targets_are_those_of_the_lit_share_of_each_crop():
    options = {"flip": True, "seed": 3}
    images, pairs, index = arrays(batches(targets="pairs", **options))
    labels = squares(40, CLASSES)["label"]
    np.testing.assert_array_equal(pairs[:, 0], labels[index])
    lit = (images[..., 0] > 172).mean((1, 2))
    # Within half a pixel of the resized outline.
    assert np.abs(lit - pairs[:, 1]).max() < 0.1
    assert pairs[:, 1].min() == 0 and pairs[:, 1].max() > 0.5
    for beta, floor in ((1.0, None), (0.75, None), (1.0, "uniform")):
        _, soft, again = arrays(
            batches(targets="soft", beta=beta, floor=floor, **options)
        )
        np.testing.assert_array_equal(again, index)
        expected = kc.objectness_targets(
            labels[index], pairs[:, 1].astype("float64"), CLASSES, beta, floor
        )
        np.testing.assert_allclose(soft, expected, atol=1e-6)


def test_batches_hold_the_share_that_one_crop_by_itself_has():
    rng = np.random.default_rng(0)
    rows = []
    for k, count in enumerate([1, 5, 3, 9, 2, 7]):
        corners = np.sort(rng.uniform(-0.1, 1.1, (count, 2, 2)), axis=1)
        rows.append(
            {
                "image": smooth_image(rng, 30 + k, 40 - k),
                "label": k % CLASSES,
                "boxes": corners.reshape(-1, 4),
                "box_labels": np.arange(count) % 3,
                "name": str(k),
            }
        )
    dataset = kc.with_index(make_examples(rows))
    for classes in (None, (0, 2)):
        options = {
            "targets": "pairs",
            "batch_size": 6,
            "classes": classes,
            "epochs": 4,
        }
        _, pairs, index = arrays(batches(dataset, **options))
        # Through `augment`, shares are found one by one.
        _, alone, again = arrays(
            batches(dataset, augment=lambda example: example, **options)
        )
        np.testing.assert_array_equal(index, again)
        np.testing.assert_allclose(pairs, alone, atol=1e-6)
        assert len(np.unique(pairs[:, 1])) > 8


def test_masks_give_the_shares_of_their_boxes():
    rows = squares(24, CLASSES)
    size = rows["image"].shape[1:3]
    rows["mask"] = np.stack(
        [kc.boxes_to_mask(b * [*size, *size], size) for b in rows["boxes"]]
    )
    both = kc.with_index(tf.data.Dataset.from_tensor_slices(rows))
    by_boxes = arrays(batches(both, targets="pairs"))
    by_mask = arrays(batches(both, targets="pairs", objects="mask"))
    for a, b in zip(by_boxes, by_mask, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_hard_labels_need_no_boxes():
    rows = squares(16, CLASSES)
    del rows["boxes"]
    plain = kc.with_index(tf.data.Dataset.from_tensor_slices(rows))
    _, ids, index = arrays(batches(plain, targets="ids"))
    np.testing.assert_array_equal(ids, rows["label"][index])
    _, hard, index = arrays(batches(plain, targets="one_hot"))
    np.testing.assert_array_equal(hard, np.eye(CLASSES)[rows["label"][index]])
    with pytest.raises(ValueError, match="must have 'boxes' or 'mask'"):
        batches(plain)


def test_without_an_index_labels_come_alone():
    rows = tf.data.Dataset.from_tensor_slices(squares(16, CLASSES))
    for x, y in batches(rows, preprocess=lambda x: x / 255.0):
        assert x.shape == (8, 16, 16, 3) and y.shape == (8, CLASSES)
        assert 0.3 < float(tf.reduce_max(x)) <= 1


def test_context_examples_have_exactly_uniform_targets():
    _, soft, index = arrays(batches(data(200), context_share=0.3, beta=0.25))
    images, pairs, again = arrays(
        batches(data(200), context_share=0.3, targets="pairs")
    )
    np.testing.assert_array_equal(index, again)
    bare = pairs[:, 1] == -1
    assert 0.2 < bare.mean() < 0.4
    np.testing.assert_array_equal(soft[bare], np.float32(1 / CLASSES))
    assert (np.abs(soft[~bare] - 1 / CLASSES).max(-1) > 1e-3).all()
    assert (pairs[~bare, 1] >= 0).all()
    # No white is left.
    assert images[bare].max() < 200
    # The loss reads the flag as the targets do.
    logits = np.random.default_rng(0).normal(size=soft.shape)
    got = kc.AdaptiveLabelSmoothing(0.25, from_logits=True)(pairs, logits)
    expected = keras.losses.CategoricalCrossentropy(from_logits=True)(
        soft, logits
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_a_data_set_of_context_keeps_labels_for_evaluation():
    bare = kc.context_examples(data(16))
    for x, y in kc.validation_pipeline(bare, 16, 8, CLASSES, targets="pairs"):
        labels = squares(16, CLASSES)["label"][y["index"]]
        np.testing.assert_array_equal(y["label"][:, 0], labels)
        np.testing.assert_array_equal(y["label"][:, 1], 0)
        assert float(tf.reduce_max(x)) < 200
    _, soft, _ = arrays(batches(bare))
    np.testing.assert_array_equal(soft, np.float32(1 / CLASSES))


def test_validation_shows_every_example_in_order():
    dataset = data(20)
    found = arrays(kc.validation_pipeline(dataset, 16, 8, CLASSES))
    np.testing.assert_array_equal(found[2], np.arange(20))
    np.testing.assert_array_equal(found[1], squares(20, CLASSES)["label"])
    _, pairs, _ = arrays(
        kc.validation_pipeline(
            dataset, 16, 8, CLASSES, targets="pairs", fraction=1.0
        )
    )
    boxes = squares(20, CLASSES)["boxes"][:, 0]
    area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    np.testing.assert_allclose(pairs[:, 1], area, rtol=1e-5)


@pytest.mark.parametrize("mix", [kc.cutmix, kc.mixup, kc.ricap])
def test_objectness_targets_are_mixed_with_their_images(mix):
    _, mixed, _ = arrays(batches(mix=mix))
    _, plain, _ = arrays(batches())
    np.testing.assert_allclose(mixed.sum(-1), 1, rtol=1e-5)
    assert np.abs(mixed - plain).max() > 0.05
    # Each is a mixture of targets of its batch.
    for start in range(0, 40, 8):
        part = plain[start : start + 8]
        one = mixed[start : start + 8]
        assert (one <= part.max(0) + 1e-6).all()
        assert (one >= part.min(0) - 1e-6).all()


# Order and random numbers.


def test_batches_do_not_depend_on_parallel_calls_or_on_other_seeds():
    keras.utils.set_random_seed(1)
    first = list(batches(jitter=0.4, num_parallel_calls=1).as_numpy_iterator())
    keras.utils.set_random_seed(2)
    second = list(batches(jitter=0.4, num_parallel_calls=7).as_numpy_iterator())
    for (x, y), (again, z) in zip(first, second, strict=True):
        np.testing.assert_array_equal(x, again)
        np.testing.assert_array_equal(y["label"], z["label"])


def test_resumed_training_sees_what_it_would_have_seen():
    through = list(batches(epochs=3, seed=5).as_numpy_iterator())
    rest = list(batches(epochs=1, first_epoch=2, seed=5).as_numpy_iterator())
    assert len(through) == 15 and len(rest) == 5
    for (x, y), (again, z) in zip(through[10:], rest, strict=True):
        np.testing.assert_array_equal(x, again)
        np.testing.assert_array_equal(y["index"], z["index"])


def test_epochs_differ_in_order_and_crops_and_each_shows_all():
    images, _, index = arrays(batches(epochs=3))
    epochs = index.reshape(3, 40)
    for one in epochs:
        np.testing.assert_array_equal(np.sort(one), np.arange(40))
    assert (epochs[0] != epochs[1]).any() and (epochs[1] != epochs[2]).any()
    places = [np.argmax(one == 7) for one in epochs]
    shown = images.reshape(3, 40, -1)[range(3), places]
    assert np.abs(shown[0] - shown[1]).max() > 0


def test_each_epoch_leaves_out_its_own_last_examples():
    _, _, index = arrays(batches(data(42), epochs=2))
    assert len(index) == 80
    assert len(np.unique(index[:40])) == len(np.unique(index[40:])) == 40
    sizes = [
        len(x) for x, _ in batches(data(42), epochs=2, drop_remainder=False)
    ]
    assert sizes == [8] * 5 + [2] + [8] * 5 + [2]


def test_another_seed_makes_other_batches():
    first, second = arrays(batches(seed=1)), arrays(batches(seed=2))
    assert (first[2] != second[2]).any()


def test_the_order_of_an_epoch_is_a_function_of_seed_and_epoch():
    def order(**options):
        pairs = kc.shuffled_epochs(
            tf.data.Dataset.range(30), buffer_size=30, **options
        )
        return [(int(e), int(x)) for e, x in pairs]

    tf.random.set_seed(3)
    whole = order(seed=0, epochs=3)
    tf.random.set_seed(4)
    assert order(seed=0, epochs=1, first_epoch=2) == whole[60:]
    assert [e for e, _ in whole] == [0] * 30 + [1] * 30 + [2] * 30
    assert order(seed=1, epochs=1) != whole[:30]
    numbers = [[x for e, x in whole if e == k] for k in range(3)]
    assert numbers[0] != numbers[1] != numbers[2]


def test_the_index_stays_with_its_example():
    values = np.random.default_rng(0).normal(size=20)
    pairs = tf.data.Dataset.from_tensor_slices((values, np.arange(20) % 3))
    for shuffled in (
        kc.with_index(pairs).shuffle(20).repeat(2),
        kc.with_index(pairs).repeat(2).shuffle(40),
    ):
        rows = list(shuffled.as_numpy_iterator())
        assert len(rows) == 40
        for x, y in rows:
            assert values[y["index"]] == x and y["index"] % 3 == y["label"]


def test_workers_see_different_examples_with_different_numbers():
    parts = [
        arrays(
            batches(
                input_context=tf.distribute.InputContext(2, k, 2),
                drop_remainder=False,
            )
        )
        for k in (0, 1)
    ]
    indices = [part[2] for part in parts]
    assert not set(indices[0]) & set(indices[1])
    assert sorted([*indices[0], *indices[1]]) == list(range(40))
    rows = tf.data.Dataset.from_tensor_slices({"x": np.arange(6)})
    numbers = []
    for k in (0, 1):
        context = tf.distribute.InputContext(2, k, 2)
        own = kc.with_index(rows.shard(2, k), input_context=context)
        numbers += [int(e["index"]) for e in own]
    assert sorted(numbers) == list(range(6))


def test_an_index_is_given_once():
    with pytest.raises(ValueError, match="must not have an index"):
        kc.with_index(data())
    with pytest.raises(ValueError, match="dicts, or pairs"):
        kc.with_index(tf.data.Dataset.range(3))


# In training.


def test_a_model_trains_on_them_and_confidence_follows_objectness():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES),
        ]
    )
    model.compile(
        "adam",
        kc.AdaptiveLabelSmoothing(from_logits=True),
        metrics=[kc.ObjectnessDeviation(from_logits=True)],
    )
    rows = tf.data.Dataset.from_tensor_slices(squares(80, CLASSES))
    train = batches(
        rows,
        targets="pairs",
        context_share=0.2,
        epochs=None,
        preprocess=lambda x: x / 255.0 - 0.5,
    )
    with pytest.warns(UserWarning, match="`shuffle=True` was passed"):
        log = model.fit(train, steps_per_epoch=10, epochs=12, verbose=0).history
    assert log["objectness_deviation"][-1] < log["objectness_deviation"][0]
    assert log["loss"][-1] < log["loss"][0]


def test_two_replicas_read_every_example_once():
    code = """
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
import keras_calib as kc
from examples_with_boxes import squares
rows = squares(40, 5)
rows["boxes"][3] = np.nan
tally = kc.Tally()
data = tf.data.Dataset.from_tensor_slices(rows)
data = kc.with_index(kc.valid_examples(data, num_classes=5, tally=tally))
batches = kc.training_pipeline(data, 16, 8, 5, epochs=1, drop_remainder=False)
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
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=os.path.dirname(__file__),
    )
    assert "done" in run.stdout, run.stderr[-2000:]


def test_two_workers_read_every_example_once_however_they_share():
    code = """
import json
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import keras_calib as kc
from examples_with_boxes import squares

def make(context=None):
    data = kc.with_index(tf.data.Dataset.from_tensor_slices(squares(32, 5)))
    size = context.get_per_replica_batch_size(8) if context else 8
    return kc.training_pipeline(
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
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=os.path.dirname(__file__),
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


def test_targets_are_the_same_where_keras_computes_with_something_else(
    monkeypatch,
):
    from keras_calib.data.batches import labelling as module

    expected = arrays(batches(context_share=0.3, beta=0.5))
    # Then NumPy makes them: tensors of tf.data are none of Keras' backend.
    monkeypatch.setattr(module.backend, "backend", lambda: "jax")
    got = arrays(batches(context_share=0.3, beta=0.5))
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert got[1].dtype == "float32"


# Bad input.


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"targets": "hard"}, "`targets` must be one of"),
        ({"beta": 2.0}, "`beta` must be <= 1"),
        ({"floor": "low"}, "`floor` must be one of"),
        ({"batch_size": 0}, "`batch_size` must be >= 1"),
        ({"num_classes": 1}, "`num_classes` must be >= 2"),
        ({"context_share": 1.5}, "`context_share` must be <= 1"),
        ({"jitter": -1.0}, "`jitter` must be >= 0"),
        ({"max_boxes": 0}, "`max_boxes` must be >= 1"),
        ({"epochs": 0}, "`epochs` must be >= 1"),
        ({"first_epoch": -1}, "`first_epoch` must be >= 0"),
        ({"shuffle_buffer": 0}, "`buffer_size` must be >= 1"),
        ({"num_parallel_calls": 0}, "`num_parallel_calls` must be >= 1"),
        ({"targets": "ids", "context_share": 0.1}, "must not be class ids"),
        ({"targets": "ids", "mix": kc.cutmix}, "to be mixed"),
        ({"objects": "mask"}, "must have what `objects` names"),
    ],
)
def test_bad_arguments_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        batches(**options)


def test_labels_out_of_range_are_named():
    rows = squares(16, CLASSES)
    rows["label"][3] = CLASSES
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    with pytest.raises(tf.errors.InvalidArgumentError, match="square 3"):
        list(batches(dataset))
    with pytest.raises(tf.errors.InvalidArgumentError, match="square 3"):
        list(kc.validation_pipeline(dataset, 16, 8, CLASSES))
    tally = kc.Tally()
    good = kc.valid_examples(dataset, num_classes=CLASSES, tally=tally)
    assert len(list(good)) == 15 and tally.counts()["bad label"] == 1


def test_examples_without_a_name_are_called_by_their_number():
    rows = squares(16, CLASSES)
    rows["label"][3] = -1
    del rows["name"]
    dataset = kc.with_index(tf.data.Dataset.from_tensor_slices(rows))
    with pytest.raises(tf.errors.InvalidArgumentError, match="index 3"):
        list(batches(dataset))


def test_more_boxes_than_there_may_be_are_named():
    row = {
        "image": jpeg(np.full((20, 20, 3), 90, "uint8")),
        "label": 1,
        "name": "crowd",
        "boxes": np.tile([0.1, 0.1, 0.4, 0.4], (6, 1)),
    }
    dataset = make_examples([row])
    assert len(list(batches(dataset, batch_size=1, max_boxes=6))) == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="crowd"):
        list(batches(dataset, batch_size=1, max_boxes=5))


def test_examples_without_a_label_are_refused():
    rows = squares(16, CLASSES)
    del rows["label"]
    with pytest.raises(ValueError, match="must have 'label'.*object_examples"):
        batches(tf.data.Dataset.from_tensor_slices(rows))


# What was wrong once.


def test_context_is_made_of_examples_with_objects_alone():
    row = squares(16, CLASSES)
    row["boxes"] = row["boxes"][:, :0]
    bare = tf.data.Dataset.from_tensor_slices(row)
    options = {"targets": "one_hot", "context_share": 1.0}
    for _, y in batches(bare, **options):
        assert float(tf.reduce_max(y)) == 1
    row = squares(16, CLASSES)
    row["mask"] = np.zeros((16, 20, 20, 1), "uint8")
    del row["boxes"]
    for _, y in batches(tf.data.Dataset.from_tensor_slices(row), **options):
        assert float(tf.reduce_max(y)) == 1


def test_context_of_masks_is_that_of_the_classes():
    row = squares(16, CLASSES)
    row["mask"] = np.full((16, 20, 20, 1), 2, "uint8")
    row["mask"][:, :10, :10] = 1
    del row["boxes"]
    whole = tf.data.Dataset.from_tensor_slices(row)
    for x, y in batches(
        whole, targets="pairs", context_share=1.0, classes=(1,), fill=(0, 0, 0)
    ):
        np.testing.assert_array_equal(y[:, 1], -1)
        black = np.mean(x.numpy() == 0, axis=(1, 2, 3))
        assert black.min() < 1 and black.max() > 0.1


def test_targets_are_never_below_0():
    rows = squares(16, CLASSES)
    rows["boxes"] = np.tile([[[0.9, 0.9, 1.0, 1.0]]], (16, 1, 1))
    far = tf.data.Dataset.from_tensor_slices(rows)
    soft = np.concatenate(
        [y for _, y in batches(far, scale=(0.1, 0.2)).as_numpy_iterator()]
    )
    assert soft.min() == 0 and soft.dtype == "float32"
    np.testing.assert_allclose(soft.sum(-1), 1, rtol=1e-6)


def test_a_data_set_smaller_than_a_batch_is_refused():
    with pytest.raises(ValueError, match="examples for a batch"):
        batches(data(5), epochs=None)
    assert len(list(batches(data(5), drop_remainder=False))) == 1


def test_epochs_without_a_batch_do_not_go_on_for_ever():
    few = data(16).filter(lambda example: example["index"] < 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="for a batch"):
        next(iter(batches(few, epochs=None)))
    nothing = few.filter(lambda example: example["index"] < 0)
    for endless in (
        batches(nothing, epochs=None, drop_remainder=False),
        kc.shuffled_epochs(nothing, seed=0, buffer_size=2),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="examples"):
            next(iter(endless))


def test_batches_are_the_same_where_the_size_is_not_known():
    unknown = data(20).filter(lambda example: example["index"] >= 0)
    got = batches(unknown, epochs=None)
    expected = batches(data(20), epochs=None)
    assert got.element_spec == expected.element_spec
    for one, other in zip(got.take(5), expected.take(5), strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)


def test_workers_that_read_shares_of_their_own_draw_different_crops():
    images = []
    for k in (0, 1):
        context = tf.distribute.InputContext(2, k, 2)
        own = data(8)
        images.append(
            arrays(batches(own, input_context=context, sharded=True))[0]
        )
    assert np.abs(images[0] - images[1]).max() > 1


def test_labels_that_are_no_class_ids_are_refused():
    rows = squares(16, CLASSES)
    for labels in (rows["label"] + 0.9, np.eye(CLASSES)[rows["label"]]):
        wrong = tf.data.Dataset.from_tensor_slices({**rows, "label": labels})
        with pytest.raises(ValueError, match="must be one class id"):
            batches(wrong)


def test_masks_of_another_size_are_named_by_pipelines_too():
    rows = squares(8, CLASSES)
    rows["mask"] = np.ones((8, 20, 7, 1), "uint8")
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    for _ in range(5):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="square [0-7]"
        ):
            list(batches(dataset, objects="mask"))


# Arrays in memory.


def noisy(x, labels, key):
    noise = tf.random.stateless_uniform(tf.shape(x["a"]), key)
    return {**x, "a": noise}, 10 * labels


def parts_of(batches):
    return [tf.nest.map_structure(np.asarray, batch) for batch in batches]


def test_arrays_come_in_the_order_of_epoch_batches_for_each_seed_and_epoch():
    x = {"a": np.arange(10.0)[:, None], "b": np.arange(10)}
    arrays = (x, np.arange(10) % 3)
    for drop, seed in ((True, 0), (False, 5), (False, None)):
        options = {
            "batch_size": 4,
            "sample_weight": np.arange(10) / 9,
            "seed": seed,
            "drop_remainder": drop,
        }
        expected = []
        batches = kc.EpochBatches(*arrays, **options)
        for epoch in range(3):
            batches.set_epoch(epoch)
            expected.append(parts_of(batches[i] for i in range(len(batches))))
        made = partial(kc.array_pipeline, *arrays, **options)
        whole = parts_of(made(epochs=3))
        endless = parts_of(made().take(3 * len(batches)))
        assert int(made(epochs=3).cardinality()) == len(whole)
        assert int(made().cardinality()) == tf.data.INFINITE_CARDINALITY
        # Training that goes on after two epochs.
        resumed = parts_of(made(first_epoch=2, epochs=1))
        for found, epochs in (
            (whole, expected),
            (endless, expected),
            (resumed, expected[2:]),
        ):
            there = [batch for epoch in epochs for batch in epoch]
            assert len(found) == len(there)
            for a, b in zip(found, there, strict=True):
                tf.nest.map_structure(np.testing.assert_array_equal, a, b)


def test_augmented_arrays_depend_on_seed_epoch_and_place_alone():
    x = {"a": np.zeros((6, 1), "float32"), "b": np.arange(6)}

    def shown(**options):
        batches = kc.array_pipeline(
            x, np.arange(6), batch_size=3, augment=noisy, **options
        )
        parts = parts_of(batches.take(2))
        for found, y in parts:
            np.testing.assert_array_equal(y["label"], 10 * y["index"])
            np.testing.assert_array_equal(found["b"], y["index"])
        return np.concatenate([found["a"][:, 0] for found, _ in parts])

    first = shown()
    assert len(set(first)) == 6
    tf.random.set_seed(7)
    np.testing.assert_array_equal(shown(num_parallel_calls=1), first)
    for other in (shown(seed=1), shown(first_epoch=1)):
        assert len(set(other)) == 6
        assert not set(other) & set(first)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batch_size": 5}, "samples for a batch"),
        ({"batch_size": 0}, "`batch_size` must be >= 1"),
        ({"first_epoch": -1}, "`first_epoch` must be >= 0"),
        ({"epochs": 0}, "`epochs` must be >= 1"),
        ({"num_parallel_calls": 0}, "`num_parallel_calls` must be >= 1"),
        ({"sample_weight": np.ones(3)}, "the same length"),
    ],
)
def test_arrays_without_batches_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        kc.array_pipeline(np.zeros((4, 2)), np.zeros(4), **arguments)


def test_what_has_no_end_says_so():
    some = tf.data.Dataset.range(3)
    for dataset in (some, some.filter(lambda x: x > 0)):
        endless = kc.shuffled_epochs(dataset, seed=0, buffer_size=3)
        assert int(endless.cardinality()) == tf.data.INFINITE_CARDINALITY
        assert len(list(endless.take(7))) == 7

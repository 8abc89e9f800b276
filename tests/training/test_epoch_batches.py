"""`EpochBatches`: arrays in the order of seed and epoch."""

import keras
import numpy as np
import pytest
from keras import ops
from small_trainings import EAGER, data_of, dense, eager

import keras_calib as kc

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def test_epoch_batches_show_all_once_in_an_order_of_seed_and_epoch():
    x, labels = np.arange(10.0)[:, None], np.arange(10) % 3
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0)):
        batches = kc.data.EpochBatches(x, labels, batch_size=4, seed=seed)
        batches.set_epoch(epoch)
        assert len(batches) == 3
        parts = [batches[i] for i in range(3)]
        index = np.concatenate([y["index"] for _, y in parts])
        shown = np.concatenate([x[:, 0] for x, _ in parts])
        of_labels = np.concatenate([y["label"] for _, y in parts])
        np.testing.assert_array_equal(shown, index)
        np.testing.assert_array_equal(of_labels, labels[index])
        assert sorted(index) == list(range(10))
        orders.append(tuple(index))
    assert orders[0] == orders[3]
    assert len(set(orders)) == 3
    plain = kc.data.EpochBatches(x, labels, batch_size=4, seed=None)
    np.testing.assert_array_equal(plain[1][1]["index"], [4, 5, 6, 7])
    assert (
        len(kc.data.EpochBatches(x, labels, batch_size=4, drop_remainder=True))
        == 2
    )
    weighted = kc.data.EpochBatches(
        x, labels, sample_weight=np.arange(10), seed=2
    )
    *_, y, weight = weighted[0]
    np.testing.assert_array_equal(weight, y["index"])


def test_augmented_batches_depend_on_seed_epoch_and_place_alone():
    x, labels = np.zeros((6, 1)), np.arange(6)

    def noisy(x, y, random):
        return x + random.normal(size=x.shape), 10 * y

    def shown(seed, epoch):
        batches = kc.data.EpochBatches(
            x, labels, batch_size=3, seed=seed, augment=noisy
        )
        batches.set_epoch(epoch)
        # The second before the first: nothing depends on what was read.
        second, first = batches[1], batches[0]
        for _, y in (first, second):
            np.testing.assert_array_equal(y["label"], 10 * y["index"])
        return np.concatenate([first[0], second[0]])[:, 0]

    first = shown(0, 0)
    assert len(set(first)) == 6
    np.testing.assert_array_equal(shown(0, 0), first)
    for seed, epoch in ((1, 0), (0, 1)):
        assert not set(shown(seed, epoch)) & set(first)
    assert len(set(shown(None, 0))) == 6


class OwnLoss(keras.Model):
    """Not of this library: nothing tells the data what epoch it is."""

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return ops.mean(ops.square(y_pred))


class Shown(kc.data.EpochBatches):
    """Remembers the first numbers of each pass."""

    def __getitem__(self, place):
        batch = super().__getitem__(place)
        if place == 0:
            self.firsts.append(tuple(batch[1]["index"]))
        return batch


@pytest.mark.parametrize("told", [False, True])
def test_epoch_batches_count_epochs_told_or_not(told):
    x, labels = np.zeros((10, 6), "float32"), np.zeros(10, int)
    batches = Shown(x, labels, batch_size=5)
    batches.firsts = []
    model = eager("crl")
    if not told:
        model = dense(OwnLoss)
        model.compile("sgd", loss=CROSS_ENTROPY, **EAGER)
    # The second `fit` goes on where nothing tells it the epoch.
    for epochs in (2, 1):
        orders = []
        look = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: batches.firsts.clear(),
            on_epoch_end=lambda epoch, logs, orders=orders: orders.append(
                batches.firsts[0]
            ),
        )
        model.fit(
            batches, epochs=epochs, shuffle=False, verbose=0, callbacks=[look]
        )
        first = 2 if epochs == 1 and not told else 0
        for epoch, order in enumerate(orders, first):
            random = np.random.default_rng((0, epoch)).permutation(10)
            assert order == tuple(random[:5])
        assert len(orders) == epochs


def test_a_plain_model_goes_on_from_the_epoch_that_was_set():
    batches = Shown(np.zeros((10, 6), "float32"), np.zeros(10, int))
    batches.firsts = []
    model = dense(OwnLoss)
    model.compile("sgd", loss=CROSS_ENTROPY, **EAGER)
    batches.set_epoch(4)
    model.fit(batches, epochs=2, shuffle=False, verbose=0)
    orders = [np.random.default_rng((0, e)).permutation(10) for e in (4, 5)]
    assert batches.firsts[-2:] == [tuple(order) for order in orders]


def test_an_epoch_that_is_told_is_a_whole_pass(tmp_path):
    x, _, labels, _ = data_of("sam", 10)
    batches = kc.data.EpochBatches(x, labels, batch_size=4, with_index=False)
    backup = kc.training.ResumableBackup(tmp_path / "backup.npz")
    model = dense(keras.Model)
    model.compile("sgd", loss=CROSS_ENTROPY, **EAGER)
    with pytest.raises(ValueError, match="`steps_per_epoch` must be None"):
        model.fit(batches, steps_per_epoch=2, verbose=0, callbacks=[backup])


def test_a_plain_model_trains_on_epoch_batches_without_the_index():
    x, _, labels, _ = data_of("sam", 10)
    options = {"batch_size": 5, "sample_weight": np.ones(10), "seed": 3}
    plain = kc.data.EpochBatches(x, labels, with_index=False, **options)
    numbered = kc.data.EpochBatches(x, labels, **options)
    for (a, y, w), (b, z, v) in zip(
        (plain[0], plain[1]), (numbered[0], numbered[1]), strict=True
    ):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(y, z["label"])
        np.testing.assert_array_equal(w, v)
    model = dense(keras.Model)
    model.compile(
        "sgd", metrics=[kc.NLL(from_logits=True)], loss=CROSS_ENTROPY, **EAGER
    )
    model.fit(plain, epochs=2, shuffle=False, verbose=0)
    # A model of this library that needs no index takes either.
    sharp = eager("sam")
    for batches in (plain, numbered):
        sharp.fit(batches, epochs=1, verbose=0)


def test_epoch_batches_refuse():
    for arguments, message in (
        ({"batch_size": 0}, "`batch_size` must be >= 1"),
        ({"seed": -1}, "`seed` must be >= 0"),
        ({"sample_weight": np.ones(3)}, "the same length"),
        ({"labels": {"label": np.zeros(4)}}, "the index is added here"),
    ):
        with pytest.raises(ValueError, match=message):
            kc.data.EpochBatches(
                np.zeros((4, 2)), **{"labels": np.zeros(4), **arguments}
            )

"""Groups that come beside a data set belong to the right rows."""

import keras
import numpy as np
import pytest
from data_forms import KERNEL, K, network
from data_forms import X as FEW
from report_pages import results_alone

import keras_calib as kc

# As many rows as a report needs in each group.
X = np.concatenate([FEW, FEW])
COUNT = len(X)
GROUPS = np.arange(COUNT) % 2
# In group 1 nothing is right.
LABELS = np.where(GROUPS, (X @ KERNEL).argmin(-1), (X @ KERNEL).argmax(-1))
RULE = "`groups` must belong to rows in a fixed order"


def accuracies(model, data, groups):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    with pytest.MonkeyPatch.context() as patch:
        results_alone(patch)
        made = kc.report(model, data, groups=groups, verbose=0)
    rows = made.results["model"]["groups"]["rows"]
    return [row["accuracy"] for row in rows]


def selects(model, data, groups):
    selector = kc.SelectiveClassifier()
    selector.fit_on(model, data, coverage=0.5, groups=groups, verbose=0)
    return [1 - x for x in selector.chosen.group_risk]


CONSUMERS = [accuracies, selects]


def dataset():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, LABELS))


def loader(shuffle):
    from torch import tensor
    from torch.utils.data import DataLoader, TensorDataset

    made = TensorDataset(tensor(X), tensor(LABELS))
    return DataLoader(made, batch_size=10, shuffle=shuffle)


class Redrawn(keras.utils.PyDataset):
    """Its rows are in another order each time."""

    rng = np.random.default_rng(0)

    def __len__(self):
        return 5

    def __getitem__(self, index):
        rows = self.rng.integers(COUNT, size=10)
        return X[rows], LABELS[rows]


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_groups_given_for_all_rows_need_one_order(consumer):
    pytest.importorskip("tensorflow")
    model = network()
    # The mean of a selector is that of the accepted.
    for data in (
        (X, LABELS),
        dataset().batch(10),
        [(X[:9], LABELS[:9]), (X[9:], LABELS[9:])],
    ):
        assert consumer(model, data, GROUPS) == [1.0, 0.0]
    odd = {
        "shuffled": dataset().shuffle(99).batch(10),
        "shuffled once": dataset()
        .shuffle(99, reshuffle_each_iteration=False)
        .batch(10),
        "shuffled before": dataset()
        .shuffle(99)
        .map(lambda x, y: (x, y))
        .batch(10)
        .prefetch(1),
        "two passes differ": Redrawn(),
        "epochs": kc.data.EpochBatches(X, LABELS, batch_size=10, seed=1),
        "index": [(X, {"label": LABELS, "index": np.arange(COUNT)[::-1]})],
        "read once": iter(dataset().batch(10)),
    }
    for name, data in odd.items():
        count = GROUPS[:50] if name == "two passes differ" else GROUPS
        with pytest.raises(ValueError, match=RULE):
            consumer(model, data, count)


@pytest.mark.portable
def test_a_shuffling_loader_of_torch_is_seen():
    pytest.importorskip("torch")
    model = network()
    assert selects(model, loader(False), GROUPS) == [1.0, 0.0]
    with pytest.raises(ValueError, match="two passes over the data differ"):
        selects(model, loader(True), GROUPS)


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_groups_can_come_from_the_batch(consumer):
    pytest.importorskip("tensorflow")
    marked = np.concatenate([X, GROUPS[:, None]], -1).astype("float32")
    inputs = keras.Input((5,))
    model = keras.Model(inputs, keras.layers.Dense(K)(inputs))
    model.set_weights([np.pad(KERNEL, ((0, 1), (0, 0))), np.zeros(K)])
    model.compile(loss=kc.MbLS(from_logits=True))
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((marked, LABELS))
    data = data.shuffle(99).batch(10)

    def site(x):
        return np.where(np.asarray(x)[:, 4] > 0.5, "second", "first")

    assert consumer(model, data, site) == [1.0, 0.0]
    with pytest.raises(ValueError, match="must return a group for each row"):
        consumer(model, data, lambda x: ["one"])


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize(
    ("first", "second"), [(1, "1"), (1.0, b"1"), ("True", True)]
)
def test_groups_that_differ_in_type_between_batches_are_refused(
    consumer, first, second
):
    halves = [slice(0, COUNT // 2), slice(COUNT // 2, COUNT)]
    data = [(X[rows], LABELS[rows]) for rows in halves]
    model = network()
    for make in (np.array, list):
        batches = iter([first, second])

        def site(x, make=make, batches=batches):
            return make([next(batches)] * len(x))

        with pytest.raises(ValueError, match="differ in type alone"):
            consumer(model, data, site)


def test_ids_and_names_of_batches_are_groups_as_in_one_list():
    halves = [slice(0, COUNT // 2), slice(COUNT // 2, COUNT)]
    data = [(X[rows], LABELS[rows]) for rows in halves]
    model = network()
    for first, second in (([7], ["a"]), (["a"], np.array([7.0]))):
        batches = iter([first, second])
        selector = kc.SelectiveClassifier().fit_on(
            model,
            data,
            coverage=0.5,
            groups=lambda x, each=batches: np.repeat(next(each), len(x)),
            verbose=0,
        )
        assert selector.groups == ("7", "a")

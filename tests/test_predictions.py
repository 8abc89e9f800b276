"""One reader of models on data sets: every form of data, every consumer."""

import keras
import numpy as np
import pytest
from cases import BACKEND

import keras_calib as kc
from keras_calib.predictions import batches_of
from keras_calib.predictions import predict_batches
from keras_calib.predictions.batches import count_batches
from keras_calib.predictions.outputs import read_as

pytestmark = pytest.mark.portable

COUNT, K = 53, 3
rng = np.random.default_rng(0)
X = rng.normal(size=(COUNT, 4)).astype("float32")
KERNEL = rng.normal(size=(4, K)).astype("float32")
# What the network says, but for some.
Y = np.where(
    np.arange(COUNT) % 3, (X @ KERNEL).argmax(-1), rng.integers(K, size=COUNT)
)
W = rng.integers(1, 4, size=COUNT).astype("float32")


def network(**compiled):
    """A model that returns logits."""
    inputs = keras.Input((4,))
    kind = keras.layers.Dense(K, name="kind")(inputs)
    model = keras.Model(inputs, kind)
    model.set_weights([KERNEL, np.zeros(K)])
    model.compile(loss=kc.MbLS(from_logits=True, **compiled))
    return model


class Batches(keras.utils.PyDataset):
    def __init__(self, *arrays):
        super().__init__()
        self.arrays = arrays

    def __len__(self):
        return -(-COUNT // 10)

    def __getitem__(self, index):
        part = slice(10 * index, 10 * index + 10)
        return tuple(x[part] for x in self.arrays)


def tf_data(*arrays):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays).batch(10)


def torch_loader(*arrays):
    from torch import tensor
    from torch.utils.data import DataLoader
    from torch.utils.data import TensorDataset

    return DataLoader(TensorDataset(*map(tensor, arrays)), batch_size=10)


def with_index(x, y, *weight):
    index = np.arange(COUNT)[::-1]
    weight = [{"label": w, "index": w} for w in weight]
    return x, {"label": y, "index": index}, *weight


FORMS = {
    "arrays": lambda *a: a,
    "lists": lambda *a: tuple(x.tolist() for x in a),
    "tuples": lambda x, *a: (x.tolist(), *(tuple(v.tolist()) for v in a)),
    "tensors": lambda *a: tuple(map(keras.ops.convert_to_tensor, a)),
    "a tuple of a batch": lambda *a: (a,),
    "tuples in a tuple": lambda *a: tuple(Batches(*a)[i] for i in range(6)),
    "a list of batches": lambda *a: [Batches(*a)[i] for i in range(6)],
    "batches of lists": lambda *a: [
        [x.tolist() for x in Batches(*a)[i]] for i in range(6)
    ],
    "a generator": lambda *a: (Batches(*a)[i] for i in range(6)),
    "with empty batches": lambda *a: [tuple(x[:0] for x in a), a],
    "PyDataset": Batches,
    "with_index": with_index,
    "batches with index": lambda *a: [with_index(*a)],
    "tf.data": tf_data,
    "torch": torch_loader,
}
NEEDS = {"tf.data": "tensorflow", "torch": "torch"}


def forms(*arrays):
    for name, form in FORMS.items():
        if NEEDS.get(name, BACKEND) == BACKEND:
            yield name, lambda form=form: form(*arrays)


def test_every_form_of_data_is_read_as_its_arrays():
    model = network()
    outputs = keras.ops.convert_to_numpy(model(X))
    for arrays in ((X, Y), (X, Y, W)):
        for name, data in forms(*arrays):
            read = list(predict_batches(model, data(), batch_size=10))
            np.testing.assert_allclose(
                np.concatenate([batch.outputs for batch in read]),
                outputs,
                atol=1e-6,
                err_msg=name,
            )
            columns = [(batch.labels, batch.sample_weight) for batch in read]
            for column, expected in zip(
                zip(*columns, strict=True), (Y, W), strict=True
            ):
                if column[0] is None:
                    assert len(arrays) == 2
                    continue
                column = [keras.ops.convert_to_numpy(x) for x in column]
                np.testing.assert_array_equal(
                    np.concatenate(column), expected, err_msg=name
                )
            if "index" in name:
                index = np.concatenate([batch.index for batch in read])
                np.testing.assert_array_equal(index, np.arange(COUNT)[::-1])


def fits(model, data, **options):
    return kc.TemperatureScaling().fit_on(model, data, verbose=0, **options)


def selects(model, data, **options):
    chosen = kc.SelectiveClassifier().fit_on(
        model, data, coverage=0.5, verbose=0, **options
    )
    return chosen.chosen.threshold, chosen.chosen.coverage


def logs(model, data, **options):
    logger = kc.CalibrationLogger(
        data, metrics=["ece", "nll"], count_flips=False, **options
    )
    logger.set_model(model)
    logger.on_train_begin()
    logger.on_epoch_end(0)
    logger.on_train_end()
    values = logger.logged[0].values
    return values["cal_ece"], values["cal_nll"]


def reports(model, data, **options):
    page = kc.report(model, data, verbose=0, **options)
    return page.results["model"]["metrics"]["nll"]["value"]


# What each consumer makes of a model on a data set, as numbers.
CONSUMERS = {
    "fit_on": lambda *a, **o: fits(*a, **o).temperature,
    "SelectiveClassifier": selects,
    "CalibrationLogger": logs,
    "report": reports,
    "ReliabilityDisplay": lambda *a, **o: (
        kc.ReliabilityDisplay.from_model(*a, **o).sums.residual
    ),
    "RiskCoverageDisplay": lambda *a, **o: list(
        kc.RiskCoverageDisplay.from_model(*a, **o).values.values()
    ),
    "ClasswiseReliabilityDisplay": lambda *a, **o: (
        kc.ClasswiseReliabilityDisplay.from_model(*a, **o).classwise_ece
    ),
    "MaxLogitDisplay": lambda *a, **o: (
        kc.MaxLogitDisplay.from_model(*a, **o).max_logit
    ),
}
# What all but one of them are given; the others are read as these are.
FEW = ("lists", "a tuple of a batch", "with_index")


def usable(consumer):
    if consumer == "report":
        pytest.importorskip("jinja2")
        pytest.importorskip("matplotlib")


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_every_consumer_reads_every_form(consumer):
    usable(consumer)
    model = network()
    expected = CONSUMERS[consumer](model, (X, Y, W))
    for name, data in forms(X, Y, W):
        if name not in FEW and consumer != "fit_on":
            continue
        found = CONSUMERS[consumer](model, data())
        np.testing.assert_allclose(found, expected, rtol=1e-4, err_msg=name)
    for data in ((X,), [X]):
        with pytest.raises(ValueError, match="must give labels"):
            CONSUMERS[consumer](model, data)


@pytest.mark.parametrize("fit", [fits, selects])
def test_rows_that_are_no_distribution_are_not_fitted_on(fit):
    model = network()
    inputs, logits = model.input, model.output
    softmax = keras.layers.Softmax()(logits)
    half = keras.layers.Rescaling(0.5)(softmax)
    sigmoid = keras.layers.Activation("sigmoid")(logits)
    for outputs in (half, sigmoid):
        model = keras.Model(inputs, outputs)
        with pytest.raises(ValueError, match="must sum to 1 over the classes"):
            fit(model, (X, Y), from_logits=False)
    # One unit is a binary model, and rows that do not count are not judged.
    first = keras.layers.Lambda(lambda x: x[:, :1], output_shape=(1,))
    model = keras.Model(inputs, first(sigmoid))
    truth = (X @ KERNEL[:, 0] > 0) ^ (np.arange(COUNT) % 4 == 0)
    fit(model, (X, truth.astype(int)), from_logits=False)
    padding = keras.layers.Lambda(
        lambda a: a[0] * keras.ops.cast(a[1][:, :1] < 99, "float32"),
        output_shape=(K,),
    )([softmax, inputs])
    model = keras.Model(inputs, padding)
    weight = np.ones(COUNT)
    weight[40:] = 0
    far = X.copy()
    far[40:] = 100
    fit(model, (far, Y, weight), from_logits=False)


def two_outputs(kind):
    """The network above with a second output: dict, list or subclass."""
    one = network()
    size = keras.layers.Dense(1, name="size")(one.input)
    if kind == "subclass":

        class Both(keras.Model):
            def __init__(self):
                super().__init__()
                self.both = keras.Model(
                    one.input, {"kind": one.output, "size": size}
                )

            def call(self, inputs):
                return self.both(inputs)

        model = Both()
    elif kind == "dict":
        model = keras.Model(one.input, {"kind": one.output, "size": size})
    else:
        model = keras.Model(one.input, [one.output, size])
    losses = {
        "kind": kc.MbLS(from_logits=True, ignore_class=255),
        "size": "mean_squared_error",
    }
    model.compile(loss=list(losses.values()) if kind == "list" else losses)
    return model


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_consumers_name_one_of_several_outputs_and_ask_the_loss(consumer):
    usable(consumer)
    marked = np.where(np.arange(COUNT) % 5, Y, 255)
    kept = marked != 255
    expected = CONSUMERS[consumer](network(), (X[kept], Y[kept]))
    kinds = ("dict", "list", "subclass")
    for kind in kinds if consumer == "fit_on" else kinds[:1]:
        model = two_outputs(kind)
        labels = {"kind": marked, "size": X[:, :1]}
        if kind == "list":
            labels = list(labels.values())
        options = {"output": "kind"}
        if consumer == "MaxLogitDisplay":
            # Reads no loss: its models return logits.
            options["ignore_class"] = 255
        found = CONSUMERS[consumer](model, (X, labels), **options)
        np.testing.assert_allclose(found, expected, rtol=1e-4, err_msg=kind)
    found = CONSUMERS[consumer](
        two_outputs("list"), (X, marked), **{**options, "output": 0}
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_tuples_of_arrays_are_those_of_inputs_and_of_outputs():
    parts = [keras.Input(X.shape[1:], name=name) for name in "ab"]
    both = keras.layers.Concatenate()(parts)
    heads = [keras.layers.Dense(3, name=name)(both) for name in ("c", "d")]
    model = keras.Model(parts, heads)
    outputs = model.predict_on_batch([X, X + 1])[1]
    others = np.roll(Y, 1)
    x, plain = (X, X + 1), (Y.tolist(), others.tolist())
    for data in (
        (x, (Y, others)),
        (x, (Y, others), (W, W[::-1])),
        (list(x), [Y, others]),
        (x, plain),
        (x, list(plain)),
        [(x, list(plain))],
    ):
        read = list(predict_batches(model, data, 10, output="d"))
        columns = [(b.outputs, b.labels, b.sample_weight) for b in read]
        found, labels, weights = zip(*columns, strict=True)
        np.testing.assert_allclose(np.concatenate(found), outputs, atol=1e-5)
        np.testing.assert_array_equal(np.concatenate(labels), others)
        if len(data) == 3:
            np.testing.assert_array_equal(np.concatenate(weights), W[::-1])
    # Rows of labels of two classes, as many as there are examples.
    (batch,) = batches_of((X[:2], [[0, 1], [1, 0]]))
    assert batch.labels.shape == (2, 2)
    # Batches of one length, also where texts are of several.
    for width in (4, 5):
        batches = (np.ones((8, 4)), Y[:8]), (np.ones((8, width)), Y[8:16])
        assert [len(b.inputs) for b in batches_of(batches)] == [8, 8]


def test_a_model_of_several_outputs_needs_the_name_of_one():
    for kind in ("dict", "list", "subclass"):
        model = two_outputs(kind)
        rule = "`output` must name .*'kind', 'size'"
        if kind == "subclass":
            # It does not say so before it runs.
            with pytest.raises(TypeError, match=rule):
                list(predict_batches(model, (X, Y)))
            continue
        with pytest.raises(TypeError, match=rule):
            fits(model, (X, Y))
        for name in ("nothing", 2):
            with pytest.raises(ValueError, match="must be a name or a pos"):
                fits(model, (X, Y), output=name)
        with pytest.raises(TypeError, match="must be a name or a position"):
            fits(model, (X, Y), output=1.0)
        with pytest.raises(ValueError, match="`y` must have a part for the"):
            fits(model, (X, {"kin": Y}), output="kind")


def test_a_dict_of_one_output_is_that_output():
    one = network()
    model = keras.Model(one.input, {"kind": one.output})
    (batch,) = predict_batches(model, (X, Y), batch_size=COUNT)
    assert batch.outputs.shape == (COUNT, K)


def test_the_loss_says_what_does_not_count():
    assert read_as(network(ignore_class=255)).ignore_class == 255
    assert read_as(network(ignore_class=255), None, 7).ignore_class == 7
    assert read_as(network()).ignore_class is None
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy
    model.compile(loss=loss(from_logits=True, ignore_class=-1))
    assert read_as(model) == (True, -1, None)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="strings are TensorFlow's")
def test_lists_of_strings_are_examples():
    words = ["a", "b", "c"]
    texts = [
        " ".join(np.array(words)[row]) for row in rng.integers(3, size=(53, 4))
    ]
    counts = keras.layers.TextVectorization(
        vocabulary=words, output_mode="count"
    )
    plain = keras.Sequential([keras.Input((), dtype="string"), counts])
    plain.add(keras.layers.Dense(K))

    class Preprocessed(keras.Model):
        """Prepares texts outside of the model, as the tasks of KerasHub."""

        def __init__(self):
            super().__init__()
            self.dense = plain.layers[-1]

        def call(self, inputs):
            return self.dense(inputs)

        def predict_on_batch(self, x):
            return super().predict_on_batch(counts(np.asarray(x)))

    expected = plain.predict_on_batch(np.array(texts))
    labels = np.where(np.arange(COUNT) % 3, expected.argmax(-1), Y)
    wanted = kc.TemperatureScaling().fit(labels, expected).temperature
    for model in (plain, Preprocessed()):
        for data in ((texts, Y.tolist()), [(texts[:20], Y[:20])]):
            read = predict_batches(model, data)
            found = np.concatenate([batch.outputs for batch in read])
            assert len(found) in (20, COUNT)
            np.testing.assert_allclose(found, expected[: len(found)], atol=1e-6)
        found = fits(model, (texts, labels), from_logits=True)
        assert abs(found.temperature / wanted - 1) < 1e-5


def test_data_are_read_as_a_stream():
    seen = []

    def endless():
        while True:
            seen.append(1)
            yield X[:7], Y[:7]

    stream = predict_batches(network(), endless())
    for _ in range(3):
        next(stream)
    assert len(seen) == 3


BAD = {
    "no data set": (X, TypeError, "must be a tuple of arrays"),
    "a number": (3, TypeError, "must be a tuple of arrays"),
    "four parts": ((X, Y, W, W), TypeError, "must be a tuple of arrays"),
    "lengths": ((X, Y[:-1]), ValueError, "must have the same length"),
    "ragged": (([[1.0], [1.0, 2.0]], [0, 1]), ValueError, "of one length"),
    "no rows": ((np.float32(1.0), 0), TypeError, "one row for each example"),
    "a dict of labels": ((X, {"a": Y}), ValueError, "`output` names the one"),
    "tuples": (((X, X), (X, X)), ValueError, "may be batches, or the arrays"),
    "examples": ([(X[0], Y[0])], ValueError, "give batches, not single"),
    "no labels": ([X], ValueError, "must give labels"),
    "no labels in arrays": ((X,), ValueError, "must give labels"),
    "no batches": ([], ValueError, "must have batches"),
    "empty arrays": ((X[:0], Y[:0]), ValueError, "must have batches"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_data_set_is_refused(name):
    data, error, rule = BAD[name]
    with pytest.raises(error, match=rule + r"[\s\S]*Received: "):
        selects(network(), data)


def test_batches_are_counted_where_that_is_possible():
    assert count_batches((X, Y), 10) == 6
    assert count_batches((X, Y), 10, 4) == 4
    assert count_batches(([1.0] * 20, [0] * 20), 32) == 1
    assert count_batches(Batches(X, Y)) == 6
    assert count_batches(Batches(X, Y), 32, 99) == 6
    assert count_batches(x for x in ()) is None

    class Endless(list):
        def cardinality(self):
            return -1

    endless = Endless()
    assert count_batches(endless, 32, 7) == 7
    with pytest.raises(ValueError, match="`steps` says how many"):
        count_batches(endless)

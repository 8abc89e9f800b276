"""Every consumer of a model on a data set reads it in the same way."""

import keras
import numpy as np
import pytest
from cases import BACKEND
from data_forms import (
    COUNT,
    KERNEL,
    K,
    W,
    X,
    Y,
    forms,
    network,
    rng,
    two_outputs,
)
from report_pages import results_alone

import keras_calib as kc
from keras_calib.predictions.batches import predict_batches

portable = pytest.mark.portable


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
    with pytest.MonkeyPatch.context() as patch:
        results_alone(patch)
        made = kc.report(model, data, verbose=0, **options)
    return made.results["model"]["metrics"]["nll"]["value"]


# What each consumer makes of a model on a data set, as numbers.
CONSUMERS = {
    "fit_on": lambda *a, **o: fits(*a, **o).temperature,
    "SelectiveClassifier": selects,
    "CalibrationLogger": logs,
    "report": reports,
    "ReliabilityDisplay": lambda *a, **o: (
        kc.ReliabilityDisplay(kc.Predictions.of_model(*a, **o)).sums.residual
    ),
    "RiskCoverageDisplay": lambda *a, **o: list(
        kc.RiskCoverageDisplay(kc.Predictions.of_model(*a, **o)).values.values()
    ),
    "ClasswiseReliabilityDisplay": lambda *a, **o: (
        kc.plots.ClasswiseReliabilityDisplay(
            kc.Predictions.of_model(*a, **o)
        ).classwise_ece
    ),
}
# What all but one of them are given; the others are read as these are.
FEW = ("lists", "a list of a batch", "with_index")


each_consumer = pytest.mark.parametrize(
    "consumer",
    [
        pytest.param(name, marks=portable if name == "fit_on" else ())
        for name in CONSUMERS
    ],
)


def usable(consumer):
    if consumer == "report":
        pytest.importorskip("jinja2")
        pytest.importorskip("matplotlib")


@each_consumer
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


@each_consumer
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
        found = CONSUMERS[consumer](model, (X, labels), **options)
        np.testing.assert_allclose(found, expected, rtol=1e-4, err_msg=kind)
    found = CONSUMERS[consumer](
        two_outputs("list"), (X, marked), **{**options, "output": 0}
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4)


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
        with pytest.raises(ValueError, match="`y` must have an entry for the"):
            fits(model, (X, {"kin": Y}), output="kind")

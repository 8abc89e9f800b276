"""What Keras counts in `evaluate`, every reader of a model counts.

Padding that layers mask, weights of 0, and labels of the ignored class.
"""

import gc
import weakref

import keras
import numpy as np
import pytest
from cases import BACKEND
from report_pages import report_of, results_alone

import keras_calib as kc
from keras_calib.backend.keras_internals import keras_mask
from keras_calib.predictions.batches import predict_batches

pytestmark = pytest.mark.portable

COUNT, STEPS, K, TOKENS = 14, 5, 3, 9
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, TOKENS, (COUNT, STEPS))
PADDED = np.arange(STEPS) >= RNG.integers(2, STEPS + 1, COUNT)[:, None]
IDS[PADDED] = 0
LABELS = RNG.integers(K, size=(COUNT, STEPS))
NOISE = RNG.random((COUNT, STEPS)) < 0.5
WEIGHT = RNG.integers(0, 3, COUNT).astype("float32")
TABLE = RNG.normal(size=(TOKENS, K)).astype("float32") * 2
LABELS = np.where(NOISE, LABELS, TABLE.argmax(-1)[IDS])
# Padding is sure and wrong, so that it would be noticed.
TABLE[0] = 9, 0, 0
DENSE = keras.layers.Dense


def embedding(**options):
    layer = keras.layers.Embedding(TOKENS, K, mask_zero=True, **options)
    layer.build((None, STEPS))
    layer.set_weights([TABLE])
    return layer


def functional(middle=None, steps=None):
    inputs = keras.Input((steps,), dtype="int32")
    x = embedding()(inputs)
    return keras.Model(inputs, x if middle is None else middle(x))


def attention(x):
    return keras.layers.MultiHeadAttention(1, K)(x, x)


def masking():
    inputs = keras.Input((STEPS,), dtype="int32")
    shown = keras.layers.Reshape((STEPS, 1))(inputs)
    x = keras.layers.Masking(0.0)(keras.ops.cast(shown, "float32"))
    return keras.Model(inputs, DENSE(K)(x))


def nested():
    inputs = keras.Input((STEPS,), dtype="int32")
    return keras.Model(
        inputs, keras.Sequential([functional(), DENSE(K)])(inputs)
    )


def two_outputs():
    inner = functional(steps=STEPS)
    numbers = keras.ops.cast(inner.input, "float32")
    size = DENSE(1, name="size")(numbers)
    kind = DENSE(K, name="kind")(inner.output)
    return keras.Model(inner.input, {"kind": kind, "size": size})


class Subclass(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = embedding()

    def call(self, inputs):
        return self.layer(inputs)


class Stepped(keras.Model):
    """Predicts by a method of its own."""

    def predict_step(self, *args):
        *state, data = args
        inputs, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return super().predict_step(*state, (inputs,))


def stepped():
    model = functional()
    return Stepped(model.input, model.output)


MODELS = {
    "Embedding": functional,
    "Masking": masking,
    "LSTM": lambda: functional(keras.layers.LSTM(K, return_sequences=True)),
    "attention": lambda: functional(attention),
    "TimeDistributed": lambda: functional(
        keras.layers.TimeDistributed(DENSE(K))
    ),
    "nested": nested,
    "subclass": Subclass,
    "predict_step": stepped,
    "two outputs": two_outputs,
}


# Dear to compile, and read as the others are.
DEAR = ("LSTM", "attention", "TimeDistributed", "nested")


class Counted(keras.metrics.Sum):
    """The sum of the weights that Keras gives to a metric."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        ones = keras.ops.ones_like(y_pred[..., 0])
        mask = keras_mask(y_pred, 2)
        if mask is not None:
            ones = ones * keras.ops.cast(mask, ones.dtype)
        if sample_weight is not None:
            weight = keras.ops.cast(sample_weight, ones.dtype)
            ones = ones * keras.ops.reshape(weight, (-1, 1))
        return super().update_state(ones)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=pytest.mark.slow if x in DEAR else ())
        for x in MODELS
    ],
)
def test_fits_read_the_rows_that_evaluate_counts(name):
    model, weight = MODELS[name](), WEIGHT
    outputs = model.predict(IDS, verbose=0)
    options, loss, metrics = {}, kc.MbLS(from_logits=True), [Counted()]
    if name == "two outputs":
        options = {"output": "kind"}
        outputs = outputs["kind"]
        weight = {"kind": WEIGHT, "size": WEIGHT}
        loss, metrics = {"kind": loss, "size": "mse"}, {"kind": metrics}
    ids = np.where(NOISE, LABELS, outputs.argmax(-1))
    labels = ids
    if options:
        labels = {"kind": ids, "size": np.ones((COUNT, 1), "float32")}
    model.compile(loss=loss, weighted_metrics=metrics)
    found = model.evaluate(IDS, labels, sample_weight=weight, verbose=0)
    kept = np.where(PADDED, 0.0, WEIGHT[:, None])
    assert found[-1] == kept.sum()
    data = IDS, labels, weight
    (batch,) = predict_batches(model, data, 32, output=options.get("output"))
    np.testing.assert_array_equal(batch.sample_weight, kept)
    fitted = kc.TemperatureScaling().fit_on(model, data, verbose=0, **options)
    rows = ids[kept > 0], outputs[kept > 0]
    wanted = kc.TemperatureScaling().fit(*rows, kept[kept > 0]).temperature
    np.testing.assert_allclose(fitted.temperature, wanted, rtol=1e-5)


@pytest.fixture(scope="module")
def model():
    made = functional()
    made.compile(loss=kc.MbLS(from_logits=True, ignore_class=2))
    return made


def logged(model, data):
    logger = kc.CalibrationLogger(data, metrics=["nll"])
    logger.set_model(model)
    logger.on_train_begin()
    logger.on_epoch_end(0)
    logger.on_train_end()
    entry = logger.logged[0]
    return [entry.values["cal_nll"], entry.regularizer.counts.sum()]


def reported(model, data):
    with pytest.MonkeyPatch.context() as patch:
        results_alone(patch)
        results = kc.report(model, data, verbose=0).results["model"]
    return [results["metrics"]["nll"]["value"], results["num_counted"]]


def facts_of(selector):
    chosen = selector.chosen
    return chosen.threshold, chosen.coverage, chosen.risk, chosen.num_samples


def by_group(model, data):
    with pytest.MonkeyPatch.context() as patch:
        results_alone(patch)
        made = kc.report(model, data, groups=np.arange(COUNT) % 3, verbose=0)
    return [x["size"] for x in made.results["model"]["groups"]["rows"]]


CONSUMERS = {
    "fit_on": lambda *a: (
        kc.TemperatureScaling().fit_on(*a, verbose=0).temperature
    ),
    "choose_calibrator": lambda *a: [
        x.nll
        for x in kc.choose_calibrator(
            kc.Predictions.of_model(*a, verbose=0),
            candidates=[kc.TemperatureScaling()],
            num_folds=2,
        ).candidates
    ],
    "SelectiveClassifier": lambda *a: facts_of(
        kc.SelectiveClassifier().fit_on(*a, coverage=0.5, verbose=0)
    ),
    "CalibrationLogger": logged,
    "report": reported,
    "by_group": by_group,
    "ReliabilityDisplay": lambda *a: (
        kc.ReliabilityDisplay(kc.Predictions.of_model(*a)).sums.weight
    ),
    "RiskCoverageDisplay": lambda *a: [
        *kc.RiskCoverageDisplay(kc.Predictions.of_model(*a)).values.values()
    ],
    "ClasswiseReliabilityDisplay": lambda *a: (
        kc.plots.ClasswiseReliabilityDisplay(
            kc.Predictions.of_model(*a)
        ).classwise_ece
    ),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_padding_that_layers_mask_is_ignored_like_the_ignored_class(
    consumer, model
):
    if consumer in ("report", "by_group"):
        pytest.importorskip("jinja2")
        pytest.importorskip("matplotlib")
    read = CONSUMERS[consumer]
    # Without a mask, the labels of padding are of the class to ignore.
    plain = keras.Sequential(
        [keras.Input((STEPS,)), keras.layers.Embedding(TOKENS, K)]
    )
    plain.set_weights([TABLE])
    plain.compile(loss=model.loss)
    marked = np.where(PADDED, 2, LABELS)
    wanted = read(plain, (IDS, marked, WEIGHT))
    # Labels of padding may be anything.
    odd = np.where(PADDED, -100, LABELS)
    found = read(model, (IDS, odd, WEIGHT))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def page(labels, outputs):
    with pytest.MonkeyPatch.context() as patch:
        results_alone(patch)
        made = report_of(labels, outputs, from_logits=True, verbose=0)
    return made.results["model"]["num_counted"]


READS = {"from_logits": True}


def table_of(labels, outputs):
    groups = labels % 2
    found = kc.by_group(
        labels, outputs, groups=groups, min_count=5, **READS
    ).table
    # Tests are of sequences where there are such.
    return [found[x] for x in ("size", "accuracy", "ece", "nll")]


ARRAYS = {
    "fit": lambda *a: kc.TemperatureScaling().fit(*a).temperature,
    "selector": lambda *a: facts_of(
        kc.SelectiveClassifier().fit(*a, coverage=0.5)
    ),
    "compare": lambda *a: (
        kc.compare(*2 * [kc.Predictions(*a, **READS)], kc.nll, num_draws=2).a
    ),
    "calibration_test": lambda *a: (
        kc.functional.calibration_test(*a, **READS).statistic
    ),
    "by_group": lambda *a: table_of(*a),
    "aece": lambda *a: kc.functional.aece(*a, edges="interp", **READS),
    "estimate_prior": lambda y, z: (
        kc.functional.estimate_prior(
            z, np.full(K, 1 / K), num_draws=2, **READS
        ).prior
    ),
    "report": page,
}


def test_arrays_with_a_mask_are_read_as_metrics_read_them(model):
    outputs = model(IDS)
    kept = ~PADDED
    rows = LABELS[kept], np.asarray(model.predict(IDS, verbose=0))[kept]
    metric = kc.ECE(from_logits=True)
    metric.update_state(LABELS, outputs)
    wanted = kc.ece(*rows, from_logits=True)
    np.testing.assert_allclose(float(metric.result()), wanted, atol=1e-6)
    found = kc.ece(LABELS, model(IDS), from_logits=True)
    assert found == wanted
    for name, read in ARRAYS.items():
        np.testing.assert_allclose(
            read(LABELS, model(IDS)), read(*rows), err_msg=name
        )


def test_batches_of_sequences_of_several_lengths_are_one_data_set(model):
    short = slice(0, 6), slice(0, 3)
    batches = [(IDS[short], LABELS[short]), (IDS[6:], LABELS[6:])]
    weight = np.ones((COUNT, STEPS))
    weight[:6, 3:] = 0
    read = CONSUMERS["SelectiveClassifier"]
    wanted = read(model, (IDS, LABELS, weight))
    np.testing.assert_allclose(read(model, batches), wanted)


def test_models_that_mask_other_rows_are_not_compared(model):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    inputs = keras.Input((STEPS,), dtype="int32")
    plain = keras.Model(inputs, keras.layers.Embedding(TOKENS, K)(inputs))
    plain.compile(loss=model.loss)
    models = {"one": model, "other": plain}
    with pytest.raises(ValueError, match="must mask the same rows"):
        kc.report(models, (IDS, LABELS), verbose=0)


def test_a_model_that_was_read_is_not_kept():
    model = Subclass()
    list(predict_batches(model, (IDS, LABELS)))
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None


def test_reading_a_mask_leaves_the_state_of_a_model():
    def made():
        keras.utils.set_random_seed(0)
        inputs = keras.Input(batch_shape=(COUNT, STEPS), dtype="int32")
        x = embedding()(inputs)
        x = keras.layers.SimpleRNN(K, stateful=True, return_sequences=True)(x)
        return keras.Model(inputs, x)

    batches = [(IDS, LABELS)] * 2
    found = [x.outputs for x in predict_batches(made(), batches)]
    model = made()
    wanted = [model.predict_on_batch(IDS) for _ in batches]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    if BACKEND != "jax":  # It moves on where a pass ends.
        assert np.abs(wanted[0] - wanted[1]).max() > 1e-3

"""Forms of data, one output, and fits on models."""

import keras
import numpy as np
import pytest
from cases import array, one_hot, softmax
from exported import answers
from selection_data import noisy

import keras_calib as kc
from keras_calib.exporting.served_model import ServedModel


def test_label_forms_dense_outputs_and_whole_weights_agree():
    labels, logits = noisy(n=600)
    expected = kc.SelectiveClassifier().fit(labels, logits, risk=0.02).chosen
    shaped = {
        "one-hot": (one_hot(labels, 4), logits),
        "soft": (0.8 * one_hot(labels, 4) + 0.05, logits),
        "column": (labels[:, None], logits),
        "lists": (labels.tolist(), logits.tolist()),
        "dense": (labels.reshape(6, 10, 10), logits.reshape(6, 10, 10, 4)),
    }
    for name, data in shaped.items():
        found = kc.SelectiveClassifier().fit(*data, risk=0.02).chosen
        assert found == expected, name
    weight = np.arange(600) % 3
    index = np.repeat(np.arange(600), weight)
    weighted = kc.SelectiveClassifier().fit(
        labels, logits, risk=0.02, sample_weight=weight
    )
    repeated = kc.SelectiveClassifier().fit(
        labels[index], logits[index], risk=0.02
    )
    assert weighted.threshold == repeated.threshold
    assert abs(weighted.chosen.coverage - repeated.chosen.coverage) < 1e-12


def test_one_output_means_two_classes():
    labels, logits = noisy(num_classes=2)
    z = logits[:, 1:] - logits[:, :1]
    two = kc.SelectiveClassifier().fit(labels, logits, risk=0.01)
    for form in (labels, labels[:, None], labels.astype("float32")):
        one = kc.SelectiveClassifier().fit(form, z, risk=0.01)
        assert one.chosen.coverage == two.chosen.coverage
    assert array(one(z)["probabilities"]).shape == (1000, 2)


def one_output(n=600):
    """Labels, inputs of shape `(n, 2)`, and a network with one logit."""
    labels, x = noisy(n=n, num_classes=2, signal=1.0)
    network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    network.layers[0].set_weights([np.array([[-0.7], [0.7]]), np.array([0.5])])
    return labels, x, network


@pytest.mark.parametrize(
    "make",
    [kc.TemperatureScaling, kc.VectorScaling, kc.IsotonicCalibration],
)
def test_the_threshold_of_one_output_fits_the_scores_that_are_served(make):
    labels, x, network = one_output()
    logits = array(network(x))
    calibrator = make().fit(labels, logits, num_folds=0)
    # Scores that a constant on both logits changes.
    for score in ("max_logit", "neg_energy"):
        selector = kc.SelectiveClassifier(calibrator=calibrator, score=score)
        selector.fit(labels, logits, coverage=0.6)
        given = {k: array(v) for k, v in selector(logits).items()}
        assert abs(given["accept"].mean() - selector.chosen.coverage) < 1e-12
        served = ServedModel(network, selector, from_logits=True)
        for name, value in served.answers(array(network(x))).items():
            np.testing.assert_allclose(
                value, given[name], rtol=1e-5, atol=1e-5, err_msg=name
            )


def test_labels_of_one_output_may_be_probabilities_of_the_second_class():
    labels, x, network = one_output()
    logits = array(network(x)).reshape(6, 10, 10, 1)
    calibrator = kc.VectorScaling().fit(labels.reshape(6, 10, 10), logits)
    soft = np.where(labels, 0.9, 0.2).reshape(6, 10, 10)
    weight = np.arange(600).reshape(6, 10, 10) % 3
    hard, same = (
        kc.SelectiveClassifier(calibrator=calibrator).fit(
            given, logits, coverage=0.6, sample_weight=weight
        )
        for given in (labels.reshape(6, 10, 10), soft)
    )
    assert hard.chosen == same.chosen


def test_scores_of_one_output_need_both_logits():
    labels, x, network = one_output()
    logits = array(network(x))
    selector = kc.SelectiveClassifier(score="max_logit")
    with pytest.raises(ValueError, match="`logits` must have all classes"):
        selector.score_of(logits)
    pairs = np.append(np.zeros_like(logits), logits, axis=-1)
    correct = (logits[:, 0] > 0) == labels
    selector.fit_scores(selector.score_of(pairs), correct, coverage=0.5)
    whole = kc.SelectiveClassifier(score="max_logit")
    assert whole.fit(labels, logits, coverage=0.5).chosen == selector.chosen


@pytest.mark.slow
def test_a_file_of_one_output_accepts_what_the_layer_accepts(tmp_path):
    labels, x, network = one_output()
    logits = array(network(x))
    calibrator = kc.BetaCalibration().fit(labels, logits)
    selector = kc.SelectiveClassifier(calibrator=calibrator, score="max_logit")
    selector.fit(labels, logits, coverage=0.6)
    path = kc.export(
        network, tmp_path / "m", selector=selector, from_logits=True
    )
    given = {k: array(v) for k, v in selector(logits).items()}
    for name, value in answers(path, x=x).items():
        np.testing.assert_allclose(value, given[name], rtol=1e-5, atol=1e-5)
    assert given["accept"].mean() == 0.6


def test_an_ignored_class_counts_nowhere():
    labels, logits = noisy(n=400)
    keep = np.arange(400) % 4 > 0
    marked = np.where(keep, labels, 255)
    options = {"risk": 0.02, "ignore_class": 255}
    expected = kc.SelectiveClassifier().fit(
        labels[keep], logits[keep], risk=0.02
    )
    for shape in ((400,), (4, 10, 10)):
        found = kc.SelectiveClassifier().fit(
            marked.reshape(shape), logits.reshape(*shape, 4), **options
        )
        assert found.chosen == expected.chosen
    tuned = kc.SelectiveClassifier(calibrator=kc.TemperatureScaling()).fit(
        marked.reshape(40, 10),
        logits.reshape(40, 10, 4),
        tune_fraction=0.5,
        sample_weight=np.ones(40),
        **options,
    )
    assert tuned.chosen.num_samples < 200


def test_dense_outputs_answer_per_pixel():
    labels, logits = noisy(n=600)
    labels, logits = labels.reshape(6, 10, 10), logits.reshape(6, 10, 10, 4)
    selector = kc.SelectiveClassifier().fit(labels, logits, coverage=0.8)
    answer = selector(logits)
    for name in ("confidence", "score", "accept", "label"):
        assert array(answer[name]).shape == (6, 10, 10), name
    assert array(answer["accept"]).mean() == 0.8


def of_model(activation=None):
    """A model that returns its inputs, or a softmax of them."""
    layers = [keras.Input((4,)), keras.layers.Activation(activation)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy
    model.compile(loss=loss(from_logits=activation != "softmax"))
    return model


def batches(logits, labels, *more):
    return [
        tuple(x[i : i + 90] for x in (logits, labels, *more))
        for i in range(0, len(labels), 90)
    ]


@pytest.mark.parametrize("activation", ["linear", "softmax"])
def test_fit_on_chooses_as_fit_does_on_logits(activation):
    labels, logits = noisy(n=500)
    target = {"risk": 0.05, "delta": 0.1, "tune_fraction": 0.3}
    expected = kc.SelectiveClassifier(calibrator=kc.TemperatureScaling())
    expected.fit(labels, logits, **target)
    for data in ((logits, labels), batches(logits, labels)):
        found = kc.SelectiveClassifier(calibrator=kc.TemperatureScaling())
        assert (
            found.fit_on(of_model(activation), data, verbose=0, **target)
            is found
        )
        np.testing.assert_allclose(
            found.threshold, expected.threshold, rtol=1e-4
        )
        assert found.chosen.coverage == expected.chosen.coverage


def test_fit_on_takes_weights_steps_and_ignored_classes():
    labels, logits = noisy(n=500)
    labels[::5] = 255
    weight = np.random.default_rng(1).random(500)
    expected = kc.SelectiveClassifier().fit(
        labels[:180],
        logits[:180],
        coverage=0.5,
        sample_weight=weight[:180],
        ignore_class=255,
    )
    found = kc.SelectiveClassifier().fit_on(
        of_model("linear"),
        batches(logits, labels, weight),
        coverage=0.5,
        ignore_class=255,
        steps=2,
        verbose=0,
    )
    assert found.chosen == expected.chosen


def test_fit_on_refuses_no_batch_and_models_that_do_not_say():
    with pytest.raises(ValueError, match="must have batches"):
        kc.SelectiveClassifier().fit_on(of_model("linear"), [], risk=0.1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Identity()])
    with pytest.raises(ValueError, match="from_logits"):
        kc.SelectiveClassifier().fit_on(model, noisy()[::-1], risk=0.1)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_fits_refuse_probabilities(dtype):
    labels, logits = noisy()
    probs = softmax(logits).astype(dtype)
    for fit in (
        lambda: kc.SelectiveClassifier().fit(labels, probs, risk=0.1),
        lambda: kc.TemperatureScaling().fit(labels, probs),
        lambda: kc.IsotonicCalibration().fit(
            kc.Predictions(labels, probs, from_logits=True)
        ),
        lambda: kc.LogitNormalization().fit(labels, probs),
    ):
        with pytest.raises(ValueError, match="must be logits"):
            fit()
    for right in (np.log(probs + 1e-4), probs - 0.25, 2.0 * probs, logits):
        kc.TemperatureScaling().fit(labels, right)


def layers_of_logits():
    scaling = kc.TemperatureScaling(temperature=2.0)
    score = kc.LogitNormalization(p=2)
    selector = kc.SelectiveClassifier(calibrator=scaling, threshold=0.5)
    return scaling, score, selector


def shown(layer, answer):
    """What does not depend on a constant added to the logits."""
    if isinstance(answer, dict):
        return array(answer["probabilities"])
    several = isinstance(layer, kc.TemperatureScaling) and answer.shape[-1] > 1
    return softmax(array(answer)) if several else array(answer)


@pytest.mark.portable
@pytest.mark.parametrize("num_classes", [1, 3])
def test_layers_take_probabilities_and_warn_of_them_as_logits(
    num_classes, tmp_path
):
    labels, logits = noisy(n=300, num_classes=max(2, num_classes))
    if num_classes == 1:
        # Where p rounds less.
        logits = (logits[:, 1:] - logits[:, :1]) / 2
    kind = "sigmoid" if num_classes == 1 else "softmax"
    probs = array(getattr(keras.ops, kind)(logits))
    inputs = keras.Input((num_classes,))
    network = keras.Sequential([inputs, keras.layers.Activation(kind)])
    for layer in layers_of_logits():
        expected = layer(logits)
        model = keras.Model(inputs, layer(network(inputs), from_logits=False))
        model.save(tmp_path / "m.keras")
        loaded = keras.models.load_model(tmp_path / "m.keras")
        for given in (layer(probs, from_logits=False), loaded(logits)):
            np.testing.assert_allclose(
                shown(layer, given), shown(layer, expected), atol=1e-3
            )
        with pytest.raises(ValueError, match="must be probabilities in"):
            layer(logits, from_logits=False)
        with pytest.warns(RuntimeWarning, match="looks like prob") as told:
            layer(probs)
        found = {w.filename for w in told if w.category is RuntimeWarning}
        assert found == {__file__}
        with pytest.warns(RuntimeWarning, match="output of a softmax or sig"):
            keras.Sequential([network, layer])
        kc.config.validate(False)
        try:
            layer(probs)
        finally:
            kc.config.validate(True)
    if num_classes == 1:
        parts = [(labels[i : i + 50], probs[i : i + 50]) for i in (0, 50, 100)]
        told = kc.Predictions.of_batches(parts, from_logits=True)
        for data in ((labels, probs), (told,)):
            with pytest.warns(RuntimeWarning, match="pass `from_logits=False`"):
                kc.TemperatureScaling().fit(*data)


def test_whole_logits_that_sum_to_one_are_logits():
    labels = np.array([0, 1, 0, 1] * 50)
    logits = one_hot(np.array([0, 1, 1, 1] * 50), 2).astype("float32")
    kc.SelectiveClassifier().fit(labels, logits, coverage=0.5)

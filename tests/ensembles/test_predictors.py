"""What both predictors have in common: inputs, files, use, refusals."""

import copy

import h5py
import keras
import numpy as np
import pytest
from cases import BACKEND, array
from keras import layers
from small_networks import X, Y, each, network, predicted

import keras_calib as kc
from keras_calib.predictions.outputs import reads_logits

needs_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)


def own_loss(y_true, y_pred):
    return keras.ops.mean(y_pred - y_pred, axis=-1)


@pytest.mark.portable
def test_one_channel_becomes_two_classes():
    x = np.linspace(0.1, 0.9, 5, dtype="float32")[:, None]
    for logits, p in ((True, 1 / (1 + np.exp(-x))), (False, x)):
        model = network(1, None if logits else "sigmoid")
        made = kc.MonteCarloDropout(model, 4, from_logits=logits)
        assert made.output_shape == (None, 2)
        found = np.exp(predicted(made))
        np.testing.assert_allclose(found, each(made).mean(0), atol=1e-6)
        single = keras.Sequential(
            [keras.Input((1,)), layers.Dropout(1e-9), layers.Identity()]
        )
        made = kc.MonteCarloDropout(single, 2, from_logits=logits)
        found = np.exp(predicted(made, x))
        np.testing.assert_allclose(found, np.hstack([1 - p, p]), atol=1e-6)


def test_inputs_have_the_names_and_structure_of_the_model():
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    dropped = layers.Dropout(0.5)(layers.Subtract()([a, b]))
    x = {"a": X[:, :4], "b": X[:, 2:]}
    outputs = layers.Dense(3)(dropped)
    by_name = keras.Model({"b": b, "a": a}, outputs)
    in_order = keras.Model([a, b], outputs)
    made = kc.MonteCarloDropout(by_name, 3, from_logits=True)
    listed = kc.MonteCarloDropout(in_order, 3, from_logits=True)
    found = predicted(listed, [x["a"], x["b"]])
    np.testing.assert_allclose(predicted(made, x), found, atol=1e-6)
    assert made.predict_each(x).shape == (3, 24, 3)
    with pytest.raises(ValueError, match=r"same inputs.*'a'.*\(0,\)"):
        kc.DeepEnsemble([by_name, in_order], from_logits=True)


def test_half_precision_networks_are_averaged_in_float32():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = network()
        made = kc.MonteCarloDropout(model, 4, from_logits=True)
        both = kc.DeepEnsemble([made, network(seed=1)], from_logits=True)
    finally:
        keras.config.set_dtype_policy("float32")
    full = network()
    full.set_weights(model.get_weights())
    wanted = predicted(kc.MonteCarloDropout(full, 4, from_logits=True))
    given = predicted(made)
    assert given.dtype == np.float32
    assert 0 < np.abs(given - wanted).max() < 2e-2
    sums = np.exp(predicted(both)).sum(axis=-1)
    np.testing.assert_allclose(sums, 1.0, atol=1e-6)


@pytest.mark.portable
# The ensemble holds the other.
@pytest.mark.parametrize(
    "kind", ["ensemble", pytest.param("dropout", marks=pytest.mark.slow)]
)
def test_predictors_are_saved_and_loaded(tmp_path, kind):
    model = network()
    # A loss that no other process knows stays with the network.
    model.compile("adam", own_loss)
    dropped = kc.MonteCarloDropout(
        model, 3, seed=5, per_sample=True, from_logits=True, name="mine"
    )
    other = network(activation="softmax", seed=1)
    predictor = dropped
    if kind == "ensemble":
        predictor = kc.DeepEnsemble(
            [dropped, other], weights=[1, 3], from_logits=[True, False]
        )
    wanted = predicted(predictor)
    predictor.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert type(loaded) is type(predictor)
    np.testing.assert_array_equal(predicted(loaded), wanted)
    for name, value in predictor.get_config().items():
        if "model" not in name:
            assert loaded.get_config()[name] == value
    copied = copy.deepcopy(predictor)
    np.testing.assert_array_equal(predicted(copied), wanted)
    # Asked for its members before, the file is the same.
    loaded.predict_each(X, verbose=0)
    loaded.save_weights(tmp_path / "m.weights.h5")
    model.set_weights([w + 1 for w in model.get_weights()])
    assert np.abs(predicted(predictor) - wanted).max() > 1e-3
    predictor.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(predicted(predictor), wanted)


def test_weights_have_the_paths_that_files_of_before_have(tmp_path):
    made = kc.MonteCarloDropout(network(), 2, from_logits=True)
    kc.DeepEnsemble([made]).save_weights(tmp_path / "m.weights.h5")
    found: list[str] = []
    with h5py.File(tmp_path / "m.weights.h5") as file:
        file.visit(found.append)
    inner = "layers/__members/layers/monte_carlo_dropout/layers/__passes/layers"
    assert inner in found


def test_what_a_member_was_compiled_with_is_not_in_the_file():
    member = kc.MonteCarloDropout(network(), 2, from_logits=True)
    member.compile(loss=own_loss)
    config = kc.DeepEnsemble([member]).get_config()
    assert "compile_config" in keras.saving.serialize_keras_object(member)
    assert "compile_config" not in config["models"][0]


def test_masks_survive_a_file_whatever_order_layers_were_made_in(tmp_path):
    for turn in (1, -1):
        inputs = keras.Input((6,))
        made = [layers.Dropout(0.5), layers.Dropout(0.4), layers.Dropout(0.3)]
        made = made[::turn]
        right = made[2](inputs)
        left = layers.Dense(6)(made[0](layers.Dense(6)(inputs)))
        outputs = layers.Concatenate()([made[1](left), right])
        model = keras.Model(inputs, layers.Dense(3)(outputs))
        predictor = kc.MonteCarloDropout(model, 3, from_logits=True)
        path = tmp_path / f"{turn}.keras"
        predictor.save(path)
        loaded = keras.saving.load_model(path)
        np.testing.assert_array_equal(predicted(loaded), predicted(predictor))


def test_predictors_plug_into_metrics_calibrators_and_selection():
    model = network()
    # Metrics of that name belong to the network.
    model.compile(metrics=["accuracy", kc.ECE(from_logits=True)])
    made = kc.MonteCarloDropout(model, 3, from_logits=True)
    both = kc.DeepEnsemble([made, network(seed=1)], from_logits=True)
    for predictor in (made, both):
        assert reads_logits(predictor) is True
        loss = kc.BrierLoss(from_logits=True)
        metrics = ["accuracy", kc.ECE(from_logits=True)]
        predictor.compile(loss=loss, metrics=metrics, run_eagerly=True)
        found = predictor.evaluate(X, Y, verbose=0, return_dict=True)
        logits = predicted(predictor)
        assert found["ece"] == pytest.approx(
            kc.ece(Y, logits, from_logits=True), abs=1e-5
        )
        assert found["accuracy"] == pytest.approx(
            np.mean(logits.argmax(-1) == Y), abs=1e-6
        )
        # Three of four are right, so that there is a best temperature.
        labels = (logits.argmax(axis=-1) + (np.arange(24) % 4 == 0)) % 3
        fitted = kc.TemperatureScaling().fit_on(
            predictor, [(X, labels)], verbose=0
        )
        wanted = kc.TemperatureScaling().fit(labels, logits).temperature
        assert fitted.temperature == pytest.approx(wanted, rel=1e-4)
        answers = kc.SelectiveClassifier(threshold=0.0)(predictor(X))
        assert array(answers["label"]).shape == (24,)


@pytest.mark.portable
@pytest.mark.parametrize("kind", ["ensemble", "dropout"])
def test_predictors_pass_on_the_mask_of_their_members(kind):
    member = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(4, 3, mask_zero=True),
            layers.Dropout(0.5),
            layers.Dense(3),
        ]
    )
    made = {
        "ensemble": lambda: kc.DeepEnsemble([member], from_logits=True),
        "dropout": lambda: kc.MonteCarloDropout(member, 2, from_logits=True),
    }[kind]()
    tokens = np.array([[1, 2, 3, 0, 0], [3, 1, 0, 0, 0]])
    logits = made(tokens)
    metric = kc.ECE(from_logits=True)
    metric.update_state(np.zeros((2, 5), int), logits)
    expected = kc.ECE(from_logits=True)
    expected.update_state(np.zeros(5, int), array(logits)[tokens != 0])
    found = float(metric.result())
    assert found == pytest.approx(float(expected.result()), rel=1e-6)


def test_predictors_are_not_trained():
    model = network()
    made = kc.MonteCarloDropout(model, 2, from_logits=True)
    made.compile("sgd", kc.FocalLoss(from_logits=True))
    with pytest.raises(RuntimeError, match="predictor='MonteCarloDropout'"):
        made.fit(X, Y)
    both = kc.DeepEnsemble([model], from_logits=True)
    with pytest.raises(RuntimeError, match="train its networks"):
        both.train_on_batch(X, Y)


@needs_tensorflow
@pytest.mark.parametrize(
    "made",
    [
        "onnx",
        pytest.param("savedmodel", marks=pytest.mark.slow),
        pytest.param("litert", marks=pytest.mark.slow),
    ],
)
def test_an_exported_predictor_answers_as_keras(tmp_path, made):
    from exported import answers

    if made == "onnx":
        pytest.importorskip("tf2onnx")
        pytest.importorskip("onnxruntime")
    dropped = kc.MonteCarloDropout(network(), 3, from_logits=True)
    both = kc.DeepEnsemble([network(seed=1), dropped], from_logits=True)
    # The ensemble holds the other.
    for i, predictor in enumerate(
        [dropped, both] if made == "litert" else [both]
    ):
        path = kc.export(predictor, tmp_path / str(i), format=made)
        for size in (1, 24):
            given = answers(path, made, x=X[:size])["logits"]
            np.testing.assert_allclose(
                given, predicted(predictor, X[:size]), atol=1e-5
            )


@pytest.mark.slow
@needs_tensorflow
def test_masks_of_samples_and_open_sides_are_served_as_a_savedmodel(tmp_path):
    from exported import answers

    dropped = kc.MonteCarloDropout(
        network(), 2, per_sample=True, from_logits=True
    )
    path = kc.export(dropped, tmp_path / "m")
    np.testing.assert_allclose(
        answers(path, x=X)["logits"], predicted(dropped), atol=1e-5
    )
    image = keras.Input((None, None, 3))
    hidden = layers.Dropout(0.5)(layers.Conv2D(2, 3)(image))
    model = keras.Model(image, layers.Conv2D(2, 3)(hidden))
    dropped = kc.MonteCarloDropout(model, 2, from_logits=True)
    path = kc.export(dropped, tmp_path / "dense")
    x = np.random.default_rng(0).normal(size=(2, 9, 12, 3)).astype("float32")
    np.testing.assert_allclose(
        answers(path, x=x)["logits"], predicted(dropped, x), atol=1e-5
    )
    with pytest.raises(RuntimeError, match="cannot be loaded as onnx"):
        kc.export(dropped, tmp_path / "onnx", format="onnx")


def two_outputs():
    inputs = keras.Input((6,))
    hidden = layers.Dropout(0.5)(inputs)
    return keras.Model(inputs, [layers.Dense(3)(hidden), hidden])


UNFIT = [
    (
        lambda: network(rate=0.0),
        {},
        ValueError,
        "dropout layer with a rate",
    ),
    (two_outputs, {}, ValueError, "must have one output.*outputs=2"),
    (
        lambda: keras.Sequential([layers.Dropout(0.5)]),
        {},
        ValueError,
        "must have fixed inputs",
    ),
    (lambda: "network", {}, TypeError, "must be a Keras model.*'str'"),
    (network, {"num_passes": 0}, ValueError, "`num_passes` must be >= 1"),
    (network, {"num_passes": 2.0}, TypeError, "must be an integer"),
    (network, {"seed": -1}, ValueError, "`seed` must be >= 0"),
    (network, {"per_sample": 1}, TypeError, "`per_sample` must be True"),
]


def test_a_model_that_can_not_be_dropped_is_refused():
    for model, options, error, message in UNFIT:
        with pytest.raises(error, match=message):
            kc.MonteCarloDropout(model(), **{"from_logits": True, **options})

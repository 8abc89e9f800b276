"""Monte Carlo dropout and deep ensembles: means that plug in everywhere."""

import copy
import threading

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import array
from keras import layers

import keras_calib as kc
from keras_calib.ensembles import dropout_masks
from keras_calib.ensembles.dropout_masks import dropout_layers
from keras_calib.ensembles.dropout_masks import masked
from keras_calib.predictions.outputs import reads_logits

pytestmark = pytest.mark.portable
needs_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)
X = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
Y = np.arange(24) % 3


def network(channels=3, activation=None, rate=0.5, seed=0, inputs=6):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            layers.Dense(16, "relu"),
            layers.Dropout(rate),
            layers.Dense(channels, activation),
        ]
    )


def predicted(model, x=X, **options):
    return model.predict(x, verbose=0, **options)


def log_softmax(z):
    z = np.asarray(z, "float64")
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def own_loss(y_true, y_pred):
    return keras.ops.mean(y_pred - y_pred, axis=-1)


def dropped_values(layer, x, num_passes=4, **options):
    """What a dropout layer makes of x in each pass, by public means.

    One channel is the logit of the second class.
    """
    model = keras.Sequential([keras.Input(x.shape[1:]), layer])
    if x.shape[-1] != 1:
        model.add(layers.Reshape((*x.shape[1:], 1)))
    made = kc.MonteCarloDropout(model, num_passes, from_logits=True, **options)
    p = made.predict_passes(x, batch_size=len(x)).astype("float64")
    return (np.log(p[..., 1]) - np.log(p[..., 0])).reshape(-1, *x.shape)


# Monte Carlo dropout: what it answers.


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_the_output_is_the_log_of_the_mean_over_passes(activation):
    model = network(activation=activation)
    logits = activation is None
    made = kc.MonteCarloDropout(model, 5, seed=3, from_logits=logits)
    # The one dropout layer of another model of that seed has these masks.
    ones = np.ones((1, 16), "float32")
    masks = dropped_values(layers.Dropout(0.5), ones, 5, seed=3)[:, 0]
    np.testing.assert_allclose(masks, 2 * np.round(masks / 2), atol=1e-4)
    masks = 2 * np.round(masks / 2)
    assert len({tuple(mask) for mask in masks}) == 5
    weights = [w.astype("float64") for w in model.get_weights()]
    hidden = np.maximum(X.astype("float64") @ weights[0] + weights[1], 0)
    passes = [
        np.exp(log_softmax((hidden * mask) @ weights[2] + weights[3]))
        for mask in masks
    ]
    np.testing.assert_allclose(made.predict_passes(X), passes, atol=1e-5)
    wanted = np.log(np.mean(passes, axis=0))
    np.testing.assert_allclose(predicted(made), wanted, atol=1e-5)


def test_answers_do_not_depend_on_the_batch_and_repeat():
    made = kc.MonteCarloDropout(network(), 6, from_logits=True)
    whole = predicted(made)
    np.testing.assert_allclose(predicted(made, X[7:8]), whole[7:8], atol=1e-6)
    shuffled = predicted(made, X[::-1], batch_size=5)[::-1]
    np.testing.assert_allclose(shuffled, whole, atol=1e-6)
    np.testing.assert_allclose(array(made(X)), whole, atol=1e-6)
    again = kc.MonteCarloDropout(network(), 6, from_logits=True)
    np.testing.assert_array_equal(predicted(again), whole)
    other = kc.MonteCarloDropout(network(), 6, seed=1, from_logits=True)
    assert np.abs(predicted(other) - whole).max() > 1e-2


def test_samples_can_have_masks_of_their_own():
    x = np.repeat(X[:1], 8, axis=0)
    made = kc.MonteCarloDropout(network(), 2, per_sample=True, from_logits=True)
    passes = made.predict_passes(x)
    assert len(np.unique(passes[0, :, 0])) > 4
    np.testing.assert_array_equal(made.predict_passes(x), passes)
    shared = kc.MonteCarloDropout(network(), 2, from_logits=True)
    assert np.ptp(shared.predict_passes(x), axis=1).max() < 1e-6


@pytest.mark.parametrize(
    ("layer", "start"),
    [
        (layers.Dropout(0.3), 1.0),
        (layers.GaussianDropout(0.3), 1.0),
        (layers.AlphaDropout(0.3), 0.7),
    ],
)
def test_units_are_dropped_as_in_training(layer, start):
    x = np.full((20_000, 1), start, "float32")
    values = dropped_values(layer, x, 2, per_sample=True).ravel()
    wanted = array(layer(x, training=True))
    # Five standard errors of the difference.
    scale = wanted.std() / np.sqrt(len(wanted))
    assert abs(values.mean() - wanted.mean()) < 5 * scale
    assert values.std() == pytest.approx(wanted.std(), rel=0.03)
    if not isinstance(layer, layers.GaussianDropout):
        np.testing.assert_allclose(
            np.unique(values.round(3)), np.unique(wanted.round(3)), atol=2e-3
        )


def test_the_mean_approaches_the_known_expectation():
    model = keras.Sequential([keras.Input((1,)), layers.Dropout(0.25)])
    x = np.full((5000, 1), 1.5, "float32")
    made = kc.MonteCarloDropout(
        model, 4, per_sample=True, from_logits=True, seed=11
    )
    p = np.exp(predicted(made, x, batch_size=5000))[:, 1].mean()
    wanted = 0.75 / (1 + np.exp(-1.5 / 0.75)) + 0.25 * 0.5
    # Four standard errors: 0.381 * 0.433 / sqrt(20,000).
    assert abs(p - wanted) < 4 * 1.17e-3
    # One mask for all: an error as of that many passes, not of samples.
    made = kc.MonteCarloDropout(model, 200, from_logits=True)
    p = np.exp(predicted(made, x[:2]))[:, 1]
    assert 1e-6 < abs(p[0] - wanted) < 4 * 1.17e-2
    assert p[0] == pytest.approx(p[1], abs=1e-6)


def test_masks_of_passes_layers_and_units_are_independent():
    keras.utils.set_random_seed(0)
    x = np.ones((1, 4000), "float32")
    values = dropped_values(layers.Dropout(0.5), x, 4)[:, 0] > 1
    more = dropped_values(layers.Dropout(0.5), x, 4, seed=1)[:, 0] > 1
    rows = np.concatenate([values, more, np.roll(values, 1, axis=1)])
    assert np.all(np.abs(rows.mean(axis=1) - 0.5) < 4 * 0.5 / np.sqrt(4000))
    correlation = np.corrcoef(rows) - np.eye(12)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(4000)


def test_masks_are_the_same_wherever_they_are_computed(monkeypatch):
    options = {"num_passes": 3, "from_logits": True}
    for layer in (layers.Dropout(0.5), layers.GaussianDropout(0.3)):
        x = np.ones((1, 64), "float32")
        constant = dropped_values(layer, x, 3)
        monkeypatch.setattr(dropout_masks, "_MOST_CONSTANTS", 0)
        computed = dropped_values(layer, x, 3)
        monkeypatch.undo()
        np.testing.assert_allclose(computed, constant, atol=1e-4)
    # Of open sides they can not be known before.
    image = keras.Input((None, None, 2))
    model = keras.Model(image, layers.Dropout(0.5)(image))
    x = np.random.default_rng(0).normal(size=(2, 4, 3, 2)).astype("float32")
    open_sides = predicted(kc.MonteCarloDropout(model, **options), x)
    fixed = keras.Input((4, 3, 2))
    fixed = keras.Model(fixed, layers.Dropout(0.5)(fixed))
    wanted = predicted(kc.MonteCarloDropout(fixed, **options), x)
    np.testing.assert_allclose(open_sides, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "axes"),
    [
        (layers.SpatialDropout1D(0.5), (1,)),
        (layers.SpatialDropout2D(0.5, data_format="channels_last"), (1, 2)),
        (layers.SpatialDropout2D(0.5, data_format="channels_first"), (2, 3)),
        (layers.SpatialDropout3D(0.5, "channels_last"), (1, 2, 3)),
        (layers.Dropout(0.5, noise_shape=(None, 1, None)), (1,)),
    ],
)
def test_a_map_is_dropped_as_a_whole(layer, axes):
    ndim = 3 if layer.input_spec is None else layer.input_spec.ndim
    shape = [3] * ndim
    # The axis of the channels is long: 12 maps.
    (channel,) = set(range(1, ndim)) - {*axes}
    shape[channel] = 12
    values = dropped_values(layer, np.ones(shape, "float32"), 2)
    assert np.ptp(values, axis=tuple(a + 1 for a in axes)).max() < 1e-4
    assert np.ptp(values, axis=channel + 1).max() > 1.9
    assert np.ptp(values, axis=1).max() < 1e-4


def test_all_else_is_as_at_inference():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.GaussianNoise(1.0),
            layers.BatchNormalization(),
            # Rounds to a mask of ones.
            layers.Dropout(1e-9),
            layers.Dense(3),
        ]
    )
    model.compile("sgd", kc.FocalLoss(from_logits=True))
    model.fit(X, Y, epochs=2, verbose=0)
    before = [v.numpy() for v in model.non_trainable_variables]
    made = kc.MonteCarloDropout(model, 2)
    wanted = log_softmax(predicted(model))
    np.testing.assert_allclose(predicted(made), wanted, atol=1e-6)
    np.testing.assert_allclose(array(made(X, training=True)), wanted, atol=1e-6)
    for variable, value in zip(
        model.non_trainable_variables, before, strict=True
    ):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_inner_dropout_is_found_wherever_it_is():
    keras.utils.set_random_seed(0)
    tokens = keras.Input((None, 8))
    hidden = layers.MultiHeadAttention(2, 4, dropout=0.3)(tokens, tokens)
    hidden = layers.TimeDistributed(layers.Dropout(0.2))(hidden)
    inner = keras.Sequential([layers.Dense(8), layers.AlphaDropout(0.1)])
    hidden = layers.Add()([inner(hidden), layers.Dropout(0.0)(hidden)])
    model = keras.Model(tokens, layers.Dense(3)(hidden))
    assert sorted(one.rate for one in dropout_layers(model)) == [0.1, 0.2, 0.3]
    made = kc.MonteCarloDropout(model, 3, from_logits=True)
    x = np.random.default_rng(1).normal(size=(4, 7, 8)).astype("float32")
    assert predicted(made, x).shape == (4, 7, 3)
    whole = made.predict_passes(x)
    for layer in dropout_layers(model):
        rate, layer.rate = layer.rate, 0.0
        others = kc.MonteCarloDropout(model, 3, from_logits=True)
        assert np.abs(others.predict_passes(x) - whole).max() > 1e-4
        layer.rate = rate


def test_a_layer_used_twice_has_one_mask():
    inputs = keras.Input((40,))
    shared = layers.Dropout(0.5)
    inner = keras.Sequential([shared])
    # 0 where both masks agree, whatever they are.
    difference = layers.Subtract()([shared(inputs), inner(inputs)])
    model = keras.Model(inputs, layers.Dense(3, use_bias=False)(difference))
    made = kc.MonteCarloDropout(model, 4, from_logits=True)
    uniform = np.full((4, 2, 3), 1 / 3)
    np.testing.assert_allclose(
        made.predict_passes(np.ones((2, 40))), uniform, atol=1e-6
    )


def test_two_layers_have_two_masks():
    inputs = keras.Input((40,))
    first, second = layers.Dropout(0.5)(inputs), layers.Dropout(0.5)(inputs)
    model = keras.Model(inputs, layers.Subtract()([first, second]))
    made = kc.MonteCarloDropout(model, 4, from_logits=True)
    passes = made.predict_passes(np.ones((1, 40)))
    # -2, 0 and 2: units that one of both drops.
    levels = [len(np.unique(np.log(p).round(2))) for p in passes]
    assert levels == [3] * 4


# Monte Carlo dropout: what it leaves as it was.


def test_layers_are_restored_also_by_an_error():
    class Fails(layers.Layer):
        broken = False

        def call(self, inputs):
            if self.broken:
                raise OSError("no more")
            return inputs

    fails = Fails()
    layer = layers.Dropout(0.5)
    inputs = keras.Input((6,))
    hidden = layer(layer(inputs))
    model = keras.Model(inputs, layers.Dense(3)(fails(hidden)))
    usual = predicted(model)
    made = kc.MonteCarloDropout(model, 2, from_logits=True)
    predicted(made)
    fails.broken = True
    with pytest.raises(OSError, match="no more"):
        made(X)
    assert "call" not in vars(layer)
    fails.broken = False
    np.testing.assert_array_equal(predicted(model), usual)
    np.testing.assert_array_equal(array(layer(X)), X)


def test_other_threads_see_layers_as_they_are():
    model = network()
    found = []
    x = np.ones((2, 16), "float32")
    (layer,) = dropout_layers(model)
    with masked([layer], (0, 0), per_sample=False):
        thread = threading.Thread(target=lambda: found.append(array(layer(x))))
        thread.start()
        thread.join()
        here = array(layer(x))
    np.testing.assert_array_equal(found[0], x)
    assert set(here.ravel()) == {0.0, 2.0}


def test_weights_are_those_of_the_model():
    model = network()
    model.compile(keras.optimizers.SGD(0.5), kc.FocalLoss(from_logits=True))
    made = kc.MonteCarloDropout(model, 3)
    assert {id(v) for v in made.variables} == {id(v) for v in model.variables}
    before = predicted(made)
    model.fit(X, Y, epochs=3, verbose=0)
    after = predicted(made)
    assert np.abs(after - before).max() > 0.01
    again = kc.MonteCarloDropout(model, 3)
    np.testing.assert_allclose(predicted(again), after, atol=1e-6)


# Forms of outputs and inputs.


@pytest.mark.parametrize(("activation", "logits"), [(None, 1), ("sigmoid", 0)])
def test_one_channel_becomes_two_classes(activation, logits):
    model = network(1, activation)
    made = kc.MonteCarloDropout(model, 4, from_logits=bool(logits))
    assert made.output_shape == predicted(made).shape[:0] + (None, 2)
    np.testing.assert_allclose(
        np.exp(predicted(made)), made.predict_passes(X).mean(0), atol=1e-6
    )
    single = keras.Sequential(
        [keras.Input((1,)), layers.Dropout(1e-9), layers.Identity()]
    )
    x = np.linspace(0.1, 0.9, 5, dtype="float32")[:, None]
    p = x if not logits else 1 / (1 + np.exp(-x))
    made = kc.MonteCarloDropout(single, 2, from_logits=bool(logits))
    np.testing.assert_allclose(
        np.exp(predicted(made, x)), np.hstack([1 - p, p]), atol=1e-6
    )


def test_inputs_have_the_names_and_structure_of_the_model():
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    dropped = layers.Dropout(0.5)(layers.Subtract()([a, b]))
    x = {"a": X[:, :4], "b": X[:, 2:]}
    outputs = layers.Dense(3)(dropped)
    by_name = keras.Model({"b": b, "a": a}, outputs)
    in_order = keras.Model([a, b], outputs)
    made = kc.MonteCarloDropout(by_name, 3, from_logits=True)
    listed = kc.MonteCarloDropout(in_order, 3, from_logits=True)
    np.testing.assert_allclose(
        predicted(made, x), predicted(listed, [x["a"], x["b"]]), atol=1e-6
    )
    assert made.predict_passes(x).shape == (3, 24, 3)
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


# Deep ensembles.


def members(count=3, **options):
    return [network(seed=i, **options) for i in range(count)]


def test_the_output_is_the_log_of_the_weighted_mean():
    models = [*members(2), network(activation="softmax", seed=2)]
    probs = [np.exp(log_softmax(predicted(model))) for model in models[:2]]
    probs = np.stack([*probs, predicted(models[2]).astype("float64")])
    told = [True, True, False]
    for weights in (None, [1, 2, 5], [0.5, 0.0, 0.5]):
        made = kc.DeepEnsemble(models, weights=weights, from_logits=told)
        shares = np.array(weights or [1, 1, 1]) / sum(weights or [1, 1, 1])
        wanted = np.log(np.tensordot(shares, probs, axes=1))
        np.testing.assert_allclose(predicted(made), wanted, atol=1e-5)
        np.testing.assert_allclose(made.member_predictions(X), probs, atol=1e-6)


def test_what_members_return_is_read_from_each():
    models = [network(), network(activation="softmax")]
    models[0].compile(loss=kc.FocalLoss(from_logits=True))
    models[1].compile(loss=kc.FocalLoss())
    np.testing.assert_allclose(
        predicted(kc.DeepEnsemble(models)),
        log_softmax(predicted(models[0])),
        atol=1e-6,
    )


def test_an_ensemble_of_equals_is_the_member():
    made = kc.DeepEnsemble([network() for _ in range(3)], from_logits=True)
    wanted = log_softmax(predicted(network()))
    np.testing.assert_allclose(predicted(made), wanted, atol=1e-6)


def test_the_ensemble_has_at_most_the_mean_loss_of_its_members():
    models = members()
    made = kc.DeepEnsemble(models, from_logits=True)
    nll = kc.nll(Y, predicted(made), from_logits=True)
    each = [kc.nll(Y, predicted(m), from_logits=True) for m in models]
    assert nll < np.mean(each) - 1e-3
    passes = kc.MonteCarloDropout(models[0], 5, from_logits=True)
    each = [kc.nll(Y, p) for p in passes.predict_passes(X)]
    assert kc.nll(Y, predicted(passes), from_logits=True) < np.mean(each)


def test_classes_that_are_masked_stay_impossible():
    masked_out = [
        keras.Sequential(
            [
                keras.Input((3,)),
                layers.Rescaling(1.0, offset=np.array([0, 1, -np.inf])),
            ]
        )
        for _ in range(2)
    ]
    made = kc.DeepEnsemble(masked_out, weights=[1, 0], from_logits=True)
    given = np.exp(predicted(made, np.zeros((1, 3))))
    np.testing.assert_allclose(given, [[0.2689414, 0.7310586, 0]], atol=1e-6)


def test_members_may_be_of_dense_outputs_and_of_one_channel():
    image = keras.Input((None, None, 3))
    one = keras.Model(image, layers.Conv2D(1, 3, padding="same")(image))
    image = keras.Input((None, None, 3))
    two = keras.Model(image, layers.Conv2D(2, 3, padding="same")(image))
    made = kc.DeepEnsemble([one, two], from_logits=True)
    x = np.random.default_rng(0).normal(size=(2, 5, 4, 3)).astype("float32")
    z = predicted(one, x).astype("float64")
    p = np.exp(log_softmax(np.concatenate([0 * z, z], axis=-1)))
    p = (p + np.exp(log_softmax(predicted(two, x)))) / 2
    np.testing.assert_allclose(predicted(made, x), np.log(p), atol=1e-5)


# Files.


def test_predictors_are_saved_and_loaded(tmp_path):
    model = network()
    # A loss that no other process knows stays with the network.
    model.compile("adam", own_loss)
    dropped = kc.MonteCarloDropout(
        model, 3, seed=5, per_sample=True, from_logits=True, name="mine"
    )
    other = network(activation="softmax", seed=1)
    made = kc.DeepEnsemble(
        [dropped, other], weights=[1, 3], from_logits=[True, False]
    )
    for i, predictor in enumerate((dropped, made)):
        wanted = predicted(predictor)
        predictor.save(tmp_path / f"{i}.keras")
        loaded = keras.saving.load_model(tmp_path / f"{i}.keras")
        assert type(loaded) is type(predictor)
        np.testing.assert_array_equal(predicted(loaded), wanted)
        for name, value in predictor.get_config().items():
            if "model" not in name:
                assert loaded.get_config()[name] == value
        copied = copy.deepcopy(predictor)
        np.testing.assert_array_equal(predicted(copied), wanted)
        # Asked for its members before, the file is the same.
        loaded.predict_each(X, None)
        loaded.save_weights(tmp_path / f"{i}.weights.h5")
        model.set_weights([w + 1 for w in model.get_weights()])
        assert np.abs(predicted(predictor) - wanted).max() > 1e-3
        predictor.load_weights(tmp_path / f"{i}.weights.h5")
        np.testing.assert_array_equal(predicted(predictor), wanted)


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


# Plugging in.


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
        predictor.compile(loss=loss, metrics=metrics)
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


def test_predictors_are_not_trained():
    model = network()
    made = kc.MonteCarloDropout(model, 2, from_logits=True)
    made.compile("sgd", kc.FocalLoss(from_logits=True))
    with pytest.raises(RuntimeError, match="`MonteCarloDropout` must not be"):
        made.fit(X, Y)
    both = kc.DeepEnsemble([model], from_logits=True)
    with pytest.raises(RuntimeError, match="train what it was made of"):
        both.train_on_batch(X, Y)


@needs_tensorflow
@pytest.mark.parametrize("made", ["savedmodel", "onnx", "litert"])
def test_an_exported_predictor_answers_as_keras(tmp_path, made):
    from exported import answers

    dropped = kc.MonteCarloDropout(network(), 3, from_logits=True)
    both = kc.DeepEnsemble([network(seed=1), dropped], from_logits=True)
    for i, predictor in enumerate((dropped, both)):
        path = kc.export(predictor, tmp_path / str(i), format=made)
        for size in (1, 24):
            given = answers(path, made, x=X[:size])["logits"]
            np.testing.assert_allclose(
                given, predicted(predictor, X[:size]), atol=1e-5
            )


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
    with pytest.raises(RuntimeError, match="can not be loaded as onnx"):
        kc.export(dropped, tmp_path / "onnx", format="onnx")


# What is refused.


def two_outputs():
    inputs = keras.Input((6,))
    hidden = layers.Dropout(0.5)(inputs)
    return keras.Model(inputs, [layers.Dense(3)(hidden), hidden])


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
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
        (network, {"from_logits": None}, ValueError, "`from_logits` must be"),
    ],
)
def test_a_model_that_can_not_be_dropped_is_refused(
    model, options, error, message
):
    options = {"from_logits": True, **options}
    with pytest.raises(error, match=message):
        kc.MonteCarloDropout(model(), **options)


def test_a_noise_shape_of_other_axes_is_refused():
    model = keras.Sequential(
        [keras.Input((4, 6)), layers.Dropout(0.5, noise_shape=(None, 6))]
    )
    made = kc.MonteCarloDropout(model, from_logits=True)
    with pytest.raises(ValueError, match="`noise_shape` of a dropout layer"):
        made(np.ones((2, 4, 6), "float32"))


@pytest.mark.parametrize(
    ("models", "options", "error", "message"),
    [
        (list, {}, ValueError, "`models` must not be empty"),
        (network, {}, TypeError, "`models` must be a list.*Sequential"),
        (lambda: [network(), 3], {}, TypeError, r"`models\[1\]` must be a Ker"),
        (
            lambda: [network(), network(inputs=5)],
            {},
            ValueError,
            r"same inputs.*models\[0\].*6.*models\[1\].*5",
        ),
        (
            lambda: [network(), network(4)],
            {},
            ValueError,
            r"classes.*models\[0\]=\(None, 3\), models\[1\]=\(None, 4\)",
        ),
        (
            lambda: [network()] * 2,
            {},
            ValueError,
            r"must not share weights.*'models\[0\]'.*'models\[1\]'",
        ),
        (members, {"weights": [1, 2]}, ValueError, "one number for each"),
        (members, {"weights": [1, -1, 1]}, ValueError, "`weights` must be >="),
        (members, {"weights": [0, 0, 0]}, ValueError, "must not all be 0"),
        (members, {"weights": [1, "a", 1]}, TypeError, "must be a number"),
        (members, {"from_logits": [True]}, ValueError, "one value for each"),
        (members, {"from_logits": None}, ValueError, "`from_logits` must be"),
    ],
)
def test_an_ensemble_of_what_does_not_fit_is_refused(
    models, options, error, message
):
    with pytest.raises(error, match=message):
        kc.DeepEnsemble(models(), **{"from_logits": True, **options})

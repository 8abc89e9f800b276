"""Monte Carlo dropout: masks, what they do and what they leave alone."""

import threading

import keras
import numpy as np
import pytest
from cases import array
from keras import layers
from small_networks import X, Y, each, log_softmax, network, predicted
from small_trainings import EAGER

import keras_calib as kc
from keras_calib.ensembles import dropout
from keras_calib.ensembles.dropout import dropout_layers, masked

portable = pytest.mark.portable


def dropped_values(layer, x, num_passes=4, **options):
    """What a dropout layer makes of x in each pass, by public means.

    One channel is the logit of the second class.
    """
    model = keras.Sequential([keras.Input(x.shape[1:]), layer])
    if x.shape[-1] != 1:
        model.add(layers.Reshape((*x.shape[1:], 1)))
    made = kc.MonteCarloDropout(model, num_passes, from_logits=True, **options)
    p = each(made, x).astype("float64")
    return (np.log(p[..., 1]) - np.log(p[..., 0])).reshape(-1, *x.shape)


@portable
def test_the_output_is_the_log_of_the_mean_over_passes():
    # The one dropout layer of another model of that seed has these masks.
    ones = np.ones((1, 16), "float32")
    masks = dropped_values(layers.Dropout(0.5), ones, 5, seed=3)[:, 0]
    np.testing.assert_allclose(masks, 2 * np.round(masks / 2), atol=1e-4)
    masks = 2 * np.round(masks / 2)
    assert len({tuple(mask) for mask in masks}) == 5
    weights = [w.astype("float64") for w in network().get_weights()]
    hidden = np.maximum(X.astype("float64") @ weights[0] + weights[1], 0)
    passes = [
        np.exp(log_softmax((hidden * mask) @ weights[2] + weights[3]))
        for mask in masks
    ]
    wanted = np.log(np.mean(passes, axis=0))
    for activation in (None, "softmax"):
        model, logits = network(activation=activation), activation is None
        made = kc.MonteCarloDropout(model, 5, seed=3, from_logits=logits)
        np.testing.assert_allclose(each(made), passes, atol=1e-5)
        np.testing.assert_allclose(predicted(made), wanted, atol=1e-5)
    np.testing.assert_allclose(made.predict_each(X), passes, atol=1e-5)


@portable
def test_answers_do_not_depend_on_the_batch_and_repeat():
    made = kc.MonteCarloDropout(network(), 6, from_logits=True)
    made.compile(**EAGER)
    whole = predicted(made)
    np.testing.assert_allclose(predicted(made, X[7:8]), whole[7:8], atol=1e-6)
    shuffled = made.predict(X[::-1], batch_size=5, verbose=0)[::-1]
    np.testing.assert_allclose(shuffled, whole, atol=1e-6)
    again = kc.MonteCarloDropout(network(), 6, from_logits=True)
    np.testing.assert_array_equal(predicted(again), whole)
    other = kc.MonteCarloDropout(network(), 6, seed=1, from_logits=True)
    assert np.abs(predicted(other) - whole).max() > 1e-2


@portable
def test_samples_can_have_masks_of_their_own():
    x = np.repeat(X[:1], 8, axis=0)
    made = kc.MonteCarloDropout(network(), 2, per_sample=True, from_logits=True)
    passes = each(made, x)
    assert len(np.unique(passes[0, :, 0])) > 4
    np.testing.assert_array_equal(each(made, x), passes)
    # A mask is a function of the row, whatever comes after it.
    np.testing.assert_allclose(each(made, x[:3]), passes[:, :3], atol=1e-6)
    shared = kc.MonteCarloDropout(network(), 2, from_logits=True)
    assert np.ptp(each(shared, x), axis=1).max() < 1e-6


@portable
def test_units_are_dropped_as_in_training():
    for layer, start in (
        (layers.Dropout(0.3), 1.0),
        (layers.GaussianDropout(0.3), 1.0),
        (layers.AlphaDropout(0.3), 0.7),
    ):
        as_in_training(layer, start)


def as_in_training(layer, start):
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
    p = np.exp(predicted(made, x))[:, 1].mean()
    wanted = 0.75 / (1 + np.exp(-1.5 / 0.75)) + 0.25 * 0.5
    # Four standard errors: 0.381 * 0.433 / sqrt(20,000).
    assert abs(p - wanted) < 4 * 1.17e-3
    # One mask for all: an error as of that many passes, not of samples.
    made = kc.MonteCarloDropout(model, 200, from_logits=True)
    p = np.exp(predicted(made, x[:2]))[:, 1]
    assert 1e-6 < abs(p[0] - wanted) < 4 * 1.17e-2
    assert p[0] == pytest.approx(p[1], abs=1e-6)


@portable
def test_masks_of_passes_layers_and_units_are_independent():
    keras.utils.set_random_seed(0)
    x = np.ones((1, 4000), "float32")
    values = dropped_values(layers.Dropout(0.5), x, 4)[:, 0] > 1
    more = dropped_values(layers.Dropout(0.5), x, 4, seed=1)[:, 0] > 1
    rows = np.concatenate([values, more, np.roll(values, 1, axis=1)])
    assert np.all(np.abs(rows.mean(axis=1) - 0.5) < 4 * 0.5 / np.sqrt(4000))
    correlation = np.corrcoef(rows) - np.eye(12)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(4000)


@portable
def test_masks_are_the_same_wherever_they_are_computed(monkeypatch):
    options = {"num_passes": 3, "from_logits": True}
    for layer in (layers.Dropout(0.5), layers.GaussianDropout(0.3)):
        x = np.ones((1, 64), "float32")
        constant = dropped_values(layer, x, 3)
        monkeypatch.setattr(dropout, "_MOST_CONSTANTS", 0)
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


@portable
def test_a_map_is_dropped_as_a_whole():
    for layer, axes in (
        (layers.SpatialDropout1D(0.5), (1,)),
        (layers.SpatialDropout2D(0.5, data_format="channels_last"), (1, 2)),
        (layers.SpatialDropout2D(0.5, data_format="channels_first"), (2, 3)),
        (layers.SpatialDropout3D(0.5, "channels_last"), (1, 2, 3)),
        (layers.Dropout(0.5, noise_shape=(None, 1, None)), (1,)),
    ):
        dropped_as_a_whole(layer, axes)


def dropped_as_a_whole(layer, axes):
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
    model.compile("sgd", kc.FocalLoss(from_logits=True), run_eagerly=True)
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
    whole = each(made, x)
    for layer in dropout_layers(model):
        rate, layer.rate = layer.rate, 0.0
        others = kc.MonteCarloDropout(model, 3, from_logits=True)
        assert np.abs(each(others, x) - whole).max() > 1e-4
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
    found = each(made, np.ones((2, 40), "float32"))
    np.testing.assert_allclose(found, uniform, atol=1e-6)


def test_two_layers_have_two_masks():
    inputs = keras.Input((40,))
    first, second = layers.Dropout(0.5)(inputs), layers.Dropout(0.5)(inputs)
    model = keras.Model(inputs, layers.Subtract()([first, second]))
    made = kc.MonteCarloDropout(model, 4, from_logits=True)
    passes = each(made, np.ones((1, 40), "float32"))
    # -2, 0 and 2: units that one of both drops.
    levels = [len(np.unique(np.log(p).round(2))) for p in passes]
    assert levels == [3] * 4


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
    loss = kc.FocalLoss(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, run_eagerly=True)
    made = kc.MonteCarloDropout(model, 3)
    assert {id(v) for v in made.variables} == {id(v) for v in model.variables}
    before = predicted(made)
    model.fit(X, Y, epochs=3, verbose=0)
    after = predicted(made)
    assert np.abs(after - before).max() > 0.01
    again = kc.MonteCarloDropout(model, 3)
    np.testing.assert_allclose(predicted(again), after, atol=1e-6)

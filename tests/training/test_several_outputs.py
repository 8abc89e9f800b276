"""Models of several outputs, none to train, and copies of models."""

import copy
import pickle

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from small_trainings import COUNT, EAGER, MODELS, data_of, network

import keras_calib as kc

JIT = {} if BACKEND == "jax" else EAGER


def two_outputs(cls, **arguments):
    """A model whose outputs differ in what they are and in their losses."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    outputs = {
        name: keras.layers.Dense(count, name=name)(inputs)
        for name, count in (("kind", 3), ("size", 1))
    }
    model = cls(inputs, outputs, **arguments)
    losses = {
        "kind": kc.FocalLoss(gamma=1.0, from_logits=True),
        "size": "mean_squared_error",
    }
    model.compile(
        keras.optimizers.SGD(0.1), loss=losses, metrics={"size": "mae"}, **JIT
    )
    return model


def data_of_two(count=COUNT):
    x, _, labels, _ = data_of("sam", count)
    return x, {"kind": labels, "size": x.sum(1, keepdims=True)}


@pytest.mark.portable
def test_the_second_pass_counts_no_loss_of_an_output():
    x, y = data_of_two(32)
    sharp = two_outputs(kc.SharpnessAwareModel, rho=2.0)
    plain = two_outputs(keras.Model)
    names = {"loss", "kind_loss", "size_loss", "size_mae"}
    for _ in range(2):
        # Of the batch at the weights before, not also of the moved ones.
        weights = sharp.get_weights()
        plain.set_weights(weights)
        expected = plain.evaluate(x, y, verbose=0, return_dict=True)
        found = sharp.train_on_batch(x, y, return_dict=True)
        assert set(found) == names
        for name in names:
            np.testing.assert_allclose(
                found[name], expected[name], rtol=1e-5, err_msg=name
            )
        assert any(
            np.abs(a - b).max() > 1e-3
            for a, b in zip(weights, sharp.get_weights(), strict=True)
        )
        sharp.reset_metrics()


@pytest.mark.portable
@pytest.mark.filterwarnings("ignore:The model does not have any trainable")
def test_a_model_with_nothing_to_train_stays_as_it_is():
    x, _, labels, _ = data_of("sam", 32)
    model = network("sam")
    model.trainable = False
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss=loss, **JIT)
    weights = model.get_weights()
    options = {"shuffle": False, "verbose": 0}
    losses = model.fit(x, labels, epochs=2, **options).history["loss"]
    assert losses[0] == losses[1] > 0
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("sam", marks=pytest.mark.portable),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in MODELS
            if name != "sam"
        ),
    ],
)
def test_models_are_pickled_and_copied(name):
    x, y, labels, _ = data_of(name, COUNT)
    model = network(name, run_eagerly=BACKEND != "jax")
    options = {"batch_size": 48, "shuffle": False, "verbose": 0}
    options["validation_data"] = (x, labels)
    model.fit(x, y, **options)
    copies = []
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert isinstance(again, MODELS[name][0])
        for key, value in MODELS[name][1].items():
            assert getattr(again, key) == value
        assert len(again.variables) == len(model.variables)
        for mine, other in zip(model.weights, again.weights, strict=True):
            np.testing.assert_array_equal(array(mine), array(other))
        copies.append(again)
    # They go on as it does.
    for one in (model, *copies):
        one.fit(x, y, **options)
    for again in copies:
        for mine, other in zip(model.weights, again.weights, strict=True):
            np.testing.assert_allclose(
                array(mine), array(other), rtol=1e-6, atol=1e-7
            )

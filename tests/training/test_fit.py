"""Models train, are saved and loaded like any model of Keras."""

import copy
import pickle

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from keras import ops
from small_trainings import (
    COUNT,
    EAGER,
    MODELS,
    data_of,
    dense,
    eager,
    network,
    num_classes_of,
)

import keras_calib as kc
from keras_calib.backend.gradients import value_and_grad
from keras_calib.training import epoch_model

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


# Compiling takes long: few are, and one of them by XLA.
COMPILED = ["crl acls", "sam crl", "adafocal"]
# Their steps are those of others here, with another argument or loss.
SLOW = ["asam", "cape predicted", "schedule"]


def cases():
    for name in MODELS:
        marks = [pytest.mark.portable] if name in COMPILED else []
        marks += [pytest.mark.slow] if name in SLOW else []
        yield pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [*cases()])
def test_a_model_trains_remembers_and_is_saved(name, tmp_path):
    jit = name == "sam crl" if BACKEND == "tensorflow" else "auto"
    model = network(name, run_eagerly=name not in COMPILED, jit_compile=jit)
    trains_remembers_and_is_saved(name, model, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name, jit", [("cape", False), ("pruning", True)])
def test_others_train_in_a_graph_too(name, jit, tmp_path):
    model = network(name, jit_compile=jit)
    trains_remembers_and_is_saved(name, model, tmp_path)


def trains_remembers_and_is_saved(name, model, tmp_path):
    x, y, labels, _ = data_of(name, COUNT)
    options = {"batch_size": 48, "shuffle": False, "verbose": 0}
    options |= {"validation_data": (x, labels), "validation_batch_size": COUNT}
    before = kc.nll(labels, array(model(x)), from_logits=True)
    fitted = model.fit(x, y, epochs=2, **options).history
    assert set(fitted) == {"accuracy", "loss", "val_accuracy", "val_loss"}
    # What is shown is that of the labels.
    logits = array(model(x))
    assert kc.nll(labels, logits, from_logits=True) < before
    right = np.mean(logits.argmax(-1) == labels)
    np.testing.assert_allclose(fitted["val_accuracy"][-1], right, rtol=1e-6)
    assert np.isfinite(fitted["loss"]).all()
    if hasattr(model, "view_counts"):
        np.testing.assert_array_equal(array(model.view_counts), np.full(96, 2))
        assert float(model.finished_epochs) == 2
    # Gammas have changed since the last validation.
    plain = model.evaluate(x, labels, batch_size=COUNT, verbose=0)
    if name != "sam crl":
        # A class of the user's own is not registered.
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        assert type(again) is type(model)
        own = {"layers", "input_layers", "output_layers", "name", "trainable"}
        config = again.get_config()
        assert set(config) > own or name == "sam"
        for key in set(config) - own:
            assert config[key] == model.get_config()[key]
        assert again.get_compile_config() == model.get_compile_config()
        for v, w in zip(model.variables, again.variables, strict=True):
            np.testing.assert_array_equal(array(v), array(w))
        np.testing.assert_array_equal(array(again(x)), logits)
        if name == "crl":
            again.fit(x, y, **options)
            assert float(again.finished_epochs) == 3
    model.save_weights(tmp_path / "model.weights.h5")
    other = eager(name)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "model.weights.h5")
    for v, w in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(array(v), array(w))
    # With an index as without.
    found = other.evaluate(x, y, batch_size=COUNT, verbose=0)
    np.testing.assert_allclose(found, plain, rtol=1e-5)


def test_functional_and_subclassed_models_go_together():
    class Own(kc.CorrectnessRankingModel):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.layer = keras.layers.Dense(3)

        def build(self, shape):
            self.layer.build(shape)

        def call(self, inputs):
            return self.layer(inputs)

    class Graph(kc.CorrectnessRankingModel):
        def __init__(self, width, classes):
            inputs = keras.Input((width,))
            outputs = keras.layers.Dense(classes)(inputs)
            super().__init__(inputs, outputs, num_samples=COUNT)

    x, y, labels, _ = data_of("crl", COUNT)
    losses = []
    for model in (
        dense(kc.CorrectnessRankingModel, num_samples=COUNT),
        Own(num_samples=COUNT),
        Graph(6, 3),
        dense(kc.CorrectnessRankingModel, num_samples=COUNT),
    ):
        model.build((None, 6))
        model.trainable_variables[0].assign(np.full((6, 3), 0.1))
        model.compile("sgd", loss=CROSS_ENTROPY, **EAGER)
        fitted = model.fit(
            x, y, batch_size=COUNT, shuffle=False, verbose=0
        ).history
        losses.append(fitted["loss"])
        assert isinstance(model, kc.CorrectnessRankingModel)
        assert model.view_counts.shape == (COUNT,)
    for found in losses:
        np.testing.assert_allclose(found, losses[0], rtol=1e-6)


def test_a_model_is_copied_and_made_again():
    model = dense(kc.CorrectnessRankingModel, num_samples=4, strength=0.5)
    model.right_counts.assign([0.0, 1.0, 2.0, 3.0])
    copied = copy.deepcopy(model)
    made = type(model).from_config(model.get_config())
    for other in (copied, made, pickle.loads(pickle.dumps(model))):
        assert type(other) is type(model)
        assert (other.strength, other.num_samples) == (0.5, 4)
    np.testing.assert_array_equal(array(copied.right_counts), [0, 1, 2, 3])


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_made_again_with_its_arguments(name):
    cls, arguments, _ = MODELS[name]
    model = dense(cls, num_classes_of(name), **arguments)
    made = cls.from_config(model.get_config())
    for argument, value in arguments.items():
        assert getattr(made, argument) == value
    assert made.get_config() == model.get_config()


def test_several_inputs_and_named_ones_are_kept_by_a_file(tmp_path):
    inputs = {
        "a": keras.Input((2,), name="a"),
        "b": keras.Input((3,), name="b"),
    }
    joined = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
    model = kc.SharpnessAwareModel(inputs, keras.layers.Dense(2)(joined))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    x = {"a": np.ones((1, 2)), "b": np.ones((1, 3))}
    np.testing.assert_array_equal(array(model(x)), array(again(x)))
    assert again.rho == 0.05


def test_an_epoch_model_trains_plain_losses_on_an_index(tmp_path):
    x, y, labels, _ = data_of("crl", COUNT)
    model = dense(kc.training.EpochModel)
    model.compile("sgd", loss=CROSS_ENTROPY, metrics=["accuracy"], **EAGER)
    model.fit(kc.data.EpochBatches(x, labels, batch_size=COUNT), verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        again.evaluate(x, y, verbose=0), model.evaluate(x, labels, verbose=0)
    )


def test_layers_that_do_not_train_stay_so_in_a_file(tmp_path):
    x, y, _, _ = data_of("crl", COUNT)
    model = network("crl")
    model.layers[1].trainable = False
    model.compile("adam", loss=CROSS_ENTROPY, **EAGER)
    model.fit(x, y, batch_size=COUNT, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert len(again.trainable_variables) == len(model.trainable_variables)
    assert len(again.trainable_variables) == 2


def test_losses_given_in_other_ways_say_what_they_take():
    x, y, _, _ = data_of("crl", COUNT)
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(3, activation="softmax")(inputs)
    values = []
    for given in (
        keras.losses.SparseCategoricalCrossentropy(),
        keras.losses.sparse_categorical_crossentropy,
        "sparse_categorical_crossentropy",
        [keras.losses.SparseCategoricalCrossentropy()],
    ):
        model = kc.CorrectnessRankingModel(inputs, outputs, num_samples=COUNT)
        model.compile(keras.optimizers.SGD(0.0), loss=given, **EAGER)
        options = {"batch_size": COUNT, "verbose": 0}
        evaluated = model.evaluate(x, y["label"], **options)
        fitted = model.fit(x, y, shuffle=False, **options)
        values.append([evaluated, fitted.history["loss"][-1]])
    for found in values:
        np.testing.assert_allclose(found, values[0], rtol=1e-6)


def test_the_gradient_of_a_part_weighs_as_its_rows(monkeypatch):
    # Two replicas, of 3 rows and of 1; this one has the 3.
    monkeypatch.setattr(epoch_model, "num_replicas", lambda: 2)
    monkeypatch.setattr(epoch_model, "sum_over_replicas", lambda x: x + 1.0)
    loss = keras.losses.MeanSquaredError()
    y = np.ones((3, 1), "float32")

    def of_outputs(y_pred):
        value = ops.mean(ops.square(y_pred - y))
        return epoch_model.mean_of_the_whole(value, loss, y_pred, None)

    value, gradient = value_and_grad(of_outputs, np.zeros((3, 1), "float32"))
    # Keras halves it: of four rows each weighs as one.
    np.testing.assert_allclose(array(gradient) / 2, -2 / 4, rtol=1e-6)
    assert float(value) == 1.0

"""A calibrator is fitted again: a new fit, for all who hold it."""

import gc

import keras
import numpy as np
import pytest
from cases import BACKEND, CALIBRATORS, array
from keras import ops

import keras_calib as kc
from keras_calib.backend.traced import note_graph
from keras_calib.calibrators.fitted_layer import FittedLayer

# Tables whose size depends on the data.
SIZED = (kc.IsotonicCalibration, kc.VennAbers)


def held_out(n, num_classes=4, seed=0):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(n, num_classes)).astype("float32")
    return (logits / 2 + rng.gumbel(size=logits.shape)).argmax(-1), logits


def fitted(cls, data):
    return cls().fit(*data, num_folds=0)


def assert_same(one, other, logits):
    np.testing.assert_array_equal(array(one(logits)), array(other(logits)))


@pytest.mark.portable
@pytest.mark.slow
def test_a_second_fit_is_a_new_fit():
    first, second = held_out(500), held_out(400, seed=5)
    other = held_out(400, num_classes=3, seed=6)
    seen = set()
    for case in CALIBRATORS:
        if case.cls in seen or not case.can_fit:
            continue
        seen.add(case.cls)
        calibrator = case.make().fit(*first, num_folds=0)
        calibrator(first[1])
        for data in (second, other) if case.cls in SIZED else (second,):
            new = case.make().fit(*data, num_folds=0)
            again = calibrator.fit(*data, num_folds=0)
            assert again is calibrator
            assert_same(again, new, data[1])
            assert repr(again) == repr(new)
            names = [v.name for v in again.variables]
            assert names == [v.name for v in new.variables]


class Sums(FittedLayer):
    """A layer of fitted arrays, of which one may be absent."""

    def call(self, x):
        self.check_fitted()
        note_graph(self)
        shift = 0.0 if self._ids is None else ops.sum(self._ids)
        return x + ops.sum(self._total) + ops.cast(shift, "float32")

    _ids = None


@pytest.mark.portable
def test_fitted_arrays_are_made_resized_and_removed_as_one():
    layer, x = Sums(), np.ones((2, 1), "float32")
    for ids, total in ((None, 2), (np.arange(2, dtype="int32"), [1, 2])):
        layer.set_arrays(ids=ids, total=total)
        layer.mark_fitted()
        layer(x)
        paths = [v.name for v in layer.variables]
        assert paths == ["ids", "total"][ids is None :]
        assert array(layer._total).dtype == "float32"
    assert array(layer._ids).dtype == "int32"
    # Of the same shapes the variables stay.
    before = layer._total
    layer.set_arrays(ids=np.array([5, 6], "int32"), total=[0.0, 0.5])
    assert layer._total is before
    assert array(layer(x)).ravel().tolist() == [12.5, 12.5]
    layer.set_arrays(ids=None, total=0.5)
    assert layer._ids is None
    assert array(layer(x)).ravel().tolist() == [1.5, 1.5]
    if BACKEND == "tensorflow":
        model = keras.Sequential([keras.Input((1,)), layer])
        model.predict_on_batch(x)
        with pytest.raises(ValueError, match="`Sums` must not change its size"):
            layer.set_arrays(ids=None, total=[9.0])
        layer.set_arrays(ids=None, total=1.5)
        assert model.predict_on_batch(x).ravel().tolist() == [2.5, 2.5]


@pytest.mark.parametrize(
    "cls",
    [
        pytest.param(kc.VennAbers, marks=pytest.mark.portable),
        pytest.param(kc.IsotonicCalibration, marks=pytest.mark.slow),
    ],
)
def test_a_model_answers_with_the_new_fit_or_the_fit_is_refused(cls, tmp_path):
    first, second = held_out(300), held_out(400, seed=5)
    new = fitted(cls, second)
    expected = array(new(second[1]))
    inputs = keras.Input((4,))
    calibrator = fitted(cls, first)
    model = keras.Model(inputs, calibrator(inputs))
    # Nothing is compiled yet.
    calibrator.fit(*second, num_folds=0)
    np.testing.assert_array_equal(array(model(second[1])), expected)
    model.save(tmp_path / "model.keras")
    copy = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(copy(second[1])), expected)

    calibrator = fitted(cls, first)
    model = keras.Sequential([keras.Input((4,)), calibrator])
    before = model.predict_on_batch(first[1])
    if BACKEND != "tensorflow":
        calibrator.fit(*second, num_folds=0)
        found = model.predict_on_batch(second[1])
        np.testing.assert_allclose(found, expected, atol=1e-5)
        return
    with pytest.raises(ValueError, match="build a new model with it"):
        calibrator.fit(*second, num_folds=0)
    np.testing.assert_array_equal(model.predict_on_batch(first[1]), before)
    # Of the same size it takes effect at once.
    calibrator.fit(*first, num_folds=0)
    # Nothing is left that would go on with the old fit.
    del model
    gc.collect()
    assert_same(calibrator.fit(*second, num_folds=0), new, second[1])


@pytest.mark.skipif(BACKEND != "tensorflow", reason="it has tf.function")
def test_a_function_of_tensorflow_holds_the_size_of_an_interval():
    import tensorflow as tf

    first, second = held_out(300), held_out(400, seed=5)
    calibrator = fitted(kc.VennAbers, first)
    # Rewritten by AutoGraph it would hold the same, a second later.
    function = tf.function(lambda z: calibrator.interval(z), autograph=False)
    function(first[1])
    with pytest.raises(ValueError, match="while a compiled function"):
        calibrator.fit(*second, num_folds=0)
    low, _ = function(first[1])
    expected, _ = calibrator.interval(first[1])
    np.testing.assert_allclose(array(low), array(expected), atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="as TensorFlow exports")
def test_what_is_exported_keeps_its_fit_and_holds_nothing(tmp_path):
    first, second = held_out(300), held_out(400, seed=5)
    network = keras.Sequential([keras.Input((4,)), keras.layers.Identity()])
    calibrator = fitted(kc.VennAbers, first)
    kc.export(network, tmp_path / "model", calibrator, from_logits=True)
    new = fitted(kc.VennAbers, second)
    assert_same(calibrator.fit(*second, num_folds=0), new, second[1])

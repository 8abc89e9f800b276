"""Private parts of Keras are there, or an error names them."""

import keras
import pytest

import keras_calib as kc
from keras_calib.backend import keras_internals as internals


@pytest.mark.portable
def test_private_parts_of_keras_are_there_or_named():
    inputs = keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    model.compile("sgd", loss="mse")
    internals.begin_at_epoch(model, 3)
    assert model._initial_epoch == 3
    internals.begin_at_epoch(model, None)
    assert model._initial_epoch is None
    assert internals.loss_tracker(model).name == "loss"
    assert {x.name for x in internals.nested_layers(model)} > {
        x.name for x in model.layers
    }
    callback = keras.callbacks.Callback()
    callback.set_model(model)
    assert internals.callback_model(callback) is model
    with keras.StatelessScope():
        assert internals.in_stateless_scope()
    assert not internals.in_stateless_scope()
    # No list and no model calls.
    assert internals.neighbours(callback) == ([], [])
    assert internals.metrics_beside(kc.ECE()) == []

    class Later:
        """An object of a Keras that has none of them."""

    with pytest.raises(RuntimeError, match=r"`Later\._.*Keras 3\.15"):
        internals.begin_at_epoch(Later(), None)
    for use in (
        internals.compiled_metrics,
        internals.loss_tracker,
        internals.nested_layers,
        internals.unlock_variables,
        internals.updated_metrics,
    ):
        with pytest.raises(RuntimeError, match=r"`Later\._.*Keras 3\.15"):
            use(Later())
    assert internals.backing_value(Later()) is None

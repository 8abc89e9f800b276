"""Model outputs: logits or probabilities, as told or as the loss says."""

import keras
import numpy as np
import pytest
from cases import BACKEND, array

import keras_calib as kc
from keras_calib.exporting.served_model import ServedModel
from keras_calib.predictions.outputs import reads_logits, to_model_logits

portable = pytest.mark.portable


def compiled(loss, channels=3):
    layers = [keras.Input((4,)), keras.layers.Dense(channels)]
    model = keras.Sequential(layers)
    model.compile(loss=loss)
    return model


def test_the_compiled_loss_says_what_outputs_are():
    for loss, logits in (
        (kc.ACLS(from_logits=True), True),
        (kc.FocalLoss(), False),
        (kc.MDCA(from_logits=True), True),
        (keras.losses.CategoricalCrossentropy(from_logits=True), True),
        (keras.losses.SparseCategoricalCrossentropy(), False),
        ("sparse_categorical_crossentropy", False),
    ):
        model = compiled(loss)
        assert reads_logits(model, None) is logits, loss
        # What is told goes before.
        assert reads_logits(model, not logits) is not logits, loss


BINARY = [
    ("binary_crossentropy", False),
    ("bce", False),
    (keras.losses.BinaryCrossentropy(from_logits=True), True),
    (keras.losses.BinaryFocalCrossentropy(), False),
]


def test_a_binary_loss_says_what_one_channel_is_and_no_more():
    for loss, logits in BINARY:
        assert reads_logits(compiled(loss, 1), None) is logits, loss
        model = compiled(loss, 3)
        with pytest.raises(ValueError, match="at once need .*MultiLabel"):
            reads_logits(model, None)
        assert reads_logits(model, logits) is logits, loss


def test_a_loss_that_does_not_say_is_an_error():
    rule = "`from_logits` must be True or False"
    for loss in ("mse", keras.losses.MeanSquaredError(), lambda y, z: z):
        model = compiled(loss)
        with pytest.raises(ValueError, match=rule):
            reads_logits(model, None)
        assert reads_logits(model, True) is True
        with pytest.raises(TypeError, match="must be True, False or None"):
            reads_logits(model, 1)
    assert reads_logits(compiled(None), None) is True


@portable
def test_outputs_become_logits_of_every_class():
    logits = np.array([[1.0, -2.0, 0.5]], "float16")
    given = to_model_logits(logits, from_logits=True)
    assert array(given).dtype == np.float32
    np.testing.assert_allclose(array(given), logits, rtol=1e-6)
    probs = np.array([[[0.25], [0.75]]], "float32")
    given = array(to_model_logits(probs, from_logits=False))
    wanted = [[[0.0, -np.log(3.0)], [0.0, np.log(3.0)]]]
    np.testing.assert_allclose(given, wanted, rtol=1e-6)
    given = array(to_model_logits(probs, from_logits=True))
    np.testing.assert_allclose(given, [[[0, 0.25], [0, 0.75]]], rtol=1e-6)


@portable
def test_probabilities_of_one_output_become_the_logits_that_gave_them():
    z = np.linspace(-80.0, 10.0, 37, dtype="float32")[:, None]
    given = to_model_logits(keras.ops.sigmoid(z), from_logits=False)
    wanted = to_model_logits(z, from_logits=True)
    # As much as rounding to float32 leaves of probabilities near 1.
    np.testing.assert_allclose(array(given), array(wanted), atol=5e-3)
    certain = np.array([[0.0], [1.0]], "float32")
    given = array(to_model_logits(certain, from_logits=False))
    wanted = np.array([[0.0, -85.195], [0.0, 85.195]])
    np.testing.assert_allclose(given, wanted, rtol=1e-5)


@portable
def test_a_sigmoid_model_answers_as_its_logits_do():
    z = np.linspace(-4.0, 4.0, 40, dtype="float32")[:, None]
    network = keras.Sequential(
        [keras.Input((1,)), keras.layers.Activation("sigmoid")]
    )
    calibrator = kc.VectorScaling(scale=[0.5, 1.5], bias=[0.3, -0.2])
    for score in ("max_logit", "neg_energy"):
        selector = kc.SelectiveClassifier(
            calibrator=calibrator, score=score, threshold=1.0
        )
        served = ServedModel(network, selector, from_logits=False)
        of_probs = served.answers(network(z), False)
        of_logits = served.answers(z, True)
        assert 0 < of_logits["accept"].sum() < 40
        for name, value in of_probs.items():
            np.testing.assert_allclose(
                value, of_logits[name], rtol=1e-4, atol=1e-5, err_msg=name
            )


@portable
@pytest.mark.skipif(BACKEND == "tensorflow", reason="export works here")
def test_export_names_the_backend_that_it_needs(tmp_path):
    with pytest.raises(RuntimeError, match="set KERAS_BACKEND=tensorflow"):
        kc.export(compiled(kc.FocalLoss()), tmp_path / "m")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("logits", [True, False])
def test_a_model_may_say_what_it_returns(logits):
    model = compiled(None)
    model.returns_logits = logits
    assert reads_logits(model) is logits
    assert reads_logits(model, logits) is logits
    # A loss of the same model says less than the model.
    model.compile(loss=kc.ACLS(from_logits=True))
    assert reads_logits(model) is logits
    with pytest.raises(ValueError, match=f"must be None or {logits}"):
        reads_logits(model, not logits)

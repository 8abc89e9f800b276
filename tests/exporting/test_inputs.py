"""Export: inputs and outputs of every form that a model may have."""

from collections import OrderedDict

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from exported import answers, assert_same, expected

import keras_calib as kc
from keras_calib.exporting import verification
from keras_calib.exporting.served_model import ServedModel
from keras_calib.selection import SelectiveClassifier

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)
FIRST = np.ones((2, 4), "float32")
SECOND = np.full((2, 3), 2.0, "float32")


def of_two(arrange, names=("a", "b")):
    """A network of inputs `(batch, 4)` and `(batch, 3)`, so arranged."""
    keras.utils.set_random_seed(0)
    inputs = [
        keras.Input((4,), name=names[0]),
        keras.Input((3,), name=names[1]),
    ]
    joined = keras.layers.Concatenate()(inputs)
    return keras.Model(arrange(*inputs), keras.layers.Dense(3)(joined))


def served(network):
    return ServedModel(network, SelectiveClassifier(threshold=0.0), True)


def sampled(model, samples):
    """The inputs of the first probe of a served model, by name."""
    return next(verification.probes(model, samples)).inputs


@pytest.fixture(scope="module")
def pair():
    """A served model of a list of two inputs."""
    return served(of_two(lambda a, b: [a, b]))


@pytest.mark.parametrize(
    ("arrange", "samples"),
    [
        (lambda a, b: [a, b], (FIRST, SECOND)),
        (lambda a, b: (a, b), [FIRST, SECOND]),
        (lambda a, b: [a, b], {"b": SECOND, "a": FIRST}),
        (lambda a, b: {"b": b, "a": a}, OrderedDict(b=SECOND, a=FIRST)),
        (lambda a, b: OrderedDict(b=b, a=a), {"a": FIRST, "b": SECOND}),
        # In such models Keras keeps what FeatureSpace.get_inputs returns.
        (
            lambda a, b: keras.src.utils.tracking.TrackedDict({"b": b, "a": a}),
            {"a": FIRST, "b": SECOND},
        ),
    ],
)
def test_samples_of_several_inputs_come_as_the_model_takes_them(
    arrange, samples
):
    given = sampled(served(of_two(arrange)), samples)
    np.testing.assert_array_equal(given["a"], FIRST)
    np.testing.assert_array_equal(given["b"], SECOND)


def test_samples_of_one_input_may_stand_alone():
    for arrange in (list, tuple, lambda x: x[0]):
        inputs = keras.Input((4,), name="x")
        outputs = keras.layers.Dense(3)(inputs)
        model = served(keras.Model(arrange([inputs]), outputs))
        for samples in (FIRST, [FIRST], (FIRST,), {"x": FIRST}):
            given = sampled(model, samples)
            np.testing.assert_array_equal(given["x"], FIRST)


@pytest.mark.parametrize(
    ("samples", "match"),
    [
        ([FIRST], "must have the structure"),
        ([FIRST, SECOND, SECOND], "must have the structure"),
        ({"a": FIRST}, "must have the structure"),
        ({"a": FIRST, "c": SECOND}, "must have the structure"),
        (FIRST, "must have the structure"),
        # Keras would add the axis that a client has to send.
        ([FIRST, SECOND[:, 0]], r"must have the axes.*'b': \(2,\)"),
        (
            [FIRST, SECOND[:1]],
            r"must have .* same number of samples.*'b': \(1, 3\)",
        ),
        ([FIRST[:0], SECOND[:0]], "must have .* at least one"),
    ],
)
def test_samples_of_another_structure_or_rank_are_refused(pair, samples, match):
    with pytest.raises(ValueError, match=f"`sample_inputs` {match}"):
        sampled(pair, samples)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("image", "a.b"), ["image", "a_b"]),
        (("größe", "_x"), ["gr__e", "input_x"]),
        (("class", "self"), ["input_class", "input_self"]),
        (("score", "logits"), ["input_score", "input_logits"]),
        (("A", "a"), ["inputs_0", "inputs_1"]),
        (("__", "2d"), ["input_", "input_2d"]),
    ],
)
def test_names_are_changed_where_a_format_does_not_take_them(names, wanted):
    network = of_two(lambda a, b: [a, b], names)
    assert list(served(network).inputs) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("made", ["savedmodel", "onnx", "litert"])
def test_names_that_were_changed_serve_in_every_format(tmp_path, made):
    network = of_two(lambda a, b: [a, b], ("label", "class"))
    path = kc.export(network, tmp_path / "m", format=made, from_logits=True)
    given = answers(path, made, input_label=FIRST, input_class=SECOND)
    wanted = array(network([FIRST, SECOND]))
    assert_same(given, expected(wanted, 1.0, -np.inf))


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_keys_name_the_inputs_that_they_stand_for():
    ordered = of_two(lambda b, a: OrderedDict(b=b, a=a), ("b", "a"))
    shapes = {k: v.shape[1] for k, v in served(ordered).inputs.items()}
    assert shapes == {"b": 4, "a": 3}
    numbered = of_two(lambda a, b: {1: a, 0: b})
    shapes = {k: v.shape[1] for k, v in served(numbered).inputs.items()}
    assert shapes == {"input_1": 4, "input_0": 3}


def test_a_single_output_may_be_in_a_list_or_dict():
    inputs = keras.Input((4,), name="x")
    outputs = keras.layers.Dense(3)(inputs)
    wanted = array(keras.Model(inputs, outputs)(FIRST))
    for arrange in (list, lambda x: {"logits": x[0]}):
        network = keras.Model(inputs, arrange([outputs]))
        given = array(served(network).outputs({"x": FIRST}))
        np.testing.assert_allclose(given, wanted, rtol=1e-6)


def test_random_inputs_are_what_every_layer_takes():
    layers = [
        keras.Input((None,), dtype="int32"),
        keras.layers.Embedding(2, 4),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(3),
    ]
    shapes = []
    for probe in verification.probes(served(keras.Sequential(layers))):
        if probe.signature == "serving_default":
            (ids,) = probe.inputs.values()
            assert set(np.unique(ids)) == {0, 1}
            shapes.append(ids.shape)
    # No axis that is open has the same size twice.
    assert shapes == [(2, 32), (1, 64)]

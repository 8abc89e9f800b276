"""Export: a file that answers otherwise is found, a rounding one is not."""

import functools

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from exported import segmenter, selector, trained

import keras_calib as kc
from keras_calib.exporting import formats, verification
from keras_calib.exporting.formats import FORMATS
from keras_calib.exporting.served_model import ImageReader, ServedModel
from keras_calib.exporting.verification import check_answers

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)


def masked(network, value):
    """A network of ten classes of which the last two are masked."""
    offset = [0.0] * 8 + [value] * 2
    layers = [*network.layers, keras.layers.Rescaling(1.0, offset)]
    return keras.Sequential([keras.Input((4,)), *layers])


def runner(run):
    """A file of which only its answers matter."""
    return formats.Runner({}, (), run)


@functools.cache
def probes_of(served):
    """The probes of a model, which many files are asked."""
    return tuple(verification.probes(served))


def verify(served, change, signature="serving_default"):
    """Compares Keras with a file that answers as a function changes it."""

    def run(name, inputs):
        (values,) = inputs.values()
        if name == "serving_default":
            values = served.outputs({"inputs": values})
        given = served.answers(values, name != "serving_default" or None)
        return change(dict(given)) if name == signature else given

    names = "serving_default", "serving_logits"
    check_answers(
        {name: runner(functools.partial(run, name)) for name in names},
        probes_of(served),
        served.selector.threshold,
    )


def with_one(name, function):
    def change(given):
        given[name] = function(given[name])
        return given

    return change


WRONG = {
    "logits": lambda x: x + 0.01 * np.abs(x).max(),
    "probabilities": lambda x: x + 2e-3,
    "confidence": lambda x: x - 2e-3,
    "score": lambda x: x + 0.02 * np.abs(x).max(),
    "accept": np.logical_not,
    "label": lambda x: (x + 1) % 10,
}


def test_each_output_that_is_wrong_is_named():
    served = ServedModel(trained(10)[0], selector(0.0), True)
    verify(served, lambda given: given)
    for name, function in WRONG.items():
        for signature in ("serving_default", "serving_logits"):
            match = f"signature='{signature}', output='{name}', wrong="
            with pytest.raises(RuntimeError, match=match):
                verify(served, with_one(name, function), signature)
    for name, function, match in (
        ("label", lambda x: x + 10, "output='label', wrong="),
        ("label", lambda x: x.astype("int64"), "output='label', expected="),
        ("score", lambda x: x[..., None], "output='score', expected="),
        ("more", lambda x: x, "outputs="),
    ):

        def change(given, name=name, function=function):
            given[name] = function(given.get(name, 0.0))
            return given

        with pytest.raises(RuntimeError, match=match):
            verify(served, change)
    with pytest.raises(RuntimeError, match="'serving_logits', error="):
        verify(served, lambda given: given["absent"], "serving_logits")


def test_rounding_of_another_runtime_is_no_error():
    network, _ = trained(10)
    for model in (network, masked(network, -1e9), masked(network, -np.inf)):
        served = ServedModel(model, selector(0.0), True)
        verify(served, with_one("logits", lambda x: x * (1 + 1e-5)))
        # On the threshold either decision is right, of a tie either class.
        score = served.answers(np.zeros((1, 10), "float32"), True)["score"]
        tied = ServedModel(model, selector(float(score[0])), True)
        probe = verification._probe(
            "a", {}, tied, np.zeros((1, 10), "float32"), True, False
        )
        given = {**probe.expected}
        given["accept"] = ~given["accept"]
        given["label"] = given["label"] + 7
        files = {"a": runner(lambda _, given=given: given)}
        check_answers(files, [probe], float(score[0]))


@pytest.mark.parametrize("value", [-1e9, -np.inf])
def test_a_masked_class_hides_no_error_in_the_others(value):
    model = masked(trained(10)[0], value)
    served = ServedModel(model, selector(0.0), True)
    wrong = with_one("logits", lambda x: np.where(x > -1e3, 1.01 * x, x))
    with pytest.raises(RuntimeError, match="output='logits'"):
        verify(served, wrong)


def test_the_least_float_stands_for_a_logit_of_minus_infinity():
    # As LiteRT gives it.
    least = float(np.finfo("float32").min)
    served = ServedModel(masked(trained(10)[0], -np.inf), selector(0.0), True)
    verify(served, with_one("logits", lambda x: np.maximum(x, least)))


def test_probabilities_next_to_one_are_compared_as_far_as_they_are_known():
    # log(1 - p) of p = 1 - 6e-8 is -17, of p = 1 it is -85.
    probs = np.array([[1.0], [0.7]], "float32")
    layers = [keras.Input((1,)), keras.layers.Identity()]
    served = ServedModel(keras.Sequential(layers), selector(0.0, 3.0), False)
    probe = verification._probe("a", {}, served, probs, False, False)
    below = np.nextafter(probs, np.float32(0))
    given = served.answers(below)
    assert np.abs(given["score"] - probe.expected["score"])[0] > 10
    check_answers({"a": runner(lambda _: given)}, [probe], 0.0)
    given["score"][1] += 5e-3
    with pytest.raises(RuntimeError, match="output='score'"):
        check_answers({"a": runner(lambda _: given)}, [probe], 0.0)


def test_every_signature_is_probed_with_two_batches():
    served = ServedModel(segmenter(4, side=8), selector(0.0), True)
    images = ImageReader(served.inputs, keras.layers.Rescaling(1 / 255), None)
    batches = {}
    for probe in verification.probes(served, None, images):
        (given,) = probe.inputs.values()
        assert len(probe.expected["logits"]) == len(given)
        batches.setdefault(probe.signature, []).append(len(given))
    names = ("serving_default", "serving_logits", "serving_bytes")
    assert batches == dict.fromkeys(names, [2, 1])


# Files, of which nothing is kept.


@pytest.mark.slow
@pytest.mark.parametrize("made", FORMATS)
def test_a_file_that_answers_otherwise_is_not_kept(tmp_path, monkeypatch, made):
    model, _ = trained(10)
    right = FORMATS[made]

    def write_other(served, path, images):
        other = selector(0.0, temperature=2.6)
        right.write(ServedModel(served.network, other, True), path, images)

    wrong = right._replace(write=write_other)
    monkeypatch.setitem(formats.FORMATS, made, wrong)
    with pytest.raises(RuntimeError, match="as the model.*output='logits'"):
        kc.export(model, tmp_path / "m", selector=selector(0.0), format=made)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("made", FORMATS)
def test_a_file_that_is_cut_off_is_not_kept(tmp_path, monkeypatch, made):
    model, _ = trained(10)
    right = FORMATS[made]

    def write_half(served, path, images):
        right.write(served, path, images)
        file = path / "saved_model.pb" if path.is_dir() else path
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    monkeypatch.setitem(formats.FORMATS, made, right._replace(write=write_half))
    with pytest.raises(RuntimeError, match="cannot be loaded"):
        kc.export(model, tmp_path / "m", format=made)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_batch_size_that_is_fixed_in_the_file_is_found(tmp_path, monkeypatch):
    import tensorflow as tf

    model, _ = trained(3)

    def write(served, path, images):
        archive = keras.export.ExportArchive()
        archive.track(served.model)
        archive.add_endpoint(
            "serving_default",
            lambda inputs: served.model({"inputs": inputs}, training=False),
            [tf.TensorSpec((2, 4), name="inputs")],
        )
        archive.write_out(path, verbose=False)

    wrong = FORMATS["savedmodel"]._replace(write=write)
    monkeypatch.setitem(formats.FORMATS, "savedmodel", wrong)
    with pytest.raises(RuntimeError, match="answer as the model does"):
        kc.export(model, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_an_interval_that_is_wrong_is_named():
    model, x = trained(2)
    logits = array(model(x))
    labels = (np.diff(logits)[:, 0] > 0) * 1
    labels[::5] = 1 - labels[::5]
    venn = kc.VennAbers().fit(labels, logits, num_folds=0)
    chosen = kc.SelectiveClassifier(calibrator=venn, threshold=0.0)
    served = ServedModel(model, chosen, True)
    verify(served, lambda given: given)
    for name in ("probability_low", "probability_high"):
        with pytest.raises(RuntimeError, match=f"output='{name}', wrong="):
            verify(served, with_one(name, lambda x: x + 0.01))

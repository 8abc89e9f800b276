"""Tasks of KerasHub, from raw texts and images to an exported file."""

import subprocess
import sys

import hub_tasks
import keras
import numpy as np
import pytest
from cases import BACKEND
from exported import answers

import keras_calib as kc

pytestmark = [
    pytest.mark.skipif(
        BACKEND != "tensorflow", reason="export needs TensorFlow"
    ),
    pytest.mark.slow,
    hub_tasks.NEEDS_HUB,
]
COUNT = 40
SCALING = kc.TemperatureScaling(temperature=0.5)
TASKS = {
    "text": (hub_tasks.text_classifier, hub_tasks.texts(COUNT)),
    "images": (hub_tasks.image_classifier, hub_tasks.images(COUNT)),
    "pixels": (hub_tasks.segmenter, hub_tasks.images(COUNT)),
}


@pytest.fixture(
    scope="module",
    params=TASKS,
)
def made(request, tmp_path_factory):
    """A task with raw inputs, noisy labels, a selector and its file."""
    make, x = TASKS[request.param]
    task = make()
    task.compile(
        keras.optimizers.SGD(0.0),
        kc.MbLS(from_logits=True),
        metrics=[kc.ECE(from_logits=True)],
        jit_compile=False,
    )
    outputs = task.predict(x, verbose=0)
    labels = outputs.argmax(-1)
    noise = np.random.default_rng(1).random(labels.shape) < 0.2
    labels = np.where(noise, (labels + 1) % outputs.shape[-1], labels)
    # In the middle, so that answers differ.
    scores = kc.SelectiveClassifier(calibrator=SCALING, threshold=0.0)
    threshold = float(np.median(scores(outputs)["score"]))
    selector = kc.SelectiveClassifier(calibrator=SCALING, threshold=threshold)
    path = tmp_path_factory.mktemp("hub") / request.param
    kc.export(task, path, selector=selector)
    return task, x, labels, outputs, selector, path


def test_raw_inputs_train_calibrate_select_and_report(made):
    task, x, labels, outputs, *_ = made
    wanted = kc.ece(
        labels.ravel(), outputs.reshape(-1, outputs.shape[-1]), from_logits=True
    )
    values = task.evaluate(x, labels, verbose=0, return_dict=True)
    assert abs(values["ece"] - wanted) < 1e-6
    fitted = kc.TemperatureScaling().fit(labels, outputs)
    for data in ((x, labels), [(x[:20], labels[:20]), (x[20:], labels[20:])]):
        found = kc.TemperatureScaling().fit_on(task, data, verbose=0)
        # Of images as `predict` resizes them, without rounding.
        assert abs(found.temperature / fitted.temperature - 1) < 1e-4
    selector = kc.SelectiveClassifier(calibrator=fitted)
    selector.fit_on(task, (x, labels), coverage=0.5, verbose=0)
    assert abs(selector.chosen.coverage - 0.5) < 0.1
    page = kc.report(task, (x, labels), selector=selector, verbose=0)
    assert abs(page.results["model"]["metrics"]["ece"]["value"] - wanted) < 1e-6
    # Normalization learns even at a rate of 0, and others read the task.
    before = task.get_weights()
    history = task.fit(x, labels, batch_size=20, verbose=0).history
    task.set_weights(before)
    assert 0 < history["ece"][0] < 1


def test_a_file_takes_what_the_task_takes(made):
    _, x, _, outputs, selector, path = made
    name = path.name.replace("pixels", "images")
    wanted = {k: np.asarray(v) for k, v in selector(outputs).items()}
    for rows in (slice(0, 1), slice(COUNT)):
        x_rows = np.asarray(x[rows])
        if name == "images":
            x_rows = x_rows.astype("float32")
        found = answers(path, **{name: x_rows})
        assert set(found) == set(wanted)
        for key in ("logits", "confidence", "score"):
            np.testing.assert_allclose(found[key], wanted[key][rows], atol=1e-4)
        np.testing.assert_array_equal(found["label"], wanted["label"][rows])
    assert 0 < found["accept"].mean() < 1


def test_encoded_images_of_any_size_are_answered_as_predict_does(made):
    task, x, _, _, selector, path = made
    if path.name == "text":
        pytest.skip("a task of texts")
    import tensorflow as tf

    images = [x[0], x[1, :, :12], x[2].repeat(2, axis=0)]
    files = np.array([tf.io.encode_png(v).numpy() for v in images], object)
    found = answers(path, signature="serving_bytes", image_bytes=files)
    for i, image in enumerate(images):
        outputs = task.predict(image[None].astype("float32"), verbose=0)
        wanted = np.asarray(selector(outputs)["logits"][0])
        np.testing.assert_allclose(found["logits"][i], wanted, atol=1e-4)


def test_another_process_needs_plain_tensorflow_alone(made):
    _, x, _, outputs, selector, path = made
    wanted = np.asarray(selector(outputs)["accept"])[:4].tolist()
    code = f"""
import sys
import tensorflow as tf
if {path.name == "text"}:
    import tensorflow_text
loaded = tf.saved_model.load({str(path)!r})
x = {np.asarray(x[:4]).tolist()!r}
answers = loaded.signatures["serving_default"](
    tf.constant(x, tf.string if {path.name == "text"} else tf.float32)
)
assert answers["accept"].numpy().tolist() == {wanted}
assert not {{"keras_hub", "keras_calib"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_two_texts_are_two_inputs(tmp_path):
    task = hub_tasks.text_classifier()
    pair = (["the film", "dull"], ["was good", "not bad"])
    ones, twos = map(np.array, pair)
    for names in (["text_1"], ["text_1", "text_3"]):
        with pytest.raises(ValueError, match="a tuple of lists of texts, or"):
            kc.export(
                task,
                tmp_path / "pairs",
                sample_inputs=dict.fromkeys(names, ones),
            )
    samples = {"text_2": twos, "text_1": ones}
    kc.export(task, tmp_path / "pairs", sample_inputs=samples)
    found = answers(tmp_path / "pairs", text_1=ones, text_2=twos)
    wanted = task.predict(pair, verbose=0)
    np.testing.assert_allclose(found["logits"], wanted, atol=1e-5)


def test_a_network_without_preprocessor_is_exported_alone(tmp_path):
    task = hub_tasks.image_classifier()
    alone = keras.Model(task.input, task.output)
    kc.export(alone, tmp_path / "alone", from_logits=True)
    for preprocessor in (
        None,
        hub_tasks.keras_hub().models.ViTImageClassifierPreprocessor(),
    ):
        task.preprocessor = preprocessor
        kc.export(task, tmp_path / "task", overwrite=True)
        x = np.ones((2, hub_tasks.SIDE, hub_tasks.SIDE, 3), "float32")
        one = answers(tmp_path / "alone", images=x)
        other = answers(tmp_path / "task", images=x)
        np.testing.assert_allclose(one["logits"], other["logits"], atol=1e-5)


def test_preprocessing_that_a_file_cannot_hold_is_refused(
    tmp_path, monkeypatch
):
    task = hub_tasks.image_classifier()
    with pytest.raises(ValueError, match="`format` must be 'savedmodel'"):
        kc.export(task, tmp_path / "model.onnx")
    task.preprocessor = keras.layers.Rescaling(1 / 255)
    with pytest.raises(ValueError, match="by a preprocessor of KerasHub"):
        kc.export(task, tmp_path / "model")
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(ImportError, match=r"keras-calib\[hub\]"):
        kc.export(hub_tasks.text_classifier(), tmp_path / "model")
    assert not list(tmp_path.iterdir())

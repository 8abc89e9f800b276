"""Export of a selector with costs: the cheapest answer and what it costs."""

import numpy as np
import pytest
from cases import BACKEND, array
from exported import answers, segmenter, trained

import keras_calib as kc
from keras_calib.exporting.formats import Runner
from keras_calib.exporting.served_model import ServedModel
from keras_calib.exporting.verification import check_answers, probes

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)


def made(num_classes, threshold, scale=1.0):
    rng = np.random.default_rng(0)
    costs = rng.integers(1, 9, (num_classes, num_classes)).astype("float64")
    costs[0] *= 7.0
    np.fill_diagonal(costs, 0.0)
    scaling = kc.TemperatureScaling(temperature=0.5)
    return kc.SelectiveClassifier(
        calibrator=scaling, costs=scale * costs, threshold=scale * threshold
    )


@pytest.mark.parametrize(
    "format",
    [
        "onnx",
        pytest.param("savedmodel", marks=pytest.mark.slow),
        pytest.param("litert", marks=pytest.mark.slow),
    ],
)
def test_every_format_gives_the_cheapest_answer(tmp_path, format):
    model, x = trained(10)
    selector = made(10, -1.5)
    wanted = {k: array(v) for k, v in selector(model(x)).items()}
    assert 0 < wanted["accept"].mean() < 1
    assert (wanted["label"] != wanted["logits"].argmax(axis=-1)).any()
    path = kc.export(model, tmp_path / "m", selector=selector, format=format)
    given = answers(path, format, x=x)
    assert set(given) == set(wanted)
    for name, value in wanted.items():
        assert given[name].dtype == value.dtype
        np.testing.assert_allclose(given[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_pixels_have_expected_costs(tmp_path):
    model = segmenter(3, side=8)
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    selector = made(3, -2.0)
    wanted = array(selector(model(x))["expected_cost"])
    for format in ("onnx", "litert"):
        path = tmp_path / format
        kc.export(
            model, path, selector=selector, format=format, from_logits=True
        )
        given = answers(path, format, x=x)["expected_cost"]
        np.testing.assert_allclose(given, wanted, rtol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_a_file_with_another_cost_or_answer_is_found(scale):
    model, _ = trained(10)
    served = ServedModel(model, made(10, -1.5, scale), True)
    facts = served.selector.threshold, served.selector.costs
    asked = tuple(probes(served))

    def verify(**change):
        def run(inputs, from_logits=None):
            given = served.answers(inputs, from_logits)
            for name, function in change.items():
                given[name] = function(given[name])
            return given

        files = {
            "serving_default": Runner(
                {}, (), lambda given: run(served.outputs(given))
            ),
            "serving_logits": Runner(
                {}, (), lambda given: run(given["logits"], True)
            ),
        }
        check_answers(files, asked, *facts)

    verify()
    for name, function in {
        "expected_cost": lambda x: 1.1 * x,
        "label": lambda x: (x + 1) % 10,
        "confidence": lambda x: x + 0.01,
        "score": lambda x: 1.1 * x,
    }.items():
        with pytest.raises(RuntimeError, match=f"output='{name}', wrong="):
            verify(**{name: function})

"""Export: what a written file is asked, and what may differ."""

import keras
import numpy as np
import pytest
from cases import BACKEND
from exported import segmenter
from exported import selector
from exported import trained

import keras_calib as kc
from keras_calib.exporting import formats
from keras_calib.exporting import probes as asking
from keras_calib.exporting.savedmodel import ImageReader
from keras_calib.exporting.served_model import ServedModel

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)


def masked(network, value):
    """A network of ten classes of which the last two are masked."""
    offset = [0.0] * 8 + [value] * 2
    layers = [*network.layers, keras.layers.Rescaling(1.0, offset)]
    return keras.Sequential([keras.Input((4,)), *layers])


@pytest.mark.parametrize("value", [-1e9, -np.inf])
def test_a_masked_class_hides_no_error_in_the_others(
    tmp_path, monkeypatch, value
):
    network, _ = trained(10)
    model = masked(network, value)
    right = formats.FORMATS["savedmodel"]

    def write_other(served, path, images):
        kernel, bias = network.get_weights()
        network.set_weights([1.01 * kernel, bias])
        right.write(served, path, images)
        network.set_weights([kernel, bias])

    wrong = right._replace(write=write_other)
    monkeypatch.setitem(formats.FORMATS, "savedmodel", wrong)
    match = "signature='serving_default', output='logits'"
    with pytest.raises(RuntimeError, match=match):
        kc.export(model, tmp_path / "m", selector=selector(0), from_logits=True)
    monkeypatch.setitem(formats.FORMATS, "savedmodel", right)
    kc.export(model, tmp_path / "m", selector=selector(0), from_logits=True)


def test_the_scale_of_a_row_is_that_of_classes_with_a_probability():
    rows = [[-1e9, 3, -4], [-np.inf, 2, 200], [0.5, -0.25, 0], [-1e9] * 3]
    given = asking.scales(np.array(rows, "float32"))
    # The least is that of most rows: (4 + 200) / 2.
    wanted = [[1e9, 102, 102], [200] * 3, [102] * 3, [1e9] * 3]
    np.testing.assert_allclose(given, wanted)
    assert given.dtype == np.float32
    assert (asking.scales(np.zeros((2, 3), "float32")) > 0).all()
    nothing = np.full((2, 3), np.nan, "float32")
    assert (asking.scales(nothing) > 0).all()


@pytest.mark.parametrize(("large", "sizes"), [(384, (3, 1)), (255, (2, 1))])
def test_every_signature_is_asked_twice_with_fewer_samples_if_large(
    monkeypatch, large, sizes
):
    monkeypatch.setattr(asking, "_LARGE", large)
    served = ServedModel(segmenter(4, side=8), selector(0.0), True)
    images = ImageReader(served, keras.layers.Rescaling(1 / 255), None)
    batches = {}
    for question in asking.questions(served, None, images):
        (given,) = question.inputs.values()
        assert len(question.expected["logits"]) == len(given)
        batches.setdefault(question.signature, []).append(len(given))
    assert batches == {
        "serving_default": list(sizes),
        "serving_logits": list(sizes),
        "serving_bytes": [2, 1],
    }

"""Files accept nothing without a finite confidence, by any score."""

import keras
import pytest
from cases import BACKEND, CALIBRATORS
from exported import answers
from unsound import LABELS, LOGITS, ROWS, check

import keras_calib as kc
from keras_calib.formulas.scores import SCORE_NAMES


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="export needs TensorFlow")
@pytest.mark.parametrize("made", ["savedmodel", "onnx", "litert"])
def test_no_file_accepts_a_row_without_confidence(tmp_path, made):
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Identity()(inputs))
    options = {"from_logits": True, "format": made}
    parts = [
        {"score": name, "calibrator": kc.TemperatureScaling(temperature=2.0)}
        for name in SCORE_NAMES
    ]
    for case in CALIBRATORS:
        if case.cls not in {type(x["calibrator"]) for x in parts}:
            made_one = case.make()
            made_one.fit(LABELS, LOGITS, num_folds=0, force=True)
            parts.append({"score": "msp", "calibrator": made_one})
    for place, part in enumerate(parts):
        selector = kc.SelectiveClassifier(threshold=-1e30, **part)
        path = tmp_path / str(place)
        kc.export(model, path, selector=selector, **options)
        given = answers(path, made, x=ROWS)
        try:
            check(given)
        except AssertionError as error:
            raise AssertionError(part) from error

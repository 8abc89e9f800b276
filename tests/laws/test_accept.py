"""What is accepted has a finite confidence, and logits that are logits."""

import numpy as np
import pytest
from cases import BACKEND
from cases import CALIBRATORS
from cases import array
from keras import ops
from refusals import compiled
from unsound import LABELS
from unsound import LOGITS
from unsound import ROWS
from unsound import SOUND
from unsound import check

import keras_calib as kc
from keras_calib.formulas.scores import SCORE_NAMES
from keras_calib.reporting.answer_thresholds import AnswerThreshold

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(x, id=str(x), marks=pytest.mark.slow if x.needs else ())
        for x in CALIBRATORS
    ],
)
def test_no_calibrator_lets_a_row_without_confidence_pass(case):
    if not case.can_fit:
        pytest.skip(f"needs {case.needs}")
    calibrator = case.make().fit(LABELS, LOGITS, num_folds=0, force=True)
    # Eager intervals refuse NaN.
    rows = ~np.isnan(ROWS).any(-1) if case.cls is kc.VennAbers else slice(None)
    for score in ("msp", "neg_energy"):
        selector = kc.SelectiveClassifier(
            calibrator=calibrator, score=score, threshold=-INF
        )
        check(selector(ROWS[rows]), SOUND[rows])


@pytest.mark.portable
def test_no_score_lets_a_row_without_confidence_pass():
    scores = *SCORE_NAMES, kc.LogitNormalization().fit(LABELS, LOGITS)
    scaling = kc.TemperatureScaling(temperature=2.0)
    for score in scores:
        for calibrator in (None, scaling):
            selector = kc.SelectiveClassifier(
                score=score, calibrator=calibrator, threshold=-INF
            )
            check(selector(ROWS))
    selector = kc.SelectiveClassifier(
        costs=1.0 - np.eye(3, dtype="float32"), threshold=-INF
    )
    check(selector(ROWS))
    # Of a fit, whose threshold is finite.
    selector = kc.SelectiveClassifier().fit(LABELS, LOGITS, risk=0.4)
    check(selector(ROWS))


def test_probabilities_that_are_no_numbers_are_not_accepted():
    odd = (
        [NAN, 0.5, 0.5],
        [NAN] * 3,
        [0] * 3,
        [2, 0, 0],
        [0.5, 0, 0],
        [1, 1, -1],
    )
    probs = np.array([[0.9, 0.1, 0.0], *odd], "float32")
    selector = kc.SelectiveClassifier(threshold=-INF)
    # In compiled code, nothing is refused.
    run = compiled(lambda x: selector.call(x, from_logits=False))
    answers = run(ops.convert_to_tensor(probs))
    check(answers, np.arange(len(probs)) < 1)
    for by in ("label", "example"):
        labels = kc.MultiLabelSelector(by=by)
        labels.fit(LOGITS > 0, LOGITS, coverage=1.0)
        run = compiled(lambda x, part=labels: part.call(x, from_logits=False))
        rows = ops.convert_to_tensor([[0.9, 0.1, 0.2], [1.5, -0.2, 2.0]])
        accept = array(run(rows)["accept"])
        assert accept[0].all() and not accept[1].any()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="sizes are known")
def test_a_graph_need_not_know_the_number_of_classes():
    import tensorflow as tf

    scaling = kc.TemperatureScaling(temperature=2.0)
    selector = kc.SelectiveClassifier(calibrator=scaling, threshold=0.1)
    unknown = tf.TensorSpec([None, None])
    run = tf.function(selector.call, input_signature=[unknown], autograph=False)
    for name, value in selector(LOGITS).items():
        np.testing.assert_allclose(run(LOGITS)[name], value, atol=1e-6)
    assert not array(run(LOGITS[:, :1] + 9)["accept"]).any()


def test_no_group_takes_a_row_without_confidence():
    groups = np.arange(150) % 2
    selector = kc.SelectiveClassifier()
    selector.fit(LABELS, LOGITS, risk=0.5, groups=groups)
    for group in (0, 1):
        check(selector(ROWS, groups=np.full(len(ROWS), group)))


@pytest.mark.portable
def test_no_label_without_confidence_is_accepted():
    labels = (LOGITS > 0).astype(int)
    calibrator = kc.MultiLabelCalibrator(kc.IsotonicCalibration())
    calibrator.fit(labels, LOGITS, num_folds=0, force=True)
    for by in ("label", "example"):
        for part in (None, calibrator):
            selector = kc.MultiLabelSelector(calibrator=part, by=by)
            selector.fit(labels, LOGITS, coverage=1.0)
            answers = selector(ROWS)
            accept = array(answers["accept"])
            finite = np.isfinite(ROWS)
            if by == "example":
                finite = finite.all(-1)
            assert accept[0].all() and not accept[~finite].any()


def test_no_box_without_confidence_is_kept():
    confidence = np.array([[0.9, NAN, INF, -INF, NAN, 0.8]], "float32")
    boxes = {
        "boxes": np.zeros((1, 6, 4), "float32"),
        "labels": np.zeros((1, 6), "int32"),
        "confidence": confidence,
    }
    found = kc.DetectionSelector(threshold=0.5, max_boxes=2)(boxes)
    kept = array(found["confidence"])[0, :2]
    np.testing.assert_allclose(kept, [0.9, 0.8])
    boxes["confidence"] = np.array([[0.9, 1.5, 0.1, 0.2, 0.3, 0.8]], "float32")
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        kc.DetectionSelector(threshold=0.5)(boxes)


def test_an_answer_without_confidence_is_refused():
    facts = {"answer_threshold": 1, "threshold": 0.5}
    for column, values in (
        ("confidence", (NAN, INF, -INF, 3e38, 1.5)),
        ("score", (NAN, INF, -INF)),
    ):
        answer = AnswerThreshold({**facts, "column": column})
        for value in values:
            with pytest.raises(ValueError, match="must be"):
                answer([0.9, value])

"""What is accepted has a finite confidence, and logits that are logits."""

import keras
import numpy as np
import pytest
from cases import BACKEND, CALIBRATORS, array
from keras import ops
from refusals import compiled
from unsound import LABELS, LOGITS, ROWS, SOUND, check

import keras_calib as kc
from keras_calib.exporting.answer_threshold import answer_statement
from keras_calib.formulas.scores import SCORE_NAMES
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.selection.rules import accepted

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
        labels = kc.labels.MultiLabelSelector(by=by)
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
    calibrator = kc.labels.MultiLabelCalibrator(kc.IsotonicCalibration())
    calibrator.fit(labels, LOGITS, num_folds=0, force=True)
    for by in ("label", "example"):
        for part in (None, calibrator):
            selector = kc.labels.MultiLabelSelector(calibrator=part, by=by)
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
    found = kc.detection.DetectionSelector(threshold=0.5, max_boxes=2)(boxes)
    kept = array(found["confidence"])[0, :2]
    np.testing.assert_allclose(kept, [0.9, 0.8])
    boxes["confidence"] = np.array([[0.9, 1.5, 0.1, 0.2, 0.3, 0.8]], "float32")
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        kc.detection.DetectionSelector(threshold=0.5)(boxes)


@pytest.mark.portable
def test_no_compiled_box_without_confidence_is_kept():
    wrong = [NAN, INF, -INF, 1.5, -0.5, 3e38]
    confidence = np.array([[0.9, *wrong, 0.8, 0.7]], "float32")
    labels = np.array([[0] * 7 + [1, -1]], "int32")
    boxes = {"confidence": confidence, "labels": labels}
    scaling = kc.detection.DetectionScaling(2, coefficients=[[0.5, 0.0]] * 2)
    tensors = {k: ops.convert_to_tensor(v) for k, v in boxes.items()}
    run = compiled(lambda c, k: scaling({"confidence": c, "labels": k}))
    found = array(run(*tensors.values())["confidence"])[0]
    np.testing.assert_allclose(found[[0, 7, 8]], [0.75, 2 / 3, 0.7], atol=1e-6)
    assert np.isnan(found[1:7]).all()
    for calibrator in (None, scaling):
        selector = kc.detection.DetectionSelector(calibrator)
        run = compiled(
            lambda c, k, of=selector: of({"confidence": c, "labels": k})
        )
        found = run(*tensors.values())
        assert array(found["num_detections"]).tolist() == [2]
        assert array(found["labels"])[0].tolist() == [0, 1] + [-1] * 7


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="needs TensorFlow")
def test_no_box_without_confidence_is_kept_by_a_saved_model(tmp_path):
    import tensorflow as tf

    scaling = kc.detection.DetectionScaling(2, coefficients=[[0.5, 0.0]] * 2)
    inputs = {
        "confidence": keras.Input((3,), name="confidence"),
        "labels": keras.Input((3,), dtype="int32", name="labels"),
    }
    model = keras.Model(inputs, kc.detection.DetectionSelector(scaling)(inputs))
    model.export(tmp_path / "boxes", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "boxes")
    boxes = tf.constant([[INF, 0.6, 1.5]]), tf.constant([[0, 1, 0]])
    found = loaded.serve(
        dict(zip(("confidence", "labels"), boxes, strict=True))
    )
    assert found["num_detections"].numpy().tolist() == [1]
    assert found["labels"].numpy().tolist() == [[1, -1, -1]]


def test_an_answer_without_confidence_is_refused():
    chosen = kc.choose_threshold([0.9, 0.1], [1, 0], coverage=0.5)
    facts = {"calibrator": None, "coverage": 0.5, "group": None}
    score, correct = np.array([0.9, 0.1]), np.array([1.0, 0.0])
    for confidence, values in (
        (score, (NAN, INF, -INF, 3e38, 1.5)),
        (None, (NAN, INF, -INF)),
    ):
        log = Outcomes(score=score, correct=correct, confidence=confidence)
        answer = kc.exporting.AnswerThreshold(
            answer_statement(chosen, log, **facts)
        )
        for value in values:
            with pytest.raises(ValueError, match="must be"):
                answer([0.9, value])


def _choices():
    """What each chooser finds, by name, and the rows of the choice."""
    rng = np.random.default_rng(3)
    scores = rng.normal(size=400).astype("float32")
    scores[:40], scores[40:60], scores[60:90] = INF, -INF, 1.0
    correct = (rng.random(400) < 0.85).astype(int)
    groups = rng.integers(0, 2, 400)
    safe = {"risk": 0.3, "delta": 0.2}
    costs = {"largest_cost": 1.0}
    records = scores, correct
    found = {}
    for name, how in (
        ("a risk", {"risk": 0.14}),
        ("no risk", {"risk": 0.0}),
        ("a coverage", {"coverage": 0.6}),
        ("a guarantee", safe),
    ):
        found[name] = kc.choose_threshold(*records, **how)
        found[f"{name} by group"] = kc.choose_threshold(*records, groups, **how)
        layer = kc.SelectiveClassifier().fit_scores(*records, **how)
        found[f"{name} of a layer"] = layer.chosen
    for name, how in (
        ("a price", {"reject_cost": 0.1}),
        ("a mean", {"max_cost": 0.14}),
        ("a sure mean", {"max_cost": 0.3, "delta": 0.2}),
        ("a share", {"coverage": 0.6}),
    ):
        found[name] = kc.choose_threshold(
            scores, cost=1 - correct, **costs, **how
        )
    found["a mixture"] = kc.selection.choose_threshold_for_mixtures(
        *records, groups, **safe
    )
    for method in ("subsampling", "betting"):
        found[method] = kc.selection.choose_threshold_for_prior(
            *records, groups, target_prior=[0.5, 0.5], method=method, **safe
        )
    for name in ("coverage", "recall", "risk"):
        targets = {name: 0.3}
        found[name] = kc.selection.control_risks(*records, targets, delta=0.2)
    return found, (scores, correct, groups)


def test_a_coverage_is_the_share_that_its_threshold_accepts():
    choices, (scores, correct, groups) = _choices()
    for name, chosen in choices.items():
        cut = np.asarray(chosen.threshold, "float32")
        cut = cut[groups] if cut.ndim else cut
        accept = array(accepted(scores, cut, np.zeros((400, 2), "float32")))
        assert accept.sum() > 0 and not accept[:60].any(), name
        share, risk = accept.mean(), 1.0 - correct[accept].mean()
        if name in ("subsampling", "betting"):
            by_class = [accept[groups == k].mean() for k in (0, 1)]
            share, risk = np.mean(by_class), chosen.risk
        np.testing.assert_allclose(chosen.coverage, share, err_msg=name)
        if name not in ("coverage", "recall", "risk"):
            np.testing.assert_allclose(chosen.risk, risk, err_msg=name)
    recall = choices["recall"]
    hits = accepted(scores, recall.threshold, np.zeros((400, 2), "float32"))
    hits = array(hits)[correct == 1].mean()
    np.testing.assert_allclose(recall.facts["estimates"]["recall"], hits)


def test_a_threshold_of_infinity_rejects_everything():
    found = kc.choose_threshold(
        [INF, 1, 2, 3], [1, 0, 1, 1], [0, 0, 1, 1], risk=0.0
    )
    assert found.threshold == (INF, -INF) and found.accepts == (False, True)
    assert found.group_coverage == (0.0, 1.0) and found.coverage == 0.5
    with pytest.raises(ValueError, match="`risk` is below"):
        kc.choose_threshold([INF, 1, 2, 3], [1, 0, 0, 0], risk=0.0)
    with pytest.raises(ValueError, match="share of finite scores"):
        kc.choose_threshold([INF, 1, 2, 3], [1, 0, 0, 0], coverage=0.8)
    with pytest.raises(ValueError, match="not all be infinite"):
        kc.choose_threshold([INF, -INF], [1, 0], risk=0.0)
    sure = np.array([[0.0, -INF, -INF]], "float32")
    rejecting = kc.SelectiveClassifier(threshold=INF)
    assert not array(rejecting(sure)["accept"]).any()


@pytest.mark.portable
def test_a_fit_counts_what_its_layer_accepts_of_classes_left_alone():
    logits = LOGITS.copy()
    logits[:20, 1:] = -INF
    labels = np.where(np.arange(len(logits)) < 20, 0, LABELS)

    def infinite(z):
        top = ops.max(z, axis=-1)
        return ops.where(top > 1.0, ops.full_like(top, INF), top)

    for score in (*SCORE_NAMES, infinite):
        for target in ({"coverage": 0.1}, {"risk": 0.4}):
            selector = kc.SelectiveClassifier(score=score)
            selector.fit(labels, logits, **target)
            accept = array(selector(logits)["accept"])
            assert accept.any()
            np.testing.assert_allclose(selector.chosen.coverage, accept.mean())

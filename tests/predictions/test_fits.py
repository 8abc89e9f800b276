"""Whatever is fitted takes `Predictions`, and remembers their kind."""

import pickle

import keras
import numpy as np
import pytest
from cases import BACKEND, array, softmax
from report_pages import results_alone

import keras_calib as kc
from keras_calib.predictions.columns import is_mapped

portable = pytest.mark.portable
rng = np.random.default_rng(0)
LOGITS = 3.0 * rng.normal(size=(400, 3)).astype("float32")
LABELS = (LOGITS / 2 + rng.gumbel(size=LOGITS.shape)).argmax(-1)
SITE = np.where(LOGITS[:, 0] > 0, "a", "b")
GIVEN = kc.Predictions(
    LABELS, LOGITS, from_logits=True, groups={"site": SITE}, ids=np.arange(400)
)
OF_PROBS = kc.Predictions(LABELS, GIVEN.probs, groups={"site": SITE})
SEVERAL = kc.Predictions(
    (LOGITS > 0) ^ (rng.random(LOGITS.shape) < 0.1),
    LOGITS,
    from_logits=True,
    multi_label=True,
)
LOG = kc.Predictions(correct=GIVEN.correct, confidence=GIVEN.confidence)
TARGET = {"risk": 0.3, "delta": 0.1}


def thresholds(chosen):
    return np.ravel(chosen.threshold)


# What a function makes of `Predictions`, and of the same arrays.
PAIRS = {
    "temperature": (
        lambda p: kc.TemperatureScaling().fit(p).temperature,
        lambda y, z, **how: (
            kc.TemperatureScaling().fit(y, z, **how).temperature
        ),
    ),
    "score": (
        lambda p: array(kc.selection.LogitNormalization().fit(p)(LOGITS)),
        lambda y, z: array(kc.selection.LogitNormalization().fit(y, z)(LOGITS)),
    ),
    "choice": (
        lambda p: kc.choose_calibrator(p, num_folds=2).candidates[1].nll,
        lambda y, z: kc.choose_calibrator(y, z, num_folds=2).candidates[1].nll,
    ),
    "selector": (
        lambda p: kc.SelectiveClassifier().fit(p, **TARGET).threshold,
        lambda y, z: kc.SelectiveClassifier().fit(y, z, **TARGET).threshold,
    ),
    "groups": (
        lambda p: (
            kc.SelectiveClassifier().fit(p, groups="site", **TARGET).threshold
        ),
        lambda y, z: (
            kc.SelectiveClassifier().fit(y, z, groups=SITE, **TARGET).threshold
        ),
    ),
}


@portable
@pytest.mark.parametrize("name", PAIRS)
def test_predictions_are_taken_as_their_arrays(name):
    of_predictions, of_arrays = PAIRS[name]
    np.testing.assert_array_equal(
        of_predictions(GIVEN), of_arrays(LABELS, LOGITS)
    )


SCORED = {
    "choose_threshold": (kc.choose_threshold, {}),
    "choose_threshold, by group": (
        kc.choose_threshold,
        {"groups": "site"},
    ),
    "choose_threshold_for_mixtures": (
        kc.selection.choose_threshold_for_mixtures,
        {"groups": "site"},
    ),
    "choose_threshold_for_prior": (
        kc.selection.choose_threshold_for_prior,
        {"target_prior": [0.3, 0.3, 0.4]},
    ),
}


@pytest.mark.parametrize("name", SCORED)
def test_thresholds_are_those_of_scores_and_correctness(name):
    choose, how = SCORED[name]
    arrays = {"groups": SITE} if "groups" in how else how
    if "target_prior" in how:
        arrays = {**how, "labels": LABELS}
    found = choose(OF_PROBS, **how, **TARGET)
    expected = choose(OF_PROBS.confidence, OF_PROBS.correct, **arrays, **TARGET)
    np.testing.assert_array_equal(thresholds(found), thresholds(expected))


def test_a_log_is_enough_where_scores_and_correctness_are():
    whole = kc.choose_threshold(OF_PROBS, **TARGET)
    assert kc.choose_threshold(LOG, **TARGET).coverage == whole.coverage
    pilot = {"risk": 0.3, "max_samples": 300}
    scores = LOG.confidence, LOG.correct
    found = kc.plan(pilot=LOG, **pilot)
    assert found.samples == kc.plan(pilot=scores, **pilot).samples
    targets = {"risk": 0.3, "coverage": 0.3}
    found = kc.selection.control_risks(LOG, limits=targets)
    assert (
        found.threshold
        == kc.selection.control_risks(*scores, targets).threshold
    )
    scaling = kc.AffineScaling().fit(LOG)
    repaired = scaling.calibrate(LOG)
    assert repaired.kind == "records"
    np.testing.assert_allclose(
        repaired.confidence.mean(), LOG.correct.mean(), atol=0.01
    )


@portable
@pytest.mark.parametrize("given", [GIVEN, OF_PROBS], ids=["logits", "probs"])
def test_calibrated_predictions_are_those_of_a_call(given):
    scaling = kc.VectorScaling().fit(given)
    found = scaling.calibrate(given)
    assert found.from_logits
    np.testing.assert_allclose(
        found.outputs, array(scaling(given.outputs)), atol=1e-6
    )
    np.testing.assert_array_equal(found.groups["site"], SITE)
    total = np.exp(found.outputs).sum(-1)
    assert np.allclose(total, 1.0, atol=1e-5) != given.from_logits
    of_labels = kc.MultiLabel(kc.AffineScaling()).fit(SEVERAL)
    found = of_labels.calibrate(SEVERAL)
    assert found.multi_label
    np.testing.assert_allclose(found.outputs, array(of_labels(LOGITS)))


SCALING = kc.TemperatureScaling(temperature=2.0)
OF_LABELS = kc.MultiLabel(kc.TemperatureScaling())
CORRECTION = kc.PriorCorrection(
    [0.4, 0.3, 0.3], [0.3, 0.3, 0.4], calibrator=SCALING
)
SELECTOR = kc.SelectiveClassifier(calibrator=SCALING, threshold=1.0)
# What would apply a calibrator to predictions.
APPLIED = {
    "calibrate": (SCALING, lambda p: SCALING.calibrate(p[:9])),
    "call": (SCALING, lambda p: SELECTOR(p)),
    "outer": (SCALING, lambda p: CORRECTION.calibrate(p)),
    "inner": (CORRECTION, lambda p: SCALING.calibrate(p)),
    "fit": (SCALING, lambda p: SELECTOR.fit(p.as_logits(), coverage=0.5)),
    "monitor": (
        SCALING,
        lambda p: kc.Monitor(risk=0.1).update(p.split(0.5)[1], SELECTOR),
    ),
    "report": (SCALING, lambda p: kc.report(p, selector=SELECTOR)),
    "labels": (
        OF_LABELS,
        lambda p: kc.labels.MultiLabelSelector(calibrator=OF_LABELS).fit(
            p, risk=0.1
        ),
    ),
}


@portable
@pytest.mark.parametrize("name", APPLIED)
def test_no_fit_calibrates_twice(name):
    calibrator, apply = APPLIED[name]
    given = GIVEN
    if name == "labels":
        given, calibrator = SEVERAL, calibrator.fit(SEVERAL)
    calibrated = pickle.loads(pickle.dumps(calibrator.calibrate(given)))
    with pytest.raises(ValueError, match="has calibrated them already"):
        apply(calibrated)


def test_another_fit_may_calibrate_what_is_calibrated():
    calibrated = SCALING.calibrate(LOG)
    other = kc.AffineScaling().fit(calibrated)
    assert other.calibrate(calibrated).kind == "records"
    again = kc.TemperatureScaling().fit(GIVEN)
    calibrated = again.calibrate(GIVEN)
    again.fit(calibrated).calibrate(calibrated)
    fresh = kc.SelectiveClassifier(calibrator=kc.TemperatureScaling())
    fresh.fit(calibrated, tune_fraction=0.5, coverage=0.5)
    kc.Monitor(risk=0.5).update(calibrated, fresh)


def test_a_batch_at_a_time_gives_the_same():
    parts = (
        (LABELS[i : i + 90], LOGITS[i : i + 90]) for i in range(0, 400, 90)
    )
    on_disk = kc.Predictions.of_batches(
        parts, from_logits=True, groups={"site": SITE}
    )
    assert is_mapped(on_disk.outputs)
    expected = kc.TemperatureScaling().fit(GIVEN)
    found = kc.TemperatureScaling().fit(on_disk)
    assert found.temperature == expected.temperature
    for fraction in (None, 0.5):
        both = [
            kc.SelectiveClassifier(calibrator=unfitted).fit(
                p, tune_fraction=fraction, risk=0.3
            )
            for p in (on_disk, GIVEN)
            for unfitted in [kc.TemperatureScaling() if fraction else found]
        ]
        assert both[0].chosen == both[1].chosen
    some = on_disk[LABELS == 1]
    assert is_mapped(some.outputs)
    np.testing.assert_array_equal(some.outputs, LOGITS[LABELS == 1])
    assert is_mapped(found.calibrate(some).outputs)


def test_labels_of_batches_may_be_names():
    names = ["cat", "dog", "eel"]
    batch = np.array(names)[LABELS % 3], LOGITS[:, :3]
    p = kc.Predictions.of_batches([batch] * 2, class_names=names)
    np.testing.assert_array_equal(p.labels, np.tile(LABELS % 3, 2))


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        ([], "must hold a row"),
        ([(LABELS,)], "each batch must be"),
        ([(LABELS, LOGITS[:5])], "have one length"),
        ([(LABELS, LOGITS), (LABELS, LOGITS[:, :2])], "number of classes"),
    ],
)
def test_batches_that_do_not_fit_are_refused(batches, told):
    with pytest.raises(ValueError, match=told):
        kc.Predictions.of_batches(batches, from_logits=True)


def test_what_is_told_twice_or_of_another_kind_is_refused():
    scaling, weight = kc.TemperatureScaling(), np.ones(400)
    for told in (
        {"logits": LOGITS},
        {"from_logits": False},
        {"sample_weight": weight},
        {"ignore_class": 1},
    ):
        with pytest.raises(
            TypeError, match=f"`{[*told][0]}` must not be given"
        ):
            scaling.fit(GIVEN, **told)
    with pytest.raises(TypeError, match="`sample_weight` must not be given"):
        kc.choose_threshold(GIVEN, risk=0.1, sample_weight=weight)
    with pytest.raises(ValueError, match=r"take `MultiLabel\("):
        scaling.fit(SEVERAL)
    with pytest.raises(ValueError, match="leave `MultiLabel` out"):
        kc.MultiLabel(scaling).fit(GIVEN)
    with pytest.raises(ValueError, match=r"names=\['site'\]"):
        kc.SelectiveClassifier().fit(GIVEN, risk=0.1, groups="place")
    votes = kc.Predictions(
        np.eye(3)[LABELS], LOGITS, votes=True, from_logits=True
    )
    with pytest.raises(ValueError, match="take the class of the most votes"):
        kc.choose_threshold(votes, risk=0.1)
    assert scaling.fit(votes).temperature == pytest.approx(
        kc.TemperatureScaling().fit(GIVEN).temperature, rel=1e-5
    )


def test_a_guarantee_needs_one_row_of_each_unit():
    units = np.arange(400) // 4
    alike = kc.Predictions(LABELS, LOGITS, from_logits=True, units=units)
    for promise in (kc.choose_threshold, kc.SelectiveClassifier().fit):
        with pytest.raises(ValueError, match="one row of each unit"):
            promise(alike, **TARGET)
        promise(alike, risk=0.3)
        promise(alike[::4], risk=0.45, delta=0.2)


def network(last):
    keras.utils.set_random_seed(0)
    layers = [keras.Input((3,)), keras.layers.Identity()]
    # The last layer does not tell what it returns.
    layers.append(keras.layers.Lambda(last, output_shape=(3,)))
    return keras.Sequential(layers)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="export needs TensorFlow")
@pytest.mark.parametrize(
    ("last", "from_logits"),
    [(lambda x: x, True), (keras.ops.softmax, False)],
    ids=["logits", "softmax"],
)
def test_from_logits_is_told_once_in_a_whole_walk(
    last, from_logits, tmp_path, monkeypatch
):
    results_alone(monkeypatch)
    data = LOGITS, LABELS
    network_ = keras.Sequential([keras.Input((3,)), keras.layers.Identity()])
    if not from_logits:
        network_.add(keras.layers.Softmax())
    outputs = network_.predict(LOGITS, verbose=0)
    model = network(last)
    scaling = kc.TemperatureScaling()
    with pytest.raises(ValueError, match="`from_logits` must be True or False"):
        scaling.fit_on(model, data, verbose=0)
    scaling.fit_on(model, data, from_logits=from_logits, verbose=0)
    again = keras.layers.deserialize(keras.layers.serialize(scaling))
    assert again.from_logits is scaling.from_logits is from_logits
    exact = kc.nll(LABELS, LOGITS / scaling.temperature, from_logits=True)
    found = kc.nll(LABELS, array(again(outputs)), from_logits=True)
    assert found == pytest.approx(exact, abs=1e-5)
    selector = kc.SelectiveClassifier(calibrator=again)
    selector.fit_on(model, data, risk=0.3, verbose=0)
    assert selector.from_logits is from_logits
    answers = selector(outputs)
    np.testing.assert_allclose(
        array(answers["probabilities"]),
        softmax(LOGITS / scaling.temperature),
        atol=1e-5,
    )
    page = kc.report(model, data, selector=selector, verbose=0)
    after = page.results["model"]["calibrated_metrics"]["nll"]["value"]
    assert after == pytest.approx(exact, abs=1e-4)
    path = kc.export(network_, tmp_path / "m.onnx", selector=selector)
    assert path.exists()

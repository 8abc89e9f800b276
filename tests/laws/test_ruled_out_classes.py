"""Classes that a logit of -inf rules out: as if they were not there."""

import warnings

import keras
import numpy as np
import pytest
from cases import BACKEND, CALIBRATORS, METRICS, array, softmax

import keras_calib as kc
from keras_calib.formulas import scores
from keras_calib.text.sequences import sequence_confidence

# Means over all classes, whatever rows rule out.
OF_ALL_CLASSES = (kc.ClasswiseECE,)
# Given strengths that are means over all classes.
OF_ALL_PARAMETERS = (kc.DirichletCalibration,)
# Places of the classes that are left.
LEFT = np.array([0, 2, 3, 5])
NAMES = scores.SCORE_NAMES
# A temperature of 2 lifts one of them above -1e24.
CONVENTIONS = (-np.inf, -1.5e24, float(np.finfo("float32").min))


def sample(n=80, seed=0):
    """Labels and logits of four classes, and of six with two ruled out."""
    rng = np.random.default_rng(seed)
    logits = (3.0 * rng.normal(size=(n, 4))).astype("float32")
    logits[:, 0] += 0.5
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=-1)
    wide = np.full((n, 6), -np.inf, "float32")
    wide[:, LEFT] = logits
    return labels, logits, LEFT[labels], wide


def mixed(n=80):
    """Labels and logits, of which rows rule out different classes."""
    labels, logits, *_ = sample(n)
    low = np.random.default_rng(1).random(logits.shape) < 0.3
    low[np.arange(n), labels] = False
    return labels, np.where(low, -np.inf, logits).astype("float32"), low


@pytest.mark.portable
@pytest.mark.parametrize("case", METRICS, ids=str)
def test_metrics_and_functions_see_the_classes_that_are_left(case):
    labels, logits, of_wide, wide = sample()
    values, exact = [], []
    for y, z in ((labels, logits), (of_wide, wide)):
        metric = case.make(z.shape[-1], from_logits=True)
        metric.update_state(y, z)
        values.append(case.value(metric))
        exact.append(case.exact(y, z, from_logits=True))
    share = 4 / 6 if isinstance(metric, OF_ALL_CLASSES) else 1.0
    np.testing.assert_allclose(values[1], share * values[0], 2e-6, 1e-7)
    if not isinstance(exact[0], dict):
        np.testing.assert_allclose(exact[1], share * np.array(exact[0]), 1e-12)


def test_exact_functions_refuse_what_metrics_refuse():
    labels, logits, low = mixed()
    impossible = low.any(axis=-1)
    ids = np.where(impossible, low.argmax(axis=-1), labels)
    nowhere = np.where(impossible[:, None], -np.inf, logits)
    count = rf".*rows={impossible.sum()}"
    rule = "not rule out the class of a label" + count
    none = "not rule out all classes of a row" + count
    for y, z, told in (
        (ids, logits, rule),
        (labels, nowhere.astype("float32"), none),
    ):
        rows = np.eye(4, dtype="float32")[y]
        for given in (y, rows):
            for function in (
                kc.ece,
                kc.nll,
                kc.functional.classwise_ece,
                kc.aurc,
            ):
                with pytest.raises(ValueError, match=told):
                    function(given, z, from_logits=True)
            with pytest.raises(ValueError, match=rule):
                kc.NLL(from_logits=True).update_state(given, z)
        # Samples that do not count may have any label.
        weight = np.where(impossible, 0.0, 1.0)
        kept = kc.nll(labels[~impossible], z[~impossible], from_logits=True)
        found = kc.nll(y, z, from_logits=True, sample_weight=weight)
        assert found == pytest.approx(kept, rel=1e-12)
        metric = kc.NLL(from_logits=True)
        metric.update_state(y, z, weight)
        assert float(metric.result()) == pytest.approx(kept, rel=1e-6)
    for calibrator in (kc.TemperatureScaling(), kc.VectorScaling()):
        with pytest.raises(ValueError, match=rule):
            calibrator.fit(ids, logits)
    with pytest.raises(ValueError, match=rule):
        kc.SelectiveClassifier().fit(ids, logits, risk=0.1)


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
@pytest.mark.portable
def test_compiled_metrics_leave_out_what_is_ruled_out_and_count_it():
    labels, logits, low = mixed(12)
    ids = np.where(low.any(axis=-1), low.argmax(axis=-1), labels)
    metric = kc.NLL(from_logits=True)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        tf.function(metric.update_state, autograph=False)(ids, logits)
    else:
        import jax

        state = jax.jit(metric.stateless_update_state)(
            metric.stateless_reset_state(), ids, logits
        )
        for variable, value in zip(metric.variables, state, strict=True):
            variable.assign(value)
    assert metric.num_invalid == low.any(axis=-1).sum() > 0
    kept = ~low.any(axis=-1)
    expected = kc.nll(labels[kept], logits[kept], from_logits=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert float(metric.result()) == pytest.approx(expected, rel=1e-6)


def test_a_probability_of_0_is_that_of_1e_37_and_never_refused():
    probs = np.array([[1.0, 0.0], [0.5, 0.5]], "float32")
    assert kc.nll([1, 0], probs) == pytest.approx(
        (85.196 + np.log(2)) / 2, 1e-4
    )
    metric = kc.NLL()
    metric.update_state([1, 0], probs)
    assert float(metric.result()) == pytest.approx(kc.nll([1, 0], probs), 1e-6)
    assert np.isfinite(float(kc.MbLS()([1, 0], probs)))


@pytest.mark.portable
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_classes_that_are_left(name):
    _, logits, low = mixed()
    score = scores.get(name)
    expected = [
        array(score(np.array([row[keep]])))[0]
        for row, keep in zip(logits, ~low, strict=True)
        if keep.sum() > 1
    ]
    alone = low.sum(axis=-1) == 3
    for value in CONVENTIONS:
        given = np.where(low, value, logits).astype("float32")
        for rows in (given, keras.ops.convert_to_tensor(given)):
            found = array(score(rows))
            np.testing.assert_allclose(found[~alone], expected, 1e-5, 1e-6)
            assert np.isfinite(found).all()


@pytest.mark.portable
def test_the_cheapest_answer_is_none_that_is_ruled_out():
    labels, logits, of_wide, wide = sample()
    costs = np.random.default_rng(2).uniform(1.0, 2.0, (6, 6))
    np.fill_diagonal(costs, 0.5)
    # Cheaper than every class that is left.
    costs[:, [1, 4]] = 0.0
    of_left = costs[np.ix_(LEFT, LEFT)]
    narrow = kc.SelectiveClassifier(costs=of_left, threshold=-0.8)
    expected = narrow(logits)
    assert 0 < array(expected["accept"]).sum() < len(labels)
    price = kc.functional.mean_cost(
        labels, logits, costs=of_left, reject_cost=0.8, from_logits=True
    )
    for value in CONVENTIONS:
        rows = np.where(np.isneginf(wide), value, wide).astype("float32")
        found = kc.SelectiveClassifier(costs=costs, threshold=-0.8)(rows)
        np.testing.assert_array_equal(
            array(found["label"]), LEFT[array(expected["label"])]
        )
        for name in ("accept", "score", "expected_cost", "confidence"):
            np.testing.assert_allclose(
                array(found[name]), array(expected[name]), 1e-5, err_msg=name
            )
        wanted = kc.functional.mean_cost(
            of_wide, rows, costs=costs, reject_cost=0.8, from_logits=True
        )
        assert wanted.value == pytest.approx(price.value, rel=1e-6)
        assert wanted.coverage == price.coverage
    fits = [
        kc.SelectiveClassifier().fit(y, z, costs=c, reject_cost=0.8)
        for y, z, c in ((labels, logits, of_left), (of_wide, wide, costs))
    ]
    assert fits[1].threshold == pytest.approx(fits[0].threshold, rel=1e-5)


def test_the_p_norm_is_chosen_without_classes_that_are_ruled_out():
    labels, logits, of_wide, wide = sample(300)
    narrow = kc.LogitNormalization().fit(labels, logits)
    assert kc.LogitNormalization().fit(of_wide, wide).p == narrow.p


def fitted(case, labels, logits):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case.make().fit(labels, logits, num_folds=0, force=True)


CASES = [
    pytest.param(
        case, marks=[pytest.mark.slow] if case.needs else [], id=str(case)
    )
    for case in CALIBRATORS
]


@pytest.mark.parametrize("case", CASES)
def test_calibrators_are_fitted_and_called_as_without_these_classes(case):
    if not case.can_fit:
        pytest.skip(case.needs)
    labels, logits, of_wide, wide = sample(600)
    narrow = softmax(array(fitted(case, labels, logits)(logits)))
    calibrator = fitted(case, of_wide, wide)
    for value in CONVENTIONS:
        low = np.isneginf(wide)
        found = array(calibrator(np.where(low, value, wide).astype("float32")))
        assert (softmax(found)[low] == 0.0).all()
        assert (found[low] <= -1e24).all()
        probs = softmax(found)[:, LEFT]
        worst = 0.05 if case.cls in OF_ALL_PARAMETERS else 1e-4
        np.testing.assert_allclose(probs, narrow, atol=worst)
    assert np.isneginf(array(calibrator(wide))[low]).all()


@pytest.mark.parametrize("case", CASES)
def test_rows_may_rule_out_different_classes(case):
    if not case.can_fit:
        pytest.skip(case.needs)
    labels, logits, low = mixed(600)
    calibrator = fitted(case, labels, logits)
    found = array(calibrator(logits))
    assert np.isneginf(found[low]).all() and np.isfinite(found[~low]).all()
    # As good as the best temperature, up to what bins cost.
    best = kc.TemperatureScaling().fit(labels, logits)
    best = kc.nll(labels, array(best(logits)), from_logits=True)
    assert kc.nll(labels, found, from_logits=True) < best + 0.06


@pytest.mark.portable
def test_a_class_that_is_left_alone_is_certain():
    labels, logits, _ = mixed(400)
    alone = np.array([[-np.inf, 1.0, -np.inf, -np.inf]], "float32")
    for make in (kc.TemperatureScaling, kc.BetaCalibration, kc.VennAbers):
        calibrator = make().fit(labels, logits, num_folds=0)
        probs = softmax(array(calibrator(alone)))
        assert probs.tolist() == [[0.0, 1.0, 0.0, 0.0]], make
    low, high = calibrator.interval(alone)
    assert array(low).tolist() == array(high).tolist() == [[0, 1, 0, 0]]


def test_parts_that_mix_all_classes_say_so():
    labels, logits, _ = mixed(400)
    rule = r"not rule out a class.* can be fitted.*classes=\[0, 1, 2, 3\]"
    images = logits.reshape(4, 10, 10, 4)
    local = kc.LocalTemperatureScaling()
    with pytest.raises(ValueError, match=rule):
        local.fit(labels.reshape(4, 10, 10), images)


def test_a_part_of_the_nll_is_that_of_the_classes_that_are_left():
    labels, logits, of_wide, wide = sample(300)
    expected = kc.calibrators.refinement_nll(labels, logits)
    assert kc.calibrators.refinement_nll(of_wide, wide) == pytest.approx(
        expected, 1e-9
    )
    # Never above what equal chances of the classes left would cost.
    right, wrong = np.zeros(4, int), np.array([0, 0, 1, 1])
    pair = np.tile(np.array([[3.0, 0.0, -np.inf]], "float32"), (4, 1))
    assert kc.calibrators.refinement_nll(wrong, pair) <= np.log(2) + 1e-9
    assert kc.calibrators.refinement_nll(right, pair) < np.log(2)


def test_a_label_that_is_ruled_out_is_a_sure_no():
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=(300, 2))
    logits = (2.0 * labels - 1.0 + rng.normal(size=(300, 2))).astype("float32")
    logits[7, 1], labels[7, 1] = -np.inf, 0
    for make in (kc.TemperatureScaling, kc.BetaCalibration, kc.VennAbers):
        part = kc.MultiLabel(make()).fit(labels, logits)
        found = array(part(logits))
        assert (
            np.isneginf(found[7, 1]) and np.isfinite(np.delete(found, 15)).all()
        )
    loss = kc.MultiLabel(kc.LabelSmoothing(from_logits=True))
    assert np.isfinite(float(loss(labels, logits)))
    labels[7, 1] = 1
    for call in (loss, part.fit):
        with pytest.raises(ValueError, match="not rule out the class of a"):
            call(labels, logits)


def test_a_token_that_is_ruled_out_has_the_probability_0():
    logits = np.array([[[2.0, -np.inf, 0.0], [0.0, 1.0, -np.inf]]], "float32")
    found = array(kc.text.token_log_probs(logits, [[0, 1]]))
    left = [[2.0, 0.0], [1.0, 0.0]]
    expected = [z[0] - np.log(np.exp(z).sum()) for z in left]
    np.testing.assert_allclose(found, [expected], rtol=1e-6)
    assert array(kc.text.token_log_probs(logits, [[1, 2]])).tolist() == [
        [-np.inf] * 2
    ]
    for reduction, wanted in (
        ("geometric_mean", 0.0),
        ("mean", 0.25),
        ("minimum", 0.0),
        ("product", 0.0),
    ):
        confidence = sequence_confidence(
            np.log([[0.5, 1e-300]]) * [[1.0, np.inf]], reduction=reduction
        )
        assert float(confidence[0]) == pytest.approx(wanted), reduction


def test_a_row_without_any_class_is_refused_beside_labels_too():
    logits = np.random.default_rng(0).normal(size=(60, 3))
    prior = [0.3, 0.3, 0.4]
    for value in CONVENTIONS:
        none = np.r_[logits[:-1], [[value] * 3]]
        for call in (
            lambda x: kc.functional.estimate_prior(x, prior, from_logits=True),
            lambda x: kc.functional.prediction_flips(x, logits),
        ):
            with pytest.raises(ValueError, match="not rule out all classes"):
                call(none)

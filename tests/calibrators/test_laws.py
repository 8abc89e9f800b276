"""Laws of every calibrator, and its life as a Keras layer."""

import re

import keras
import numpy as np
import pytest
from cases import BACKEND, CALIBRATORS, array, one_hot, sample, softmax
from keras import ops

import keras_calib as kc
from keras_calib.calibrators.columns import OneVsRest
from keras_calib.calibrators.local import start_weights, tree_temperature

# Fits that need a package which only some backends go with run where it is.
CASES = [case for case in CALIBRATORS if case.can_fit]
# Objectives and options have tests of their values: one case of each class.
CLASSES = [
    case
    for i, case in enumerate(CASES)
    if case.cls not in {other.cls for other in CASES[:i]}
]
# Graphs and files are those of Keras: an affine map, a table and a posterior
# stand for all.
KINDS = [
    case
    for case in CLASSES
    if case.cls
    in (kc.VectorScaling, kc.VennAbers, kc.GaussianProcessCalibration)
]
TABLES = [case for case in CALIBRATORS if issubclass(case.cls, OneVsRest)]
K = 4


def held_out(n=600, num_classes=K, seed=0):
    """Overconfident logits with a class bias, and labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)) * 3
    logits[:, 0] += 0.5
    probs = softmax(logits / 2)
    drawn = (rng.uniform(size=(n, 1)) > probs.cumsum(-1)).sum(-1)
    labels = np.minimum(drawn, num_classes - 1)
    return labels, logits.astype("float32")


def one_output():
    """The same of two classes, as the log-odds of the second."""
    labels, logits = held_out(num_classes=2)
    return labels, logits[:, 1:] - logits[:, :1]


# Keras passes errors of a configuration on as a TypeError.
WRONG = (ValueError, TypeError)
FITTED = {}


@pytest.fixture(scope="module", autouse=True)
def traced():
    """Fits of posteriors are traced once, for all laws."""
    for case in CLASSES:
        if case.needs:
            fitted(case)


def fitted(case, data=held_out):
    """The calibrator of a case, fitted on `data()`, for all laws."""
    if (case.cls, data) not in FITTED:
        FITTED[case.cls, data] = case.make().fit(*data(), num_folds=0)
    return FITTED[case.cls, data]


def answer(calibrator, logits):
    return softmax(array(calibrator(logits)).astype("float64"))


def assert_same(case, one, other, logits, what=""):
    np.testing.assert_allclose(
        answer(one, logits),
        answer(other, logits),
        atol=case.tolerance,
        rtol=0,
        err_msg=f"{case} {what}",
    )


def test_it_refuses_to_answer_before_it_is_fitted():
    labels, logits = held_out()
    for case in CLASSES:
        calibrator = case.make()
        assert not calibrator.fitted
        assert repr(calibrator) == f"{case.cls.__name__}(not fitted)"
        with pytest.raises(RuntimeError, match="must be fitted before use"):
            calibrator(logits)
        # Asked too early, it can still be fitted.
        assert calibrator.fit(labels, logits, num_folds=0) is calibrator
        assert calibrator.fitted
        assert array(calibrator(logits)).shape == logits.shape, case


def test_what_a_fit_promises_of_the_answers():
    rows = [held_out(1000), held_out(64, seed=1)]
    for case in CASES:
        for labels, logits in rows:
            calibrator = case.make().fit(labels, logits, num_folds=0)
            after = array(calibrator(logits))
            if len(labels) == 1000:
                ece = kc.ece(labels, logits, from_logits=True)
                found = kc.ece(labels, after, from_logits=True)
                assert found < 0.5 * ece, case
            if case.never_raises_nll:
                before = kc.nll(labels, logits, from_logits=True)
                found = kc.nll(labels, after, from_logits=True)
                # float32 outputs.
                assert found <= before + 1e-6, case
            if case.keeps_argmax:
                same = after.argmax(-1) == logits.argmax(-1)
                assert same.all(), case


def of_batches(batches):
    return kc.Predictions.of_batches(batches, from_logits=True)


@pytest.mark.portable
@pytest.mark.slow
def test_forms_of_the_same_data_agree():
    labels, logits = held_out()
    weight = np.random.default_rng(1).integers(0, 3, len(labels))
    index = np.repeat(np.arange(len(labels)), weight)
    ignored = np.arange(len(labels)) % 5 == 0
    marked, left = np.where(ignored, 255, labels), ~ignored
    how = {"ignore_class": 255}
    parts = np.split(np.arange(len(labels)), [7, 8, 300])
    thin = weight * left
    for case in CLASSES:

        def fit(*data, case=case, **how):
            return case.make().fit(*data, num_folds=0, **how)

        whole, deleted = fitted(case), fit(labels[left], logits[left])
        for name, found, expected in (
            ("one-hot", fit(one_hot(labels, K), logits), whole),
            (
                "column, dense",
                fit(labels.reshape(6, 10, 10, 1), logits.reshape(6, 10, 10, K)),
                whole,
            ),
            (
                "weights are repeats",
                fit(labels, logits, weight),
                fit(labels[index], logits[index]),
            ),
            ("ignored", fit(marked, logits, **how), deleted),
            (
                "ignored, with weights",
                fit(marked, logits, weight, **how),
                fit(labels, logits, thin),
            ),
        ):
            assert_same(case, found, expected, logits, name)
        batches = fit(of_batches((labels[p], logits[p]) for p in parts))
        np.testing.assert_array_equal(
            array(batches(logits)), array(whole(logits)), err_msg=str(case)
        )
    batches = of_batches((labels[p], logits[p], weight[p]) for p in parts)
    found = kc.TemperatureScaling().fit(batches).temperature
    assert found == kc.TemperatureScaling().fit(*held_out(), weight).temperature


@pytest.mark.portable
def test_one_output_is_the_second_of_two_classes():
    labels, z = one_output()
    pair = np.concatenate([np.zeros_like(z), z], axis=-1)
    for case in CLASSES:
        two = case.make().fit(labels, pair, num_folds=0)
        one = fitted(case, one_output)
        found = array(one(z))
        assert found.shape == z.shape
        expected = answer(two, pair)[:, 1]
        np.testing.assert_allclose(
            1 / (1 + np.exp(-found[:, 0])),
            expected,
            atol=case.tolerance,
            err_msg=str(case),
        )
        dense = array(one(z.reshape(6, 100, 1)))
        np.testing.assert_allclose(dense.reshape(z.shape), found, rtol=1e-6)


@pytest.mark.portable
def test_classes_can_have_any_order():
    labels, logits = held_out()
    order = np.array([2, 0, 3, 1])
    place = np.argsort(order)
    for case in CLASSES:
        expected = answer(fitted(case), logits)
        moved = case.make()
        moved.fit(place[labels], logits[:, order], num_folds=0)
        np.testing.assert_allclose(
            answer(moved, logits[:, order]),
            expected[:, order],
            atol=1e-4,
            err_msg=str(case),
        )


@pytest.mark.portable
def test_mixed_precision_changes_nothing():
    labels, logits = held_out()
    for case in CLASSES:
        expected = array(fitted(case)(1e4 * logits))
        keras.mixed_precision.set_dtype_policy("mixed_float16")
        try:
            same = case.make().fit(labels, logits, num_folds=0)
            found = array(same(1e4 * logits))
        finally:
            keras.mixed_precision.set_dtype_policy("float32")
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected, err_msg=str(case))


@pytest.mark.portable
def test_logits_that_are_nan_get_no_probability():
    spoiled = held_out()[1][:3]
    spoiled[1, 2] = np.nan
    for case in CLASSES:
        found = np.isnan(answer(fitted(case), spoiled))
        assert found.all(axis=-1).tolist() == [False, True, False], case
        assert not found[[0, 2]].any(), case
        one = fitted(case, one_output)
        assert np.isnan(array(one(np.array([[np.nan]], "float32")))), case


@pytest.mark.portable
def test_copies_and_files_are_fitted_alike(tmp_path):
    _, logits = held_out()
    for case in CLASSES:
        calibrator = fitted(case)
        expected = array(calibrator(logits))
        copies = {"config": case.cls.from_config(calibrator.get_config())}
        if case in KINDS:
            inputs = keras.Input((K,))
            model = keras.Model(inputs, calibrator(inputs))
            model.save(path := tmp_path / "model.keras")
            copies["file"] = keras.models.load_model(path).layers[1]
        if case is KINDS[0]:
            copies["clone"] = keras.models.clone_model(model).layers[1]
            copies["JSON"] = keras.models.model_from_json(
                model.to_json()
            ).layers[1]
        for name, copy in copies.items():
            assert copy.fitted and repr(copy) == repr(calibrator), (case, name)
            assert copy.get_config() == calibrator.get_config(), (case, name)
            np.testing.assert_array_equal(
                array(copy(logits)), expected, err_msg=f"{case} {name}"
            )
        config = case.make(name="mine").get_config()
        again = case.cls.from_config(config)
        assert not again.fitted
        assert again.get_config() == config


@pytest.mark.portable
@pytest.mark.parametrize(
    "cases", [KINDS, pytest.param(CLASSES, marks=pytest.mark.slow)]
)
def test_compiled_they_answer_alike(cases):
    _, logits = held_out()
    inputs = keras.Input((K,))
    model = keras.Model(inputs, [fitted(case)(inputs) for case in cases])
    served = model.predict_on_batch(logits)
    for case, found in zip(cases, served, strict=True):
        np.testing.assert_allclose(
            found,
            array(fitted(case)(logits)),
            rtol=1e-5,
            atol=1e-5,
            err_msg=str(case),
        )


@pytest.mark.portable
@pytest.mark.skipif(BACKEND != "jax", reason="others have no such option")
def test_no_product_is_rounded_on_a_gpu():
    import jax

    _, logits = held_out()
    tree = kc.LocalTemperatureScaling(depth=1, kernel_size=3, dilation_rate=1)
    filters = start_weights(tree, K)
    curves = kc.GaussianProcessCalibration(
        average=True,
        temperature=1.0,
        uniform_share=1e-6,
        bounds=[-3, 0],
        offsets=[1, 0],
        deviations=[[1, 0]],
    )

    def local(z):
        z = ops.reshape(z, (6, 10, 10, K))
        return tree_temperature(z, None, filters, tree)

    found = []
    for function in (*map(fitted, CLASSES), curves, local):
        program = str(jax.make_jaxpr(function)(logits))
        products = re.findall(r"= (?:dot_general|conv_general\w*)\[", program)
        exact = program.count("(Precision.HIGHEST, Precision.HIGHEST)")
        assert exact == len(products), function
        found.append(exact)
    assert all(found[-2:])
    assert sum(found) > 6


@pytest.mark.portable
def test_another_number_of_classes_is_refused_at_every_call():
    pair = held_out(num_classes=2)
    for case in CLASSES:
        if not case.cls.needs_every_class:
            continue
        two = case.make().fit(*pair, num_folds=0)
        for calibrator, given, asked in (
            (fitted(case), 4, 2),
            (fitted(case), 4, 5),
            (two, 2, 3),
        ):
            for _ in range(2):
                with pytest.raises(ValueError, match=f"have {given} classes"):
                    calibrator(np.zeros((3, asked)))
        assert array(two(np.zeros((3, 1)))).shape == (3, 1)


def test_a_failed_fit_leaves_what_was_fitted():
    labels, logits = held_out()

    def spoiled(value):
        other = logits.copy()
        other[3, labels[3]] = value
        return labels, other

    rows = (
        (spoiled(np.nan), {}, "NaN"),
        (spoiled(np.inf), {}, "inf"),
        (spoiled(-np.inf), {}, "rule out the class of a label"),
        ((labels[:0], logits[:0]), {}, "must not be empty"),
        ((np.zeros_like(labels), logits), {}, "two classes or more"),
        ((labels[1:], logits), {}, "`labels` must be class ids"),
        ((np.full(3, 255), logits[:3]), {"ignore_class": 255}, "not ignored"),
    )
    for case in CLASSES:
        calibrator = case.cls.from_config(fitted(case).get_config())
        before = calibrator.get_config()
        for data, how, rule in rows if case is CLASSES[0] else rows[:1]:
            with pytest.raises(ValueError, match=rule):
                calibrator.fit(*data, **how)
        assert calibrator.get_config() == before, case


def test_a_class_without_samples_is_refused_where_it_matters():
    labels, logits = held_out(num_classes=5)
    some = labels != 3
    for case in CLASSES:
        calibrator = case.make()
        if calibrator.needs_every_class:
            with pytest.raises(ValueError, match=r"every class.*absent=\[3\]"):
                calibrator.fit(labels[some], logits[some])
            assert not calibrator.fitted, case
        else:
            calibrator.fit(labels[some], logits[some], num_folds=0)
            assert calibrator.fitted, case


def test_no_fitted_value_is_taken_that_no_fit_has():
    _, logits = held_out(60, num_classes=2)
    yes = logits + np.random.default_rng(1).normal(size=(60, 2)) > 0
    for case in CLASSES:
        config = fitted(case).get_config()
        for name in case.cls.fitted_values:
            for bad in (np.nan, np.inf, -np.inf, 1e300):
                value = np.array(config[name])
                value.flat[-1] = bad
                with pytest.raises(WRONG, match=f"`{name}` must be "):
                    case.cls.from_config({**config, name: value.tolist()})
        if not isinstance(fitted(case), kc.TemperatureScaling | OneVsRest):
            continue
        # Those of several labels are read at the same door.
        labels = kc.labels.MultiLabelCalibrator(case.make())
        labels = labels.fit(yes, logits, num_folds=0).get_config()
        for name, value in labels["values"].items():
            value = np.array(value)
            value.flat[-1] = np.nan
            values = {**labels["values"], name: value.tolist()}
            other = {**labels, "values": values}
            with pytest.raises(WRONG, match=f"`{name}` must be "):
                kc.labels.MultiLabelCalibrator.from_config(other)


@pytest.mark.portable
@pytest.mark.parametrize("num_classes", [2, 4])
@pytest.mark.parametrize("case", TABLES, ids=str)
def test_rounding_by_another_backend_moves_no_fitted_point(case, num_classes):
    """A table says the same of the points it was fitted on, however rounded."""
    labels, logits = sample(n=300, num_classes=num_classes, scale=3.0)
    logits = logits.astype("float32")
    calibrator = case.make().fit(labels, logits, num_folds=0)
    expected = softmax(array(calibrator(logits)).astype("float64"))
    # A shift of all logits leaves the probabilities, but for their rounding.
    for shift in (0.1, -0.3, 1.7):
        if case.cls is kc.VennAbers and num_classes == 2:
            # It reads their difference, which is exact where nothing is added.
            continue
        moved = logits + np.float32(shift)
        found = softmax(array(calibrator(moved)).astype("float64"))
        np.testing.assert_allclose(found, expected, atol=1e-4)

"""Laws of every calibrator, and its life as a Keras layer."""

import re
import warnings

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import CALIBRATORS
from cases import array
from cases import one_hot
from cases import softmax

import keras_calib as kc

pytestmark = pytest.mark.portable
# The formulas are one: on the other backends one case of each class.
CASES = [
    case
    for i, case in enumerate(CALIBRATORS)
    if BACKEND == "tensorflow"
    or case.cls not in {other.cls for other in CALIBRATORS[:i]}
]
every_calibrator = pytest.mark.parametrize("case", CASES, ids=str)
every_likeliest = pytest.mark.parametrize(
    "case", [c for c in CASES if c.never_raises_nll], ids=str
)
every_refittable = pytest.mark.parametrize(
    # How often an isotonic function bends depends on the data.
    "case",
    [c for c in CASES if c.cls is not kc.IsotonicCalibration],
    ids=str,
)
every_one_of_some_classes = pytest.mark.parametrize(
    "case",
    [
        c
        for c in CASES
        if c.cls not in (kc.TemperatureScaling, kc.EnsembleTemperatureScaling)
    ],
    ids=str,
)
every_one_of_many_parameters = pytest.mark.parametrize(
    "case", [c for c in CASES if c.make().num_parameters(10) > 10], ids=str
)
every_argmax_keeper = pytest.mark.parametrize(
    "case", [c for c in CASES if c.keeps_argmax], ids=str
)
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


def answer(calibrator, logits):
    return softmax(array(calibrator(logits)).astype("float64"))


def assert_same(case, one, other, logits):
    np.testing.assert_allclose(
        answer(one, logits),
        answer(other, logits),
        atol=case.tolerance,
        rtol=0,
    )


@every_calibrator
def test_it_refuses_to_answer_before_it_is_fitted(case):
    calibrator = case.make()
    assert not calibrator.fitted
    assert repr(calibrator) == f"{case.cls.__name__}(not fitted)"
    with pytest.raises(RuntimeError, match="must be fitted before use"):
        calibrator(held_out()[1])
    # Asked too early, it can still be fitted.
    labels, logits = held_out()
    assert calibrator.fit(labels, logits) is calibrator
    assert calibrator.fitted
    assert array(calibrator(logits)).shape == logits.shape


@every_calibrator
def test_it_calibrates_overconfident_predictions(case):
    labels, logits = held_out(4000)
    after = array(case.make().fit(labels, logits)(logits))
    assert kc.ece(labels, after, from_logits=True) < 0.5 * kc.ece(
        labels, logits, from_logits=True
    )


@every_likeliest
@pytest.mark.filterwarnings("ignore:.*too many parameters:RuntimeWarning")
def test_nll_never_rises_on_the_fitting_data(case):
    for seed in range(3):
        for n in (60, 600):
            labels, logits = held_out(n, seed=seed)
            after = array(case.make().fit(labels, logits)(logits))
            before = kc.nll(labels, logits, from_logits=True)
            # float32 outputs.
            assert kc.nll(labels, after, from_logits=True) <= before + 1e-6


@every_argmax_keeper
def test_the_predicted_class_never_changes(case):
    labels, logits = held_out()
    after = array(case.make().fit(labels, logits)(logits))
    np.testing.assert_array_equal(after.argmax(-1), logits.argmax(-1))


@every_calibrator
def test_forms_of_labels_and_shapes_agree(case):
    labels, logits = held_out()
    expected = case.make().fit(labels, logits)
    for name, data in {
        "one-hot": (one_hot(labels, K), logits),
        "column": (labels[:, None], logits),
        "dense": (labels.reshape(6, 10, 10), logits.reshape(6, 10, 10, K)),
    }.items():
        assert_same(case, case.make(name=name).fit(*data), expected, logits)


@every_calibrator
def test_whole_weights_are_repeats(case):
    labels, logits = held_out()
    weight = np.random.default_rng(1).integers(0, 3, len(labels))
    weighted = case.make().fit(labels, logits, weight)
    index = np.repeat(np.arange(len(labels)), weight)
    repeated = case.make().fit(labels[index], logits[index])
    assert_same(case, weighted, repeated, logits)


@every_calibrator
def test_batches_are_the_same_as_arrays(case):
    labels, logits = held_out()
    expected = case.make().fit(labels, logits)
    parts = np.split(np.arange(len(labels)), [7, 8, 300])
    found = case.make().fit((labels[p], logits[p]) for p in parts)
    np.testing.assert_array_equal(array(found(logits)), array(expected(logits)))
    weight = np.random.default_rng(1).integers(1, 3, len(labels))
    batches = [(labels[p], logits[p], weight[p]) for p in parts]
    np.testing.assert_array_equal(
        array(case.make().fit(batches)(logits)),
        array(case.make().fit(labels, logits, weight)(logits)),
    )


@every_calibrator
def test_an_ignored_class_is_a_deleted_row(case):
    labels, logits = held_out()
    ignored = np.arange(len(labels)) % 5 == 0
    marked = np.where(ignored, 255, labels)
    expected = case.make().fit(labels[~ignored], logits[~ignored])
    for found in (
        case.make().fit(marked, logits, ignore_class=255),
        case.make().fit([(marked, logits)], ignore_class=255),
    ):
        assert_same(case, found, expected, logits)


@every_calibrator
def test_one_output_is_the_second_of_two_classes(case):
    labels, logits = held_out(num_classes=2)
    z = logits[:, 1:] - logits[:, :1]
    pair = np.concatenate([np.zeros_like(z), z], axis=-1)
    two = case.make().fit(labels, pair)
    one = case.make().fit(labels, z)
    found = array(one(z))
    assert found.shape == z.shape
    expected = answer(two, pair)[:, 1]
    np.testing.assert_allclose(
        1 / (1 + np.exp(-found[:, 0])), expected, atol=case.tolerance
    )
    dense = array(one(z.reshape(6, 100, 1)))
    np.testing.assert_allclose(dense.reshape(z.shape), found, rtol=1e-6)


@every_calibrator
def test_classes_can_have_any_order(case):
    labels, logits = held_out()
    order = np.array([2, 0, 3, 1])
    place = np.argsort(order)
    expected = answer(case.make().fit(labels, logits), logits)
    moved = case.make().fit(place[labels], logits[:, order])
    np.testing.assert_allclose(
        answer(moved, logits[:, order]), expected[:, order], atol=1e-4
    )


@every_calibrator
def test_mixed_precision_changes_nothing(case):
    labels, logits = held_out()
    expected = array(case.make().fit(labels, logits)(logits))
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        found = array(case.make().fit(labels, logits)(logits))
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


@every_calibrator
def test_copies_and_files_are_fitted_alike(case, tmp_path):
    labels, logits = held_out()
    calibrator = case.make().fit(labels, logits)
    expected = array(calibrator(logits))
    copy = case.cls.from_config(calibrator.get_config())
    assert copy.fitted and repr(copy) == repr(calibrator)
    np.testing.assert_array_equal(array(copy(logits)), expected)
    assert copy.get_config() == calibrator.get_config()
    inputs = keras.Input((K,))
    for model in (
        keras.Sequential([keras.Input((K,)), calibrator]),
        keras.Model(inputs, calibrator(inputs)),
    ):
        path = tmp_path / f"{type(model).__name__}.keras"
        model.save(path)
        again = keras.models.load_model(path)
        np.testing.assert_allclose(
            again.predict(logits, verbose=0), expected, rtol=1e-5, atol=1e-5
        )


@every_calibrator
def test_an_unfitted_copy_is_unfitted(case):
    config = case.make(name="mine").get_config()
    again = case.cls.from_config(config)
    assert not again.fitted
    assert again.get_config() == config


@every_refittable
def test_it_can_be_fitted_again(case):
    labels, logits = held_out()
    calibrator = case.make().fit(labels, logits)
    others = held_out(700, seed=5)
    found = calibrator.fit(*others)
    assert_same(case, found, case.make().fit(*others), logits)


def test_an_isotonic_function_that_bends_otherwise_needs_a_new_layer():
    labels, logits = held_out()
    calibrator = kc.IsotonicCalibration().fit(labels, logits)
    before = calibrator.get_config()
    with pytest.raises(ValueError, match="make a new one"):
        calibrator.fit([0, 1, 2, 3], logits[:4])
    assert calibrator.get_config() == before


@every_one_of_some_classes
def test_another_number_of_classes_is_refused(case):
    labels, logits = held_out()
    calibrator = case.make().fit(labels, logits)
    with pytest.raises(ValueError, match="`logits` must have 4 classes"):
        calibrator(held_out(num_classes=5)[1])


@every_calibrator
def test_a_failed_fit_leaves_what_was_fitted(case):
    labels, logits = held_out()
    calibrator = case.make().fit(labels, logits)
    before = calibrator.get_config()
    for value, rule in ((np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "finite")):
        spoiled = logits.copy()
        spoiled[3, 1] = value
        with pytest.raises(ValueError, match=rule):
            calibrator.fit(labels, spoiled)
    with pytest.raises(ValueError, match="must not be empty"):
        calibrator.fit(labels[:0], logits[:0])
    with pytest.raises(ValueError, match="two classes or more"):
        calibrator.fit(np.zeros_like(labels), logits)
    with pytest.raises(ValueError, match="`labels` must be class ids"):
        calibrator.fit(labels[1:], logits)
    with pytest.raises(ValueError, match=r"there must be a sample|not ignored"):
        calibrator.fit([(np.full(3, 255), logits[:3])], ignore_class=255)
    assert calibrator.get_config() == before


@every_calibrator
def test_a_class_without_samples_is_refused_where_it_matters(case):
    labels, logits = held_out(num_classes=5)
    some = labels != 3
    calibrator = case.make()
    if not calibrator.needs_every_class:
        assert calibrator.fit(labels[some], logits[some]).fitted
        return
    with pytest.raises(ValueError, match=r"every class.*absent=\[3\]"):
        calibrator.fit(labels[some], logits[some])
    assert not calibrator.fitted


@every_one_of_many_parameters
def test_fewer_samples_than_parameters_are_refused(case):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(10, 10)).astype("float32")
    labels = np.arange(10)
    calibrator = case.make()
    needed = calibrator.num_parameters(10)
    with pytest.raises(ValueError, match=f"samples=10, param.*={needed}"):
        calibrator.fit(labels, logits)
    assert not calibrator.fitted


def test_force_fits_all_the_same():
    labels, logits = held_out(12, num_classes=6)
    scaling = kc.MatrixScaling(
        off_diagonal_strength=1.0, intercept_strength=1.0
    )
    with pytest.raises(ValueError, match="`force=True` fits all the same"):
        scaling.fit(labels, logits)
    assert scaling.fit(labels, logits, force=True).fitted


@pytest.mark.parametrize(
    "cls", [kc.MatrixScaling, kc.DirichletCalibration], ids=lambda c: c.__name__
)
def test_a_map_that_helps_no_other_sample_says_so(cls):
    # Calibrated already, so that 72 parameters can only do harm.
    rng = np.random.default_rng(0)
    logits = 2.0 * rng.normal(size=(9000, 8)).astype("float32")
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    few = labels[:300], logits[:300]
    with pytest.warns(RuntimeWarning, match="too many parameters") as caught:
        fitted = cls().fit(*few)
    (words,) = (
        str(warning.message)
        for warning in caught
        if "too many parameters" in str(warning.message)
    )
    before, after = map(float, re.findall(r"=([\d.]+)", words))
    assert abs(before - kc.nll(*few, from_logits=True)) < 1e-4
    assert after > before
    # And so it is.
    rest = labels[300:], array(fitted(logits[300:]))
    harm = kc.nll(*rest, from_logits=True)
    assert harm > kc.nll(labels[300:], logits[300:], from_logits=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        same = cls(num_folds=0).fit(*few)
        np.testing.assert_array_equal(same.matrix, fitted.matrix)
        # What is penalised is for its strengths to hold.
        cls(off_diagonal_strength=1e-3).fit(*few)
        # Of a model that is far too sure there is much to gain.
        cls().fit(labels, 4.0 * logits)
    assert cls.from_config(cls(num_folds=2).get_config()).num_folds == 2
    with pytest.raises(ValueError, match="`num_folds` must be 0, or >= 2"):
        cls(num_folds=1)


def test_what_has_no_optimum_says_so():
    _, logits = held_out(200)
    with pytest.warns(RuntimeWarning) as caught:
        kc.VectorScaling().fit(logits.argmax(-1), logits)
    text = " ".join(str(w.message) for w in caught)
    assert "no optimal temperature" in text


def test_batches_that_do_not_fit_each_other_are_refused():
    labels, logits = held_out()
    scaling = kc.TemperatureScaling()
    with pytest.raises(ValueError, match="number of classes, and weights"):
        scaling.fit(
            [(labels[:9], logits[:9]), (labels[:9] % 2, logits[:9, :2])]
        )
    with pytest.raises(
        ValueError, match=r"each batch must be \(labels, logits"
    ):
        scaling.fit([logits])
    with pytest.raises(TypeError, match="`logits` must be given"):
        scaling.fit(labels)
    with pytest.raises(ValueError, match="there must be a sample"):
        scaling.fit([])


def test_what_was_fitted_is_shown():
    ets = kc.EnsembleTemperatureScaling(temperature=2, mixture=[0.5, 0, 0.5])
    warm = kc.TemperatureScaling(temperature=1.52345)
    eye, zeros = np.eye(3), np.zeros(3)
    selector = kc.SelectiveClassifier(
        calibrator=warm, score="gini", threshold=0.25
    )
    inside = []

    def while_traced(x):
        inside.append(repr(warm))
        return warm(x)

    traced = keras.layers.Lambda(while_traced)(keras.Input((3,)))
    assert traced.shape == (None, 3)
    for thing, expected in {
        warm: "TemperatureScaling(temperature=1.523)",
        ets: "EnsembleTemperatureScaling(temperature=2, mixture=[0.5, 0, 0.5])",
        kc.VectorScaling(scale=[1, 2], bias=[0, 3]): (
            "VectorScaling(scale=[1, 2], bias=[0, 3])"
        ),
        kc.MatrixScaling(matrix=eye, bias=zeros): (
            "MatrixScaling(matrix.shape=(3, 3), bias=[0, 0, 0])"
        ),
        selector: (
            "SelectiveClassifier(score='gini', threshold=0.25, "
            "calibrator=TemperatureScaling(temperature=1.523))"
        ),
        kc.SelectiveClassifier(): "SelectiveClassifier(not fitted)",
        kc.LogitNormalization(p=2): "LogitNormalization(p=2.0)",
        kc.LogitNormalization(): "LogitNormalization(not fitted)",
    }.items():
        assert repr(thing) == str(thing) == expected
    assert inside[0].startswith("TemperatureScaling(temperature")


def test_known_values_must_be_given_together():
    with pytest.raises(ValueError, match="`scale` and `bias` must be given"):
        kc.VectorScaling(scale=[1.0, 2.0])
    with pytest.raises(ValueError, match="same number of classes"):
        kc.VectorScaling(scale=[1.0, 2.0], bias=[0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="three shares"):
        kc.EnsembleTemperatureScaling(temperature=1.0, mixture=[1.0, 1.0, 0.0])


def test_bad_hyperparameters_are_refused():
    for make, rule in {
        lambda: kc.TemperatureScaling(objective="auc"): "`objective` must be",
        lambda: kc.TemperatureScaling(grid=[]): "`grid` must not be empty",
        lambda: kc.TemperatureScaling(grid=[0.0]): "`grid` must be > 0",
        lambda: kc.HistogramBinning(num_bins=0): "`num_bins` must be >= 1",
        lambda: kc.HistogramBinning(edges="log"): "`edges` must be one of",
        lambda: kc.HistogramBinning(empty="nan"): "`empty` must be one of",
        lambda: kc.IsotonicCalibration(min_prob=0.6): "`min_prob` must be <=",
        lambda: kc.BetaCalibration(clip=-1.0): "`clip` must be >= 0",
        lambda: kc.MatrixScaling(
            off_diagonal_strength=-1.0
        ): "`off_diagonal_strength` must be >= 0",
    }.items():
        with pytest.raises(ValueError, match=rule):
            make()

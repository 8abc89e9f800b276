"""What calibrators refuse, warn of and show."""

import re
import warnings
from functools import partial

import keras
import numpy as np
import pytest
from cases import CALIBRATORS, array

import keras_calib as kc
from keras_calib.calibrators import folds
from keras_calib.calibrators.fitting_data import read_predictions


def held_out(n=600, num_classes=4, seed=0):
    """Overconfident logits, and labels."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(n, num_classes)).astype("float32")
    return (logits / 2 + rng.gumbel(size=logits.shape)).argmax(-1), logits


def test_force_fits_all_the_same():
    labels, logits = held_out(12, num_classes=6)
    scaling = kc.MatrixScaling(off_diagonal_penalty=1.0, intercept_penalty=1.0)
    # A ridge alone needs no such number.
    kc.MatrixScaling().fit(labels, logits, num_folds=0)
    with pytest.raises(ValueError, match="`force=True` fits all the same"):
        scaling.fit(labels, logits)
    assert scaling.fit(labels, logits, num_folds=0, force=True).fitted


def test_fewer_samples_than_parameters_are_refused():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(80, 4)).astype("float32")
    labels = np.arange(80) % 4
    for case in CALIBRATORS:
        needed = case.make().num_parameters(4)
        if needed < 5 or not case.can_fit:
            continue
        for few, weight in (
            ((labels[: needed - 1], logits[: needed - 1]), None),
            ((labels, logits), np.arange(80) < needed - 1),
        ):
            calibrator = case.make()
            rule = f"samples={needed - 1}, param.*={needed}"
            with pytest.raises(ValueError, match=rule):
                calibrator.fit(*few, weight)
            assert not calibrator.fitted, case
    # As many are enough.
    binning = kc.HistogramBinning(num_bins=10)
    assert binning.fit(labels[:10], logits[:10]).fitted


def test_a_map_that_helps_no_other_sample_says_so():
    cls = partial(kc.MatrixScaling, penalty=None)
    # Calibrated already, so that 72 parameters can only do harm.
    rng = np.random.default_rng(0)
    logits = 2.0 * rng.normal(size=(9000, 8)).astype("float32")
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    few = labels[:300], logits[:300]
    with pytest.warns(RuntimeWarning, match="not fitted on") as caught:
        fitted = cls().fit(*few)
    (words,) = (
        str(warning.message)
        for warning in caught
        if "not fitted on" in str(warning.message)
    )
    before, after = map(float, re.findall(r"=([\d.]+)", words))
    assert abs(before - kc.nll(*few, from_logits=True)) < 1e-4
    assert after > before
    # Also where there are fewer images than folds.
    images = few[0].reshape(3, 10, 10), few[1].reshape(3, 10, 10, 8)
    with pytest.warns(RuntimeWarning, match="not fitted on"):
        cls().fit(*images)
    # And so it is.
    rest = labels[300:], array(fitted(logits[300:]))
    harm = kc.nll(*rest, from_logits=True)
    assert harm > kc.nll(labels[300:], logits[300:], from_logits=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        same = cls().fit(*few, num_folds=0)
        np.testing.assert_array_equal(same.matrix, fitted.matrix)
        # Of a model that is far too sure there is much to gain.
        cls().fit(labels, 4.0 * logits)
    with pytest.raises(ValueError, match="`num_folds` must be 0, or >= 2"):
        cls().fit(*few, num_folds=1)


def test_any_calibrator_that_helps_no_other_sample_says_so():
    rng = np.random.default_rng(0)
    logits = 2.0 * rng.normal(size=(300, 8)).astype("float32")
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    for make in (
        lambda: kc.TemperatureScaling(grid=[3.0]),
        lambda: kc.VectorScaling(penalty=None),
        kc.IsotonicCalibration,
        kc.HistogramBinning,
    ):
        with pytest.warns(RuntimeWarning, match="not fitted on"):
            make().fit(labels, logits)


def test_one_sample_that_was_ruled_out_is_harm():
    # Its 85 nats are within a standard error of the mean of all.
    rng = np.random.default_rng(0)
    score = 25 * rng.normal(size=(250, 1)).astype("float32")
    labels = (rng.random((250, 1)) < 1 / (1 + np.exp(-score)))[:, 0] * 1
    with pytest.warns(RuntimeWarning, match="not fitted on"):
        kc.HistogramBinning().fit(labels, score)
    with pytest.warns(RuntimeWarning, match="binning: on samples left out"):
        kc.choose_calibrator(labels, score, candidates=kc.HistogramBinning())


def test_folds_end_with_a_gain_beyond_chance(monkeypatch):
    fitted, without_fold = [], folds.without_fold

    def counted(make, samples, fold, k):
        fitted.append(k)
        return without_fold(make, samples, fold, k)

    monkeypatch.setattr(folds, "without_fold", counted)
    labels, logits = held_out(1000, num_classes=12)
    logits *= 0.8
    kc.MatrixScaling().fit(labels, logits)
    assert fitted == [0]
    # Single samples may cost more than all others gain.
    kc.MatrixScaling(penalty=None).fit(labels, logits)
    assert fitted == [0, 0, 1, 2, 3, 4]


def test_what_has_no_optimum_says_so():
    _, logits = held_out(200)
    with pytest.warns(RuntimeWarning) as caught:
        kc.VectorScaling().fit(logits.argmax(-1), logits)
    text = " ".join(str(w.message) for w in caught)
    assert "no optimal temperature" in text


def test_what_has_no_logits_is_told_what_to_make_of_batches():
    labels, logits = held_out()
    for data in (labels, [(labels, logits)]):
        with pytest.raises(
            TypeError, match=r"Predictions\.of_batches\(batches"
        ):
            kc.TemperatureScaling().fit(data)


@pytest.mark.parametrize(
    "cls",
    [
        kc.VectorScaling,
        kc.DirichletCalibration,
        kc.StructuredMatrixScaling,
    ],
)
def test_a_copy_counts_its_free_numbers_without_a_fit(cls):
    labels, logits = held_out(200, num_classes=3)
    fitted = cls().fit(labels, logits, num_folds=0)
    samples = read_predictions(kc.Predictions(labels, logits, from_logits=True))
    copy = cls.from_config(fitted.get_config())
    most = sum(np.size(x) for x in fitted.fitted_summary().values())
    assert fitted.degrees_of_freedom(samples) < most
    assert copy.degrees_of_freedom(samples) == most


def test_layers_have_names_of_their_class_and_those_of_users_each_its_own():
    class MyScaling(kc.TemperatureScaling):
        pass

    names = [MyScaling(temperature=2.0).name for _ in range(2)]
    assert names[0].startswith("my_scaling") and names[0] != names[1]
    for cls, name in (
        (kc.TemperatureScaling, "temperature_scaling"),
        (kc.SelectiveClassifier, "selective_classifier"),
    ):
        assert cls().name == cls().name == name
        assert cls(name=None).name.startswith(name)
        assert cls(name="other").name == "other"


def test_predictions_are_calibrated_and_no_input_of_the_layer():
    p = kc.Predictions([0, 1], [[0.4, 0.6], [0.1, 0.9]])
    for layer in (
        kc.TemperatureScaling(temperature=1.0),
        kc.LocalTemperatureScaling(use_image=True),
    ):
        with pytest.raises(TypeError, match=r"`calibrate\(p\)` of a cali"):
            layer(p)


def test_a_fit_on_probabilities_names_both_ways_to_do_it():
    probs = [[0.4, 0.6], [0.1, 0.9]]
    rule = r"`from_logits=False`, which takes .* `Predictions\(labels, probs\)`"
    with pytest.raises(ValueError, match=rule):
        kc.TemperatureScaling().fit([0, 1], probs)


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
        kc.LogitNormalization(p=2): "LogitNormalization(p=2)",
        kc.LogitNormalization(): "LogitNormalization(not fitted)",
    }.items():
        assert repr(thing) == str(thing) == expected
    assert inside[0].startswith("TemperatureScaling(temperature")


def test_known_values_must_be_given_together():
    with pytest.raises(ValueError, match="`scale` and `bias` must be given"):
        kc.VectorScaling(scale=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"`bias` must have the shape .*=2"):
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
            off_diagonal_penalty=-1.0
        ): "`off_diagonal_penalty` must be >= 0",
    }.items():
        with pytest.raises(ValueError, match=rule):
            make()


def test_what_a_fit_refuses_a_call_refuses():
    _, logits = held_out()
    for layer in (
        kc.TemperatureScaling(temperature=2.0),
        kc.LogitNormalization(p=2),
        kc.SelectiveClassifier(threshold=0.5),
    ):
        check_a_call(layer, logits)


def check_a_call(layer, logits):
    for rule, bad in {
        "masked array": np.ma.array(logits, mask=logits > 4),
        "hold real numbers": logits + 1j,
        "hold real numbers, not": logits.astype(str),
    }.items():
        for call in (layer, lambda x: layer(logits=x)):
            with pytest.raises(TypeError, match=f"`logits` must .*{rule}"):
                call(bad)
    listed, traced = layer(logits.tolist()), keras.Input((4,))
    keras.tree.map_structure(
        lambda one, two: np.testing.assert_array_equal(array(one), array(two)),
        listed,
        keras.Model(traced, layer(traced))(logits),
    )


def test_tables_of_other_shapes_are_refused():
    for tables in (
        {"upper_edges": [[0.5, 1.0]] * 2, "values": [[0.1, 0.9]] * 2},
        {"upper_edges": [0.5, 1.0], "values": [0.1, 0.9]},
    ):
        with pytest.raises(ValueError, match="1 or num_classes|a row for each"):
            kc.HistogramBinning(**tables)
    with pytest.raises(ValueError, match=r"`values` .*\(.*, size\).*size=3"):
        kc.IsotonicCalibration(
            thresholds=[[0.1, 0.5, 0.9]], values=[[0.1, 0.9]]
        )
    with pytest.raises(ValueError, match="a row for each class"):
        kc.BetaCalibration(coefficients=[[1.0, 1.0, 0.0]] * 2)
    with pytest.raises(ValueError, match=r"\(num_classes, num_classes\)"):
        kc.MatrixScaling(matrix=[[1, 0, 0], [0, 1, 0]], bias=[0, 0])


@pytest.mark.parametrize(
    ("cls", "values", "rule"),
    [
        (kc.HistogramBinning, ([[0.5, 0.8]], [[0.2, 0.7]]), "end with 1 in"),
        (kc.HistogramBinning, ([[1.0, 0.5]], [[0.2, 0.7]]), "not decrease"),
        (kc.HistogramBinning, ([[0.5, 1.0]], [[-3, 7.0]]), "in .0, 1."),
        (kc.HistogramBinning, ([[]], [[]]), "must have the shape"),
        (kc.HistogramBinning, ([[0.5], [0.5, 1]], [[0.2, 0.7]]), "hold real"),
        (kc.IsotonicCalibration, ([[1.0, 0.5]], [[0.4, 0.8]]), "not decrease"),
        (kc.IsotonicCalibration, ([[0.5, 1.0]], [[0.8, 0.4]]), "not decrease"),
        (kc.IsotonicCalibration, ([[0.5, 1.0]], [[-2.0, 9.0]]), "in .0, 1."),
        (kc.IsotonicCalibration, ([[-5.0, 1.0]], [[0.1, 0.9]]), "in .0, 1."),
        (kc.VennAbers, ([[1.0, 0.0]], [[0.5] * 2], [[0.6] * 2]), "decrease"),
        (kc.VennAbers, ([[1.0]], [[1.5]], [[0.6]]), "`p1` must be in"),
        (kc.QuadraticScaling, ([[1.0, 0, 0]], [[2.0, 1.0]]), "not decrease"),
        (kc.BetaCalibration, ([[1.0, 0.0]],), "num_classes, 3"),
        (kc.TemperatureScaling, (-1.0,), "must be > 0"),
        # float32 has no such number.
        (kc.TemperatureScaling, (1e-60,), "must be > 0"),
        (kc.TemperatureScaling, ([1.0, 2.0],), "must be a number"),
        (kc.TemperatureScaling, (True,), "must be a number"),
        (kc.TemperatureScaling, ("hot",), "hold real numbers"),
        (kc.EnsembleTemperatureScaling, (2.0, [1.5, -0.5, 0]), "in .0, 1."),
        (kc.StructuredVectorScaling, (1.0, [0.1], [1], [0]), "be a number"),
    ],
)
def test_known_values_are_those_that_a_fit_could_find(cls, values, rule):
    given = dict(zip(cls.fitted_values, values, strict=True))
    with pytest.raises((ValueError, TypeError), match=rule):
        cls(**given)


def test_masks_of_sequences_pass_through():
    inputs = keras.Input((3,), dtype="int32")
    x = keras.layers.Embedding(5, 4, mask_zero=True)(inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*mask")
        kc.TemperatureScaling(temperature=2.0)(x)


def test_samples_of_weight_0_set_no_range():
    labels, logits = held_out()
    padding = np.tile([0.0, -1e9, -1e9, -1e9], (900, 1)).astype("float32")
    every = np.concatenate([logits, padding])
    weight = np.r_[np.ones(len(labels)), np.zeros(900)]
    both = np.r_[labels, np.zeros(900, int)]
    for cls in (kc.TemperatureScaling, kc.StructuredMatrixScaling):
        found = cls().fit(both, every, weight)
        expected = cls().fit(labels, logits)
        assert abs(found.temperature / expected.temperature - 1) < 1e-6


def test_only_ratios_of_small_weights_matter():
    labels, logits = held_out()
    weight = np.random.default_rng(1).uniform(0.1, 1.0, len(labels))
    for cls in (kc.VectorScaling, kc.StructuredMatrixScaling, kc.VennAbers):
        found, expected = (
            array(cls().fit(labels, logits, given, num_folds=0)(logits))
            for given in (weight * 1e-200, weight)
        )
        np.testing.assert_allclose(found, expected, atol=1e-3)

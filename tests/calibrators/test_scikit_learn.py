"""The classifier for scikit-learn gives what calibrator and model give."""

import functools
import importlib
import pickle
import sys

import joblib
import keras
import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.calibration import CalibrationDisplay
from sklearn.datasets import load_digits
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer
from sklearn.model_selection import (
    GridSearchCV,
    StratifiedKFold,
    cross_val_predict,
    cross_val_score,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import keras_calib as kc
from keras_calib.numerics.softmax import to_logits
from keras_calib.sklearn import CalibratedClassifier

X, DIGITS = load_digits(n_class=3, return_X_y=True)
X = X + np.random.default_rng(0).normal(0, 12, X.shape)
Y = np.array(["none", "one", "two"])[DIGITS]
FIT, REST = slice(0, 360), slice(360, None)
ECE = pickle.loads(pickle.dumps(functools.partial(kc.ece, num_bins=10)))


def network(outputs=3, activation=None):
    keras.utils.set_random_seed(0)
    layers = [keras.Input((64,)), keras.layers.Dense(outputs, activation)]
    model = keras.Sequential(layers)
    loss = "sparse_categorical_crossentropy"
    if outputs == 1:
        loss = "binary_crossentropy"
    elif activation is None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.3), loss)
    return model


def trained_network(outputs, activation):
    """A network that takes the nearest mean of the first classes."""
    model = network(outputs, activation)
    means = np.stack([X[k == DIGITS].mean(axis=0) / 16 for k in range(3)])
    kernel, bias = means.T, -0.5 * np.square(means).sum(axis=1)
    if outputs == 1:
        kernel, bias = kernel[:, 1:2] - kernel[:, :1], bias[1:2] - bias[:1]
    model.set_weights([kernel, bias])
    return model


def probs_by_hand(calibrator, labels, outputs, others, from_logits):
    """Fit and call of the calibrator alone."""
    if not from_logits:
        # Logs have a floor, as those of models.
        outputs, others = to_logits(outputs), to_logits(others)
    calibrator.fit(labels, outputs)
    return softmax(np.asarray(calibrator(others), "float64"), axis=-1)


@pytest.mark.parametrize(
    ("estimator", "method"),
    [
        (LogisticRegression(max_iter=1000), "predict_proba"),
        (LinearSVC(random_state=0), "decision_function"),
        (
            make_pipeline(StandardScaler(), LinearSVC(random_state=0)),
            "decision_function",
        ),
    ],
)
def test_one_calibrator_is_fitted_on_out_of_fold_predictions(estimator, method):
    cv = StratifiedKFold(3)
    model = CalibratedClassifier(estimator, kc.VectorScaling(), cv=cv)
    model.fit(X[FIT], Y[FIT])
    found = model.predict_proba(X[REST])
    outputs = cross_val_predict(
        estimator, X[FIT], DIGITS[FIT], cv=cv, method=method
    )
    fitted = clone(estimator).fit(X[FIT], DIGITS[FIT])
    wanted = probs_by_hand(
        kc.VectorScaling(),
        DIGITS[FIT],
        outputs,
        getattr(fitted, method)(X[REST]),
        method == "decision_function",
    )
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)
    assert model.classes_.tolist() == ["none", "one", "two"]
    assert model.n_features_in_ == 64
    assert (model.predict(X[REST]) == model.classes_[found.argmax(1)]).all()
    np.testing.assert_array_equal(
        np.exp(model.predict_log_proba(X[REST])), found
    )
    other = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(other.predict_proba(X[REST]), found)


def test_a_frozen_classifier_keeps_its_fit_and_all_its_classes():
    frozen = FrozenEstimator(GaussianNB().fit(X[FIT], Y[FIT]))
    some = np.flatnonzero(Y[REST] != "one") + 360
    model = CalibratedClassifier(frozen).fit(X[some], Y[some])
    assert model.estimator_ is frozen
    assert model.predict_proba(X[some]).shape == (len(some), 3)
    with pytest.raises(ValueError, match="`y` must hold classes that the"):
        model.fit(X[some], np.where(Y[some] == "two", "2", Y[some]))


def test_no_vote_counts_as_half_of_the_least_share():
    model = CalibratedClassifier(KNeighborsClassifier(4), cv=3)
    model.fit(X[FIT], Y[FIT])
    assert model.least_prob_ == 0.125
    votes = model.estimator_.predict_proba(X[REST])
    logits = np.log(np.maximum(votes, 0.125)) / model.calibrator_.temperature
    np.testing.assert_allclose(
        model.predict_proba(X[REST]), softmax(logits, axis=-1), atol=1e-6
    )


def test_weights_reach_the_classifier_and_the_calibrator():
    weight = np.where(np.arange(360) % 4, 1.0, 0.0)
    splits = [(np.arange(0, 180), np.arange(180, 360))]
    splits += [tuple(reversed(splits[0]))]
    kept = np.flatnonzero(weight)
    halves = [(kept < 180).nonzero()[0], (kept >= 180).nonzero()[0]]
    with_weights = CalibratedClassifier(GaussianNB(), cv=splits)
    with_weights.fit(X[FIT], Y[FIT], weight)
    without = CalibratedClassifier(GaussianNB(), cv=[halves, halves[::-1]])
    without.fit(X[kept], Y[kept])
    np.testing.assert_allclose(
        with_weights.predict_proba(X[REST]),
        without.predict_proba(X[REST]),
        atol=1e-6,
    )
    pipeline = make_pipeline(StandardScaler(), GaussianNB())
    with pytest.warns(RuntimeWarning, match="weighs the calibrator alone"):
        CalibratedClassifier(pipeline).fit(X[FIT], Y[FIT], weight)


@pytest.mark.portable
@pytest.mark.parametrize(
    ("outputs", "activation"), [(3, None), (3, "softmax"), (1, "sigmoid")]
)
def test_a_trained_model_is_calibrated_as_by_fit_on(outputs, activation):
    rows = np.arange(360) if outputs > 1 else np.flatnonzero(DIGITS < 2)[:200]
    x, labels, names = X[rows] / 16, DIGITS[rows], Y[rows]
    network_ = trained_network(outputs, activation)
    model = CalibratedClassifier(network_).fit(x, names)
    alone = kc.TemperatureScaling().fit_on(network_, (x, labels), verbose=0)
    assert model.calibrator_.temperature == pytest.approx(alone.temperature)
    found = model.predict_proba(x)
    raw = np.asarray(network_.predict(x, verbose=0), "float64")
    if outputs == 1:
        raw = np.concatenate([1 - raw, raw], axis=1)
    logits = raw if activation is None else np.log(raw)
    wanted = softmax(logits / alone.temperature, axis=-1)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert model.classes_.tolist() == sorted(set(names))
    # Ids need not all be there.
    some = labels != labels[0]
    assert outputs == 1 or set(model.fit(x[some], labels[some]).classes_) == {
        0,
        1,
        2,
    }
    assert clone(model).estimator is network_
    other = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(
        other.predict_proba(x), model.predict_proba(x), atol=1e-6
    )


@pytest.mark.slow
def test_a_function_is_called_for_each_fold_and_for_all(tmp_path):
    options = {"epochs": 3, "verbose": 0}
    model = CalibratedClassifier(network, cv=2, fit_options=options)
    model.fit(X[FIT] / 16, Y[FIT], [1.0] * 360)
    folds = cross_val_predict(
        model._classifier(), X[FIT] / 16, Y[FIT], cv=2, method="predict"
    )
    assert np.mean(folds == Y[FIT]) > 0.5
    joblib.dump(model, tmp_path / "model.joblib")
    other = joblib.load(tmp_path / "model.joblib")
    found = model.predict_proba(X[REST] / 16)
    np.testing.assert_allclose(
        other.predict_proba(X[REST] / 16), found, atol=1e-6
    )
    assert other.n_features_in_ == 64


def test_searches_pipelines_scores_and_pictures_take_it():
    grid = {
        "calibrator": ["temperature_scaling", kc.StructuredVectorScaling()],
        "estimator__var_smoothing": [1e-9, 1e-1],
    }
    search = GridSearchCV(
        CalibratedClassifier(GaussianNB(), cv=2),
        grid,
        scoring="neg_log_loss",
        cv=2,
        error_score="raise",
    ).fit(X[FIT], Y[FIT])
    best = search.best_estimator_
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])
    assert search.best_params_["calibrator"] in grid["calibrator"]
    scorer = make_scorer(
        kc.ece,
        response_method="predict_proba",
        greater_is_better=False,
        num_bins=10,
    )
    pipeline = make_pipeline(StandardScaler(), clone(best))
    scores = cross_val_score(
        pipeline, X, DIGITS, scoring=pickle.loads(pickle.dumps(scorer)), cv=2
    )
    assert (scores < 0).all()
    fitted = pipeline.fit(X[FIT], DIGITS[FIT])
    probs = fitted.predict_proba(X[REST])
    assert scorer(fitted, X[REST], DIGITS[REST]) == -ECE(DIGITS[REST], probs)
    two = DIGITS < 2
    pipeline.fit(X[two], DIGITS[two])
    display = CalibrationDisplay.from_estimator(pipeline, X[two], DIGITS[two])
    assert display.prob_true.size


def test_scorers_of_two_classes_and_of_names_are_those_of_the_docs():
    two = DIGITS < 2
    x, ids = X[two], DIGITS[two]
    names = np.array(["one", "zero"])[1 - ids]

    def less_ece(classifier, x, labels):
        ids = np.searchsorted(classifier.classes_, labels)
        return -kc.ece(ids, classifier.predict_proba(x))

    def scores(scoring, labels):
        return cross_val_score(
            GaussianNB(), x, labels, scoring=scoring, cv=2, error_score="raise"
        )

    assert np.array_equal(scores(less_ece, ids), scores(less_ece, names))
    made = functools.partial(
        make_scorer, response_method="predict_proba", greater_is_better=False
    )
    model = GaussianNB().fit(x, ids)
    second = model.predict_proba(x)[:, 1]
    assert made(kc.ece, mode="binary")(model, x, ids) == -kc.ece(
        ids, second, mode="binary"
    )
    with pytest.raises(ValueError, match='or `mode="binary"`'):
        scores(made(kc.ece), ids)
    with pytest.raises(TypeError, match="map names to class ids, from 0 on"):
        scores(made(kc.ece, mode="binary"), names)


def test_names_are_those_of_the_layers():
    with pytest.raises(ValueError, match="`calibrator` must be one of") as all_:
        CalibratedClassifier(GaussianNB(), "sigmoid").fit(X, Y)
    for kind in (kc.VennAbers, kc.IsotonicCalibration, kc.VectorScaling):
        assert f"'{kind().name}'" in str(all_.value)
    model = CalibratedClassifier(GaussianNB(), "venn_abers").fit(X, Y)
    assert isinstance(model.calibrator_, kc.VennAbers)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"estimator": StandardScaler()}, TypeError, "must be a classifier"),
        ({"estimator": lambda: 3}, TypeError, "must return a compiled Keras"),
        ({"calibrator": 3}, TypeError, "`calibrator` must be a calibrator"),
        (
            {"calibrator": kc.PriorCorrection([0.5, 0.5], [0.9, 0.1])},
            TypeError,
            "`calibrator` must fit on logits alone",
        ),
    ],
)
def test_wrong_arguments_raise_when_it_is_fitted(arguments, error, message):
    model = CalibratedClassifier(**{"estimator": GaussianNB(), **arguments})
    with pytest.raises(error, match=message):
        model.fit(X, Y)


# What fails for a reason of the classifier inside, with this reason.
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "LinearSVC draws its steps at random"
    ),
    "check_sample_weight_equivalence_on_sparse_data": (
        "LinearSVC draws its steps at random"
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("estimator", "calibrator", "expected"),
    [
        (LogisticRegression(), "temperature_scaling", {}),
        (GaussianNB(), "structured_vector_scaling", {}),
        (LinearSVC(random_state=0), "temperature_scaling", EXPECTED),
    ],
)
def test_checks_of_scikit_learn_pass(estimator, calibrator, expected):
    model = CalibratedClassifier(estimator, calibrator, cv=3)
    check_estimator(model, expected_failed_checks=expected)


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "keras_calib.sklearn")
    message = r"pip install 'keras-calib\[sklearn\]'"
    with pytest.raises(ImportError, match=message):
        importlib.import_module("keras_calib.sklearn")

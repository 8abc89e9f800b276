"""Calibrated classifiers for scikit-learn, of its estimators or Keras models.

Lives here: what scikit-learn asks of a classifier. Not here: the calibrators
(`calibrators`), and the predictions of a Keras model (`predictions`).
Floor: above `calibrators`.
"""

import copy
import re
from typing import Any, Self

import keras
import numpy as np
from scipy.special import log_softmax

from keras_calib import calibrators
from keras_calib.backend.errors import type_error, value_error, warn
from keras_calib.backend.late import imported
from keras_calib.calibrators.base import Calibrator
from keras_calib.calibrators.choosing import check_candidate
from keras_calib.calibrators.folds import calibrated, unfitted_copy
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.rows import both_classes
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import to_logits
from keras_calib.predictions.batches import predict_batches
from keras_calib.predictions.outputs import read_as, to_model_logits

imported("sklearn", "`keras_calib.sklearn`", "sklearn")

from sklearn import base, frozen, model_selection  # noqa: E402
from sklearn.utils import get_tags, indexable, multiclass  # noqa: E402
from sklearn.utils import validation as validity  # noqa: E402

__all__ = ["CalibratedClassifier"]


class CalibratedClassifier(
    base.ClassifierMixin, base.MetaEstimatorMixin, base.BaseEstimator
):
    """A classifier of scikit-learn with a calibrator of this library.

    Use it where scikit-learn expects a classifier: in pipelines, in searches
    over `calibrator`, under `cross_val_score`. `fit` calibrates predictions on
    samples that did not train the model which made them:

    *   A scikit-learn classifier is cloned. Clones fitted without one fold
        after another predict it, one calibrator is fitted on all of these
        predictions, and the classifier on all data.
    *   A function that builds a compiled Keras model is treated alike, with a
        new model for each fold.
    *   A trained Keras model, or `FrozenEstimator(classifier)`, stays as it
        is. All data given to `fit` are for the calibrator.

    Calibrators get log p of `predict_proba`, or the values of
    `decision_function` where there is no other. A probability of 0, as from
    votes of trees, counts as half of the least above 0 that `fit` saw.

    scikit-learn's `check_estimator` passes for a classifier that passes it
    alone. Two checks of weights fail for `LinearSVC`, which draws its steps at
    random: weights do not equal repeated samples.

    Args:
        estimator: One of these. The labels of a trained Keras model are class
            ids from 0 on, or its classes in sorted order.
        calibrator: A calibrator that fits on logits, or its name, such as
            `"isotonic_calibration"`; the object itself is not changed.
        cv: Number of folds, each with equal shares of the classes, or a
            splitter or splits of scikit-learn that predict each sample once.
        fit_options: For a function: keyword arguments of the model's `fit`,
            such as `{"epochs": 20, "verbose": 0}`.
        from_logits: Whether the Keras model returns logits; None takes it from
            the loss that the model was compiled with.
        batch_size: Number of samples that the Keras model predicts at a time.

    Attributes:
        classes_: The classes, in the order of the columns.
        estimator_: The fitted classifier, or a wrapper of the Keras model.
        calibrator_: The fitted calibrator.
        n_features_in_: Number of features, if the classifier knows it.

    Raises:
        TypeError: By `fit`, if an estimator or a calibrator is none.
        ValueError: By `fit`, if labels are no classes, or the calibrator
            refuses the data.

    Example:

    >>> from sklearn.datasets import load_digits
    >>> from sklearn.naive_bayes import GaussianNB
    >>> x, y = load_digits(return_X_y=True)
    >>> model = CalibratedClassifier(GaussianNB()).fit(x[::2], y[::2])
    >>> model.calibrator_
    TemperatureScaling(temperature=18.42)
    >>> probs = model.predict_proba(x[1::2])
    """

    def __init__(
        self,
        estimator: Any,
        calibrator: Calibrator | str = "temperature_scaling",
        *,
        cv: Any = 5,
        fit_options: dict[str, Any] | None = None,
        from_logits: bool | None = None,
        batch_size: int = 32,
    ):
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.fit_options = fit_options
        self.from_logits = from_logits
        self.batch_size = batch_size

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fits the classifier, unless it is trained, and the calibrator.

        Args:
            X: What the classifier takes, one row for each sample.
            y: Classes `(n,)`, numbers or strings.
            sample_weight: Weights `(n,)` for the calibrator, and for the
                classifier if its `fit` takes them.
        """
        calibrator, trained = _unfitted(self.calibrator), self._classifier()
        X, y = indexable(X, y)
        multiclass.check_classification_targets(y)
        y = validity.column_or_1d(y, warn=True)
        method = _method_of(trained)
        if isinstance(self.estimator, frozen.FrozenEstimator | keras.Model):
            outputs = getattr(trained, method)(X)
            if isinstance(trained, _Network):
                trained.note_fit(X, _classes_of(y, outputs))
        else:
            weights = _weights_for(trained, sample_weight)
            outputs = model_selection.cross_val_predict(
                trained, X, y, cv=self.cv, method=method, params=weights
            )
            trained = base.clone(trained).fit(X, y, **weights)
        self.estimator_ = trained
        self.classes_ = np.asarray(trained.classes_)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(trained, name):
                setattr(self, name, getattr(trained, name))
        self.least_prob_ = None
        if method == "predict_proba":
            least = np.min(outputs, initial=1.0, where=outputs > 0)
            self.least_prob_ = least / 2
        labels, logits = _ids_of(y, self.classes_), self._as_logits(outputs)
        self.calibrator_ = calibrator.fit(labels, logits, sample_weight)
        return self

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logs of calibrated probabilities `(n, num_classes)`, float64."""
        validity.check_is_fitted(self)
        outputs = getattr(self.estimator_, _method_of(self.estimator_))(X)
        found = calibrated(self.calibrator_, self._as_logits(outputs))
        return log_softmax(both_classes(found, True).astype("float64"), -1)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities `(n, num_classes)`, float64."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The class of the largest calibrated probability, `(n,)`."""
        ids = self.predict_log_proba(X).argmax(axis=-1)
        return self.classes_[ids]

    def __sklearn_clone__(self) -> Any:
        if not isinstance(self.estimator, keras.Model):
            return super().__sklearn_clone__()
        # A trained model is shared, as scikit-learn shares frozen estimators.
        light = copy.copy(self)
        light.estimator = None
        found = base.BaseEstimator.__sklearn_clone__(light)
        found.estimator = self.estimator
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if isinstance(self.estimator, base.BaseEstimator):
            tags.input_tags = get_tags(self.estimator).input_tags
        else:
            tags.no_validation = tags.non_deterministic = True
        return tags

    def _classifier(self) -> Any:
        """The estimator, a Keras model or a function as scikit-learn has it."""
        given = self.estimator
        is_function = callable(given) and not hasattr(given, "fit")
        if is_function or isinstance(given, keras.Model):
            return _Network(
                given, self.fit_options, self.from_logits, self.batch_size
            )
        return given

    def _as_logits(self, outputs: np.ndarray) -> np.ndarray:
        """Logits `(n, num_classes)`, or `(n, 1)` of the second of two."""
        if self.least_prob_ is None:
            return outputs.reshape(len(outputs), -1)
        return to_logits(np.maximum(outputs, self.least_prob_))


class _Network(base.ClassifierMixin, base.BaseEstimator):
    """A Keras model, or a function that builds one, as a classifier."""

    def __init__(
        self, model: Any, fit_options: Any, from_logits: Any, batch_size: int
    ):
        self.model = model
        self.fit_options = fit_options
        self.from_logits = from_logits
        self.batch_size = batch_size

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Builds a model and trains it on class ids."""
        model = self.model()
        if not isinstance(model, keras.Model):
            raise type_error(
                "`estimator` must return a compiled Keras model, if it is a "
                "function",
                returned=type(model).__name__,
            )
        classes, ids = np.unique(y, return_inverse=True)
        if sample_weight is not None:
            sample_weight = np.asarray(sample_weight, "float32")
        X = X if hasattr(X, "shape") else np.asarray(X)
        options = self.fit_options or {}
        model.fit(X, ids, sample_weight=sample_weight, **options)
        self.model_ = model
        return self.note_fit(X, classes)

    def note_fit(self, X: Any, classes: np.ndarray) -> Self:
        """Sets what scikit-learn asks of a fitted classifier."""
        self.classes_ = classes
        if len(np.shape(X)) == 2:
            self.n_features_in_ = np.shape(X)[1]
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits `(n, num_classes)`, also of one output for two classes."""
        model = getattr(self, "model_", self.model)
        from_logits = read_as(model, self.from_logits).from_logits
        batches = predict_batches(model, (X,), self.batch_size)
        outputs = np.concatenate([batch.outputs for batch in batches])
        logits = to_model_logits(outputs, from_logits, name="outputs")
        return to_numpy(logits)

    def predict(self, X: Any) -> np.ndarray:
        """The class of the largest logit, `(n,)`."""
        return self.classes_[self.decision_function(X).argmax(axis=-1)]


def _weights_for(classifier: Any, sample_weight: Any) -> dict[str, Any]:
    """Weights as arguments of `fit`, if it takes them; else it warns."""
    if sample_weight is None:
        return {}
    if not validity.has_fit_parameter(classifier, "sample_weight"):
        warn(
            "`sample_weight` weighs the calibrator alone, as `fit` of "
            f"`{type(classifier).__name__}` does not take it"
        )
        return {}
    return {"sample_weight": sample_weight}


def _method_of(estimator: Any) -> str:
    """The method whose outputs are calibrated; TypeError without one."""
    for name in ("predict_proba", "decision_function"):
        if hasattr(estimator, "fit") and hasattr(estimator, name):
            return name
    raise type_error(
        "`estimator` must be a classifier with `predict_proba` or "
        "`decision_function`, a trained Keras model, or a function that "
        "builds a compiled one",
        estimator=type(estimator).__name__,
    )


def _unfitted(calibrator: Any) -> Calibrator:
    """A new calibrator, of an object or of a name."""
    if isinstance(calibrator, str):
        kinds = {
            re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): kind
            for name, kind in vars(calibrators).items()
            if isinstance(kind, type) and issubclass(kind, Calibrator)
            if kind.fit_samples is not Calibrator.fit_samples
        }
        check_in("calibrator", calibrator, tuple(kinds))
        return kinds[calibrator]()
    check_candidate("calibrator", calibrator)
    return unfitted_copy(calibrator)


def _classes_of(y: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """The classes of a trained model's outputs: those of y, or ids."""
    found, count = np.unique(y), outputs.shape[-1]
    return found if len(found) == count else np.arange(count)


def _ids_of(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The place of each label among the sorted classes; ValueError for none."""
    known = np.isin(y, classes)
    if not known.all():
        raise value_error(
            "`y` must hold classes that the trained classifier knows; for a "
            "Keras model, class ids from 0 on or each class at least once",
            classes=classes.tolist()[:10],
            others=np.unique(y[~known]).tolist()[:10],
        )
    return np.searchsorted(classes, y)

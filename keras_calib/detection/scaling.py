"""Calibration of the confidence of detections, by class."""

from typing import Any, Self, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid, value_error, warn
from keras_calib.backend.locks import unbroken
from keras_calib.calibrators.columns import fit_columns
from keras_calib.calibrators.fitted_layer import FittedLayer, LayerOptions
from keras_calib.calibrators.logistic import least_polynomial
from keras_calib.detection.boxes import read_entries
from keras_calib.detection.matching import BoxPredictions, check_boxes
from keras_calib.inputs.checks import check_in, check_integer
from keras_calib.inputs.values import in_unit_interval
from keras_calib.numerics.arrays import as_array, to_numpy, value_if_eager

_METHODS = ("platt", "temperature")
# Confidences nearer to 0 or 1 have the log-odds of this distance.
_NEAREST = 1e-7


@keras.saving.register_keras_serializable(package="keras_calib")
class DetectionScaling(FittedLayer):
    """Platt or temperature scaling of the confidence of detections, by class.

    Use it behind a detector: fit it on matched boxes of images that did not
    train the detector, then call it on what the detector returns. With the
    log-odds s = log p / (1 - p) of a confidence p of class k, it becomes

    sigmoid(a_k s + b_k)

    a_k and b_k minimise the mean NLL of the detections of class k; with
    `method="temperature"` b_k = 0. Classes of few detections, or whose fit
    would reverse the order, take the fit of all detections. So confidence is
    still ordered within a class, and between classes it may change places.

    Args:
        num_classes: Number of classes, at least 1.
        method: `"platt"` or `"temperature"`.
        target: `"correct"` for the chance to be right, which D-ECE measures,
            or `"overlap"` for the expected overlap, which LaECE measures.
        by_class: Whether each class has a fit of its own.
        min_count: Least number of detections of a class for that. Defaults to
            `50`.
        coefficients: (a, b) of each class `(num_classes, 2)`, if you know
            them; None waits for `fit`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Raises:
        RuntimeError: If it is called before `fit`.
        TypeError: If it is called on something else than a dict of detections.
        ValueError: If an argument is out of range, or detections lack labels
            or confidence.

    Example:

    >>> scaling = DetectionScaling(1, coefficients=[[0.5, 0.0]])
    >>> found = {"confidence": np.array([[0.9, 0.5]]),
    ...          "labels": np.array([[0, 0]])}
    >>> confidence = scaling(found)["confidence"]
    >>> print(np.round(keras.ops.convert_to_numpy(confidence), 4))
    [[0.75 0.5 ]]

    Reference:
        Kuzucu et al., On Calibration of Object Detectors: Pitfalls,
        Evaluation and Baselines, ECCV 2024, https://arxiv.org/abs/2405.20459;
        Kueppers et al., Multivariate Confidence Calibration for Object
        Detection, CVPR Workshops 2020, https://arxiv.org/abs/2004.13546

    Differs:
        The released code of Kuzucu et al. takes 100 steps of L-BFGS and uses
        |a|. This fit solves for the optimum, and shares a fit where a would
        be negative.
    """

    how_to_fit = "`fit(match(labels, detections))` with held-out detections"

    def __init__(
        self,
        num_classes: int,
        *,
        method: str = "platt",
        target: str = "correct",
        by_class: bool = True,
        min_count: int = 50,
        coefficients: Any = None,
        **kwargs: Unpack[LayerOptions],
    ):
        check_integer("num_classes", num_classes, 1)
        check_in("method", method, _METHODS)
        check_in("target", target, ("correct", "overlap"))
        check_integer("min_count", min_count, 1)
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.method = method
        self.target = target
        self.by_class = bool(by_class)
        self.min_count = min_count
        if coefficients is not None:
            table = as_array(coefficients, "coefficients", "float32")
            if table.shape != (num_classes, 2):
                raise value_error(
                    "`coefficients` must have shape (num_classes, 2)",
                    shape=table.shape,
                    num_classes=num_classes,
                )
            if not np.isfinite(table).all():
                raise value_error(
                    "`coefficients` must be finite", coefficients=coefficients
                )
            self._set(table)

    @property
    def coefficients(self) -> np.ndarray:
        """(a, b) of each class `(num_classes, 2)`, float32."""
        self.check_fitted()
        return to_numpy(self._coefficients)

    def fit(self, predictions: BoxPredictions) -> Self:
        """Fits on held-out detections and returns self.

        Args:
            predictions: What `match` returns.

        Raises:
            TypeError: If `predictions` are not from `match`.
            ValueError: If there is no detection, a class is not below
                `num_classes`, or all detections are right or all wrong.
        """
        check_boxes(predictions, self.num_classes)
        label, target = predictions.groups["class"], predictions.overlap
        if self.target == "correct":
            target = predictions.correct
        if not 0.0 < target.sum() < len(target):
            raise value_error(
                "`predictions` must have right detections and wrong ones",
                right=int(predictions.correct.sum()),
                detections=len(target),
            )
        log_odds = _log_odds(np, predictions.confidence)

        def of_class(k: int) -> tuple:
            own = label == k
            return log_odds[own], target[own], None

        # Classes of few detections, or of one outcome, share the first fit.
        count = np.bincount(label, minlength=self.num_classes)
        total = np.bincount(label, target, self.num_classes)
        alone = (count >= self.min_count) & (total > 0.0) & (total < count)
        alone &= self.by_class
        every = range(self.num_classes)
        columns: list[tuple | None] = [(log_odds, target, None)]
        columns += [of_class(k) if alone[k] else None for k in every]
        rows = fit_columns(self._solve, columns, self.name)
        shared, *found = (point for (point,) in rows)
        if shared[0] <= 0.0:
            warn(
                invalid(
                    "The more confident these detections are, the less often "
                    "they are right, so that calibration reverses their "
                    "order: check `box_format` and the class ids of "
                    '`match`; a shift (`method="platt"`) may help',
                    slope=float(shared[0]),
                    method=self.method,
                )
            )
        self._set([x if x[0] > 0.0 else shared for x in found])
        return self

    @unbroken()
    def _set(self, coefficients: Any) -> None:
        self.set_arrays(coefficients=coefficients)
        self.mark_fitted()

    def _solve(
        self, log_odds: np.ndarray, target: np.ndarray, weight: Any
    ) -> tuple[tuple, float]:
        """The optimal (a, b), float64, and the loss."""
        column, size = (log_odds, target, weight), 1 + (self.method == "platt")
        point, loss = least_polynomial(column, size, 0.0, self.name)
        return (np.append(point, np.zeros(2 - size)),), loss

    # It is called by keyword too.
    def __call__(self, detections, *args, **kwargs):  # type: ignore[override]
        return super().__call__(detections, *args, **kwargs)

    def read_inputs(self, detections: Any) -> dict:
        """The detections, with class ids and confidence that are checked."""
        # Here, as Keras would convert odd arrays in its own words, or not.
        self.check_fitted()
        found, label, score = read_entries(detections)
        labels = value_if_eager(found[label])
        if labels is None:
            return found
        known = (labels == np.floor(labels)) & (labels >= -1)
        known &= labels < self.num_classes
        if not known.all():
            raise value_error(
                "`labels` of detections must be whole numbers < `num_classes`, "
                "or -1 for padding",
                smallest=labels.min().item(),
                largest=labels.max().item(),
                num_classes=self.num_classes,
            )
        confidence = value_if_eager(found[score])
        if confidence is None:
            return found
        bad = ~((confidence >= 0.0) & (confidence <= 1.0) | (labels < 0))
        if bad.any():
            raise value_error(
                "`confidence` of detections must lie in [0, 1]: give "
                "probabilities, not logits",
                boxes=int(bad.sum()),
                first=confidence[bad][:4].tolist(),
            )
        return found

    def check_inputs(self, detections: Any) -> None:
        """Nothing more: they are probabilities."""

    def call(self, detections):
        """Returns the detections with calibrated confidence.

        Args:
            detections: A dict with `"confidence"` (or `"scores"`)
                `(..., boxes)` in [0, 1] and `"labels"` (or `"classes"`) of
                that shape, -1 for padding. Other entries are passed on. What
                compiled code cannot refuse becomes NaN.
        """
        _, label, score = read_entries(detections)
        labels = ops.cast(detections[label], "int32")
        confidence = ops.cast(detections[score], "float32")
        rows = ops.clip(labels, 0, self.num_classes - 1)
        slope = ops.take(self._coefficients[:, 0], rows)
        shift = ops.take(self._coefficients[:, 1], rows)
        calibrated = ops.sigmoid(slope * _log_odds(ops, confidence) + shift)
        known = ops.logical_and(
            labels < self.num_classes, in_unit_interval(confidence)
        )
        calibrated = ops.where(known, calibrated, float("nan"))
        return {
            **detections,
            score: ops.where(labels >= 0, calibrated, confidence),
        }

    def fitted_summary(self) -> dict[str, Any]:
        """The coefficients."""
        return {"coefficients": self._coefficients}

    def get_config(self):
        names = ("num_classes", "method", "target", "by_class", "min_count")
        table = self.coefficients.tolist() if self._fitted else None
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "coefficients": table,
        }


def _log_odds(xp: Any, confidence: Any) -> Any:
    inside = xp.clip(confidence, _NEAREST, 1.0 - _NEAREST)
    return xp.log(inside) - xp.log1p(-inside)

"""Correction of logits for another prior of the classes."""

from typing import Any, Self, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid, type_error, value_error
from keras_calib.calibrators.base import Calibrator
from keras_calib.calibrators.fitted_layer import CalibratorOptions, of_logits
from keras_calib.formulas.prior import read_prior


@keras.saving.register_keras_serializable(package="keras_calib")
class PriorCorrection(Calibrator):
    """Correction of logits for other shares of the classes (label shift).

    Use it when classes are more or less frequent in use than in the data of
    training and calibration, as after negatives were undersampled. The logits
    become

    z_k + log(target_k / source_k)

    This is exact if p(x | class) is the same in both and the logits are
    calibrated for the source. So give it a calibrator for the source: it is
    applied first. `estimate_prior` finds an unknown target. A correction
    without a calibrator needs no fit. It does not pass on the interval of
    `VennAbers`.

    Args:
        source: Share of each class in the data of the fit `(num_classes,)`,
            >= 0, with sum 1.
        target: Share of each class where it is used `(num_classes,)`, >= 0,
            with sum 1, 0 where `source` is 0.
        calibrator: A calibrator for the source, fitted or to be fitted by
            `fit` and `fit_on` of this layer; None corrects the logits as they
            are.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Raises:
        ValueError: If priors are no shares of the same classes, or a class of
            the target is absent from the source.
        TypeError: If `calibrator` is no calibrator.

    Example:

    >>> correction = PriorCorrection(source=[0.5, 0.5], target=[0.9, 0.1])
    >>> logits = correction(np.log([[0.5, 0.5]]))
    >>> probs = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    >>> print(np.round(probs, 4))
    [[0.9 0.1]]

    Reference:
        Saerens, Latinne and Decaestecker, Adjusting the Outputs of a
        Classifier to New a Priori Probabilities: A Simple Procedure, Neural
        Computation 2002, https://doi.org/10.1162/089976602753284446
    """

    def __init__(
        self,
        source: Any,
        target: Any,
        *,
        calibrator: Calibrator | None = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        source = read_prior("source", source)
        target = read_prior("target", target)
        if source.shape != target.shape:
            raise value_error(
                "`target` must have a share for each class of `source`",
                **{"source.shape": source.shape, "target.shape": target.shape},
            )
        absent = np.flatnonzero((source == 0) & (target > 0)).tolist()
        if absent:
            raise value_error(
                "`target` must be 0 for a class that is absent from `source`; "
                "no correction can predict it",
                absent=absent,
            )
        if calibrator is not None and not isinstance(calibrator, Calibrator):
            raise type_error(
                "`calibrator` must be a Calibrator or None; a choice has one, "
                "`choice.calibrator`",
                calibrator=type(calibrator).__name__,
            )
        if getattr(calibrator, "use_image", False):
            raise value_error(
                "`calibrator` must be a map of logits alone", use_image=True
            )
        known = getattr(calibrator, "_num_classes", None)
        if known not in (None, len(source)):
            raise value_error(
                "`source` must have a share for each class of `calibrator`",
                classes=len(source),
                classes_of_calibrator=known,
            )
        super().__init__(**kwargs)
        self.source = source
        self.target = target
        self.calibrator = calibrator
        self._num_classes = len(source)
        some = target > 0
        ratio = np.where(some, target, 1.0) / np.where(some, source, 1.0)
        shift = np.where(some, np.log(ratio), -np.inf)
        self.set_arrays(shift=shift)

    @property
    def from_logits(self) -> bool | None:
        """Whether its calibrator was fitted on logits."""
        if self.calibrator is None:
            return self._from_logits
        return self.calibrator.from_logits

    @property
    def _fitted(self) -> bool:
        return self.calibrator is None or self.calibrator.fitted

    @_fitted.setter
    def _fitted(self, value: bool) -> None:
        if self.calibrator is not None:
            self.calibrator._fitted = value

    def fit(self, *data: Any, **options: Any) -> Self:
        """Fits the calibrator on data of the source, as it does itself.

        Raises RuntimeError if there is none. The priors stay.
        """
        if self.calibrator is None:
            raise RuntimeError(
                invalid(
                    "`calibrator` must be given to fit it; the correction "
                    "alone needs no fit",
                    calibrator=None,
                )
            )
        self.calibrator.fit(*data, **options)
        return self

    def map_logits(self, logits: Any) -> Any:
        if self.calibrator is not None:
            logits = of_logits(self.calibrator, logits)
        return ops.cast(logits, "float32") + self._shift

    def num_parameters(self, num_classes: int) -> int:
        """Those of the calibrator, if there is one."""
        if self.calibrator is None:
            return 0
        return self.calibrator.num_parameters(num_classes)

    def fitted_summary(self) -> dict[str, Any]:
        """Priors and calibrator by name."""
        return {
            "source": self.source,
            "target": self.target,
            "calibrator": self.calibrator,
        }

    def get_config(self):
        return {
            **super().get_config(),
            "source": self.source.tolist(),
            "target": self.target.tolist(),
            "calibrator": keras.saving.serialize_keras_object(self.calibrator),
        }

    @classmethod
    def from_config(cls, config):
        inner = keras.saving.deserialize_keras_object(config["calibrator"])
        return cls(**{**config, "calibrator": inner})

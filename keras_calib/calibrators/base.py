"""The base of every calibrator."""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import numpy as np
from keras import ops

from keras_calib.backend.arguments import KeepsArguments
from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.locks import unbroken
from keras_calib.backend.traced import note_graph
from keras_calib.calibrators.fitted_layer import (
    CalibratesPredictions,
    CalibratorOptions,
)
from keras_calib.calibrators.fitting_data import (
    FittingData,
    one_thread_of_blas,
    read_predictions,
)
from keras_calib.calibrators.folds import warn_if_harmful
from keras_calib.numerics.arrays import (
    as_array,
    as_numbers,
    shape_of,
    to_numpy,
    value_if_eager,
)
from keras_calib.numerics.softmax import is_ruled_out
from keras_calib.predictions.outputs import to_model_logits
from keras_calib.predictions.predictions import Predictions

_LIMITS = np.finfo("float32")
_TINY, _LARGEST = float(_LIMITS.tiny), float(_LIMITS.max)
# Least and largest of fitted values, by the rule in words.
_RANGES = {
    "finite": (-_LARGEST, _LARGEST),
    "> 0 and finite": (_TINY, _LARGEST),
    "> 0 and <= 1": (_TINY, 1.0),
    "in [0, 1]": (0.0, 1.0),
}


class FittedValue(property):
    """A fitted value of a calibrator: how it is read, and what it must be.

    Args:
        *shape: Its shape; none for a number. Equal names are equal sizes.
        rule: What the values must be, of those that have a range.
        ascends: Whether no row decreases.
    """

    def __init__(
        self, *shape: str | int, rule: str = "finite", ascends: bool = False
    ):
        super().__init__(self._read)
        self.shape = shape
        self.rule = rule
        self.ascends = ascends

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.__doc__ = f"The fitted `{name}`, as its argument explains it."

    def _read(self, calibrator: Any) -> Any:
        value = calibrator.fitted_value(self.name)
        return value if self.shape else float(value)

    def check(self, array: np.ndarray, by_label: bool) -> None:
        """Raises unless an array can be it; `by_label` there are several."""
        name, (low, high) = self.name, _RANGES[self.rule]
        is_number = array.ndim <= by_label and array.dtype.kind != "b"
        if not (self.shape or is_number):
            raise type_error(f"`{name}` must be a number", value=array)
        right = (array >= low) & (array <= high)
        if not right.all():
            wrong = array[~right][:4].tolist()
            raise value_error(f"`{name}` must be {self.rule}", **{name: wrong})
        falls = (np.diff(np.atleast_2d(array)) < 0).any(axis=-1)
        if self.ascends and falls.any():
            raise value_error(
                f"`{name}` must not decrease within a row",
                rows=np.flatnonzero(falls)[:4].tolist(),
            )

    def check_shape(self, array: np.ndarray, sizes: dict[str, int]) -> None:
        """Raises ValueError for a shape of other sizes; notes new ones."""
        known = {k: v for k, v in sizes.items() if k in self.shape}
        right = array.ndim == len(self.shape) and array.size > 0
        for size, wanted in zip(array.shape, self.shape, strict=False):
            if isinstance(wanted, str):
                wanted = sizes.setdefault(wanted, size)
            right = right and size == wanted
        if not right:
            shape = str(self.shape).replace("'", "")
            raise value_error(
                f"`{self.name}` must have the shape {shape}",
                **{f"{self.name}.shape": array.shape, **known},
            )


class Calibrator(KeepsArguments, CalibratesPredictions):
    """Abstract: a layer that maps logits to calibrated logits.

    Fit it after training, on held-out data that neither trained nor chose
    anything: `fit(predictions)`, `fit(labels, logits)`, or `fit_on(model,
    data)`. Then call it on what it was fitted on, `(..., num_classes)`; it
    returns float32 logits of that shape, -inf where they were. Fitted on
    probabilities, it takes them and returns log-probabilities.

    `calibrate` maps `Predictions`. Put the layer behind a model with
    `keras.Sequential`, save it, or export it. Its configuration has the fitted
    values, and so do copies.

    A subclass declares each `FittedValue` and takes it in its constructor. It
    implements `fit_samples`, which sets them with `set_fitted`, `map_logits`,
    which maps two or more logits, and `num_parameters`, if there are more than
    two.

    Args:
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Raises:
        RuntimeError: If it is called before `fit`.
        ValueError: If an argument is out of range.

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        section 4, https://arxiv.org/abs/1706.04599
    """

    # Constructor arguments, variables and properties alike, by name.
    fitted_values: Mapping[str, FittedValue] = {}
    # Whether a class without a sample leaves something undetermined.
    needs_every_class = True
    # Whether a fit cannot raise the NLL of its own samples.
    lowers_nll = False

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        own = {k: v for k, v in vars(cls).items() if isinstance(v, FittedValue)}
        cls.fitted_values = {**cls.fitted_values, **own}

    def __init__(self, **kwargs: Unpack[CalibratorOptions]):
        super().__init__(**kwargs)
        self.supports_masking = True
        self._num_classes: int | None = None

    def fit_given(
        self, given: Predictions, num_folds: int, force: bool
    ) -> None:
        """Reads predictions, fits, and compares the fit with none."""
        samples = read_predictions(given)
        self.check_enough(samples, force)
        with one_thread_of_blas():
            self.fit_samples(samples)
            warn_if_harmful(self, samples, num_folds)
        self.num_samples, self.num_units = samples.sizes()

    def fit_samples(self, samples: FittingData) -> None:
        """Fits on samples that are read and checked."""
        raise NotImplementedError

    def map_logits(self, logits: Any) -> Any:
        """Calibrates logits `(..., num_classes)`, float32."""
        raise NotImplementedError

    def num_parameters(self, num_classes: int) -> int:
        """Number of parameters of a fit, which needs as many samples.

        By default two, the least there are.
        """
        return 2

    def degrees_of_freedom(self, samples: FittingData) -> float:
        """About how many free numbers a fit chose from the samples."""
        return float(sum(self.fitted_value(k).size for k in self.fitted_values))

    def check_fitted(self) -> None:
        """Raises RuntimeError before `fit`; whoever reads the fit calls it."""
        super().check_fitted()
        note_graph(self)

    def call(self, logits, *, from_logits=None):
        """Calibrates logits, or the logits of probabilities.

        Args:
            logits: The model's outputs `(..., num_classes)`, or `(..., 1)` for
                the second of two classes.
            from_logits: Whether they are logits. If False they are
                probabilities, of which it takes the log, or the log-odds of
                one output. None takes them as those of the fit.

        Returns:
            Calibrated logits of the same shape, float32. Fitted on
            probabilities, log-probabilities of them, or the log-odds of one
            output.
        """
        return self.mapped(self.map_logits, logits, from_logits)

    def mapped(
        self,
        map_logits: Callable[[Any], Any],
        logits: Any,
        from_logits: bool | None,
    ) -> Any:
        """Outputs of a model, mapped by a function of two or more logits."""
        pair, one_output = self.model_logits(logits, from_logits)
        # A map may lift such a logit, as a temperature does.
        found = ops.where(is_ruled_out(pair), pair, map_logits(pair))
        if one_output:
            return found[..., 1:] - found[..., :1]
        if self.takes_logits(None):
            return found
        return ops.log_softmax(found)

    def model_logits(
        self, outputs: Any, from_logits: bool | None
    ) -> tuple[Any, bool]:
        """Two or more logits of a model's outputs; whether there is one output.

        Raises RuntimeError before `fit`, and ValueError for other classes.
        """
        self.check_fitted()
        shape = shape_of(outputs)
        num_classes = None if shape[-1] is None else max(shape[-1], 2)
        if num_classes not in (None, self._num_classes or num_classes):
            raise value_error(
                f"`logits` must have {self._num_classes} classes, as when "
                "fitted",
                **{"logits.shape": shape},
            )
        from_logits = self.takes_logits(from_logits)
        if shape[-1] == 1 or not from_logits:
            outputs = to_model_logits(outputs, from_logits)
        return outputs, shape[-1] == 1

    def logits_for_interval(
        self, outputs: Any, from_logits: bool | None
    ) -> tuple[Any, bool]:
        """`model_logits` of arrays of any kind, without NaN if eager."""
        outputs = as_numbers(outputs, "logits")
        values = value_if_eager(outputs)
        if values is not None and np.isnan(values).any():
            raise value_error(
                "`logits` must not contain NaN",
                places=np.argwhere(np.isnan(values))[:4].tolist(),
            )
        return self.model_logits(outputs, from_logits)

    def get_config(self):
        values = dict.fromkeys(self.fitted_values)
        if self._fitted:
            values = {k: self.fitted_value(k).tolist() for k in values}
        return {**super().get_config(), **self._kept(), **values}

    def fitted_summary(self) -> dict[str, Any]:
        """The fitted variables by name."""
        return {name: getattr(self, "_" + name) for name in self.fitted_values}

    def fitted_value(self, name: str) -> np.ndarray:
        """A fitted value, float32; raises RuntimeError before `fit`."""
        self.check_fitted()
        return to_numpy(getattr(self, "_" + name))

    def set_fitted(self, num_classes: int | None = None, **values: Any) -> None:
        """Sets all fitted values, or none if one is rejected.

        `num_classes` is the number that they are for; None if they fit any.
        """
        arrays = {
            k: np.asarray(values[k], "float32") for k in self.fitted_values
        }
        with unbroken():
            self.set_arrays(**arrays)
            self._num_classes = num_classes
            self.mark_fitted()

    def given_arrays(
        self, values: dict[str, Any], *, by_label: bool = False
    ) -> dict[str, np.ndarray]:
        """Fitted values given to the constructor: all of them, or none.

        Raises ValueError for one that no fit can have. Those of several labels
        have a temperature for each.
        """
        given = {k: as_array(v, k) for k, v in values.items() if v is not None}
        if given and set(given) != set(self.fitted_values):
            names = " and ".join(f"`{name}`" for name in self.fitted_values)
            raise value_error(
                f"{names} must be given together", given=list(given)
            )
        for name, array in given.items():
            self.fitted_values[name].check(array, by_label)
        return {k: v.astype("float32") for k, v in given.items()}

    def set_known(
        self, sizes: Mapping[str, int] | None = None, **values: Any
    ) -> None:
        """Sets values given to the constructor: all of them, or none.

        `sizes` are known sizes by their names in shapes.
        """
        arrays, found = self.given_arrays(values), dict(sizes or {})
        for name, array in arrays.items():
            self.fitted_values[name].check_shape(array, found)
        if arrays:
            self.set_fitted(self.known_classes(found), **arrays)

    def known_classes(self, sizes: Mapping[str, int]) -> int | None:
        """Number of classes that given values are for; None for any."""
        return sizes.get("num_classes")

    def check_enough(self, samples: FittingData, force: bool = False) -> None:
        """Raises ValueError if the samples are too few for a fit."""
        present, kind = samples.has_class(), type(self).__name__
        if present.sum() < 2:
            raise value_error(
                "`labels` must hold two classes or more",
                classes=np.flatnonzero(present).tolist(),
            )
        if force:
            return
        absent = np.flatnonzero(~present).tolist()
        if self.needs_every_class and absent:
            raise value_error(
                f"`labels` must hold every class for `{kind}`; `force=True` "
                "fits all the same",
                absent=absent if len(absent) <= 10 else [*absent[:10], "..."],
            )
        count = int(samples.counts().sum())
        needed = self.num_parameters(len(present))
        if count < needed:
            raise value_error(
                f"`{kind}` must have as many samples as parameters; "
                "`force=True` fits all the same",
                samples=count,
                parameters=needed,
            )

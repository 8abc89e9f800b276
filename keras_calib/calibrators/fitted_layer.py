"""The bases of layers that are fitted on held-out data."""

import contextlib
import re
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Self, TypedDict

import keras
import numpy as np
from keras import ops
from scipy.special import expit

from keras_calib.backend.errors import invalid, type_error, value_error, warn
from keras_calib.backend.keras_internals import unlock_variables
from keras_calib.backend.progress import shows_progress
from keras_calib.backend.traced import forget_constants, is_in_live_graph
from keras_calib.inputs.checks import check_flag, check_integer
from keras_calib.inputs.rows import check_call
from keras_calib.numerics.arrays import as_numbers, shape_of, to_numpy
from keras_calib.numerics.results import call_text, html_facts
from keras_calib.predictions.fitting import FitsOnModel, check_kind, given_rows
from keras_calib.predictions.options import check_uncalibrated, fits_within
from keras_calib.predictions.predictions import Predictions

# Layers that are told when a part of theirs is fitted, by this part.
DEPENDENTS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# What a fit remembers of its data, in configurations that know it.
_SIZES = "num_samples", "num_units"


class LayerOptions(TypedDict, total=False):
    """Options of Keras' layers that those of this library pass on."""

    name: str | None
    trainable: bool
    dtype: Any
    from_logits: bool | None


class CalibratorOptions(LayerOptions, total=False):
    """The same, and how many samples and units fitted values are of."""

    num_samples: int | None
    num_units: int | None


class FittedLayer(keras.layers.Layer):
    """Abstract: a layer that needs `fit` before use; its repr shows the fit.

    It remembers whether it was fitted on logits or on probabilities.

    Args:
        from_logits: Whether given fitted values are for logits; None for what
            `fit` will be told.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.
    """

    # Keras says it where type checkers may not have looked yet.
    built: bool

    _fitted = False
    # How many fits there were: a threshold is for one of them.
    num_fits = 0
    # Whether each output is one of two classes, not one of many.
    reads_labels = False
    # What a user who forgot to fit it has to call.
    how_to_fit = "`fit(labels, logits)` with held-out data"
    # What it gives, for whoever asks a model that ends in it.
    returns_logits = True
    # Set once the operation of a traced graph caused a warning.
    _has_told = False

    def __init__(self, *, from_logits: bool | None = None, **kwargs: Any):
        if from_logits is not None:
            check_flag("from_logits", from_logits)
        # Keras names those of users, each anew.
        if type(self).__module__.startswith("keras_calib."):
            name = re.sub("(?<=[a-z])(?=[A-Z])", "_", type(self).__name__)
            kwargs = {"name": name.lower(), **kwargs}
        # A half-precision policy would turn logits of 1e5 into infinity.
        super().__init__(**{**kwargs, "dtype": "float32"})
        self._from_logits = from_logits
        self.unique_id = uuid.uuid4().hex

    def __call__(self, logits, *args, **kwargs):
        inputs = self.read_inputs(logits)
        if self._fitted and self.takes_logits(kwargs.get("from_logits")):
            self.check_inputs(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def read_inputs(self, inputs: Any) -> Any:
        """Logits of any kind as an array or tensor; a list begins with them."""
        if isinstance(inputs, Predictions):
            check_uncalibrated(inputs, self)
            raise type_error(
                "`logits` must be outputs of a model: call the layer with "
                "`p.outputs, from_logits=p.from_logits` of `Predictions`; "
                "`calibrate(p)` of a calibrator gives calibrated ones",
                logits=inputs,
            )
        # Keras would drop the mask of a masked array.
        return as_numbers(inputs, "logits")

    def check_inputs(self, inputs: Any) -> None:
        """Tells of logits that look like probabilities."""
        logits = inputs[0] if isinstance(inputs, list) else inputs
        self._has_told = check_call(
            logits, "logits", self._has_told, self.reads_labels
        )

    @property
    def from_logits(self) -> bool | None:
        """Whether it was fitted on logits; None before a fit."""
        return self._from_logits

    def takes_logits(self, from_logits: bool | None) -> bool:
        """Whether outputs are read as logits; None reads those of the fit."""
        if from_logits is None:
            from_logits = self.from_logits
        return from_logits is None or from_logits

    @contextlib.contextmanager
    def remembering(self, from_logits: bool) -> Iterator[None]:
        """A fit on logits or probabilities, remembered if it succeeds.

        Raises:
            ValueError: If compiled functions hold a fit on the other kind.
        """
        if self.takes_logits(None) != from_logits and is_in_live_graph(self):
            raise value_error(
                f"`{type(self).__name__}` must not change between logits and "
                "probabilities while a compiled function holds it, such as "
                "that of `model.predict`. Fit a new one and build a new model "
                "with it",
                from_logits=from_logits,
                fitted_from_logits=self.from_logits,
            )
        yield
        self._from_logits = from_logits

    @property
    def fitted(self) -> bool:
        """Whether `fit` has run, or the fitted values were given."""
        return self._fitted

    def set_arrays(self, **values: Any) -> None:
        """Sets fitted variables, and makes those that the layer lacks.

        The variable of `x` is `self._x`, and None deletes it. If one has
        another shape than before, all are made anew, in the order of their
        names: files identify variables by their order. An int32 array stays
        one, anything else becomes float32.

        Raises:
            ValueError: If shapes change while a compiled function, which would
                go on with the old values, holds the layer. Nothing changes.
        """
        arrays = {k: np.asarray(v) for k, v in values.items() if v is not None}
        for name, x in arrays.items():
            if x.dtype != "int32":
                arrays[name] = x.astype("float32")
        now = {k: v.shape for k, v in arrays.items()}
        known = {k: getattr(self, f"_{k}", None) for k in values}
        before = {k: shape_of(v) for k, v in known.items() if v is not None}
        if before != now:
            if before and is_in_live_graph(self):
                raise value_error(
                    f"`{type(self).__name__}` must not change its size while a "
                    "compiled function holds it, such as that of "
                    "`model.predict`, which would go on with the old fit. Fit "
                    "a new one and build a new model with it",
                    before=before,
                    now=now,
                )
            built = bool(getattr(self, "built", False))
            if before or built:
                # The next call builds and locks again.
                unlock_variables(self)
                self.built = False
            for name in before:
                delattr(self, f"_{name}")
            for name, array in arrays.items():
                variable = self.add_weight(
                    array.shape,
                    "zeros",
                    dtype=array.dtype.name,
                    trainable=False,
                    name=name,
                )
                setattr(self, f"_{name}", variable)
        for name, array in arrays.items():
            getattr(self, f"_{name}").assign(ops.convert_to_tensor(array))

    def mark_fitted(self) -> None:
        """Notes a fit; whoever sets the fitted values calls it last."""
        self._fitted = True
        self.num_fits += 1
        if forget_constants(self):
            warn(
                f"Functions of `{type(self).__name__}` that `jax.jit` compiled "
                "go on with its earlier fit, which is a constant of theirs: "
                "compile them anew"
            )
        for layer in [*DEPENDENTS.get(self, ())]:
            layer.part_was_fitted()

    def check_fitted(self) -> None:
        """Raises RuntimeError before `fit`."""
        if not self._fitted:
            raise RuntimeError(
                invalid(
                    f"`{type(self).__name__}` must be fitted before use: call "
                    f"{self.how_to_fit}",
                    fitted=False,
                )
            )

    def get_config(self):
        config = super().get_config()
        del config["dtype"]
        if self._from_logits is not None:
            config["from_logits"] = self._from_logits
        return config

    def fitted_summary(self) -> dict[str, Any]:
        """The fitted values by name, for the repr."""
        raise NotImplementedError

    def __repr__(self):
        if not self._fitted:
            return f"{type(self).__name__}(not fitted)"
        return call_text(type(self).__name__, self.fitted_summary())

    def _repr_html_(self) -> str:
        facts = self.fitted_summary() if self._fitted else {"fitted": False}
        return html_facts(type(self).__name__, facts)


class CalibratesPredictions(FittedLayer, FitsOnModel):
    """Abstract: a fitted layer that returns logits in place of outputs.

    Args:
        num_samples: Effective number of samples that given fitted values are
            of, an attribute that `fit` sets; None if it is not known.
        num_units: That of the images or other units that these were in; None
            if each sample is alone.
        **kwargs: Those of `FittedLayer`.
    """

    def __init__(
        self,
        *,
        num_samples: int | None = None,
        num_units: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        for name, size in zip(_SIZES, (num_samples, num_units), strict=True):
            if size is not None:
                check_integer(name, size, 1)
        self.num_samples, self.num_units = num_samples, num_units

    def get_config(self):
        sizes = {k: getattr(self, k) for k in _SIZES}
        known = {k: x for k, x in sizes.items() if x is not None}
        return {**super().get_config(), **known}

    def build(self, input_shape):
        self.check_fitted()

    def compute_output_shape(self, input_shape):
        return input_shape

    @shows_progress
    def fit(
        self,
        labels: Any,
        logits: Any = None,
        sample_weight: Any = None,
        *,
        from_logits: bool = True,
        ignore_class: int | None = None,
        num_folds: int = 5,
        force: bool = False,
        verbose: str | int = "auto",
    ) -> Self:
        """Fits on held-out logits and returns self; replaces an earlier fit.

        Args:
            labels: `Predictions`, which know the next four arguments. Or class
                ids `(n, ...)`, or one-hot or soft labels
                `(n, ..., num_classes)`. With several labels 0 or 1 for each,
                or a probability, `(n, ..., labels)`.
            logits: Logits `(n, ..., num_classes)`, or `(n, ..., 1)` for the
                second of two classes, or `(n, ..., labels)`. float32 and
                float64 are not copied, and may be memory maps.
            sample_weight: Weights `(n,)`, or of the shape of the class ids, or
                `(n, ..., labels)`, where a label of weight 0 is missing.
            from_logits: Whether `logits` are logits; False takes them as
                probabilities, of which it takes the log, or the log-odds of
                several labels.
            ignore_class: Class id to leave out, such as 255, or the value of
                missing labels, such as -1.
            num_folds: Number of folds, >= 2, for a check that the calibrator
                helps samples that it is not fitted on; 0 skips it. The check
                fits each fold anew, but runs only where the gain in NLL could
                be chance.
            force: Fit even with fewer samples than parameters, or with a class
                that has no sample. One of several labels without both outcomes
                then keeps its logits.
            verbose: `"auto"` or 1 for a progress bar after two seconds, 2 for
                a line at the end, 0 for silence.

        Raises:
            ValueError: If shapes do not fit, a logit is NaN or infinite, or
                that of a label is -inf. If fewer than two classes have samples,
                or a compiled function holds a fit of another size. Without
                `force` also if samples are too few, or one of several labels
                lacks an outcome. The previous fit stays.

        Warns:
            RuntimeWarning: If the fit did not converge, or the folds find it
                worse than no calibrator.
        """
        check_integer("num_folds", num_folds, 0)
        if num_folds == 1:
            raise value_error("`num_folds` must be 0, or >= 2", num_folds=1)
        given = self.given(
            labels,
            logits,
            sample_weight=sample_weight,
            from_logits=from_logits,
            ignore_class=ignore_class,
        )
        with self.remembering(given.from_logits):
            self.fit_given(given, num_folds, force)
        return self

    def given(self, *data: Any, **options: Any) -> Predictions:
        """What `fit` was given, not yet checked."""
        return given_rows(*data, by_label=self.reads_labels, **options)

    def fit_given(
        self, given: Predictions, num_folds: int, force: bool
    ) -> None:
        """Fits on predictions; `fit` remembers whether they are logits."""
        raise NotImplementedError

    def calibrate(self, predictions: Predictions) -> Predictions:
        """Calibrate predictions: the same rows with calibrated logits.

        Groups, units, ids and weights stay. What is on disk stays there, and
        is calibrated part by part. Until they are written to a file, the result
        and its parts are refused by the same fit, also in a selector.

        Args:
            predictions: `Predictions` of classes, or with several labels of
                labels. A log gets another confidence.

        Returns:
            `Predictions` of logits; of a log, of the calibrated confidence.

        Raises:
            RuntimeError: If it is called before `fit`.
            ValueError: If the predictions are of another kind, or this fit has
                calibrated them already.
        """
        self.check_fitted()
        check_kind(predictions, self.reads_labels)
        check_uncalibrated(predictions, self)

        def logits_of(part: Predictions) -> np.ndarray:
            outputs = ops.convert_to_tensor(part.outputs)
            inputs = self.inputs_of(part, outputs)
            return to_numpy(self(inputs, from_logits=part.from_logits))

        def confidence_of(part: Predictions) -> np.ndarray:
            return expit(logits_of(part.as_event())[:, 0])

        is_log = predictions.kind == "records"
        change: Callable = confidence_of if is_log else logits_of
        fits = *predictions.calibrated_by, *fits_within(self)
        facts = {"from_logits": not is_log, "calibrated_by": fits}
        return predictions.with_outputs(change, facts)

    def inputs_of(self, part: Predictions, outputs: Any) -> Any:
        """What the layer is called with for a part of predictions."""
        return outputs


def of_logits(layer: Any, logits: Any) -> Any:
    """What a layer or function makes of logits, whatever it was fitted on."""
    if isinstance(layer, FittedLayer):
        return layer(logits, from_logits=True)
    return layer(logits)

"""The base of every calibrator."""

from collections.abc import Callable, Iterable
from typing import Any, Self

import numpy as np
from keras import ops

from keras_calib.backend.arguments import KeepsArguments
from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.keras_internals import unlock_variables
from keras_calib.backend.traced import is_in_live_graph, note_graph
from keras_calib.calibrators.fitted_layer import FittedLayer
from keras_calib.calibrators.fitting_data import (
    FittingData,
    one_thread_of_blas,
    read_any,
)
from keras_calib.calibrators.folds import check_folds, warn_if_harmful
from keras_calib.numerics.arrays import (
    as_array,
    as_numbers,
    fits,
    shape_of,
    to_numpy,
    value_if_eager,
)
from keras_calib.numerics.softmax import is_ruled_out
from keras_calib.predictions.collect import FitsOnModel
from keras_calib.predictions.outputs import to_model_logits

__all__ = ["Calibrator", "check_shapes", "fitted_array"]

_LIMITS = np.finfo("float32")
_TINY, _LARGEST = float(_LIMITS.tiny), float(_LIMITS.max)
_ANY, _SHARE = (-_LARGEST, _LARGEST, "finite"), (0.0, 1.0, "in [0, 1]")
_SCALARS = "temperature", "uniform_share"
# The ranges of fitted values by name, where they are not any number.
_RANGES = {
    "temperature": (_TINY, _LARGEST, "> 0 and finite"),
    "uniform_share": (_TINY, 1.0, "> 0 and <= 1"),
    "mixture": _SHARE,
    "values": _SHARE,
    "p1": _SHARE,
    "p0_complement": _SHARE,
    "thresholds": (0.0, 2.0, "in [0, 1], or 2 at the end of a row"),
}


def fitted_array(name: str, doc: str) -> property:
    """The property by which a fitted value is read."""
    return property(lambda self: self.fitted_value(name), doc=doc)


class Calibrator(KeepsArguments, FittedLayer, FitsOnModel):
    """Abstract: a layer that maps logits to calibrated logits.

    Fit it after training, on held-out data that neither trained nor chose
    anything: `fit(labels, logits)`, or `fit_on(model, dataset)`. Then call it
    on logits `(..., num_classes)`; it returns float32 logits of that shape,
    -inf where they were. Put it behind a model with `keras.Sequential`, save
    it, or export it. Its configuration has the fitted values, and so do copies.

    A subclass implements `fit_samples`, which sets the fitted values with
    `set_fitted`, `calibrate`, which maps two or more logits, and
    `num_parameters`.

    Args:
        name: Name of the layer.
        **kwargs: `trainable` of `keras.layers.Layer`.

    Raises:
        RuntimeError: If it is called before `fit`.
        ValueError: If an argument is out of range.

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        section 4, https://arxiv.org/abs/1706.04599
    """

    # Names that are constructor arguments, variables and properties alike.
    fitted_values: tuple[str, ...] = ()
    # Those of them whose rows do not decrease.
    ascending: tuple[str, ...] = ()
    # Whether a class without a sample leaves something undetermined.
    needs_every_class = True
    # Whether a fit cannot raise the NLL of its own samples.
    lowers_nll = False

    def __init__(self, *, name: str | None = None, **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.supports_masking = True
        self._num_classes: int | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the other arguments, which are attributes."""
        return self._arguments

    def fit(
        self,
        labels: Any,
        logits: Any = None,
        sample_weight: Any = None,
        *,
        ignore_class: int | None = None,
        num_folds: int = 5,
        force: bool = False,
    ) -> Self:
        """Fits on held-out logits and returns self; replaces an earlier fit.

        Args:
            labels: Class ids `(n, ...)` or one-hot or soft labels
                `(n, ..., num_classes)`. Without `logits`: batches of (labels,
                logits) or (labels, logits, sample_weight), as a
                `tf.data.Dataset`, a generator or any iterable that ends.
            logits: Logits `(n, ..., num_classes)`, or `(n, ..., 1)` for the
                second of two classes. float32 and float64 are not copied.
            sample_weight: Weights of the shape of the class ids, or `(n,)`.
            ignore_class: Class id to leave out, such as 255.
            num_folds: Number of folds, >= 2, for a check that the calibrator
                helps samples that it is not fitted on; 0 skips it. The check
                fits each fold anew, but runs only where the gain in NLL could
                be chance.
            force: Fit even with fewer samples than parameters, or with a class
                that has no sample.

        Raises:
            ValueError: If shapes do not fit, a logit is NaN or infinite, or
                that of a label is -inf. If fewer than two classes have samples,
                or a compiled function holds a fit of another size. Without
                `force` also if samples are too few. The previous fit stays.

        Warns:
            RuntimeWarning: If the fit did not converge, or the folds find it
                worse than no calibrator.
        """
        self.check_labels(labels)
        check_folds(num_folds)
        samples = read_any(labels, logits, sample_weight, ignore_class)
        self.check_enough(samples, force)
        with one_thread_of_blas():
            self.fit_samples(samples)
            warn_if_harmful(self, samples, num_folds)
        return self

    def fit_samples(self, samples: FittingData) -> None:
        """Fits on samples that are read and checked."""
        raise NotImplementedError

    def calibrate(self, logits: Any) -> Any:
        """Calibrates logits `(..., num_classes)`, float32."""
        raise NotImplementedError

    def num_parameters(self, num_classes: int) -> int:
        """Number of parameters of a fit, which needs as many samples."""
        raise NotImplementedError

    def degrees_of_freedom(self, samples: FittingData) -> float:
        """About how many free numbers a fit chose from the samples."""
        return float(sum(self.fitted_value(k).size for k in self.fitted_values))

    def check_fitted(self) -> None:
        """Raises RuntimeError before `fit`; whoever reads the fit calls it."""
        super().check_fitted()
        note_graph(self)

    def build(self, input_shape):
        self.check_fitted()

    def call(self, logits, *, from_logits=True):
        """Calibrates logits, or the logits of probabilities.

        Args:
            logits: The model's outputs `(..., num_classes)`, or `(..., 1)` for
                the second of two classes.
            from_logits: Whether they are logits. If False they are
                probabilities, of which it takes the log, or the log-odds of
                one output.

        Returns:
            Calibrated logits of the same shape, float32.
        """
        return self.mapped(self.calibrate, logits, from_logits)

    def mapped(
        self, calibrate: Callable[[Any], Any], logits: Any, from_logits: bool
    ) -> Any:
        """Outputs of a model, mapped by a function of two or more logits."""
        pair, one_output = self.model_logits(logits, from_logits)
        # A map may lift such a logit, as a temperature does.
        found = ops.where(is_ruled_out(pair), pair, calibrate(pair))
        return found[..., 1:] - found[..., :1] if one_output else found

    def model_logits(self, outputs: Any, from_logits: bool) -> tuple[Any, bool]:
        """Two or more logits of a model's outputs; whether there is one output.

        Raises RuntimeError before `fit`, and ValueError for other classes.
        """
        self.check_fitted()
        shape = shape_of(outputs)
        self._check_classes(shape)
        if shape[-1] == 1 or not from_logits:
            outputs = to_model_logits(outputs, from_logits)
        return outputs, shape[-1] == 1

    def logits_for_interval(
        self, outputs: Any, from_logits: bool
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

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        values = dict.fromkeys(self.fitted_values)
        if self._fitted:
            values = {k: self.fitted_value(k).tolist() for k in values}
        options = {name: getattr(self, name) for name in self.options}
        return {**super().get_config(), **options, **values}

    def fitted_summary(self) -> dict[str, Any]:
        """The fitted variables by name."""
        return {name: getattr(self, "_" + name) for name in self.fitted_values}

    def fitted_value(self, name: str) -> np.ndarray:
        """A fitted value, float32; raises RuntimeError before `fit`."""
        self.check_fitted()
        return to_numpy(getattr(self, "_" + name))

    def set_fitted(self, num_classes: int | None = None, **values: Any) -> None:
        """Sets all fitted values, or none if one is rejected.

        Args:
            num_classes: Number of classes that the values are for; None if
                they fit any.
            **values: One value for each name in `fitted_values`, float32.
        """
        # Files identify variables by their order.
        values = {
            k: np.asarray(values[k], "float32") for k in self.fitted_values
        }
        now = {k: v.shape for k, v in values.items()}
        known = {k: getattr(self, "_" + k, None) for k in values}
        before = {k: shape_of(v) for k, v in known.items() if v is not None}
        if before and before != now:
            if is_in_live_graph(self):
                raise value_error(
                    f"`{type(self).__name__}` must not change its size while a "
                    "compiled function holds it, such as that of "
                    "`model.predict`, which would go on with the old fit. Fit "
                    "a new calibrator and build a new model with it",
                    before=before,
                    now=now,
                )
            # Delete all of them, as files identify variables by their order.
            # The next call builds and locks again.
            unlock_variables(self)
            self.built = False
            for name in before:
                delattr(self, "_" + name)
            before = {}
        for name, value in values.items():
            if not before:
                variable = self.add_weight(
                    value.shape, "zeros", trainable=False, name=name
                )
                setattr(self, "_" + name, variable)
            getattr(self, "_" + name).assign(ops.convert_to_tensor(value))
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
            raise value_error(
                f"{_named(self.fitted_values)} must be given together",
                given=list(given),
            )
        for name, array in given.items():
            is_number = array.ndim <= by_label and array.dtype.kind != "b"
            if name in _SCALARS and not is_number:
                raise type_error(f"`{name}` must be a number", value=array)
            _check_fitted_value(name, array, name in self.ascending)
        return {k: v.astype("float32") for k, v in given.items()}

    def set_known(self, **values: Any) -> None:
        """Sets values given to the constructor: all of them, or none."""
        arrays = self.given_arrays(values)
        names = [k for k in arrays if k not in _SCALARS]
        counts = {len(np.atleast_1d(arrays[k])) for k in names}
        if len(counts) > 1:
            raise value_error(
                f"{_named(arrays)} must be for the same number of classes",
                shapes=[v.shape for v in arrays.values()],
            )
        if arrays:
            self.set_fitted(max(counts, default=None), **arrays)

    def _check_classes(self, shape: tuple) -> None:
        num_classes = None if shape[-1] is None else max(shape[-1], 2)
        if num_classes not in (None, self._num_classes or num_classes):
            raise value_error(
                f"`logits` must have {self._num_classes} classes, as when "
                "fitted",
                **{"logits.shape": shape},
            )

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


def _check_fitted_value(name: str, array: np.ndarray, ascends: bool) -> None:
    """Raises ValueError unless a value that was given can be one of a fit."""
    low, high, rule = _RANGES.get(name, _ANY)
    right = (array >= low) & (array <= high)
    if not right.all():
        wrong = array[~right][:4].tolist()
        raise value_error(f"`{name}` must be {rule}", **{name: wrong})
    falls = (np.diff(np.atleast_2d(array)) < 0).any(axis=-1)
    if ascends and falls.any():
        raise value_error(
            f"`{name}` must not decrease within a row",
            rows=np.flatnonzero(falls)[:4].tolist(),
        )


def check_shapes(arrays: dict[str, np.ndarray], shapes: dict) -> None:
    """Raises ValueError for values of other shapes; None is any size."""
    for name, array in arrays.items():
        if not fits(array.shape, needed := shapes.get(name, array.shape)):
            raise value_error(
                f"`{name}` must have the shape that other arguments give it",
                needed=needed,
                **{f"{name}.shape": array.shape},
            )


def _named(values: Iterable[str]) -> str:
    """Names of arguments, as errors call them."""
    *first, last = (f"`{name}`" for name in values)
    return f"{', '.join(first)} and {last}" if first else last

"""The bases of layers that are fitted on held-out data."""

import weakref
from typing import Any, TypedDict

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid, type_error, value_error, warn
from keras_calib.backend.keras_internals import unlock_variables
from keras_calib.backend.traced import forget_constants, is_in_live_graph
from keras_calib.inputs.rows import check_call
from keras_calib.numerics.arrays import as_numbers, shape_of, value_if_eager

__all__ = ["DEPENDENTS", "FittedLayer", "LayerOptions"]

# Longer arrays are shown by their shape.
_SHOWN = 4
# Layers that are told when a part of theirs is fitted, by this part.
DEPENDENTS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class LayerOptions(TypedDict, total=False):
    """Options of Keras' layers that those of this library pass on."""

    trainable: bool
    dtype: Any


class FittedLayer(keras.layers.Layer):
    """Abstract: a layer that needs `fit` before use; its repr shows the fit."""

    # Keras says it where type checkers may not have looked yet.
    built: bool

    _fitted = False
    # How many fits there were: a threshold is for one of them.
    num_fits = 0
    # Whether each output is one of two classes, not one of many.
    reads_labels = False
    # What a user who forgot to fit it has to call.
    how_to_fit = "`fit(labels, logits)` with held-out data"
    # Set once the operation of a traced graph caused a warning.
    _has_told = False

    def __init__(self, **kwargs: Any):
        # A half-precision policy would turn logits of 1e5 into infinity.
        super().__init__(**{**kwargs, "dtype": "float32"})

    def __call__(self, logits, *args, **kwargs):
        inputs = self.read_inputs(logits)
        if self._fitted and kwargs.get("from_logits", True):
            self.check_inputs(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def read_inputs(self, inputs: Any) -> Any:
        """Logits of any kind as an array or tensor; a list begins with them."""
        # Keras would drop the mask of a masked array.
        return as_numbers(inputs, "logits")

    def check_inputs(self, inputs: Any) -> None:
        """Tells of logits that look like probabilities."""
        logits = inputs[0] if isinstance(inputs, list) else inputs
        self._has_told = check_call(
            logits, "logits", self._has_told, self.reads_labels
        )

    @property
    def fitted(self) -> bool:
        """Whether `fit` has run, or the fitted values were given."""
        return self._fitted

    def set_arrays(self, **values: Any) -> None:
        """Sets fitted variables, and makes those that the layer lacks.

        The variable of `x` is `self._x`, and None deletes it. If one has
        another shape than before, all are made anew, in the order of their
        names: files identify variables by their order.

        Args:
            **values: All fitted values of the layer. An int32 array stays one,
                anything else becomes float32.

        Raises:
            ValueError: If shapes change while a compiled function, which would
                go on with the old values, holds the layer. Nothing changes.
        """
        arrays = {k: _fixed(v) for k, v in values.items() if v is not None}
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

    def check_labels(self, labels: Any) -> None:
        """Raises TypeError if `fit` got a model, which `fit_on` takes."""
        if isinstance(labels, keras.Model):
            raise type_error(
                "`labels` must be class ids or one-hot or soft labels; for a "
                "model and a data set use `fit_on(model, data)`",
                labels=type(labels).__name__,
            )

    def get_config(self):
        config = super().get_config()
        del config["dtype"]
        return config

    def fitted_summary(self) -> dict[str, Any]:
        """The fitted values by name, for the repr."""
        raise NotImplementedError

    def __repr__(self):
        if not self._fitted:
            return f"{type(self).__name__}(not fitted)"
        parts = [_shown(k, v) for k, v in self.fitted_summary().items()]
        return f"{type(self).__name__}({', '.join(parts)})"


def _fixed(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array if array.dtype == "int32" else array.astype("float32")


def _shown(name: str, value: Any) -> str:
    if not hasattr(value, "shape"):
        return f"{name}={value!r}"
    # A traced graph has no value to show.
    array, shape = value_if_eager(value), shape_of(value)
    if array is None or array.ndim > 1 or array.size > _SHOWN:
        return f"{name}.shape={shape}"
    if array.ndim == 0:
        return f"{name}={float(array):.4g}"
    return f"{name}=[{', '.join(f'{x:.4g}' for x in array)}]"

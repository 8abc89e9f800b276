"""The base of layers that are fitted on held-out data."""

import weakref
from typing import Any

import keras

from keras_calib.backend.errors import invalid
from keras_calib.backend.errors import type_error
from keras_calib.inputs.rows import check_call
from keras_calib.numerics.arrays import as_numbers
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.arrays import value_if_eager

__all__ = ["FittedLayer"]

# Longer arrays are shown by their shape.
_SHOWN = 4
# Layers that are told when a part of theirs is fitted, by this part.
_DEPENDENTS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class FittedLayer(keras.layers.Layer):
    """Abstract: a layer that needs `fit` before use; its repr shows the fit."""

    _fitted = False
    # How many fits there were: a threshold is for one of them.
    num_fits = 0
    # Whether each output is one of two classes, not one of many.
    reads_labels = False
    # Set once the operation of a traced graph caused a warning.
    _has_told = False

    def __call__(self, logits, *args, **kwargs):
        inputs = self.read_inputs(logits)
        if self._fitted and kwargs.get("from_logits", True):
            logits = inputs[0] if isinstance(inputs, list) else inputs
            self._has_told = check_call(
                logits, "logits", self._has_told, self.reads_labels
            )
        return super().__call__(inputs, *args, **kwargs)

    def read_inputs(self, inputs: Any) -> Any:
        """Logits of any kind as an array or tensor; a list begins with them."""
        # Keras would drop the mask of a masked array.
        return as_numbers(inputs, "logits")

    @property
    def fitted(self) -> bool:
        """Whether `fit` has run, or the fitted values were given."""
        return self._fitted

    def mark_fitted(self) -> None:
        """Notes a fit; whoever sets the fitted values calls it last."""
        self._fitted = True
        self.num_fits += 1
        for layer in [*_DEPENDENTS.get(self, ())]:
            layer.part_was_fitted()

    def tell(self, layer: "FittedLayer") -> None:
        """Calls `layer.part_was_fitted` after each later fit of this one."""
        _DEPENDENTS.setdefault(self, weakref.WeakSet()).add(layer)

    def part_was_fitted(self) -> None:
        """Called after a fit of a layer that was asked to `tell` this one."""

    def check_fitted(self) -> None:
        """Raises RuntimeError before `fit`."""
        if not self._fitted:
            raise RuntimeError(
                invalid(
                    f"`{type(self).__name__}` must be fitted before use: call "
                    "`fit(labels, logits)` with held-out data",
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

    def fitted_summary(self) -> dict[str, Any]:
        """The fitted values by name, for the repr."""
        raise NotImplementedError

    def __repr__(self):
        if not self._fitted:
            return f"{type(self).__name__}(not fitted)"
        parts = [_shown(k, v) for k, v in self.fitted_summary().items()]
        return f"{type(self).__name__}({', '.join(parts)})"


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

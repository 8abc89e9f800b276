"""The base of every calibrator."""

from typing import Any

import keras

from keras_calib.checks import invalid

__all__ = ["Calibrator"]


class Calibrator(keras.layers.Layer):
    """Abstract: a layer that maps logits to calibrated logits.

    `fit(labels, logits)` on data that trained nothing else, then call it, put
    it behind a model with `keras.Sequential`, save it or export it. Layers
    compute in float32 under every precision policy. What was fitted is part of
    the configuration: copies of a fitted layer are fitted.

    Args:
        name: Name of the layer.
        **kwargs: `trainable` of `keras.layers.Layer`.

    Raises:
        RuntimeError: On call before `fit`.

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        section 4, https://arxiv.org/abs/1706.04599
    """

    def __init__(self, *, name: str | None = None, **kwargs: Any):
        # A half-precision policy would turn logits of 1e5 into infinity.
        kwargs["dtype"] = "float32"
        super().__init__(name=name, **kwargs)
        self._fitted = False

    @property
    def fitted(self) -> bool:
        """Whether `fit` has run."""
        return self._fitted

    def fit(
        self, labels: Any, logits: Any, sample_weight: Any = None
    ) -> "Calibrator":
        """Fits on held-out data and returns self.

        Args:
            labels: Class ids `(n, ...)` or one-hot or soft labels
                `(n, ..., num_classes)`.
            logits: Logits `(n, ..., num_classes)`, or `(n, ..., 1)`.
            sample_weight: Weights of the shape of the class ids, or `(n,)`.
        """
        raise NotImplementedError

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        config = super().get_config()
        del config["dtype"]
        return config

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

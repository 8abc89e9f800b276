"""Parametrized temperature scaling."""

from typing import Any

import keras
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.backend.products import exact_products
from keras_calib.calibrators.base import Calibrator, check_shapes, fitted_array
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.parametrized_solver import (
    LEAST_SHARE,
    Network,
    fitted_network,
)
from keras_calib.inputs.checks import check_at_least, check_in, check_integer
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.softmax import filled

__all__ = ["ParametrizedTemperatureScaling"]


@keras.saving.register_keras_serializable(package="keras_calib")
class ParametrizedTemperatureScaling(Calibrator):
    """Parametrized temperature scaling (PTS): T depends on the logits.

    Use it when a temperature is right on average but sure and unsure
    predictions need different ones. The predicted class never changes.

    T(z) = max(|net(largest logits of z, sorted)|, T_0 / 2), z becomes z / T(z)

    T_0 is the optimum of `TemperatureScaling`. The network has two hidden
    layers of ReLU. L-BFGS minimises the mean loss plus strength / (2 n)
    sum w^2, from three random starts where T(z) = T_0. The weights w are those
    for standardised inputs, and n is the sum of the sample weights.

    T_0 stays if the network is no better on the samples of the fit.

    Args:
        objective: `"nll"`, or `"mse"` as in the paper: the squared distance
            of probabilities and labels.
        num_inputs: Number of largest logits that the network reads, >= 1;
            all of them if there are fewer classes.
        units: Units of each hidden layer, >= 1.
        strength: Strength of the ridge, >= 0.
        seed: Seed of the weights at the start.
        temperature: T_0, > 0, if you know the fit; None waits for `fit`.
        kernel_1: Weights `(inputs, units)` of the first layer; they go with
            `temperature`, as do the others.
        bias_1: Its biases `(units,)`.
        kernel_2: Weights `(units, units)` of the second layer.
        bias_2: Its biases `(units,)`.
        kernel_3: Weights `(units,)` of the output.
        bias_3: Its bias, a number.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(500, 3))
    >>> labels = np.argmax(logits + rng.gumbel(size=(500, 3)), axis=-1)
    >>> scaling = ParametrizedTemperatureScaling().fit(labels, 3.0 * logits)
    >>> scaling(3.0 * logits).shape == logits.shape
    True

    Reference:
        Tomani et al., Parameterized Temperature Scaling for Boosting the
        Expressive Power in Post-Hoc Uncertainty Calibration, ECCV 2022,
        https://arxiv.org/abs/2102.12182

    Differs:
        The authors minimise the MSE by 100,000 steps of Adam, without a
        ridge, and bound T by 1e-12 only. The ridge here was chosen on
        published sets of predictions. On halves of 14 of these, the network
        had a lower NLL than a temperature for 13, in
        `benchmarks/results/posthoc.md`.
    """

    fitted_values = ("temperature", *Network._fields)
    needs_every_class = False
    kernel_1 = fitted_array("kernel_1", "Weights of the first layer.")
    bias_1 = fitted_array("bias_1", "Biases of the first layer.")
    kernel_2 = fitted_array("kernel_2", "Weights of the second layer.")
    bias_2 = fitted_array("bias_2", "Biases of the second layer.")
    kernel_3 = fitted_array("kernel_3", "Weights of the output.")
    bias_3 = fitted_array("bias_3", "Bias of the output.")

    def __init__(
        self,
        *,
        objective: str = "nll",
        num_inputs: int = 10,
        units: int = 5,
        strength: float = 20.0,
        seed: int = 0,
        temperature: float | None = None,
        kernel_1: Any = None,
        bias_1: Any = None,
        kernel_2: Any = None,
        bias_2: Any = None,
        kernel_3: Any = None,
        bias_3: Any = None,
        name: str = "parametrized_temperature_scaling",
        **kwargs: Any,
    ):
        check_in("objective", objective, ("nll", "mse"))
        check_integer("num_inputs", num_inputs, 1)
        check_integer("units", units, 1)
        check_at_least("strength", strength, 0.0)
        check_integer("seed", seed, 0)
        super().__init__(name=name, **kwargs)
        self._keep(
            objective=objective,
            num_inputs=num_inputs,
            units=units,
            strength=strength,
            seed=seed,
        )
        self.lowers_nll = objective == "nll"
        network = Network(kernel_1, bias_1, kernel_2, bias_2, kernel_3, bias_3)
        values = {"temperature": temperature, **network._asdict()}
        if arrays := self.given_arrays(values):
            # As many as classes, if there are fewer than inputs.
            inputs = min([*arrays["kernel_1"].shape[:1], num_inputs])
            one, two = (units,), (units, units)
            shapes = Network((inputs, units), one, two, one, one, ())
            check_shapes(arrays, shapes._asdict())
            self.set_fitted(self._known_classes(inputs), **arrays)

    @property
    def temperature(self) -> float:
        """The fitted T_0."""
        return float(self.fitted_value("temperature"))

    def fit_samples(self, samples: FittingData) -> None:
        temperature, network = fitted_network(samples, **self._kept())
        self.set_fitted(
            self._known_classes(len(network.kernel_1)),
            temperature=temperature,
            **network._asdict(),
        )

    def calibrate(self, logits: Any) -> Any:
        return logits / self.temperature_of(logits)

    @exact_products
    def temperature_of(self, logits: Any) -> Any:
        """T of each sample `(..., 1)`, from logits `(..., num_classes)`.

        Use it to see which predictions were overconfident.
        """
        self.check_fitted()
        logits = ops.cast(logits, "float32")
        inputs = shape_of(self._kernel_1)[0]
        if (logits.shape[-1] or inputs) < inputs:
            raise value_error(
                f"`logits` must have {inputs} classes or more, as when fitted",
                **{"logits.shape": shape_of(logits)},
            )
        x, _ = ops.top_k(logits, inputs)
        x = filled(x)
        x = ops.relu(ops.matmul(x, self._kernel_1) + self._bias_1)
        x = ops.relu(ops.matmul(x, self._kernel_2) + self._bias_2)
        x = ops.sum(x * self._kernel_3, axis=-1, keepdims=True) + self._bias_3
        return ops.maximum(ops.abs(x), LEAST_SHARE * self._temperature)

    def num_parameters(self, num_classes: int) -> int:
        inputs = min(self.num_inputs, num_classes)
        return self.units * (inputs + 1 + self.units + 1 + 1) + 1

    def _known_classes(self, inputs: int) -> int | None:
        """Number of classes, if it is below that of the inputs asked for."""
        return inputs if inputs < self.num_inputs else None

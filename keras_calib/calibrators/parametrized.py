"""Parametrized temperature scaling: a small network gives T."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Unpack

import keras
import numpy as np
from keras import ops
from scipy.optimize import minimize

from keras_calib.backend.compiled import exact_products
from keras_calib.backend.errors import value_error
from keras_calib.backend.progress import tick
from keras_calib.calibrators.base import Calibrator, FittedValue
from keras_calib.calibrators.fitted_layer import CalibratorOptions
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.separation import supported_samples
from keras_calib.calibrators.temperature import optimal_temperature
from keras_calib.inputs.checks import check_at_least, check_in, check_integer
from keras_calib.inputs.options import taken
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.softmax import filled

# T is at least this share of the optimal temperature of all samples.
_LEAST_SHARE = 0.5
# Most logits to fit on: the network has few parameters.
_MOST = 2**25
# Starts of L-BFGS, as some lead back to T_0, its first steps from each, and
# further steps from the best.
_STARTS = 3
_FIRST_STEPS = 20
_STEPS = 100


class _Network(NamedTuple):
    """Two hidden layers of ReLU and one output, whose size is T."""

    kernel_1: Any  # `(inputs, units)`
    bias_1: Any
    kernel_2: Any  # `(units, units)`
    bias_2: Any
    kernel_3: Any  # `(units,)`
    bias_3: Any  # `()`

    @classmethod
    def unflattened(cls, theta: np.ndarray, shapes: list) -> "_Network":
        """A network of one vector of all its weights."""
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        parts = np.split(theta, ends[:-1])
        pairs = zip(parts, shapes, strict=True)
        return cls(*(part.reshape(shape) for part, shape in pairs))

    def flattened(self) -> np.ndarray:
        return np.concatenate([np.ravel(part) for part in self])


class NetworkOptions(CalibratorOptions, total=False):
    """The values of the network, if you know them."""

    kernel_1: Any
    bias_1: Any
    kernel_2: Any
    bias_2: Any
    kernel_3: Any
    bias_3: Any


@keras.saving.register_keras_serializable(package="keras_calib")
class ParametrizedTemperatureScaling(Calibrator):
    """Parametrized temperature scaling (PTS): T depends on the logits.

    Use it when a temperature is right on average but sure and unsure
    predictions need different ones. The predicted class never changes.

    T(z) = max(|net(largest logits of z, sorted)|, T_0 / 2), z becomes z / T(z)

    T_0 is the optimum of `TemperatureScaling`. The network has two hidden
    layers of ReLU. L-BFGS minimises the mean loss plus penalty / (2 n)
    sum w^2, from three random starts where T(z) = T_0. The weights w are those
    for standardised inputs, and n is the sum of the sample weights.

    T_0 stays if the network is no better on the samples of the fit.

    Args:
        objective: `"nll"`, or `"mse"` as in the paper: the squared distance
            of probabilities and labels.
        num_inputs: Number of largest logits that the network reads, >= 1;
            all of them if there are fewer classes.
        units: Units of each hidden layer, >= 1.
        penalty: Strength of the ridge, >= 0.
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

    needs_every_class = False
    temperature = FittedValue(rule="> 0 and finite")
    kernel_1 = FittedValue("inputs", "units")
    bias_1 = FittedValue("units")
    kernel_2 = FittedValue("units", "units")
    bias_2 = FittedValue("units")
    kernel_3 = FittedValue("units")
    bias_3 = FittedValue()

    def __init__(
        self,
        *,
        objective: str = "nll",
        num_inputs: int = 10,
        units: int = 5,
        penalty: float = 20.0,
        seed: int = 0,
        temperature: float | None = None,
        **kwargs: Unpack[NetworkOptions],
    ):
        given, rest = taken(kwargs, NetworkOptions, CalibratorOptions)
        check_in("objective", objective, ("nll", "mse"))
        check_integer("num_inputs", num_inputs, 1)
        check_integer("units", units, 1)
        check_at_least("penalty", penalty, 0.0)
        check_integer("seed", seed, 0)
        super().__init__(**rest)
        self._keep(
            objective=objective,
            num_inputs=num_inputs,
            units=units,
            penalty=penalty,
            seed=seed,
        )
        self.lowers_nll = objective == "nll"
        self.set_known({"units": units}, temperature=temperature, **vars(given))

    def known_classes(self, sizes: Mapping[str, int]) -> int | None:
        """Number of classes, if it is below that of the inputs asked for."""
        inputs = sizes["inputs"]
        if inputs > self.num_inputs:
            raise value_error(
                "`kernel_1` must have the shape (inputs, units), with at most "
                "`num_inputs` inputs",
                inputs=inputs,
                num_inputs=self.num_inputs,
            )
        return inputs if inputs < self.num_inputs else None

    def fit_samples(self, samples: FittingData) -> None:
        temperature, network = _fitted_network(samples, self)
        self.set_fitted(
            self.known_classes({"inputs": len(network.kernel_1)}),
            temperature=temperature,
            **network._asdict(),
        )

    def map_logits(self, logits: Any) -> Any:
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
        return ops.maximum(ops.abs(x), _LEAST_SHARE * self._temperature)

    def num_parameters(self, num_classes: int) -> int:
        inputs = min(self.num_inputs, num_classes)
        return self.units * (inputs + 1 + self.units + 1 + 1) + 1


class _Problem(NamedTuple):
    """What stays as it is during a fit."""

    samples: FittingData  # sorted logits, and the label's place among them
    objective: str
    temperature: float
    mean: np.ndarray  # of the inputs
    scale: np.ndarray
    ridge: float
    shapes: list


def _fitted_network(
    samples: FittingData, how: ParametrizedTemperatureScaling
) -> tuple[float, _Network]:
    """T of all samples, and the network, for inputs as they are."""
    objective, units = how.objective, how.units
    read = supported_samples(samples)
    if read is not samples:
        samples, objective = read, "nll"
    temperature = optimal_temperature(samples, objective)
    few = _in_order(samples.subsampled(_MOST))
    inputs = min(how.num_inputs, samples.num_classes)
    shapes = [(inputs, units), (units,), (units, units), (units,), (units,), ()]
    mean, variance, total = few.moments(lambda z: filled(z[:, :inputs]))
    scale = np.sqrt(variance)
    # A constant input tells nothing.
    scale[(scale <= 1e-9 * np.abs(mean)) | (scale == 0.0)] = np.inf
    problem = _Problem(
        few, objective, temperature, mean, scale, how.penalty / total, shapes
    )
    rng = np.random.default_rng(how.seed)
    starts = [_start(shapes, rng) for _ in range(_STARTS)]
    first = [_descend(x.flattened(), problem, _FIRST_STEPS) for x in starts]
    best = min(first, key=lambda x: x.fun)
    best = _descend(best.x, problem, _STEPS)
    network = _Network.unflattened(best.x, shapes)
    networks = [_of_inputs(x, problem) for x in (network, starts[0])]
    losses = [_loss(samples, x, temperature, objective) for x in networks]
    # The ridge, or a part of the samples, may lead away from T itself.
    return temperature, networks[0 if losses[0] < losses[1] else 1]


def _descend(start: np.ndarray, problem: _Problem, steps: int) -> Any:
    """Where L-BFGS ends, and the value there."""
    return minimize(
        _value_and_slope,
        start,
        args=(problem,),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": steps, "maxcor": 20},
    )


def _start(shapes: list, rng: np.random.Generator) -> _Network:
    """Random hidden layers and an output of 1."""
    parts = [np.zeros(shape) for shape in shapes]
    for i in (0, 2):
        count = shapes[i][0]
        parts[i] = rng.normal(size=shapes[i]) * np.sqrt(2.0 / count)
    parts[5] = np.ones(())
    return _Network(*parts)


def _in_order(samples: FittingData) -> FittingData:
    """Valid samples with sorted logits, equal ones once, in a fixed order.

    The form of the data then changes nothing of what L-BFGS finds.
    """
    samples = samples.rows(np.flatnonzero(samples.counts()))
    places = np.argsort(-samples.logits, axis=-1, kind="stable")
    logits = np.take_along_axis(samples.logits, places, axis=-1)
    if samples.labels.ndim == 2:
        soft = samples.soft_labels()
        labels = np.take_along_axis(soft, places, axis=-1)
    else:
        labels = np.argmax(places == samples.labels[:, None], axis=-1)
    rng = np.random.default_rng(0)
    key = logits @ rng.normal(size=logits.shape[-1])
    if labels.ndim == 2:
        key += labels @ rng.normal(size=labels.shape[-1])
    else:
        key += rng.normal() * labels
    order = np.argsort(key, kind="stable")
    logits, labels = logits[order], labels[order]
    new = np.any(logits[1:] != logits[:-1], axis=-1)
    differ = labels[1:] != labels[:-1]
    new |= differ.any(axis=-1) if labels.ndim == 2 else differ
    first = np.flatnonzero(np.append(True, new))
    weight = np.add.reduceat(samples.weights()[order], first)
    return FittingData(labels[first], logits[first], weight)


def _layers(x: np.ndarray, network: _Network) -> tuple:
    """Activations of the hidden layers, and the output `(n,)`."""
    first = np.maximum(x @ network.kernel_1 + network.bias_1, 0.0)
    second = np.maximum(first @ network.kernel_2 + network.bias_2, 0.0)
    return first, second, second @ network.kernel_3 + network.bias_3


def _value_and_slope(
    theta: np.ndarray, problem: _Problem
) -> tuple[float, np.ndarray]:
    """Mean loss plus ridge, and its gradient."""
    tick()
    network = _Network.unflattened(theta, problem.shapes)
    inputs = problem.shapes[0][0]

    def of_block(block):
        x = filled(block.logits[:, :inputs])
        x = (x - problem.mean) / problem.scale
        first, second, output = _layers(x, network)
        share = np.maximum(np.abs(output), _LEAST_SHARE)
        loss, slope = _losses(
            block, problem.temperature * share, problem.objective
        )
        weight = block.weights()
        free = np.abs(output) > _LEAST_SHARE
        slope = weight * slope * problem.temperature * np.sign(output) * free
        back = np.outer(slope, network.kernel_3) * (second > 0.0)
        further = (back @ network.kernel_2.T) * (first > 0.0)
        slopes = _Network(
            x.T @ further,
            further.sum(axis=0),
            first.T @ back,
            back.sum(axis=0),
            second.T @ slope,
            slope.sum(),
        )
        return weight @ loss, weight.sum(), slopes.flattened()

    loss, total, slope = problem.samples.sums(of_block)
    kernels = _Network(
        *(p if i % 2 == 0 else 0.0 * p for i, p in enumerate(network))
    ).flattened()
    ridge = 0.5 * problem.ridge * kernels @ kernels
    return loss / total + ridge, slope / total + problem.ridge * kernels


def _losses(
    block: FittingData, temperature: np.ndarray, objective: str
) -> tuple[np.ndarray, np.ndarray]:
    """Loss of each sample, and its derivative by T."""
    z = block.shifted()
    p = np.exp(z / temperature[:, None])
    total = p.sum(axis=-1)
    p /= total[:, None]
    mean = np.sum(p * z, axis=-1)
    if objective == "nll":
        target = block.at_labels(z)
        loss = np.log(total) - target / temperature
        return loss, (target - mean) / temperature**2
    distance = block.less_labels(p.copy())
    slope = np.sum(distance * p * (mean[:, None] - z), axis=-1)
    return np.sum(distance**2, axis=-1), 2.0 * slope / temperature**2


def _of_inputs(network: _Network, problem: _Problem) -> _Network:
    """The network of inputs as they are, whose output is T."""
    kernel = network.kernel_1 / problem.scale[:, None]
    return network._replace(
        kernel_1=kernel,
        bias_1=network.bias_1 - problem.mean @ kernel,
        kernel_3=network.kernel_3 * problem.temperature,
        bias_3=network.bias_3 * problem.temperature,
    )


def _loss(
    samples: FittingData, network: _Network, least: float, objective: str
) -> float:
    """Mean loss of all samples, of logits in any order."""
    inputs = len(network.kernel_1)

    def of_block(block):
        x = filled(-np.sort(-block.logits, axis=-1)[:, :inputs])
        output = np.abs(_layers(x, network)[2])
        temperature = np.maximum(output, _LEAST_SHARE * least)
        loss, _ = _losses(block, temperature, objective)
        weight = block.weights()
        return weight @ loss, weight.sum()

    loss, total = samples.sums(of_block)
    return float(loss / total)

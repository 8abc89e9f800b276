"""Temperature scaling, alone or mixed, and the loss that it leaves."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import keras
import numpy as np
from keras import ops
from scipy.optimize import minimize, minimize_scalar

from keras_calib.backend.errors import value_error, warn
from keras_calib.calibrators.base import Calibrator, FittedValue
from keras_calib.calibrators.compact_logits import (
    CompactLogits,
    least_by_newton,
)
from keras_calib.calibrators.fitted_layer import CalibratorOptions
from keras_calib.calibrators.fitting_data import FittingData, read_samples
from keras_calib.calibrators.separation import NO_OTHER, supported_samples
from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.bins import BinSums, bin_index, bin_sums
from keras_calib.formulas.proper import brier_losses, log_losses
from keras_calib.inputs.checks import check_above, check_in
from keras_calib.inputs.top_label import hard_labels
from keras_calib.numerics.softmax import (
    is_ruled_out,
    is_wrong,
    num_allowed,
    to_logits,
)

_OBJECTIVES = ("nll", "mse", "ece")
# From the code of the papers that choose by ECE.
_ECE_GRID = tuple(i / 10 for i in range(1, 101))
_ECE_BINS = 15
# The search range exceeds that of the logits' differences by this factor.
_RANGE = 1e4
_TOLERANCE = 1e-8
_ENDLESS = 1e12
# Logits for a first estimate.
_FEW = 2**18
# Reach of the coarse grid of the MSE on both sides of the optimal NLL.
_OCTAVES = 6


@keras.saving.register_keras_serializable(package="keras_calib")
class TemperatureScaling(Calibrator):
    """Temperature scaling: divides all logits by one number.

    Try it first: one parameter cannot overfit, and the predicted class never
    changes. T minimises mean_n -log softmax(z_n / T)_{y_n}, which is convex
    in 1/T and solved to a relative 1e-6. T above 1 means that the model was
    overconfident. `fit` also takes `CompactLogits`, alone.

    If the model classifies every sample right, no T > 0 is optimal, as is
    common below 100 samples. Then it warns and minimises the NLL of smoothed
    labels. The label of each of the n samples has the share (n + 1) / (n + 2),
    the class of the next logit has the rest.

    Args:
        objective: `"nll"` for the formula above, or `"mse"` for the mean of
            (p - y)^2 over samples and classes. `"ece"` takes the ECE of 15
            equal bins, which is noisy and minimised on a grid only.
        grid: Temperatures > 0 to choose from; the first of the best wins.
            None solves for the optimum, except for `"ece"`, which takes 0.1,
            0.2 ... 10 as Mukhoti et al. do. Lienen and Hüllermeier choose
            from 0.25, 0.5, 0.75, 1, 1.1 ... 2, 2.5, 3.
        temperature: T, > 0, if you know it; None waits for `fit`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> scaling = TemperatureScaling()
    >>> logits = [[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 0.0]]
    >>> round(scaling.fit([0, 0, 1, 1], logits).temperature, 4)
    3.641

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        section 4.2, https://arxiv.org/abs/1706.04599; by ECE: Mukhoti et
        al., Calibrating Deep Neural Networks using Focal Loss, NeurIPS 2020,
        https://arxiv.org/abs/2002.09437; the shares: Platt, Probabilistic
        Outputs for Support Vector Machines and Comparisons to Regularized
        Likelihood Methods, 1999

    Differs:
        The released code takes a fixed number of L-BFGS steps and can stop
        short of the optimum.
    """

    needs_every_class = False
    temperature = FittedValue(rule="> 0 and finite")

    def __init__(
        self,
        *,
        objective: str = "nll",
        grid: Sequence[float] | None = None,
        temperature: float | None = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        check_in("objective", objective, _OBJECTIVES)
        super().__init__(**kwargs)
        if grid is not None:
            grid = [float(t) for t in grid]
        self._keep(objective=objective, grid=grid)
        self.lowers_nll = objective == "nll" and grid is None
        if self.grid == []:
            raise value_error("`grid` must not be empty", grid=grid)
        for value in self.grid or []:
            check_above("grid", value, 0.0)
        self.set_known(temperature=temperature)

    def fit_samples(self, samples: FittingData) -> None:
        grid, objective = self.grid, self.objective
        if grid is None and objective == "ece":
            grid = _ECE_GRID
        read = supported_samples(samples)
        if read is not samples:
            # Other objectives are low for any confidence near 1.
            objective = "nll"
        if grid is None:
            value = optimal_temperature(read, objective)
        else:
            values = mean_scores(read, grid, objective)
            value = grid[int(np.argmin(values))]
        self.set_fitted(temperature=value)

    def given(self, labels: Any, logits: Any = None, **options: Any) -> Any:
        if not isinstance(labels, CompactLogits):
            return super().given(labels, logits, **options)
        told = {"logits": logits, **options}
        told = {k for k, x in told.items() if not (x is None or x is True)}
        if told or self.objective != "nll" or self.grid is not None:
            raise value_error(
                "`CompactLogits` must be given alone, to a temperature of the "
                "least NLL without a grid; ignored tokens and weights are "
                "arguments of its `update`",
                arguments=sorted(told),
                objective=self.objective,
                grid=self.grid,
            )
        return labels

    def fit_given(self, given: Any, num_folds: int, force: bool) -> None:
        if isinstance(given, CompactLogits):
            self.set_fitted(temperature=given.optimal_temperature())
            self.num_samples, self.num_units = len(given), None
        else:
            super().fit_given(given, num_folds, force)

    def map_logits(self, logits: Any) -> Any:
        return logits / self._temperature

    def num_parameters(self, num_classes: int) -> int:
        return 1


def optimal_temperature(samples: FittingData, objective: str = "nll") -> float:
    """The temperature of the least NLL or MSE; 1 if every logit is equal."""
    beta, ends = _optimum(samples, objective)
    if beta in ends:
        warn(
            "The data have no optimal temperature in the range that is "
            "searched; its end is used. Received: "
            f"temperature={1.0 / beta:.3g}"
        )
    return 1.0 / beta


def refinement_nll(
    labels: Any,
    logits: Any,
    *,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """NLL after the best temperature, in float64.

    Use it to stop training or to compare networks that a temperature will
    calibrate afterwards. The NLL rises when a network becomes overconfident,
    although a temperature would repair it; this number does not. For training
    log `"refinement_nll"` with `CalibrationLogger`.

    min over T > 0 of mean_n -log softmax(z_n / T)_{y_n}

    What `nll` exceeds it by is the calibration part, which a temperature
    removes. It does not see what other calibrators could remove.

    Args:
        labels: Class ids `(n, ...)`, or one-hot or soft labels.
        logits: Logits `(n, ..., num_classes)`, or `(n, 1)` for the second of
            two classes.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
        ignore_class: Class id to leave out, or None.

    Returns:
        NLL in nats, at least 0, and at most the NLL of the logits and the log
        of the number of classes.

    Raises:
        ValueError: If shapes do not fit, there is no sample, or a value is
            out of range.

    Example:

    >>> logits = [[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 0.0]]
    >>> round(refinement_nll([0, 0, 1, 1], logits), 4)
    0.5623

    Reference:
        Berta, Holzmueller, Jordan and Bach, Rethinking Early Stopping: Refine,
        Then Calibrate, 2025, https://arxiv.org/abs/2501.19195
    """
    samples = read_samples(labels, logits, sample_weight, ignore_class)
    return split_nll(samples)[1]


def split_nll(samples: FittingData) -> tuple[float, float]:
    """Calibration and refinement part of the NLL, both >= 0.

    The refinement is the least NLL of all temperatures, 1 and infinity too.
    """
    beta, _ = _optimum(samples, "nll")
    # Without end the classes that are left become equally likely.
    found = map(float, mean_scores(samples, [1.0, 1.0 / beta, _ENDLESS], "nll"))
    before, *others = found
    after = min(before, *others, math.log(samples.num_classes))
    return before - after, after


def _optimum(
    samples: FittingData, objective: str
) -> tuple[float, tuple[float, ...]]:
    """1/T of the least NLL or MSE, and the ends of the range searched."""
    few = samples.subsampled(_FEW)
    low, high = _range(few)
    if low == high:
        low, high = _range(samples)
    if low == high:
        return 1.0, ()
    beta = least_by_newton(partial(_slopes, few), low, high, 1.0)
    if few is not samples:
        start = beta if low < beta < high else 1.0
        beta = least_by_newton(partial(_slopes, samples), low, high, start)
    if objective == "mse":
        beta = _least_mse(samples, low, high, beta)
    return beta, (low, high)


def _range(samples: FittingData) -> tuple[float, float]:
    """Range of 1/T to search; (1, 1) if all logits of each sample are equal.

    The median lead of the first class over the second sets it. A class with a
    logit of -1e9 therefore does not widen it.
    """
    leads = []

    def of_block(block):
        z = block.logits
        if block.weight is not None:
            z = z[block.weight > 0]
        if not len(z):
            return 0.0, 0
        top = z.max(axis=-1)
        leads.append(top - np.partition(z, -2, axis=-1)[:, -2])
        allowed = ~is_ruled_out(z)
        spread = top - z.min(axis=-1, where=allowed, initial=np.inf)
        return spread.sum(), len(spread)

    total, count = samples.sums(of_block)
    if total == 0.0:
        return 1.0, 1.0
    lead = np.concatenate(leads)
    lead = lead[(lead > 0.0) & (lead < NO_OTHER)]
    usual = float(np.median(lead)) if len(lead) else total / count
    return float(count / (total * _RANGE)), float(_RANGE / usual)


def _least_mse(
    samples: FittingData, low: float, high: float, start: float
) -> float:
    """1/T: the minimum near the best of a coarse grid, as it is not convex."""

    def value(log_beta):
        return mean_scores(samples, [math.exp(-log_beta)], "mse")[0]

    grid = start * 2.0 ** np.arange(-_OCTAVES, _OCTAVES + 1)
    inside = (grid > low) & (grid < high)
    grid = np.concatenate([[low], grid[inside], [high]])
    values = mean_scores(samples, 1.0 / grid, "mse")
    best = int(np.argmin(values))
    for end in (0, -1):
        if values[end] <= values[best]:
            return float(grid[end])
    found = minimize_scalar(
        value,
        bounds=(math.log(grid[best - 1]), math.log(grid[best + 1])),
        method="bounded",
        options={"xatol": _TOLERANCE},
    )
    return math.exp(found.x)


def _slopes(samples: FittingData, beta: float) -> tuple[float, float]:
    """First and second derivative of the summed NLL by 1/T."""

    def of_block(block):
        z = block.shifted()
        target = block.at_labels(z)
        p = np.multiply(z, beta)
        np.exp(p, out=p)
        total = p.sum(axis=-1)
        p *= z
        mean = p.sum(axis=-1) / total
        p *= z
        variance = p.sum(axis=-1) / total - mean * mean
        weight = block.weights()
        return weight @ (mean - target), weight @ variance

    first, second = samples.sums(of_block)
    return float(first), float(second)


def mean_scores(
    samples: FittingData,
    temperatures: Sequence[float] | np.ndarray,
    objective: str,
) -> np.ndarray:
    """NLL, MSE over samples and classes, or ECE, at each temperature."""
    losses = log_losses if objective == "nll" else brier_losses

    def sums_of(z, block):
        if objective == "ece":
            confidence = 1.0 / np.exp(z).sum(axis=-1)
            correct = ~is_wrong(z, hard_labels(block.labels))
            index = bin_index(confidence, _ECE_BINS)
            sums = bin_sums(confidence, correct, index, _ECE_BINS, block.weight)
            return sums.parts()
        weight = block.weights()
        return weight @ losses(block.labels, z, from_logits=True), weight.sum()

    def of_block(block):
        z = block.shifted()
        parts = [sums_of(z / t, block) for t in temperatures]
        return tuple(np.stack(part) for part in zip(*parts, strict=True))

    sums = samples.sums(of_block)
    if objective == "ece":
        bins = [BinSums(*parts) for parts in zip(*sums, strict=True)]
        return np.array([calibration_error(x) for x in bins])
    loss, weight = sums
    scale = samples.num_classes if objective == "mse" else 1.0
    return loss / (weight * scale)


@keras.saving.register_keras_serializable(package="keras_calib")
class EnsembleTemperatureScaling(Calibrator):
    """Ensemble temperature scaling (ETS): a mix of three predictions.

    Use it when a model gives probabilities near 0 to classes that occur,
    which a temperature alone repairs badly.

    p = m_1 softmax(z / T) + m_2 softmax(z) + m_3 / K, m >= 0, sum m = 1

    T is the optimum of `TemperatureScaling` for the same objective; then m
    minimises it, a convex problem. The predicted class never changes, unless
    the uniform part takes all. Where every sample is right, it fits the NLL
    of the labels that `TemperatureScaling` takes then.

    Args:
        objective: `"nll"`, or `"mse"` as in the paper.
        temperature: T, > 0, if you know it; None waits for `fit`.
        mixture: m `(3,)`, if you know it; goes with `temperature`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> ets = EnsembleTemperatureScaling(temperature=2, mixture=[0.5, 0, 0.5])
    >>> logits = keras.ops.convert_to_numpy(ets(np.log([[0.9, 0.1]])))
    >>> print(np.round(np.exp(logits), 3))
    [[0.625 0.375]]

    Reference:
        Zhang et al., Mix-n-Match: Ensemble and Compositional Methods for
        Uncertainty Calibration in Deep Learning, ICML 2020,
        https://arxiv.org/abs/2003.07329

    Differs:
        The authors minimise the MSE. Fitted on half of each of 14 published
        sets of predictions, MSE gave a higher NLL on the other half than a
        temperature alone for 12. With `"nll"` it was never more than 0.0003
        higher. On 20 Newsgroups, where models give probability 0 to classes
        that occur, `"mse"` gave 0.31 nats, `"nll"` 0.51 and a temperature
        1.01.
    """

    needs_every_class = False
    temperature = FittedValue(rule="> 0 and finite")
    mixture = FittedValue(3, rule="in [0, 1]")

    def __init__(
        self,
        *,
        objective: str = "nll",
        temperature: float | None = None,
        mixture: Any = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        check_in("objective", objective, ("mse", "nll"))
        super().__init__(**kwargs)
        self._keep(objective=objective)
        self.lowers_nll = objective == "nll"
        self.set_known(temperature=temperature, mixture=mixture)
        if self.fitted and abs(self.mixture.sum() - 1) > 1e-5:
            raise value_error(
                "`mixture` must be three shares >= 0 that sum to 1",
                mixture=mixture,
            )

    def fit_samples(self, samples: FittingData) -> None:
        read = supported_samples(samples)
        objective = self.objective if read is samples else "nll"
        temperature = optimal_temperature(read, objective)
        solve = _mixture_of_mse if objective == "mse" else _mixture_of_nll
        mixture = solve(read, temperature)
        self.set_fitted(temperature=temperature, mixture=mixture)

    def map_logits(self, logits: Any) -> Any:
        shares = self._mixture
        scaled = ops.softmax(logits / self._temperature, axis=-1)
        mixed = shares[0] * scaled + shares[1] * ops.softmax(logits, axis=-1)
        return to_logits(mixed + shares[2] / num_allowed(logits))

    def num_parameters(self, num_classes: int) -> int:
        """Three: a temperature and two free shares."""
        return 3


def _members(block: FittingData, temperature: float) -> list[np.ndarray]:
    """Probabilities that are mixed, three times `(n, num_classes)`."""
    z = block.shifted()
    even = np.where(is_ruled_out(block.logits), 0.0, 1.0)
    members = [np.exp(z / temperature), np.exp(z), even]
    return [p / p.sum(axis=-1, keepdims=True) for p in members]


def _mixture_of_mse(samples: FittingData, temperature: float) -> np.ndarray:
    """The mixture of the least MSE, a quadratic that one pass determines."""

    def of_block(block):
        p, weight = _members(block, temperature), block.weights()
        labels = block.soft_labels()
        target = [weight @ _dot(a, labels) for a in p]
        squares = [[weight @ _dot(a, b) for b in p] for a in p]
        return squares, target, weight.sum()

    squares, products, weight = samples.sums(of_block)
    squares, products = squares / weight, products / weight

    def value(mixture):
        slope = squares @ mixture - products
        return mixture @ (slope - products), 2.0 * slope

    return _least_on_simplex(value)


def _mixture_of_nll(samples: FittingData, temperature: float) -> np.ndarray:
    def value(mixture):
        def of_block(block):
            p, weight = _members(block, temperature), block.weights()
            if block.labels.ndim == 1:
                # The loss of a hard label needs its own column alone.
                rows = np.arange(len(weight))
                p = [a[rows, block.labels][:, None] for a in p]
                labels = np.ones((len(weight), 1))
            else:
                labels = block.soft_labels()
            mixed = sum(m * a for m, a in zip(mixture, p, strict=True))
            # Without its uniform part a mixture can rule out the label.
            mixed = np.maximum(mixed, 1e-300)
            loss = -weight @ _dot(labels, np.log(mixed))
            slope = [-weight @ _dot(labels / mixed, a) for a in p]
            return loss, slope, weight.sum()

        loss, slope, weight = samples.sums(of_block)
        return loss / weight, slope / weight

    return _least_on_simplex(value)


def _least_on_simplex(value: Any) -> np.ndarray:
    """The mixture of the least value, never worse than a single member."""
    found = minimize(
        value,
        np.full(3, 1.0 / 3.0),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 3,
        constraints={
            "type": "eq",
            "fun": lambda m: m.sum() - 1.0,
            "jac": lambda m: np.ones(3),
        },
        options={"ftol": 1e-14, "maxiter": 200},
    )
    mixture = np.clip(found.x, 0.0, 1.0)
    # SLSQP may stop near a corner that is better than where it stopped.
    candidates = [mixture / mixture.sum(), *np.eye(3)]
    return min(candidates, key=lambda m: value(m)[0])


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Inner products of rows, `(n,)`."""
    return np.sum(a * b, axis=-1)

"""Bayesian vector and matrix scaling."""

from typing import Any

import keras
import numpy as np
from keras import ops
from scipy.stats import f as f_distribution

from keras_calib.backend.errors import value_error
from keras_calib.backend.errors import warn
from keras_calib.backend.products import exact_products
from keras_calib.calibrators.base import fitted_array
from keras_calib.calibrators.bayesian_scaling_sampler import Chains
from keras_calib.calibrators.bayesian_scaling_sampler import Draws
from keras_calib.calibrators.bayesian_scaling_sampler import sample_posterior
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.fitting_data import refuse_ruled_out
from keras_calib.calibrators.posterior import PosteriorCalibrator
from keras_calib.calibrators.posterior import ScaledSamples
from keras_calib.calibrators.posterior import mean_over_draws
from keras_calib.calibrators.posterior import scaled_samples
from keras_calib.calibrators.structured import smoothed_log_probs
from keras_calib.inputs.checks import check_above
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.checks import check_share

__all__ = ["BayesianScaling"]

# A matrix of more classes has so many parameters that each step takes long
# and the prior decides.
_MOST_CLASSES = 50
# Gelman's diagnostic of chains that agree; of short chains chance allows more.
_R_HAT = 1.05
_CHANCE = 1e-3


@keras.saving.register_keras_serializable(package="keras_calib")
class BayesianScaling(PosteriorCalibrator):
    """Vector or matrix scaling averaged over its posterior.

    Use it when held-out samples are few for the number of classes, or when
    you want an interval of each probability. It needs the extra `bayes` to
    fit, and nothing more to be used, saved or exported.

    u = log((1 - s) softmax(z / T) + s / K)
    q = mean over draws of softmax(W u + b)

    T is the optimum of `TemperatureScaling`, and s = 1 / (n + 1) for n
    samples. The prior of a vector, W diagonal, is exp(-K |W - I|^2 - K |b|^2)
    for K classes. Off the diagonal of a matrix the factor is K (K - 1). The
    draws come from the no-U-turn sampler, preconditioned by the Laplace
    approximation.

    Args:
        kind: `"vector"` for 2 K parameters, `"matrix"` for K (K + 1).
        num_draws: Number of draws to keep, at least 2. A call costs as many
            times a vector or matrix scaling.
        num_chains: Number of chains, at least 2.
        num_warmup: Number of steps of each chain that adapt the step size
            and are dropped, at least 1.
        num_samples: Number of further steps of each chain, at least 4.
            `num_draws` are taken from all at even distances.
        seed: Seed of the chains.
        temperature: T, > 0, if you know it; None waits for `fit`.
        uniform_share: s, in (0, 1); goes with `temperature`.
        weights: Draws of W, `(num_draws, num_classes, num_classes)`, or of
            its diagonal `(num_draws, num_classes)`; goes with `temperature`.
        biases: Draws of b, `(num_draws, num_classes)`; likewise.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Raises:
        ImportError: On `fit`, without TensorFlow Probability: pip install
            'keras-calib[bayes]'.
        ValueError: On `fit`, for a matrix of more than 50 classes without
            `force=True`.

    Warns:
        RuntimeWarning: On `fit`, if the chains disagree.

    Example:

    >>> scaling = BayesianScaling(
    ...     temperature=1.0,
    ...     uniform_share=1e-6,
    ...     weights=[[1.0, 1.0], [2.0, 2.0]],
    ...     biases=[[0.0, 0.0], [0.0, 0.0]],
    ... )
    >>> logits = keras.ops.convert_to_numpy(scaling(np.log([[0.75, 0.25]])))
    >>> print(np.round(np.exp(logits), 3))
    [[0.825 0.175]]

    Reference:
        The prior is the penalty of structured scaling: Berta, Holzmüller,
        Jordan and Bach, Structured Matrix Scaling for Multi-Class
        Calibration, AISTATS 2026, https://arxiv.org/abs/2511.03685; the
        sampler: Hoffman and Gelman, The No-U-Turn Sampler, JMLR 2014,
        https://arxiv.org/abs/1111.4246
    """

    fitted_values = ("temperature", "uniform_share", "weights", "biases")
    options = (
        "kind",
        "num_draws",
        "num_chains",
        "num_warmup",
        "num_samples",
        "seed",
    )
    uniform_share = fitted_array("uniform_share", "The share s of uniform.")
    weights = fitted_array("weights", "Draws of W, or of its diagonal.")
    biases = fitted_array("biases", "Draws of b, `(num_draws, num_classes)`.")

    def __init__(
        self,
        *,
        kind: str = "vector",
        num_draws: int = 100,
        num_chains: int = 16,
        num_warmup: int = 40,
        num_samples: int = 25,
        seed: int = 0,
        temperature: float | None = None,
        uniform_share: float | None = None,
        weights: Any = None,
        biases: Any = None,
        name: str = "bayesian_scaling",
        **kwargs: Any,
    ):
        check_in("kind", kind, ("vector", "matrix"))
        check_integer("num_draws", num_draws, 2)
        check_integer("num_chains", num_chains, 2)
        check_integer("num_warmup", num_warmup, 1)
        check_integer("num_samples", num_samples, 4)
        check_integer("seed", seed, 0)
        if num_draws > num_chains * num_samples:
            raise value_error(
                "`num_draws` must be <= `num_chains` * `num_samples`",
                num_draws=num_draws,
                num_chains=num_chains,
                num_samples=num_samples,
            )
        super().__init__(name=name, **kwargs)
        self.kind = kind
        self.num_draws = num_draws
        self.num_chains = num_chains
        self.num_warmup = num_warmup
        self.num_samples = num_samples
        self.seed = seed
        self._diagnostics: tuple[float, float] | None = None
        values = {
            "temperature": temperature,
            "uniform_share": uniform_share,
            "weights": weights,
            "biases": biases,
        }
        if any(value is not None for value in values.values()):
            num_classes = _num_classes(kind, values)
            self.set_fitted(num_classes, **values)

    @property
    def temperature(self) -> float:
        """The fitted temperature."""
        return float(self.fitted_value("temperature"))

    @property
    def r_hat(self) -> float | None:
        """Largest R-hat of the last `fit`, near 1 if the chains agree."""
        return None if self._diagnostics is None else self._diagnostics[0]

    @property
    def effective_sample_size(self) -> float | None:
        """Least effective sample size of the last `fit`, over parameters."""
        return None if self._diagnostics is None else self._diagnostics[1]

    def fit_samples(self, samples: FittingData) -> None:
        if self.kind == "matrix":
            refuse_ruled_out(samples, '`kind="vector"`')
        read = scaled_samples(samples)
        num_classes = samples.num_classes
        # Sampled in an order of their own, classes that change places get
        # the same draws.
        order = np.argsort(read.weight @ read.log_probs, kind="stable")
        place = np.argsort(order)
        moved = ScaledSamples(
            read.temperature,
            read.uniform_share,
            read.log_probs[:, order],
            read.labels[:, order],
            read.weight,
        )
        chains = Chains(
            self.num_chains, self.num_warmup, self.num_samples, self.seed
        )
        draws = sample_posterior(moved, self.kind, chains)
        total = len(draws.values)
        kept = np.arange(self.num_draws) * total // self.num_draws
        rows = draws.values[kept][:, place]
        weights = rows[:, :, 0]
        if self.kind == "matrix":
            weights = rows[:, :, :-1][:, :, place]
            weights = weights + np.eye(num_classes)
        else:
            weights = weights + 1.0
        self.set_fitted(
            num_classes,
            temperature=read.temperature,
            uniform_share=read.uniform_share,
            weights=weights,
            biases=rows[:, :, -1],
        )
        self._check_convergence(draws)

    def calibrate(self, logits: Any) -> Any:
        return mean_over_draws(self.logits_of_draws(logits))

    @exact_products
    def map_of_draws(self, logits: Any) -> Any:
        u = smoothed_log_probs(logits, self._temperature, self._uniform_share)
        if self.kind == "matrix":
            # `(..., num_draws, num_classes)`
            mapped = ops.tensordot(u, self._weights, axes=[[-1], [2]])
        else:
            mapped = ops.expand_dims(u, -2) * self._weights
        return mapped + self._biases

    def num_parameters(self, num_classes: int) -> int:
        """Two, the least there are: the prior holds the others."""
        return 2

    def degrees_of_freedom(self, samples: FittingData) -> float:
        """None that an average over the posterior fits to chance."""
        return 0.0

    def check_enough(self, samples: FittingData, force: bool = False) -> None:
        """Raises ValueError if there is too little, or a matrix too large."""
        super().check_enough(samples, force)
        count = samples.num_classes
        if self.kind == "matrix" and count > _MOST_CLASSES and not force:
            raise value_error(
                f'`kind` must be "vector" for more than {_MOST_CLASSES} '
                "classes, where a matrix has too many parameters to sample; "
                "`force=True` fits all the same",
                kind=self.kind,
                num_classes=count,
            )

    def _check_convergence(self, draws: Draws) -> None:
        r_hat = float(np.max(draws.r_hat))
        effective = float(np.min(draws.effective))
        self._diagnostics = r_hat, effective
        # Each chain counts as two halves.
        groups, size = 2 * self.num_chains, self.num_samples // 2
        freedom = groups - 1, groups * (size - 1)
        by_chance = f_distribution.isf(_CHANCE / draws.r_hat.size, *freedom)
        most = max(_R_HAT, np.sqrt(1.0 + (by_chance - 1.0) / size))
        if not (r_hat <= most and effective >= self.num_draws / 2):
            warn(
                f"The chains of `{self.name}` have not converged. Raise "
                "`num_warmup` and `num_samples`. Received: "
                f"r_hat={r_hat:.3f}, effective_sample_size={effective:.0f}"
            )


def _num_classes(kind: str, values: dict[str, Any]) -> int:
    """Number of classes; raises unless all are given, of shapes that fit."""
    names = ", ".join(f"`{name}`" for name in values)
    given = [name for name, value in values.items() if value is not None]
    if len(given) < len(values):
        raise value_error(f"{names} must be given together", given=given)
    check_above("temperature", values["temperature"], 0.0)
    check_share("uniform_share", values["uniform_share"], positive=True)
    shapes = [np.shape(value) for value in values.values()]
    biases = shapes[-1]
    wanted = [(), (), (*biases, *biases[1:]) if kind == "matrix" else biases]
    if len(biases) != 2 or shapes[:-1] != wanted:
        what = "(num_draws, num_classes)"
        square = "(num_draws, num_classes, num_classes)"
        raise value_error(
            f"{names} must have the shapes (), (), "
            f"{square if kind == 'matrix' else what} and {what}",
            shapes=shapes,
        )
    return int(biases[1])

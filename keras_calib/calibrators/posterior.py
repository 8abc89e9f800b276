"""The base of calibrators with a posterior, and what their fits share."""

from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np
from keras import ops
from scipy.special import log_softmax

from keras_calib.calibrators.base import Calibrator
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.separation import supported_samples
from keras_calib.calibrators.structured import smoothed_log_probs
from keras_calib.calibrators.temperature import optimal_temperature
from keras_calib.inputs.checks import check_above
from keras_calib.inputs.checks import check_at_most
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import is_ruled_out
from keras_calib.numerics.softmax import logsumexp

__all__ = [
    "PosteriorCalibrator",
    "ScaledSamples",
    "mean_over_draws",
    "scaled_samples",
]

# Logits of all draws that an interval holds at once.
_BLOCK = 2**22
# Stands for log 0 in fits, whose maps leave it far below.
_RULED_OUT = -1e9


class ScaledSamples(NamedTuple):
    """What a fit needs of the samples, float64."""

    temperature: float
    uniform_share: float
    log_probs: np.ndarray  # `(n, num_classes)`, of `smoothed_log_probs`
    labels: np.ndarray  # soft labels, `(n, num_classes)`
    weight: np.ndarray  # `(n,)`


class PosteriorCalibrator(Calibrator):
    """Abstract: a calibrator with draws from the posterior of its map.

    A subclass implements `map_of_draws`.
    """

    needs_every_class = False

    def logits_of_draws(self, logits: Any) -> Any:
        """Logits of each draw `(..., num_draws, num_classes)`."""
        found = self.map_of_draws(logits)
        low = ops.expand_dims(is_ruled_out(logits), -2)
        return ops.where(low, ops.full_like(found, _RULED_OUT), found)

    def map_of_draws(self, logits: Any) -> Any:
        """That, with any logits for classes that are ruled out."""
        raise NotImplementedError

    def credible_interval(
        self, logits: Any, level: float = 0.95, *, from_logits: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return an interval of each calibrated probability.

        Use it to see how far few held-out samples determine a probability.
        The ends are quantiles over the draws from the posterior, so they
        speak of the map alone: not of a shift of the data.

        Args:
            logits: The model's outputs `(..., num_classes)`, or `(..., 1)` for
                the second of two classes.
            level: Posterior probability of each interval, in (0, 1].
            from_logits: Whether they are logits rather than probabilities.

        Returns:
            Lower and upper ends, float32 arrays of the shape of `logits`.

        Raises:
            RuntimeError: If it is called before `fit`.
            ValueError: If `level` is not in (0, 1].
        """
        check_above("level", level, 0.0)
        check_at_most("level", level, 1.0)
        logits, one_output = self.logits_for_interval(logits, from_logits)
        logits = to_numpy(logits).astype("float32")
        rows = logits.reshape(-1, logits.shape[-1])
        ends = ((1.0 - level) / 2.0, (1.0 + level) / 2.0)
        found = np.empty((2, *rows.shape), "float32")
        for block in self._row_blocks(rows):
            draws = to_numpy(self._draws_of_rows(rows[block]))
            probs = np.exp(log_softmax(draws.astype("float64"), axis=-1))
            # Without bias for few draws.
            found[:, block] = np.quantile(probs, ends, axis=1, method="weibull")
        lower, upper = found.reshape(2, *logits.shape)
        if one_output:
            return lower[..., 1:], upper[..., 1:]
        return lower, upper

    def _draws_of_rows(self, rows: np.ndarray) -> Any:
        return self.logits_of_draws(ops.convert_to_tensor(rows))

    def _row_blocks(self, rows: np.ndarray) -> Iterator[slice]:
        if not len(rows):
            return
        draws = self._draws_of_rows(rows[:1])
        size = max(1, _BLOCK // int(np.prod(shape_of(draws))))
        for start in range(0, len(rows), size):
            yield slice(start, start + size)


def mean_over_draws(logits: Any) -> Any:
    """Log of the mean over draws of softmax, `(..., num_classes)`."""
    log_probs = logits - logsumexp(logits, keepdims=True)
    num_draws = shape_of(logits)[-2]
    return logsumexp(log_probs, axis=-2) - float(np.log(num_draws))


def scaled_samples(
    samples: FittingData, most: int | None = None
) -> ScaledSamples:
    """Temperature, share of uniform, and the samples that count, as one block.

    The share is 1 / (n + 1) for n samples, and `most` is a number of logits
    beyond which some of them are enough.
    """
    samples = supported_samples(samples)
    temperature = optimal_temperature(samples)
    count = samples.effective_count()
    share = 1.0 / (count + 1.0)
    total = float(samples.weights()[samples.counts()].sum(dtype="float64"))
    kept = samples if most is None else samples.subsampled(most)
    kept = kept.rows(kept.counts())
    logits = kept.logits.astype("float64")
    log_probs = smoothed_log_probs(logits, temperature, share)
    log_probs[is_ruled_out(logits)] = _RULED_OUT
    weight = kept.weights() * (count / total)
    return ScaledSamples(
        temperature, share, log_probs, kept.soft_labels(), weight
    )

"""Whether a calibrator helps samples that it is not fitted on."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid, warn
from keras_calib.backend.progress import tracked
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.separation import has_error
from keras_calib.formulas.proper import log_losses
from keras_calib.inputs.checks import generator
from keras_calib.inputs.weights import are_frequency_weights
from keras_calib.numerics.arrays import to_numpy

# By chance the NLL gains about degrees of freedom / samples, in nats. Less than
# the first is harmless; a gain above the second times chance is real.
_LITTLE, _CLEARLY = 1e-3, 5.0
# Standard errors of a gain after which no further fold is fitted, and the
# samples or images that such an error takes.
_SURELY, _ENOUGH = 3.0, 100
# Nats that a sample loses if its class gets about the probability 0.
_RULED_OUT = 50.0
# Logits of a block, and for an estimate of the gain.
_BLOCK, _SOME = 2**18, 2**19


def unfitted_copy(calibrator: Any) -> Any:
    """A calibrator of the same options that is not fitted."""
    nothing = dict.fromkeys(calibrator.fitted_values)
    config = {**calibrator.get_config(), **nothing}
    for fact in ("from_logits", "num_samples", "num_units"):
        config.pop(fact, None)
    return type(calibrator).from_config(config)


def stratified_folds(
    samples: FittingData, num_folds: int, seed: int = 0
) -> np.ndarray:
    """The fold of each sample, `(n,)`: each class in equal shares.

    Samples of one image or sequence are alike, so they share a fold.
    """
    random = generator(seed)
    counted = np.flatnonzero(samples.counts())
    fold = np.zeros(len(samples.logits), "int64")
    alike = samples.groups()
    if alike is not None:
        groups, place = np.unique(alike[counted], return_inverse=True)
        fold[counted] = random.permutation(len(groups))[place] % num_folds
        return fold
    labels = samples.labels[counted]
    ids = labels if labels.ndim == 1 else labels.argmax(axis=-1)
    order = np.lexsort((random.random(len(ids)), ids))
    fold[counted[order]] = np.arange(len(ids)) % num_folds
    return fold


def mean_and_error(
    values: np.ndarray, samples: FittingData
) -> tuple[float, float]:
    """Weighted mean of values of the samples that count; standard error.

    Whole weights are repeats. Samples of one image or sequence vary together.
    """
    counts = samples.counts()
    weight = samples.weights()[counts].astype("float64")
    mean = float(np.average(values, weights=weight))
    parts = weight * (values - mean)
    alike = samples.groups()
    if alike is not None:
        parts = np.bincount(alike[counts], parts)
        square = parts @ parts
    elif are_frequency_weights(samples.weight):
        square = parts @ (values - mean)
    else:
        square = parts @ parts
    return mean, float(np.sqrt(square) / weight.sum())


def is_harmful(changes: np.ndarray, samples: FittingData) -> bool:
    """Whether changes of the NLL of samples that count say that it rose.

    Less than a standard error can be chance, also where there is nothing to
    repair. A sample that was ruled out costs more than such an error tells.
    """
    change, error = mean_and_error(changes, samples)
    ruled_out = np.any(changes > _RULED_OUT)
    return bool(change > (0.0 if ruled_out else error))


def num_units(samples: FittingData) -> int:
    """Number of images or sequences that count, or of samples."""
    counts, alike = samples.counts(), samples.groups()
    return int(counts.sum()) if alike is None else len(np.unique(alike[counts]))


def out_of_fold(
    make: Callable[[], Any], samples: FittingData, fold: np.ndarray
) -> np.ndarray | None:
    """Logits of each sample, calibrated by fits without its fold, float32.

    None if a fold has no valid sample.
    """
    found = np.zeros(samples.logits.shape, "float32")
    num_folds = int(fold.max()) + 1
    for k in tracked(range(num_folds), num_folds):
        left_out, logits = without_fold(make, samples, fold, k)
        if logits is None:
            return None
        found[left_out] = logits
    return found


def without_fold(
    make: Callable[[], Any], samples: FittingData, fold: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Valid samples of fold k, a mask; their logits from a fit to the others.

    Warnings of the fit are dropped. Logits are None where a side is empty.
    """
    counts = samples.counts()
    inside, left_out = counts & (fold != k), counts & (fold == k)
    if not (inside.any() and left_out.any()):
        return left_out, None
    calibrator = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator.fit_samples(samples.rows(inside))
    return left_out, calibrated(calibrator, samples.logits[left_out])


def calibrated(calibrator: Any, logits: np.ndarray) -> np.ndarray:
    """The answers of a fitted calibrator, by blocks, float32."""
    rows = max(1, _BLOCK // logits.shape[-1])
    found = np.empty(logits.shape, "float32")
    for start in range(0, len(logits), rows):
        part = slice(start, start + rows)
        z = ops.convert_to_tensor(logits[part].astype("float32"))
        mapped = calibrator.mapped(calibrator.map_logits, z, True)
        found[part] = to_numpy(mapped)
    return found


def sample_losses(samples: FittingData, logits: np.ndarray) -> np.ndarray:
    """NLL of each sample `(n,)`, float64."""
    labels = (
        samples.labels if samples.labels.ndim == 1 else samples.soft_labels()
    )
    losses = log_losses(labels, logits, from_logits=True)
    return losses.astype("float64")


def _mean_loss(samples: FittingData, logits: np.ndarray) -> float:
    """Mean NLL of the valid samples."""
    counts = samples.counts()
    losses = sample_losses(samples, logits)
    return float(np.average(losses[counts], weights=samples.weights()[counts]))


def warn_if_harmful(
    calibrator: Any, samples: FittingData, num_folds: int
) -> None:
    """Warns if a fit is worse than none on samples left out of it.

    Fits to folds take longer than the fit itself. They run only if chance alone
    could give its gain. With a ridge they end when a gain is beyond chance.
    """
    if not num_folds:
        return
    free = calibrator.degrees_of_freedom(samples)
    by_chance = free / samples.effective_count()
    if calibrator.lowers_nll and by_chance < _LITTLE:
        return
    some = samples.subsampled(_SOME)
    gain = _mean_loss(some, some.logits) - _mean_loss(
        some, calibrated(calibrator, some.logits)
    )
    if gain >= 0.0 and (by_chance < _LITTLE or gain > _CLEARLY * by_chance):
        return
    fold = stratified_folds(samples, num_folds)
    before = sample_losses(samples, samples.logits)
    after, seen = before.copy(), np.zeros(len(before), bool)
    change = error = 0.0
    wrong = has_error(samples)
    num_folds = int(fold.max()) + 1
    for k in tracked(range(num_folds), num_folds):
        left_out, logits = without_fold(
            lambda: unfitted_copy(calibrator), samples, fold, k
        )
        if logits is None:
            return
        rest = samples.rows(left_out)._replace(logits=logits)
        after[left_out] = sample_losses(rest, logits)
        wrong = wrong or has_error(rest)
        seen |= left_out
        part = samples._replace(valid=seen)
        change, error = mean_and_error((after - before)[seen], part)
        # Other folds would not turn this into harm: with a ridge no sample
        # costs more than many others gain.
        sure = change < -_SURELY * error and num_units(part) >= _ENOUGH
        if sure and getattr(calibrator, "penalty", None) is not None:
            return
    if not wrong:
        # Without an error folds reward any confidence.
        return
    others = "more samples, or what `choose_calibrator` chooses"
    if getattr(calibrator, "min_prob", None) == 0.0:
        others = f"`min_prob=0.001`, {others}"
    if is_harmful((after - before)[seen], part):
        without, _ = mean_and_error(before[seen], part)
        warn(
            invalid(
                f"`{type(calibrator).__name__}` must help samples that it is "
                "not fitted on, and here makes them worse than no calibrator. "
                f"Take {others}",
                nll_without_it=round(without, 4),
                nll_on_other_samples=round(without + change, 4),
            )
        )

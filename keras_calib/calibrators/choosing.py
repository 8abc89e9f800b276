"""Choosing a calibrator by cross-validation."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
from scipy.stats import t as student_t

from keras_calib.backend.errors import type_error, value_error, warn
from keras_calib.backend.progress import shows_progress, tracked
from keras_calib.calibrators.affine import (
    StructuredMatrixScaling,
    StructuredVectorScaling,
)
from keras_calib.calibrators.base import Calibrator
from keras_calib.calibrators.fitting_data import (
    FittingData,
    one_thread_of_blas,
    read_predictions,
)
from keras_calib.calibrators.folds import (
    is_harmful,
    mean_and_error,
    num_units,
    out_of_fold,
    sample_losses,
    stratified_folds,
    unfitted_copy,
)
from keras_calib.calibrators.logistic import AffineScaling, QuadraticScaling
from keras_calib.calibrators.temperature import (
    EnsembleTemperatureScaling,
    TemperatureScaling,
    mean_scores,
)
from keras_calib.calibrators.venn_abers import VennAbers
from keras_calib.formulas.intervals import tail_of
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.results import Result, interval_text
from keras_calib.predictions.fitting import KindOptions, given_rows

# The default candidates beside a temperature, the simplest first.
# Without beta calibration, which raises the mean NLL of fits to 100 samples.
_TWO_CLASSES = (
    AffineScaling,
    StructuredVectorScaling,
    QuadraticScaling,
    VennAbers,
)
_MANY_CLASSES = (EnsembleTemperatureScaling, StructuredVectorScaling)
# Most classes for a matrix among the default candidates.
_MATRIX = 100
# The candidate that is no calibrator.
_NONE = "none"


class CandidateScore(Result):
    """What cross-validation found of one candidate.

    Attributes:
        name: Name of the candidate; `"none"` is no calibrator.
        nll: Mean NLL of samples that each fit left out, in nats.
        difference: That NLL less that of no calibrator; below 0 helps.
        low: Lower end of the confidence interval of the difference, paired
            by sample.
        high: Upper end of it.
        behind: That NLL less that of the best candidate, >= 0.
        error: Standard error of `behind`, paired by sample.
        ece: ECE of the same predictions, 15 equal-width bins.
        seconds: Time of all its fits.
        note: Why a candidate was not tried, or `""`.
    """

    name: str
    nll: float
    difference: float
    low: float
    high: float
    behind: float
    error: float
    ece: float
    seconds: float
    note: str = ""


class CalibratorChoice(Result):
    """The calibrator that `choose_calibrator` chose, and why.

    Print it to see the table of all candidates and the reason.

    Attributes:
        calibrator: The chosen calibrator, fitted on all samples. For
            `"none"` it is a temperature of 1.
        name: Name of the chosen candidate.
        reason: The reason, in a sentence.
        candidates: A `CandidateScore` of each candidate, the simplest first.
        level: Level of the intervals.
    """

    calibrator: Calibrator
    name: str
    reason: str
    candidates: tuple[CandidateScore, ...]
    level: float

    __repr__ = Result.__str__

    def _columns(self) -> dict[str, Any]:
        rows = [vars(x) for x in self.candidates]
        return {name: [x[name] for x in rows] for name in rows[0]}

    def _shown(self) -> dict[str, Any]:
        less = f"less none ({100 * self.level:g} %)"
        names = "calibrator", "held-out NLL", less, "ECE", "s", ""
        rows = []
        for x in self.candidates:
            change = interval_text(x.difference, x.low, x.high, sign="+")
            change = "" if x.name == _NONE else change
            values = f"{x.nll:.4f}", change, f"{x.ece:.4f}", f"{x.seconds:.2f}"
            values = ("", "", "", "") if x.note else values
            note = "chosen" if x.name == self.name else x.note
            rows.append((x.name, *values, note))
        return dict(zip(names, zip(*rows, strict=True), strict=True))

    def _note(self) -> str:
        return self.reason


@shows_progress
def choose_calibrator(
    labels: Any,
    logits: Any = None,
    sample_weight: Any = None,
    *,
    candidates: Mapping[str, Calibrator] | Sequence[Calibrator] | None = None,
    num_folds: int = 5,
    level: float = 0.95,
    seed: int = 0,
    verbose: str | int = "auto",
    **options: Unpack[KindOptions],
) -> CalibratorChoice:
    """Choose a calibrator by its NLL on samples that it is not fitted on.

    Use it when you do not know which calibrator suits your held-out data. Each
    candidate is fitted without one fold after another, and its NLL is that of
    the folds left out. The choice is the simplest candidate whose NLL is at
    most one standard error, of the difference by sample, above the best. It is
    then fitted on all samples.

    No calibrator, `"none"`, is always a candidate. By default the others are a
    temperature, ensemble temperature, and structured vector and matrix scaling,
    the last up to 100 classes. For two classes they are a temperature, affine,
    structured vector and quadratic scaling, and Venn-Abers.
    Pixels of one image, tokens of one sequence, and rows of one unit share a
    fold. For a model and data call
    `choose_calibrator(Predictions.of_model(model, data))`.

    Args:
        labels: `Predictions`, or class ids `(n, ...)` or one-hot or soft
            labels, as in `Calibrator.fit`.
        logits: Logits `(n, ..., num_classes)` or `(n, ..., 1)`, on which the
            model was not trained; None with `Predictions`.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
        candidates: Calibrators, the simplest first, or a dict of them by
            name. They need not be fitted, and are not changed.
        num_folds: Number of folds, >= 2, each with equal shares of the classes.
        level: Level of the intervals.
        seed: Seed of the folds.
        verbose: `"auto"` or 1 for a progress bar after two seconds, 2 for a
            line at the end, 0 for silence.
        **options: For arrays `from_logits`, True by default, and
            `ignore_class`, as in `Calibrator.fit`.

    Returns:
        `CalibratorChoice`, whose `calibrator` is fitted on all samples; print
        it to see the table.

    Raises:
        TypeError: If a candidate is no calibrator.
        ValueError: If `fit` would reject the data, or there is no candidate.

    Warns:
        RuntimeWarning: If given candidates make held-out samples worse than no
            calibrator, by more than a standard error, or could not be tried.

    Example:

    >>> rng = np.random.default_rng(0)
    >>> logits = 4 * rng.normal(size=(500, 3))
    >>> labels = (logits / 2 + rng.gumbel(size=(500, 3))).argmax(-1)
    >>> choose_calibrator(labels, logits).name
    'temperature_scaling'

    Reference:
        The rule of one standard error: Breiman et al., Classification and
        Regression Trees, 1984, section 3.4.3.
    """
    given = given_rows(labels, logits, sample_weight=sample_weight, **options)
    check_integer("num_folds", num_folds, 2)
    check_integer("seed", seed, 0)
    tail = tail_of(level)
    samples = read_predictions(given)
    named = _named(candidates, samples.num_classes)
    # The simplest calibrator says whether any can be fitted.
    TemperatureScaling().check_enough(samples)
    fold = stratified_folds(samples, num_folds, seed)
    trials = {
        name: _tried(x, samples, fold)
        for name, x in tracked(named.items(), len(named))
    }
    notes = {name: x.note for name, x in trials.items() if x.note}
    if {*notes, _NONE} == {*named}:
        raise value_error(
            "`candidates` must hold one that these data can fit", **notes
        )
    if candidates is not None and notes:
        told = "; ".join(f"{name}: {note}" for name, note in notes.items())
        warn(f"Some `candidates` could not be tried. Received: {told}")
    losses = {k: x.losses for k, x in trials.items() if not x.note}
    chosen, best, reason = _chosen(losses, samples)
    scores = tuple(
        _score(name, trial, losses[_NONE], losses[best], samples, tail)
        for name, trial in trials.items()
    )
    calibrator: Calibrator = TemperatureScaling(temperature=1.0)
    if chosen != _NONE:
        calibrator = unfitted_copy(named[chosen])
        with one_thread_of_blas():
            calibrator.fit_samples(samples)
    with calibrator.remembering(given.from_logits):
        calibrator.num_samples, calibrator.num_units = samples.sizes()
    if candidates is not None:
        _warn_of_harm(losses, samples)
    return CalibratorChoice(calibrator, chosen, reason, scores, level)


def _named(candidates: Any, num_classes: int) -> dict[str, Any]:
    """The candidates by name, the simplest first; none is None."""
    if candidates is None:
        kinds: list[type] = [TemperatureScaling, *_MANY_CLASSES]
        if num_classes == 2:
            kinds = [TemperatureScaling, *_TWO_CLASSES]
        elif num_classes <= _MATRIX:
            kinds.append(StructuredMatrixScaling)
        candidates = [kind() for kind in kinds]
    if isinstance(candidates, Calibrator):
        candidates = [candidates]
    if not isinstance(candidates, Mapping):
        if isinstance(candidates, str) or not isinstance(candidates, Iterable):
            raise type_error(
                "`candidates` must be a list or dict of calibrators, such as "
                "`[TemperatureScaling()]`",
                candidates=candidates,
            )
        several = list(candidates)
        candidates = {getattr(x, "name", repr(x)): x for x in several}
        if len(candidates) < len(several):
            raise value_error(
                "`candidates` must have different names: give a dict of them",
                names=[getattr(x, "name", repr(x)) for x in several],
            )
    if not candidates or _NONE in candidates:
        raise value_error(
            '`candidates` must hold a calibrator, none of them named "none"',
            candidates=list(candidates),
        )
    for name, calibrator in candidates.items():
        check_candidate(f"candidates[{name!r}]", calibrator)
    return {_NONE: None, **candidates}


def check_candidate(name: str, calibrator: Any) -> None:
    """Raises TypeError unless it is a calibrator that fits on logits alone."""
    kind = type(calibrator)
    if not isinstance(calibrator, Calibrator):
        raise type_error(
            f"`{name}` must be a calibrator, such as `TemperatureScaling()`",
            **{name: kind.__name__},
        )
    if kind.fit_samples is Calibrator.fit_samples:
        raise type_error(
            f"`{name}` must fit on logits alone; choose or fit first, then "
            "wrap the result",
            **{name: kind.__name__},
        )


class _Trial(NamedTuple):
    """What the fits of a candidate to all but one fold gave."""

    losses: np.ndarray  # of each sample that counts
    ece: float
    seconds: float
    note: str = ""  # why it was not tried


def _tried(
    calibrator: Calibrator | None, samples: FittingData, fold: np.ndarray
) -> _Trial:
    """A candidate on samples that its fits left out."""
    start = time.perf_counter()
    found: np.ndarray | None = np.asarray(samples.logits, "float32")
    note = "a fold has no sample; dense outputs need as many images as folds"
    if calibrator is not None:
        try:
            calibrator.check_enough(samples)
            with one_thread_of_blas():
                found = out_of_fold(
                    lambda: unfitted_copy(calibrator), samples, fold
                )
        except ValueError as error:
            found, note = None, str(error)
    seconds = time.perf_counter() - start
    if found is None:
        return _Trial(np.array(()), math.nan, seconds, note)
    losses = sample_losses(samples, found)[samples.counts()]
    (ece,) = mean_scores(samples._replace(logits=found), [1.0], "ece")
    return _Trial(losses, float(ece), seconds)


def _score(
    name: str,
    trial: _Trial,
    none: np.ndarray,
    best: np.ndarray,
    samples: FittingData,
    tail: float,
) -> CandidateScore:
    """A trial beside no calibrator and the best one."""
    _, ece, seconds, note = trial
    if note:
        no = math.nan
        return CandidateScore(name, no, no, no, no, no, no, ece, seconds, note)
    change, error = mean_and_error(trial.losses - none, samples)
    freedom = max(1, num_units(samples) - 1)
    reach = float(student_t.isf(tail, freedom)) * error
    return CandidateScore(
        name,
        mean_and_error(trial.losses, samples)[0],
        change,
        change - reach,
        change + reach,
        *mean_and_error(trial.losses - best, samples),
        ece,
        seconds,
    )


def _chosen(
    losses: dict[str, np.ndarray], samples: FittingData
) -> tuple[str, str, str]:
    """The simplest within one standard error of the best, the best, why."""
    means = {k: mean_and_error(v, samples)[0] for k, v in losses.items()}
    best = min(means, key=means.__getitem__)
    behind = {
        k: mean_and_error(v - losses[best], samples) for k, v in losses.items()
    }
    name = next(k for k, (more, error) in behind.items() if more <= error)
    error = behind[name][1]
    if name == best:
        reason = f"{name} has the lowest held-out NLL, {means[name]:.4f}."
        return name, best, reason
    reason = (
        f"{name} is the simplest whose held-out NLL, {means[name]:.4f}, is "
        f"within one standard error, {error:.4f}, of that of {best}, "
        f"{means[best]:.4f}."
    )
    return name, best, reason


def _warn_of_harm(losses: dict[str, np.ndarray], samples: FittingData) -> None:
    """Warns of candidates that are worse than none, beyond one error."""
    harmful = [
        name
        for name, loss in losses.items()
        if is_harmful(loss - losses[_NONE], samples)
    ]
    if harmful:
        warn(
            f"{', '.join(harmful)}: on samples left out of the fit, the NLL is "
            "higher than without a calibrator. Do not use them on such data, "
            f"or fit them on more. Received: n={len(losses[_NONE])}"
        )

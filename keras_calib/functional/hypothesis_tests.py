"""Tests of whether a network is calibrated."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self, Unpack

import numpy as np
from scipy.stats import chi2, norm

from keras_calib.backend.errors import value_error
from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.bins import bin_index, bin_sums
from keras_calib.formulas.cumulative import (
    ENOUGH_VARIANCE,
    brownian_tail,
    cumulative_error,
    differences_of,
)
from keras_calib.formulas.intervals import poisson_binomial_tails
from keras_calib.inputs.checks import check_in, check_integer, generator
from keras_calib.inputs.given_metrics import key_of
from keras_calib.inputs.labels import numbers_of_votes
from keras_calib.inputs.options import ArrayOptions, GivenTogether, is_log
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.top_label import has_shares, top_label, units_of
from keras_calib.inputs.weights import are_binary
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.results import Result

# Steps of the sums of units for cumulative errors.
_CUMULATIVE_BINS = 256
# Uniform numbers drawn at once, 8 MB.
_BLOCK = 1_000_000
_STATISTICS = ("ece", "chi2", "spiegelhalter", "ecce_range", "ecce_maximum")


class DrawnLabels(NamedTuple):
    """Shares of correct labels if confidences are right, for resampling.

    With n votes for a sample of confidence c, the number of correct ones is
    beta-binomial, with the mean n c.

    Derivation: docs/derivations.md, 'Votes'.

    Attributes:
        confidence: Confidence c of each sample, `(n,)`.
        votes: Number of votes for each sample, `(n,)`. None for one label.
        correlation: Intraclass correlation rho of the votes, in [0, 1].
    """

    confidence: np.ndarray
    votes: np.ndarray | None = None
    correlation: float = 0.0

    @property
    def variance(self) -> np.ndarray:
        """That of the share, c (1 - c) (1 + (n - 1) rho) / n, `(n,)`."""
        of_labels = self.confidence * (1.0 - self.confidence)
        if self.votes is None:
            return of_labels
        return of_labels * (
            self.correlation + (1.0 - self.correlation) / self.votes
        )

    def ordered(self, order: np.ndarray) -> Self:
        """The same with its samples in another order."""
        votes = None if self.votes is None else self.votes[order]
        return self._replace(confidence=self.confidence[order], votes=votes)

    def draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        """Shares of correct labels, `(rows, n)`."""
        size = rows, len(self.confidence)
        if self.votes is None:
            return rng.random(size) < self.confidence
        agree = np.broadcast_to(self.confidence, size)
        if self.correlation >= 1.0:
            return rng.random(size) < agree
        if self.correlation > 0.0:
            both = (1.0 - self.correlation) / self.correlation
            # Certain predictions have no distribution of their own.
            inside = np.clip(self.confidence, 1e-9, 1.0 - 1e-9)
            drawn = rng.beta(both * inside, both * (1.0 - inside), size)
            certain = (self.confidence == 0.0) | (self.confidence == 1.0)
            agree = np.where(certain, agree, drawn)
        return rng.binomial(self.votes, agree) / self.votes


def intraclass_correlation(
    confidence: np.ndarray, share: np.ndarray, votes: np.ndarray
) -> float:
    """How much alike the votes for one sample are, beyond its confidence.

    With the share s of n votes that are correct, and several votes,

    rho = sum e / sum c (1 - c),  e = s (n s - 1) / (n - 1) - 2 c s + c^2

    It is 0 if annotators vote independently with the probability c, and 1 if
    they all agree.

    Derivation: docs/derivations.md, 'Votes'.
    """
    several = votes > 1
    c, s, n = confidence[several], share[several], votes[several]
    total = float(np.sum(c * (1.0 - c)))
    if total == 0.0:
        return 0.0
    pairs = s * (n * s - 1.0) / (n - 1.0)
    return float(np.clip(np.sum(pairs - 2.0 * c * s + c**2) / total, 0.0, 1.0))


class CalibrationTestResult(Result):
    """Result of `calibration_test`.

    Attributes:
        statistic: Value of the test statistic.
        p_value: Probability of a value at least as extreme if the network is
            calibrated.
    """

    statistic: float
    p_value: float


def calibration_test(
    labels: Any,
    outputs: Any = None,
    *,
    statistic: str = "ece",
    num_bins: int = 15,
    num_draws: int = 1000,
    seed: int = 0,
    **options: Unpack[ArrayOptions],
) -> CalibrationTestResult:
    """Test whether predictions are correct as often as their confidence says.

    Use it before you trust or repair a calibration error: random labels alone
    make it larger than 0.

    The statistics, of confidences c, are:

    - `"ece"`: The ECE over equal-width bins, compared with that of labels drawn
      from the confidences: p = (1 + #{drawn >= observed}) / (1 + num_draws).
    - `"chi2"`: sum_b (correct_b - confidence_b)^2 / sum_{i in b} c_i (1 - c_i)
      over bins of equal mass, with one degree of freedom per bin. Neighbours
      are merged until each has a variance of five. A single bin gets an exact
      test of the number of correct predictions.
    - `"spiegelhalter"`: Z = sum (correct - c) (1 - 2 c) / sqrt(sum (1 - 2 c)^2
      c (1 - c)), two-sided and without bins. It is best at uniform over- or
      underconfidence, and hardly finds gaps of changing sign.
    - `"ecce_range"` (Kuiper) and `"ecce_maximum"` (Kolmogorov-Smirnov): The
      `ecce` of that kind, without bins. Over its standard deviation
      sqrt(sum c (1 - c)) / n it has the law of the range or the maximum of
      Brownian motion, and ties make p larger. Below a sum of 5, p comes from
      draws as for `"ece"`.

    Rows of one unit depend on each other: pixels of an image, and what
    `Predictions` have as `units`. The sums of (correct - c) of a unit are then
    what varies. P-values are those of draws, each of which turns the sign of
    the sums of every unit or does not; `"chi2"` and `"spiegelhalter"` have the
    variances of these sums.

    With `votes=True` a prediction is correct by its share of n votes. The votes
    for one sample are alike, as its annotators see one image. So the number
    of correct votes is beta-binomial with mean n c, and its intraclass
    correlation rho comes from the data. In the formulas above c (1 - c)
    becomes c (1 - c) (1 + (n - 1) rho) / n. With one vote each the test is
    that of class ids.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        statistic: `"ece"`, `"chi2"`, `"spiegelhalter"`, `"ecce_range"` or
            `"ecce_maximum"`.
        num_bins: Number of bins of `"ece"` and `"chi2"`, at least 1.
        num_draws: Number of draws, at least 1.
        seed: Seed of the draws.
        **options: As in `ece`. With `votes=True` labels are counts of votes;
            shares do not say how many there were. Weights must be 0 or 1, as a
            mask: others change the null distributions.

    Returns:
        Statistic and p-value.

    Raises:
        ValueError: If weights are not 0 or 1, votes are shares, shapes do not
            fit, there is no sample, or a value is out of range.

    Example:

    >>> probs = [[0.9, 0.1]] * 100
    >>> test = calibration_test([0] * 70 + [1] * 30, probs)
    >>> print(f"ECE {test.statistic:.2f}, p = {test.p_value:.3f}")
    ECE 0.20, p = 0.001
    >>> counts = [[5, 0]] * 70 + [[0, 5]] * 30
    >>> test = calibration_test(counts, probs, votes=True)
    >>> print(f"ECE {test.statistic:.2f}, p = {test.p_value:.3f}")
    ECE 0.20, p = 0.001

    Reference:
        Vaicenavicius et al., Evaluating Model Calibration in Classification,
        AISTATS 2019, https://arxiv.org/abs/1902.06977 (resampling);
        Spiegelhalter, Probabilistic Prediction in Patient Management and
        Clinical Trials, Statistics in Medicine 1986,
        https://doi.org/10.1002/sim.4780050506; ECCE: Arrieta-Ibarra et al.,
        Metrics of Calibration for Probabilistic Predictions, JMLR 2022,
        https://jmlr.org/papers/v23/22-0658.html; beta-binomial: Skellam, A
        Probability Distribution Derived from the Binomial Distribution, JRSS
        B 1948, https://doi.org/10.1111/j.2517-6161.1948.tb00014.x
    """
    statistic = key_of("statistic", statistic, _STATISTICS)
    check_test(statistic, num_bins, num_draws)
    top = top_label(labels, outputs, drop=False, **options)
    if not are_binary(top.weight):
        raise value_error(
            "`sample_weight` must be None, or a mask: the test counts "
            "predictions",
            sample_weight=top.weight,
        )
    top = top._replace(unit=units_of(labels, outputs))
    votes = votes_of(labels, options, len(top.confidence))
    if votes is not None and top.counts is not None:
        votes = votes[top.counts]
    return records_test(
        top.counted(),
        votes,
        statistic,
        num_bins,
        num_draws=num_draws,
        seed=seed,
    )


def votes_of(
    labels: Any, options: Mapping[str, Any], num_rows: int
) -> np.ndarray | None:
    """How many votes each row has; None if each has one label."""
    if not has_shares(labels, options):
        return None
    if is_log(labels):
        raise value_error(
            "`correct` must be 0 or 1 for a test: a log of shares does not "
            "tell how many votes there were",
            shares=int(np.sum(labels.correct % 1 > 0)),
        )
    if isinstance(labels, GivenTogether):
        labels = labels.labels
    return numbers_of_votes(labels, num_rows)


def check_test(statistic: Any, num_bins: Any, num_draws: Any) -> None:
    """Raises unless these are arguments of a test."""
    check_in("statistic", statistic, _STATISTICS)
    check_integer("num_bins", num_bins, 1)
    check_integer("num_draws", num_draws, 1)


def records_test(
    top: Outcomes,
    votes: np.ndarray | None,
    statistic: str,
    num_bins: int,
    *,
    num_draws: int,
    seed: int,
) -> CalibrationTestResult:
    """The test of top-1 records, with the numbers of their votes or None."""
    if top.unit is not None:
        return _of_units(top, statistic, num_bins, _Draws(num_draws, seed))
    # A softmax in float32 can round to slightly more than 1.
    confidence = np.clip(top.confidence.astype("float64"), 0.0, 1.0)
    null = DrawnLabels(confidence)
    if votes is not None and votes.max() != 1:
        rho = intraclass_correlation(confidence, top.correct, votes)
        null = DrawnLabels(confidence, votes, rho)
    draws = _Draws(num_draws, seed)
    if statistic == "ece":
        return _resampled_ece(null, top.correct, num_bins, draws)
    if statistic == "chi2":
        return _chi_square(null, top.score, top.correct, num_bins, draws)
    if statistic.startswith("ecce_"):
        kind = statistic.removeprefix("ecce_")
        return _cumulative(null, top.score, top.correct, kind, draws)
    return _spiegelhalter(null, top.correct)


def _of_units(
    top: Outcomes, statistic: str, num_bins: int, draws: "_Draws"
) -> CalibrationTestResult:
    """The test of rows that depend on each other in units, by their signs."""
    confidence = np.clip(top.confidence.astype("float64"), 0.0, 1.0)
    residual = top.correct - confidence
    index = np.zeros(len(residual), int)
    if statistic == "ece":
        index = bin_index(confidence, num_bins)
    elif statistic == "spiegelhalter":
        residual = residual * (1.0 - 2.0 * confidence)
    else:
        number = num_bins if statistic == "chi2" else _CUMULATIVE_BINS
        index = _mass_bins(top.score, number)
    units, code = np.unique(top.unit, return_inverse=True)
    size = int(index.max()) + 1
    key = code.reshape(-1) * size + index
    sums = np.bincount(key, residual, minlength=len(units) * size)
    sums = sums.reshape(len(units), size)
    error = np.sqrt(np.sum(sums**2, axis=0))

    def value(total: np.ndarray) -> np.ndarray:
        if statistic == "ece":
            return np.abs(total).sum(axis=-1) / len(residual)
        if statistic.startswith("ecce_"):
            ends = np.cumsum(total, axis=-1) / len(residual)
            low, high = (
                ends.min(axis=-1, initial=0.0),
                ends.max(axis=-1, initial=0.0),
            )
            if statistic == "ecce_range":
                return high - low
            return np.maximum(high, -low)
        return np.sum(safe_divide(total, error) ** 2, axis=-1)

    observed = float(value(sums.sum(axis=0)))
    rng = generator(draws.seed)
    signs = rng.choice([-1.0, 1.0], (draws.num_draws, len(units)))
    reached = np.sum(value(signs @ sums) >= observed - 1e-12)
    p_value = (1 + int(reached)) / (1 + draws.num_draws)
    if statistic == "spiegelhalter":
        observed = float(safe_divide(sums.sum(), error[0]))
    return CalibrationTestResult(observed, p_value)


def _mass_bins(score: np.ndarray, number: int) -> np.ndarray:
    """Bins of equal mass; tied scores share the bin of the middle one."""
    order = np.sort(score)
    below = np.searchsorted(order, score, side="left")
    through = np.searchsorted(order, score, side="right")
    return (below + through - 1) * number // (2 * len(score))


class _Draws(NamedTuple):
    """How many sets of labels are drawn, and from which seed."""

    num_draws: int
    seed: int

    def p_value(
        self,
        null: DrawnLabels,
        statistic: Callable[[np.ndarray], Any],
        observed: float,
    ) -> float:
        """That of an observed value of a statistic of drawn shares `(sets, n)`.

        Draws equal to the data count, whatever the rounding.
        """
        rng = generator(self.seed)
        rows = max(1, _BLOCK // len(null.confidence))
        reached = 0
        for first in range(0, self.num_draws, rows):
            drawn = null.draw(rng, min(rows, self.num_draws - first))
            values = np.asarray(statistic(drawn))
            reached += int(np.sum(values >= observed - 1e-12))
        return (1 + reached) / (1 + self.num_draws)


def _resampled_ece(
    null: DrawnLabels, correct: np.ndarray, num_bins: int, draws: _Draws
) -> CalibrationTestResult:
    """Compare the ECE with that of labels drawn from the confidences."""
    index = bin_index(null.confidence, num_bins)
    sums = bin_sums(null.confidence, correct, index, num_bins)
    observed = float(calibration_error(sums))
    # Sorted by bin, the sums of many draws are sums of slices.
    null = null.ordered(np.argsort(index, kind="stable"))
    filled = sums.weight > 0
    expected = sums.confidence[filled]
    ends = np.cumsum(sums.weight[filled]).astype(int)
    starts = np.r_[0, ends[:-1]]

    def errors(drawn: np.ndarray) -> np.ndarray:
        dtype = "int64" if drawn.dtype == bool else "float64"
        hits = np.add.reduceat(drawn, starts, axis=1, dtype=dtype)
        return np.abs(expected - hits).sum(axis=1) / len(correct)

    p_value = draws.p_value(null, errors, observed)
    return CalibrationTestResult(observed, p_value)


def _chi_square(
    null: DrawnLabels,
    score: np.ndarray,
    correct: np.ndarray,
    num_bins: int,
    draws: _Draws,
) -> CalibrationTestResult:
    """Squared gaps over their variances, in bins of equal mass."""
    confidence, index = null.confidence, _mass_bins(score, num_bins)
    # Confidences of 1 and of 0 have no variance and allow no error.
    certain = confidence * (1.0 - confidence) == 0.0
    if np.any(correct[certain] != confidence[certain]):
        return CalibrationTestResult(np.inf, 0.0)
    gap = np.bincount(index, weights=correct - confidence)
    variance = np.bincount(index, weights=null.variance)
    starts = _merged_starts(variance)
    if not len(starts):
        return CalibrationTestResult(0.0, 1.0)
    gap, variance = (np.add.reduceat(x, starts) for x in (gap, variance))
    value = float(np.sum(gap**2 / variance))
    if len(gap) > 1:
        return CalibrationTestResult(value, float(chi2.sf(value, len(gap))))
    if null.votes is not None:
        expected = confidence.sum()
        # A sum of many rounds more than one share.
        p_value = draws.p_value(
            null,
            lambda drawn: np.abs(drawn.sum(axis=1) - expected),
            abs(gap[0]) - 1e-9,
        )
        return CalibrationTestResult(value, p_value)
    # Two-sided exact test of the number of correct predictions.
    groups, count = np.unique(confidence, return_counts=True)
    tails = poisson_binomial_tails(int(correct.sum()), groups, count)
    return CalibrationTestResult(value, min(1.0, 2.0 * min(tails)))


def _merged_starts(variance: np.ndarray) -> list[int]:
    """First bins of runs of bins that hold enough variance each."""
    starts: list[int] = []
    held = ENOUGH_VARIANCE
    for i, more in enumerate(variance):
        if held >= ENOUGH_VARIANCE and variance[i:].sum() > 0:
            rest = float(variance[i:].sum())
            # A rest of too little variance joins the last run.
            if not starts or rest >= ENOUGH_VARIANCE:
                starts.append(i)
            held = 0.0
        held += more
    return starts


def _spiegelhalter(
    null: DrawnLabels, correct: np.ndarray
) -> CalibrationTestResult:
    lean = 1.0 - 2.0 * null.confidence
    distance = float(np.sum((correct - null.confidence) * lean))
    variance = np.sum(lean**2 * null.variance)
    if variance == 0.0:
        if distance == 0.0:
            return CalibrationTestResult(0.0, 1.0)
        return CalibrationTestResult(float(np.copysign(np.inf, distance)), 0.0)
    z = distance / float(np.sqrt(variance))
    return CalibrationTestResult(z, float(2.0 * norm.sf(abs(z))))


def _cumulative(
    null: DrawnLabels,
    score: np.ndarray,
    correct: np.ndarray,
    kind: str,
    draws: _Draws,
) -> CalibrationTestResult:
    """Compare the ECCE with Brownian motion, or with that of drawn labels."""
    found = differences_of(score, null.confidence, correct)
    observed = float(cumulative_error(found.difference, kind))
    variance = float(np.sum(null.variance))
    if variance >= ENOUGH_VARIANCE:
        deviation = np.sqrt(variance) / len(score)
        p_value = brownian_tail(observed / deviation, kind)
        return CalibrationTestResult(observed, p_value)
    # What is in order already is sorted fast.
    order = np.argsort(score, kind="stable")
    score, null = score[order], null.ordered(order)

    def errors(drawn: np.ndarray) -> list[float]:
        found = [differences_of(score, null.confidence, x) for x in drawn]
        return [cumulative_error(x.difference, kind) for x in found]

    p_value = draws.p_value(null, errors, observed)
    return CalibrationTestResult(observed, p_value)

"""How often the report calls a network over- or underconfident.

Calibrated networks should be called so in at most 5 % of all test sets,
however few errors they make; overconfident ones as often as possible. Each
draw makes a test set, with every confidence equal to one number or spread
around it on the log-odds scale, and asks for the verdict of the report.

A second table has what the report answers with the ECE and its interval
beside it, also of a network whose gaps of both signs cancel in the mean.

The others are of temperatures fitted on a calibration set of some size. A fault
that a temperature mends is to be answered "No", or to be blamed on calibrator
or data, in at most 2 % of reports. Faults that it does not mend, and classes
that it makes worse, are to be told as often as possible.

    python benchmarks/verdicts.py --out=benchmarks/results/verdicts.md

Takes about 40 minutes on one CPU core.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish
from scipy.special import expit, logit, ndtri
from scipy.stats import binom, norm
from scipy.stats import t as student_t

import keras_calib as kc
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.temperature import optimal_temperature
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import bin_index, bin_sums
from keras_calib.metrics.gap_estimates import GapEstimate, gap_estimate
from keras_calib.reporting.groups import StageGroups
from keras_calib.reporting.remainder import remainder, worse_classes
from keras_calib.reporting.verdict import direction, judged, verdict

_NUM_DRAWS = flags.DEFINE_integer("num_draws", 2000, "Per row.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

CONFIDENCES = (0.9, 0.99, 0.998)
SIZES = (20, 100, 300, 1_000, 10_000)
# Standard deviation of the log-odds of the confidence.
SPREADS = (0.0, 1.5)
KINDS = ("over", "under", "few", "even")
# Errors per expected error.
NETWORKS = {"calibrated": 1.0, "twice the errors": 2.0, "half": 0.5}
# Answers, by how they begin.
ANSWERS = ("Yes:", "Yes, as far", "Only on average", "Nearly", "No", "These")
# Error rate less 1 - confidence, by the order of the confidence.
GAPS = {"calibrated": 0.0, "gaps of 0.08, both signs": 0.08}
# Rows, or images, of calibration and of test sets.
FITTED, TESTED = (100, 300, 1_000, 5_000), (300, 1_000, 10_000)
FITTED_IMAGES, TESTED_IMAGES = (20, 60, 200), (20, 60, 200)
# Pixels of an image, and standard deviation of its own log-odds.
PIXELS, OWN = 100, 0.7
TEMPERATURES, CLASSES = (0.5, 1.5, 2.5), (2, 10, 100)
# Temperature that the fifth of ten classes needs, beside 2 of the others.
OWN_TEMPERATURES = (0.7, 1.0, 1.3)
# Answers after calibration; the first kind finds no fault with anybody.
AFTER = {
    "fine": ("Yes", "Mended", "Calibration did not help"),
    "No": ("No", "Nearly"),
    "bent": ("Only on average",),
    "few": ("These",),
}
# Temperature of the test set beside 1, gaps of both signs.
FAULTS = {"other data": (1.3, 0.0), "gaps of 0.08, both signs": (1.0, 0.08)}


def verdicts(
    doubt: np.ndarray, factor: float, num_draws: int, rng: np.random.Generator
) -> dict[str, float]:
    """Shares of the verdicts on networks with the same confidences."""
    n = len(doubt)
    found = dict.fromkeys(KINDS, 0)
    # The verdict depends on the number of errors alone.
    errors = np.empty(num_draws, int)
    for i in range(num_draws):
        errors[i] = np.sum(rng.random(n) < np.minimum(factor * doubt, 1.0))
    for number, times in zip(
        *np.unique(errors, return_counts=True), strict=True
    ):
        wrong = np.r_[np.ones(number), np.zeros(n - number)]
        gap = gap_estimate(np.ones(n), wrong, doubt)
        found[direction(gap)[0]] += int(times)
    return {kind: count / num_draws for kind, count in found.items()}


def answers(
    doubt: np.ndarray, gap: float, num_draws: int, rng: np.random.Generator
) -> dict[str, float]:
    """Shares of the answers of the report on one network."""
    ups = np.arange(len(doubt)) * 4 // len(doubt) % 2
    risk = np.clip(doubt + gap * np.where(ups, 1.0, -1.0), 0.0, 1.0)
    found = dict.fromkeys(ANSWERS, 0)
    for _ in range(num_draws):
        wrong = rng.random(len(doubt)) < risk
        ece = kc.ECE()
        ece.update_scores(1.0 - doubt, ~wrong)
        low, high = ece.interval()
        values = {"value": float(ece.result()), "low": low, "high": high}
        mean = gap_estimate(np.ones(len(doubt)), wrong.astype(float), doubt)
        answer = verdict((mean, values), None)["answer"]
        found[next(a for a in ANSWERS if answer.startswith(a))] += 1
    return {answer: count / num_draws for answer, count in found.items()}


def run_answers(num_draws: int, seed: int) -> str:
    rows = []
    for name, gap in GAPS.items():
        for n in SIZES[1:]:
            noise = ndtri((np.arange(n) + 0.5) / n)
            # Doubts of 0.16 in the mean, nowhere near 0 or 1.
            doubt = expit(-logit(0.85) - 0.75 * noise)
            rng = np.random.default_rng([seed, n])
            shares = answers(doubt, gap, num_draws, rng)
            shares = [f"{share:.3f}" for share in shares.values()]
            rows.append([name, f"{n:,}", *shares])
    return "\n\n".join(
        [
            f"What the report answers, in {num_draws} draws per row; answers "
            "by how they begin.",
            markdown_table(["network", "N", *ANSWERS], rows),
        ]
    )


class Rows:
    """Rows of a test set at one temperature: confidences and outcomes."""

    def __init__(self, z: np.ndarray, temperature: float):
        shifted = (z - z.max(axis=-1, keepdims=True)) / temperature
        self.confidence = 1.0 / np.exp(shifted).sum(axis=-1, dtype="float64")
        self.predicted = z.argmax(axis=-1)

    def gap(self, correct: np.ndarray, units: int = 0) -> GapEstimate:
        """Mean gap; far from a decision the interval is a normal one."""
        residual = self.confidence - correct
        if units:
            return gap_of_units(residual, units)
        value, n = float(residual.mean()), len(residual)
        doubt = 1.0 - self.confidence
        reach = (np.mean(doubt * self.confidence) / n) ** 0.5
        if n < max(TESTED) and abs(value) < 1.3 * reach:
            reach = norm.isf(0.025) * reach
            return GapEstimate(value, value - reach, value + reach, None)
        order = np.argsort(doubt)[::-1]
        return gap_estimate(np.ones(n), 1.0 - correct[order], doubt[order])

    def stage(
        self, correct: np.ndarray, units: int = 0, values: bool = False
    ) -> tuple:
        """Mean gap and ECE, sums by bin, and rows by predicted class.

        With `values` alone there are no intervals of gap and ECE.
        """
        one = np.ones(len(correct))
        bins = bin_sums(
            self.confidence, correct, bin_index(self.confidence, 15), 15
        )
        value = float(np.mean(self.confidence - correct))
        gap, low, high = GapEstimate(value, value, value, None), 0.0, 1.0
        if not values:
            gap = self.gap(correct, units)
            if units:
                # So many rows of images are worth one.
                reach = 0.5 * (gap.high - gap.low) / norm.isf(0.025)
                share = bins.correct.sum() / len(correct)
                effect = reach**2 * len(correct) / (share * (1.0 - share))
                squares = bins.squared_weight * max(effect, 1.0)
                bins = replace(bins, squared_weight=squares)
            low, high = error_interval(bins)
        value = np.abs(bins.residual).sum() / len(correct)
        groups = StageGroups(int(self.predicted.max()) + 1)
        if not units:
            groups.add(self.confidence, self.predicted, correct, one)
        ece = {"value": value, "low": low, "high": high}
        return (gap, ece), bins, groups.classes()


def gap_of_units(residual: np.ndarray, units: int) -> GapEstimate:
    """Mean gap with the t interval over images of equal size."""
    means = residual.reshape(units, -1).mean(axis=-1)
    reach = student_t.isf(0.025, units - 1) * means.std(ddof=1) / units**0.5
    value = means.mean()
    return GapEstimate(value, value - reach, value + reach, None)


def sampled(
    n: int, num_classes: int, rng: np.random.Generator, own: float = 2.0
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of a network that needs a temperature of 2.

    The fifth class needs a temperature of its `own`.
    """
    z = rng.standard_normal((n, num_classes), dtype="float32")
    z *= 6.0 if num_classes > 2 else 4.0
    needed = np.where(z.argmax(axis=-1) == 4, own, 2.0)[:, None]
    shares = np.exp(z / needed).cumsum(axis=-1)
    drawn = rng.random((n, 1), dtype="float32") * shares[:, -1:]
    return z, np.argmax(shares >= drawn, axis=-1)


def of_images(
    n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels of pixels of images, each with its own error."""
    margin = 4.0 * rng.standard_normal((n, PIXELS), dtype="float32")
    own = OWN * rng.standard_normal((n, 1))
    labels = rng.random(margin.shape) < expit(margin / 2.0 + own)
    z = np.stack([np.zeros_like(margin), margin], axis=-1)
    return z.reshape(-1, 2), labels.reshape(-1).astype(int)


def bent(
    z: np.ndarray, gap: float, temperature: float, rng: np.random.Generator
) -> np.ndarray:
    """Outcomes of calibrated logits with gaps of both signs, by quarters."""
    confidence = Rows(z, temperature).confidence
    quarter = np.argsort(np.argsort(confidence)) * 4 // len(z)
    share = confidence - gap * np.array([1.0, -1.0, -1.0, 1.0])[quarter]
    return (rng.random(len(z)) < share).astype(float)


def answered(before: tuple, after: tuple, left: Any) -> tuple:
    """Kind of the answer, of the headline, and classes that are worse."""
    first, _, classes = before
    now, _, last = after
    rows = worse_classes(classes, last)
    found = verdict(first, now, left, [{**x, "name": ""} for x in rows])
    kind = next(k for k, x in AFTER.items() if found["answer"].startswith(x))
    named = [x["group"] for x in found["worse_classes"]]
    return kind, judged(*now, left)["kind"], named


class Tally:
    """Shares of answers, in percent."""

    def __init__(self):
        self.num, self.kinds = 0, dict.fromkeys(AFTER, 0)
        self.called = self.blamed = self.named = 0

    def add(self, kind: str, headline: str, named: list[int]) -> None:
        self.num += 1
        self.kinds[kind] += 1
        self.called += headline in ("over", "under")
        self.blamed += kind in ("No", "bent")
        self.named += len(named) > 0

    def shares(self, *counts: int) -> list[str]:
        return [f"{100 * x / self.num:.1f}" for x in counts]


def left_after(after: tuple, fit: Any, units: int = 0) -> Any:
    """What is left after calibration, without classes."""
    now, bins, _ = after
    return remainder(*now, bins, fit, num_units=units or None)


def fit_of(z: np.ndarray, labels: np.ndarray, units: int = 0) -> Any:
    """A temperature that knows how many rows, and images, it was fitted on."""
    temperature = optimal_temperature(FittingData(labels, z))
    return kc.TemperatureScaling(
        temperature=temperature, num_samples=len(z), num_units=units or None
    )


def run_mended(num_draws: int, seed: int) -> str:
    """Faults that a temperature mends, of rows and of images."""
    table = []
    settings: list[tuple] = [
        (k, n, TESTED, False) for k in CLASSES for n in FITTED
    ]
    settings += [(2, n, TESTED_IMAGES, True) for n in FITTED_IMAGES]
    for num_classes, fitted, tested, images in settings:
        tallies: dict[tuple, Tally] = {
            (n, t): Tally() for n in tested for t in TEMPERATURES
        }
        naive = dict.fromkeys(tested, 0)
        rng = np.random.default_rng([seed, num_classes, fitted, images])

        def draw(n, num_classes=num_classes, images=images, rng=rng):
            return of_images(n, rng) if images else sampled(n, num_classes, rng)

        for _ in range(num_draws):
            fit = fit_of(*draw(fitted), fitted if images else 0)
            for n in tested:
                z, labels = draw(n)
                units = n if images else 0
                # The network of temperature T has the logits T / 2 z, so that
                # all have the same logits after calibration.
                rows = Rows(z, fit.temperature)
                correct = (rows.predicted == labels).astype(float)
                after = rows.stage(correct, units)
                (gap, ece), _, _ = after
                left = left_after(after, fit, units)
                off = not gap.low <= 0.0 <= gap.high
                naive[n] += off or (ece["low"] > 0 and ece["value"] > 0.02)
                for needed in TEMPERATURES:
                    before = Rows(z, 2.0 / needed).stage(correct, values=True)
                    found = answered(before, after, left)
                    tallies[n, needed].add(*found)
        for (n, needed), tally in tallies.items():
            what = "images" if images else f"{num_classes} classes"
            counts = tally.blamed, tally.called, tally.named, naive[n]
            shares = tally.shares(*counts)
            shares[2] = "" if images else shares[2]
            table.append([what, f"{fitted:,}", f"{n:,}", needed, *shares])
    header = ["", "calibration", "test", "T", '"No", or blame, %']
    header += ["over or under, %", "a class named, %", "without knowledge, %"]
    return "\n\n".join(
        [
            f"Networks whose only fault a temperature T mends, {num_draws} "
            "draws per row. `calibration` and `test` are rows, or images of "
            f"{PIXELS} pixels that share an error. Answers that begin with "
            '"No", "Nearly" or "Only on average" blame calibrator or data. '
            "`without knowledge` is the share of test sets that show a gap, "
            "or an ECE above 0.02 that is not 0, which a verdict that does "
            "not know the calibration set would blame.",
            markdown_table(header, table),
        ]
    )


def run_faults(num_draws: int, seed: int) -> str:
    """Faults that a temperature does not mend, and what tests could see."""
    table = []
    for name, (other, gap) in FAULTS.items():
        for fitted in FITTED:
            tallies = {n: Tally() for n in TESTED}
            seen = dict.fromkeys(TESTED, 0.0)
            rng = np.random.default_rng([seed, fitted])
            for _ in range(num_draws):
                z, labels = sampled(fitted, 10, rng)
                if gap:
                    # Right or wrong tells nothing of the other classes.
                    right = bent(z, gap, 2.0, rng) > 0
                    labels = np.where(right, z.argmax(-1), z.argsort(-1)[:, -2])
                fit = fit_of(z, labels)
                for n in TESTED:
                    z, labels = sampled(n, 10, rng)
                    rows = Rows(z, fit.temperature)
                    if gap:
                        correct = bent(z, gap, 2.0, rng)
                    else:
                        right = Rows(z, 2.0 * other).confidence
                        correct = (rng.random(n) < right).astype(float)
                    after = rows.stage(correct)
                    before = Rows(z, 1.0).stage(correct, values=True)
                    left = left_after(after, fit)
                    tallies[n].add(*answered(before, after, left))
                    # The mean gap against its own noise and that of the fit.
                    p = rows.confidence
                    error = np.mean(p * (1 - p)) * (1 / n + 1 / fitted)
                    score = np.mean(p - correct) / error**0.5
                    seen[n] += abs(score) > norm.isf(0.005)
            for n, tally in tallies.items():
                shares = tally.shares(*tally.kinds.values(), seen[n])
                table.append([name, f"{fitted:,}", f"{n:,}", *shares])
    header = ["fault", "calibration", "test", *(f"{x}, %" for x in AFTER)]
    return "\n\n".join(
        [
            f"Faults that a temperature does not mend, {num_draws} draws per "
            "row, 10 classes. The other data need 1.3 times the temperature. "
            "`z test` is how often the mean gap alone is beyond the 99 % "
            "quantile of its own noise and that of the fit.",
            markdown_table([*header, "z test, %"], table),
        ]
    )


def run_worse(num_draws: int, seed: int) -> str:
    """Classes that a temperature makes worse, and an exact test of it."""
    table = []
    for own in OWN_TEMPERATURES:
        for fitted in FITTED:
            named = dict.fromkeys(TESTED, 0)
            others, exact, sizes = dict(named), dict(named), dict(named)
            rng = np.random.default_rng([seed, fitted])
            for _ in range(num_draws):
                fit = fit_of(*sampled(fitted, 10, rng, own))
                for n in TESTED:
                    z, labels = sampled(n, 10, rng, own)
                    rows, first = Rows(z, fit.temperature), Rows(z, 1.0)
                    correct = (rows.predicted == labels).astype(float)
                    before = first.stage(correct, values=True)
                    after = rows.stage(correct, values=True)
                    found = [
                        x["group"] for x in worse_classes(before[2], after[2])
                    ]
                    named[n] += 4 in found
                    others[n] += any(k != 4 for k in found)
                    here = rows.predicted == 4
                    middle = 0.5 * (rows.confidence + first.confidence)[here]
                    truth = Rows(z[here], own).confidence
                    exact[n] += power(middle.mean(), truth, 0.05 / 10)
                    sizes[n] += here.sum()
            for n in TESTED:
                row = [own, f"{fitted:,}", f"{n:,}", sizes[n] / num_draws]
                row[-1] = f"{row[-1]:.0f}"
                counts = named[n], exact[n], others[n]
                row += [f"{100 * x / num_draws:.1f}" for x in counts]
                table.append(row)
    header = ["T of class 4", "calibration", "test", "its rows"]
    header += ["named, %", "exact test, %", "another named, %"]
    return "\n\n".join(
        [
            "Ten classes, of which nine need a temperature of 2 and class 4 "
            f"less; {num_draws} draws per row. A temperature fitted on all "
            "takes confidence from class 4. The exact test is that of a "
            "binomial, two-sided at 0.05 / 10, of an accuracy at the middle "
            "of the mean confidences before and after.",
            markdown_table(header, table),
        ]
    )


def power(middle: float, truth: np.ndarray, level: float) -> float:
    """Of the exact test of an accuracy, against one above the middle."""
    n = len(truth)
    if n == 0:
        return 0.0
    least = binom.isf(0.5 * level, n, middle)
    return float(binom.sf(least, n, truth.mean()))


def run(num_draws: int, seed: int) -> str:
    rows = []
    for name, factor in NETWORKS.items():
        for confidence in CONFIDENCES:
            for spread in SPREADS:
                for n in SIZES:
                    rng = np.random.default_rng([seed, n])
                    # Ascending confidence, as cells of a histogram lie.
                    noise = ndtri((np.arange(n) + 0.5) / n)
                    log_odds = logit(confidence) + spread * noise
                    doubt = expit(-log_odds)
                    shares = verdicts(doubt, factor, num_draws, rng)
                    rows.append(
                        [
                            name,
                            f"{doubt.mean():.4f}",
                            "equal" if spread == 0 else "spread",
                            f"{n:,}",
                            f"{doubt.sum():.1f}",
                            *(f"{shares[kind]:.3f}" for kind in KINDS),
                        ]
                    )
    header = ["network", "1 - confidence", "confidences", "N", "errors"]
    header += ["over", "under", "too few", "neither"]
    return "\n\n".join(
        [
            f"Verdicts of {num_draws} draws per row, seed {seed}. "
            f"{machine()}. `errors`: expected if calibrated.",
            markdown_table(header, rows),
        ]
    )


def main(_) -> None:
    tables = [
        run(_NUM_DRAWS.value, _SEED.value),
        run_answers(_NUM_DRAWS.value // 10, _SEED.value),
        run_mended(_NUM_DRAWS.value // 2, _SEED.value),
        run_faults(_NUM_DRAWS.value // 2, _SEED.value),
        run_worse(_NUM_DRAWS.value // 2, _SEED.value),
    ]
    publish("\n\n".join(tables), _OUT.value)


if __name__ == "__main__":
    app.run(main)

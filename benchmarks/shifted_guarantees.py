"""Guarantees where classes or groups shift: violations and coverage.

Samples are drawn from populations whose risk and coverage at every threshold
are known, for each class or group. `violations` is the share of fits that
return a threshold whose true risk at the target prior, or in the worst group,
exceeds the limit: at most 0.05 is guaranteed. Coverage is the true one at the
target, 0 where nothing is certified.

`plain` has no regard of the shift. `Hoeffding-Bentkus` tests weighted losses,
scaled to [0, 1] by the largest weight, at the thresholds and starts of
`betting`. DIR has `labels` and `probs` of a published set in files .npz: its
predictions are a population of which fits draw with replacement.

    python benchmarks/shifted_guarantees.py --logits=DIR \
        --out=benchmarks/results/shifted_guarantees.md
"""

import concurrent.futures
import contextlib
import math
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import app, flags
from ladders import last, ranked
from reporting import machine, markdown_table, publish
from scipy.stats import norm

from keras_calib.formulas.bounded_means import hoeffding_bentkus_p_value
from keras_calib.formulas.shifted_risk import class_weights
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.selection import families
from keras_calib.selection.claims import starts_at
from keras_calib.selection.ladder import by_group, counts_at
from keras_calib.selection.shift import (
    MixtureTarget,
    PriorTarget,
    fixed_thresholds,
    tenth_of,
)

_LOGITS = flags.DEFINE_string("logits", None, "Folder of predictions.")
_NUM_FITS = flags.DEFINE_integer("num_fits", 1000, "Per row.")
_ONLY = flags.DEFINE_list("only", None, "Published sets; all by default.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

DELTA, RISK = 0.05, 0.05
NUM_LEVELS = 1000
# Settings that also have 10,000 samples.
LARGE = "2 classes, 0.1 to 0.5", "10 classes, shift 1.5"
LARGE = *LARGE, "100 classes, shift 1.0"
METHODS = "plain", "Hoeffding-Bentkus", "betting", "subsampling", "library"


class Population:
    """Levels of the score, surest first, of each class or group.

    `mass` is the share of a class in a level and `error` the share of wrong
    predictions there, `(num_classes, NUM_LEVELS)`.
    """

    def __init__(self, mass: np.ndarray, error: np.ndarray):
        self.error = error
        self.ends = np.cumsum(mass, axis=1) / mass.sum(axis=1, keepdims=True)
        mass = mass / mass.sum(axis=1, keepdims=True)
        start = np.zeros((len(mass), 1))
        self.accepted = np.append(start, self.ends, axis=1)
        wrong = np.cumsum(mass * error, axis=1)
        self.wrong = np.append(start, wrong, axis=1)

    def draw(self, labels: np.ndarray, rng: np.random.Generator) -> tuple:
        """Scores and errors of samples of these classes."""
        u, level = rng.random(len(labels)), np.zeros(len(labels), int)
        order = np.argsort(labels, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(labels))[:-1])
        for k, part in enumerate(parts):
            level[part] = np.searchsorted(self.ends[k], u[part])
        level = np.minimum(level, NUM_LEVELS - 1)
        wrong = rng.random(len(labels)) < self.error[labels, level]
        return -(level + rng.random(len(labels))), wrong.astype("float64")

    def truth(self, threshold: float) -> tuple[np.ndarray, np.ndarray]:
        """True shares of accepted, and of wrong accepted, of each class."""
        place = min(max(-threshold, 0.0), NUM_LEVELS)
        low = min(int(place), NUM_LEVELS - 1)
        part = place - low
        return tuple(
            x[:, low] + part * (x[:, low + 1] - x[:, low])
            for x in (self.accepted, self.wrong)
        )

    def judged(self, prior: np.ndarray, threshold: float) -> tuple:
        """Coverage at a prior, and whether the risk there is too high."""
        accepted, wrong = (prior @ x for x in self.truth(threshold))
        return accepted, wrong > RISK * accepted * (1.0 + 1e-9)

    def best(self, prior: np.ndarray) -> float:
        good = prior @ self.wrong <= RISK * (prior @ self.accepted)
        return float((prior @ self.accepted)[np.flatnonzero(good)[-1]])


def natural(
    num_classes: int, rng: np.random.Generator, spread: float = 1.0
) -> tuple:
    """Classes that differ in their scores and errors, and their hardness."""
    mean = rng.normal(1.5, 0.5 * spread, num_classes)
    ease = rng.normal(1.2, 0.6 * spread, num_classes)
    edges = np.linspace(7.0, -7.0, NUM_LEVELS + 1)
    mass = -np.diff(norm.cdf(edges - mean[:, None]), axis=1)
    middle = 0.5 * (edges[1:] + edges[:-1])
    error = 1.0 / (1.0 + np.exp(1.5 * middle + ease[:, None]))
    hardness = -(mean + ease)
    hardness = (hardness - hardness.mean()) / max(hardness.std(), 1e-9)
    return Population(mass, error), hardness


def constant(rates: np.ndarray) -> Population:
    """Classes with one error rate each at every score."""
    mass = np.full((len(rates), NUM_LEVELS), 1.0 / NUM_LEVELS)
    return Population(mass, np.repeat(rates[:, None], NUM_LEVELS, axis=1))


def tilted(hardness: np.ndarray, shift: float, rng) -> np.ndarray:
    """Shares of a target that has more of the hard classes."""
    noise = rng.normal(size=len(hardness))
    shares = np.exp(shift * (0.7 * hardness + 0.7 * noise))
    return shares / shares.sum()


def prior_settings() -> list[tuple]:
    """Name, population, source and target of each setting."""
    found = []
    for number, shift in (
        (2, 0.0),
        (10, 0.0),
        (10, 0.5),
        (10, 1.5),
        (100, 0.5),
        (100, 1.0),
    ):
        rng = np.random.default_rng(number)
        population, hardness = natural(number, rng)
        source = np.full(number, 1.0 / number)
        target = tilted(hardness, shift, rng)
        name = f"{number} classes, shift {shift}"
        found.append((name, population, source, target))
        if number == 2:
            hard = np.where(hardness > 0, 0.5, 0.5)
            rare = np.where(hardness > 0, 0.1, 0.9)
            found.append(("2 classes, 0.1 to 0.5", population, rare, hard))
            often = np.where(hardness > 0, 0.95, 0.05)
            found.append(("2 classes, 0.5 to 0.95", population, source, often))
    for number, shift in ((2, 1.0), (10, 1.0), (100, 0.5)):
        rng = np.random.default_rng(number)
        source = np.full(number, 1.0 / number)
        target = tilted(rng.normal(size=number), shift, rng)
        rates = target / source
        rates *= 1.001 * RISK / (target @ rates)
        name = f"{number} classes, 0.1 % above"
        found.append((name, constant(rates), source, target))
    return found


def by_hoeffding_bentkus(target, scores, wrong, labels) -> float | None:
    number = len(target.prior)
    tenth = tenth_of(labels, target.seed)
    rest = np.bincount(labels[~tenth], minlength=number)
    if ((rest == 0) & (target.prior > 0)).any():
        return None
    weight = class_weights(rest, target.prior)
    first = np.bincount(labels[tenth], minlength=number)
    each = class_weights(first, target.prior)[labels[tenth]]
    threshold, coverage = fixed_thresholds(
        Outcomes(scores[tenth], 1.0 - wrong[tenth], weight=each)
    )
    w = weight[labels[~tenth]]
    one = np.zeros(len(w), int)
    sums = [
        counts_at(scores[~tenth], one, 1, threshold, x)[:, 0]
        for x in (w, w * wrong[~tenth])
    ]
    # Losses w (wrong - risk) accept / (largest w) + risk, in [0, 1].
    count, largest = len(w), weight.max()

    def p_value(accepted, errors):
        total = (errors - RISK * accepted) / largest + RISK * count
        return hoeffding_bentkus_p_value(total, count, RISK)

    expected = coverage * count
    capacity = -np.log(np.maximum(p_value(expected, 0.0 * expected), 1e-300))
    start = starts_at(capacity, coverage, lambda x: -math.log(x), DELTA)
    certified = families.walk(p_value(*sums), *start)
    return last(threshold, certified)


def plain(scores: np.ndarray, wrong: np.ndarray) -> float | None:
    found = ranked(scores, 1.0 - wrong)
    certified = families.errors_alone(found, RISK, DELTA)
    return last(found.threshold, certified)


def by_method(method: str, target: PriorTarget, data: tuple):
    asked = target._replace(method=method)
    try:
        scores, wrong, labels = data
        test = asked.test(Outcomes(scores, 1.0 - wrong, group=labels))
    except ValueError:
        return None
    return last(test.threshold, test.certified(RISK))


def by_all(target: PriorTarget, data: tuple) -> dict:
    """The threshold of each method, or None."""
    found = {
        "plain": plain(*data[:2]),
        "Hoeffding-Bentkus": by_hoeffding_bentkus(target, *data),
        "betting": by_method("betting", target, data),
        "subsampling": by_method("subsampling", target, data),
        "library": None,
    }
    count = np.bincount(data[2], minlength=len(target.prior))
    with contextlib.suppress(ValueError):
        found["library"] = found[target.method_for(count)]
    return found


def fits_at_prior(
    draw: Callable,
    judged: Callable,
    target: np.ndarray,
    fits: int,
    seed: int,
) -> dict:
    """Violations and mean coverage of each method."""
    rng = np.random.default_rng(seed)
    false, coverage = dict.fromkeys(METHODS, 0), dict.fromkeys(METHODS, 0.0)
    for fit in range(fits):
        data = draw(rng)
        asked = PriorTarget(target, RISK, DELTA, None, fit)
        for method, threshold in by_all(asked, data).items():
            if threshold is not None:
                share, bad = judged(threshold)
                coverage[method] += float(share) / fits
                false[method] += bool(bad)
    return {m: (false[m] / fits, coverage[m]) for m in METHODS}


def prior_rows(large: bool, fits: int, seed: int) -> list[list]:
    rows = []
    for name, population, source, target in prior_settings():
        if large and name not in LARGE:
            continue
        for size in (10_000,) if large else (2000,):

            def draw(rng, population=population, source=source, size=size):
                labels = rng.choice(len(source), size, p=source)
                return *population.draw(labels, rng), labels

            def judged(threshold, population=population, target=target):
                return population.judged(target, threshold)

            number = fits_of(name, fits)
            found = fits_at_prior(draw, judged, target, number, seed)
            best = 0.0 if "above" in name else population.best(target)
            weight = target / source
            row = [name, f"{size:,}", f"{weight.max():.1f}"]
            row += [f"{size / (target @ weight):,.0f}", f"{best:.3f}"]
            row += [f"{x:.3f}, {y:.3f}" for x, y in found.values()]
            rows.append(row)
            print(*row, sep=" | ", flush=True)
    return rows


def published_rows(
    folder: str, only: list | None, fits: int, seed: int
) -> list[list]:
    """A published set as a population, with targets of unequal shares."""
    rows = []
    for path in sorted(Path(folder).glob("*.npz")):
        if only and path.stem not in only:
            continue
        with np.load(path) as file:
            if not {"probs", "labels"} <= set(file) or "top1" in path.stem:
                continue
            probs, truth = file["probs"].astype("float64"), file["labels"]
        top = np.sort(probs, axis=1)[:, -2:]
        scores = np.log(top[:, 1] / np.maximum(1.0 - top[:, 1], 1e-12))
        labels = truth.astype("int64")
        if labels.ndim != 1 or scores.std() == 0:
            continue
        wrong = (probs.argmax(axis=1) != labels).astype("float64")
        number = probs.shape[1]
        rate = np.bincount(labels, wrong, number) / np.bincount(
            labels, minlength=number
        )
        rng = np.random.default_rng(seed)
        hardness = (rate - rate.mean()) / rate.std()
        target = tilted(hardness, 1.0, rng)
        source = np.bincount(labels, minlength=number) / len(labels)
        weight = (target / source)[labels]
        order = np.argsort(-scores)
        accepted = np.cumsum(weight[order])
        errors = np.cumsum((weight * wrong)[order])
        good = np.flatnonzero(errors <= RISK * accepted)
        if not len(good):
            continue
        best = accepted[good[-1]] / accepted[-1]
        descending = -scores[order]

        def draw(rng, scores=scores, wrong=wrong, labels=labels):
            rows = rng.integers(0, len(labels), 5000)
            return scores[rows], wrong[rows], labels[rows]

        def judged(
            threshold, accepted=accepted, errors=errors, steps=descending
        ):
            place = np.searchsorted(steps, -threshold, side="right") - 1
            share = accepted[place] / accepted[-1]
            return share, errors[place] > RISK * accepted[place]

        found = fits_at_prior(draw, judged, target, fits, seed)
        ratio = target / source
        row = [path.stem, number, f"{ratio.max():.1f}", f"{best:.3f}"]
        row += [f"{x:.3f}, {y:.3f}" for x, y in found.values()]
        rows.append(row)
        print(*row, sep=" | ", flush=True)
    return rows


def mixture_settings() -> list[tuple]:
    """Name, population and sizes of the groups."""
    two, _ = natural(2, np.random.default_rng(1))
    five, _ = natural(5, np.random.default_rng(2), 0.5)
    twenty, _ = natural(20, np.random.default_rng(3), 0.3)
    bad = np.array([1.001 * RISK, 0.02, 0.02, 0.02, 0.02])
    return [
        ("2 groups", two, [1000, 1000]),
        ("5 groups, unequal", five, [500, 1000, 1000, 2000, 4000]),
        ("20 groups", twenty, [500] * 20),
        ("5 groups, one 0.1 % above", constant(bad), [300, *[1000] * 4]),
        ("5 groups, all 0.1 % above", constant(0 * bad + bad[0]), [1000] * 5),
    ]


MIXTURES = "plain", "one threshold", "one threshold, delta / groups"
MIXTURES = *MIXTURES, "a threshold per group"


def fits_of(name: str, fits: int) -> int:
    """Ten times as many where every certificate is false."""
    return 10 * fits if "above" in name else fits


def mixture_rows(num_fits: int, seed: int) -> list[list]:
    rows = []
    for name, population, sizes in mixture_settings():
        fits = fits_of(name, num_fits)
        rng = np.random.default_rng(seed)
        number, share = len(sizes), np.array(sizes) / sum(sizes)
        places = np.repeat(np.arange(number), sizes)
        false = dict.fromkeys(MIXTURES, 0)
        coverage = dict.fromkeys(MIXTURES, 0.0)
        for fit in range(fits):
            scores, wrong = population.draw(places, rng)
            outcomes = Outcomes(
                scores, 1.0 - wrong, group=places, names=tuple(range(number))
            )
            found = {"plain": plain(scores, wrong)}
            for method, part in ((MIXTURES[1], 1), (MIXTURES[2], number)):
                target = MixtureTarget(RISK, DELTA / part, fit)
                try:
                    test = target.test(outcomes)
                except ValueError:
                    continue
                found[method] = last(test.threshold, test.certified(RISK))
            for method, threshold in found.items():
                if threshold is not None:
                    accepted, errors = population.truth(threshold)
                    coverage[method] += float(share @ accepted) / fits
                    bad = errors > RISK * accepted * (1.0 + 1e-9)
                    false[method] += bool(bad.any())
            ladders = by_group(outcomes)
            masks = families.each(ladders, RISK, DELTA).masks
            any_bad = False
            for k, (one, mask) in enumerate(zip(ladders, masks, strict=True)):
                threshold = last(one.threshold, mask)
                if threshold is not None:
                    accepted, errors = population.truth(threshold)
                    coverage[MIXTURES[3]] += share[k] * accepted[k] / fits
                    limit = RISK * accepted[k] * (1.0 + 1e-9)
                    any_bad |= bool(errors[k] > limit)
            false[MIXTURES[3]] += any_bad
        within = (population.wrong <= RISK * population.accepted).all(axis=0)
        best = 0.0
        if "above" not in name:
            place = np.flatnonzero(within)[-1]
            best = float(share @ population.accepted[:, place])
        row = [name, f"{best:.3f}"]
        row += [f"{false[m] / fits:.3f}, {coverage[m]:.3f}" for m in MIXTURES]
        rows.append(row)
        print(*row, sep=" | ", flush=True)
    return rows


def main(_) -> None:
    fits, seed = _NUM_FITS.value, _SEED.value
    allowed = DELTA + 2.0 * math.sqrt(DELTA * (1.0 - DELTA) / fits)
    allowed_above = DELTA + (allowed - DELTA) / math.sqrt(10.0)
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(4, context) as pool:
        prior = [
            pool.submit(prior_rows, large, fits, seed)
            for large in (True, False)
        ]
        mixtures = pool.submit(mixture_rows, fits, seed)
        if _LOGITS.value:
            asked = _LOGITS.value, _ONLY.value, fits, seed
            published = pool.submit(published_rows, *asked)
    parts = [
        "# Guarantees where classes or groups shift",
        f"Risk {RISK}, delta = {DELTA}, {fits:,} fits per row, ten times as "
        f"many for rows above the limit, seed {seed}. "
        f"{machine()}.",
        "Columns of methods: share of fits with a false certificate, and mean "
        f"true coverage. With two standard errors {allowed:.3f} is allowed, "
        f"and {allowed_above:.3f} for rows above the limit.",
        "## Another prior",
        "`worth`: samples of equal weight that tell as much. `best`: the "
        "largest coverage whose true risk is within the limit.",
        markdown_table(
            ["setting", "samples", "largest weight", "worth", "best", *METHODS],
            [*prior[1].result(), *prior[0].result()],
        ),
        "## Mixtures of groups",
        "Violations: some group has a true risk above the limit. Coverage: of "
        "the mixture of the samples.",
        markdown_table(["setting", "best", *MIXTURES], mixtures.result()),
    ]
    if _LOGITS.value:
        parts += [
            "## Published predictions, classes resampled",
            "5,000 samples per fit; the target has more of the classes with "
            "many errors.",
            markdown_table(
                ["set", "classes", "largest weight", "best", *METHODS],
                published.result(),
            ),
        ]
    publish("\n\n".join(parts), _OUT.value)


if __name__ == "__main__":
    app.run(main)

"""Images as units: guarantees of thresholds, and intervals of `PerImage`.

Guarantees: an image has a rank u, uniform, its score is 1 - u, and its loss is
in [0, 1] with a known mean given u, such as the share of its wrong pixels or
1 - IoU. So the true mean loss of the accepted images is known for every
threshold. `violations` is the share of calibration sets that give a threshold
with a true mean loss above the limit: at most `delta` is promised. `coverage`
is the mean true coverage over that of the largest coverage within the limit,
none counting as 0. `plain` takes the data at their word.

- rising: the last images lose more; losses are Beta(2, ...).
- skewed: most images lose nearly nothing, few lose much: Beta(0.2, ...).
- all or nothing: an image is right or wrong as a whole.
- rare disasters: one image in thirty loses all, whatever its score.
- surest are wrong: the surest 5 % lose twice the limit.
- 0.1 % above the limit: losses have this mean, whatever the score. With
  `pixels`, the rows of pixels go through `choose_threshold(..., units=)`.

Intervals: each image has pixels with a difficulty and an overconfidence of its
own, of which 30 to 100 % are valid. The truth is the mean over 20,000 such
images, weighted by their valid pixels. In `rare kinds` one image in twenty is
of a bad kind, in `very rare kinds` one in a hundred. `coverage` is that of the
95 % interval of `PerImage`, `above` and `below` where it misses, and `width`
its median width over the truth. `bootstrap` has the percentiles of 400
resamples of the images.

    python benchmarks/images.py --out=benchmarks/results/images.md

Takes about six minutes on one CPU core.
"""

import contextlib
import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish

import keras_calib
from keras_calib.formulas.bounded_means import TESTS
from keras_calib.formulas.intervals import Moments, mean_interval
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.selection.claims import means
from keras_calib.selection.families import alone
from keras_calib.selection.ladder import of_scores, ranked_losses

_NUM_DRAWS = flags.DEFINE_integer("num_draws", 2000, "Per row.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_WORKERS = flags.DEFINE_integer("num_workers", 1, "Processes.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

LIMIT, DELTA = 0.15, 0.1
ABOVE = 1.001 * LIMIT
POINTS = (np.arange(100_000) + 0.5) / 100_000
# Mean loss by rank, and the first shape of a Beta distribution, or None for
# losses of 0 and 1.
POPULATIONS = {
    "rising": (0.02 + 0.4 * POINTS**2, 2.0),
    "skewed": (0.01 + 0.35 * POINTS**1.5, 0.2),
    "all or nothing": (0.4 * POINTS**2, None),
    "rare disasters": (np.full(len(POINTS), 1.0 / 30.0), None),
    "surest are wrong": (
        np.where(POINTS < 0.05, 2.0 * LIMIT, 0.3 * POINTS**2),
        0.3,
    ),
    "0.1 % above, skewed": (np.full(len(POINTS), ABOVE), 0.15),
    "0.1 % above, nearly equal": (np.full(len(POINTS), ABOVE), 30.0),
    "0.1 % above, all or nothing": (np.full(len(POINTS), ABOVE), None),
}
SIZES = 60, 200, 1000
NUM_IMAGES, NUM_PIXELS, NUM_BINS = 20_000, 400, 15
IMAGES = 20, 60, 200
KINDS = "alike", "skewed", "rare kinds", "very rare kinds"
PIXELS = "0.1 % above, pixels, `choose_threshold`"


def draw(name: str, n: int, rng: np.random.Generator) -> Outcomes:
    """Scores and losses of n images."""
    mean, shape = POPULATIONS[name]
    place = rng.integers(0, len(POINTS), n)
    mean = mean[place]
    if shape is None:
        loss = (rng.random(n) < mean).astype("float64")
    else:
        loss = rng.beta(shape, shape * (1.0 / mean - 1.0))
    return Outcomes(1.0 - POINTS[place], loss == 0.0, loss)


def guarantees(name: str, n: int, num_draws: int, seed: int) -> list:
    """A row: violations and coverage of each test, and of none."""
    rng = np.random.default_rng([seed, n])
    true = np.cumsum(POPULATIONS[name][0]) / np.arange(1, len(POINTS) + 1)
    best = (np.append(np.flatnonzero(true <= LIMIT), -1).max() + 1) / len(true)
    found = {test: np.zeros((2, num_draws)) for test in ("plain", *TESTS)}
    for i in range(num_draws):
        outcomes = draw(name, n, rng)
        ladder = of_scores(outcomes)
        losses = ranked_losses(outcomes)
        for test, (covered, failed) in found.items():
            passed = ladder.risk <= LIMIT
            if test != "plain":
                claim = means(ladder, losses, LIMIT, DELTA, test)
                passed = alone(claim, n)
            if passed.any():
                threshold = ladder.threshold[np.flatnonzero(passed)[-1]]
                count = np.searchsorted(POINTS, 1.0 - threshold, "right")
                covered[i] = count / len(POINTS)
                failed[i] = count and true[count - 1] > LIMIT * (1 + 1e-9)
    row = [name, f"{n:,}", f"{best:.3f}"]
    for covered, failed in found.values():
        kept = f"{covered.mean() / best:.3f}" if best else ""
        row += [f"{failed.mean():.4f}", kept]
    return row


def of_pixels(n: int, num_draws: int, seed: int) -> list:
    """As the rows above, by way of `choose_threshold` and rows of pixels."""
    rng = np.random.default_rng([seed, n, 1])
    failed = 0
    for _ in range(num_draws):
        share = rng.beta(0.15, 0.15 * (1.0 / ABOVE - 1.0), (n, 1))
        correct = rng.random((n, 30)) >= share
        scores = rng.normal(size=(n, 1)) + rng.normal(size=(n, 30))
        with contextlib.suppress(ValueError):
            keras_calib.choose_threshold(
                scores, correct, units=True, risk=LIMIT, delta=DELTA
            )
            failed += 1
    row = [PIXELS, f"{n:,}", "0.000", "", "", f"{failed / num_draws:.4f}"]
    return [*row, "", "", ""]


def measured(kind: str, rng: np.random.Generator) -> tuple[dict, np.ndarray]:
    """Metrics of images `(NUM_IMAGES,)`, and their shares of valid pixels."""
    found: dict[str, list] = {}
    weights = []
    size = 1000
    for _ in range(NUM_IMAGES // size):
        if kind == "alike":
            hard, scale = rng.beta(2, 8, size), rng.normal(1.3, 0.2, size)
        elif kind == "skewed":
            hard = np.minimum(rng.lognormal(-3, 1, size), 0.8)
            scale = np.exp(rng.normal(0.4, 0.4, size))
        else:
            rate = 0.05 if kind == "rare kinds" else 0.01
            bad = rng.random(size) < rate
            hard = rng.beta(1, 30, size)
            hard = np.where(bad, rng.uniform(0.4, 0.9, size), hard)
            scale = np.where(bad, 4.0, 1.2)
        shape = size, NUM_PIXELS
        z = 1.5 * rng.normal(size=shape) + np.log(1.0 / hard - 1.0)[:, None]
        first = rng.random(shape) < 1.0 / (1.0 + np.exp(-z))
        right = np.where(z > 0, first, ~first)
        sure = 1.0 / (1.0 + np.exp(-np.abs(z * scale[:, None])))
        sure = np.minimum(sure, 1.0 - 1e-7)
        valid = rng.random(shape) < rng.uniform(0.3, 1.0, size)[:, None]
        count = valid.sum(axis=1)
        bins = np.minimum((NUM_BINS * sure).astype(int), NUM_BINS - 1)
        bins = bins + NUM_BINS * np.arange(size)[:, None]
        gaps = np.bincount(bins[valid], (sure - right)[valid], NUM_BINS * size)
        loss = -np.log(np.where(right, sure, 1.0 - sure))
        values = {
            "accuracy": (valid * right).sum(axis=1),
            "ECE": np.abs(gaps.reshape(size, -1)).sum(axis=1),
            "NLL": (valid * loss).sum(axis=1),
            "Brier score": 2 * (valid * (right - sure) ** 2).sum(axis=1),
        }
        for metric, total in values.items():
            found.setdefault(metric, []).append(total / count)
        weights.append(count / NUM_PIXELS)
    joined = {k: np.concatenate(x) for k, x in found.items()}
    return joined, np.concatenate(weights)


def interval_rows(kind: str, num_draws: int, seed: int) -> list[list]:
    rng = np.random.default_rng(seed)
    found, weights = measured(kind, rng)
    rows = []
    for metric, values in found.items():
        truth = np.average(values, weights=weights)
        skewness = np.mean((values - values.mean()) ** 3) / values.std() ** 3
        for n in IMAGES:
            i = rng.integers(0, len(values), (num_draws, n))
            sums = Moments.of(values[i], weights[i], lambda x: x.sum(axis=1))
            low, high = mean_interval(sums)
            hits = [_covers(values[j], weights[j], truth, rng) for j in i[:500]]
            rows.append(
                [
                    kind,
                    metric,
                    f"{skewness:.1f}",
                    n,
                    f"{np.mean((low <= truth) & (truth <= high)):.3f}",
                    f"{np.mean(low > truth):.3f}",
                    f"{np.mean(high < truth):.3f}",
                    f"{np.median(high - low) / truth:.3f}",
                    f"{np.mean(hits):.3f}",
                ]
            )
    return rows


def _covers(x, w, truth, rng) -> bool:
    i = rng.integers(0, len(x), (400, len(x)))
    drawn = (x[i] * w[i]).sum(axis=1) / w[i].sum(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return bool(low <= truth <= high)


def run(num_draws: int, seed: int) -> str:
    calls = [
        (guarantees, (name, n, num_draws, seed))
        for n in SIZES[::-1]
        for name in POPULATIONS
    ]
    calls += [(of_pixels, (n, num_draws, seed)) for n in SIZES[:2]]
    calls += [(interval_rows, (kind, num_draws, seed)) for kind in KINDS]
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(_WORKERS.value, fork) as pool:
        waiting = [pool.submit(call, *given) for call, given in calls]
        found = [x.result() for x in waiting]
    rows = found[: -len(KINDS)]
    order = [*POPULATIONS, PIXELS]
    rows.sort(key=lambda row: (order.index(row[0]), len(row[1]), row[1]))
    spread = [row for part in found[-len(KINDS) :] for row in part]
    error = 2.0 * math.sqrt(DELTA * (1.0 - DELTA) / num_draws)
    worst = {
        test: max(float(row[place]) for row in rows if row[place])
        for test, place in zip(TESTS, (5, 7), strict=True)
    }
    header = ["losses of images", "images", "best coverage"]
    for test in ("plain", *TESTS):
        header += [f"{test}: violations", "coverage"]
    lead = ["images", "metric", "skewness", "number", "coverage", "above"]
    return "\n\n".join(
        [
            f"{num_draws:,} draws per row, seed {seed}. {machine()}.",
            f"Mean loss of accepted images, limit {LIMIT}, delta {DELTA}. Most "
            f"violations: {worst} (allowed with two standard errors: "
            f"{DELTA + error:.4f}).",
            markdown_table(header, rows),
            "95 % intervals of means over images:",
            markdown_table([*lead, "below", "width", "bootstrap"], spread),
        ]
    )


def main(_) -> None:
    publish(run(_NUM_DRAWS.value, _SEED.value), _OUT.value)


if __name__ == "__main__":
    app.run(main)

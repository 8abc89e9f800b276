r"""What decisions by a cost matrix cost, and how often their guarantee fails.

    python benchmarks/costs.py --logits=DIR --out=benchmarks/results/costs.md

DIR has files .npz of `labels` and `probs`, or of `labels_test` and
`logits_test`. Calibrators and empirical thresholds are fitted on a random half
of each set, or on 200 samples of it, and all are measured on the other half.
`saved` is the mean over the sets of the relative difference to uncalibrated
probabilities with Chow's rule. `wins` is the share of the halves where the
cost is lower.

The guarantee is for populations whose mean cost is a known function of the
rank. `violations` is the share of fits that return a threshold whose true mean
cost exceeds the limit; at most 0.05 is guaranteed. `coverage` is the mean true
coverage over that of the largest coverage within the limit, none counting as
0. `plain` takes the mean cost on the data at its word.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from absl import app, flags
from ladders import fixed_sequence, fixed_sequence_of_means
from reporting import machine, markdown_table, publish
from scipy.stats import beta

import keras_calib
from keras_calib.formulas.costs import mean_cost_of_decisions

_LOGITS = flags.DEFINE_string("logits", None, "Folder of predictions.")
_HALVES = flags.DEFINE_integer("halves", 5, "Random halves of each set.")
_NUM_FITS = flags.DEFINE_integer("num_fits", 2000, "Per row.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

DELTA = 0.05
SIZES = (1_000, 5_000)
TESTS = ("betting", "hoeffding_bentkus", "binomial")
NUM_POINTS = 400_000
POINTS = (np.arange(NUM_POINTS) + 0.5) / NUM_POINTS
LARGEST = 20.0
FEW = 200
CALIBRATORS = {
    "temperature": keras_calib.TemperatureScaling,
    "structured vector": keras_calib.StructuredVectorScaling,
}


class Population(NamedTuple):
    """Costs by rank.

    Attributes:
        mean: Mean cost by the share of surer samples, `(NUM_POINTS,)`.
        draw: Function of mean costs `(n,)` and a generator to costs `(n,)`.
        limit: Limit of the mean cost of the accepted.
    """

    mean: np.ndarray
    draw: Callable[[np.ndarray, np.random.Generator], np.ndarray]
    limit: float


def dear(mean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An error costs 1, or 20 in one of ten cases."""
    wrong = rng.random(len(mean)) < mean / 2.9
    return wrong * np.where(rng.random(len(mean)) < 0.1, LARGEST, 1.0)


def graded(mean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Every answer costs something, up to twice its mean."""
    return 2.0 * mean * rng.random(len(mean))


def equal(mean: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Every error costs 20."""
    return LARGEST * (rng.random(len(mean)) < mean / LARGEST)


def populations() -> dict[str, Population]:
    error = 0.9 * (1.0 - beta.ppf(1.0 - POINTS, 7.0, 0.6))
    waves = 1.0 + np.cos(20.0 * np.log(POINTS))
    flat = np.full(NUM_POINTS, 1.001)
    return {
        "errors cost 1 or 20": Population(2.9 * error, dear, 0.15),
        "errors cost 20": Population(LARGEST * error, equal, 1.0),
        "graded costs": Population(10.0 * error, graded, 0.5),
        "waves around the limit, 1 or 20": Population(0.15 * waves, dear, 0.15),
        "0.1 % above the limit, 1 or 20": Population(0.15 * flat, dear, 0.15),
        "0.1 % above the limit, 20": Population(flat, equal, 1.0),
        "0.1 % above the limit, graded": Population(0.5 * flat, graded, 0.5),
    }


def guarantee_table(num_fits: int, seed: int) -> str:
    rows = []
    worst = dict.fromkeys(TESTS, 0.0)
    for name, of in populations().items():
        total = np.append(0.0, np.cumsum(of.mean)) / NUM_POINTS
        shares = np.arange(1, NUM_POINTS + 1) / NUM_POINTS
        good = np.flatnonzero(total[1:] / shares <= of.limit)
        best = shares[good[-1]] if len(good) else 0.0
        for n in SIZES:
            found = {x: np.zeros((2, num_fits)) for x in ("plain", *TESTS)}
            rng = np.random.default_rng([seed, n])
            for i in range(num_fits):
                one_fit(of, n, total, rng, found, i)
            row = [name, of.limit, f"{n:,}", f"{best:.3f}"]
            for method, (covered, cost) in found.items():
                violations = np.mean(cost > of.limit * (1.0 + 1e-9))
                share = covered.mean() / best if best else 0.0
                row += [f"{violations:.3f}", f"{share:.3f}"]
                if method == "binomial" and of.draw is not equal:
                    row[-2:] = "", ""
                if method in worst:
                    worst[method] = max(worst[method], violations)
            rows.append(row)
            print(row, flush=True)
    header = ["population", "limit", "n", "best coverage"]
    for method in ("plain", *TESTS):
        header += [f"{method}: violations", f"{method}: coverage"]
    allowed = DELTA + 2.0 * np.sqrt(DELTA * (1.0 - DELTA) / num_fits)
    most = ", ".join(f"{x} {y:.4f}" for x, y in worst.items())
    return (
        f"Most violations: {most} (allowed with two standard errors: "
        f"{allowed:.4f}).\n\n" + markdown_table(header, rows)
    )


def one_fit(of, n, total, rng, found, i) -> None:
    """Draws data, and notes true coverage and mean cost by method."""
    u = np.sort(rng.random(n))
    cost = of.draw(of.mean[(u * NUM_POINTS).astype(int)], rng)
    accepted = np.arange(1, n + 1)
    # Midway to the next score, as the library does.
    coverage = np.append(0.5 * (u[:-1] + u[1:]), 1.0)
    for method, results in found.items():
        if method == "plain":
            passed = np.cumsum(cost) <= of.limit * accepted
        elif method == "binomial":
            # It is for costs of 0 and one other alone.
            if of.draw is not equal:
                continue
            wrong = np.cumsum(cost > 0)
            passed = fixed_sequence(accepted, wrong, of.limit / LARGEST, DELTA)
        else:
            passed = fixed_sequence_of_means(
                accepted, cost / LARGEST, of.limit / LARGEST, DELTA, method
            )
        reached = np.flatnonzero(passed)
        if len(reached):
            a = coverage[reached[-1]]
            place = np.arange(NUM_POINTS + 1)
            true = np.interp(a * NUM_POINTS, place, total) / a
            results[:, i] = a, true


def interval_table(num_fits: int, seed: int) -> str:
    """Coverage of the 95 % interval of a mean cost, with rare dear errors."""
    rows = []
    for values, shares in (
        ((0.0, 0.5, 1.0), (0.7, 0.25, 0.05)),
        ((0.0, 0.5, 5.0), (0.7, 0.25, 0.05)),
        ((0.0, 0.5, 1.0, 20.0), (0.7, 0.26, 0.035, 0.005)),
        ((0.0, 0.5, 1.0, 20.0), (0.7, 0.26, 0.0395, 0.0005)),
    ):
        mean, rng = np.dot(values, shares), np.random.default_rng(seed)
        for n in (300, 1_000, 5_000, 20_000):
            every = np.ones(n, bool)
            hits = []
            for _ in range(num_fits):
                cost = rng.choice(values, n, p=shares)
                found = mean_cost_of_decisions(cost, every, None, values[-1])
                inside = found.low <= mean <= found.high
                hits.append((inside, found.high - found.low))
            covered, width = np.mean(hits, axis=0)
            row = [", ".join(map(str, values)), ", ".join(map(str, shares))]
            rows.append([*row, f"{n:,}", f"{covered:.3f}", f"{width:.4f}"])
    header = ["costs", "shares", "N", "coverage", "mean width"]
    return markdown_table(header, rows)


def matrices(num_classes: int) -> dict[str, tuple[np.ndarray, float]]:
    """Costs and prices of a rejection."""
    errors = 1.0 - np.eye(num_classes)
    missed, alarm = errors.copy(), errors.copy()
    missed[0] *= 20.0
    alarm[:, 0] *= 20.0
    rng = np.random.default_rng(0)
    random = errors * np.exp(rng.uniform(0.0, np.log(20.0), errors.shape))
    return {
        "errors cost 1, price 0.05": (errors, 0.05),
        "errors cost 1, price 0.3": (errors, 0.3),
        "class 0 missed costs 20, price 0.3": (missed, 0.3),
        "wrong answer 0 costs 20, price 0.3": (alarm, 0.3),
        "random costs 1 to 20, price 0.5": (random, 0.5),
    }


def load(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Class ids and logits of a file, None without those of all classes."""
    with np.load(path) as file:
        arrays = dict(file)
    if "logits_test" in arrays:
        return arrays["labels_test"].astype(int), arrays["logits_test"]
    if "probs" not in arrays:
        return None
    probs = np.maximum(arrays["probs"].astype("float64"), 1e-30)
    return arrays["labels"].astype(int), np.log(probs).astype("float32")


def real_table(folder: str, halves: int) -> str:
    results: dict[tuple[str, str, str], list] = {}
    for path in sorted(Path(folder).glob("*.npz")):
        if (data := load(path)) is None:
            continue
        for seed in range(halves):
            order = np.random.default_rng(seed).permutation(len(data[0]))
            fit, rest = np.array_split(order, 2)
            held_out = [x[rest] for x in data]
            for size, part in (("half", fit), (f"{FEW}", fit[:FEW])):
                known = [x[part] for x in data]
                for key, found in one_half(known, held_out):
                    results.setdefault((*key, size), []).append(found)
        print(path.stem, flush=True)
    rows = []
    for (kind, name, size), found in results.items():
        value, coverage = np.transpose(found)
        plain = np.transpose(results[kind, "none, chow", size])[0]
        shown = [f"{value.mean():.4f}", f"{coverage.mean():.3f}", "", ""]
        if name != "none, chow":
            wins = np.mean(value < plain) + 0.5 * np.mean(value == plain)
            shown[2:] = f"{np.mean(1.0 - value / plain):.3f}", f"{wins:.2f}"
        rows.append([kind, name, size, *shown])
    header = ["costs", "calibrator, threshold", "fitted on", "mean cost"]
    return markdown_table([*header, "coverage", "saved", "wins"], rows)


def one_half(known: list, held_out: list) -> Iterator[tuple]:
    """Names of costs and contender, with mean cost and coverage."""
    parts: dict[str, Any] = {"none": None}
    for name, cls in CALIBRATORS.items():
        parts[name] = cls().fit(*known)
    for kind, (costs, price) in matrices(known[1].shape[-1]).items():
        for name, part in parts.items():
            selector = keras_calib.SelectiveClassifier(
                calibrator=part, costs=costs
            )
            for method in ("chow", "empirical"):
                selector.fit(*known, reject_cost=price, method=method)
                found = measured(selector, *held_out, price)
                yield (kind, f"{name}, {method}"), found


def measured(selector, labels, logits, price) -> tuple[float, float]:
    """Mean cost and coverage on data."""
    answers = {
        k: keras.ops.convert_to_numpy(v) for k, v in selector(logits).items()
    }
    cost = selector.costs[labels, answers["label"]]
    accept = answers["accept"]
    return float(np.where(accept, cost, price).mean()), float(accept.mean())


def main(_) -> None:
    num_fits, seed = _NUM_FITS.value, _SEED.value
    parts = [f"# Decisions by costs\n\n{machine()}."]
    if _LOGITS.value:
        table = real_table(_LOGITS.value, _HALVES.value)
        parts.append(f"## Published predictions, held-out halves\n\n{table}")
    table = guarantee_table(num_fits, seed)
    parts.append(
        f"## Guarantee of the mean cost of the accepted\n\ndelta = {DELTA}, "
        f"{num_fits:,} fits per row, seed {seed}.\n\n{table}"
    )
    table = interval_table(num_fits, seed)
    parts.append(f"## Coverage of the 95 % interval of a mean cost\n\n{table}")
    publish("\n\n".join(parts), _OUT.value)


if __name__ == "__main__":
    app.run(main)

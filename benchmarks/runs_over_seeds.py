"""How often `Runs` finds a difference between models that have none.

Both models are trained with several seeds and tested on the same rows. They
are equal on average over seeds and rows. A seed shifts all rows of its run, a
model is good at other rows than the next, and a run errs at rows of its own.
`rows alone` is a bootstrap of rows of the mean over seeds, as `compare` does
with pooled seeds; `seeds alone` is Welch's t-test of the seeds; `Runs` counts
both. Each should find a difference in at most 5 % of the experiments.

    python benchmarks/runs_over_seeds.py \
        --out=benchmarks/results/runs_over_seeds.md

The second table has values that are normal, with seeds that vary less in one
model than in the other, with other numbers of seeds, and in pairs. The third
has five models: how often a table shows one of the best as worse. It takes
about fifteen minutes on one CPU core.
"""

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish
from scipy.stats import norm

import keras_calib
from keras_calib.functional.comparison import p_over_seeds
from keras_calib.functional.group_table import holm
from keras_calib.reporting import Runs

_EXPERIMENTS = flags.DEFINE_integer("experiments", 1000, "Of each row.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

ROWS, CLASSES, BINS, LEVEL = 1000, 4, 15, 0.05
METRICS = "accuracy", "ece", "nll", "aurc"
# Deviation of the logarithm of a seed's noise and of its temperature.
SEED_EFFECTS = {"none": 0.0, "some": 0.1, "much": 0.4}


def networks(seeds, effect, rng, rows=ROWS):
    """Labels `(n,)`, and logits of the seeds of two equal models."""
    labels = rng.integers(0, CLASSES, rows)
    shape = rows, CLASSES
    evidence = 2.0 * np.eye(CLASSES)[labels] + rng.normal(size=shape)
    found = []
    for count in seeds:
        own = evidence + 0.5 * rng.normal(size=shape)
        found += [
            1.5
            * np.exp(effect * rng.normal())
            * (own + 0.6 * np.exp(effect * rng.normal()) * noise)
            for noise in rng.normal(size=(count, *shape))
        ]
    return labels, np.array(found)


def measured(labels, logits, weights):
    """Metrics `(runs, metrics, draws)` with weights `(draws, n)`."""
    total, found = weights.sum(axis=1), []
    for run in logits:
        p = np.exp(run - run.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        confidence, wrong = p.max(axis=1), 1.0 * (p.argmax(axis=1) != labels)
        gaps = np.zeros((len(labels), BINS))
        index = np.ceil(BINS * confidence).astype(int) - 1
        gaps[np.arange(len(labels)), index] = confidence - 1.0 + wrong
        order = np.argsort(-confidence)
        mass = np.cumsum(weights[:, order], axis=1)
        errors = np.cumsum((weights * wrong)[:, order], axis=1)
        risk = errors / np.maximum(mass, 1.0)
        loss = -np.log(p[np.arange(len(labels)), labels])
        found.append(
            [
                1.0 - weights @ wrong / total,
                np.abs(weights @ gaps).sum(axis=1) / total,
                weights @ loss / total,
                (weights[:, order] * risk).sum(axis=1) / total,
            ]
        )
    return np.array(found)


def p_values(values, drawn, first):
    """p of rows alone, of seeds alone, and of both."""
    a, b, covariance = values[:first], values[first:], np.cov(drawn)
    gap = drawn[:first].mean(axis=0) - drawn[first:].mean(axis=0)
    error = np.std(gap, ddof=1)
    rows = 2.0 * norm.sf(abs(a.mean() - b.mean()) / error)
    both = p_over_seeds(a, b, covariance, ROWS)
    return rows, p_over_seeds(a, b), both


def repeats(draws, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([rng.poisson(size=ROWS) for _ in range(draws)], float)


def check_is_what_runs_does(rng):
    """The metrics above are those of the library, and so are the p-values."""
    labels, logits = networks((3, 3), 0.4, rng)
    runs = [
        keras_calib.Predictions(labels, x, from_logits=True) for x in logits
    ]
    found = Runs({"a": runs[:3], "b": runs[3:]}, METRICS, num_draws=50)
    values = measured(labels, logits, np.ones((1, ROWS)))[..., 0]
    drawn = measured(labels, logits, repeats(50))
    for i, name in enumerate(METRICS):
        own = np.concatenate([*found.values[name].values()])
        # A mean over groups takes half a step where the library takes one.
        np.testing.assert_allclose(values[:, i], own, rtol=1e-3)
        p = p_values(values[:, i], drawn[:, i], 3)[2]
        told = np.nanmax(found.table["p_value"][found.table["metric"] == name])
        np.testing.assert_allclose(p, told, rtol=0.02, atol=1e-3)


def networks_table(experiments, rng):
    weights, rows = repeats(100), []
    for seeds in ((3, 3), (5, 5)):
        for name, effect in SEED_EFFECTS.items():
            hits = np.zeros((len(METRICS), 3))
            for _ in range(experiments):
                labels, logits = networks(seeds, effect, rng)
                values = measured(labels, logits, np.ones((1, ROWS)))[..., 0]
                drawn = measured(labels, logits, weights)
                for i in range(len(METRICS)):
                    p = p_values(values[:, i], drawn[:, i], seeds[0])
                    hits[i] += np.array(p) <= LEVEL
            for metric, own in zip(METRICS, hits / experiments, strict=True):
                cells = [f"{x:.3f}" for x in own]
                rows.append([seeds[0], name, metric, *cells])
                print(*rows[-1], sep=" | ", flush=True)
    head = ["seeds", "effect of a seed", "metric"]
    return markdown_table([*head, "rows alone", "seeds alone", "`Runs`"], rows)


def normal_values(seeds, deviations, paired, rng, rows=300):
    """Values of the seeds of models, and their covariance over rows."""
    shared = rng.normal(size=rows)
    pairs = rng.normal(size=max(seeds)) * paired
    parts = []
    for count, deviation in zip(seeds, deviations, strict=True):
        own = shared + 0.7 * rng.normal(size=rows)
        shift = deviation * (rng.normal(size=count) + pairs[:count])
        parts.append(
            own + shift[:, None] + 0.5 * rng.normal(size=(count, rows))
        )
    values = np.concatenate(parts)
    return values.mean(axis=1), np.cov(values) / rows


def normal_table(experiments, rng):
    rows = []
    cases = [
        ((a, b), (x, ratio * x), False)
        for a, b in ((2, 2), (3, 3), (5, 5), (3, 10))
        for x in (0.03, 0.5)
        for ratio in (1.0, 0.2)
    ]
    cases += [((s, s), (x, x), True) for s in (3, 5) for x in (0.03, 0.5)]
    for seeds, deviations, paired in cases:
        hits = 0
        for _ in range(4 * experiments):
            x, covariance = normal_values(seeds, deviations, paired, rng)
            a, b = np.split(x, [seeds[0]])
            p = p_over_seeds(a, b, covariance, 300, paired=paired)
            hits += p <= LEVEL
        share = f"{hits / (4 * experiments):.4f}"
        seeds_told = f"{seeds[0]}, {seeds[1]}{' paired' * paired}"
        rows.append([seeds_told, *(f"{x:g}" for x in deviations), share])
        print(*rows[-1], sep=" | ", flush=True)
    head = ["seeds", "deviation of seeds", "of the other model", "`Runs`"]
    return markdown_table(head, rows)


def families_table(experiments, rng, models=5):
    rows = []
    for seeds in (3, 5):
        for deviation in (0.03, 0.5):
            for gap in (0.0, 4.0):
                hits = np.zeros(4)
                error = np.hypot(0.7 / np.sqrt(300), deviation / np.sqrt(seeds))
                for _ in range(experiments):
                    x, c = normal_values(
                        [seeds] * models, [deviation] * models, False, rng
                    )
                    x[3 * seeds :] += gap * error
                    equal = 3 if gap else models
                    worse, with_best = _worse(x, c, seeds, models)
                    hits += (
                        with_best[:equal].any(),
                        worse[:equal].any(),
                        worse[0],
                        worse[3:].mean(),
                    )
                cells = [f"{x:.3f}" for x in hits / experiments]
                rows.append([seeds, deviation, gap, *cells])
                print(*rows[-1], sep=" | ", flush=True)
    head = ["seeds", "deviation of seeds", "two models are worse by"]
    head += [
        "Holm of 4: an equal one is worse",
        "`Runs`: an equal one is worse",
    ]
    head += ["the first is worse", "power"]
    return markdown_table(head, rows)


def _worse(x, covariance, seeds, models):
    """Which models are worse than the best, by all pairs and by its own."""
    parts = np.split(x, models)
    places = np.arange(len(x)).reshape(models, seeds)
    pairs = [(i, j) for i in range(models) for j in range(i + 1, models)]
    p = [
        p_over_seeds(
            *(parts[i], parts[j]),
            covariance[np.ix_(*[[*places[i], *places[j]]] * 2)],
            300,
        )
        for i, j in pairs
    ]
    best = int(np.argmin([part.mean() for part in parts]))
    found = []
    for counts in (lambda pair: True, lambda pair: best in pair):
        tested = {x: v for x, v in zip(pairs, p, strict=True) if counts(x)}
        corrected = zip(tested, holm([*tested.values()]), strict=True)
        worse = np.zeros(models, bool)
        for (i, j), value in corrected:
            if best in (i, j) and value <= LEVEL:
                worse[i + j - best] = True
        found.append(worse)
    return found


def run(experiments, seed):
    rng = np.random.default_rng(seed)
    check_is_what_runs_does(rng)
    bound = LEVEL + 2.0 * np.sqrt(LEVEL * (1.0 - LEVEL) / experiments)
    return "\n\n".join(
        [
            f"{experiments:,} experiments a row, seed {seed}. {machine()}.",
            f"Two equal models on {ROWS:,} rows: share of experiments with p "
            f"of at most {LEVEL}. Two standard errors above it are "
            f"{bound:.3f}.",
            networks_table(experiments, rng),
            "Normal values of 300 rows, four times as many experiments. The "
            "deviation of the mean over rows is 0.04 for each model.",
            normal_table(experiments, rng),
            "Five models, of which three are equal and the best, and the last "
            "two are worse by so many standard errors of a mean. Holm's "
            "correction of the 4 pairs with the best forgets that the data "
            "chose it; `Runs` corrects for all 10 pairs. `power` is the share "
            "of the last two that `Runs` shows to be worse.",
            families_table(experiments, rng),
        ]
    )


def main(_):
    publish(run(_EXPERIMENTS.value, _SEED.value), _OUT.value)


if __name__ == "__main__":
    app.run(main)

"""Several targets of one threshold: `control_risks` beside MAPIE.

Both certify a threshold that keeps all targets, with `delta` = 0.1, on the same
samples. MAPIE tests the 100 thresholds 0, 0.01, ..., 0.99 of a probability and
corrects for their number (`bonferroni_holm`, its default). With
`split_fixed_sequence` it learns an order of them on half of the samples and
tests on the other half; this is slow, and done for its own example alone.

Samples are drawn from populations whose true values are known, so that a
returned threshold either keeps its targets or does not. Of the thresholds that
keep them, both are asked for the one with the largest recall.

- normal: scores of both classes are normal, two standard deviations apart;
- surest wrong: every fourth of the surest 2 % is negative;
- surest half wrong: every second of the surest 10 % is negative;
- circles: MAPIE's own example, two noisy circles and a network of scikit-learn.
  The population is 400,000 fresh points;
- CIFAR-10: one class against the others, by a DenseNet-40. The population is
  its 15,000 predictions, drawn with replacement.

    python benchmarks/multi_risk.py --data=DATA \
        --out=benchmarks/results/multi_risk.md

DATA has `markus93_densenet40_cifar10.npz`: logits of
https://github.com/markus93/NN_calibration as `logits_val`, `logits_test`,
`labels_val` and `labels_test`. It needs MAPIE, and minutes on one CPU core.
"""

import contextlib
import importlib.metadata
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish

import keras_calib as kc

_NUM_FITS = flags.DEFINE_integer("num_fits", 600, "Draws of a row.")
_NUM_SPLIT = flags.DEFINE_integer("num_split", 30, "Those of `split`.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_DATA = flags.DEFINE_string("data", None, "Folder of predictions.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

DELTA = 0.1
METHODS = ("Holm", "split", "control_risks")
# Names of ours and of MAPIE's quantities.
NAMES = {
    "precision": "precision",
    "recall": "recall",
    "false_positive_rate": "fpr",
}
PEER = {"Holm": "bonferroni_holm", "split": "split_fixed_sequence"}


class Population(NamedTuple):
    """Probabilities and labels `(size,)`, from the largest probability on."""

    probs: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, probs: np.ndarray, labels: np.ndarray) -> "Population":
        order = np.argsort(-probs, kind="stable")
        return cls(probs[order], labels[order].astype("int64"))

    def draw(
        self, rng: np.random.Generator, n: int
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = rng.integers(0, len(self.probs), n)
        return self.probs[rows], self.labels[rows]

    def values(self) -> dict[str, np.ndarray]:
        """True values of each number of accepted rows, from 1 on."""
        accepted = np.arange(1, len(self.labels) + 1)
        hits = np.cumsum(self.labels)
        return {
            "precision": hits / accepted,
            "recall": hits / hits[-1],
            "coverage": accepted / len(accepted),
            "false_positive_rate": (accepted - hits)
            / (len(accepted) - hits[-1]),
        }

    def place(self, threshold: float) -> int:
        """Index in `values` of a threshold; -1 accepts none."""
        return int(np.searchsorted(-self.probs, -threshold, "right")) - 1


def kept(values: dict[str, np.ndarray], targets: dict) -> np.ndarray:
    """Which numbers of accepted rows keep all targets."""
    return np.all(
        [
            values[name] <= target
            if name == "false_positive_rate"
            else values[name] >= target
            for name, target in targets.items()
        ],
        axis=0,
    )


def by_peer(
    probs: np.ndarray, labels: np.ndarray, targets: dict, method: str
) -> float | None:
    """The threshold of MAPIE, None without one."""
    from mapie.risk_control import BinaryClassificationController

    controller = BinaryClassificationController(
        predict_function=lambda p: np.stack([1.0 - p, p], axis=-1),
        risk=[NAMES[name] for name in targets],
        target_level=list(targets.values()),
        confidence_level=1.0 - DELTA,
        best_predict_param_choice="recall",
        fwer_method=PEER[method],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method == "split":
            half = len(probs) // 2
            controller.learn_fixed_sequence_order(
                probs[:half], labels[:half], binary=True
            )
            probs, labels = probs[half:], labels[half:]
        controller.calibrate(probs, labels)
    return controller.best_predict_param


def by_us(probs: np.ndarray, labels: np.ndarray, targets: dict) -> float | None:
    with contextlib.suppress(ValueError):
        return kc.selection.control_risks(
            probs, labels, targets, delta=DELTA
        ).threshold
    return None


def rows_of(
    rng: np.random.Generator,
    name: str,
    of: Population,
    n: int,
    targets: dict,
) -> Iterator[list]:
    values = of.values()
    within = kept(values, targets)
    best = values["recall"][within].max() if within.any() else 0.0
    draws = [of.draw(rng, n) for _ in range(_NUM_FITS.value)]
    wanted = ", ".join(f"{NAMES[k]} {x:g}" for k, x in targets.items())
    for method in METHODS:
        if method == "split" and name != "circles":
            continue
        count = _NUM_SPLIT.value if method == "split" else len(draws)
        broken, recalls = 0, np.full(count, np.nan)
        start = time.process_time()
        for i, (probs, labels) in enumerate(draws[:count]):
            if method == "control_risks":
                found = by_us(probs, labels, targets)
            else:
                found = by_peer(probs, labels, targets, method)
            if found is not None:
                place = of.place(found)
                broken += place < 0 or not within[place]
                recalls[i] = values["recall"][place] if place >= 0 else 0.0
        seconds = (time.process_time() - start) / count
        row = [
            f"{name}: {wanted}",
            f"{n:,}",
            method,
            f"{count:,}",
            f"{np.mean(np.isfinite(recalls)):.3f}",
            f"{broken / count:.3f}",
            f"{np.mean(np.nan_to_num(recalls)):.3f}",
            f"{best:.3f}" if best else "none",
            f"{seconds * 1e3:.1f}",
        ]
        print(*row, sep=" | ", flush=True)
        yield row


def normal(rng: np.random.Generator, positives: float) -> Population:
    labels = rng.random(400_000) < positives
    scores = rng.normal(2.0 * labels - 1.0, 1.0)
    odds = 2.0 * scores + np.log(positives / (1.0 - positives))
    return Population.of(1.0 / (1.0 + np.exp(-odds)), labels)


def surest_wrong(rng: np.random.Generator) -> Population:
    probs, labels = normal(rng, 0.5)
    surest = len(labels) // 50
    labels[:surest] = rng.random(surest) > 0.25
    return Population.of(probs, labels)


def surest_half_wrong(rng: np.random.Generator) -> Population:
    probs, labels = normal(rng, 0.5)
    surest = len(labels) // 10
    labels[:surest] = rng.random(surest) > 0.5
    return Population.of(probs, labels)


def circles() -> Population:
    """Data, network and split of MAPIE's example."""
    from sklearn.datasets import make_circles
    from sklearn.neural_network import MLPClassifier

    shape = {"noise": 0.3, "factor": 0.3}
    x, y = make_circles(4000, random_state=1, **shape)
    network = MLPClassifier(max_iter=150, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network.fit(x, y)
    x, y = make_circles(400_000, random_state=2, **shape)
    return Population.of(network.predict_proba(x)[:, 1], y)


def of_class(folder: Path, k: int) -> Population:
    with np.load(folder / "markus93_densenet40_cifar10.npz") as arrays:
        logits = [arrays[f"logits_{part}"] for part in ("val", "test")]
        labels = [arrays[f"labels_{part}"] for part in ("val", "test")]
    logits = np.concatenate(logits).astype("float64")
    logits -= logits.max(axis=-1, keepdims=True)
    probs = np.exp(logits[:, k]) / np.exp(logits).sum(axis=-1)
    return Population.of(probs, np.concatenate(labels) == k)


def table(rng: np.random.Generator) -> Iterator[list]:
    even, rare = normal(rng, 0.5), normal(rng, 0.1)
    both = {"precision": 0.8, "recall": 0.8}
    cases = [
        ("normal", even, 1000, {"precision": 0.75, "recall": 0.75}),
        ("normal", even, 1000, both),
        ("normal", even, 5000, both),
        # The largest value that both reach is 0.8413.
        ("normal", even, 1000, {"precision": 0.8414, "recall": 0.8414}),
        (
            "normal",
            even,
            1000,
            {"precision": 0.8, "recall": 0.7, "false_positive_rate": 0.2},
        ),
        (
            "normal, 10 % positive",
            rare,
            5000,
            {"precision": 0.6, "recall": 0.5},
        ),
        (
            "surest wrong",
            surest_wrong(rng),
            2000,
            {"precision": 0.8, "recall": 0.75},
        ),
        (
            "surest half wrong",
            surest_half_wrong(rng),
            1500,
            {"precision": 0.72, "recall": 0.55},
        ),
    ]
    example = circles()
    cases += [
        ("circles", example, 500, {"precision": 0.75, "recall": 0.7}),
        ("circles", example, 500, {"precision": 0.85, "recall": 0.8}),
        ("circles", example, 2000, {"precision": 0.85, "recall": 0.8}),
    ]
    if _DATA.value:
        cat = of_class(Path(_DATA.value), 3)
        cases += [
            ("CIFAR-10, cats", cat, 2000, {"precision": 0.8, "recall": 0.7}),
            (
                "CIFAR-10, cats",
                cat,
                2000,
                {"recall": 0.8, "false_positive_rate": 0.04},
            ),
        ]
    for case in cases:
        yield from rows_of(rng, *case)


def main(_):
    rng = np.random.default_rng(_SEED.value)
    heads = ["population: targets", "samples", "method", "draws", "finds one"]
    heads += ["broken", "mean recall", "best recall", "ms per fit"]
    mapie = importlib.metadata.version("mapie")
    parts = [
        "# Several targets at once",
        machine(),
        f"`BinaryClassificationController` of MAPIE {mapie} (Holm, split) and "
        f"`control_risks`, delta {DELTA}, seed {_SEED.value}. `finds one` is "
        "the share of draws with a threshold, and `broken` the share where its "
        f"true values miss a target: at most {DELTA} is guaranteed. Recall is "
        "the true one, and counts as 0 without a threshold. The best is the "
        "largest at which the population keeps all targets.",
        markdown_table(heads, table(rng)),
    ]
    publish("\n\n".join(parts), _OUT.value)


if __name__ == "__main__":
    app.run(main)

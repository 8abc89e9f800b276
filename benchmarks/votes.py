"""Metrics of annotators' votes: coverage of their intervals, and CIFAR-10H.

Simulated samples have a confidence c and a probability q that an annotator
agrees with the prediction: q = c - gap ("alike"), or drawn around it for each
sample ("apart", Beta with a sum of parameters of 3). Each sample gets some
votes. `width to classes` is that of the interval over that of one which takes
each sample as right or wrong. Shares of rejections are those of
`calibration_test` at the level of 5 %; "independent" is Spiegelhalter's Z with
the variance c (1 - c) / n of n independent votes. With `--data`, the folder of
`cifar10h` and `logits`, it adds values on the 10,000 images and votes of
CIFAR-10H: of the shares themselves, of half of the votes against the other
half, of votes drawn anew from the shares, and of a DenseNet-40, with tests of
its calibration.

    python benchmarks/votes.py --data=DATA --num_draws=100 \
        --out=benchmarks/results/votes.md

It takes about three minutes on one CPU core.
"""

from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish
from scipy.stats import norm as normal

import keras_calib as kc
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums, bin_index, bin_sums

_NUM_DRAWS = flags.DEFINE_integer("num_draws", 400, "Per row.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_DATA = flags.DEFINE_string("data", None, "Folder of real data, or None.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

NUM_BINS = 15
TESTS = ["ece", "spiegelhalter", "ecce_range"]
NORMS = {"ECE": "l1", "RMSCE": "l2"}
TABLE = ["accuracy", "ece", "aurc", "failure_auroc", "nll", "brier_score"]


def population(
    rng: np.random.Generator, n: int, kind: str, gap: float
) -> tuple[np.ndarray, np.ndarray]:
    """Confidences, and probabilities that an annotator agrees, `(n,)`."""
    confidence = 0.5 + 0.5 * rng.beta(4.0, 1.0, n)
    mean = np.clip(confidence - gap, 0.02, 1.0 - 1e-9)
    if kind == "alike":
        return confidence, mean
    return confidence, rng.beta(3.0 * mean, 3.0 * (1.0 - mean))


def sums_of(confidence: np.ndarray, share: np.ndarray) -> BinSums:
    index = bin_index(confidence, NUM_BINS)
    return bin_sums(confidence, share, index, NUM_BINS, votes=True)


def as_classes(sums: BinSums) -> BinSums:
    return BinSums(*sums.parts()[:5])


def truth_of(sums: BinSums, norm: str, filled: np.ndarray) -> float:
    """Error of the population over the bins that are filled."""
    share = sums.weight * filled / np.sum(sums.weight * filled)
    if norm == "l1":
        return float(np.sum(share * np.abs(sums.confidence_gap)))
    return float(np.sqrt(np.sum(share * sums.confidence_gap**2)))


def coverage_of_bins(rng: np.random.Generator) -> Iterator[list]:
    for n in (60, 600):
        for votes in (1, 50):
            for kind in ("alike", "apart"):
                for gap in (0.0, 0.08):
                    whole = sums_of(*population(rng, 1_000_000, kind, gap))
                    found = {name: [] for name in NORMS}
                    for _ in range(_NUM_DRAWS.value):
                        c, q = population(rng, n, kind, gap)
                        sums = sums_of(c, rng.binomial(votes, q) / votes)
                        for name, norm in NORMS.items():
                            true = truth_of(whole, norm, sums.weight > 0)
                            low, high = error_interval(sums, norm=norm)
                            a, b = error_interval(as_classes(sums), norm=norm)
                            holds = low <= true + 1e-3 / n and true <= high
                            found[name].append([holds, high - low, b - a])
                    for name, rows in found.items():
                        covered, width, wider = np.mean(rows, axis=0)
                        yield [
                            f"{kind}, gap {gap:g}",
                            f"{n:,}",
                            votes,
                            name,
                            f"{covered:.3f}",
                            f"{width:.4f}",
                            f"{width / wider:.2f}",
                        ]


def coverage_of_means(rng: np.random.Generator) -> Iterator[list]:
    """The other intervals, of samples whose annotators differ."""
    draws = max(_NUM_DRAWS.value // 2, 1)
    votes = 50
    for n in (60, 600):
        c, q = population(rng, 300_000, "apart", 0.05)
        both = np.stack([q, 1.0 - q], axis=-1), _rows(c)
        truth = {
            "AURC": kc.aurc(*both, votes=True),
            "FailureAUROC": kc.functional.failure_auroc(*both, votes=True),
            "accuracy": q.mean(),
            "NLL": kc.nll(*both, votes=True),
            "confidence_gap()": (c - q).mean(),
        }
        found = {name: [] for name in truth}
        for _ in range(draws):
            c, q = population(rng, n, "apart", 0.05)
            right = rng.binomial(votes, q)
            metric = kc.CalibrationMetrics(
                ["aurc", "failure_auroc", "accuracy", "nll"],
                labels="votes",
                resolution=2048,
            )
            metric.update_state(
                np.stack([right, votes - right], axis=-1), _rows(c)
            )
            gap = metric.confidence_gap()
            ends = [*metric.interval().values(), (gap.low, gap.high)]
            for (name, true), (low, high) in zip(
                truth.items(), ends, strict=True
            ):
                found[name].append([low <= true <= high, high - low])
        for name, rows in found.items():
            covered, width = np.mean(rows, axis=0)
            yield [n, votes, name, f"{covered:.3f}", f"{width:.4f}"]


def rejections(rng: np.random.Generator) -> Iterator[list]:
    """How often tests reject, of calibrated and of overconfident models."""
    draws, votes = 2 * _NUM_DRAWS.value, 50
    for kind in ("alike", "apart"):
        for n in (60, 600):
            for gap in (0.0, 0.04):
                found = []
                for i in range(draws):
                    c, q = population(rng, n, kind, gap)
                    right = rng.binomial(votes, q)
                    counts = np.stack([right, votes - right], axis=-1)
                    one = (rng.random(n) > q).astype(int)
                    p_values = [
                        kc.functional.calibration_test(
                            counts,
                            _rows(c),
                            statistic=name,
                            num_draws=199,
                            seed=i,
                            votes=True,
                        ).p_value
                        for name in TESTS
                    ]
                    of_one = kc.functional.calibration_test(
                        one, _rows(c), statistic="spiegelhalter"
                    )
                    p_values += [
                        of_one.p_value,
                        _of_independent_votes(c, right / votes, votes),
                    ]
                    found.append(p_values)
                shares = np.mean(np.array(found) <= 0.05, axis=0)
                yield [
                    f"{kind}, gap {gap:g}",
                    f"{n:,}",
                    *(f"{x:.3f}" for x in shares),
                ]


def _of_independent_votes(
    c: np.ndarray, share: np.ndarray, votes: int
) -> float:
    lean = 1.0 - 2.0 * c
    z = np.sum((share - c) * lean)
    z /= np.sqrt(np.sum(lean**2 * c * (1.0 - c) / votes))
    return float(2.0 * normal.sf(abs(z)))


def _rows(confidence: np.ndarray) -> np.ndarray:
    return np.stack([confidence, 1.0 - confidence], axis=-1).astype("float32")


def _row(name, labels, outputs, form, **options) -> list:
    metric = kc.CalibrationMetrics(TABLE, labels=form, **options)
    metric.update_state(labels, outputs)
    ends = metric.interval()
    return [name] + [
        f"{float(x):.4f} ({ends[key][0]:.4f}, {ends[key][1]:.4f})"
        for key, x in metric.result().items()
    ]


def cifar10h(folder: Path, rng: np.random.Generator) -> Iterator[str]:
    with np.load(folder / "cifar10h" / "cifar10h.npz") as arrays:
        counts, ids = arrays["counts"].astype(int), arrays["labels"]
    total = counts.sum(axis=-1, keepdims=True)
    share = (counts / total).astype("float32")
    path = folder / "logits" / "markus93_densenet40_cifar10.npz"
    with np.load(path) as arrays:
        logits = arrays["logits_test"].astype("float32")
    first = np.stack(
        [rng.multivariate_hypergeometric(c, c.sum() // 2) for c in counts]
    )
    half = (first / first.sum(axis=-1, keepdims=True)).astype("float32")
    of_logits = {"from_logits": True}
    yield markdown_table(
        ["predictions, labels", *TABLE],
        [
            _row("shares, class ids", ids, share, "classes"),
            _row("shares, shares as classes", share, share, "classes"),
            _row("shares, votes", counts, share, "votes"),
            _row("half, other half", counts - first, half, "votes"),
            _row("DenseNet-40, class ids", ids, logits, "classes", **of_logits),
            _row("DenseNet-40, votes", counts, logits, "votes", **of_logits),
        ],
    )
    confidence, kept, highest = share.max(axis=-1), 0, []
    for _ in range(_NUM_DRAWS.value):
        drawn = rng.binomial(total[:, 0], confidence) / total[:, 0]
        low, high = error_interval(sums_of(confidence, drawn))
        kept += low == 0.0
        highest.append(high)
    yield (
        f"Of {_NUM_DRAWS.value} sets of votes drawn anew from the shares, "
        f"{kept / _NUM_DRAWS.value:.1%} have an interval that starts at 0; it "
        f"ends at {np.mean(highest):.4f} on average."
    )
    half = rng.permutation(len(ids)) < len(ids) // 2
    rows, tests = [], []
    classes = [kc.TemperatureScaling, kc.VectorScaling]
    classes.append(kc.EnsembleTemperatureScaling)
    for name, labels in (("class ids", ids), ("shares", share)):
        for cls in classes:
            outputs = cls().fit(labels[half], logits[half])(logits[~half])
            outputs = keras.ops.convert_to_numpy(outputs)
            votes = {"votes": True, **of_logits}
            rows.append(
                [
                    f"{cls.__name__}, {name}",
                    f"{kc.nll(counts[~half], outputs, **votes):.4f}",
                    f"{kc.ece(counts[~half], outputs, **votes):.4f}",
                    f"{kc.nll(ids[~half], outputs, **of_logits):.4f}",
                    f"{kc.ece(ids[~half], outputs, **of_logits):.4f}",
                ]
            )
            tests.append([rows[-1][0]])
            for statistic in TESTS:
                test = kc.functional.calibration_test(
                    counts[~half], outputs, statistic=statistic, **votes
                )
                tests[-1].append(f"{test.p_value:.2g}")
    yield markdown_table(
        ["fit, on 5,000 images", "NLL, votes", "ECE, votes", "NLL", "ECE"],
        rows,
    )
    yield "P-values of `calibration_test` on the votes of the other 5,000:"
    yield markdown_table(["fit, on 5,000 images", *TESTS], tests)


def main(_):
    rng = np.random.default_rng(_SEED.value)
    parts = [
        f"95 % intervals, seed {_SEED.value}. {machine()}.",
        f"Binned errors, {_NUM_DRAWS.value} draws a row:",
        markdown_table(
            ["annotators", "N", "votes", "metric", "coverage", "mean width"]
            + ["width to classes"],
            coverage_of_bins(rng),
        ),
        f"Other metrics, annotators apart, gap 0.05, "
        f"{max(_NUM_DRAWS.value // 2, 1)} draws a row:",
        markdown_table(
            ["N", "votes", "metric", "coverage", "mean width"],
            coverage_of_means(rng),
        ),
    ]
    parts += [
        "Share of rejections at the level of 5 %, 50 votes for each sample, "
        f"{2 * _NUM_DRAWS.value} draws a row:",
        markdown_table(
            ["annotators", "N", *TESTS]
            + ["spiegelhalter, one vote each", "independent"],
            rejections(np.random.default_rng(_SEED.value)),
        ),
    ]
    if _DATA.value:
        parts.append("CIFAR-10H, 10,000 images with 47 to 63 votes each:")
        parts += cifar10h(Path(_DATA.value), rng)
    publish("\n\n".join(parts), _OUT.value)


if __name__ == "__main__":
    app.run(main)

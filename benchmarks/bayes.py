r"""Posteriors beside point estimates, with few held-out samples.

    python benchmarks/bayes.py --data_dir=DIR --out=benchmarks/results/bayes.md

`DIR` holds files NAME.npz of published predictions: `probs` and `labels`, or
`logits_val`, `labels_val`, `logits_test` and `labels_test`. Calibrators are
fitted on n samples drawn at random and measured on all others. A second table
has the coverage of credible intervals where the true probabilities are known.
It stops at the first seed that begins after `--minutes`.
"""

import argparse
import time
import warnings
from pathlib import Path

import keras
import numpy as np
from reporting import machine, markdown_table, publish

import keras_calib as kc

SETS = {
    "DenseNet-40": "markus93_densenet40_cifar10",
    "ResNet-18": "widmann19_cifar10_resnet18",
    "20 Newsgroups": "cleanlab_20news_xval",
}
SIZES = (50, 100, 300, 1000)
METHODS = {
    "temperature": kc.TemperatureScaling,
    "structured vector": kc.StructuredVectorScaling,
    "structured matrix": kc.StructuredMatrixScaling,
    "Gaussian process": kc.GaussianProcessCalibration,
}
# Classes, and samples that the intervals are for.
K, OTHERS = 4, 2000


def softmax(logits):
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def predictions(path):
    """Labels and logits of a file."""
    data = np.load(path)
    if "probs" in data:
        return data["labels"], np.log(np.maximum(data["probs"], 1e-37))
    parts = ("val", "test")
    labels = np.concatenate([data[f"labels_{part}"] for part in parts])
    logits = np.concatenate([data[f"logits_{part}"] for part in parts])
    return labels, logits


def fitted(make, labels, logits):
    """The calibrator, and the seconds that its fit took."""
    start = time.perf_counter()
    # Few samples lack some classes.
    calibrator = make().fit(labels, logits, num_folds=0, force=True)
    return calibrator, time.perf_counter() - start


def held_out(labels, logits, num, seed):
    """NLL of each method on what it was not fitted to, and seconds."""
    order = np.random.default_rng(seed).permutation(len(labels))
    inside, outside = order[:num], order[num:]
    losses, seconds = {}, {}
    for name, make in METHODS.items():
        calibrator, seconds[name] = fitted(make, labels[inside], logits[inside])
        repaired = np.concatenate(
            [
                keras.ops.convert_to_numpy(calibrator(logits[rows]))
                for rows in np.array_split(outside, 8)
            ]
        )
        losses[name] = kc.nll(labels[outside], repaired, from_logits=True)
    return losses, seconds


def worlds(rng, num):
    """Logits, and the true probabilities in three worlds."""
    logits = 3.0 * rng.normal(size=(num, K))
    half = logits / 2.0
    noisy = 0.9 * softmax(half) + 0.1 / K
    shifted = softmax(half * [0.8, 1.0, 1.0, 1.2] + [0.3, 0.0, 0.0, -0.3])
    return logits, {
        "a temperature is right": softmax(half),
        "classes differ": shifted,
        "a tenth of the labels is noise": noisy,
    }


def coverage(num, seed):
    """Share of true probabilities inside an interval, and its width."""
    rng = np.random.default_rng(seed)
    logits, true = worlds(rng, num + OTHERS)
    logits = logits.astype("float32")
    found = {}
    for world, probs in true.items():
        labels = (probs.cumsum(-1) < rng.uniform(size=(len(probs), 1))).sum(-1)
        labels = np.minimum(labels, K - 1)
        calibrator, _ = fitted(
            kc.GaussianProcessCalibration, labels[:num], logits[:num]
        )
        lower, upper = calibrator.credible_interval(logits[num:])
        inside = (lower <= probs[num:]) & (probs[num:] <= upper)
        found[world] = inside.mean(), (upper - lower).mean()
    return found


def mean_of(values, key, digits):
    return f"{np.mean([row[key] for row in values]):.{digits}f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    folder = Path(options.data_dir)
    data = {k: predictions(folder / f"{v}.npz") for k, v in SETS.items()}
    losses, seconds, intervals = [], [], []
    start = time.monotonic()
    for seed in range(options.seeds):
        if seed and time.monotonic() - start > 60.0 * options.minutes:
            break
        losses.append({})
        seconds.append({})
        for name, (labels, logits) in data.items():
            for num in SIZES:
                loss, took = held_out(labels, logits, num, seed)
                losses[-1] |= {(name, num, k): v for k, v in loss.items()}
                seconds[-1] |= {(name, num, k): v for k, v in took.items()}
        intervals.append({})
        for num in (100, 1000):
            found = coverage(num, seed)
            intervals[-1] |= {(num, k): v for k, v in found.items()}
        print(f"seed {seed}: {time.monotonic() - start:.0f} s", flush=True)
        publish(report(losses, seconds, intervals), options.out)


def report(losses, seconds, intervals):
    rows = [
        [name, num, *(mean_of(losses, (name, num, k), 4) for k in METHODS)]
        for name in SETS
        for num in SIZES
    ]
    # The first fit of a process traces its graph.
    times = [
        [k, *(_typical(seconds, "DenseNet-40", num, k) for num in SIZES)]
        for k in METHODS
    ]
    covered = [
        [
            world,
            num,
            f"{mean_of(shares, (num, world), 3)} "
            f"({mean_of(widths, (num, world), 3)})",
        ]
        for shares, widths in [_shares_and_widths(intervals)]
        for world in worlds(np.random.default_rng(0), 1)[1]
        for num in (100, 1000)
    ]
    return "\n\n".join(
        [
            "# Posteriors beside point estimates",
            f"NLL on all samples that a calibrator was not fitted to: mean "
            f"over {len(losses)} random choices of n held-out samples.",
            markdown_table(["predictions", "n", *METHODS], rows),
            "Median seconds of a fit, DenseNet-40:",
            markdown_table(["", *(f"n = {n}" for n in SIZES)], times),
            "Share of the true probabilities inside the 95% credible "
            f"interval, and its mean width in brackets: {K} classes, "
            f"{OTHERS} further samples, mean over {len(intervals)} fits.",
            markdown_table(["world", "n", "Gaussian process"], covered),
            f"Machine: {machine()}",
        ]
    )


def _typical(seconds, name, num, method):
    return f"{np.median([row[name, num, method] for row in seconds]):.2f}"


def _shares_and_widths(intervals):
    return [
        [{k: v[i] for k, v in row.items()} for row in intervals] for i in (0, 1)
    ]


if __name__ == "__main__":
    main()

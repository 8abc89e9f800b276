r"""Held-out quality and time of calibrators, on published predictions.

Calibrators of this library, probmetrics, netcal and scikit-learn are fitted on
a random half of each data set and measured on the other half.

    pip install "torch==2.13.0"  # newer wheels bring gigabytes for GPUs
    pip install -e ".[examples,bench]"
    python benchmarks/posthoc.py --logits=DIR \
        --out=benchmarks/results/posthoc.md

With `--two_classes`, classes 0 and 1, 3 and 5, and 0 and 3 against the rest of
each set are problems of their own. DIR has files .npz of `labels` and `probs`
or `logits`, or of `labels_test` and `logits_test`. NLL is clipped at
p = 1e-15, as in published tables. A win is a lower held-out NLL than another
contender on the same half; equal to 1e-6 is half a win. A contender whose first
fit takes longer than `--slow` seconds is fitted on the first `--few` halves of
a set, one that takes longer than `--longest` on that half alone; wins count
where both were fitted. `--samples` also fits on so many samples, and measures
on all others.
"""

import importlib.metadata
import time
import warnings
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
from absl import app, flags
from calibrator_contenders import CONTENDERS, of_probabilities, ours
from reporting import machine, markdown_table, publish
from scipy.special import logsumexp

import keras_calib

_LOGITS = flags.DEFINE_string("logits", None, "Folder of predictions.")
_ONLY = flags.DEFINE_string("only", "", "Sets whose names contain this.")
_HALVES = flags.DEFINE_integer("halves", 10, "Random halves of each set.")
_FEW = flags.DEFINE_integer("few", 2, "Halves for slow contenders.")
_SLOW = flags.DEFINE_float("slow", 2.0, "Seconds that are slow.")
_LONGEST = flags.DEFINE_float("longest", 10.0, "Seconds that are very slow.")
_SAMPLES = flags.DEFINE_multi_integer(
    "samples", [50, 100, 300, 1000], "Sizes of small fits."
)
_SKIP = flags.DEFINE_multi_string(
    "skip",
    [],
    "Contenders to leave out.",
)
_TWO_CLASSES = flags.DEFINE_bool(
    "two_classes", False, "Four two-class problems made of each set instead."
)
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")
flags.mark_flag_as_required("logits")

_PEERS = ("netcal", "scikit-learn", "probmetrics", "torch")
_OURS, _NONE = "keras_calib", "none"
# Classical forms with the ridge that they have by default.
_RIDGE = {
    "vector, ridge": keras_calib.VectorScaling,
    "matrix, ridge": keras_calib.MatrixScaling,
    "Dirichlet, ridge": keras_calib.DirichletCalibration,
}
# What the other libraries do not have, or not for many classes.
_OTHERS = {
    "affine": keras_calib.AffineScaling,
    "quadratic": keras_calib.QuadraticScaling,
    "parametrized temperature": keras_calib.ParametrizedTemperatureScaling,
    "Venn-Abers": keras_calib.VennAbers,
    "isotonic, min_prob": partial(
        keras_calib.IsotonicCalibration, min_prob=1e-3
    ),
}
# Contenders for two classes alone.
_OF_TWO = {
    f"probmetrics, {kind}": of_probabilities(
        "BinaryLogisticCalibrator", type=kind
    )
    for kind in ("affine", "quadratic")
}
_BASE = f"{_OURS}, temperature"
_EQUAL = 1e-6
_CLIP = 1e-15


def contenders():
    """Every contender, by a name that has its library and its method."""
    found = {_NONE: lambda labels, logits: lambda z: (z, True)}
    for method, libraries in CONTENDERS.items():
        for name, fit in libraries.items():
            # Another optimiser of a problem that is there already.
            library, _, kind = name.partition(", ")
            name = f"{library}, {kind or method}"
            if not name.startswith("(") and name not in _SKIP.value:
                found[name] = fit
    for name, make in (_RIDGE | _OTHERS).items():
        found[f"{_OURS}, {name}"] = ours(make)
    found[f"{_OURS}, chosen"] = chosen
    return found


def chosen(labels, logits):
    """What the library chooses by itself; its time is that of the choice."""
    calibrator = keras_calib.choose_calibrator(labels, logits).calibrator
    return lambda z: (np.asarray(calibrator(z)), True)


def load(path):
    """Labels and logits of a file, or None without rows of all classes."""
    with np.load(path) as file:
        data = dict(file)
    if "confidence" in data:
        return None
    if "logits_test" in data:
        return data["labels_test"].reshape(-1).astype("int64"), data[
            "logits_test"
        ]
    labels = data["labels"].reshape(-1).astype("int64")
    if "logits" in data:
        return labels, data["logits"]
    return labels, np.log(np.maximum(data["probs"], 1e-30)).astype("float32")


def two_classes(title, labels, logits):
    """Two classes against each other, and one against the rest."""
    for one, other in ((0, 1), (3, 5)):
        rows = (labels == one) | (labels == other)
        pair = logits[rows][:, [one, other]]
        yield f"{title}, {one} or {other}", (labels[rows] == other) * 1, pair
    for one in (0, 3):
        rest = logsumexp(np.delete(logits, one, axis=1), axis=1)
        pair = np.stack([rest, logits[:, one]], axis=-1)
        yield f"{title}, {one} or not", (labels == one) * 1, pair


def measures(labels, outputs, from_logits):
    how = {"from_logits": from_logits}
    return {
        "nll": keras_calib.nll(labels, outputs, clip=_CLIP, **how),
        "ece": keras_calib.ece(labels, outputs, **how),
        "accuracy": float(np.mean(outputs.argmax(axis=-1) == labels)),
    }


def run(fit, labels, logits, inside):
    """Measures on the samples outside, and seconds of the fit inside."""
    start = time.perf_counter()
    predict = fit(labels[inside], logits[inside])
    took = time.perf_counter() - start
    outputs, from_logits = predict(logits[~inside])
    if not from_logits:
        # Some rows of peers do not sum to 1, or are all 0.
        outputs = np.asarray(outputs, "float64") + 1e-37
        outputs = outputs / outputs.sum(axis=-1, keepdims=True)
    return {**measures(labels[~inside], outputs, from_logits), "s": took}


def drawn(size, count, seed):
    """A mask of random samples."""
    mask = np.zeros(size, bool)
    mask[np.random.default_rng(seed).permutation(size)[:count]] = True
    return mask


def half_results(fits, labels, logits):
    """Measures by contender and half."""
    found, failed = defaultdict(dict), {}
    for half in range(_HALVES.value):
        inside = drawn(len(labels), len(labels) // 2, half)
        for name, fit in fits.items():
            took = [x["s"] for x in found[name].values()]
            first = max(took, default=0.0) if len(took) < 2 else min(took)
            most = _HALVES.value
            if first > _SLOW.value:
                most = 1 if first > _LONGEST.value else _FEW.value
            if name in failed or half >= most:
                continue
            try:
                found[name][half] = run(fit, labels, logits, inside)
            except Exception as error:  # a peer may not know this case
                failed[name] = f"{type(error).__name__}: {error}"[:80]
    return {k: v for k, v in found.items() if v}, failed


def summary(results):
    """A row for each contender, over all sets."""
    names = sorted({name for found in results.values() for name in found})
    wins, games, rows = defaultdict(float), defaultdict(int), {}
    for found in results.values():
        for one, other in ((a, b) for a in found for b in found if a != b):
            for half in {*found[one]} & {*found[other]}:
                gap = found[one][half]["nll"] - found[other][half]["nll"]
                games[one] += 1
                wins[one] += 0.5 if abs(gap) <= _EQUAL else float(gap < 0)
    for name in names:
        parts = defaultdict(list)
        for found in results.values():
            if name not in found:
                continue
            mine = found[name]
            parts["halves"].append(len(mine))
            for key, base in (("nll", _BASE), ("accuracy", _NONE)):
                parts[key].append(
                    np.mean(
                        [x[key] - found[base][h][key] for h, x in mine.items()]
                    )
                )
            parts["ece"].append(np.mean([x["ece"] for x in mine.values()]))
            parts["s"].append(np.median([x["s"] for x in mine.values()]))
        better = np.sum(np.array(parts["nll"]) < -_EQUAL)
        rows[name] = [
            name,
            f"{100 * wins[name] / max(1, games[name]):.0f} %",
            f"{np.mean(parts['nll']):+.4f}",
            f"{better} of {len(parts['nll'])}",
            f"{np.mean(parts['ece']):.4f}",
            f"{100 * np.mean(parts['accuracy']):+.2f}",
            f"{np.exp(np.mean(np.log(np.maximum(parts['s'], 1e-6)))):.3g}",
            f"{sum(parts['halves'])}",
        ]
    order = sorted(names, key=lambda name: -wins[name] / max(1, games[name]))
    header = [
        "contender",
        "wins",
        "NLL less temperature",
        "sets below temperature",
        "ECE",
        "accuracy less none, points",
        "s",
        "fits",
    ]
    return markdown_table(header, [rows[name] for name in order])


def by_set(results, names):
    """Mean held-out NLL of some contenders on each set."""
    rows = []
    for title, found in results.items():
        values = [
            np.mean([x["nll"] for x in found[name].values()])
            if name in found
            else np.nan
            for name in names
        ]
        least = np.nanmin(values)
        texts = [f"{v:.4f}" for v in values]
        rows.append(
            [title]
            + [
                f"**{text}**" if value == least else text
                for text, value in zip(texts, values, strict=True)
            ]
        )
    heads = [name.removeprefix(f"{_OURS}, ") for name in names]
    return markdown_table(["set", *heads], rows)


def small_fits(sets, fits):
    """Mean difference of the NLL to that of a temperature, by size of fit."""
    rows = {name: [name] for name in fits if name != _BASE}
    for count in _SAMPLES.value:
        gaps = defaultdict(list)
        for labels, logits in sets.values():
            for seed in range(_HALVES.value):
                inside = drawn(len(labels), count, seed)
                if len(np.unique(labels[inside])) < 2:
                    continue
                found = {}
                for name, fit in fits.items():
                    try:
                        found[name] = run(fit, labels, logits, inside)["nll"]
                    except Exception:  # too few for this contender
                        continue
                for name in found:
                    gaps[name].append(found[name] - found[_BASE])
        for name, row in rows.items():
            values = gaps[name]
            if not values:
                row.append("")
                continue
            lower = np.mean(np.array(values) < -_EQUAL)
            row.append(f"{np.mean(values):+.4f} ({100 * lower:.0f} %)")
    header = ["contender", *(f"n = {count}" for count in _SAMPLES.value)]
    return markdown_table(header, rows.values())


def main(_):
    warnings.simplefilter("ignore")
    paths = sorted(Path(_LOGITS.value).glob("*.npz"))
    sets = {
        path.stem: data
        for path in paths
        if _ONLY.value in path.stem and (data := load(path)) is not None
    }
    if _TWO_CLASSES.value:
        sets = {
            name: (labels, pair)
            for title, data in sets.items()
            for name, labels, pair in two_classes(title, *data)
        }
    fits, results = contenders(), {}
    if _TWO_CLASSES.value:
        fits |= _OF_TWO
    failures = []
    for title, (labels, logits) in sets.items():
        start = time.perf_counter()
        results[title], failed = half_results(fits, labels, logits)
        failures += [[title, name, why] for name, why in failed.items()]
        print(f"{title}: {time.perf_counter() - start:.0f} s", flush=True)
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in _PEERS
    )
    ours = [name for name in fits if name.startswith(_OURS) or name == _NONE]
    parts = [
        f"{machine()}; {versions}.",
        f"{len(sets)} sets, {_HALVES.value} random halves each. `wins`: share "
        "of the other contenders with a higher held-out NLL. NLL and accuracy: "
        "mean difference over sets; ECE: mean over sets, 15 equal-width bins; "
        "s: geometric mean over sets of the median seconds of a fit.",
        summary(results),
        "Held-out NLL by set, the least of this library in bold:",
        by_set(results, ours),
    ]
    if _SAMPLES.value:
        # Peers that take seconds for thousands of samples stay out.
        fast = {
            name: fit
            for name, fit in fits.items()
            if name.startswith(_OURS)
            or all(
                np.median([x["s"] for x in found[name].values()]) < _SLOW.value
                for found in results.values()
                if name in found
            )
        }
        parts += [
            "Fits to n samples, measured on all others: mean NLL less that of "
            f"`{_BASE}`, and the share of fits that are below it:",
            small_fits(sets, fast),
        ]
    if failures:
        header = ["set", "contender", "error"]
        parts += ["Failed:", markdown_table(header, failures)]
    publish("\n\n".join(parts), _OUT.value)


if __name__ == "__main__":
    app.run(main)

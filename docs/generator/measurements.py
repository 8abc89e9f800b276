"""What was measured of methods: tables from `benchmarks/results`."""

import csv
import re

import numpy as np
from locations import ROOT
from scipy.stats import t

_RESULTS = ROOT / "benchmarks" / "results"
# Trainings with cross entropy beside them. Sweeps of one seed are in the page
# of results alone.
_RUNS = (
    "label_relaxation",
    "fashion_mnist_selection",
    "fashion_mnist_strength",
    "newsgroups20",
    "camvid",
    "camvid_losses",
    "cifar10_small_resnet",
    "cifar10",
    "detection",
    "objectness",
    "noisy_digits",
    "digits_ensembles",
    "digits_calibrators",
    "scenes_calibrators",
)
_NOISY_DIGITS = "[Noisy digits](../training.md#measured-on-noisy-digits)"
_SETUPS = {
    "camvid_80x60": "CamVid, 80 x 60, 15 epochs",
    "camvid_deeplabv3plus_small": "CamVid",
    "cifar10_resnet20_cpu": "CIFAR-10, ResNet-20",
    "cifar10_small_resnet": "CIFAR-10, small network",
    "digits_dropout": "[Digits](../training.md"
    "#monte-carlo-dropout-and-deep-ensembles), dropout 0.5",
    "fashion_mnist_dense": "Fashion-MNIST",
    "fashion_mnist_dense_short": "Fashion-MNIST, 12 epochs",
    "mnist_dense": "MNIST",
    "newsgroups20": "20 Newsgroups",
    "noisy_digits_10": _NOISY_DIGITS,
    "noisy_digits_2": f"{_NOISY_DIGITS} in two classes",
    "noisy_scenes": "Noisy scenes, pixels",
    "objectness_tiny_imagenet_boxes": "Tiny-ImageNet, 16 classes",
    "tiny_imagenet_boxes_small": "Tiny-ImageNet, before detection",
}
_TUNED = {"accuracy": "by accuracy", "ece": "by ECE"}
# What each set-up calls a network that was trained on cross entropy alone.
_BASES = ("cross_entropy", "cross entropy", "hard labels", "network")
_MEASURES = ("ece", "accuracy", "aurc")
# Hyperparameters that are chosen, not what a method is.
_CHOSEN = ("alpha", "beta", "gamma", "held_out", "margin", "rho", "strength")
_RUNS_LINK = "[runs](../repository/benchmarks/results/runs/index.md)"
_ABOUT_INTERVALS = (
    "Each change is a mean over pairs of runs with the same seed, with its "
    "95 % interval by a t-test of pairs. It is bold if the interval leaves "
    "out 0; of many rows, some are bold by chance. Rows of one seed have no "
    "interval. [The results](../results.md) correct the claims of papers for "
    "the number of tests."
)


def effects_of_loss(methods, beside="cross entropy"):
    """Differences to cross entropy on the same seeds.

    Args:
        methods: Names in the runs to what the table calls them.
        beside: What the differences are to.
    """
    rows = []
    for file in _RUNS:
        runs = _read(file)
        for (setup, _), group in _grouped(runs, methods).items():
            base = {
                run["seed"]: run
                for run in runs
                if run["setup"] == setup and _name(run) in _BASES
            }
            pairs = [(base[r["seed"]], r) for r in group if r["seed"] in base]
            first = group[0]
            rows.append(
                [
                    _what(setup, methods[first["method"]], _options(first)),
                    *(_change(pairs, m, m) for m in _MEASURES),
                    _mean([float(run["ece"]) for _, run in pairs]),
                    str(len(pairs)),
                ]
            )
    if not rows:
        return []
    head = ["data, setting", "change of ECE", "of accuracy", "of AURC"]
    head += ["ECE", "seeds"]
    return [
        f"Beside {beside}, on test data, with ECE of 15 bins ({_RUNS_LINK}):",
        "",
        *_table(head, rows),
        "",
        _ABOUT_INTERVALS,
        "",
    ]


def effects_of_calibrator(columns, names):
    """Before and after, on runs and on published predictions."""
    lines = []
    if columns:
        lines += _before_and_after(*columns)
    if names:
        header, rows = next(
            (header, rows)
            for _, header, rows in _tables("calibrators.md")
            if header[:1] == ["calibrator"] and "ECE" in header
        )
        kept = [r for r in rows if r[0] in ("as trained", *names)]
        lines += [
            "On the published predictions of a DenseNet-40 for the 10,000 "
            "test images of CIFAR-10, fitted on 5,000 validation images "
            f"({_link('calibrators.md')}). It is one set of predictions, so "
            "there is no interval:",
            "",
            *_table(header, kept),
            "",
        ]
    return lines


def _before_and_after(before, after):
    """Changes of measures in the same run."""
    measures = ["aurc"] if after == "_norm" else ["ece", "nll", "aurc"]
    titles = {"ece": "ECE", "nll": "NLL", "aurc": "AURC"}
    trained = {"cross_entropy": "cross entropy", "network": "cross entropy"}
    if after == "_norm":
        trained["label_smoothing"] = "label smoothing"
    rows = []
    for file in _RUNS:
        runs = [run for run in _read(file) if run.get(f"aurc{after}")]
        for (setup, name), group in _grouped(runs, trained).items():
            # Trained on a part of the data that other rows have whole.
            part = "held out" if name.endswith("held out") else ""
            label = trained[group[0]["method"]]
            pairs = [(run, run) for run in group]
            rows.append(
                [
                    _what(setup, label, _options(group[0]), part),
                    *(_change(pairs, m + before, m + after) for m in measures),
                    _mean([float(run[measures[0] + before]) for run in group]),
                    str(len(pairs)),
                ]
            )
    head = ["data, trained with"]
    head += [f"change of {titles[m]}" for m in measures]
    head += [f"{titles[measures[0]]} before", "seeds"]
    return [
        "On test data, fitted on held-out data of the same run "
        f"({_RUNS_LINK}):",
        "",
        *_table(head, rows),
        "",
        _ABOUT_INTERVALS,
        "",
    ]


def costs(losses, fits):
    """Time and memory beside cross entropy, and time of fits."""
    lines = []
    # Losses that need axes of space have a file of their own.
    for name in ("losses.md", "losses_pixels.md"):
        own = [
            (shape, row)
            for shape, header, rows in _tables(name)
            for row in rows
            if row[0] in losses
        ]
        if own:
            break
    if own:
        head = ["logits", "loss", "graph", "XLA", "memory, graph and XLA"]
        lines += [
            "Time of value and gradient over that of Keras' cross entropy, "
            "and memory as a multiple of the logits "
            f"({_link(name)}):",
            "",
            *_table(
                head,
                [
                    [shape, r[0], r[2], r[5], f"{r[3]}, {r[6]}"]
                    for shape, r in own
                ],
            ),
            "",
        ]
    _, _, rows = next(_tables("training.md"))
    own = [r for r in rows if r[0] in losses]
    if own:
        lines += [
            "Time of a training step of ResNet-20 on small images over that "
            f"with cross entropy ({_link('training.md')}):",
            "",
            *_table(
                ["method", "ratio", "quartiles"],
                [[row[0], row[3], row[4]] for row in own],
            ),
            "",
        ]
    _, _, rows = next(_tables("calibrators.md"))
    kind, *variant = fits or [""]
    by = ", ".join(["keras_calib", *variant])
    own = [r for r in rows if r[1] == kind and r[2] == by]
    if own:
        lines += [
            f"Time of a fit on a CPU ({_link('calibrators.md')}):",
            "",
            *_table(
                ["samples x classes", "seconds"], [[r[0], r[3]] for r in own]
            ),
            "",
        ]
    return lines


def _grouped(runs, methods):
    """Runs of some methods, by set-up and name."""
    groups = {}
    for run in runs:
        if run["method"] in methods and run["setup"] in _SETUPS:
            groups.setdefault((run["setup"], _name(run)), []).append(run)
    return groups


def _what(setup, *words):
    """Two lines of a cell."""
    second = ", ".join(word for word in words if word)
    return f"{_SETUPS[setup]}<br>{second}".removesuffix("<br>")


def _name(run):
    return run.get("name", run["method"])


def _options(run):
    """Hyperparameters of a run, and by what they were chosen."""
    pairs = [word.partition("=") for word in run["options"].split()]
    words = [
        f"{name.replace('_', ' ')} {value.removesuffix('.0')}"
        for name, _, value in pairs
        if name in _CHOSEN
    ]
    tuned = _TUNED.get(run.get("tuned", ""), "")
    return " ".join(filter(None, [", ".join(words), tuned]))


def _change(pairs, before, after):
    """Mean difference and half of its 95 % interval."""
    gaps = [
        float(second[after]) - float(first[before]) for first, second in pairs
    ]
    text = f"{np.mean(gaps):+.4f}".replace("-", "\N{MINUS SIGN}")
    text = "0.0000" if text.endswith("0.0000") else text
    if len(gaps) == 1:
        return text
    error = np.std(gaps, ddof=1) / np.sqrt(len(gaps))
    half = t.ppf(0.975, len(gaps) - 1) * error
    text = f"{text} ± {half:.4f}"
    return f"**{text}**" if abs(np.mean(gaps)) > half else text


def _mean(values):
    return f"{np.mean(values):.4f}"


def _table(header, rows):
    return [
        f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header))
    ] + [f"| {' | '.join(row)} |" for row in rows]


def _link(name):
    path = f"benchmarks/results/{name}"
    return f"[table](../repository/{path})"


def _read(file):
    path = _RESULTS / "runs" / f"{file}.csv"
    with open(path, newline="", encoding="utf-8") as opened:
        runs = list(csv.DictReader(opened))
    # A run that diverged has no measures.
    return [run for run in runs if run["ece"]]


def _tables(name):
    """Shape in the line before, header and rows of each table of a file."""
    lines = (_RESULTS / name).read_text(encoding="utf-8").splitlines()
    before, table = "", []
    for line in [*lines, ""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            table.append(cells)
        elif table:
            yield before, table[0], table[2:]
            table = []
        elif line:
            shape = re.search(r"\(.*?\)", line)
            before = shape[0] if shape else ""

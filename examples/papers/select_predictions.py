r"""Reject uncertain predictions of trained networks: curves and guarantees.

    python examples/papers/select_predictions.py work/runs/cifar10_resnet20_cpu
    python examples/papers/select_predictions.py RUNS --mixed_with=notmnist

For each run the script prints AURC and the coverage at 1 % and 5 % risk. It
ranks by softmax probability (msp) and by normalised logits. These are centred
(norm), or not (norm_raw), as equation 17 of Xia et al. (2024) is printed. The
orders of the norms, p and p_raw, are chosen on the run's validation
predictions.

It also prints the coverage and risk of a threshold that was chosen on these
predictions. With a probability of at most --delta its risk is above --risk.
This guarantee does not hold for pixels, which are not independent, or if
training used these data.

--mixed_with names predictions of evaluate.py on shifted data, such as
imagenet_sketch, or on other classes. The script prints the AURC of the test
data and these together, and the share of errors among the 10 % with the highest
scores, by origin. With --votes, CIFAR-10H, it shows how label smoothing pulls
at logits by the probability of an error.

--out gets selection.csv, risk_coverage.png of the first seed, and mixture.png.
This shows the risk of the mixture against coverage, and the errors among its
highest scores, as means over seeds. (A module called select would hide
Python's own.)
"""

import csv
from pathlib import Path

import matplotlib as mpl
from absl import app, flags
from config.script import start
from results.mixtures import draw_mixtures, mixed
from results.runs import read_predictions, read_row, repairable_runs
from results.selections import (
    curves_of,
    guarantee,
    imbalance,
    key_of,
    names_of,
    read_votes,
    selection_row,
)

import keras_calib

_RISK = flags.DEFINE_float("risk", 0.05, "Largest risk that is guaranteed.")
_DELTA = flags.DEFINE_float(
    "delta", 0.05, "Probability that the guarantee may fail."
)
_MIXED = flags.DEFINE_string(
    "mixed_with", None, "Names of predictions of evaluate.py to mix in."
)
_VOTES = flags.DEFINE_string("votes", None, "File of CIFAR-10H's votes.")
_ALPHA = flags.DEFINE_float(
    "alpha", 0.1, "Strength of label smoothing, for --votes."
)
_OUT = flags.DEFINE_string("out", "work/selection", "Folder for results.")


def select(folder):
    """One line of the table."""
    row = read_row(folder)
    names = ("setup", "method", "options", "seed", "accuracy")
    found = {name: row[name] for name in names}
    found |= selection_row(folder)
    delta, coverage, risk = guarantee(folder, _RISK.value, _DELTA.value)
    found |= {"delta": delta, "chosen_coverage": coverage, "chosen_risk": risk}
    return found


def select_mixed(folders):
    """Lines of the table with what is of the mixture too, and its picture."""
    name = f"{_MIXED.value}_predictions.npz"
    missing = [str(run) for run in folders if not (run / name).is_file()]
    if missing:
        raise app.UsageError(
            "`--mixed_with` must name predictions that evaluate.py made of "
            f"each run. Received: --mixed_with={_MIXED.value}, not in {missing}"
        )
    rows, runs = [], {}
    for folder in folders:
        row, curves = mixed(folder, _MIXED.value)
        rows.append(select(folder) | row)
        runs.setdefault(key_of(folder), []).append((row, curves))
    path = Path(_OUT.value) / "mixture.png"
    draw_mixtures(dict(zip(names_of(runs), runs.values(), strict=True)), path)
    return rows


def write(rows, path):
    """Writes rows with the same names, and prints them."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print("  ".join(f"{name}={_text(x)}" for name, x in row.items()))
    print(f"Written to {path}\n")


def main(argv):
    mpl.use("Agg")
    folders = repairable_runs(argv[1:])
    out = Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    if _MIXED.value is None:
        rows = [select(folder) for folder in folders]
    else:
        rows = select_mixed(folders)
    write(rows, out / "selection.csv")
    if _VOTES.value is not None:
        rows = []
        for folder in folders:
            labels, _ = read_predictions(folder, "test")
            votes = read_votes(_VOTES.value, labels)
            row = read_row(folder)
            names = {name: row[name] for name in ("setup", "method", "options")}
            names |= {"run": folder.name, "alpha": _ALPHA.value}
            rows += [
                {**names, **bin_row}
                for bin_row in imbalance(folder, votes, _ALPHA.value)
            ]
        write(rows, out / "imbalance.csv")
    first = [folder for folder in folders if folder.name == "seed0"]
    labels, logits = curves_of(first or folders[:1])
    models = {
        name: keras_calib.Predictions(labels, own, from_logits=True)
        for name, own in logits.items()
    }
    display = keras_calib.RiskCoverageDisplay(models).plot()
    display.figure_.savefig(out / "risk_coverage.png", dpi=150)


def _text(value):
    return f"{value:.4f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    start(main)

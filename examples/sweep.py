r"""Chooses hyperparameters on held-out data, then trains anew with them.

    python examples/sweep.py --data_dir=DIR --seeds=3 --resample \
        --flagfile=examples/recipes/setups/mnist_dense.flags \
        --flagfile=examples/recipes/losses/label_relaxation.flags \
        --flagfile=examples/recipes/sweeps/label_relaxation.flags

is Label Relaxation's protocol: each value of the grid is trained on what
--validation leaves and judged on the rest, by accuracy and by ECE; the best by
each is trained on all training data, for each seed on data drawn anew from
training and test data: of other seeds than the first, test data were among
those that hyperparameters were chosen on, as in the paper. --hold_out keeps a
share back from the end, to fit a temperature on. Without a grid, the seeds
alone, by default with the validation data of the set-up. The grid is written to
grid.csv (a value with which training diverged is shown as such), runs as
train_classifier.py writes them; compare.py makes one table of many. After a
kill, add --resume: runs that are done are not trained again.
"""

import csv
import itertools
import shutil
from pathlib import Path

import keras
import recipe_flags
from absl import app
from absl import flags
from absl import logging
from run_results import find_runs
from run_results import read_row
from run_results import write_row
from runs import needs_validation
from sweep_tasks import apply_cell
from sweep_tasks import chosen
from sweep_tasks import make_task
from sweep_tasks import parse_axis
from sweep_tasks import read_sets
from sweep_tasks import run_once
from sweep_tasks import shortened

recipe_flags.define()
_GRID = flags.DEFINE_multi_string(
    "grid", [], "An axis: margin=6,8 or loss_option.alpha=0.1,0.2."
)
_TUNE_FOR = flags.DEFINE_list("tune_for", ["accuracy", "ece"], "By what.")
_TUNE_EPOCHS = flags.DEFINE_float("tune_epochs", 1.0, "Share of the epochs.")
_TUNE_SEEDS = flags.DEFINE_integer("tune_seeds", 1, "Of each grid value.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Of the chosen values.")
_RESAMPLE = flags.DEFINE_bool("resample", False, "New splits for each seed.")
_HOLD_OUT = flags.DEFINE_float(
    "hold_out",
    None,
    "Validation data of the training at the end; by default none after a grid, "
    "else those of the set-up.",
)


def tune(sets, setup, method, options, folder):
    """Trains each cell of the grid; rows of measures on validation data."""
    axes = [parse_axis(text) for text in _GRID.value]
    short = shortened(setup, _TUNE_EPOCHS.value)
    rows = []
    for values in itertools.product(*(values for _, values in axes)):
        cell = dict(zip((name for name, _ in axes), values, strict=True))
        for seed in range(_TUNE_SEEDS.value):
            setup_, method_ = apply_cell(cell, short, method)
            options_ = options._replace(seed=seed, export=False)
            task = make_task(
                sets, setup_, method_, options_, resample=_RESAMPLE.value
            )
            task = task._replace(test=task.validation)
            if not needs_validation(setup_, method_):
                task = task._replace(validation=None)
            title = "_".join(f"{name}_{v}" for name, v in cell.items())
            row = run_once(
                task,
                setup_,
                method_,
                options_,
                folder / title / f"seed{seed}",
                tuned="grid",
            )
            rows.append({**cell, **row})
            print({**cell, "accuracy": row.get("accuracy"), **_ece(row)})
    return rows


def train(sets, setup, method, options, folder, tuned):
    """Trains the chosen values for each seed."""
    if _HOLD_OUT.value is not None or _GRID.value:
        setup = setup._replace(validation=_HOLD_OUT.value or 0.0)
    for seed in range(_SEEDS.value):
        options_ = options._replace(seed=seed, export=options.export)
        task = make_task(sets, setup, method, options_, _RESAMPLE.value)
        row = run_once(
            task,
            setup,
            method,
            options_,
            folder / f"seed{seed}",
            tuned=tuned,
            resampled=_RESAMPLE.value,
        )
        print({"seed": seed, "accuracy": row.get("accuracy"), **_ece(row)})
        keras.backend.clear_session()


def _ece(row):
    return {name: row[name] for name in ("ece", "diverged") if name in row}


def main(_):
    logging.set_verbosity(logging.ERROR)
    setup, method, options = recipe_flags.read()
    sets = read_sets(setup, options)
    root = Path(options.workdir) / setup.setup
    name = method.method + ("_held_out" if _HOLD_OUT.value else "")
    if not _GRID.value:
        train(sets, setup, method, options, root / name, "")
        return
    rows = tune(sets, setup, method, options, root / f"{name}_grid")
    with open(root / f"{name}_grid.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    names = [parse_axis(text)[0] for text in _GRID.value]
    trained = {}
    for measure in _TUNE_FOR.value:
        cell = chosen(rows, names, measure)
        print(f"\nbest by {measure}: {cell}")
        folder = root / f"{name}_{measure}"
        same = trained.setdefault(tuple(cell.values()), folder)
        if same == folder:
            setup_, method_ = apply_cell(cell, setup, method)
            train(sets, setup_, method_, options, folder, measure)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(same, folder)
            for run in find_runs([folder]):
                write_row(run, {**read_row(run), "tuned": measure})


if __name__ == "__main__":
    app.run(main)

r"""Choose hyperparameters on held-out data, then train anew with them.

    python examples/papers/sweep.py --data_dir=DIR --seeds=3 --resample \
        --flagfile=examples/papers/recipes/setups/mnist_dense.flags \
        --flagfile=examples/papers/recipes/losses/label_relaxation.flags \
        --flagfile=examples/papers/recipes/sweeps/label_relaxation.flags

This is the protocol of Label Relaxation. Each value of the grid is trained
without the --validation data, and measured on them by accuracy and by ECE. The
best value by each is then trained on all training data. Each seed draws these
anew from training and test data. So the hyperparameters of all seeds but the
first were chosen on some of their test data, as in the paper.

--hold_out keeps a share of the training data back, to fit a temperature on.
Without a grid, only the seeds are trained, by default with the validation data
of the set-up. The grid is written to grid.csv, which also marks values with
which training diverged. Runs are written as by train_classifier.py, and
compare.py makes one table of many. After a kill, add --resume: finished runs
are not trained again.

    python examples/papers/sweep.py --data_dir=DIR --seeds=3 --every_value \
        --flagfile=examples/papers/recipes/setups/fashion_mnist_dense.flags \
        --flagfile=examples/papers/recipes/losses/label_smoothing.flags \
        --flagfile=examples/papers/recipes/sweeps/label_smoothing_aurc.flags

--every_value chooses none. Each value is trained as the set-up says and
measured on the test data, for trends.py.
"""

import csv
from pathlib import Path

import numpy as np
from absl import app, flags, logging
from config import recipe_flags
from config.script import start
from config.strategies import check_batch_size
from results.runs import measures
from runs.sweeps import (
    Protocol,
    apply_cell,
    cell_name,
    cells,
    chosen,
    copy_runs,
    parse_axis,
    read_sets,
    train,
    tune,
)

recipe_flags.define()
_GRID = flags.DEFINE_multi_string(
    "grid", [], "Axis of the grid: margin=6,8 or loss_option.alpha=0.1,0.2."
)
_TUNE_FOR = flags.DEFINE_list(
    "tune_for", ["accuracy", "ece"], "Measures that choose the hyperparameters."
)
_TUNE_EPOCHS = flags.DEFINE_float(
    "tune_epochs", 1.0, "Share of the epochs that the grid is trained for."
)
_TUNE_SEEDS = flags.DEFINE_integer(
    "tune_seeds", 1, "Number of seeds for each value of the grid."
)
_SEEDS = flags.DEFINE_integer(
    "seeds", 3, "Number of seeds for the chosen values."
)
_RESAMPLE = flags.DEFINE_bool(
    "resample", False, "Draw training and test data anew for each seed."
)
_HOLD_OUT = flags.DEFINE_float(
    "hold_out",
    None,
    "Validation data to hold out in the final training. Defaults to those of "
    "the set-up; after a grid to none, unless they choose the epoch.",
)
_EVERY_VALUE = flags.DEFINE_bool(
    "every_value",
    False,
    "Choose no value: train and test each value of the grid for each seed.",
)


def main(_):
    logging.set_verbosity(logging.ERROR)
    setup, method, options = recipe_flags.read()
    check_batch_size(
        setup.batch_size, options.strategy, options.logical_devices
    )
    protocol = Protocol(
        axes=dict(parse_axis(text) for text in _GRID.value),
        tune_epochs=_TUNE_EPOCHS.value,
        tune_seeds=_TUNE_SEEDS.value,
        seeds=_SEEDS.value,
        resample=_RESAMPLE.value,
        hold_out=_HOLD_OUT.value,
    )
    if _EVERY_VALUE.value and protocol.hold_out is not None:
        raise app.UsageError(
            "`--hold_out` must be left out with --every_value, which holds "
            f"--validation out. Received: --hold_out={protocol.hold_out}"
        )
    sets = read_sets(setup, options)
    root = Path(options.workdir) / setup.setup
    name = method.method + ("_held_out" if protocol.hold_out else "")
    known = measures(np.arange(2), np.eye(2, dtype="float32"))
    unknown = set(_TUNE_FOR.value) - set(known)
    if unknown:
        raise app.UsageError(
            f"`--tune_for` must be some of {', '.join(known)}. "
            f"Received: {', '.join(sorted(unknown))}"
        )
    if _EVERY_VALUE.value or not protocol.axes:
        alone = protocol._replace(axes={})
        for cell in cells(protocol.axes):
            folder = root / "_".join(filter(None, (name, cell_name(cell))))
            recipe = apply_cell(cell, setup, method)
            train(sets, *recipe, options, folder, alone)
        return
    folder = root / f"{method.method}_grid"
    rows = tune(sets, setup, method, options, folder, protocol)
    columns = dict.fromkeys(column for row in rows for column in row)
    with open(root / f"{method.method}_grid.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(columns), restval="")
        writer.writeheader()
        writer.writerows(rows)
    trained = {}
    for measure in _TUNE_FOR.value:
        cell = chosen(rows, list(protocol.axes), measure)
        print(f"\nbest by {measure}: {cell}")
        folder = root / f"{name}_{measure}"
        same = trained.setdefault(tuple(cell.values()), folder)
        if same != folder:
            copy_runs(same, folder, measure)
            continue
        recipe = apply_cell(cell, setup, method)
        train(sets, *recipe, options, folder, protocol, measure)


if __name__ == "__main__":
    start(main)

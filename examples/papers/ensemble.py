r"""Average the predictions of several networks, or of several passes of one.

    python examples/papers/ensemble.py work/runs/cifar10_resnet50 \
        --data_dir=DIR
    python examples/papers/ensemble.py \
        work/runs/tiny_imagenet_resnet50_dropout --passes=20 --data_dir=DIR

The first line makes a deep ensemble of the runs of each method, which differ
only in their seeds. The second predicts --passes times with each run's network,
with new dropout masks for each image (Monte Carlo dropout). Train such a
network with --dropout=0.1. Probabilities are averaged.

The data and the scale of images come from the flags of the runs. These must be
runs on images, made without --noexport. Predictions and results.csv, a row for
compare.py, are written beside the runs, in METHOD+ensemble or
METHOD+mc_dropout. An ensemble has no repaired measures, because the validation
data of one member are training data of another.
"""

from pathlib import Path

from absl import app, flags, logging
from config import recipe_flags
from config.script import start
from results.runs import (
    load_network,
    measures,
    predict,
    read_flags,
    read_row,
    repaired,
    save_predictions,
    usable_runs,
    write_row,
)
from runs.images import image_task

import keras_calib

recipe_flags.define()
_PASSES = flags.DEFINE_integer(
    "passes",
    None,
    "Number of passes of Monte Carlo dropout; without it ensembles are made.",
    lower_bound=1,
)


def ensembles(folders, options):
    """A row for each method that has several runs among the folders.

    Args:
        folders: Folders of runs with their networks.
        options: `Options`; the seed is that of the runs.

    Raises:
        app.UsageError: If no method has two runs, or two of one method do not
            predict the same images.
    """
    methods = {}
    for folder in folders:
        row = read_row(folder)
        key = row["setup"], row["method"], row["options"], folder.parent
        methods.setdefault(key, []).append(folder)
    methods = [found for found in methods.values() if len(found) > 1]
    if not methods:
        raise app.UsageError(
            "Name folders with two runs of a method, whose seeds differ. "
            f"Received: {[str(folder) for folder in folders]}"
        )
    rows = []
    for members in methods:
        if any(read_row(folder).get("resampled") for folder in members):
            raise app.UsageError(
                "Members must be tested on the same images: train them "
                "without --resample. Received: resampled=True of "
                f"{members[0].parent}"
            )
        predictor = keras_calib.DeepEnsemble(
            [load_network(folder) for folder in members], from_logits=True
        )
        task = _task(members[0], options)._replace(validation=None)
        told = f"members={len(members)}"
        rows.append(_written(predictor, task, members[0], "ensemble", told))
    return rows


def mc_dropout(folders, options, passes):
    """A row for each run, of the mean of several passes with dropout.

    Args:
        folders: Folders of runs whose networks have dropout.
        options: `Options`; the seed is that of the run.
        passes: How many.

    Raises:
        app.UsageError: If a network has no dropout.
    """
    rows = []
    for folder in folders:
        network = load_network(folder)
        try:
            predictor = keras_calib.MonteCarloDropout(
                network, passes, per_sample=True, from_logits=True
            )
        except ValueError as error:
            raise app.UsageError(
                "`--passes` needs a network that was trained with dropout, "
                "such as --net=resnet50 --dropout=0.1. "
                f"Received: {folder} ({error})"
            ) from error
        task = _task(folder, options)
        told = f"passes={passes}"
        rows.append(_written(predictor, task, folder, "mc_dropout", told))
    return rows


def _task(folder, options):
    """The data of a run, from its flags."""
    known = read_flags(folder)
    # What flags did not exist yet is as it was by default.
    values = flags.FlagValues()
    recipe_flags.define(values)
    values(["ensemble"])
    setup, method, _ = (
        kind._replace(**{k: known[k] for k in kind._fields if k in known})
        for kind in recipe_flags.read(values)
    )
    recipe_flags.check_task(setup, "classification")
    # A trial with few steps was tested on all.
    seed = known.get("seed", 0)
    return image_task(setup, method, options._replace(seed=seed))


def _written(predictor, task, run, kind, told):
    first = read_row(run)
    method = f"{first['method']}+{kind}"
    folder = Path(run).parents[1] / method / Path(run).name
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for part in ("validation", "test"):
        if getattr(task, part) is not None:
            found[part] = predict(predictor, getattr(task, part))
            save_predictions(folder, part, *found[part])
    row = {
        "setup": first["setup"],
        "method": method,
        "options": " ".join(filter(None, [first["options"], told])),
        "seed": first["seed"],
        "diverged": False,
        **measures(*found["test"]),
    }
    if "validation" in found:
        row |= repaired(found["validation"], found["test"])
    write_row(folder, row)
    return row


def main(argv):
    logging.set_verbosity(logging.ERROR)
    _, _, options = recipe_flags.read()
    folders = usable_runs(argv[1:], "model.keras")
    if _PASSES.value:
        rows = mc_dropout(folders, options, _PASSES.value)
    else:
        rows = ensembles(folders, options)
    for row in rows:
        told = {k: row[k] for k in ("accuracy", "nll", "ece", "aece", "aurc")}
        print(row["setup"], row["method"], f"seed {row['seed']}", told)


if __name__ == "__main__":
    start(main)

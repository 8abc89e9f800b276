"""The parts of `sweep.py`: a grid, the best of it, and training anew."""

import itertools
import shutil
from typing import Any, NamedTuple

import keras
import numpy as np
from absl import app
from config.recipe_flags import literal
from data.images import load_images, resampled, split
from data.large_images import is_large
from data.texts import read_texts
from results.runs import (
    check_flags,
    find_runs,
    read_flags,
    read_row,
    rises,
    write_row,
)

from runs.images import array_task
from runs.texts import text_task
from runs.training import needs_validation, run


class Protocol(NamedTuple):
    """What is repeated; the flags of `sweep.py`.

    Attributes:
        axes: Names of the grid and their values.
        tune_epochs: Share of the epochs that cells are trained for.
        tune_seeds: Seeds of each cell.
        seeds: Seeds of what was chosen.
        resample: Whether each seed draws training and test data anew.
        hold_out: Validation data at the end, or None: after a grid none but
            where training looks at them, else those of the set-up.
    """

    axes: dict[str, list[Any]]
    tune_epochs: float
    tune_seeds: int
    seeds: int
    resample: bool
    hold_out: float | None


def tune(sets, setup, method, options, folder, protocol):
    """Trains each cell of the grid; rows of measures on validation data."""
    if protocol.hold_out == 0 and needs_validation(setup, method):
        raise app.UsageError(
            "`--hold_out` must be above 0 for --keep=best and AdaFocal, "
            "which need validation data. Received: --hold_out=0"
        )
    if not setup.validation:
        raise app.UsageError(
            "`--validation` must be above 0: the held-out data choose among "
            f"the values. Received: --validation={setup.validation}"
        )
    rows = []
    for cell in cells(protocol.axes):
        own_setup, own_method = apply_cell(cell, setup, method)
        recipe = _shortened(own_setup, protocol.tune_epochs), own_method
        for seed in range(protocol.tune_seeds):
            own = options._replace(seed=seed, export=False)
            task = _task(sets, *recipe, own, protocol.resample)
            # The grid never sees the test data.
            task = task._replace(test=task.validation)
            if not needs_validation(*recipe):
                task = task._replace(validation=None)
            place = folder / cell_name(cell) / f"seed{seed}"
            row = _run_once(
                task,
                *recipe,
                own,
                place,
                tuned="grid",
                resampled=protocol.resample,
            )
            rows.append({**cell, **row})
            print({**cell, **_shown(row)})
    return rows


def train(sets, setup, method, options, folder, protocol, tuned=""):
    """Trains the chosen values for each seed."""
    if protocol.hold_out is not None:
        setup = setup._replace(validation=protocol.hold_out)
    elif protocol.axes and not needs_validation(setup, method):
        # The held-out data have chosen: now they can train.
        setup = setup._replace(validation=0.0)
    for seed in range(protocol.seeds):
        own = options._replace(seed=seed)
        row = _run_once(
            _task(sets, setup, method, own, protocol.resample),
            setup,
            method,
            own,
            folder / f"seed{seed}",
            tuned=tuned,
            resampled=protocol.resample,
        )
        print(_shown(row))


def copy_runs(source, folder, measure):
    """Copy runs that are also the best by another measure.

    A run is copied completely, or not at all.

    Args:
        source: Folder of the runs.
        folder: Folder of the copies. Runs of the same flags are replaced.
        measure: The other measure, for the rows of the copies.

    Raises:
        app.UsageError: If `folder` holds a run of other flags.
    """
    for old in find_runs([folder]):
        if read_flags(old) != read_flags(source / old.name):
            raise app.UsageError(
                "Runs must have the flags of those that they replace; choose "
                f"another --workdir, or delete the folder. Received: {old}"
            )
    # Copied beside it and renamed, so that a kill leaves no half of a run.
    part = folder.with_name(f"{folder.name}_part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(source, part)
    for copy in find_runs([part]):
        write_row(copy, {**read_row(copy), "tuned": measure})
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def parse_axis(text):
    """Name and values of `name=value,value`."""
    name, sign, values = text.partition("=")
    if not sign or not values:
        raise app.UsageError(
            f"`--grid` must be name=value,value,... Received: --grid={text}"
        )
    if "(" in values:
        return name, list(literal(f"({values},)"))
    return name, [literal(value) for value in values.split(",")]


def cells(axes):
    """The cells of a grid, each `{name: value}`."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def cell_name(cell):
    """What the folder of a cell is called."""
    return "_".join(f"{name}_{value}" for name, value in cell.items())


def apply_cell(cell, setup, method):
    """Set-up and method with the values of a cell of the grid.

    Args:
        cell: Name to value: a field of the set-up, or `loss_option.alpha`,
            `fidelity_option.gamma`, `model_option.every`.
        setup: A `Setup`.
        method: A `Method`.
    """
    for name, value in cell.items():
        field, _, option = name.partition(".")
        if option and field in (
            "loss_option",
            "fidelity_option",
            "model_option",
        ):
            options = {**getattr(method, field), option: value}
            method = method._replace(**{field: options})
        elif field in setup._fields and not option:
            setup = setup._replace(**{field: value})
        else:
            raise app.UsageError(
                "`--grid` must name a flag of the set-up, or an argument as "
                f"loss_option.alpha. Received: --grid={name}"
            )
    return setup, method


def _shortened(setup, share):
    """The set-up with a share of its epochs, and steps where they then are."""
    if share == 1.0:
        return setup
    return setup._replace(
        epochs=max(1, round(share * setup.epochs)),
        warmup_epochs=round(share * setup.warmup_epochs),
        decay_epochs=[max(1, round(share * e)) for e in setup.decay_epochs],
    )


def chosen(rows, names, measure):
    """The cell with the best mean of a measure over its seeds."""
    cells = {}
    for row in rows:
        values = cells.setdefault(tuple(row[name] for name in names), [])
        values.append(float("nan") if row["diverged"] else row[measure])
    sign = 1.0 if rises(measure) else -1.0
    means = {cell: sign * np.mean(values) for cell, values in cells.items()}
    finite = {cell: mean for cell, mean in means.items() if np.isfinite(mean)}
    if not finite:
        raise RuntimeError(
            "Training diverged for all values of the grid, so lower "
            f"--learning_rate. Received: {list(cells)}"
        )
    return dict(zip(names, max(finite, key=finite.get), strict=True))


def read_sets(setup, options):
    """The data of a set-up, in memory."""
    if setup.task == "text":
        return read_texts(setup, options)
    if setup.task != "classification" or is_large(setup, options):
        raise app.UsageError(
            "`--data` must be texts, or images that fit into memory, to be "
            f"split anew. Received: --data={setup.data}"
        )
    return load_images(setup, options)


def _task(sets, setup, method, options, resample):
    """The task of one seed."""
    if resample or setup.test_share:
        sets = resampled(sets, options.seed, setup.test_share)
    sets = split(
        sets,
        setup.validation,
        stratified=setup.stratified,
        seed=options.seed,
    )
    if setup.task == "text":
        return text_task(sets, setup, options)
    return array_task(sets, setup, method, options)


def _run_once(task, setup, method, options, folder, **extra):
    """A run, or the row of one that was made before with these flags."""
    if options.resume and (folder / "results.csv").is_file():
        resampled = extra["resampled"]
        check_flags(folder, setup, method, options, resampled=resampled)
        return read_row(folder)
    keras.backend.clear_session()
    return run(task, setup, method, options, folder, **extra)


def _shown(row):
    names = ("seed", "accuracy", "ece", "diverged")
    return {name: row[name] for name in names if name in row}

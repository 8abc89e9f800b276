"""Sweeps choose on held-out data, and train anew."""

import csv
import os
import subprocess
import sys

import pytest
from absl import app, flags
from config import recipe_flags
from recipe_cases import PAPERS, RECIPES, ROOT, fake_runs
from results import runs as run_results
from runs import sweeps


def test_the_best_cell_has_the_best_mean():
    chosen = sweeps.chosen
    rows = [
        {"alpha": 0.1, "accuracy": 0.9, "ece": 0.10, "diverged": False},
        {"alpha": 0.1, "accuracy": 0.8, "ece": 0.02, "diverged": False},
        {"alpha": 0.2, "accuracy": 0.8, "ece": 0.03, "diverged": False},
        {"alpha": 0.2, "accuracy": 0.8, "ece": 0.03, "diverged": False},
        {"alpha": 0.3, "accuracy": 1.0, "ece": 0.00, "diverged": False},
        {"alpha": 0.3, "diverged": True},
    ]
    assert chosen(rows, ["alpha"], "accuracy") == {"alpha": 0.1}
    assert chosen(rows, ["alpha"], "ece") == {"alpha": 0.2}
    with pytest.raises(RuntimeError, match="diverged for all values"):
        chosen(rows[-1:], ["alpha"], "ece")
    rows = [
        {"alpha": alpha, "coverage_at_1": alpha, "diverged": False}
        for alpha in (0.1, 0.2)
    ]
    assert chosen(rows, ["alpha"], "coverage_at_1") == {"alpha": 0.2}


def test_an_axis_may_have_tuples():
    parse_axis = sweeps.parse_axis
    assert parse_axis("margin=6,8") == ("margin", [6, 8])
    name, values = parse_axis("loss_option.gammas=((0.2,5.0),(1,3)),((1,2),)")
    assert values == [((0.2, 5.0), (1, 3)), ((1, 2),)]


def script(name, *arguments):
    done = subprocess.run(
        [sys.executable, PAPERS / f"{name}.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_a_sweep_chooses_trains_and_is_compared(tmp_path):
    common = [
        "--epochs=2",
        "--steps_per_epoch=2",
        "--seeds=1",
        "--verbose=0",
        "--noexport",
        "--resample",
        "--strategy=mirrored",
        "--logical_devices=2",
        "--setup=few",
        f"--workdir={tmp_path}/runs",
    ]
    script(
        "sweep",
        *common,
        "--method=focal",
        "--loss=FocalLoss",
        "--grid=loss_option.gamma=1,5",
        "--tune_epochs=0.5",
    )
    with open(tmp_path / "runs" / "few" / "focal_grid.csv") as file:
        grid = list(csv.DictReader(file))
    assert [row["loss_option.gamma"] for row in grid] == ["1", "5"]
    assert {row["epochs"] for row in grid} == {"1"}
    out = script("compare", f"{tmp_path}/runs", f"--out={tmp_path}/out")
    for name in ("focal (accuracy)", "focal (ece)"):
        assert f"| {name} | 1 |" in out
    with open(tmp_path / "out" / "runs.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["tuned"] for row in rows} == {"accuracy", "ece"}
    assert {row["epochs"] for row in rows} == {"2"}


@pytest.mark.slow
def test_every_value_is_trained_and_stands_in_the_table(tmp_path):
    script(
        "sweep",
        "--epochs=1",
        "--steps_per_epoch=2",
        "--seeds=1",
        "--verbose=0",
        "--noexport",
        "--setup=few",
        f"--workdir={tmp_path}",
        f"--flagfile={RECIPES / 'losses' / 'label_smoothing'}.flags",
        "--grid=loss_option.alpha=0.4,0",
        "--every_value",
    )
    out = script("trends", f"{tmp_path}/few", f"--out={tmp_path}/out")
    head, _, *rows, _ = out.splitlines()[2:7]
    assert head.startswith("| alpha | seeds | aurc | aurc_norm |")
    for line, alpha in zip(rows, (0, 0.4), strict=True):
        folder = tmp_path / "few" / f"label_smoothing_loss_option.alpha_{alpha}"
        row = run_results.read_row(folder / "seed0")
        cells = [f"{row[name]:.4f}" for name in ("aurc", "aurc_norm")]
        assert line.startswith(f"| {alpha} | 1 | {' | '.join(cells)} | ")


@pytest.fixture
def sweep(monkeypatch):
    """A protocol of one cell, a set-up of digits, and the runs it asks for."""
    values = flags.FlagValues()
    recipe_flags.define(values)
    values(["", "--data=digits", "--keep=best", "--validation=100"])
    setup, method, options = recipe_flags.read(values)
    protocol = sweeps.Protocol(
        axes={"margin": [6], "epochs": [8]},
        tune_epochs=0.5,
        tune_seeds=1,
        seeds=1,
        resample=True,
        hold_out=None,
    )
    made = []

    def run_once(task, setup, method, options, folder, **extra):
        made.append((task, setup, extra))
        return {"seed": options.seed}

    monkeypatch.setattr(sweeps, "_run_once", run_once)
    sets = sweeps.read_sets(setup, options)
    return (sets, setup, method, options), protocol, made


def test_after_a_grid_the_best_epoch_is_still_chosen(sweep, tmp_path):
    arguments, protocol, made = sweep
    sweeps.tune(*arguments, tmp_path, protocol)
    sweeps.train(*arguments, tmp_path, protocol, "ece")
    sets, setup, *rest = arguments
    last = setup._replace(keep="last")
    sweeps.train(sets, last, *rest, tmp_path, protocol, "ece")
    assert made[0][1].epochs == 4
    assert [task.validation is None for task, *_ in made] == [0, 0, 1]
    assert all(extra["resampled"] for *_, extra in made)
    none = protocol._replace(hold_out=0.0)
    with pytest.raises(app.UsageError, match="`--hold_out` must be above 0"):
        sweeps.tune(*arguments, tmp_path, none)


def test_other_data_or_beginnings_make_another_run(sweep, tmp_path):
    check_flags = run_results.check_flags
    _, *recipe = sweep[0]
    # It failed before an epoch was over: the corrected one may begin.
    check_flags(tmp_path, *recipe, begin_with="no_such_file")
    check_flags(tmp_path, *recipe, resampled=False)
    (tmp_path / "backup.npz").touch()
    check_flags(tmp_path, *recipe)
    for extra in ({"resampled": True}, {"begin_with": "other"}):
        with pytest.raises(ValueError, match=f"'{[*extra][0]}'"):
            check_flags(tmp_path, *recipe, **extra)


def test_copies_of_runs_are_whole_or_not_there(monkeypatch, tmp_path):
    first, *_ = fake_runs(tmp_path, {"acls_accuracy": 2.0})
    copies = tmp_path / "fake" / "acls_ece"

    def killed(*_):
        raise KeyboardInterrupt

    def copied():
        runs = sorted(copies.glob("*"))
        rows = [run_results.read_row(run) for run in runs]
        return [(row["seed"], row["tuned"]) for row in rows]

    whole = [(0, "ece"), (1, "ece")]
    for before in ([], whole):
        with monkeypatch.context() as patch:
            patch.setattr(sweeps, "write_row", killed)
            with pytest.raises(KeyboardInterrupt):
                sweeps.copy_runs(first.parent, copies, "ece")
        assert copied() == before
        sweeps.copy_runs(first.parent, copies, "ece")
        assert copied() == whole
    assert run_results.read_row(first)["tuned"] == ""
    assert not [*copies.parent.glob("*_part")]
    (copies / "seed1" / "flags.json").write_text('{"seed": 7}')
    with pytest.raises(app.UsageError, match="must have the flags"):
        sweeps.copy_runs(first.parent, copies, "ece")
    assert run_results.read_flags(copies / "seed1") == {"seed": 7}

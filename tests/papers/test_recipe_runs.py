"""Runs train, are kept, go on after a kill, and are tuned further."""

import csv
import json
import types

import fine_tune
import keras
import numpy as np
import pytest
from config import losses
from data import images as image_sets
from file_writers import writer
from recipe_cases import LOSSES, killed_after_an_epoch
from results import runs as run_results
from runs import images as image_tasks
from runs import training

import keras_calib


@pytest.fixture
def few_digits(monkeypatch):
    """Twenty steps' worth of digits, of which 40 are to test on."""
    sets = image_sets.load_images(types.SimpleNamespace(data="digits"), None)
    (x, y), (test_x, test_y) = sets.train, sets.test

    def few(num_classes=10):
        train, test = y[:400] < num_classes, test_y[:80] < num_classes
        return sets._replace(
            train=(x[:400][train], y[:400][train]),
            test=(test_x[:80][test], test_y[:80][test]),
            num_classes=num_classes,
        )

    build = training.build

    def eager(*args):
        model = build(*args)
        # Of so few steps, tracing would take most of the time.
        model.run_eagerly = True
        return model

    monkeypatch.setattr(training, "build", eager)
    return few


@pytest.mark.parametrize("name", ["focal_schedule_531", "acls", "adafocal"])
def test_losses_ignore_void_pixels(name, parse):
    setup, method, _ = parse("camvid_deeplabv3plus_small", name)
    setup = setup._replace(ignore_class=2)
    inputs = keras.Input((None, None, 3))
    outputs = keras.layers.Conv2D(2, 1)(inputs)
    model = losses.build_model(method, setup, 4, inputs, outputs)
    model.compile("sgd", losses.build_loss(method, setup))
    random = np.random.default_rng(0)
    x = random.normal(size=(2, 4, 5, 3)).astype("float32")
    y = random.integers(3, size=(2, 4, 5))
    data = {"validation_data": (x, y)} if name == "adafocal" else {}
    history = model.fit(x, y, verbose=0, **data)
    assert np.isfinite(history.history["loss"][0])
    assert 0 < history.history["loss"][0] < 10


def test_every_way_to_train_runs_and_is_measured(parse, few_digits, tmp_path):
    """Losses that differ in their class and numbers alone train one way."""
    ways = {}
    for path in LOSSES:
        method = parse("digits_dense", path.stem)[1]
        way = method.train_model, method.mix, bool(method.fidelity)
        way += (tuple(method.model_option), losses.label_kind(method))
        if "adaptive" not in path.stem:
            ways.setdefault(way, path.stem)
    assert len(ways) > 8
    for name in ways.values():
        check_run(name, parse, few_digits, tmp_path / name)


def check_run(name, parse, few_digits, workdir):
    setup, method, options = parse(
        "digits_dense",
        name,
        "--batch_size=16",
        "--epochs=2",
        "--noexport",
        "--verbose=0",
        "--validation=0.25",
        "--steps_per_epoch=2",
        f"--workdir={workdir}",
    )
    sets = few_digits(2 if name == "cape" else 10)
    sets = image_sets.split(sets, setup.validation)
    task = image_tasks.array_task(sets, setup, method, options)
    row = training.run(task, setup, method, options)
    assert row["method"] == name
    assert row["epochs"] == 2
    assert not row["diverged"]
    assert 0 <= row["ece"] <= 1
    assert row["nll_ts"] > 0
    assert ("inactive_share" in row) == losses.has_margin(method)
    (folder,) = workdir.glob("digits_dense/*/seed0")
    names = {path.name for path in folder.iterdir()}
    assert {"log.csv", "results.csv", "test_predictions.npz"} <= names
    assert run_results.read_row(folder) == pytest.approx(row)


# With these the second epoch is worse than the first, and does not diverge.
WORSE = ["--schedule=steps", "--decay_epochs=1", "--decay_factor=8"]


@pytest.mark.parametrize(
    "epochs, more",
    [
        (2, WORSE),
        # Of so many, not all would be logged, were the best not kept.
        pytest.param(
            52,
            ["--learning_rate=0.5", "--steps_per_epoch=1"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_best_epoch_is_kept(epochs, more, parse, few_digits, tmp_path):
    setup, method, options = parse(
        "digits_dense",
        "cross_entropy",
        "--batch_size=16",
        f"--epochs={epochs}",
        "--keep=best",
        "--validation=0.25",
        "--noexport",
        "--verbose=0",
        f"--workdir={tmp_path}",
        *more,
    )
    sets = image_sets.split(few_digits(), 0.25)
    task = image_tasks.array_task(sets, setup, method, options)
    task = task._replace(test=task.validation)
    row = training.run(task, setup, method, options)
    folder = run_results.find_runs([tmp_path])[0]
    with open(folder / "log.csv", newline="") as file:
        logged = [float(e["cal_accuracy"]) for e in csv.DictReader(file)]
    assert len(logged) == epochs
    assert row["accuracy"] == pytest.approx(max(logged))
    assert logged[-1] < max(logged)


def test_a_run_of_other_flags_is_kept(parse, few_digits, tmp_path):
    common = [
        "--batch_size=16",
        "--epochs=1",
        "--steps_per_epoch=1",
        "--noexport",
        "--verbose=0",
        f"--workdir={tmp_path}",
    ]
    sets = image_sets.split(few_digits(), 0.25)

    def train(*more):
        recipe = parse("digits_dense", "cross_entropy", *common, *more)
        task = image_tasks.array_task(sets, *recipe)
        return training.run(task, *recipe)

    first = train()
    for resume in ("--resume", "--noresume"):
        with pytest.raises(ValueError, match="learning_rate.*0.3"):
            train("--learning_rate=0.3", resume)
    (folder,) = run_results.find_runs([tmp_path])
    assert run_results.read_row(folder)["nll"] == first["nll"]
    # A run that was made before there was a flag had its default.
    flags = run_results.read_flags(folder)
    del flags["temperatures"]
    (folder / "flags.json").write_text(json.dumps(flags))
    with pytest.raises(ValueError, match="temperatures.*2.0"):
        train("--temperatures=1,2")
    # The same flags train anew, to the same numbers.
    assert train()["nll"] == pytest.approx(first["nll"], rel=1e-5)


@pytest.mark.parametrize(
    "flags",
    [[], pytest.param(["--keep=best", *WORSE], marks=pytest.mark.slow)],
)
def test_a_killed_run_goes_on_to_the_same_end(
    parse, few_digits, tmp_path, monkeypatch, flags
):
    sets = image_sets.split(few_digits(), 0.25)

    def train(folder, *more):
        recipe = parse(
            "digits_dense",
            "cross_entropy",
            "--batch_size=16",
            "--epochs=2",
            "--noexport",
            "--verbose=0",
            f"--workdir={tmp_path / folder}",
            *flags,
            *more,
        )
        task = image_tasks.array_task(sets, *recipe)
        return training.run(task, *recipe)

    whole = train("whole")
    if flags:
        folder = run_results.find_runs([tmp_path])[0]
        with open(folder / "log.csv", newline="") as file:
            first, second = (
                float(e["cal_accuracy"]) for e in csv.DictReader(file)
            )
        assert second < first
    with killed_after_an_epoch(monkeypatch):
        train("killed")
    # Nobody takes the folder from a process that trains there.
    (backup,) = (tmp_path / "killed").rglob("backup.npz")
    recorded = (backup.parent / "flags.json").read_text()
    with writer("keep", backup.parent):
        for resume in ("--resume", "--noresume"):
            with pytest.raises(RuntimeError, match="one writer at a time"):
                train("killed", resume, "--learning_rate=9")
    assert (backup.parent / "flags.json").read_text() == recorded
    assert keras_calib.training.finished_epochs(backup) == 1
    rows = [train("killed", "--resume") for _ in range(2)]
    assert rows[0]["nll"] == pytest.approx(whole["nll"], rel=1e-5)
    # Of both epochs, also where none is left to train.
    assert rows[0]["seconds"] > 0
    assert rows[1] == rows[0]


def test_fine_tuning_trains_the_head_then_the_whole(
    parse, few_digits, tmp_path
):
    setup, method, options = parse(
        "digits_dense",
        "acls",
        "--batch_size=16",
        "--epochs=1",
        "--learning_rate=0.01",
        "--noexport",
        "--verbose=0",
        f"--workdir={tmp_path}",
    )
    sets = image_sets.split(few_digits(), 0.25)
    task = image_tasks.array_task(sets, setup, method, options)
    model = keras.Model(*task.network())
    weights = [[v.numpy() for v in model.trainable_variables]]
    train = training.run

    def followed(*args, **extra):
        row = train(*args, **extra)
        weights.append([v.numpy() for v in model.variables])
        return row

    patch = pytest.MonkeyPatch()
    patch.setattr(fine_tune, "run", followed)
    rows = fine_tune.fine_tune(
        model, task, setup, method, options, 1, begin_with="some"
    )
    patch.undo()
    assert {row["begin_with"] for row in rows} == {"some"}
    names = [row["method"] for row in rows]
    assert names == ["acls_tuned_head", "acls_tuned"]
    counted = model.trainable_variables
    assert len(counted) == len(weights[0])
    places = [[v is w for w in model.variables].index(True) for v in counted]
    moved = [
        [
            not np.array_equal(before, after)
            for before, after in zip(old, new, strict=True)
        ]
        for old, new in (
            (weights[0], [weights[1][p] for p in places]),
            ([weights[1][p] for p in places], [weights[2][p] for p in places]),
        )
    ]
    assert moved[0] == [False] * (len(counted) - 2) + [True, True]
    assert all(moved[1])
    # Another beginning is another run.
    other = {"begin_with": "other"}
    with pytest.raises(ValueError, match="'begin_with'"):
        fine_tune.fine_tune(model, task, setup, method, options, 1, **other)

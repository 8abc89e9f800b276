"""What recipes are made with: optimizers, splits, sweeps, tables."""

import csv
import importlib
import os
import subprocess
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest
from absl import app
from absl import flags
from cases import BACKEND
from scipy.special import log_softmax

import keras_calib

if BACKEND != "tensorflow":
    pytest.skip("the examples train with TensorFlow", allow_module_level=True)

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def examples():
    """The modules of the examples, by name."""
    sys.path.insert(0, str(ROOT / "examples"))
    yield importlib.import_module
    sys.path.remove(str(ROOT / "examples"))


def setup_of(**fields):
    """A set-up with the fields that schedules and optimizers read."""
    plain = {
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.9,
        "nesterov": False,
        "coupled_decay": 0.0,
        "weight_decay": 0.0,
        "backbone_rate": 1.0,
        "clip_norm": None,
        "schedule": "constant",
        "epochs": 10,
        "decay_epochs": [],
        "decay_factor": 0.1,
        "warmup_epochs": 0,
        "power": 0.9,
        "time_decay": 0.0,
    }
    return types.SimpleNamespace(**{**plain, **fields})


# Optimizers.


@pytest.mark.parametrize("nesterov", [False, True])
def test_coupled_decay_is_that_of_torch(examples, nesterov):
    setup = setup_of(coupled_decay=0.05, nesterov=nesterov)
    optimizer = examples("optimizers").build_optimizer(setup, 1)
    weight = keras.Variable([1.0, -2.0])
    expected, velocity = np.array([1.0, -2.0]), np.zeros(2)
    optimizer.build([weight])
    for step in range(4):
        gradient = np.array([0.3, step - 1.0])
        optimizer.apply([keras.ops.convert_to_tensor(gradient, "float32")])
        # torch.optim.SGD's documentation.
        decayed = gradient + 0.05 * expected
        velocity = 0.9 * velocity + decayed
        move = decayed + 0.9 * velocity if nesterov else velocity
        expected = expected - 0.1 * move
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5)


def test_backbones_learn_at_a_rate_of_their_own(examples):
    setup = setup_of(backbone_rate=0.1, momentum=0.0)
    optimizer = examples("optimizers").build_optimizer(setup, 1)
    inputs = keras.Input((2,))
    x = keras.layers.Dense(1, use_bias=False, name="backbone_a")(inputs)
    outputs = keras.layers.Dense(1, use_bias=False)(x)
    model = keras.Model(inputs, outputs)
    optimizer.build(model.trainable_variables)
    before = [v.numpy() for v in model.trainable_variables]
    ones = [keras.ops.ones_like(v) for v in model.trainable_variables]
    optimizer.apply(ones)
    moves = [
        np.unique(np.round(old - new.numpy(), 6))
        for old, new in zip(before, model.trainable_variables, strict=True)
    ]
    np.testing.assert_allclose(np.ravel(moves), [0.01, 0.1], rtol=1e-4)


def test_schedules_are_those_of_the_papers(examples):
    learning_rate = examples("optimizers").learning_rate

    def rates(steps, per_epoch=10, **fields):
        schedule = learning_rate(setup_of(**fields), per_epoch)
        return [float(schedule(step)) for step in steps]

    steps = rates([0, 29, 30, 69, 70], schedule="steps", decay_epochs=[3, 7])
    np.testing.assert_allclose(steps, [0.1, 0.1, 0.01, 0.01, 0.001], rtol=1e-5)
    poly = rates([0, 50, 99], schedule="poly")
    expected = [0.1 * (1 - step / 100) ** 0.9 for step in (0, 50, 99)]
    np.testing.assert_allclose(poly, expected, rtol=1e-4)
    cosine = rates([0, 50, 100], schedule="cosine")
    np.testing.assert_allclose(cosine, [0.1, 0.05, 0.0], atol=1e-6)
    warm = rates([0, 10, 20, 60], schedule="cosine", warmup_epochs=2)
    np.testing.assert_allclose(warm, [0.0, 0.05, 0.1, 0.05], atol=1e-6)
    slower = rates([0, 50], time_decay=0.02)
    np.testing.assert_allclose(slower, [0.1, 0.05], rtol=1e-6)
    assert learning_rate(setup_of(), 10) == 0.1
    with pytest.raises(ValueError, match="`--warmup_epochs` must be 0"):
        learning_rate(setup_of(warmup_epochs=1), 10)


def test_options_of_sgd_are_refused_elsewhere(examples):
    build = examples("optimizers").build_optimizer
    assert isinstance(
        build(setup_of(optimizer="adam"), 1), keras.optimizers.Adam
    )
    adamw = build(setup_of(optimizer="adamw", weight_decay=0.3), 1)
    assert adamw.weight_decay == 0.3
    with pytest.raises(ValueError, match="`--weight_decay` must be 0"):
        build(setup_of(weight_decay=0.3), 1)
    with pytest.raises(ValueError, match="`--coupled_decay` must be 0"):
        build(setup_of(optimizer="adam", coupled_decay=0.1), 1)


def test_schedules_and_optimizers_are_saved(examples):
    setup = setup_of(schedule="poly", time_decay=0.1, coupled_decay=0.2)
    optimizer = examples("optimizers").build_optimizer(setup, 10)
    config = keras.optimizers.serialize(optimizer)
    copy = keras.optimizers.deserialize(config)
    assert copy.coupled_decay == 0.2
    rate = copy._learning_rate
    np.testing.assert_allclose(rate(10), 0.1 * 0.9**0.9 / 2, rtol=1e-5)


# Data.


def sets_of(examples, count=60, num_classes=3):
    x = np.arange(count)[:, None, None, None] * np.ones((1, 4, 4, 1))
    y = np.arange(count) % num_classes
    part = (x.astype("uint8"), y)
    test = (part[0][:20] + 100, y[:20])
    return examples("image_sets").ImageSets(part, None, test, num_classes)


@pytest.mark.parametrize("share, count", [(0.25, 15), (12, 12), (0, 0)])
@pytest.mark.parametrize("stratified", [False, True])
def test_a_split_shares_out_the_training_data(
    examples, share, count, stratified
):
    sets = sets_of(examples)
    split = examples("image_sets").split
    parts = split(sets, share, stratified=stratified, seed=1)
    if not count:
        assert parts.validation is None
        return
    held = parts.validation[0][:, 0, 0, 0]
    kept = parts.train[0][:, 0, 0, 0]
    assert len(held) == count
    assert sorted([*held, *kept]) == list(range(60))
    # Each image keeps its class.
    np.testing.assert_array_equal(parts.train[1], kept % 3)
    if stratified:
        assert np.bincount(parts.validation[1]).tolist() == [count // 3] * 3
    again = split(sets, share, stratified=stratified, seed=1)
    np.testing.assert_array_equal(again.validation[0], parts.validation[0])
    other = split(sets, share, stratified=stratified, seed=2)
    assert not np.array_equal(other.validation[0], parts.validation[0])


def test_resampled_data_are_the_same_data(examples):
    sets = sets_of(examples)
    found = examples("image_sets").resampled(sets, 3)
    assert len(found.train[1]) == 60 and len(found.test[1]) == 20
    values = [x[:, 0, 0, 0] for x, _ in (found.train, found.test)]
    expected = [x[:, 0, 0, 0] for x, _ in (sets.train, sets.test)]
    assert sorted(np.concatenate(values)) == sorted(np.concatenate(expected))
    assert set(values[1]) & set(expected[0])


@pytest.mark.parametrize(
    "augment, reach",
    [("none", 0), ("crop", 4), ("crop_flip", 4), ("shift_flip", 2)],
)
def test_images_are_moved_within_reach(examples, augment, reach, monkeypatch):
    image_sets = examples("image_sets")
    height, width, count = 20, 22, 512
    reach = (reach, reach)
    image = np.random.default_rng(0).integers(1, 256, (height, width, 2))
    part = np.repeat(image[None].astype("uint8"), count, axis=0)
    part = part, np.arange(count)
    mode = "constant" if "crop" in augment else "edge"
    padded = np.pad(image, [*((r, r) for r in reach), (0, 0)], mode)
    possible = {
        padded[i : i + height, j : j + width][:, ::step].tobytes()
        for i in range(2 * reach[0] + 1)
        for j in range(2 * reach[1] + 1)
        for step in ((1, -1) if "flip" in augment else (1,))
    }
    # By NumPy, as on JAX and torch, and by TensorFlow.
    for backend in ("jax", "tensorflow"):
        with monkeypatch.context() as patch:
            patch.setattr(keras.backend, "backend", lambda b=backend: b)
            batches = image_sets.training_batches(
                part, count, augment=augment, seed=0
            )
        # `array_pipeline` makes batches in parallel.
        in_one_thread = isinstance(batches, keras_calib.EpochBatches)
        assert in_one_thread == (backend == "jax")
        images, y = next(iter(batches))
        images = np.asarray(images)
        assert images.dtype == "float32" and images.shape == part[0].shape
        np.testing.assert_array_equal(y["label"], y["index"])
        shown = {x.astype(image.dtype).tobytes() for x in images}
        assert shown <= possible
        assert len(shown) > 0.8 * len(possible)
    plain = image_sets.batches(part, count)
    np.testing.assert_array_equal(plain[0][0], part[0])


def test_words_get_numbers_by_their_frequency(examples, tmp_path):
    text_sets = examples("text_sets")
    np.savez(
        tmp_path / "vectors.npz",
        words=np.array(["b", "zebra"]),
        vectors=np.array([[1.0, 2.0], [3.0, 4.0]]),
    )
    matrix = text_sets.read_vectors(str(tmp_path / "vectors.npz"), ["a", "b"])
    assert matrix.shape == (4, 2)
    np.testing.assert_array_equal(matrix[[0, 3]], [[0, 0], [1, 2]])
    (tmp_path / "glove.txt").write_text("a 5 6\nb 7 8\n")
    matrix = text_sets.read_vectors(str(tmp_path / "glove.txt"), ["a", "b"])
    np.testing.assert_array_equal(matrix[2:], [[5, 6], [7, 8]])


def test_parts_read_from_disk_are_not_stratified(examples):
    split_names = examples("large_images").split_names
    fields = {
        "data": "imagenet2012",
        "test_split": None,
        "validation": 10000.0,
        "validation_of": "train",
    }
    setup = types.SimpleNamespace(**fields, stratified=False)
    info = types.SimpleNamespace(splits={"train": 1, "validation": 1})
    builder = types.SimpleNamespace(info=info)
    assert split_names(setup, builder) == {
        "train": "train[10000:]",
        "validation": "train[:10000]",
        "test": "validation",
    }
    setup.stratified = True
    with pytest.raises(app.UsageError, match="`--stratified` must be off"):
        split_names(setup, builder)


# Options.


def test_the_margin_of_a_set_up_is_an_option(examples):
    values = flags.FlagValues()
    recipe_flags = examples("recipe_flags")
    recipe_flags.define(values)
    option_text = examples("recipe_losses").option_text
    values(["", "--margin=0"])
    setup, method, _ = recipe_flags.read(values)
    assert option_text(method._replace(loss="CrossEntropy"), setup) == ""
    mbls = method._replace(loss="MbLS", loss_option={"strength": 0.1})
    assert option_text(mbls, setup) == "strength=0.1 margin=0.0"
    acls = method._replace(loss="ACLS", loss_option={"margin": 6})
    assert option_text(acls, setup) == "margin=6"


# Sweeps.


def test_the_best_cell_has_the_best_mean(examples):
    chosen = examples("sweep_tasks").chosen
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
    with pytest.raises(RuntimeError, match="diverged in all cells"):
        chosen(rows[-1:], ["alpha"], "ece")
    rows = [
        {"alpha": alpha, "coverage_at_1": alpha, "diverged": False}
        for alpha in (0.1, 0.2)
    ]
    assert chosen(rows, ["alpha"], "coverage_at_1") == {"alpha": 0.2}


def test_an_axis_may_have_tuples(examples):
    parse_axis = examples("sweep_tasks").parse_axis
    assert parse_axis("margin=6,8") == ("margin", [6, 8])
    name, values = parse_axis("loss_option.gammas=((0.2,5.0),(1,3)),((1,2),)")
    assert values == [((0.2, 5.0), (1, 3)), ((1, 2),)]


def test_a_sweep_chooses_trains_and_is_compared(tmp_path):
    def script(name, *arguments):
        done = subprocess.run(
            [sys.executable, f"examples/{name}.py", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

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


@pytest.fixture
def sweep(examples, monkeypatch):
    """A protocol of one cell, a set-up of digits, and the runs it asks for."""
    sweep_tasks = examples("sweep_tasks")
    recipe_flags = examples("recipe_flags")
    values = flags.FlagValues()
    recipe_flags.define(values)
    values(["", "--data=digits", "--keep=best", "--validation=100"])
    setup, method, options = recipe_flags.read(values)
    protocol = sweep_tasks.Protocol(
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

    monkeypatch.setattr(sweep_tasks, "_run_once", run_once)
    sets = sweep_tasks.read_sets(setup, options)
    return (sets, setup, method, options), protocol, made


def test_after_a_grid_the_best_epoch_is_still_chosen(examples, sweep, tmp_path):
    sweep_tasks = examples("sweep_tasks")
    arguments, protocol, made = sweep
    sweep_tasks.tune(*arguments, tmp_path, protocol)
    sweep_tasks.train(*arguments, tmp_path, protocol, "ece")
    sets, setup, *rest = arguments
    last = setup._replace(keep="last")
    sweep_tasks.train(sets, last, *rest, tmp_path, protocol, "ece")
    assert made[0][1].epochs == 4
    assert [task.validation is None for task, *_ in made] == [0, 0, 1]
    assert all(extra["resampled"] for *_, extra in made)
    none = protocol._replace(hold_out=0.0)
    with pytest.raises(app.UsageError, match="`--hold_out` must leave"):
        sweep_tasks.tune(*arguments, tmp_path, none)


def test_other_data_or_beginnings_make_another_run(examples, sweep, tmp_path):
    check_flags = examples("run_results").check_flags
    _, *recipe = sweep[0]
    # It failed before an epoch was over: the corrected one may begin.
    check_flags(tmp_path, *recipe, begin_with="no_such_file")
    check_flags(tmp_path, *recipe, resampled=False)
    (tmp_path / "backup.npz").touch()
    check_flags(tmp_path, *recipe)
    for extra in ({"resampled": True}, {"begin_with": "other"}):
        with pytest.raises(ValueError, match=f"'{[*extra][0]}'"):
            check_flags(tmp_path, *recipe, **extra)


def test_copies_of_runs_are_whole_or_not_there(examples, monkeypatch, tmp_path):
    sweep_tasks = examples("sweep_tasks")
    run_results = examples("run_results")
    first, *_ = fake_runs(examples, tmp_path, {"acls_accuracy": 2.0})
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
            patch.setattr(sweep_tasks, "write_row", killed)
            with pytest.raises(KeyboardInterrupt):
                sweep_tasks.copy_runs(first.parent, copies, "ece")
        assert copied() == before
        sweep_tasks.copy_runs(first.parent, copies, "ece")
        assert copied() == whole
    assert run_results.read_row(first)["tuned"] == ""
    assert not [*copies.parent.glob("*_part")]
    (copies / "seed1" / "flags.json").write_text('{"seed": 7}')
    with pytest.raises(app.UsageError, match="must have the flags"):
        sweep_tasks.copy_runs(first.parent, copies, "ece")
    assert run_results.read_flags(copies / "seed1") == {"seed": 7}


# Tables.


def fake_runs(examples, folder, shifts):
    """Runs of two seeds with predictions of known accuracy."""
    run_results = examples("run_results")
    for method, shift in shifts.items():
        for seed in range(2):
            random = np.random.default_rng(seed)
            labels = random.integers(4, size=300)
            logits = random.normal(size=(300, 4)).astype("float32")
            logits[np.arange(300), labels] += shift
            run = folder / "fake" / method / f"seed{seed}"
            run.mkdir(parents=True)
            for part in ("validation", "test"):
                run_results.save_predictions(run, part, labels, logits)
            row = {
                "setup": "fake",
                "method": method,
                "options": "",
                "seed": seed,
                "diverged": False,
                "tuned": "",
                **run_results.measures(labels, logits),
            }
            run_results.write_row(run, row)
    return run_results.find_runs([folder])


def test_measures_are_those_of_the_predictions(examples, tmp_path):
    folder = fake_runs(examples, tmp_path, {"a": 2.0})[0]
    row = examples("run_results").read_row(folder)
    labels, logits = examples("run_results").read_predictions(folder, "test")
    expected = -log_softmax(logits.astype(float), axis=-1)
    expected = expected[np.arange(300), labels].mean()
    assert row["nll"] == pytest.approx(expected, rel=1e-6)
    assert row["accuracy"] == np.mean(logits.argmax(-1) == labels)
    assert row["diverged"] is False


def test_tables_hold_means_ranks_and_published_numbers(examples, tmp_path):
    comparisons = examples("comparisons")
    fake_runs(examples, tmp_path, {"cross_entropy": 1.0, "acls_released": 3.0})
    published = tmp_path / "published.csv"
    published.write_text(
        "setup,loss,on,tuned,measure,value,std,source\n"
        "fake,acls,V2,,ece,0.5,,x\n"
        "fake,acls,test,,ece,0.0112,,x\n"
        "fake,cross_entropy,test,,ece,0.05,0.01,x\n"
        "other,acls,test,,ece,0.9,,x\n"
        "fake,cross_entropy+temperature,test,ece,ece,0.003,,x\n"
    )
    setups = comparisons.grouped([tmp_path])
    found = comparisons.read_published(published, "fake")
    assert found["cross_entropy held out", "ece_ts_ece"] == "0.003"
    text = comparisons.markdown(setups["fake"], ["accuracy", "ece"], found)
    lines = text.splitlines()
    assert "[0.0112]" in lines[2] and lines[2].startswith("| acls_released")
    assert "[0.05 ± 0.01]" in lines[3]
    rows = setups["fake"]["cross_entropy"]
    mean = np.mean([row["ece"] for row in rows.values()])
    assert f"{mean:.4f} ±" in lines[3]
    ranks = comparisons.ranks(setups, ["accuracy", "aurc"])
    assert ranks == {"acls_released": [1.0, 1.0], "cross_entropy": [2.0, 2.0]}
    values = comparisons.paired_values(setups["fake"], "cross_entropy")
    assert list(values) == ["cross_entropy", "acls_released"]
    assert np.shape(values["acls_released"]) == (2, 5)
    lines = comparisons.differences(
        setups["fake"], ["ece", "missing"], "cross_entropy"
    ).splitlines()
    first, second = (
        np.array([setups["fake"][name][seed]["ece"] for seed in range(2)])
        for name in ("acls_released", "cross_entropy")
    )
    # Student's distribution with one degree of freedom is Cauchy's.
    gaps = first - second
    t = gaps.mean() / (np.ptp(gaps) / 2)
    p = 1 - 2 / np.pi * np.arctan(abs(t))
    cell = f"{gaps.mean():+.4f} (p = {p:.3f})" + "*" * int(p < 0.05)
    assert lines[2:] == [f"| acls_released | 2 | {cell} | - |"]


def test_a_table_of_rows_stands_for_its_runs(examples, tmp_path):
    comparisons = examples("comparisons")
    run_results = examples("run_results")
    folder = tmp_path / "runs"
    fake_runs(examples, folder, {"cross_entropy": 3.0, "acls": 1.5})
    several = fake_runs(examples, tmp_path / "several", {"mbls": 2.0})
    row = run_results.read_row(several[1])
    run_results.write_row(several[1], row | {"options": "strength=0.2"})
    both = [folder, tmp_path / "several"]
    setups = comparisons.grouped(both)
    table = tmp_path / "runs.csv"
    comparisons.write_rows(setups, table)
    again = comparisons.grouped([str(table)])

    def filled(setups):
        return {
            (setup, name, seed): {k: v for k, v in row.items() if v != ""}
            for setup, methods in setups.items()
            for name, rows in methods.items()
            for seed, row in rows.items()
        }

    assert filled(again) == filled(setups)
    assert {"mbls []", "mbls [strength=0.2]"} < set(again["fake"])
    # With other runs beside it, but not with its own.
    part = tmp_path / "part.csv"
    comparisons.write_rows(comparisons.grouped([folder]), part)
    beside = comparisons.grouped([part, tmp_path / "several"])
    assert filled(beside) == filled(setups)
    with pytest.raises(app.UsageError, match="must differ in method"):
        comparisons.grouped([part, folder])


def test_runs_of_one_name_are_told_apart_or_refused(examples, tmp_path):
    grouped = examples("comparisons").grouped
    run_results = examples("run_results")
    folders = fake_runs(examples, tmp_path / "a", {"acls": 2.0})
    others = fake_runs(examples, tmp_path / "b", {"acls": 3.0})
    with pytest.raises(app.UsageError, match="must differ in method"):
        grouped([tmp_path])
    for folder in others:
        row = run_results.read_row(folder)
        run_results.write_row(folder, row | {"options": "lambda1=0.0"})
    found = grouped([tmp_path])["fake"]
    assert {name: len(rows) for name, rows in found.items()} == {
        "acls []": 2,
        "acls [lambda1=0.0]": 2,
    }
    row = run_results.read_row(folders[0])
    run_results.write_row(folders[0], row | {"resampled": True})
    with pytest.raises(app.UsageError, match="all or none"):
        grouped([tmp_path / "a"])
    # Cells of grids and runs that diverged are no networks to use.
    run_results.write_row(folders[0], row | {"tuned": "grid"})
    assert run_results.repairable_runs([tmp_path / "a"]) == folders[1:]
    run_results.write_row(folders[1], row | {"diverged": True})
    with pytest.raises(app.UsageError, match="with validation_pred"):
        run_results.repairable_runs([tmp_path / "a"])


def test_ranks_are_of_what_was_tuned_by_one_measure(examples):
    comparisons = examples("comparisons")

    def rows(ece, scaled=0.0):
        return {0: {"ece": ece, "ece_ts_ece": scaled}}

    methods = {
        "cross_entropy": rows(0.1),
        "cross_entropy held out": rows(0.3, 0.02),
        "focal (accuracy)": rows(0.1004),
        "focal (ece)": rows(0.03),
        "crl (accuracy)": rows(0.2),
        "crl (ece)": rows(0.04),
    }
    setups = {"a": methods, "b": methods}
    found = comparisons.blocks(setups)
    assert list(found) == ["accuracy", "ece"]
    options = {"ties": "min", "digits": 3}
    assert comparisons.ranks(found["accuracy"], ["ece"], **options) == {
        "cross_entropy": [1.0],
        "focal": [1.0],
        "crl": [3.0],
    }
    assert comparisons.ranks(found["ece"], ["ece"]) == {
        "focal": [2.0],
        "crl": [3.0],
        "cross_entropy+temperature": [1.0],
    }


def test_pixels_of_a_diverged_network_are_not_counted(examples):
    meter = examples("run_results").PixelMeter(3, 255)
    logits = np.zeros((1, 2, 2, 3), "float32")
    meter.update(np.zeros((1, 2, 2), "int32"), logits)
    assert meter.finite
    logits[0, 0, 0, 0] = np.nan
    meter.update(np.zeros((1, 2, 2), "int32"), logits)
    assert not meter.finite


def test_curves_of_equal_names_are_all_drawn(examples, tmp_path):
    folders = fake_runs(examples, tmp_path, {"acls": 2.0, "crl": 2.0})
    write_row = examples("run_results").write_row
    row = examples("run_results").read_row(folders[0])
    labels, _ = examples("run_results").read_predictions(folders[0], "test")
    for folder, setup in zip(
        folders[1:], ("fake", "wide", "wide"), strict=True
    ):
        write_row(folder, row | {"setup": setup})
        examples("run_results").save_predictions(
            folder, "test", labels, np.zeros((300, 4), "float32")
        )
    _, found = examples("selections").curves_of([folders[0], folders[2]])
    assert list(found) == ["fake acls", "wide acls"]
    _, found = examples("selections").curves_of(folders)
    assert len(found) == 4


def test_votes_of_other_images_are_refused(examples, tmp_path):
    path = tmp_path / "votes.npz"
    counts = np.array([[9, 1], [2, 6]])
    np.savez(path, counts=counts, labels=np.array([0, 1]))
    read_votes = examples("selections").read_votes
    shares = read_votes(path, np.array([0, 1]))
    np.testing.assert_allclose(shares, [[0.9, 0.1], [0.25, 0.75]])
    with pytest.raises(ValueError, match="`--votes` must be on the images"):
        read_votes(path, np.array([1, 0]))


def test_diverged_runs_are_counted_and_left_out(examples, tmp_path):
    comparisons = examples("comparisons")
    shifts = {"cross_entropy": 1.0, "acls": 2.0, "crl": 2.0}
    fake_runs(examples, tmp_path, shifts)
    run_results = examples("run_results")
    for method, seed in (("acls", 1), ("crl", 0), ("crl", 1)):
        folder = tmp_path / "fake" / method / f"seed{seed}"
        row = run_results.read_row(folder)
        kept = ("setup", "method", "options", "seed", "tuned")
        row = {name: row[name] for name in kept}
        run_results.write_row(folder, {**row, "diverged": True})
    setups = comparisons.grouped([tmp_path])
    text = comparisons.markdown(setups["fake"], ["ece"], {})
    assert "| acls | 1 (1 diverged) |" in text
    assert "| crl | 0 (2 diverged) | - |" in text
    text = comparisons.differences(setups["fake"], ["ece"], "cross_entropy")
    rows = [
        setups["fake"][name][0]["ece"] for name in ("acls", "cross_entropy")
    ]
    assert f"| acls | 1 | {rows[0] - rows[1]:+.4f} |" in text
    assert "| crl | 0 | - |" in text
    values = comparisons.paired_values(setups["fake"], "cross_entropy")
    # A hole of one method takes nothing from the others.
    rows = examples("paired_results").summarize({"fake": values})
    assert {row.method: len(row.values) for row in rows} == {
        "cross_entropy": 2,
        "acls": 1,
    }
    by_name = {row.method: row for row in rows}
    kept = setups["fake"]
    lead = kept["acls"][0]["accuracy"] - kept["cross_entropy"][0]["accuracy"]
    np.testing.assert_allclose(by_name["acls"].leads, [lead])
    examples("paired_results").draw(rows, tmp_path / "ece.png")
    ranks = comparisons.ranks({**setups, "other": setups["fake"]}, ["ece"])
    assert list(ranks) == ["cross_entropy"]


def test_rejection_is_measured_on_what_was_predicted(
    examples, tmp_path, capsys
):
    selections = examples("selections")
    folder = fake_runs(examples, tmp_path, {"a": 2.0})[0]
    labels, logits = examples("run_results").read_predictions(folder, "test")
    row = selections.selection_row(folder)
    assert row["aurc_msp"] == keras_calib.aurc(labels, logits, from_logits=True)
    delta, coverage, risk = selections.guarantee(folder, 0.1, 0.05)
    assert delta == 0.05 and 0 < coverage < 1 and 0 <= risk < 0.1
    # Pixels are not independent: more are accepted, with no guarantee.
    found = examples("run_results").read_row(folder)
    examples("run_results").write_row(folder, found | {"miou": 0.5})
    delta, more, _ = selections.guarantee(folder, 0.1, 0.05)
    assert delta is None and more > coverage
    examples("run_results").write_row(folder, found)
    # Nor where the epoch was chosen on these data.
    (folder / "flags.json").write_text('{"keep": "best"}')
    assert selections.guarantee(folder, 0.1, 0.05)[:2] == (None, more)
    (folder / "flags.json").unlink()
    assert selections.guarantee(folder, 1e-4, 0.05) == (0.05, 0.0, None)
    assert "No threshold is certified" in capsys.readouterr().out
    # Others that are all wrong, and surer than any of the test data.
    foreign = np.zeros((300, 4), "float32")
    foreign[:30, 0] = 100.0
    examples("run_results").save_predictions(
        folder, "other", np.full(300, -1), foreign
    )
    found = selections.accepted_errors(folder, "other", 0.1)
    # Half of the 60 surest are those 30.
    assert found.pop("foreign")
    for name in ("msp", "norm"):
        assert found[f"errors_other_{name}"] == 0.5
        assert found[f"errors_own_{name}"] <= 0.1


def test_the_pull_of_label_smoothing_is_equation_16(examples, tmp_path):
    folder = fake_runs(examples, tmp_path, {"a": 2.0})[0]
    _, logits = examples("run_results").read_predictions(folder, "test")
    votes = np.zeros((300, 4))
    predicted = logits.argmax(-1)
    votes[np.arange(300), predicted] = np.where(np.arange(300) % 2, 0.9, 0.2)
    votes[np.arange(300), (predicted + 1) % 4] = 1 - votes.max(-1)
    rows = examples("selections").imbalance(folder, votes, 0.1, num_bins=3)
    assert sum(row["shared_count"] for row in rows) == 150
    for row in rows:
        assert row["shared_pull"] == pytest.approx(0.1 * 0.9 - 0.1 / 4)
        assert row["other_pull"] == pytest.approx(0.1 * 0.2 - 0.1 / 4)
    confidences = [row["confidence"] for row in rows]
    assert confidences == sorted(confidences)


def test_claims_are_those_that_many_tests_at_once_leave(examples):
    claims = examples("check_claims")
    # Holm's own rule by hand: times 3, 2, 1 in order, never falling.
    np.testing.assert_allclose(
        claims.holm([0.03, 0.01, 0.02]), [0.04, 0.03, 0.04]
    )
    np.testing.assert_allclose(claims.holm([0.9, 0.8]), [1.0, 1.0])
    found = claims.checked(ROOT / "benchmarks/results/runs/claims.csv")
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    verdicts = {}
    for rows in found.values():
        # What the page says is what the runs say.
        assert claims.table(rows) in page
        for row in rows:
            verdicts[row["claim"]] = row["verdict"]
            holds = row["corrected"] < 0.05
            assert holds == (row["verdict"] != "not shown")
    by = "MNIST, by accuracy: label"
    assert verdicts[f"{by} relaxation has a lower ECE than cross entropy"] == (
        "holds"
    )
    assert (
        verdicts[
            f"{by} smoothing has a higher accuracy than confidence penalty"
        ]
        == "not shown"
    )
    assert "the reverse holds" in verdicts.values()


def test_calibrators_are_fitted_on_validation_predictions(examples, tmp_path):
    folder = fake_runs(examples, tmp_path, {"a": 2.0})[0]
    labels, logits = examples("run_results").read_predictions(folder, "test")
    # One refuses: a matrix has more parameters than there are samples.
    few = 10
    examples("run_results").save_predictions(
        folder, "validation", labels[:few], 2 * logits[:few]
    )
    names = ["MatrixScaling", "TemperatureScaling"]
    rows, refused = examples("calibrate").repair(folder, names, "test")
    assert [row["calibrator"] for row in rows] == ["none", names[1]]
    assert "as many samples as parameters" in refused.pop(names[0])
    assert not refused
    # Twice too sure where it is measured.
    examples("run_results").save_predictions(
        folder, "validation", labels, 2 * logits
    )
    rows, refused = examples("calibrate").repair(folder, names[1:], "test")
    assert not refused
    scaling = keras_calib.TemperatureScaling().fit(labels, 2 * logits)
    expected = keras_calib.nll(
        labels, logits / scaling.temperature, from_logits=True
    )
    assert [row["calibrator"] for row in rows] == ["none", "TemperatureScaling"]
    assert rows[1]["nll"] == pytest.approx(expected, rel=1e-5)


class FixedSegmenter:
    """Answers with the logits that its images hold."""

    def predict_on_batch(self, x):
        return np.asarray(x)


def test_all_pixels_are_measured_and_some_are_kept(examples):
    run_results = examples("run_results")
    random = np.random.default_rng(0)
    logits = random.normal(size=(5, 8, 9, 4)).astype("float32")
    labels = random.integers(4, size=(5, 8, 9))
    labels[:, :2] = 255
    logits[labels == 1, 1] += 2.0
    data = [(logits[:3], labels[:3]), (logits[3:], labels[3:])]
    meter = run_results.PixelMeter(4, 255)
    kept = run_results.predict(
        FixedSegmenter(),
        data,
        pixels_per_image=20,
        ignore_class=255,
        meter=meter,
    )
    assert len(kept[0]) == 5 * 20 and kept[1].shape == (100, 4)
    assert set(kept[0]) == {0, 1, 2, 3}
    # Labels and logits of the same pixels.
    rows = {
        tuple(row): label
        for row, label in zip(
            logits.reshape(-1, 4), labels.ravel(), strict=True
        )
    }
    assert [rows[tuple(row)] for row in kept[1]] == kept[0].tolist()
    again = run_results.predict(
        FixedSegmenter(), data, pixels_per_image=20, ignore_class=255
    )
    np.testing.assert_array_equal(again[1], kept[1])
    row = meter.row()
    valid = labels != 255
    exact = {"from_logits": True}
    assert row["ece"] == pytest.approx(
        keras_calib.ece(labels[valid], logits[valid], **exact), rel=1e-5
    )
    assert row["nll"] == pytest.approx(
        keras_calib.nll(labels[valid], logits[valid], **exact), rel=1e-5
    )
    predicted, truth = logits.argmax(-1)[valid], labels[valid]
    shares = [
        np.sum((predicted == k) & (truth == k))
        / np.sum((predicted == k) | (truth == k))
        for k in range(4)
    ]
    assert row["miou"] == pytest.approx(np.mean(shares))
    assert row["accuracy"] == pytest.approx(np.mean(predicted == truth))
    every = run_results.predict(FixedSegmenter(), data, ignore_class=255)
    assert len(every[0]) == valid.sum()

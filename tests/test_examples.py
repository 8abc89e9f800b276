"""The examples run as their commands say."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import BACKEND

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="the examples train with TensorFlow"
)
ROOT = Path(__file__).parents[1]


def quickstart(*flags):
    return subprocess.run(
        [sys.executable, "examples/quickstart.py", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def guide(name):
    done = subprocess.run(
        [sys.executable, f"examples/guide_{name}.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def numbers(lines, name):
    """Those behind `name` in the first line that begins with it."""
    line = next(line for line in lines if line.startswith(name))
    return [float(v) for v in re.findall(r"[-+]?\d+\.?\d*", line[len(name) :])]


def test_guide_to_training_shows_what_it_says():
    lines = guide("calibrated_training")
    logged = [line.split() for line in lines[1:9]]
    confidence = [float(line[2]) for line in logged]
    assert [int(line[0]) for line in logged] == list(range(5, 41, 5))
    assert confidence[-1] > confidence[0]
    _, nll, ece, temperature, repaired_nll, repaired_ece, _ = numbers(
        lines, "cross entropy     "
    )
    assert temperature > 1.5
    assert repaired_nll < nll
    assert repaired_ece < ece
    for name in ("label smoothing", "label relaxation", "focal"):
        assert numbers(lines, f"{name:18}")[2] < ece
        low, high = numbers(lines, f"cross entropy less {name}")
        assert low < high
    asked = numbers(lines, "label smoothing [")
    assert asked[0] == asked[1] < 1


def test_guide_to_rejection_keeps_its_promise():
    lines = guide("rejecting")
    broken, _, coverage = numbers(lines, "delta None  ")
    promised, _, promised_coverage = numbers(lines, "delta 0.1  ")
    assert broken > 50
    assert promised <= 30
    assert 0.3 < promised_coverage < coverage
    assert any(line.startswith("accept [") for line in lines)


HELP = """
import contextlib, io, json, runpy, sys
from pathlib import Path
from absl import flags

sys.path.insert(0, "examples")
folder = Path("examples").resolve()
known = set(flags.FLAGS)
found = {}
for script in sys.argv[1:]:
    sys.argv = [script, "--help"]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    values = flags.FLAGS
    defined = [
        name
        for name in set(values) - known
        if values.find_module_defining_flag(name) == script
        or (folder / f"{values.find_module_defining_flag(name)}.py").is_file()
    ]
    known |= {"help", "helpfull", "helpshort", "helpxml"} & set(values)
    found[script] = {
        "defined": sorted(defined),
        "not listed": sorted(
            name
            for name in defined
            if f"--{name}:" not in shown.getvalue()
            and f"--[no]{name}:" not in shown.getvalue()
        ),
    }
    for name in defined:
        delattr(values, name)
    values.unparse_flags()
print(json.dumps(found))
"""


def test_help_lists_the_flags_of_every_script():
    scripts = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "examples").glob("*.py"))
        if "app.run(main)" in path.read_text(encoding="utf-8")
    ]
    assert len(scripts) > 15
    done = subprocess.run(
        [sys.executable, "-c", HELP, *scripts],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for script in scripts:
        assert found[script]["defined"], script
        assert not found[script]["not listed"], script
    assert "learning_rate" in found["examples/train_text.py"]["defined"]


def test_quickstart_trains_draws_and_serves(tmp_path):
    done = quickstart("--epochs=2", f"--workdir={tmp_path}")
    assert done.returncode == 0, done.stderr[-3000:]
    rows = (tmp_path / "table.txt").read_text().splitlines()
    assert len(rows) == 2 + 7
    for row in rows[2:]:
        accuracy, nll = (float(v) for v in row[19:].split()[:2])
        assert accuracy > 0.7
        assert 0 < nll < 2
    for name in ("reliability.png", "risk_coverage.png"):
        assert (tmp_path / name).stat().st_size > 10_000
    assert (tmp_path / "serving" / "1" / "saved_model.pb").exists()
    assert "probabilities differ by" in done.stdout
    last = done.stdout.splitlines()[-4:]
    assert all(Path(line.strip()).exists() for line in last)


def test_quickstart_trains_the_whole_family(tmp_path):
    done = quickstart("--losses=all", "--epochs=1", f"--workdir={tmp_path}")
    assert done.returncode == 0, done.stderr[-3000:]
    rows = (tmp_path / "table.txt").read_text().splitlines()
    names = {row[:19].strip() for row in rows[2:]}
    assert len(names) == 17
    assert {"FLSD", "CPC", "MMCE", "MDCA + focal", "DCA"} <= names


def test_predictors_are_compared_and_exported(tmp_path):
    flags = ("--seeds=1", "--members=2", "--passes=3", "--epochs=3")
    done = subprocess.run(
        [
            sys.executable,
            "examples/predictors.py",
            *flags,
            f"--workdir={tmp_path}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = (tmp_path / "table.txt").read_text().splitlines()[2:]
    assert len(rows) == 3
    for row in rows:
        accuracy, error, nll = (float(v) for v in row[20:].split()[:3])
        assert accuracy > 0.6
        assert 0 < error < 0.7
        assert 0 < nll < 2
    assert (tmp_path / "serving" / "1" / "saved_model.pb").exists()


def test_a_data_dir_without_the_data_set_is_refused(tmp_path):
    done = quickstart("--data=fashion_mnist", f"--data_dir={tmp_path}")
    assert done.returncode != 0
    assert "`--data_dir` must hold the prepared data set" in done.stderr
    assert f"--data_dir={tmp_path}" in done.stderr
    assert os.listdir(tmp_path) == []


def test_an_unknown_data_set_is_refused(tmp_path):
    done = quickstart("--data=no_such_data", f"--data_dir={tmp_path}")
    assert done.returncode != 0
    assert "`--data` must be 'digits' or the name of a TFDS" in done.stderr


def test_a_prepared_tfds_data_set_is_read_split_and_scaled(
    tmp_path, monkeypatch
):
    import tensorflow as tf
    import tensorflow_datasets as tfds

    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from datasets import load_tfds

    images = np.random.default_rng(0).integers(256, size=(12, 4, 5, 1))
    examples = {"image": images.astype("uint8"), "label": np.arange(12) % 3}
    parts = tf.data.Dataset.from_tensor_slices(examples)
    tfds.dataset_builders.store_as_tfds_dataset(
        name="made_up",
        version="1.0.0",
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(4, 5, 1)),
                "label": tfds.features.ClassLabel(num_classes=3),
            }
        ),
        split_datasets={"train": parts, "test": parts},
        data_dir=tmp_path,
        disable_shuffling=True,
    )
    sets, num_classes = load_tfds("made_up", str(tmp_path))
    assert num_classes == 3
    assert [len(labels) for _, labels in sets] == [10, 2, 12]
    flat = images.reshape(12, 20) / 255
    for part, rows in zip(
        sets, (slice(10), slice(10, 12), slice(12)), strict=False
    ):
        np.testing.assert_allclose(part[0], flat[rows], rtol=1e-6)
        np.testing.assert_array_equal(part[1], np.arange(12)[rows] % 3)


def test_rejection_is_measured_with_and_without_smoothing():
    done = subprocess.run(
        [
            sys.executable,
            "examples/label_smoothing_selection.py",
            "--alpha=0.0",
            "--alpha=0.2",
            "--epochs=5",
            "--seeds=2",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    head, *rows = done.stdout.splitlines()[-3:]
    assert head.split()[:3] == ["smoothing", "accuracy", "AURC*1e3"]
    for row, alpha in zip(rows, ("0.0", "0.2"), strict=True):
        values = row.replace("±", " ").split()
        assert values[0] == alpha
        assert float(values[1]) > 0.9
        assert 0 < float(values[3]) < 50
        assert len(values) == 1 + 5 * 2 + 2


def test_metrics_of_logs_are_read_by_beam(tmp_path):
    pytest.importorskip("apache_beam")
    tables = []
    for file_format in ("parquet", "tfrecord"):
        done = subprocess.run(
            [
                sys.executable,
                "examples/metrics_from_logs.py",
                f"--format={file_format}",
                f"--workdir={tmp_path / file_format}",
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        tables.append(done.stdout)
    assert "sober" in tables[0]
    assert "overfitted" in tables[0]
    assert tables[0] == tables[1]


def test_labels_by_objectness_lower_the_confidence_in_context(tmp_path):
    methods = ("hard labels", "adaptive, beta 1 + context")
    done = subprocess.run(
        [
            sys.executable,
            "examples/train_objectness.py",
            "--epochs=8",
            "--width=8",
            f"--workdir={tmp_path}",
            *(f"--method={method}" for method in methods),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (tmp_path / "table.txt").read_text().splitlines()[2:]
    rows = {
        method: [float(v) for v in line[len(max(methods, key=len)) :].split()]
        for method, line in zip(methods, lines, strict=True)
    }
    assert all(len(row) == 12 for row in rows.values())
    # Mean confidence on images whose objects are painted out.
    hard, adaptive = rows["hard labels"][9], rows[methods[-1]][9]
    assert adaptive < 0.7 * hard
    assert (tmp_path / "crops.png").stat().st_size > 20_000


def test_ways_to_train_are_compared_with_cross_entropy(tmp_path):
    flags = ("--epochs=1", "--seeds=1", f"--workdir={tmp_path}")
    done = subprocess.run(
        [sys.executable, "examples/train_models.py", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["task"] for row in rows] == ["10 classes"] * 15 + [
        "2 classes"
    ] * 2
    names = {row["method"] for row in rows}
    assert len(names) == 16
    assert {"CRL", "AdaFocal", "SAM", "ASAM", "MMCE", "CaPE"} <= names
    for row in rows:
        # One seed shows no difference.
        assert [row[c] for c in ("ece", "accuracy", "verdict")] == ["-"] * 3
        numbers = [float(row[c]) for c in list(row)[2:15]]
        assert np.all(np.isfinite(numbers))
        accuracy, error = float(row["accuracy mean"]), float(row["ECE mean"])
        assert accuracy > 0.2
        assert 0 < error < 0.8
    text = (tmp_path / "table.txt").read_text(encoding="utf-8")
    assert all(name in text for name in names)
    assert (tmp_path / "ece.png").stat().st_size > 20_000
    assert len(list((tmp_path / "backups").iterdir())) == len(rows)
    assert len(list((tmp_path / "logs").iterdir())) == len(rows)


def test_what_methods_do_beside_the_first_is_said_by_pairs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from paired_results import summarize

    first = np.array([[0.8, 1, 0.10, 1, 1], [0.7, 1, 0.20, 1, 1]])
    better, worse = first.copy(), first.copy()
    better[:, 2] -= [0.050, 0.051]
    worse[:, 0] -= [0.030, 0.031]
    worse[:, 2] -= [0.050, 0.051]
    noise = first + [[0, 0, 0.05, 0, 0], [0, 0, -0.04, 0, 0]]
    methods = {
        "first": first,
        "beats": better,
        "trades": worse,
        "equals": noise,
        "fails": 2 * first - better,
    }
    rows = summarize({"task": methods})
    assert [row.verdict for row in rows] == ["-", *list(methods)[1:]]
    assert rows[1].gap == pytest.approx(-0.0505)
    assert rows[1].error == pytest.approx(0.0005)

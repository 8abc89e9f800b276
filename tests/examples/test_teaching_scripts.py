"""The scripts that teach show what they say."""

import csv
import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from absl import flags
from cases import BACKEND

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="the examples train with TensorFlow"
)
ROOT = Path(__file__).parents[2]


def printed(script, *arguments):
    """What a script prints that runs as a program."""
    done = subprocess.run(
        [sys.executable, f"examples/{script}.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.fixture
def script(monkeypatch):
    """Imports a script; its flags are those of no other."""

    def loaded(name):
        own = flags.FlagValues()
        for kind in ("bool", "enum", "float", "integer", "string"):
            define = getattr(flags, f"DEFINE_{kind}")
            define = functools.partial(define, flag_values=own)
            monkeypatch.setattr(flags, f"DEFINE_{kind}", define)
        path = ROOT / "examples" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"{name}_script", path)
        module = importlib.util.module_from_spec(spec)
        # Beam sends functions by the name of their module.
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return loaded


def read_rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def numbers(lines, name):
    """Those behind `name` in the first line that begins with it."""
    line = next(line for line in lines if line.startswith(name))
    return [float(v) for v in re.findall(r"[-+]?\d+\.?\d*", line[len(name) :])]


# In this process, as small as they can be.


def test_losses_of_the_quickstart_are_all_that_need_labels_and_logits(script):
    losses = script("quickstart").ALL
    assert len(losses) == 17
    logits = np.eye(3, dtype="float32")
    for name, loss in losses.items():
        assert np.isfinite(float(loss(np.arange(3), logits))), name


@pytest.mark.slow
def test_ways_to_train_are_compared_with_cross_entropy(script, capsys):
    methods = script("training_methods")
    methods.run(2, seeds=2, epochs=8)
    lines = capsys.readouterr().out.splitlines()
    for name in ("cross entropy", "CaPE"):
        accuracy, error, nll = numbers(lines, name)[:3]
        assert accuracy > 0.6
        assert 0 < error < 0.5
        assert 0 < nll < 2
    # With that of accuracy, that of ECE.
    assert len(numbers(lines, "CaPE")) == 6


@pytest.mark.slow
def test_predictors_are_compared_and_exported(script, tmp_path, capsys):
    script("ensembles").run(
        seeds=1, members=2, passes=2, rate=0.5, epochs=2, workdir=tmp_path
    )
    rows = (tmp_path / "table.txt").read_text().splitlines()[2:]
    assert len(rows) == 3
    for row in rows:
        accuracy, error, nll = (float(v) for v in row[20:].split()[:3])
        assert accuracy > 0.2
        assert 0 < error < 0.7
        assert 0 < nll < 2
    assert (tmp_path / "serving" / "1" / "saved_model.pb").exists()
    runs = read_rows(tmp_path / "runs.csv")
    assert [float(run["accuracy"]) for run in runs] == pytest.approx(
        [float(row[20:].split()[0]) for row in rows], abs=1e-4
    )
    assert all(0 < float(run["aurc_ts"]) < 1 for run in runs)


@pytest.mark.slow
def test_pixels_are_measured_repaired_and_drawn(script, tmp_path, capsys):
    script("segmentation").run(epochs=3, noise=1.0, workdir=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * 2 + 1
    for line in lines[1:-1]:
        iou, pixels, image = (float(v) for v in line[24:].split())
        assert 0 < iou < 1
        # A mean of absolute gaps over all pixels is the smaller one.
        assert 0 < pixels <= image + 1e-4
    assert (tmp_path / "confidence.png").stat().st_size > 10_000


@pytest.mark.slow
def test_labels_by_objectness_are_measured_without_objects(script, capsys):
    script("objectness").run(epochs=1, width=2)
    lines = capsys.readouterr().out.splitlines()
    for name in ("hard labels", "adaptive  ", "adaptive + context"):
        values = numbers(lines, name)
        assert len(values) == 4
        assert all(0 < value < 1 for value in values), name


def test_metrics_of_logs_are_read_by_beam(script, tmp_path, capsys):
    pytest.importorskip("apache_beam")
    import tensorflow as tf
    from apache_beam.options.pipeline_options import PipelineOptions
    from pyarrow import parquet

    module = script("metrics_from_logs")
    logs = module.write_demo_logs(tmp_path / "logs")
    # The same predictions, as records.
    with tf.io.TFRecordWriter(str(tmp_path / "logs" / "a.tfrecord")) as writer:
        for path in sorted((tmp_path / "logs").glob("*.parquet")):
            for row in parquet.read_table(path).to_pylist():
                example = tf.train.Example()
                feature = example.features.feature
                feature["model"].bytes_list.value.append(row["model"].encode())
                feature["label"].int64_list.value.append(row["label"])
                feature["outputs"].float_list.value.extend(row["outputs"])
                writer.write(example.SerializeToString())
    tables = []
    for file_format in ("parquet", "tfrecord"):
        module.run(
            logs.replace("parquet", file_format),
            file_format,
            ("model", "label", "outputs", ""),
            from_logits=False,
            states=tmp_path / file_format,
            options=PipelineOptions(["--runner=FnApiRunner"]),
        )
        tables.append(capsys.readouterr().out)
    assert "sober" in tables[0]
    assert "overfitted" in tables[0]
    assert tables[0] == tables[1]


# As programs.


@pytest.mark.slow
def test_guide_to_training_shows_what_it_says():
    lines = printed("calibrated_training")
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
    for name in ("label smoothing", "focal"):
        assert numbers(lines, f"{name:18}")[2] < ece


@pytest.mark.slow
def test_guide_to_rejection_keeps_its_promise():
    lines = printed("rejecting")
    assert numbers(lines, "msp")[0] < numbers(lines, "neg_energy")[0]
    broken, _, coverage = numbers(lines, "delta None  ")
    promised, _, promised_coverage = numbers(lines, "delta 0.1  ")
    assert broken > 50
    assert promised <= 30
    assert 0.3 < promised_coverage < coverage
    assert any(line.startswith("accept [") for line in lines)


@pytest.mark.slow
def test_guide_to_operating_finds_the_drift_and_repairs_it(
    script, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    module = script("operating")
    lines = capsys.readouterr().out.splitlines()
    assert "The certificate holds: True" in lines
    days = [
        int(line[4:].partition(":")[0])
        for line in lines
        if line.startswith("Day ")
    ]
    # The noise grows on day 10; the repaired version has none.
    assert 10 <= min(days) <= 14
    assert len(days) == 3
    assert lines[-1] == "No alarm"
    gap = (
        module.table.overall["confidence_gap_low"],
        module.table.overall["confidence_gap_high"],
    )
    assert -0.02 < gap[0] < gap[1] < 0.02
    assert min(row["p_holm"] for row in module.table.rows) < 0.05
    picture = tmp_path / "work" / "operating" / "monitor.png"
    assert picture.stat().st_size > 10_000


@pytest.mark.slow
def test_quickstart_trains_draws_and_serves(tmp_path):
    lines = printed("quickstart", "--epochs=12", f"--workdir={tmp_path}")
    assert [line[:4] for line in lines[:8]] == [
        f"[{i}/7" for i in range(1, 8)
    ] + [""]
    rows = (tmp_path / "table.txt").read_text().splitlines()
    assert len(rows) == 2 + 7
    for row in rows[2:]:
        values = map(float, re.findall(r"[\d.]+", row[19:]))
        accuracy, nll, ece, low, high, _, _, repaired, *_ = values
        assert accuracy > 0.6
        assert low <= ece <= high
        assert repaired < nll
    *_, words, _, a, b, c = lines
    assert float(words.split()[-1]) < 1e-5
    assert all(Path(line.strip()).exists() for line in (a, b, c))


@pytest.mark.slow
def test_labels_by_objectness_lower_the_confidence_in_context():
    lines = printed("objectness", "--epochs=8", "--width=8")
    hard = numbers(lines, "hard labels")
    adaptive = numbers(lines, "adaptive + context")
    # On images whose objects are painted out.
    assert adaptive[3] < 0.7 * hard[3]


@pytest.mark.slow
def test_every_way_to_train_is_compared(tmp_path):
    path = tmp_path / "runs.csv"
    options = ("--epochs=1", "--seeds=1", f"--csv={path}")
    lines = printed("training_methods", *options)
    names = {"CRL ", "AdaFocal", "SAM ", "ASAM", "pruning", "MMCE", "CaPE"}
    for name in names:
        assert np.all(np.isfinite(numbers(lines, name)[-4:])), name
    runs = read_rows(path)
    assert len(lines) == 2 + 2 + len(runs)
    for run in runs:
        measures = numbers(lines, f"{run['method']:24}")[-4:]
        own = [float(run[m]) for m in ("accuracy", "ece", "nll", "aurc")]
        if run["method"] != "cross entropy":
            assert own == pytest.approx(measures, abs=6e-4), run["method"]

"""The scripts run from their command lines, also on two devices."""

import os
import subprocess
import sys
import types

import numpy as np
import pytest
from data import images as image_sets
from recipe_cases import PAPERS, RECIPES, ROOT
from results import runs as run_results


def start(script, recipe, workdir, *more):
    """A script on two logical devices, one epoch of two steps."""
    files = [f"--flagfile={RECIPES / path}.flags" for path in recipe]
    if files:
        files += ["--steps_per_epoch=2", "--verbose=0"]
    return subprocess.Popen(
        [
            sys.executable,
            PAPERS / f"{script}.py",
            *files,
            "--epochs=1",
            "--strategy=mirrored",
            "--logical_devices=2",
            f"--workdir={workdir}",
            *more,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


@pytest.mark.slow
def test_scripts_train_on_two_devices_to_their_last_file(data_sets, tmp_path):
    digits = ["setups/digits_dense", "losses/cross_entropy"]
    # Its plain batch normalizations differ between the devices.
    net = "--net=small_resnet"
    first = start("train_classifier", digits, tmp_path, net)
    running = [
        start(
            "train_segmentation",
            ["setups/camvid_deeplabv3plus_small", "losses/cross_entropy"],
            tmp_path,
            "--data=voc2012",
            "--validation=0",
            "--image_size=33",
            "--before_interpolation",
            "--background=0",
            "--per=batch",
            "--batch_size=4",
            f"--data_dir={data_sets}",
        ),
        start(
            "train_text",
            ["setups/newsgroups20", "losses/mbls"],
            tmp_path,
            "--validation=0.25",
            "--sequence_length=40",
            "--batch_size=4",
            "--train_vectors",
            f"--data_dir={data_sets}",
        ),
        start(
            "train_objectness",
            [],
            tmp_path / "objectness",
            "--width=2",
            "--method=adaptive, beta 1 + CutMix",
            "--synchronized",
        ),
    ]
    errors = first.communicate()[1]
    assert first.returncode == 0, errors[-3000:]
    dense = tmp_path / "digits_dense"
    begun = f"--begin_with={dense / 'cross_entropy' / 'seed0'}"
    more = ("--noexport", "--head_epochs=0")
    running.append(start("fine_tune", digits, tmp_path, begun, *more))
    for script in running:
        errors = script.communicate()[1]
        assert script.returncode == 0, errors[-3000:]
    table = (tmp_path / "objectness" / "table.txt").read_text()
    assert "CutMix" in table
    counts = {
        dense / "cross_entropy": 599,
        dense / "cross_entropy_tuned": 599,
        tmp_path / "newsgroups20" / "mbls": 8,
        tmp_path / "camvid_deeplabv3plus_small" / "cross_entropy": None,
    }
    for folder, count in counts.items():
        folder = folder / "seed0"
        assert not run_results.read_row(folder)["diverged"]
        labels, logits = run_results.read_predictions(folder, "test")
        # Each example once, not once for each device.
        assert len(labels) == len(logits) == (count or len(labels))
        if "tuned" not in str(folder):
            assert (folder / "model.keras").is_file()
            assert (folder / "serving" / "saved_model.pb").is_file()
    row = run_results.read_row(folder)
    assert {"miou", "ece10", "ece_foreground_per_batch"} < set(row)
    assert row["aurc"] == pytest.approx(
        run_results.measures(labels, logits)["aurc"]
    )
    assert (folder / "confidence.png").stat().st_size > 10_000
    images, truth = image_sets.load_images(
        types.SimpleNamespace(data="digits"), None
    )[2]
    folder = dense / "cross_entropy" / "seed0"
    labels, logits = run_results.read_predictions(folder, "test")
    np.testing.assert_array_equal(labels, truth)
    expected = run_results.load_network(folder)([images.astype("float32")])
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_rejection_is_measured_with_and_without_smoothing():
    done = subprocess.run(
        [
            sys.executable,
            PAPERS / "label_smoothing_selection.py",
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


@pytest.mark.slow
def test_labels_by_objectness_lower_the_confidence_in_context(tmp_path):
    methods = ("hard labels", "adaptive, beta 1 + context")
    done = subprocess.run(
        [
            sys.executable,
            PAPERS / "train_objectness.py",
            "--epochs=8",
            "--width=8",
            "--seed=3",
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
    for name in ("crops.png", "reliability.png"):
        assert (tmp_path / name).stat().st_size > 20_000
    # A row for each, with the columns of the table and more.
    written = run_results.read_rows(tmp_path / "runs.csv")
    assert [row["name"] for row in written] == list(methods)
    for row in written:
        assert row["seed"] == 3 and not row["diverged"]
        place = rows[row["name"]]
        assert row["accuracy"] == pytest.approx(place[0], abs=6e-4)
        assert row["ece100"] == pytest.approx(place[5], abs=6e-4)
        assert row["objectness_deviation"] == pytest.approx(place[7], abs=6e-4)
        assert row["confidence_on_context"] == pytest.approx(place[9], abs=6e-4)

"""The mean answer of several networks, or of several passes of one."""

import subprocess
import sys

import ensemble
import keras
import numpy as np
import pytest
from absl import app
from config.losses import build_model
from recipe_cases import PAPERS
from results import runs as run_results
from results.comparisons import grouped
from runs import images as image_tasks

import keras_calib


def softmax(logits):
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


@pytest.fixture
def fake_runs(parse, tmp_path):
    """Runs with networks that were not trained, of two seeds."""

    def made(*more):
        for seed in range(2):
            setup, method, options = parse(
                "digits_dense", "cross_entropy", f"--seed={seed}", *more
            )
            task = image_tasks.image_task(setup, method, options)
            keras.utils.set_random_seed(seed)
            model = build_model(method, setup, 1, *task.network())
            folder = run_results.run_folder(tmp_path, setup, method, seed)
            run_results.check_flags(folder, setup, method, options)
            plain = keras.Model(model.inputs, model.outputs)
            plain.save(folder / "model.keras")
            row = {"setup": setup.setup, "method": method.method}
            row |= {"options": "", "seed": seed, "diverged": False}
            run_results.write_row(folder, row)
        return run_results.find_runs([tmp_path]), options

    return made


def test_runs_of_a_method_are_averaged_as_an_ensemble(fake_runs, tmp_path):
    folders, options = fake_runs()
    (row,) = ensemble.ensembles(folders, options)
    found = tmp_path / "digits_dense" / "cross_entropy+ensemble" / "seed0"
    labels, logits = run_results.read_predictions(found, "test")
    task = ensemble._task(folders[0], options)
    answers = [
        run_results.predict(run_results.load_network(folder), task.test)
        for folder in folders
    ]
    np.testing.assert_array_equal(labels, answers[1][0])
    mean = np.mean([softmax(z) for _, z in answers], axis=0)
    np.testing.assert_allclose(softmax(logits), mean, rtol=1e-5, atol=1e-7)
    assert row["ece"] == pytest.approx(keras_calib.ece(labels, mean), rel=1e-4)
    assert row["options"] == "members=2"
    assert "ece_ts" not in row
    assert not (found / "validation_predictions.npz").exists()
    # Beside the runs, and no member of another ensemble.
    (methods,) = grouped([tmp_path]).values()
    assert set(methods) == {"cross_entropy", "cross_entropy+ensemble"}
    again = run_results.usable_runs([tmp_path], "model.keras")
    assert again == folders
    with pytest.raises(app.UsageError, match="two runs of a method"):
        ensemble.ensembles(folders[:1], options)
    with pytest.raises(app.UsageError, match="`--passes` needs a network"):
        ensemble.mc_dropout(folders, options, 2)


@pytest.mark.slow
def test_passes_with_dropout_are_averaged(fake_runs, tmp_path):
    folders, options = fake_runs("--dropout=0.5", "--validation=100")
    subprocess.run(
        [sys.executable, PAPERS / "ensemble.py", folders[1], "--passes=3"],
        check=True,
        capture_output=True,
    )
    found = tmp_path / "digits_dense" / "cross_entropy+mc_dropout" / "seed1"
    row = run_results.read_row(found)
    assert row["options"] == "passes=3" and row["seed"] == 1
    assert "ece_ts" in row
    network = run_results.load_network(folders[1])
    task = ensemble._task(folders[1], options)
    predictor = keras_calib.MonteCarloDropout(
        network, 3, per_sample=True, from_logits=True
    )
    for part in ("validation", "test"):
        labels, logits = run_results.read_predictions(found, part)
        images = np.concatenate([x for x, _ in getattr(task, part)])
        # Masks are of places in a batch, as they were predicted.
        passes = predictor.predict_each(images, batch_size=256)
        mean = passes.mean(axis=0)
        np.testing.assert_allclose(softmax(logits), mean, rtol=1e-4, atol=1e-6)
        _, plain = run_results.predict(network, getattr(task, part))
        assert np.abs(softmax(plain) - mean).max() > 0.01

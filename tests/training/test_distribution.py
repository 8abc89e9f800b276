"""Training on several devices and processes gives what one device gives."""

import json
import os
import re
import socket
import subprocess
import sys

import numpy as np
import pytest
from cases import BACKEND, LOSSES
from pages import section
from paths import ROOT, TESTS
from small_trainings import largest_differences, trained

ADDRESS = "127.0.0.1:12345"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

needs_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="strategies of TensorFlow"
)
needs_jax = pytest.mark.skipif(
    BACKEND != "jax", reason="devices and processes of JAX"
)


@pytest.fixture(scope="module")
def both():
    """A strategy of the two devices that conftest.py has made."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(scope="module")
def trained_by_both(both):
    """A model whose pairs are of both replicas."""
    with both.scope():
        return trained("crl acls", uneven=True, validates=False)


@needs_tensorflow
def test_replicas_train_a_model_as_one_device(trained_by_both):
    one = trained("crl acls", uneven=True, validates=False, run_eagerly=True)
    difference, shown = largest_differences(one, trained_by_both)
    assert set(shown) == {"accuracy", "loss"}
    assert max(difference, *shown.values()) < 1e-6, (difference, shown)


@needs_tensorflow
@pytest.mark.parametrize("name", ["FocalLoss", "MMCE-weighted"])
def test_replicas_have_losses_and_gradients_of_one_device(name, both):
    from parts_of_batches import gradients

    cases = [case for case in LOSSES if case.name == name]
    (alone,) = gradients([27], cases).values()
    with both.scope():
        (parts,) = gradients([14, 13], cases).values()
    assert np.abs(alone - parts).max() < 1e-6


@pytest.mark.slow
@needs_tensorflow
def test_replicas_train_every_model_as_one_device():
    done = subprocess.run(
        [sys.executable, TESTS / "training_replicas.py", "2"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert len(answer["models"]) == 10
    for name, (difference, shown) in answer["models"].items():
        # Weights, record, gammas, targets; then losses and accuracy.
        assert difference < 1e-6, (name, difference)
        assert max(shown.values()) < 1e-6, (name, shown)
    assert set(answer["gradients"]) == {case.name for case in LOSSES}
    for name, difference in answer["gradients"].items():
        assert difference < 1e-6, (name, difference)
    # A network with synchronized batch normalization; arrays fed by Keras
    # and by tf.data, in the order of their seed.
    assert len(answer["alike"]) == 3
    assert max(answer["alike"]) < 1e-5, answer["alike"]
    difference, shown = answer["readme"]
    assert difference < 1e-6
    assert max(shown.values()) < 1e-5, shown
    for name, text in answer["refused"].items():
        assert text == "refused", (name, text)
    assert answer["outside"] == "exact"
    # Each example once, in order; a replica predicts its part of a batch.
    assert set(answer["read"]["rows"]) <= {1, 16}
    for name, difference in answer["read"]["differences"].items():
        assert difference < 1e-5, (name, difference)
    (told, quiet), difference = answer["unlike"]
    assert len(told) == 2
    assert "plain/moving_mean']" in told[0]
    assert quiet == []
    assert difference < 1e-6
    for name, (difference, shown) in answer["losses"].items():
        assert difference < 1e-6, (name, difference)
        assert shown < 1e-5, (name, shown)


@pytest.mark.portable
@needs_jax
def test_devices_of_jax_train_models_as_one():
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, TESTS / "training_devices.py"],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "XLA_FLAGS": flags},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer.pop("devices") == 2
    assert answer.pop("validation") == 1
    assert "each batch must divide evenly" in answer.pop("uneven")
    assert len(answer) == 2
    for name, (difference, shown) in answer.items():
        assert difference < 1e-6, (name, difference)
        assert max(shown.values()) < 1e-6, (name, shown)


def free_address():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def outputs_of(commands, **options):
    """What programs print that run at the same time and wait for each other."""
    running = [
        subprocess.Popen(
            [sys.executable, *command],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        for command in commands
    ]
    try:
        outputs = [one.communicate(timeout=300) for one in running]
    finally:
        for one in running:
            one.kill()
    # One that fails ends the others, with errors of their own.
    errors = "\n".join(text[-3000:] for _, text in outputs)
    assert not any(one.returncode for one in running), errors
    return [printed for printed, _ in outputs]


@pytest.mark.slow
@pytest.mark.portable
@needs_jax
def test_processes_train_as_one(tmp_path):
    script, alone = TESTS / "training_processes.py", tmp_path / "alone"
    alone.mkdir()
    address = free_address()
    outputs_of([[script, tmp_path, address, str(k)] for k in range(2)])
    outputs_of([[script, alone]])
    # Of the files the first process writes the only one of each.
    assert (tmp_path / "log.csv").read_text().count("\n") == 3
    one = np.load(alone / "0.npz")
    assert len({name.split("/")[0] for name in one.files}) == 8
    for process in range(2):
        found = np.load(tmp_path / f"{process}.npz")
        assert found.files == one.files
        for name in one.files:
            np.testing.assert_allclose(
                found[name], one[name], rtol=0, atol=1e-6, err_msg=name
            )


@pytest.mark.slow
@pytest.mark.portable
@needs_jax
def test_the_script_of_the_page_trains_on_two_processes(tmp_path):
    text = section("devices.md", "Several hosts")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert code.count(ADDRESS) == 1
    script = tmp_path / "train.py"
    script.write_text(code.replace(ADDRESS, free_address()))
    printed = outputs_of([[script, str(k)] for k in range(2)], cwd=tmp_path)
    # Before that, JAX tells its connections.
    first, second = (text.splitlines()[-1] for text in printed)
    assert first == second and "ece" in first
    assert len(list(tmp_path.glob("trained_?.keras"))) == 2

"""Training on several devices and hosts gives what one device gives."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from cases import BACKEND, LOSSES
from paths import ROOT, TESTS
from small_trainings import largest_differences, trained

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

needs_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="strategies of TensorFlow"
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
    assert len(answer["workers"]) == 2
    for name, difference in answer["workers"].items():
        assert difference < 1e-6, (name, difference)
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


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.mark.slow
@needs_tensorflow
def test_workers_train_as_one_process(tmp_path):
    script = TESTS / "training_workers.py"
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    running = []
    for rank in range(2):
        task = {"type": "worker", "index": rank}
        config = {"cluster": {"worker": addresses}, "task": task}
        running.append(
            subprocess.Popen(
                [sys.executable, script, tmp_path / f"{rank}.npz"],
                env={**ENVIRONMENT, "TF_CONFIG": json.dumps(config)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    errors = [worker.communicate(timeout=500)[1] for worker in running]
    for worker, text in zip(running, errors, strict=True):
        assert worker.returncode == 0, text[-3000:]
    subprocess.run(
        [sys.executable, script, tmp_path / "alone.npz"],
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
    )
    alone = np.load(tmp_path / "alone.npz")
    assert len({name.split("/")[0] for name in alone.files}) == 4
    for rank in range(2):
        worker = np.load(tmp_path / f"{rank}.npz")
        assert worker["refused"]
        for name in alone.files:
            np.testing.assert_allclose(
                worker[name], alone[name], rtol=0, atol=1e-6, err_msg=name
            )


@pytest.mark.portable
@pytest.mark.skipif(BACKEND != "jax", reason="devices of JAX")
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

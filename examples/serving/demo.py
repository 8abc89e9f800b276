r"""Trains, exports and serves a model, and compares its answers with Keras.

    pip install 'keras-calib[examples,serving]'
    python examples/serving/demo.py

A small network learns the handwritten digits of scikit-learn. It is exported
with a temperature and with a selector, which accepts as many held-out images as
it can with 1 % errors. The script serve.py in this folder serves the SavedModel
in another process. Threads then ask for the labels of 1 to 8 images at a time.
After 11 seconds on 2 cores the script prints:

    gRPC: 1000 requests from 8 threads in 1.6 s, 610 per second; 0 labels and
    0 decisions differ, other outputs by 4.8e-07 at most
    REST: 1000 requests from 8 threads in 1.1 s, 924 per second; 0 labels and
    0 decisions differ, other outputs by 4.8e-07 at most
"""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
from absl import app, flags, logging
from grpc_service import GrpcClient
from rest_client import RestClient
from sklearn.datasets import load_digits

import keras_calib

_REQUESTS = flags.DEFINE_integer("requests", 1000, "Requests per client.")
_THREADS = flags.DEFINE_integer("threads", 8, "Threads of a client.")
_EPOCHS = flags.DEFINE_integer("epochs", 10, "Training epochs.")
_WORKDIR = flags.DEFINE_string("workdir", "work/serving_demo", "Output folder.")


def load():
    """Digits for training, for fitting and for testing."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    parts = np.split(order, [898, 1198])
    return [((x[part] / 16).astype("float32"), y[part]) for part in parts]


def train(sets, epochs):
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense
    model = keras.Sequential([dense(128, "relu"), dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    model.fit(*sets[0], epochs=epochs, verbose=0)
    held_out = model.predict(sets[1][0], verbose=0)
    selector = keras_calib.SelectiveClassifier(
        calibrator=keras_calib.TemperatureScaling()
    )
    # One half of the held-out images fits the temperature.
    return model, selector.fit(
        sets[1][1], held_out, risk=0.01, tune_fraction=0.5
    )


def ask(client, images, expected, *, requests, threads):
    """Largest difference, counts of other labels and decisions, seconds."""

    def one(seed):
        rng = np.random.default_rng(seed)
        rows = rng.integers(len(images), size=rng.integers(1, 9))
        given = client.predict({"inputs": images[rows]})
        off = {k: given[k] - 1.0 * expected[k][rows] for k in expected}
        wrong = [int(np.sum(off[name] != 0)) for name in ("label", "accept")]
        return max(float(np.abs(v).max()) for v in off.values()), *wrong

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        differences, *wrong = zip(*pool.map(one, range(requests)), strict=True)
    seconds = time.perf_counter() - start
    return max(differences), *map(sum, wrong), seconds


def run(workdir, *, epochs, requests, threads):
    sets = load()
    model, selector = train(sets, epochs)
    # Servers take the highest number in the folder.
    path = workdir / str(int(time.time()))
    keras_calib.export(model, path, selector=selector)
    print(f"exported {path}, temperature {selector.calibrator.temperature:.3f}")
    images = sets[2][0]
    expected = selector(model.predict(images, verbose=0))
    expected = {k: keras.ops.convert_to_numpy(v) for k, v in expected.items()}
    print(f"{expected['accept'].mean():.1%} of {len(images)} test images pass")
    script = Path(__file__).with_name("serve.py")
    ports = ["--grpc_port=0", "--rest_port=0"]
    command = [sys.executable, script, f"--model={path}", *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            for client_of in (GrpcClient, RestClient):
                name, address = server.stdout.readline().split()
                difference, labels, decisions, seconds = ask(
                    client_of(address),
                    images,
                    expected,
                    requests=requests,
                    threads=threads,
                )
                print(
                    f"{name}: {requests} requests from {threads} threads in "
                    f"{seconds:.1f} s, {requests / seconds:.0f} per second; "
                    f"{labels} labels and {decisions} decisions differ, "
                    f"other outputs by {difference:.1e} at most"
                )
        finally:
            server.terminate()


def main(_):
    logging.set_verbosity(logging.WARNING)
    run(
        Path(_WORKDIR.value),
        epochs=_EPOCHS.value,
        requests=_REQUESTS.value,
        threads=_THREADS.value,
    )


if __name__ == "__main__":
    app.run(main)

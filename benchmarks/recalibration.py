"""Recalibration of int8 files on their own answers.

A small convolutional network learns 20,000 images of Fashion-MNIST. It is
exported with a temperature and a threshold, and quantised to int8 by LiteRT's
converter with 200 training images. Each draw splits the test images at
random: half go to `recalibrate_file` (risk 5 %, delta 0.1), the rest measure
the files. "float" is the float LiteRT file after the same call. ECE has 15
equal bins. "exceeds" counts draws whose risk on the fresh half is above 5 %.

    python benchmarks/recalibration.py --data=DATA \
        --out=benchmarks/results/recalibration.md

It takes about three minutes on two CPU cores.
"""

import lzma
import tempfile
import time
import warnings
from pathlib import Path

import keras
import numpy as np
from absl import app
from absl import flags
from reporting import machine
from reporting import markdown_table
from reporting import publish

import keras_calib as kc

_DATA = flags.DEFINE_string("data", None, "Folder of `fashion_mnist`.")
_EPOCHS = flags.DEFINE_integer("epochs", 12, "Of training.")
_NUM_DRAWS = flags.DEFINE_integer("num_draws", 10, "Splits of the test data.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")
flags.mark_flag_as_required("data")

RISK, DELTA = 0.05, 0.1
NUM_TRAIN, NUM_CALIBRATE = 20_000, 5_000


def load(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images `(n, 28, 28, 1)` in [0, 1] and class ids."""

    def read(kind: str, offset: int) -> np.ndarray:
        with lzma.open(folder / f"{part}-{kind}-ubyte.xz") as file:
            return np.frombuffer(file.read(), np.uint8, offset=offset)

    images = read("images-idx3", 16).reshape(-1, 28, 28, 1)
    return (images / 255.0).astype("float32"), read("labels-idx1", 8)


def network() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 3, 2, activation="relu"),
            layers.Conv2D(32, 3, 2, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def quantise(saved: Path, path: Path, images: np.ndarray) -> None:
    """Writes an int8 file of an exported SavedModel."""
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_saved_model(
        str(saved), signature_keys=["serving_default"]
    )
    converter.experimental_enable_resource_variables = True
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: (
        {"inputs": image[None]} for image in images
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path.write_bytes(converter.convert())


def answers(path: Path, images: np.ndarray) -> dict[str, np.ndarray]:
    """What a LiteRT file answers."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(str(path)).get_signature_runner("serving_default")
    parts = [runner(inputs=x) for x in np.array_split(images, 50)]
    return {k: np.concatenate([x[k] for x in parts]) for k in parts[0]}


def main(_) -> None:
    folder = Path(_DATA.value) / "fashion_mnist"
    x, y = load(folder, "train")
    keras.utils.set_random_seed(0)
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    model.fit(x[:NUM_TRAIN], y[:NUM_TRAIN], 64, _EPOCHS.value, verbose=0)
    test_x, test_y = load(folder, "t10k")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        held = slice(-5000, None)
        logits = model.predict(x[held], verbose=0)
        scaling = kc.TemperatureScaling().fit(y[held], logits)
        selector = kc.SelectiveClassifier(calibrator=scaling)
        selector.fit(y[held], logits, risk=RISK)
        files = {"float": place / "float.tflite", "int8": place / "int8.tflite"}
        kc.export(model, place / "saved", selector=selector)
        kc.export(model, files["float"], selector=selector)
        quantise(place / "saved", files["int8"], x[:200])
        for name, path in files.items():
            found = []
            for draw in range(_NUM_DRAWS.value):
                rng = np.random.default_rng(draw)
                order = rng.permutation(len(test_x))
                fit, fresh = order[:NUM_CALIBRATE], order[NUM_CALIBRATE:]
                made = place / f"{name}_{draw}.tflite"
                start = time.perf_counter()
                told = kc.recalibrate_file(
                    path,
                    test_y[fit],
                    test_x[fit],
                    risk=RISK,
                    delta=DELTA,
                    seed=draw,
                    out=made,
                )
                seconds = time.perf_counter() - start
                given = answers(made, test_x[fresh])
                wrong = given["label"] != test_y[fresh]
                accept = given["accept"]
                scaled = given["logits"].astype("float64")
                probs = np.exp(scaled - scaled.max(-1, keepdims=True))
                probs /= probs.sum(-1, keepdims=True)
                # The logits that the file answered before.
                earlier = np.exp(
                    told.temperature * (scaled - scaled.max(-1, keepdims=True))
                )
                earlier /= earlier.sum(-1, keepdims=True)
                found.append(
                    [
                        told.temperature,
                        kc.ece(test_y[fresh], earlier),
                        kc.ece(test_y[fresh], probs),
                        accept.mean(),
                        wrong[accept].mean(),
                        wrong[accept].mean() > RISK,
                        seconds,
                    ]
                )
            found = np.array(found, float)
            means = found.mean(axis=0)
            rows.append(
                [
                    name,
                    f"{path.stat().st_size / 1e3:.0f}",
                    f"{means[0]:.3f}",
                    f"{means[1]:.4f}",
                    f"{means[2]:.4f}",
                    f"{means[3]:.3f}",
                    f"{means[4]:.4f}",
                    f"{int(found[:, 5].sum())} of {len(found)}",
                    f"{np.median(found[:, 6]):.1f}",
                ]
            )
    header = [
        "file",
        "kB",
        "T",
        "ECE before",
        "ECE after",
        "coverage",
        "risk",
        "exceeds",
        "s",
    ]
    facts = f"Means over {_NUM_DRAWS.value} draws; s is the median."
    table = markdown_table(header, rows)
    publish(f"{facts} {machine()}.\n\n{table}", _OUT.value)


if __name__ == "__main__":
    app.run(main)

"""Calibration of int8 files on their own answers.

A small convolutional network learns 20,000 images of Fashion-MNIST. LiteRT's
converter writes it as a float file, and quantises it to int8 with 200 training
images. Each draw splits the test images at random: on half of them a selector
is fitted on the `FileModel` (30 % of the rows for a temperature, the rest for a
threshold of risk 5 % and delta 0.1), the rest measure its answers. ECE has 15
equal bins. "exceeds" counts draws whose risk on the fresh half is above 5 %.

A fresh half is a sample, so it cannot show what a guarantee is worth. Hence
"violations" takes the fresh half of the first draw as the whole population. The
file's scores are computed once; many samples are drawn with replacement, of as
many rows as chose the file's threshold. Each chooses a threshold anew, whose
true risk is that of the population. The share above 5 % may be delta at most.

"exceeds" is another share: a fresh half has errors by chance, and lacks those
that the other half has. Hence the scores of all test images, by the file of
the first draw, are split again and again as the draws are; "splits" counts.

    python benchmarks/recalibration.py --data=DATA \
        --out=benchmarks/results/recalibration.md

It takes about two minutes on two CPU cores.
"""

import lzma
import tempfile
import time
import warnings
from pathlib import Path

import keras
import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish

import keras_calib as kc

_DATA = flags.DEFINE_string("data", None, "Folder of `fashion_mnist`.")
_EPOCHS = flags.DEFINE_integer("epochs", 12, "Of training.")
_NUM_DRAWS = flags.DEFINE_integer("num_draws", 10, "Splits of the test data.")
_NUM_SAMPLES = flags.DEFINE_integer(
    "num_samples", 2000, "Samples from a population, for each file."
)
_NUM_SPLITS = flags.DEFINE_integer(
    "num_splits", 2000, "Random splits of the test scores, for each file."
)
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


def convert(model: keras.Model, path: Path, images: np.ndarray | None) -> None:
    """Writes a LiteRT file, of int8 with images to take ranges from."""
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if images is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: (
            [image[None]] for image in images
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path.write_bytes(converter.convert())


def answers(
    selector: kc.SelectiveClassifier, logits: np.ndarray
) -> dict[str, np.ndarray]:
    """What a selector answers to what a file returned."""
    found = selector(logits)
    return {k: keras.ops.convert_to_numpy(x) for k, x in found.items()}


def violations(scores: np.ndarray, wrong: np.ndarray, size: int) -> list:
    """Counts samples whose threshold has a true risk above the target.

    Returns that number, the number of samples without any threshold, and the
    means of true risk and coverage of the others.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(_NUM_SAMPLES.value):
        rows = rng.integers(len(scores), size=size)
        selector = kc.SelectiveClassifier()
        try:
            selector.fit_scores(
                scores[rows], ~wrong[rows], risk=RISK, delta=DELTA
            )
        except ValueError:
            # Out of reach: no threshold, and so no violation.
            continue
        accept = scores >= np.float32(selector.threshold)
        found.append([wrong[accept].mean(), accept.mean()])
    risk, coverage = np.array(found).T
    none = _NUM_SAMPLES.value - len(found)
    return [int((risk > RISK).sum()), none, risk.mean(), coverage.mean()]


def splits(scores: np.ndarray, wrong: np.ndarray, size: int) -> list:
    """Counts splits whose fresh half has a risk above the target.

    Returns that number, and how many of these have a threshold whose risk on
    all images is above the target.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(_NUM_SPLITS.value):
        order = rng.permutation(len(scores))
        rows, fresh = order[:size], order[NUM_CALIBRATE:]
        selector = kc.SelectiveClassifier()
        try:
            selector.fit_scores(
                scores[rows], ~wrong[rows], risk=RISK, delta=DELTA
            )
        except ValueError:
            continue
        accept = scores >= np.float32(selector.threshold)
        on_fresh = wrong[fresh][accept[fresh]].mean()
        found.append([on_fresh > RISK, wrong[accept].mean() > RISK])
    exceeds = np.array(found)
    return [int(exceeds[:, 0].sum()), int(exceeds.all(axis=1).sum())]


def main(_) -> None:
    folder = Path(_DATA.value) / "fashion_mnist"
    x, y = load(folder, "train")
    keras.utils.set_random_seed(0)
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    model.fit(x[:NUM_TRAIN], y[:NUM_TRAIN], 64, _EPOCHS.value, verbose=0)
    test_x, test_y = load(folder, "t10k")
    rows, simulated, split = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        files = {"float": place / "float.tflite", "int8": place / "int8.tflite"}
        convert(model, files["float"], None)
        convert(model, files["int8"], x[:200])
        for name, path in files.items():
            found, file = [], kc.exporting.FileModel(path, from_logits=True)
            returned = file.predict(test_x, verbose=0)
            for draw in range(_NUM_DRAWS.value):
                rng = np.random.default_rng(draw)
                order = rng.permutation(len(test_x))
                fit, fresh = order[:NUM_CALIBRATE], order[NUM_CALIBRATE:]
                selector = kc.SelectiveClassifier(
                    calibrator=kc.TemperatureScaling()
                )
                start = time.perf_counter()
                selector.fit_on(
                    file,
                    (test_x[fit], test_y[fit]),
                    risk=RISK,
                    delta=DELTA,
                    tune_fraction=0.3,
                    seed=draw,
                    verbose=0,
                )
                seconds = time.perf_counter() - start
                given = answers(selector, returned[fresh])
                wrong = given["label"] != test_y[fresh]
                accept = given["accept"]
                if draw == 0:
                    size = selector.chosen.num_samples
                    count, none, risk, share = violations(
                        given["score"], wrong, size
                    )
                    simulated.append(
                        [
                            name,
                            f"{size:,}",
                            f"{count:,} of {_NUM_SAMPLES.value:,}",
                            f"{count / _NUM_SAMPLES.value:.3f}",
                            f"{none:,}",
                            f"{risk:.4f}",
                            f"{share:.3f}",
                        ]
                    )
                    whole = answers(selector, returned)
                    missed = whole["label"] != test_y
                    split.append(
                        [
                            name,
                            *(
                                f"{x:,} of {_NUM_SPLITS.value:,}"
                                for x in splits(whole["score"], missed, size)
                            ),
                        ]
                    )
                eces = [
                    kc.ece(test_y[fresh], logits, from_logits=True)
                    for logits in (returned[fresh], given["logits"])
                ]
                found.append(
                    [
                        selector.calibrator.temperature,
                        *eces,
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
    header = [
        "file",
        "rows",
        "violations",
        "share",
        "none found",
        "mean true risk",
        "coverage",
    ]
    more = markdown_table(header, simulated)
    text = f"Samples from a population, risk {RISK}, delta {DELTA}:"
    header = ["file", "splits that exceed", "and exceed on all images"]
    last = "The scores of all test images, split into random halves again:"
    parts = (
        f"{facts} {machine()}.",
        table,
        text,
        more,
        last,
        markdown_table(header, split),
    )
    publish("\n\n".join(parts), _OUT.value)


if __name__ == "__main__":
    app.run(main)

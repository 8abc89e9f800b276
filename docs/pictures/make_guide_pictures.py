"""Draws the pictures of the guides about training and measuring.

    python docs/pictures/make_guide_pictures.py --logits=FILE

and prints the values that the guides give of them.
FILE has the published logits of a DenseNet-40 on CIFAR-10: `logits_val`,
`labels_val`, `logits_test`, `labels_test`. Digits are scikit-learn's, scenes
those of `examples/segmentation.py`. A part of a report is photographed by
Chromium, which must be installed. Two minutes on one core.
"""

import importlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import matplotlib as mpl
import numpy as np
from absl import app, flags
from PIL import Image
from sklearn.datasets import load_digits

import keras_calib

_LOGITS = flags.DEFINE_string("logits", None, "File of logits.", required=True)

FOLDER = Path(__file__).resolve().parent
EXAMPLES = FOLDER.parents[1] / "examples"
LOGITS = {"from_logits": True}
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#595959"


def save(figure, name):
    """Without dates or random ids: the same data give the same bytes."""
    figure.savefig(
        FOLDER / f"{name}.svg", metadata={"Date": None, "Creator": None}
    )


def repaired(data):
    """Test labels, and logits as trained and with a fitted temperature."""
    scaling = keras_calib.TemperatureScaling().fit(
        data["labels_val"], data["logits_val"]
    )
    logits = data["logits_test"]
    return data["labels_test"], {
        "as trained": logits,
        "with a temperature": np.asarray(scaling(logits)),
    }


def calibration_and_ranking(plt, data):
    """A temperature repairs the one and hardly changes the other."""
    labels, outputs = repaired(data)
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.6))
    left.plot([0, 1], [0, 1], color=GREY, lw=1)
    for when, values, color, dashes in zip(
        ("before", "after"),
        outputs.values(),
        (ORANGE, BLUE),
        ("-", "--"),
        strict=True,
    ):
        metric = keras_calib.ECE(num_bins=10, **LOGITS)
        metric.update_state(labels, values)
        bins = metric.bins()
        full = np.asarray(bins.weight) > 0
        left.plot(
            np.asarray(bins.mean_confidence)[full],
            np.asarray(bins.accuracy)[full],
            color=color,
            ls=dashes,
            marker="o",
            label=f"{when}: {keras_calib.ece(labels, values, **LOGITS):.3f}",
        )
        curve = keras_calib.functional.risk_coverage_curve(
            labels, values, **LOGITS
        )
        rows = slice(0, None, 50)
        right.plot(
            curve.coverage[rows],
            curve.risk[rows],
            color=color,
            ls=dashes,
            lw=2,
            label=f"{when}: {keras_calib.aurc(labels, values, **LOGITS):.4f}",
        )
    left.set(title="Calibration", xlabel="confidence", ylabel="accuracy")
    right.set(title="Ranking", xlabel="coverage", ylabel="risk")
    for axis, title in ((left, "ECE"), (right, "AURC")):
        axis.set_xticks([0, 0.5, 1])
        axis.legend(frameon=False, loc="upper left", title=title)
    save(figure, "calibration_and_ranking")


def interval_and_samples(plt, data):
    """ECE and its interval, of more and more test images."""
    labels, outputs = repaired(data)
    sizes = (100, 300, 1000, 3000, 10000)
    figure, axis = plt.subplots(figsize=(6.4, 3.4))
    for (name, values), color, shift in zip(
        outputs.items(), (ORANGE, BLUE), (0.94, 1.06), strict=True
    ):
        ends, points = [], []
        for size in sizes:
            metric = keras_calib.ECE(**LOGITS)
            metric.update_state(labels[:size], values[:size])
            points.append(float(metric.result()))
            ends.append(metric.interval(0.95))
        low, high = np.transpose(ends)
        x = np.multiply(sizes, shift)
        axis.vlines(x, low, high, color=color, lw=2)
        axis.plot(x, points, "o", color=color, label=name)
        print(name, np.round(points, 3), np.round(ends, 3).tolist())
    axis.set_xscale("log")
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.minorticks_off()
    axis.set(
        xlabel="test images",
        ylabel="ECE and its 95 % interval",
        ylim=(0, None),
    )
    axis.legend(frameon=False)
    save(figure, "interval_and_samples")


def calibration_while_training(plt):
    """ECE after each epoch on 300 noisy digits, for three losses."""
    pixels, digits = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(digits))
    pixels, digits = (pixels[order] / 16).astype("float32"), digits[order]
    held_out = np.tile(pixels[300:], (4, 1)), np.tile(digits[300:], 4)

    def noisy(x):
        return x + 0.3 * rng.standard_normal(x.shape, "float32")

    train = noisy(pixels[:300]), digits[:300]
    val = noisy(held_out[0]), held_out[1]
    losses = {
        "cross entropy": keras.losses.SparseCategoricalCrossentropy(**LOGITS),
        "focal loss, gamma 3": keras_calib.FocalLoss(gamma=3.0, **LOGITS),
        "ACLS, margin 6": keras_calib.ACLS(margin=6.0, **LOGITS),
    }
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.4))
    styles = ((ORANGE, "-"), (GREEN, "-."), (BLUE, "--"))
    for (name, loss), (color, dashes) in zip(
        losses.items(), styles, strict=True
    ):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        sgd = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
        model.compile(sgd, loss)
        logger = keras_calib.CalibrationLogger(val, batch_size=512)
        logs = model.fit(*train, epochs=40, callbacks=[logger], verbose=0)
        epochs = np.arange(1, 41)
        for axis, key in zip(axes, ("cal_accuracy", "cal_ece"), strict=True):
            axis.plot(
                epochs,
                logs.history[key],
                color=color,
                ls=dashes,
                lw=2,
                label=name,
            )
        for key in ("cal_ece", "cal_nll"):
            best = int(np.argmin(logs.history[key]))
            print(
                f"{name}: {key} is lowest after epoch {best + 1},",
                *(
                    f"{logs.history[k][best]:.3f}"
                    for k in (key, "cal_accuracy")
                ),
            )
    axes[0].set(title="Accuracy", xlabel="epoch", ylim=(0, 1))
    axes[1].set(title="ECE", xlabel="epoch", ylim=(0, None))
    axes[0].legend(frameon=False, loc="lower right")
    save(figure, "calibration_while_training")


def segmentation(plt):
    """The display of one scene, with MbLS as in the example."""
    sys.path.insert(0, str(EXAMPLES))
    example = importlib.import_module("segmentation")
    train, _, (images, masks) = (
        example.scenes(count, 1.0, seed)
        for seed, count in enumerate((8, 8, 40))
    )
    loss = keras_calib.MbLS(margin=8.0, **example.READ)
    model = example.trained(loss, train, epochs=120)
    display = keras_calib.SegmentationDisplay(
        keras_calib.Predictions.of_model(model, (images[:1], masks[:1]))
    )
    colors = mpl.colors.ListedColormap(["white", ORANGE, "#CCCCCC"])
    kind = np.where(display.ignored, 2, display.wrong)
    figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.7))
    for axis, title, values, cmap, top in (
        (axes[0], "image", images[0, ..., 0], "gray", None),
        (axes[1], "confidence", display.confidence, "viridis", 1),
        (axes[2], "errors", kind, colors, 2),
    ):
        low = None if top is None else 0
        axis.imshow(values, cmap, interpolation="none", vmin=low, vmax=top)
        axis.set(title=title, xticks=[], yticks=[])
        axis.spines[:].set_visible(True)
    save(figure, "segmentation")
    scenes_by_image(example, model)


def scenes_by_image(example, model):
    """The part of a report that is about images, of scenes unlike in noise."""
    parts = [example.scenes(20, 0.6 + 0.2 * k, 10 + k) for k in range(3)]
    data = [np.concatenate(x) for x in zip(*parts, strict=True)]
    names = ["background", "disc", "square"]
    html = keras_calib.report(
        model, tuple(data), class_names=names, num_mistakes=6, verbose=0
    ).html
    question = "Which images are worse"
    blocks = html.split("<h2 ")
    (block,) = (x for x in blocks if question in x)
    style = html.split("<body>")[0] + "<body style='padding-top:0'>"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(f"{style}<h2 {block}", encoding="utf-8")
        subprocess.run(
            [
                shutil.which("chromium") or "google-chrome",
                *("--headless=new", "--no-sandbox", "--hide-scrollbars"),
                "--window-size=1160,1130",
                f"--screenshot={folder}/page.png",
                page.as_uri(),
            ],
            check=True,
        )
        picture = Image.open(f"{folder}/page.png").convert("RGB").quantize(96)
        picture.save(FOLDER / "segmentation_page.png", optimize=True)


def main(_):
    mpl.use("Agg")
    plt = importlib.import_module("matplotlib.pyplot")
    mpl.rcParams.update(
        {
            "svg.hashsalt": "keras_calib",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.sans-serif": ["Arial", "Helvetica", "DejaVu Sans"],
            "axes.spines.top": False,
            "axes.spines.right": False,
            "savefig.facecolor": "white",
            "font.size": 12,
            "figure.autolayout": True,
        }
    )
    with np.load(_LOGITS.value) as data:
        calibration_and_ranking(plt, data)
        interval_and_samples(plt, data)
    calibration_while_training(plt)
    segmentation(plt)


if __name__ == "__main__":
    app.run(main)

r"""Several labels at once, on photographs: what calibrators and selectors do.

    python benchmarks/several_labels.py --data_dir=DIR \
        --out=benchmarks/results/several_labels.md

The labels of a crop of a street scene (CamVid, 12 crops of each photograph) are
the classes that cover at least 2 % of it. A small network reads colours and
edges of 4 by 4 fields. Photographs are split at random into parts that train,
calibrate, select and test, anew for each seed. It takes three
minutes of processor time.
"""

import keras
import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish

import keras_calib as kc

_DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of TFDS data.")
_SEEDS = flags.DEFINE_integer("seeds", 10, "Number of splits.")
_OUT = flags.DEFINE_string("out", "", "Markdown file to write.")

CLASSES = "sky building pole road pavement tree sign fence car pedestrian"
CLASSES = (*CLASSES.split(), "bicyclist")
SIDE, FIELDS, SHARE = 60, 4, 0.02
RISK, DELTA = 0.05, 0.1
LOGITS = {"from_logits": True}
FITS = {
    "none": None,
    "temperature, shared": (kc.TemperatureScaling, True),
    "temperature by label": (kc.TemperatureScaling, False),
    "Platt, shared": (kc.AffineScaling, True),
    "Platt by label": (kc.AffineScaling, False),
    "beta by label": (kc.BetaCalibration, False),
    "isotonic by label": (kc.IsotonicCalibration, False),
}
# Fits whose selectors are measured, and whether all labels share delta.
SELECTED = {"none": (True, False), "Platt by label": (True, False)}


def crops(x):
    """Crops `(12, side, side, ...)` of a photograph."""
    x = x.reshape(-1, SIDE, x.shape[1] // SIDE, SIDE, *x.shape[2:])
    return np.moveaxis(x, 2, 1).reshape(-1, SIDE, SIDE, *x.shape[4:])


def read(data_dir):
    """Features and labels of the crops, by photograph."""
    import tensorflow_datasets as tfds

    builder = tfds.builder("camvid", data_dir=data_dir)
    features, labels = [], []
    for part in builder.as_dataset().values():
        for e in tfds.as_numpy(part):
            image = crops(e["image"].astype("float32") / 255)
            mask = crops(e["segmentation_mask"][..., 0])
            edges = np.abs(np.diff(image, axis=1, append=image[:, -1:]))
            parts = np.concatenate([image, edges], axis=-1)
            size = SIDE // FIELDS
            parts = parts.reshape(-1, FIELDS, size, FIELDS, size, 6)
            found = [f(axis=(2, 4)) for f in (parts.mean, parts.std)]
            found = [x.reshape(len(image), -1) for x in found]
            features.append(np.concatenate([*found, np.eye(len(image))], -1))
            shares = [(mask == k).mean((1, 2)) for k in range(len(CLASSES))]
            labels.append(np.stack(shares, axis=-1) >= SHARE)
    return np.stack(features).astype("float32"), np.stack(labels).astype(int)


def trained(x, y, seed):
    """A network that is sure of what it was trained on."""
    keras.utils.set_random_seed(seed)
    norm = keras.layers.Normalization()
    norm.adapt(x)
    hidden = keras.layers.Dense(256, "relu"), keras.layers.Dense(len(CLASSES))
    model = keras.Sequential([keras.Input(x.shape[1:]), norm, *hidden])
    loss = keras.losses.BinaryCrossentropy(**LOGITS)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    model.fit(x, y, epochs=40, verbose=0)
    return model


def selected(selector, labels, logits):
    """Coverage, labels that answer, highest risk, and labels above."""
    answers = selector(logits)
    accept, said = (np.asarray(answers[k]) for k in ("accept", "labels"))
    wrong = (accept & (said != labels)).sum(axis=0)
    risks = wrong[accept.any(0)] / accept.sum(axis=0)[accept.any(0)]
    return accept.mean(), len(risks), risks.max(), (risks > RISK).sum()


def run(features, labels, seed):
    """Measures after each fit, and of each selector, on one split."""
    order = np.random.default_rng(seed).permutation(len(features))
    cuts = (np.array([0.4, 0.6, 0.8]) * len(order)).astype(int)
    parts = [
        (np.concatenate(features[i]), np.concatenate(labels[i]))
        for i in np.split(order, cuts)
    ]
    model = trained(*parts[0], seed)
    cal, sel, test = ((y, model.predict(x, verbose=0)) for x, y in parts[1:])
    measures, selectors = [], []
    for name, fit in FITS.items():
        outputs, calibrator = test[1], None
        if fit is not None:
            calibrator = kc.labels.MultiLabelCalibrator(fit[0](), shared=fit[1])
            outputs = np.asarray(calibrator.fit(*cal, num_folds=0)(test[1]))
        metrics = kc.ECE(mode="binary", **LOGITS), kc.NLL(**LOGITS)
        metrics = [kc.MultiLabel(metric) for metric in metrics]
        for metric in metrics:
            metric.update_state(test[0], outputs)
        measures.append([float(metric.result()) for metric in metrics])
        for at_once in SELECTED.get(name, ()):
            part = kc.labels.MultiLabelSelector(calibrator=calibrator)
            part.fit(*sel, risk=RISK, delta=DELTA, at_once=at_once)
            selectors.append(selected(part, *test))
    return measures, selectors


def told(names, values, digits):
    """Rows of a table."""
    return [
        [name, *(f"{x:.{d}f}" for x, d in zip(row, digits, strict=True))]
        for name, row in zip(names, values, strict=True)
    ]


def main(_):
    features, labels = read(_DATA_DIR.value)
    runs = [run(features, labels, seed) for seed in range(_SEEDS.value)]
    measures, found = (np.array(x) for x in zip(*runs, strict=True))
    scatter = measures[..., :1].std(axis=0, ddof=1)
    fits = np.concatenate([measures.mean(axis=0), scatter], axis=-1)
    splits = (found[..., 3:] > 0).sum(axis=0)
    rows = np.concatenate([found.mean(axis=0), splits], axis=-1)
    names = [
        f"{name}, {'all labels' if at_once else 'each alone'}"
        for name, ways in SELECTED.items()
        for at_once in ways
    ]
    shares = told(CLASSES, labels.mean((0, 1))[:, None], (2,))
    spread = ", ".join(map(" ".join, shares))
    text = [
        f"{len(labels)} photographs of CamVid, {labels.shape[1]} crops of "
        f"each, means over {len(runs)} splits of the photographs. {machine()}.",
        f"Shares of the crops with each label: {spread}.",
        markdown_table(
            ["calibrator", "macro ECE", "macro NLL", "ECE, sd of splits"],
            told(FITS, fits, (4, 4, 4)),
        ),
        f"Selectors for risk {RISK} with delta {DELTA}, on the test part. The "
        "crops of a photograph, and photographs of one drive, depend on each "
        "other, so that the guarantee is not exact. The risks on the test "
        "part have errors of their own.",
        markdown_table(
            ["calibrator, guarantee for", "coverage", "labels that answer"]
            + ["highest risk of a label", "labels above", "splits with any"],
            told(names, rows, (3, 1, 4, 1, 0)),
        ),
    ]
    publish("\n\n".join(text), _OUT.value)


if __name__ == "__main__":
    app.run(main)

"""What is kept of a training: predictions, a row of measures, the flags."""

import csv
import importlib
import io
import json
from pathlib import Path

import keras
import numpy as np
from absl import app
from config.recipe_flags import defaults

import keras_calib
from keras_calib.backend.files import replacing
from keras_calib.functional import coverage_at_risk
from keras_calib.predictions.batches import predict_batches
from results.pixels import enlarged, shrunk

_ROW, _FLAGS, _PREDICTIONS = (
    "results.csv",
    "flags.json",
    "{}_predictions.npz",
)
# What Python writes, and JSON does not read.
_WORDS = {"True": True, "False": False}
_WORDS |= {text: float(text) for text in ("nan", "inf", "-inf")}
# Measures of which more is better.
_RISING = ("accuracy", "ap", "ar", "coverage_at_", "dice", "miou")
# Measures of which less is better; of the others neither is.
_FALLING = ("aece", "augrc", "aurc", "brier", "classwise_ece", "eaurc", "ece")
_FALLING += ("image_ece", "mce", "nll", "objectness_dev", "overc", "underc")


def run_folder(workdir, setup, method, seed):
    """Folder of the files of a run."""
    return Path(workdir) / setup.setup / method.method / f"seed{seed}"


def rises(measure):
    """Whether more of a measure is better."""
    return measure.startswith(_RISING)


def mode_of(measure):
    """Whether the least or the largest value is best, or neither, None."""
    if rises(measure):
        return "max"
    return "min" if measure.startswith(_FALLING) else None


def predict(
    model, data, *, pixels_per_image=None, ignore_class=None, meter=None
):
    """Labels and float32 logits of a data set.

    Args:
        model: Model with logits as its output.
        data: Batches of inputs and labels, in their order. Each example is
            predicted once, also by a model of several replicas.
        pixels_per_image: Number of labelled pixels to keep of each image of
            dense outputs, drawn at random, the same in each run.
        ignore_class: Class id of pixels that are not labelled.
        meter: A `results.pixels.PixelMeter` that gets all pixels, or None. If
            there are fewer logits than labels, as before the last
            interpolation, it gets the interpolated logits.

    Returns:
        Class ids `(n,)`, or pairs with objectness `(n, 2)`, and logits
        `(n, num_classes)`.
    """
    random = np.random.default_rng(0)
    kept = []
    for batch in predict_batches(model, data):
        labels = np.asarray(batch.labels)
        logits = np.asarray(batch.outputs, "float32")
        if batch.sample_weight is not None:
            raise ValueError("`data` must have neither weights nor masks")
        if meter is not None:
            meter.update(labels, enlarged(logits, labels.shape[1:3]))
        if logits.ndim > 2:
            for image, truth in zip(logits, labels, strict=True):
                truth = shrunk(truth, image.shape[:-1])
                places = np.flatnonzero(truth != ignore_class)
                if pixels_per_image and len(places) > pixels_per_image:
                    places = random.choice(
                        places, pixels_per_image, replace=False
                    )
                kept.append(
                    (
                        truth.reshape(-1)[places],
                        image.reshape(-1, image.shape[-1])[places],
                    )
                )
        else:
            kept.append((labels, logits))
    labels, logits = (
        np.concatenate(column) for column in zip(*kept, strict=True)
    )
    return (labels.astype("int32") if labels.ndim == 1 else labels), logits


def measures(labels, logits, score="msp"):
    """Measures of one model on one data set, by name; fractions.

    Args:
        labels: Class ids `(n,)`.
        logits: Shape `(n, num_classes)`.
        score: What ranks, as in `keras_calib.aurc`.

    Raises:
        ValueError: If shapes do not fit.
    """
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            "`labels` must be a class id for each row of `logits`. Received: "
            f"labels.shape={labels.shape}, logits.shape={logits.shape}"
        )
    exact = {"from_logits": True}
    ranked = {"score": score, **exact}
    # As Adaptive Label Smoothing measures.
    pycalib = {"bin_confidence": "pycalib", **exact}
    return {
        "accuracy": float(np.mean(np.argmax(logits, axis=-1) == labels)),
        "nll": keras_calib.nll(labels, logits, **exact),
        "brier": keras_calib.brier_score(labels, logits, **exact),
        "ece": keras_calib.ece(labels, logits, **exact),
        "ece10": keras_calib.ece(labels, logits, num_bins=10, **exact),
        "aece": keras_calib.functional.aece(labels, logits, **exact),
        "aece10": keras_calib.functional.aece(
            labels, logits, num_bins=10, **exact
        ),
        "ece100": keras_calib.ece(labels, logits, num_bins=100, **exact),
        "ece_pycalib": keras_calib.ece(labels, logits, **pycalib),
        "ece100_pycalib": keras_calib.ece(
            labels, logits, num_bins=100, **pycalib
        ),
        "mce": keras_calib.functional.mce(labels, logits, **exact),
        "mce100": keras_calib.functional.mce(
            labels, logits, num_bins=100, **exact
        ),
        "confidence": keras_calib.functional.mean_confidence(
            labels, logits, **exact
        ),
        "overconfidence": keras_calib.functional.overconfidence(
            labels, logits, **exact
        ),
        "underconfidence": keras_calib.functional.underconfidence(
            labels, logits, **exact
        ),
        **_ranking(labels, logits, **ranked),
    }


def repaired(validation, test, temperatures=()):
    """Measures on test data after a repair on validation data.

    The repairs are a temperature by likelihood (`_ts`) or by ECE on a grid
    (`_ts_ece`), and logit normalisation, which changes only the ranking. Its
    logits are centred (`_norm`), or not (`_norm_raw`), as equation 17 of Xia et
    al. (2024) is printed.

    Args:
        validation: Labels and logits to repair with.
        test: Labels and logits to measure on.
        temperatures: The grid, by default 0.1, 0.2 ... 10; else the row says
            it as `grid_ts_ece`.
    """
    labels, logits = test
    found = {}
    if temperatures:
        found["grid_ts_ece"] = " ".join(f"{t:g}" for t in temperatures)
    for suffix, objective in (("_ts", "nll"), ("_ts_ece", "ece")):
        scaling = keras_calib.TemperatureScaling(
            objective=objective,
            grid=(objective == "ece" and temperatures) or None,
        )
        scaling.fit(*validation)
        found[f"temperature{suffix}"] = scaling.temperature
        scaled = keras.ops.convert_to_numpy(scaling(logits))
        found |= {
            f"{name}{suffix}": function(labels, scaled, from_logits=True)
            for name, function in (
                ("nll", keras_calib.nll),
                ("ece", keras_calib.ece),
                ("aece", keras_calib.functional.aece),
                ("aurc", keras_calib.aurc),
            )
        }
    for suffix, center in (("_norm", True), ("_norm_raw", False)):
        score = keras_calib.LogitNormalization(center=center).fit(*validation)
        found[f"p{suffix}"] = score.p
        ranking = _ranking(labels, logits, score=score, from_logits=True)
        found |= {f"{name}{suffix}": x for name, x in ranking.items()}
    return found


def _ranking(labels, logits, **options):
    return {
        "aurc": keras_calib.aurc(labels, logits, **options),
        **{
            f"coverage_at_{round(100 * risk)}": coverage_at_risk(
                labels, logits, risk=risk, **options
            )
            for risk in (0.01, 0.05)
        },
    }


def save_predictions(folder, part, labels, logits):
    """Writes the predictions on one part of the data."""
    np.savez(folder / _PREDICTIONS.format(part), labels=labels, logits=logits)


def read_predictions(folder, part):
    """Labels and logits that `save_predictions` wrote."""
    with np.load(Path(folder) / _PREDICTIONS.format(part)) as arrays:
        return arrays["labels"], arrays["logits"]


def write_row(folder, row, name=_ROW):
    """Writes a row of the run, as CSV; whole, or not at all."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(row))
    writer.writeheader()
    writer.writerow(row)
    _write_whole(folder / name, text.getvalue())


def read_row(folder):
    """The run's row; numbers where it has numbers."""
    (row,) = read_rows(Path(folder) / _ROW)
    return row


def read_rows(path):
    """The rows of a CSV file; numbers where it has numbers."""
    with open(path, newline="", encoding="utf-8") as file:
        return [
            {name: _value(text) for name, text in row.items()}
            for row in csv.DictReader(file)
        ]


def load_network(folder):
    """A run's network, a plain Keras model of pixels to logits.

    Raises:
        ValueError: If the run did not write one.
    """
    # Keras knows the layers of its own once they are imported.
    importlib.import_module("nets.catalogue")
    path = Path(folder) / "model.keras"
    if not path.is_file():
        raise ValueError(
            "`folder` must be that of a run with model.keras, made without "
            f"--noexport. Received: folder={folder}"
        )
    return keras.saving.load_model(path, compile=False)


def read_flags(folder):
    """The flags of a run, by name; empty if none were written."""
    path = Path(folder) / _FLAGS
    if not path.is_file():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))


def check_flags(folder, setup, method, options, **extra):
    """Writes the flags of a run into its folder, or compares them.

    Args:
        folder: Folder of the run.
        setup: A `Setup`.
        method: A `Method`.
        options: `Options`.
        **extra: What else makes it another run; not given if False.

    Raises:
        ValueError: If the folder holds a run of other flags: it is neither
            replaced nor gone on with. One that failed before its first epoch
            ended has left nothing, and is replaced.
    """
    flags = {**setup._asdict(), **method._asdict()}
    flags |= {
        name: getattr(options, name)
        for name in ("seed", "precision", "steps_per_epoch", "vectors")
    }
    flags |= {name: value for name, value in extra.items() if value}
    flags = json.loads(json.dumps(flags))
    path = Path(folder) / _FLAGS
    before = read_flags(folder)
    if before:
        # Flags that there were not yet had the values they have by default.
        known = {k: v for part in defaults() for k, v in part._asdict().items()}
        before = {k: known[k] for k in flags if k in known} | before
    # After an epoch there is a backup.
    if before and any(path.parent.glob("*.npz")):
        names = sorted({*before, *flags})
        other = {
            name: (before.get(name), flags.get(name))
            for name in names
            if before.get(name) != flags.get(name)
        }
        if other:
            raise ValueError(
                "A run must have the flags of the run in its folder; choose "
                "another --method or --workdir, or delete the folder. "
                f"Received: folder={folder}, (before, now)={other}"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_whole(path, json.dumps(flags, indent=1) + "\n")


def find_runs(folders):
    """Folders of the finished runs in some folders, sorted."""
    found = {
        path.parent for folder in folders for path in Path(folder).rglob(_ROW)
    }
    return sorted(found)


def repairable_runs(folders):
    """Folders of the runs in some folders that can be repaired.

    Raises:
        app.UsageError: If there is none that has predictions on validation
            data and did not diverge.
    """
    return usable_runs(folders, _PREDICTIONS.format("validation"))


def usable_runs(folders, name):
    """Folders of the runs in some folders that wrote a file.

    Without those that diverged, and without the cells of grids, whose test
    data are validation data.

    Raises:
        app.UsageError: If there is none.
    """
    rows = {
        folder: read_row(folder)
        for folder in find_runs(folders)
        if (folder / name).is_file()
    }
    found = [
        folder
        for folder, row in rows.items()
        if not row["diverged"] and row.get("tuned") != "grid"
    ]
    if not found:
        raise app.UsageError(
            f"Name folders of runs that did not diverge, with {name}. "
            f"Received: {folders}"
        )
    return found


def _write_whole(path, text):
    with replacing(path, text=True) as file:
        file.write(text)


def _value(text):
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return _WORDS.get(text, text)

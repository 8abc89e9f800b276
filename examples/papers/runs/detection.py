"""From the flags of a set-up and a classifier's run to a detector's."""

import shutil

import keras
import numpy as np
from absl import app, flags
from config import recipe_flags
from config.optimizers import build_optimizer
from config.strategies import scope
from data.detection import evaluation_batches, training_batches
from nets.detector import DETECTORS, build_detector
from results.detections import average_precision
from results.runs import load_network, read_flags, run_folder, write_row

from keras_calib.backend.late import tensorflow as tf
from runs.training import Task, fit, own_folder


def check_setup(setup, method):
    """Raises unless the flags are those of a detector.

    Args:
        setup: A `Setup`.
        method: A `Method`.

    Raises:
        app.UsageError: If they are not.
    """
    if setup.net not in DETECTORS:
        raise app.UsageError(
            f"`--net` must be one of {sorted(DETECTORS)}. "
            f"Received: --net={setup.net}"
        )
    values = flags.FlagValues()
    recipe_flags.define(values)
    values([""])
    if method != recipe_flags.read(values)[1]:
        raise app.UsageError(
            "A detector must have no loss among its flags: its backbone has "
            "been trained with one, and its own loss is RetinaNet's. "
            f"Received: --method={method.method}"
        )
    wanted = {"validation": 0.0, "keep": "last", "sam_rho": 0.0}
    other = {
        name: getattr(setup, name)
        for name, value in wanted.items()
        if getattr(setup, name) != value
    }
    if other:
        raise app.UsageError(
            f"A detector must have the flags {wanted}. Received: {other}"
        )
    last = DETECTORS[setup.net].levels[1]
    if len(setup.image_size) != 1 or setup.image_size[0] % 2**last:
        raise app.UsageError(
            f"`--image_size` must be one number, a multiple of {2**last}. "
            f"Received: --image_size={','.join(map(str, setup.image_size))}"
        )
    if setup.augment not in ("none", "flip"):
        raise app.UsageError(
            "`--augment` must be none or flip for a detector. "
            f"Received: --augment={setup.augment}"
        )


def backbone_names(folder):
    """Method and set-up of the run in a folder.

    Raises:
        app.UsageError: If there is no such run.
    """
    found = read_flags(folder)
    if not found:
        raise app.UsageError(
            "`--begin_with` must be the folder of a run, with flags.json and "
            f"model.keras. Received: --begin_with={folder}"
        )
    return found["method"], found["setup"]


def detector(folder, setup, num_classes, options):
    """A compiled detector whose backbone is the network of a run.

    Raises:
        app.UsageError: If the run has no network that fits.
    """
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(options.precision)
    with scope(options.strategy, options.logical_devices):
        try:
            network = load_network(folder)
            shape = network.input_shape[1:]
            if len(shape) != 3 or shape[-1] != 3:
                raise ValueError(
                    "`model` must take RGB images. "
                    f"Received: input_shape={network.input_shape}"
                )
            return build_detector(
                network,
                DETECTORS[setup.net],
                setup.image_size[0],
                num_classes,
            )
        except ValueError as error:
            raise app.UsageError(
                "`--begin_with` must be the folder of a run whose network "
                f"--net={setup.net} can be built on. Received: "
                f"--begin_with={folder}: {error}"
            ) from error


def run(model, data, setup, method, options, **extra):
    """Trains a detector, measures it and writes it all.

    Args:
        model: A `Detector`; its variables change.
        data: `Detections`.
        setup: A `Setup`.
        method: A `Method`, of which the name counts.
        options: `Options`.
        **extra: More columns of the row, which make it another run.

    Returns:
        The row: names of the run, and measures on test data.

    Raises:
        RuntimeError: If another process trains in the folder.
        ValueError: If the folder holds a run of other flags.
        app.UsageError: If there are fewer images than a batch has.
    """
    steps = options.steps_per_epoch or data.count // setup.batch_size
    if not steps:
        raise app.UsageError(
            "`--batch_size` must not be above the number of training images "
            f"with boxes. Received: --batch_size={setup.batch_size}, "
            f"{data.count} images"
        )
    folder = run_folder(options.workdir, setup, method, options.seed)
    with own_folder(folder, setup, method, options, **extra):
        with scope(options.strategy, options.logical_devices):
            model.compile(
                build_optimizer(setup, steps), jit_compile=options.jit
            )
        task = Task(
            train=lambda done: training_batches(
                data,
                setup,
                seed=options.seed,
                first_epoch=done,
                steps=steps,
            ),
            calibration=None,
            validation=None,
            test=data.test,
            steps=steps,
            num_samples=data.count,
            network=None,
        )
        epochs, seconds = fit(model, task, setup, options, folder)
        row = {
            "setup": setup.setup,
            "method": method.method,
            "options": "",
            "seed": options.seed,
            "epochs": epochs,
            "seconds": round(seconds, 1),
            **extra,
        }
        weights = model.get_weights()
        row["diverged"] = not all(np.isfinite(part).all() for part in weights)
        if not row["diverged"]:
            row |= evaluate(model, data, setup)
        if options.export:
            export(model, folder / "serving")
        write_row(folder, row)
    return row


def export(model, folder):
    """Writes a SavedModel of what `Detector.detect` does, as `serve`.

    Args:
        model: A `Detector`.
        folder: Where; it is replaced.
    """
    # No .keras file: the heads of KerasHub 0.32 cannot be read from one.
    shutil.rmtree(folder, ignore_errors=True)
    archive = keras.export.ExportArchive()
    archive.track(model)
    images = tf.TensorSpec((None, *model.input_shape[1:]), "float32")
    archive.add_endpoint("serve", model.detect, input_signature=[images])
    archive.write_out(str(folder), verbose=False)


def evaluate(model, data, setup):
    """Measures of a detector on the test data, by name."""
    detect = tf.function(model.detect)
    truth, found = [], []
    for images, marks in evaluation_batches(
        data.test, setup.image_size[0], setup.batch_size
    ):
        boxes, scores, labels, counts = (x.numpy() for x in detect(images))
        for place, count in enumerate(counts):
            own = {name: part[place].numpy() for name, part in marks.items()}
            found.append(
                {
                    "boxes": boxes[place, :count] * own.pop("factors"),
                    "scores": scores[place, :count],
                    "labels": labels[place, :count],
                }
            )
            truth.append(own)
    return average_precision(truth, found, len(data.names))

"""The kinds of labels that `train_objectness.py` compares, and its models."""

import shutil
from functools import partial
from typing import Any, NamedTuple

import keras
from config.strategies import make_alike, scope
from data.boxed_digits import boxed_digits
from nets.convolutions import synchronize
from nets.small_resnet import small_resnet
from results.objectness import save_measures
from results.runs import check_flags, read_row, run_folder

import keras_calib
from keras_calib.backend.locks import PathLock
from runs.training import Clock

# What differs between the methods: options of the pipeline.
METHODS = {
    "hard labels": {"labels": "one_hot"},
    "label smoothing": {"labels": "one_hot"},
    "CutMix": {"labels": "one_hot", "mix": keras_calib.data.cutmix},
    **{
        f"adaptive, beta {beta:g}{' + context' if share else ''}": {
            "beta": beta,
            "context_share": share,
        }
        for share in (0.0, 0.15)
        for beta in (1.0, 0.75, 0.25)
    },
    "adaptive, beta 1 + CutMix": {"mix": keras_calib.data.cutmix},
}


class Settings(NamedTuple):
    """What is the same for all methods; see the flags of the script."""

    setup: str
    data: str
    alone: bool
    net: str
    width: int
    size: int
    scale: float
    jitter: float
    batch_size: int
    epochs: int
    learning_rate: float
    synchronized: bool


class _Kind(NamedTuple):
    """What `check_flags` and `run_folder` know a method by."""

    method: str


class _Options(NamedTuple):
    """What else `check_flags` knows a run by."""

    seed: int
    precision: str = "float32"
    steps_per_epoch: int | None = None
    vectors: str | None = None


class Data(NamedTuple):
    """What is trained on and measured on.

    Attributes:
        train: A function of options of `training_pipeline`: batches.
        views: Batches by their name: `test`, and `context`, without objects.
        num_classes: Number of classes.
        steps: Steps of an epoch.
    """

    train: Any
    views: dict[str, Any]
    num_classes: int
    steps: int


def load(data, data_dir, annotations):
    """Training and validation set, and the names of the classes."""
    if data == "digits":
        return *boxed_digits(), [str(digit) for digit in range(10)]
    read = partial(
        keras_calib.data.from_tfds, data_dir=data_dir, annotations=annotations
    )
    train, validation = (read(data, s) for s in ("train", "validation"))
    return train, validation, train.class_names


def folder_of(workdir, settings, name, seed):
    """Folder of the files of a run."""
    words = name.replace(",", "").replace("+ ", "").replace(" ", "_")
    return run_folder(workdir, settings, _Kind(words), seed)


def run(settings, name, seed, data, *, workdir, devices, resume):
    """Trains with one kind of labels and measures it; a folder for each.

    Args:
        settings: `Settings`.
        name: One of `METHODS`.
        seed: Seed of weights, order and crops.
        data: `Data`.
        workdir: Folder for results.
        devices: As `scope` takes them.
        resume: Whether a run that is done is kept, and one that was killed
            goes on.

    Raises:
        RuntimeError: If another process trains in the folder.
        ValueError: If the folder holds a run of other flags.
    """
    folder = folder_of(workdir, settings, name, seed)
    with PathLock("folder", folder):
        check_flags(folder, settings, _Kind(name), _Options(seed))
        if resume and (folder / "results.csv").is_file():
            print(f"{name}, seed {seed}: done before")
            return read_row(folder)
        if not resume:
            shutil.rmtree(folder)
            check_flags(folder, settings, _Kind(name), _Options(seed))
        print(f"\n{name}, seed {seed}:")
        model, seconds = _trained(settings, name, seed, data, folder, devices)
        row = {
            "setup": settings.setup,
            "method": name,
            "options": "",
            "seed": seed,
            "epochs": settings.epochs,
            "seconds": round(seconds, 1),
        }
        return save_measures(model, data.views, row, folder)


def _trained(settings, name, seed, data, folder, devices):
    """The model, and the seconds of its epochs."""
    keras.utils.set_random_seed(seed)
    backup = folder / "backup.npz"
    clock = Clock()
    with scope(*devices):
        model = _network(settings, data.num_classes)
        synchronize(model, settings.synchronized)
        _compile(model, settings, name, data.steps)
    model.fit(
        data.train(
            seed=seed,
            first_epoch=keras_calib.training.finished_epochs(backup),
            **METHODS[name],
        ),
        epochs=settings.epochs,
        steps_per_epoch=data.steps,
        shuffle=False,
        callbacks=[
            keras.callbacks.TerminateOnNaN(),
            clock,
            keras_calib.training.ResumableBackup(backup, callbacks=[clock]),
        ],
        verbose=2,
    )
    make_alike(model)
    return model, clock.seconds


def _network(settings, num_classes):
    size = settings.size
    if settings.net == "resnet50":
        return keras.applications.ResNet50(
            weights=None,
            input_shape=(size, size, 3),
            classes=num_classes,
            classifier_activation=None,
        )
    return small_resnet((size, size, 3), num_classes, width=settings.width)


def _compile(model, settings, name, steps):
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    if name == "label smoothing":
        loss = keras_calib.LabelSmoothing(alpha=0.1, from_logits=True)
    schedule = keras.optimizers.schedules.CosineDecay(
        settings.learning_rate, settings.epochs * steps
    )
    sgd = keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
    model.compile(optimizer=sgd, loss=loss)

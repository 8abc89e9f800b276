"""The network of `train_models.py`, and training that outlives a kill."""

import keras

import keras_calib

__all__ = ["BATCH_SIZE", "build", "train"]

BATCH_SIZE = 32


def build(method, shape, num_classes, *, width):
    """The same network for each method, compiled."""
    inputs = keras.Input(shape)
    x = keras.layers.Dense(width, activation="relu")(inputs)
    x = keras.layers.Dense(width, activation="relu")(x)
    outputs = keras.layers.Dense(num_classes)(x)
    model = method.model(inputs, outputs, **method.arguments)
    sgd = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
    model.compile(optimizer=sgd, loss=method.loss, metrics=["accuracy"])
    return model


def train(model, train_set, val_set, *, epochs, seed, workdir, name):
    """Trains to the end, from where the backup of this name stands.

    Args:
        model: Compiled, of this library.
        train_set: Images and class ids.
        val_set: The same; followed by the logger, and by AdaFocal.
        epochs: How many in all.
        seed: Of the order of the batches.
        workdir: Folder, for a table and a backup of each training.
        name: Of their files.
    """
    batches = keras_calib.EpochBatches(
        *train_set, batch_size=BATCH_SIZE, seed=seed
    )
    logger = keras_calib.CalibrationLogger(
        val_set,
        batch_size=1024,
        every=5,
        csv_path=workdir / "logs" / f"{name}.csv",
    )
    model.fit(
        batches,
        epochs=epochs,
        validation_data=val_set,
        validation_batch_size=1024,
        validation_freq=epochs,
        callbacks=[
            logger,
            keras_calib.ResumableBackup(workdir / "backups" / f"{name}.npz"),
        ],
        verbose=0,
    )

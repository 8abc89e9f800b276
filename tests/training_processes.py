"""Run by training/test_distribution.py: trainings by two processes, or one.

KERAS_BACKEND=jax python tests/training_processes.py FOLDER [ADDRESS PROCESS]
"""

import sys
from pathlib import Path

import keras
import numpy as np
from keras import ops
from small_trainings import COUNT, data_of, network

import keras_calib as kc

# All look at a batch as a whole, or read data between epochs.
NAMES = ("crl acls", "asam", "adafocal", "cape predicted")
LOSSES = {"focal": kc.FocalLoss, "mdca": kc.MDCA}
BATCH = 32
OPTIONS = {"shuffle": False, "verbose": 0}


class Share:
    """The rows of each batch that one of `count` processes gives."""

    def __init__(self, process, count):
        self.size = BATCH // count
        rows = np.arange(COUNT).reshape(-1, count, self.size)
        self.rows = rows[:, process].ravel()

    def __call__(self, data):
        return keras.tree.map_structure(lambda x: x[self.rows], data)


def recording(name, share):
    """A model of this library, and what `fit` returns."""
    model = network(name)
    x, y, labels, weight = data_of(name, COUNT)
    valid = (x, labels)
    # What a model itself reads between epochs is whole on each process.
    whole = {"calibration_data": (x, y)} if name.startswith("cape") else {}
    fitted = model.fit(
        share(x),
        share(y),
        sample_weight=share(weight),
        validation_data=valid if name == "adafocal" else share(valid),
        batch_size=share.size,
        epochs=2,
        **whole,
        **OPTIONS,
    )
    return model, fitted.history


def plain(name, share):
    """A model of Keras with one of the losses, and a streaming metric."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    loss = LOSSES[name](from_logits=True)
    model.compile(
        keras.optimizers.SGD(0.5), loss, metrics=[kc.ECE(from_logits=True)]
    )
    x, _, labels, weight = data_of("sam", COUNT)
    fitted = model.fit(
        share(x),
        share(labels),
        sample_weight=share(weight),
        batch_size=share.size,
        epochs=2,
        **OPTIONS,
    ).history
    if name == "focal":
        fitted["evaluated"] = model.evaluate(
            share(x), share(labels), batch_size=share.size, verbose=0
        )
    return model, fitted


def resumed(folder, share):
    """A model that is trained in two runs, with files of the first process."""
    x, y, labels, _ = data_of("crl", COUNT)
    for epochs in (1, 2):
        log = kc.CalibrationLogger((x, labels), csv_path=folder / "log.csv")
        backup = kc.training.ResumableBackup(folder / "backup.npz")
        model = network("crl")
        model.fit(
            share(x),
            share(y),
            batch_size=share.size,
            epochs=epochs,
            callbacks=[log, backup],
            **OPTIONS,
        )
    logs = {
        name: [logs[name] for logs in backup.epoch_logs]
        for name in log.logged[0].values
    }
    return model, logs


def main(folder, address=None, process="0"):
    folder, count = Path(folder), 1
    if address is not None:
        keras.distribution.initialize(address, 2, int(process))
        keras.distribution.set_distribution(
            keras.distribution.DataParallel(auto_shard_dataset=False)
        )
        count = 2
    share = Share(int(process), count)
    trained = {name: recording(name, share) for name in NAMES}
    trained |= {name: plain(name, share) for name in LOSSES}
    trained["resumed"] = resumed(folder, share)
    found = {}
    for name, (model, shown) in trained.items():
        for i, variable in enumerate(model.variables):
            found[f"{name}/{i}"] = ops.convert_to_numpy(variable)
        for key, values in shown.items():
            found[f"{name}/{key}"] = np.array(values)
    x, _, labels, _ = data_of("crl", COUNT)
    scaling = kc.TemperatureScaling().fit_on(trained["focal"][0], (x, labels))
    found["temperature"] = np.array(scaling.temperature)
    np.savez(folder / f"{process}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""How fast images in memory are fed to `fit`: images per second.

The input of the CIFAR-10 recipes: 50,000 images of 32 x 32, padded, cropped
and flipped at random, in batches of 128. Once by `EpochBatches`, whose
augmentation is NumPy in one thread of Python, as on JAX and torch, and once by
`array_pipeline`, as on TensorFlow. The model does nothing, so that what is
timed is the input alone, through Keras' own `fit`. Pixels are noise, which
takes as long as CIFAR-10's.

Each is run in turn; ratios are those of neighbours in time, and their median
is given.

    python benchmarks/array_pipeline.py \
        --out=benchmarks/results/array_pipeline.md

About two minutes on 2 CPU cores.
"""

import sys
import time
from functools import partial
from pathlib import Path

import keras
import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish, quartiles

import keras_calib

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "papers"))
from data import images as image_sets  # noqa: E402

_STEPS = flags.DEFINE_integer("steps", 150, "Batches of a run.")
_ROUNDS = flags.DEFINE_integer("rounds", 9, "Runs of each.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

_BATCH, _COUNT = 128, 50_000


class Idle(keras.Model):
    """A model whose steps take no time."""

    def call(self, x):
        return x

    def train_step(self, data):
        return {"first": data[0][0, 0, 0, 0]}


class Clock(keras.callbacks.Callback):
    """Seconds from the first batch of an epoch to its last."""

    def __init__(self):
        super().__init__()
        self.seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 10:
            self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self._start)


def rate(batches):
    """Images per second of one epoch of `fit`."""
    model, clock = Idle(), Clock()
    model.compile("sgd", loss="mse")
    model.fit(
        batches,
        steps_per_epoch=_STEPS.value,
        shuffle=False,
        verbose=0,
        callbacks=[clock],
    )
    return (_STEPS.value - 10) * _BATCH / clock.seconds[0]


def main(_):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (_COUNT, 32, 32, 3), "uint8")
    part = images, rng.integers(10, size=_COUNT)
    rows = []
    for augment in ("none", "crop_flip", "shift_flip"):
        by_numpy = keras_calib.data.EpochBatches(
            *part,
            batch_size=_BATCH,
            drop_remainder=True,
            augment=partial(image_sets._augmented, augment, None),
        )
        in_parallel = image_sets.training_batches(
            part, _BATCH, augment=augment, seed=0
        )
        rates = np.array(
            [
                [rate(batches) for batches in (by_numpy, in_parallel)]
                for _ in range(_ROUNDS.value + 1)
            ][1:]
        )
        base, own = np.median(rates, axis=0)
        rows.append(
            [
                augment,
                f"{base:.0f}",
                f"{own:.0f}",
                *quartiles(rates[:, 1] / rates[:, 0], digits=2),
            ]
        )
        print(rows[-1], flush=True)
    header = [
        "`--augment`",
        "images/s, `EpochBatches`",
        "images/s, `array_pipeline`",
        "ratio (median)",
        "quartiles",
    ]
    publish(
        f"{machine()}.\n\n{_COUNT} images of 32 x 32 pixels, batches of "
        f"{_BATCH}; {_ROUNDS.value} runs of {_STEPS.value} batches each:\n\n"
        + markdown_table(header, rows),
        _OUT.value,
    )


if __name__ == "__main__":
    app.run(main)

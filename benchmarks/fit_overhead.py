"""What a table of metrics adds to a step of `fit`.

Milliseconds per step of a small network (batch 256, 100 classes), without
metrics, with Keras' accuracy and with `CalibrationMetrics` in several
settings, in turns; seconds of the first `fit` of each; of dense predictions of
two convolutions; and of a ResNet-20 on images of 32 x 32, with the share of the
step that the table takes. "22 zeros" is a metric that does nothing but show as
many values: Keras and TensorFlow take their time for each.

    python benchmarks/fit_overhead.py --out=benchmarks/results/fit_overhead.md
    KERAS_BACKEND=jax python benchmarks/fit_overhead.py

About five minutes on 2 CPU cores.
"""

import time
from collections.abc import Callable

import keras
import numpy as np
from absl import app, flags
from networks import resnet20
from reporting import machine, markdown_table, publish

import keras_calib

_STEPS = flags.DEFINE_integer("num_steps", 200, "Steps of a pass.")
_REPEATS = flags.DEFINE_integer("repeats", 7, "Passes of each setting.")
_RESNET_STEPS = flags.DEFINE_integer("resnet_steps", 5, "Of ResNet-20.")
_PARTS = flags.DEFINE_list(
    "parts", ["small", "dense", "resnet"], "Networks to measure."
)
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

_BATCH = 256


def table(*args, **kwargs):
    return keras_calib.CalibrationMetrics(*args, from_logits=True, **kwargs)


class Zeros(keras.metrics.Metric):
    """As many values as the table has, for nothing."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        pass

    def result(self):
        return {f"zero_{i}": keras.ops.zeros(()) for i in range(22)}


SETTINGS = {
    "no metric": list,
    "keras accuracy": lambda: ["accuracy"],
    "22 zeros": lambda: [Zeros()],
    "CalibrationMetrics(resolution=2048)": lambda: [table(resolution=2048)],
    "... refresh_every=1": lambda: [table(resolution=2048, refresh_every=1)],
    '... include=["ece", "aurc"]': lambda: [
        table(["ece", "aurc"], resolution=2048)
    ],
    "... jit_compile=True": lambda: [table(resolution=2048, jit_compile=True)],
    "ECE and AURC": lambda: [
        keras_calib.ECE(from_logits=True),
        keras_calib.AURC(from_logits=True),
    ],
    "... both jit_compile=True": lambda: [
        keras_calib.ECE(from_logits=True, jit_compile=True),
        keras_calib.AURC(from_logits=True, jit_compile=True),
    ],
}
_DENSE = (128, 128, 21)
TABLE = "CalibrationMetrics(resolution=2048)"


def mlp() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(100),
        ]
    )


def dense() -> keras.Model:
    *sizes, num_classes = _DENSE
    return keras.Sequential(
        [
            keras.Input((*sizes, 3)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(num_classes, 1),
        ]
    )


def passes(make_model, shape, settings, num_steps: int, jit: bool) -> dict:
    rng = np.random.default_rng(0)
    batch = 8 if len(shape) == 3 and shape[0] > 32 else _BATCH
    x = rng.standard_normal((batch * num_steps, *shape), "float32")
    y = rng.integers(100, size=len(x))
    if batch == 8:
        y = rng.integers(_DENSE[-1], size=(len(x), *_DENSE[:2]))
    found = {}
    for name in settings:
        model = make_model()
        model.compile(
            "sgd",
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=SETTINGS[name](),
            jit_compile=jit,
        )
        found[name] = lambda model=model: model.fit(
            x, y, batch, shuffle=False, verbose=0
        )
    return found


def seconds_per_step(
    runs: dict, num_steps: int, repeats: int, clock: Callable
) -> dict:
    """Median seconds of a step, and seconds of the first pass, by name."""
    times = {name: [] for name in runs}
    first = {}
    for name, run_once in runs.items():
        start = time.perf_counter()
        run_once()
        first[name] = time.perf_counter() - start
    for _ in range(repeats):
        for name, run_once in runs.items():
            start = clock()
            run_once()
            times[name].append((clock() - start) / num_steps)
    return {
        name: (float(np.median(t)), first[name]) for name, t in times.items()
    }


def compiled_modes() -> list[bool]:
    backend = keras.backend.backend()
    return {"tensorflow": [False, True], "jax": [True]}.get(backend, [False])


def overhead_table(
    make_model, shape, settings, num_steps, repeats, clock
) -> str:
    columns = {}
    for jit in compiled_modes():
        runs = passes(make_model, shape, settings, num_steps, jit)
        columns[jit] = seconds_per_step(runs, num_steps, repeats, clock)
    rows = []
    for name in settings:
        row = [name]
        for taken in columns.values():
            bare, (step, first) = taken["no metric"][0], taken[name]
            row += [f"{1e3 * step:.2f}", f"{1e3 * (step - bare):+.2f}"]
            row += [
                f"{step / bare - 1:+.1%}",
                f"{first - num_steps * step:.1f}",
            ]
        rows.append(row)
    header = ["ms per step"]
    for jit in columns:
        header += [f"jit_compile={jit}", "added", "share", "first fit, s"]
    return markdown_table(header, rows)


def run(num_steps: int, resnet_steps: int, repeats: int) -> str:
    clock = time.perf_counter
    parts = {
        "small": lambda: [
            f"Batch {_BATCH}, 100 classes, MLP 64-128-100:",
            overhead_table(mlp, (64,), SETTINGS, num_steps, repeats, clock),
        ],
        "dense": lambda: [
            f"Batch 8, dense predictions {_DENSE} of two convolutions:",
            overhead_table(
                dense,
                (*_DENSE[:2], 3),
                tuple(x for x in SETTINGS if "refresh" not in x),
                resnet_steps,
                2 * repeats,
                clock,
            ),
        ],
        "resnet": lambda: [
            f"Batch {_BATCH}, ResNet-20 on 32 x 32 x 3; milliseconds of the "
            "CPU, which other load on the machine disturbs less:",
            overhead_table(
                resnet20,
                (32, 32, 3),
                ("no metric", TABLE),
                resnet_steps,
                2 * repeats,
                time.process_time,
            ),
        ],
    }
    texts = [text for name in _PARTS.value for text in parts[name]()]
    return "\n\n".join([f"{machine()}.", *texts])


def main(_) -> None:
    publish(run(_STEPS.value, _RESNET_STEPS.value, _REPEATS.value), _OUT.value)


if __name__ == "__main__":
    app.run(main)

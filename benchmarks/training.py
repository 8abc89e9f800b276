"""What the ways of training cost a step, in steps of cross entropy.

A ResNet-20 on images of 32 x 32, batches of 128, 100 classes (2 for CaPE and
for the cross entropy beside it): each way of training and cross entropy with
the same network are run one after the other, in changing order. The ratio is
the median of those of neighbours in time; beside it that of CPU time, which
other load on the machine disturbs less. For AdaFocal also what the end of
an epoch adds. Then the ratios under replicas, in a process of its own; they
share the cores of one machine. Last, what the records of the training samples
take: bytes, and the time of a step of a network that is next to nothing, with
the record of 50,000 samples and with that of 1.3 million.

    python benchmarks/training.py --out=benchmarks/results/training.md
    KERAS_BACKEND=jax python benchmarks/training.py --rounds=5

About nine minutes on 2 CPU cores. On JAX there are no replicas.
"""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from absl import app, flags
from networks import resnet20
from reporting import machine, markdown_table, publish, quartiles

import keras_calib as kc

_ROUNDS = flags.DEFINE_integer("rounds", 15, "Turns; half under replicas.")
_RECORD_ROUNDS = flags.DEFINE_integer("record_rounds", 200, "Of the records.")
_JIT = flags.DEFINE_bool("jit_compile", False, "XLA; always so on JAX.")
_REPLICAS = flags.DEFINE_integer("replicas", 2, "Number of logical CPUs.")
_INSIDE = flags.DEFINE_bool("inside", False, "Only replicas, as JSON.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

_BATCH, _CLASSES, _SAMPLES = 128, 100, 50_000
_VALIDATION_BATCHES = 10
_RECORD_BATCH, _RECORD_SAMPLES = 256, 1_300_000


class Both(kc.SharpnessAwareModel, kc.CorrectnessRankingModel):
    """SAM and CRL."""


class Way(NamedTuple):
    """A way of training: model, its arguments, loss, and the ratio aimed at."""

    model: type = keras.Model
    arguments: dict | None = None
    loss: Callable | None = None
    target: float | None = None
    num_classes: int = _CLASSES


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def with_logits(loss, **arguments):
    return lambda: loss(from_logits=True, **arguments)


RECORD = {"num_samples": _SAMPLES}
FOCAL = {"from_logits": True}
WAYS = {
    "CRL": Way(kc.CorrectnessRankingModel, RECORD, cross_entropy, 1.05),
    "AdaFocal": Way(kc.AdaptiveFocalModel, FOCAL, None, 1.05),
    "focal schedule": Way(kc.ScheduledFocalModel, FOCAL),
    "CaPE": Way(kc.CaPEModel, RECORD, cross_entropy, None, 2),
    "pruning": Way(kc.ConfidencePruningModel, RECORD, cross_entropy),
    "MMCE": Way(loss=with_logits(kc.MMCE), target=1.1),
    "MMCE weighted": Way(
        loss=with_logits(kc.MMCE, variant="weighted"), target=1.1
    ),
    "MDCA": Way(loss=with_logits(kc.MDCA), target=1.1),
    "DCA": Way(loss=with_logits(kc.DCA)),
    "SAM": Way(kc.SharpnessAwareModel, {}, cross_entropy, 2.05),
    "ASAM": Way(
        kc.SharpnessAwareModel, {"rho": 2.0, "adaptive": True}, cross_entropy
    ),
    "SAM and CRL": Way(Both, RECORD, cross_entropy),
}
RECORDS = {
    "CRL": WAYS["CRL"],
    '... normalization="views"': Way(
        kc.CorrectnessRankingModel, {"normalization": "views"}, cross_entropy
    ),
    "pruning": WAYS["pruning"],
    "CaPE": WAYS["CaPE"],
}


def made(way: Way, network: keras.Model, **more: Any) -> keras.Model:
    arguments = {**(way.arguments or {}), **more}
    model = way.model(network.input, network.output, **arguments)
    model.compile(
        "sgd",
        way.loss and way.loss(),
        jit_compile=_JIT.value or keras.backend.backend() == "jax",
    )
    return model


def images(num_batches: int, num_classes: int = _CLASSES):
    rng = np.random.default_rng(0)
    count = num_batches * _BATCH
    x = rng.standard_normal((count, 32, 32, 3), "float32")
    return x, rng.integers(num_classes, size=count)


def step_of(model: keras.Model, x, labels, index) -> Callable:
    """A function that makes a step and waits for its end."""
    takes_index = isinstance(model, kc.training.RecordingModel)
    y = {"label": labels, "index": index} if takes_index else labels
    if not _INSIDE.value:
        return lambda: model.train_on_batch(x, y)
    import tensorflow as tf

    # Of `train_on_batch` each replica would get the whole batch.
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(len(x))
    strategy = model.distribute_strategy
    batches = strategy.experimental_distribute_dataset(batches.cache().repeat())
    iterator = iter(batches)
    model.make_train_function()
    return lambda: model.train_function(iterator)


class Times(NamedTuple):
    """Seconds of both calls of a pair `(rounds, 2)`: wall clock, and CPU."""

    wall: np.ndarray
    cpu: np.ndarray


def in_turn(pairs: dict, rounds: int) -> dict[str, Times]:
    """What the calls of each pair take, in changing order."""
    taken = {name: [] for name in pairs}
    for pair in pairs.values():
        for function in pair:
            function()
    for turn in range(rounds + 1):
        for name, pair in pairs.items():
            seconds = [None, None]
            for i in (0, 1) if turn % 2 else (1, 0):
                start = time.perf_counter(), time.process_time()
                pair[i]()
                end = time.perf_counter(), time.process_time()
                seconds[i] = np.subtract(end, start)
            taken[name].append(seconds)
    return {
        name: Times(*np.moveaxis(seconds[1:], -1, 0))
        for name, seconds in taken.items()
    }


def ratio_rows(rounds: int) -> list[list[str]]:
    rng = np.random.default_rng(1)
    index = rng.permutation(_SAMPLES)[:_BATCH]
    plain = {}
    pairs = {}
    for name, way in WAYS.items():
        classes = way.num_classes
        x, labels = images(1, classes)
        if classes not in plain:
            model = made(Way(loss=cross_entropy), resnet20(classes))
            plain[classes] = step_of(model, x, labels, index)
        own = step_of(made(way, resnet20(classes)), x, labels, index)
        pairs[name] = (plain[classes], own)
    rows = []
    for name, taken in in_turn(pairs, rounds).items():
        row = [name, *(f"{1e3 * t:.0f}" for t in np.median(taken.wall, axis=0))]
        for seconds in taken:
            row += quartiles(seconds[:, 1] / seconds[:, 0], 3)
        target = WAYS[name].target
        rows.append([*row, "" if target is None else f"{target:.2f}"])
    return rows


def ratio_table(rows: list[list[str]], with_target: bool) -> str:
    header = ["way of training", "ms, cross entropy", "ms"]
    header += ["ratio (median)", "quartiles", "of CPU time", "quartiles"]
    header.append("target, at most")
    width = len(header) if with_target else len(header) - 1
    return markdown_table(header[:width], [row[:width] for row in rows])


def end_of_epoch(rounds: int) -> str:
    """Of AdaFocal, and of what Keras does with validation data."""
    x, labels = images(_VALIDATION_BATCHES)
    model = made(WAYS["AdaFocal"], resnet20())
    plain = made(Way(loss=cross_entropy), resnet20())
    step = step_of(plain, x[:_BATCH], labels[:_BATCH], None)
    taken = in_turn(
        {
            "update": (step, lambda: model.update_gammas((x, labels), _BATCH)),
            "validation": (
                step,
                lambda: plain.evaluate(x, labels, _BATCH, verbose=0),
            ),
        },
        rounds,
    )
    # Of an epoch, which has ten times as many batches.
    (update, scatter), (validation, _) = (
        quartiles(t.wall[:, 1] / t.wall[:, 0] * 10 / _VALIDATION_BATCHES, 1)
        for t in taken.values()
    )
    return (
        "The end of an epoch of AdaFocal, with a tenth as many validation "
        f"samples as training samples, adds {update} % (quartiles {scatter} "
        "%) of an epoch of cross entropy; Keras' own validation, which "
        f"precedes it, takes {validation} %."
    )


def replicated_rows() -> list[list[str]]:
    """From a process of its own: devices are set before anything is made."""
    flags_ = [f"--rounds={(_ROUNDS.value + 1) // 2}", "--inside"]
    flags_.append(f"--replicas={_REPLICAS.value}")
    command = [sys.executable, __file__, *flags_]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def print_rows_inside() -> None:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    count = _REPLICAS.value
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * count
    )
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(count)]
    )
    with strategy.scope():
        print(json.dumps(ratio_rows(_ROUNDS.value)))


def tiny_network(num_classes: int) -> keras.Model:
    inputs = keras.Input((8,))
    return keras.Model(inputs, keras.layers.Dense(num_classes)(inputs))


def own_bytes(model: keras.Model) -> int:
    """Size of the variables that no layer has."""
    in_layers = {id(v) for layer in model.layers for v in layer.variables}
    own = (v for v in model.weights if id(v) not in in_layers)
    return sum(keras.ops.convert_to_numpy(v).nbytes for v in own)


def record_steps(way: Way, num_samples: int) -> tuple[keras.Model, Callable]:
    """A model, and a step with samples from anywhere in its record."""
    rng = np.random.default_rng(2)
    model = made(way, tiny_network(way.num_classes), num_samples=num_samples)
    x = rng.standard_normal((_RECORD_BATCH, 8), "float32")
    labels = rng.integers(way.num_classes, size=_RECORD_BATCH)
    steps = itertools.cycle(
        step_of(model, x, labels, rng.integers(num_samples, size=_RECORD_BATCH))
        for _ in range(64)
    )
    return model, lambda: next(steps)()


def record_table(rounds: int) -> str:
    sizes, pairs = {}, {}
    for name, way in RECORDS.items():
        _, few = record_steps(way, _SAMPLES)
        model, many = record_steps(way, _RECORD_SAMPLES)
        sizes[name] = own_bytes(model) / _RECORD_SAMPLES
        pairs[name] = (few, many)
    rows = []
    for name, taken in in_turn(pairs, rounds).items():
        milliseconds = 1e3 * taken.wall
        few, many = np.median(milliseconds, axis=0)
        added, scatter = quartiles(np.diff(milliseconds), 2)
        size = f"{sizes[name]:.1f}"
        rows.append([name, size, f"{few:.2f}", f"{many:.2f}", added, scatter])
    header = ["record", "bytes per sample", f"ms, {_SAMPLES:,} samples"]
    header += [
        f"ms, {_RECORD_SAMPLES:,} samples",
        "added (median)",
        "quartiles",
    ]
    return markdown_table(header, rows)


def run() -> str:
    compiled = "compiled" if _JIT.value else "not compiled"
    if keras.backend.backend() == "jax":
        compiled = "compiled"
    rounds = _ROUNDS.value
    parts = [
        f"{machine()}.",
        f"ResNet-20 on 32 x 32 x 3, batches of {_BATCH}, {compiled} by XLA, "
        f"{rounds} turns:",
        ratio_table(ratio_rows(rounds), with_target=True),
        end_of_epoch((rounds + 1) // 2),
    ]
    if keras.backend.backend() == "tensorflow":
        parts += [
            f"The same under {_REPLICAS.value} replicas on logical CPUs, not "
            f"compiled by XLA, {(rounds + 1) // 2} turns:",
            ratio_table(replicated_rows(), with_target=False),
        ]
    parts += [
        "Records of the training samples; a network 8-100 (8-2 for CaPE), "
        f"batches of {_RECORD_BATCH} from anywhere in the record, "
        f"{_RECORD_ROUNDS.value} turns:",
        record_table(_RECORD_ROUNDS.value),
    ]
    return "\n\n".join(parts)


def main(_) -> None:
    if _INSIDE.value:
        print_rows_inside()
    else:
        publish(run(), _OUT.value)


if __name__ == "__main__":
    app.run(main)

"""Several labels at once beside a loop over the labels, and beside peers.

The first table has the time of a pass of 4 batches of 256 examples, in
milliseconds, with the result at its end. torchmetrics has no calibration error
of several labels, so its `BinaryCalibrationError` runs in a loop over them, as
does our `ECE(mode="binary")`. The peer of the NLL is Keras'
`BinaryCrossentropy` metric, which returns the mean over all labels alone.

Then come fits on 2,000 examples beside scikit-learn's in a loop, and the answer
of an exported SavedModel to 32 examples, with a calibrator and a selector of
all labels, beside the bare model. Times are those of the CPU, one thread each:
medians of calls in turn after a first one, or of more than 100 labels one call.

    pip install -e ".[examples,bench]"
    OMP_NUM_THREADS=1 python benchmarks/multi_label.py \
        --out=benchmarks/results/multi_label.md
"""

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator

import keras
import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish

import keras_calib as kc

_LABELS = flags.DEFINE_multi_integer("labels", [1, 20, 1000], "Numbers of.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Calls of each.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

BATCH, BATCHES, HELD_OUT, SERVED = 256, 4, 2000, 32
# More labels than this are timed once.
LONG = 100


def data(labels: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(_SEED.value)
    logits = (2.0 * rng.normal(size=(size, labels))).astype("float32")
    probs = 1.0 / (1.0 + np.exp(-0.6 * logits))
    return (rng.random(probs.shape) < probs).astype("int32"), logits


def streams(labels: int) -> Iterator[tuple[str, Callable]]:
    """Names and passes over the batches."""
    import tensorflow as tf
    import torch
    from torchmetrics.classification import BinaryCalibrationError

    torch.set_num_threads(1)
    y, z = data(labels, BATCH * BATCHES)
    p = (1.0 / (1.0 + np.exp(-z))).astype("float32")
    parts = np.split(y, BATCHES), np.split(p, BATCHES)
    tensors = [list(map(tf.constant, part)) for part in parts]
    torches = [list(map(torch.tensor, part)) for part in parts]

    def ours(metric, compiled=False):
        update = metric.update_state
        if compiled:
            update = tf.function(update)

        def run():
            metric.reset_state()
            for batch in zip(*(tensors if compiled else parts), strict=True):
                update(*batch)
            return metric.result()

        return run

    def loop():
        found = []
        for k, metric in enumerate(columns):
            metric.reset_state()
            for labels_k, probs_k in zip(*parts, strict=True):
                metric.update_state(labels_k[:, k], probs_k[:, k : k + 1])
            found.append(float(metric.result()))
        return np.mean(found)

    def peer():
        found = []
        for k, metric in enumerate(peers):
            metric.reset()
            for labels_k, probs_k in zip(*torches, strict=True):
                metric.update(probs_k[:, k], labels_k[:, k])
            found.append(float(metric.compute()))
        return np.mean(found)

    columns = [kc.ECE(mode="binary") for _ in range(labels)]
    peers = [BinaryCalibrationError(n_bins=15) for _ in range(labels)]
    ece = [kc.MultiLabel(kc.ECE(mode="binary"), num_labels=labels)]
    ece.append(kc.MultiLabel(kc.ECE(mode="binary"), num_labels=labels))
    yield "ECE, eager", ours(ece[0])
    yield "ECE, graph", ours(ece[1], compiled=True)
    yield "ECE, loop over labels", loop
    yield "torchmetrics, loop over labels", peer
    nll = [kc.MultiLabel(kc.NLL(), num_labels=labels) for _ in range(2)]
    yield "NLL, eager", ours(nll[0])
    yield "NLL, graph", ours(nll[1], compiled=True)
    cross = [keras.metrics.BinaryCrossentropy() for _ in range(2)]
    yield "Keras BinaryCrossentropy, eager", ours(cross[0])
    yield "Keras BinaryCrossentropy, graph", ours(cross[1], compiled=True)


def fits(labels: int) -> Iterator[tuple[str, Callable]]:
    """Names and fits to all labels."""
    from sklearn.isotonic import IsotonicRegression
    from sklearn.linear_model import LogisticRegression

    y, z = data(labels, HELD_OUT)

    def ours(part):
        def run():
            kc.labels.MultiLabelCalibrator(part).fit(y, z, num_folds=0)
            return 0.0

        return run

    def each(make, column):
        def run():
            for k in range(labels):
                make().fit(column(z[:, k]), y[:, k])
            return 0.0

        return run

    yield "TemperatureScaling", ours(kc.TemperatureScaling())
    yield "AffineScaling (Platt)", ours(kc.AffineScaling())
    yield (
        "scikit-learn LogisticRegression, loop",
        each(lambda: LogisticRegression(C=np.inf), lambda x: x[:, None]),
    )
    yield "IsotonicCalibration", ours(kc.IsotonicCalibration())
    yield (
        "scikit-learn IsotonicRegression, loop",
        each(lambda: IsotonicRegression(out_of_bounds="clip"), lambda x: x),
    )


def answers(labels: int) -> Iterator[tuple[str, Callable]]:
    """Names and answers of exported files."""
    import tensorflow as tf

    y, z = data(labels, HELD_OUT)
    inputs = keras.Input((labels,))
    outputs = keras.layers.Dense(labels, kernel_initializer="identity")(inputs)
    model = keras.Model(inputs, outputs)
    calibrator = kc.labels.MultiLabelCalibrator(kc.AffineScaling())
    calibrator.fit(y, z, num_folds=0)
    selector = kc.labels.MultiLabelSelector(calibrator=calibrator)
    selector.fit(y, z, coverage=0.5)
    batch = tf.constant(z[:SERVED])
    folder = tempfile.mkdtemp()
    model.export(f"{folder}/bare", verbose=False)
    options = {"selector": selector, "from_logits": True}
    path = kc.export(model, f"{folder}/labels", **options)
    for name, place in {"bare": f"{folder}/bare", "labels": path}.items():
        loaded = tf.saved_model.load(str(place))
        serve = loaded.signatures["serving_default"]
        key = next(iter(serve.structured_input_signature[1]))

        def run(serve=serve, key=key, loaded=loaded):
            return next(iter(serve(**{key: batch}).values()))

        yield f"answer, {name}", run


BASES = {
    "ECE": "ECE, eager",
    "torchmetrics": "ECE, eager",
    "NLL": "NLL, eager",
    "Keras": "NLL, eager",
    "TemperatureScaling": "AffineScaling (Platt)",
    "AffineScaling": "AffineScaling (Platt)",
    "scikit-learn LogisticRegression": "AffineScaling (Platt)",
    "IsotonicCalibration": "IsotonicCalibration",
    "scikit-learn IsotonicRegression": "IsotonicCalibration",
    "answer": "answer, bare",
}


def cpu_ms(functions: dict, labels: int, is_fit: bool) -> dict[str, float]:
    """Median milliseconds of the CPU of each, called in turn."""
    once = labels > LONG
    times: dict[str, list] = {name: [] for name in functions}
    # The first call compiles, which fits do not.
    for _ in range(1 if once and is_fit else 2 if once else 1 + _ROUNDS.value):
        for name, function in functions.items():
            start = time.process_time()
            keras.ops.convert_to_numpy(function())
            times[name].append(time.process_time() - start)
    rest = {k: v[1:] or v for k, v in times.items()}
    return {k: 1e3 * float(np.median(v)) for k, v in rest.items()}


def table(made: Callable, head: str) -> str:
    found: dict[str, list] = {}
    for labels in _LABELS.value:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            times = cpu_ms(dict(made(labels)), labels, made is fits)
        for name, value in times.items():
            base = next(b for k, b in BASES.items() if name.startswith(k))
            cells = [f"{value:.2f}", f"{value / times[base]:.2f}"]
            found.setdefault(name, []).extend(cells)
    header = [head]
    for labels in _LABELS.value:
        header += [f"ms, {labels:,}", f"ratio, {labels:,}"]
    return markdown_table(header, [[k, *cells] for k, cells in found.items()])


def main(_):
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    parts = [
        f"Seed {_SEED.value}. {machine()}.",
        "Numbers of labels stand in the heads. Ratios are to `ECE, eager`, "
        "`NLL, eager`, `AffineScaling`, `IsotonicCalibration` and the bare "
        "model of the same table.",
        f"{BATCHES} batches of {BATCH} examples, and the result:",
        table(streams, "metric"),
        f"Fits on {HELD_OUT:,} examples:",
        table(fits, "calibrator"),
        f"A SavedModel answers {SERVED} examples:",
        table(answers, "file"),
    ]
    publish("\n\n".join(parts), _OUT.value)


if __name__ == "__main__":
    app.run(main)

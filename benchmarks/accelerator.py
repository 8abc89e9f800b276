r"""Losses, metrics and a training step on an accelerator, by JAX.

    KERAS_BACKEND=jax python benchmarks/accelerator.py --out=accelerator.md
    KERAS_BACKEND=jax python benchmarks/accelerator.py --shrink

It runs on JAX's first device, which its report names, and needs no
TensorFlow. Losses: value and gradient with one-hot labels, in turns, in float32
and bfloat16. Their bytes per second are those of one read and one write of the
logits, the least that a gradient can do, beside a copy of the logits. Metrics:
milliseconds of a compiled update, whose state stays on the device. Step:
ResNet-50 with cross entropy, with ACLS, and with ACLS and the metrics, in
float32 and mixed_bfloat16; a step is called as `fit` calls it, without reading
data. `--shrink` makes everything small, with ResNet-20 in place of ResNet-50,
to try it on a CPU.
"""

import keras
import numpy as np
from absl import app, flags
from keras import ops
from losses import inputs, losses
from networks import resnet20
from reporting import machine, markdown_table, medians_in_turn, publish

import keras_calib

# Those of losses.py, with other defaults: --shapes, --only, --rounds, --out.
_FLAGS = flags.FLAGS
_FLAGS.set_default("shapes", ["8192x1000", "8x512x512x21", "64x50000"])
_FLAGS.set_default(
    "only",
    ["ACLS", "MbLS", "LabelSmoothing", "FocalLoss", "BrierLoss", "MDCA"],
)
_SMALL_SHAPES = ("256x100", "2x32x32x21", "8x5000")
_IMAGE = flags.DEFINE_integer("image_size", 224, "Pixels of a side.")
_BATCH = flags.DEFINE_integer("batch_size", 64, "Images of a step.")
_SHRINK = flags.DEFINE_bool("shrink", False, "Small shapes, few rounds.")

_BASE = "cross entropy of Keras"
_COPY = "copy of the logits"
_DTYPES = ("float32", "bfloat16")


class Step:
    """A compiled function that keeps its state; a call waits for its end."""

    def __init__(self, function, state, *args):
        import jax

        self._state, self._args = state, args
        self._compiled = jax.jit(function).lower(state, *args).compile()

    def __call__(self):
        import jax

        self._state, out = self._compiled(self._state, *self._args)
        jax.block_until_ready(self._state)
        return out


def sizes(text):
    return tuple(int(size) for size in text.split("x"))


def loss_step(loss, labels, logits):
    import jax

    # A gradient that is returned is written, as in training.
    function = jax.value_and_grad(lambda z, y: loss(y, z))
    compiled = jax.jit(function).lower(logits, labels).compile()
    return lambda: ops.cast(
        jax.block_until_ready(compiled(logits, labels))[0], "float32"
    )


def copy_step(logits):
    import jax

    copied = jax.jit(lambda z: z * 1.5).lower(logits).compile()

    def call():
        jax.block_until_ready(copied(logits))
        # What is returned goes to the host.
        return 0.0

    return call


def loss_table(text, rounds):
    shape = sizes(text)
    float32, one_hot, _ = inputs(shape, "one-hot")
    chosen = {
        k: v
        for k, v in losses("one-hot", shape).items()
        if k in (_BASE, *_FLAGS.only)
    }
    titles, rows = ["loss"], {}
    for dtype in _DTYPES:
        logits = ops.cast(float32, dtype)
        size = int(logits.size) * logits.dtype.itemsize
        calls = {_COPY: copy_step(logits)}
        for name, loss in chosen.items():
            calls[name] = loss_step(loss, one_hot, logits)
        times = medians_in_turn(calls, rounds)
        titles += [f"{dtype} ms", "ratio", "GB/s"]
        for name, time in times.items():
            row = rows.setdefault(name, [name])
            row += [f"{time:.3f}", f"{time / times[_BASE]:.2f}"]
            row.append(f"{2 * size / time / 1e6:.1f}")
    return f"Logits of {shape}:\n\n{markdown_table(titles, rows.values())}"


def metrics():
    options = {"from_logits": True}
    return [
        keras_calib.ECE(**options),
        keras_calib.AURC(**options),
        keras_calib.CalibrationMetrics(resolution=2048, **options),
    ]


def metric_step(metric, labels, logits):
    def update(state, y, z):
        return metric.stateless_update_state(state, y, z), ops.sum(y[:1])

    state = [v.value for v in metric.variables]
    return Step(update, state, labels, logits)


def metric_table(texts, rounds):
    titles, rows = ["update, ms", *texts], {}
    accuracy = keras.metrics.SparseCategoricalAccuracy
    columns = []
    for text in texts:
        shape = sizes(text)
        logits, labels, _ = inputs(shape, "ids")
        found = [accuracy(), *metrics()]
        columns.append(
            medians_in_turn(
                {
                    type(m).__name__: metric_step(m, labels, logits)
                    for m in found
                },
                rounds,
            )
        )
    for name in columns[0]:
        rows[name] = [name, *(f"{column[name]:.3f}" for column in columns)]
    return "Metrics:\n\n" + markdown_table(titles, rows.values())


def network(image, num_classes):
    if _SHRINK.value:
        return resnet20()
    return keras.applications.ResNet50(
        weights=None,
        classes=num_classes,
        input_shape=(image, image, 3),
        classifier_activation=None,
    )


def train_step(model, loss, used, data):
    """A compiled step on images that stay on the device."""
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(optimizer, loss, metrics=used)
    # Metrics have no public `build`: one row makes their variables.
    model.test_on_batch(*(part[:1] for part in data))
    model.reset_metrics()
    optimizer.build(model.trainable_variables)
    # Copies: the next step's one row donates what the model holds.
    state = tuple(
        [ops.copy(v.value) for v in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    )

    def step(state, data):
        logs, state = model.train_step(state, data)
        # What an epoch shows at its end is no part of a step.
        return tuple(state), logs["loss"]

    return Step(step, state, data)


def step_table(policy, batch, image, num_classes, rounds):
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    acls = keras_calib.ACLS(from_logits=True)
    kinds = {
        "cross entropy": (entropy, []),
        "cross entropy, accuracy": (entropy, ["accuracy"]),
        "ACLS": (acls, []),
        "ACLS, ECE and AURC": (acls, metrics()[:2]),
        "ACLS, CalibrationMetrics": (acls, metrics()[2:]),
    }
    if _SHRINK.value:
        # Each compiles for many seconds on a CPU.
        names = ("cross entropy", "ACLS, CalibrationMetrics")
        kinds = {name: kinds[name] for name in names}
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    model = network(image, num_classes)
    keras.config.set_dtype_policy("float32")
    rng = np.random.default_rng(0)
    x = rng.random((batch, image, image, 3), "float32")
    y = rng.integers(num_classes, size=batch)
    data = ops.convert_to_tensor(x), ops.convert_to_tensor(y)
    steps = {k: train_step(model, *used, data) for k, used in kinds.items()}
    times = medians_in_turn(steps, rounds)
    rows = [
        [name, f"{time:.2f}", f"{time / times['cross entropy']:.3f}"]
        for name, time in times.items()
    ]
    rows = markdown_table([f"{policy} step", "ms", "ratio"], rows)
    title = f"{model.name}, {batch} images of {image} x {image}"
    return f"{title}, {num_classes} classes:\n\n{rows}"


def main(_):
    import jax

    if keras.backend.backend() != "jax":
        raise app.UsageError("Run it with KERAS_BACKEND=jax.")
    device = jax.devices()[0]
    parts = [
        "# On an accelerator\n\n"
        f"{device.platform} {device.device_kind}; {machine()}"
    ]
    shapes, rounds = _FLAGS.shapes, _FLAGS.rounds
    batch, image, num_classes = _BATCH.value, _IMAGE.value, 1000
    if _SHRINK.value:
        shapes, rounds = list(_SMALL_SHAPES), 3
        batch, image, num_classes = 2, 32, 100
    for make in (
        *(lambda text=text: loss_table(text, rounds) for text in shapes),
        lambda: metric_table(shapes, rounds),
        *(
            lambda policy=policy: step_table(
                policy, batch, image, num_classes, rounds
            )
            for policy in ("float32", "mixed_bfloat16")
        ),
    ):
        parts.append(make())
        print(parts[-1], "\n", flush=True)
    publish("\n\n".join(parts), _FLAGS.out)


if __name__ == "__main__":
    app.run(main)

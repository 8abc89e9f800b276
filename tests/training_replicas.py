"""Run by training/test_distribution.py: trainings under N replicas, and one.

python tests/training_replicas.py NUM_REPLICAS
"""

import contextlib
import json
import sys
import warnings

import keras
import numpy as np
import tensorflow as tf
from parts_of_batches import gradients
from paths import ROOT
from replica_consumers import read, readme, unlike, updated
from small_trainings import (
    COUNT,
    MODELS,
    data_of,
    largest_differences,
    network,
    trained,
)

import keras_calib as kc
from keras_calib.backend.replicas import warn_of_differences

sys.path.insert(0, str(ROOT / "examples" / "papers"))
from nets import catalogue  # noqa: E402

LOSSES = {
    # The baseline of segmentation recipes.
    "cross entropy": kc.LabelSmoothing(
        alpha=0.0, from_logits=True, ignore_class=255
    ),
    "mmce": kc.MMCE(from_logits=True),
    "mdca": kc.MDCA(
        fidelity=kc.FocalLoss(ignore_class=255, from_logits=True),
        ignore_class=255,
        from_logits=True,
    ),
    "acls": kc.ACLS(margin=0.1, from_logits=True, ignore_class=255),
    "acls compiled": kc.ACLS(
        margin=0.1, from_logits=True, ignore_class=255, jit_compile=True
    ),
    "mmce compiled": kc.MMCE(from_logits=True, jit_compile=True),
    "acls mean": kc.ACLS(
        margin=0.1,
        from_logits=True,
        ignore_class=255,
        reduction="mean_with_sample_weight",
    ),
    "nacl": kc.NACL(from_logits=True, ignore_class=255),
    "l1 ace": kc.L1ACE(by="image", from_logits=True, ignore_class=255),
    "several labels": kc.MultiLabel(
        kc.FocalLoss(from_logits=True, ignore_class=255)
    ),
}


def fitted(name, run_eagerly=False):
    """A plain model with one of the losses: weights, and losses shown.

    Where labels can be ignored, all of one replica's are, and most of the
    other's; elsewhere the last batch is uneven.
    """
    loss = LOSSES[name]
    loss = type(loss).from_config(loss.get_config())
    rng = np.random.default_rng(0)
    dense = loss.ignore_class is not None
    x = rng.normal(size=(8, 4, 4, 6) if dense else (45, 6)).astype("float32")
    y = rng.integers(3, size=x.shape[:-1])
    if isinstance(loss, kc.labels.MultiLabelLoss):
        y = rng.integers(2, size=(*x.shape[:-1], 3))
    if dense:
        y[:4] = 255
        y[4:][rng.uniform(size=(4, 4, 4)) < 0.5] = 255
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((*x.shape[1:-1], 6)), keras.layers.Dense(3)]
    )
    model.compile(
        keras.optimizers.SGD(0.5),
        loss,
        jit_compile=False,
        run_eagerly=run_eagerly,
    )
    options = {"epochs": 3, "shuffle": False, "verbose": 0}
    losses = model.fit(x, y, batch_size=32, **options).history["loss"]
    return np.concatenate([w.ravel() for w in model.get_weights()]), losses


def two_outputs(losses):
    """A model of two outputs: weights, and losses shown."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(45, 6)).astype("float32")
    y = {"kind": rng.integers(3, size=45), "half": rng.integers(2, size=45)}
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    outputs = {
        name: keras.layers.Dense(count, name=name)(inputs)
        for name, count in (("kind", 3), ("half", 2))
    }
    model = kc.training.EpochModel(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.5), losses, jit_compile=False)
    options = {"epochs": 3, "shuffle": False, "verbose": 0}
    losses = model.fit(x, y, batch_size=32, **options).history["loss"]
    return np.concatenate([w.ravel() for w in model.get_weights()]), losses


def normalized(run_eagerly=False):
    """All variables of a recipe's network, with synchronized statistics."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(77, 8, 8, 3)).astype("float32")
    y = rng.integers(5, size=77)
    keras.utils.set_random_seed(0)
    model = catalogue.build(
        "resnet56_v2",
        x.shape[1:],
        5,
        kc.training.EpochModel,
        synchronized=True,
        depth=11,
        width=4,
    )
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
        run_eagerly=run_eagerly,
    )
    # The last batch is uneven.
    model.fit(x, y, batch_size=32, epochs=3, shuffle=False, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_differences(model)
    return model.get_weights()


def fed(kind, run_eagerly=False):
    """Variables of a model with a record, trained on one kind of data."""
    x, _, labels, weight = data_of("crl", COUNT - 5)
    options = {"batch_size": 32, "sample_weight": weight, "seed": 3}
    batches, steps = kc.data.EpochBatches(x, labels, **options), None
    if kind == "array_pipeline":
        batches, steps = (
            kc.data.array_pipeline(x, labels, drop_remainder=False, **options),
            len(batches),
        )
    model = network("crl", run_eagerly=run_eagerly)
    model.fit(batches, epochs=2, steps_per_epoch=steps, verbose=0)
    return [keras.ops.convert_to_numpy(v) for v in model.variables]


def of_two(loss):
    """Losses of the two outputs."""
    config = loss.get_config()
    return {name: type(loss).from_config(config) for name in ("kind", "half")}


KERAS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
TWO = {"two of keras_calib": LOSSES["mmce"], "two of Keras": KERAS}


def what_trains_wrongly():
    """Names of trainings that must be refused, and whether they are."""
    x, y, labels, _ = data_of("crl", 32)

    def scalar(y_true, y_pred):
        return keras.ops.mean(y_pred)

    def ignores():
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=255
        )

    accumulates = keras.optimizers.SGD(gradient_accumulation_steps=2)
    batches = tf.data.Dataset.from_tensor_slices((x, labels))
    batches = batches.batch(31, drop_remainder=True)
    tries = {
        "scalar loss": ({"loss": scalar}, {}),
        "ignore_class of Keras": ({"loss": ignores()}, {}),
        "uneven first batch": ({}, {"batch_size": 31}),
        "steps_per_execution": ({"steps_per_execution": 2}, {}),
        "jit_compile": ({"jit_compile": True}, {}),
        "accumulation": ({"optimizer": accumulates}, {}),
        "uneven data set": ({}, {"x": batches, "y": None}),
        "uneven epoch": (
            {},
            {"x": kc.data.EpochBatches(x, labels, batch_size=31), "y": None},
        ),
        "uneven validation": ({}, {"validation_data": (x[:31], labels[:31])}),
    }
    found = {}
    for name, (compiled, arguments) in tries.items():
        model = network("sam")
        model.compile(
            **{"optimizer": "sgd", "loss": "mse", "jit_compile": False}
            | compiled
        )
        arguments = {"x": x, "y": labels, "verbose": 0} | arguments
        try:
            model.fit(**arguments)
            found[name] = "trained"
        except ValueError as error:
            # Of this library, not of TensorFlow.
            found[name] = "refused" if "Received: " in str(error) else error
    try:
        network("crl").train_on_batch(x, y)
        found["train_on_batch"] = "trained"
    except ValueError as error:
        found["train_on_batch"] = "refused" if "`fit`" in str(error) else error
    for name, half in (("scalar of two", scalar), ("mixed", LOSSES["mmce"])):
        try:
            two_outputs({"kind": KERAS, "half": half})
            found[name] = "trained"
        except ValueError as error:
            found[name] = "refused" if "Received: " in str(error) else error
    return found


def main(num_replicas):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * num_replicas
    )
    names = [f"CPU:{i}" for i in range(num_replicas)]
    strategy = tf.distribute.MirroredStrategy(names)
    # One device needs no compiled steps, which take their time to make.
    one = [trained(name, uneven=True, run_eagerly=True) for name in MODELS]
    plain = [fitted(name, run_eagerly=True) for name in LOSSES]
    alone = gradients([27])
    plain += [two_outputs(of_two(loss)) for loss in TWO.values()]
    alike = [normalized(run_eagerly=True), fed("EpochBatches", True)]
    page = largest_differences(
        readme(contextlib.nullcontext(), "keras_calib.report"),
        readme(strategy.scope()),
    )
    with strategy.scope():
        same = [normalized(), *map(fed, ("EpochBatches", "array_pipeline"))]
        many = [trained(name, uneven=True) for name in MODELS]
        mirrored = [fitted(name) for name in LOSSES]
        mirrored += [two_outputs(of_two(loss)) for loss in TWO.values()]
        parts = gradients([14, 13])
        # Last: what fails in one replica leaves the others waiting.
        refused = what_trains_wrongly()
        metrics = [kc.ECE(from_logits=True) for _ in range(2)]
        answers = read(num_replicas)
        differing = unlike()
    outside = updated(*metrics)
    models = {
        name: largest_differences(a, b)
        for name, a, b in zip(MODELS, one, many, strict=True)
    }
    losses = {
        name: [float(np.abs(a[i] - np.array(b[i])).max()) for i in range(2)]
        for name, a, b in zip([*LOSSES, *TWO], plain, mirrored, strict=True)
    }
    differences = {
        name: float(np.abs(alone[name] - parts[name]).max()) for name in alone
    }
    alike = zip([*alike, alike[1]], same, strict=True)
    alike = [largest_differences((a, {}), (b, {}))[0] for a, b in alike]
    answer = {
        "alike": alike,
        "readme": page,
        "gradients": differences,
        "models": models,
        "losses": losses,
        "refused": refused,
        "outside": outside,
        "read": answers,
        "unlike": differing,
    }
    print(json.dumps(answer, default=str))


if __name__ == "__main__":
    main(int(sys.argv[1]))

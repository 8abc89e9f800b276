"""What Keras asks of metrics beside their values: direction and name."""

import warnings

import keras
import numpy as np
import pytest
from cases import METRICS, TABLE

import keras_calib as kc


def data(n=16):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 8)).astype("float32")
    y = (x @ rng.normal(size=(8, 3))).argmax(-1)
    return x, y


def network():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])


def test_callbacks_find_the_direction_of_every_metric(tmp_path):
    """Keras asks each metric for it where `mode` is left out."""
    x, y = data()
    metrics = {
        case.name: case.make(3, from_logits=True, name=case.name)
        for case in METRICS
        if case.name != "CalibrationMetrics"
    }
    metrics["images"] = kc.PerImage(kc.FailureAUROC(), name="images")
    higher = {
        "Accuracy",
        "CoverageAtAccuracy",
        "CoverageAtRisk",
        "FailureAUROC",
        "images",
    }
    for name in ("ConfidenceGap", "MeanConfidence"):
        assert metrics.pop(name).mode is None
    assert higher < set(metrics)
    one = kc.ObjectnessDeviation()
    assert one.mode == "min"
    for name, metric in metrics.items():
        assert metric.mode == ("max" if name in higher else "min"), name
    # A table says it by name, as the metric of that name does.
    table = kc.CalibrationMetrics([*TABLE], from_logits=True, prefix="all_")
    expected = {f"all_{name}": TABLE[name].make(3).mode for name in TABLE}
    assert table.modes == {k: v for k, v in expected.items() if v}
    del metrics["images"]
    loss = kc.FocalLoss(from_logits=True)
    model = network()
    shown = [*metrics.values()]
    model.compile("sgd", loss, metrics=shown, run_eagerly=True)
    callbacks = []
    for name in metrics:
        callbacks.append(keras.callbacks.EarlyStopping(f"val_{name}"))
    # It asks in the same way.
    saves = keras.callbacks.ModelCheckpoint
    callbacks.append(saves(tmp_path / "model.keras", "val_Accuracy"))
    model.fit(x, y, validation_data=(x, y), verbose=0, callbacks=callbacks)
    for name, stop in zip(metrics, callbacks[:-1], strict=True):
        better = keras.ops.greater if name in higher else keras.ops.less
        assert stop.monitor_op is better, name


@pytest.mark.portable
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_callbacks_find_the_direction_of_values_of_a_table(
    run_eagerly, tmp_path
):
    x, y = data()
    table = kc.CalibrationMetrics(
        ["ece", "accuracy", "mean_confidence"], from_logits=True, resolution=64
    )
    model = network()
    logger = kc.CalibrationLogger(
        (x, y), metrics=["ece", kc.Accuracy(name="a", from_logits=True)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    for _ in range(1 + run_eagerly):
        model.compile("sgd", loss, metrics=[table], run_eagerly=run_eagerly)
        path = tmp_path / "model.weights.h5"
        callbacks = [
            logger,
            keras.callbacks.EarlyStopping("val_ece"),
            keras.callbacks.ReduceLROnPlateau("accuracy"),
            keras.callbacks.ModelCheckpoint(
                path,
                monitor="val_accuracy",
                save_weights_only=True,
                save_best_only=True,
            ),
            keras.callbacks.EarlyStopping("cal_ece"),
            keras.callbacks.EarlyStopping("cal_a"),
        ]
        history = model.fit(
            x, y, validation_data=(x, y), verbose=0, callbacks=callbacks
        ).history
        found = [x.monitor_op.__name__ for x in callbacks[1:]]
        assert found == ["less", "greater", "greater", "less", "greater"]
        assert {"val_ece", "val_accuracy", "cal_ece"} <= set(history)
        assert len([k for k in history if "ece" in k]) == 3
    neither = keras.callbacks.EarlyStopping("mean_confidence")
    with pytest.raises(ValueError, match="mode='max'"):
        model.fit(x, y, verbose=0, callbacks=[neither])


def test_callbacks_find_the_direction_of_values_of_labels():
    x, y = data()
    labels = kc.labels.MultiLabelMetric(
        kc.Accuracy(from_logits=True), average=None
    )
    loss = keras.losses.BinaryCrossentropy(True)
    for _ in range(2):
        model = network()
        model.compile("sgd", loss, metrics=[labels], run_eagerly=True)
        stop = keras.callbacks.EarlyStopping("accuracy_1")
        model.fit(x, np.eye(3)[y], verbose=0, callbacks=[stop])
        assert stop.monitor_op is keras.ops.greater


def two_heads(metrics, weighted_metrics=None):
    inputs = keras.Input((8,))
    outputs = [keras.layers.Dense(3, name=n)(inputs) for n in "ab"]
    model = keras.Model(inputs, outputs)
    model.compile(
        "sgd",
        loss=[keras.losses.SparseCategoricalCrossentropy(True)] * 2,
        metrics=metrics,
        weighted_metrics=weighted_metrics,
        run_eagerly=True,
    )
    return model


def test_metrics_that_share_a_name_are_warned_of():
    x, y = data()

    def table(*names, **kwargs):
        return kc.CalibrationMetrics(names, from_logits=True, **kwargs)

    ece = kc.ECE(from_logits=True)
    loud = [
        (network, {"metrics": [ece, table("ece", "nll")]}, "['ece']"),
        (network, {"metrics": [table("nll")], "weighted_metrics":
            [table("nll", name="other")]}, "['nll']"),
        (network, {"metrics": ["accuracy"], "weighted_metrics":
            [table("accuracy")]}, "['accuracy']"),
        (two_heads, {"metrics": [[table("ece")], [table("ece")]]}, "['ece']"),
    ]  # fmt: skip
    quiet = [
        (network, {"metrics": ["accuracy", table("accuracy", "ece")]}),
        (network, {"metrics": [ece, table("ece", prefix="all_")]}),
        (network, {"metrics": [kc.ECE(from_logits=True, name="one"),
            table("ece")]}),
        (two_heads, {"metrics": [[table("ece", prefix="a_")],
            [table("ece", prefix="b_")]]}),
        # Keras puts the output's name before that of a single value.
        (two_heads, {"metrics": [[table("ece")], [kc.ECE(from_logits=True)]]}),
    ]  # fmt: skip
    runs = [*loud, *quiet]
    for make, arguments, *shared in runs:
        model = two_heads(**arguments) if make is two_heads else network()
        if make is network:
            loss = keras.losses.SparseCategoricalCrossentropy(True)
            # Compiled code finds its neighbours too.
            eager = arguments is not loud[0][1]
            options = {"run_eagerly": eager, "jit_compile": False}
            model.compile("sgd", loss=loss, **options, **arguments)
        labels = [y, y] if make is two_heads else y
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.test_on_batch(x, labels)
        found = [str(w.message) for w in caught if "both report" in str(w)]
        assert bool(found) == bool(shared), (arguments, found)
        for message in found:
            assert shared[0] in message and "prefix" in message
    # Nobody else is there: warnings are errors. Later it is compiled.
    alone = table("ece")
    alone.update_state(y, np.eye(3)[y])
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    model.compile("sgd", loss=loss, metrics=[ece, alone], run_eagerly=True)
    with pytest.warns(RuntimeWarning, match=r"both report \['ece'\]"):
        model.test_on_batch(x, y)
    # One unit: Keras' accuracy is that of a threshold, here the same or not.
    other = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.3)
    for accuracy, shared in (("accuracy", False), (other, True)):
        unit = keras.layers.Dense(1, activation="sigmoid")
        model = keras.Sequential([keras.Input((8,)), unit])
        both = [accuracy, kc.CalibrationMetrics(["accuracy"])]
        options = {"metrics": both, "run_eagerly": True}
        model.compile("sgd", loss="binary_crossentropy", **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.test_on_batch(x, y % 2)
        found = ["both report" in str(w.message) for w in caught]
        assert any(found) == shared, accuracy

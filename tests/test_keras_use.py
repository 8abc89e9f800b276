"""Losses and metrics as parts of Keras: compile, fit, evaluate, save, load."""

import warnings

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import KINDS
from cases import LOSSES
from cases import METRICS
from cases import TABLE

import keras_calib as kc
from keras_calib.backend import keras_internals as internals

pytestmark = pytest.mark.portable

# All values of the table take long to compile.
FEW = [case for case in KINDS if case.name != "CalibrationMetrics"]
CLASSES = ("ACLS", "FocalLoss", "LabelRelaxation", "MbLS")


def data(n=256, num_classes=3):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 8)).astype("float32")
    y = (x @ rng.normal(size=(8, num_classes))).argmax(-1)
    return x, y


def network(num_classes=3):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(num_classes),
        ]
    )


def compiled(loss, metrics=None, **kwargs):
    model = network()
    metrics = metrics or [m.make(3, from_logits=True) for m in FEW]
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss=loss,
        metrics=["accuracy", *metrics],
        **kwargs,
    )
    return model


# Each with its defaults, compiled by XLA for one of them where there is XLA.
RUNS = [(case, False) for case in LOSSES if case.name in CLASSES]
RUNS += [(RUNS[0][0], BACKEND != "torch")]


@pytest.mark.parametrize(("case", "jit_compile"), RUNS, ids=str)
def test_fit_learns_and_evaluate_agrees_with_the_functions(case, jit_compile):
    x, y = data()
    loss = case.cls(from_logits=True)
    metrics = [m.make(3, from_logits=True) for m in FEW]
    model = compiled(loss, metrics, jit_compile=jit_compile)
    history = model.fit(
        x, y, validation_data=(x, y), epochs=5, batch_size=32, verbose=0
    ).history
    assert history["loss"][-1] < history["loss"][0]
    assert history["val_accuracy"][-1] > 0.8
    values = model.evaluate(x, y, batch_size=100, verbose=0, return_dict=True)
    logits = model.predict(x, verbose=0)
    for name, exact in (("ece", kc.ece), ("nll", kc.nll)):
        expected = exact(y, logits, from_logits=True)
        np.testing.assert_allclose(values[name], expected, rtol=1e-3)
    aurc = next(m for m in metrics if isinstance(m, kc.AURC))
    low, high = aurc.bounds()
    assert low <= kc.aurc(y, logits, from_logits=True) <= high
    assert low <= values["aurc"] <= high
    np.testing.assert_allclose(
        values["loss"], float(loss(y, logits)), rtol=1e-4
    )


def same_after_loading(model, x, y, path):
    """Evaluates and trains on as the saved model does."""
    model.save(path)
    again = keras.models.load_model(path)
    runs = []
    for m in (model, again):
        options = {"batch_size": len(x), "verbose": 0}
        values = m.evaluate(x, y, **options)
        history = m.fit(x, y, epochs=2, **options).history
        runs.append([*np.ravel(values), *history["loss"]])
    np.testing.assert_allclose(runs[1], runs[0], rtol=1e-5)
    assert type(again.loss) is type(model.loss)
    assert again.loss.get_config() == model.loss.get_config()
    return again


@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_a_model_saves_and_loads_without_custom_objects(case, tmp_path):
    x, y = data(n=32)
    model = network()
    model.compile(optimizer="sgd", loss=case.make())
    y = case.labels(y)
    again = same_after_loading(model, x, y, tmp_path / "model.keras")
    for name, value in case.hyperparameters.items():
        if name == "fidelity":
            expected = value().get_config()
            assert type(again.loss.fidelity) is value.func
            assert again.loss.fidelity.get_config() == expected
        else:
            assert again.loss.get_config()[name] == value


def test_a_model_with_metrics_saves_and_loads(tmp_path):
    x, y = data()
    model = compiled(kc.ACLS(margin=2.0, from_logits=True))
    model.fit(x, y, epochs=1, batch_size=len(x), verbose=0)
    same_after_loading(model, x, y, tmp_path / "model.keras")


def test_a_saved_model_knows_every_metric(tmp_path):
    # Each under its own name: one class is there more than once.
    metrics = [
        case.make(3, from_logits=True, name=case.name) for case in METRICS
    ]
    metrics += [
        kc.ObjectnessDeviation(from_logits=True),
        kc.PerImage(kc.AECE(10, from_logits=True), background=0),
    ]
    model = network()
    model.compile(loss="mse", optimizer="sgd", metrics=metrics)
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    config = again.get_compile_config()
    assert config["metrics"] == model.get_compile_config()["metrics"]
    assert len(config["metrics"]) == len(metrics)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains(policy):
    x, y = data()
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        model = compiled(kc.ACLS(margin=10.0, from_logits=True))
        history = model.fit(x, y, epochs=5, batch_size=32, verbose=0).history
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    assert np.isfinite(history["loss"]).all()
    assert history["accuracy"][-1] > 0.8


def test_soft_labels_sample_and_class_weights_fit():
    x, y = data()
    model = compiled(kc.LabelSmoothing(from_logits=True))
    model.fit(x, y, class_weight={0: 1.0, 1: 2.0, 2: 1.0}, verbose=0)
    model.fit(x, y, sample_weight=np.linspace(0, 1, len(y)), verbose=0)
    soft = np.eye(3, dtype="float32")[y] * 0.8 + 0.2 / 3
    # Keras' own "accuracy" would compare soft labels, so it is left out.
    model = network()
    model.compile(
        loss=kc.MbLS(from_logits=True), metrics=[kc.ECE(from_logits=True)]
    )
    model.fit(x, soft, verbose=0)


def test_segmentation_with_an_ignored_class_fits():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 6, 7, 3)).astype("float32")
    y = x.argmax(-1)
    y[:, 0] = 255
    model = keras.Sequential(
        [keras.Input((6, 7, 3)), keras.layers.Conv2D(3, 1)]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(1.0),
        loss=kc.ACLS(margin=6.0, from_logits=True, ignore_class=255),
        metrics=[
            kc.ECE(from_logits=True, ignore_class=255),
            kc.AURC(from_logits=True, ignore_class=255),
        ],
    )
    history = model.fit(x, y, epochs=20, batch_size=4, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["aurc"][-1] < history["aurc"][0]


def test_a_sigmoid_output_trains_and_is_measured():
    x, y = data(num_classes=2)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(1, activation="sigmoid")]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.5),
        loss=kc.FocalLoss(gamma=1.0),
        metrics=["accuracy", kc.ECE(), kc.NLL()],
    )
    history = model.fit(x, y, epochs=10, verbose=0).history
    assert history["accuracy"][-1] > 0.85
    probs = model.predict(x, verbose=0)
    values = model.evaluate(x, y, verbose=0, return_dict=True)
    np.testing.assert_allclose(values["ece"], kc.ece(y, probs), rtol=1e-4)


def test_early_stopping_sees_the_metrics():
    x, y = data()
    model = compiled(kc.FocalLoss(from_logits=True))
    stop = keras.callbacks.EarlyStopping("val_ece", mode="min", patience=0)
    history = model.fit(
        x, y, validation_data=(x, y), epochs=30, verbose=0, callbacks=[stop]
    ).history
    assert 1 < len(history["val_ece"]) < 30


@pytest.mark.parametrize("ignore_class", [None, 2])
def test_masked_steps_count_neither_in_losses_nor_in_metrics(ignore_class):
    rng = np.random.default_rng(0)
    x = rng.integers(1, 9, size=(6, 7))
    x[:, 4:] = 0
    y = rng.integers(3, size=(6, 7))
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((7,)),
            keras.layers.Embedding(9, 4, mask_zero=True),
            keras.layers.Dense(3),
        ]
    )
    options = {"from_logits": True, "ignore_class": ignore_class}
    reference = keras.losses.SparseCategoricalCrossentropy(**options)
    values = []
    for loss in (kc.LabelSmoothing(alpha=0.0, **options), reference):
        model.compile(loss=loss, metrics=[kc.NLL(**options)])
        values.append(
            model.evaluate(x, y, batch_size=6, verbose=0, return_dict=True)
        )
    for value in values:
        np.testing.assert_allclose(value["loss"], values[1]["loss"], rtol=1e-5)
        np.testing.assert_allclose(value["nll"], values[1]["loss"], rtol=1e-5)


def test_callbacks_find_the_direction_of_every_metric(tmp_path):
    """Keras asks each metric for it where `mode` is left out."""
    x, y = data(n=32)
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
    neither = metrics.pop("MeanConfidence")
    assert neither.mode is None and higher < set(metrics)
    one = kc.ObjectnessDeviation()
    assert one.mode == "min"
    for name, metric in metrics.items():
        assert metric.mode == ("max" if name in higher else "min"), name
    # A table says it by name, as the metric of that name does.
    table = kc.CalibrationMetrics([*TABLE], from_logits=True, prefix="all_")
    expected = {f"all_{name}": TABLE[name].make(3).mode for name in TABLE}
    assert table.modes == {k: v for k, v in expected.items() if v}
    del metrics["images"]
    if BACKEND != "tensorflow":
        # All that the backend adds is time.
        metrics = {name: metrics[name] for name in ("Accuracy", "AURC")}
    loss = kc.FocalLoss(from_logits=True)
    model = compiled(loss, [*metrics.values()], run_eagerly=True)
    callbacks = []
    for name in metrics:
        callbacks.append(keras.callbacks.EarlyStopping(f"val_{name}"))
        path = tmp_path / f"{name}.keras"
        callbacks.append(keras.callbacks.ModelCheckpoint(path, f"val_{name}"))
    model.fit(x, y, validation_data=(x, y), verbose=0, callbacks=callbacks)
    for name, stop in zip(metrics, callbacks[::2], strict=True):
        better = keras.ops.greater if name in higher else keras.ops.less
        assert stop.monitor_op is better, name


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
    x, y = data(n=32)

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
    if BACKEND != "tensorflow":
        # The same code: one of each.
        runs = [loud[0], quiet[0]]
    for make, arguments, *shared in runs:
        model = two_heads(**arguments) if make is two_heads else network()
        if make is network:
            loss = keras.losses.SparseCategoricalCrossentropy(True)
            # Compiled code finds its neighbours too.
            eager = arguments is not loud[0][1]
            model.compile("sgd", loss=loss, run_eagerly=eager, **arguments)
        labels = [y, y] if make is two_heads else y
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.evaluate(x, labels, verbose=0)
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
        model.evaluate(x, y, verbose=0)
    # One unit: Keras' accuracy is that of a threshold, here the same or not.
    other = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.3)
    for accuracy, shared in (("accuracy", False), (other, True)):
        unit = keras.layers.Dense(1, activation="sigmoid")
        model = keras.Sequential([keras.Input((8,)), unit])
        both = [accuracy, kc.CalibrationMetrics(["accuracy"])]
        model.compile("sgd", loss="binary_crossentropy", metrics=both)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.evaluate(x, y % 2, verbose=0)
        found = ["both report" in str(w.message) for w in caught]
        assert any(found) == shared, accuracy


def test_private_parts_of_keras_are_there_or_named():
    model = network()
    model.compile("sgd", loss="mse")
    internals.begin_at_epoch(model, 3)
    assert internals.first_epoch(model, 1) == 3
    internals.begin_at_epoch(model, None)
    assert internals.first_epoch(model, 1) == 1
    assert internals.loss_tracker(model).name == "loss"
    assert {x.name for x in internals.nested_layers(model)} > {
        x.name for x in model.layers
    }
    callback = keras.callbacks.Callback()
    callback.set_model(model)
    assert internals.callback_model(callback) is model
    with keras.StatelessScope():
        assert internals.in_stateless_scope()
    assert not internals.in_stateless_scope()
    # No list and no model calls.
    assert internals.neighbours(callback) == ([], [])
    assert internals.metrics_beside(kc.ECE()) == []

    class Later:
        """An object of a Keras that has none of them."""

    for use in (
        internals.build_from_batch,
        internals.begin_at_epoch,
        internals.first_epoch,
    ):
        with pytest.raises(RuntimeError, match=r"`Later\._.*Keras 3\.15"):
            use(Later(), None)
    for use in (
        internals.compiled_metrics,
        internals.loss_tracker,
        internals.nested_layers,
        internals.unlock_variables,
        internals.updated_metrics,
    ):
        with pytest.raises(RuntimeError, match=r"`Later\._.*Keras 3\.15"):
            use(Later())
    assert internals.backing_value(Later()) is None

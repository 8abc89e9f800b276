"""Losses and metrics as parts of Keras: compile, fit, evaluate, save, load."""

import keras
import numpy as np
import pytest
from cases import KINDS, LOSSES, METRICS, array

import keras_calib as kc

# All values of the table take long to compile.
FEW = [case for case in KINDS if case.name != "CalibrationMetrics"]


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


@pytest.fixture(scope="module")
def learned():
    """A model trained in a graph, and what was shown.

    Batches are of 32, the last of 26 rows.
    """
    x, y = data(n=250)
    loss = kc.ACLS(from_logits=True)
    metrics = [cls(from_logits=True) for cls in (kc.ECE, kc.AURC)]
    model = compiled(loss, metrics, jit_compile=False)
    history = model.fit(
        x, y, validation_data=(x, y), epochs=4, batch_size=32, verbose=0
    ).history
    return model, metrics, history


def test_fit_learns_and_evaluate_agrees_with_the_functions(learned):
    model, (_, aurc), history = learned
    loss = model.loss
    x, y = data(n=250)
    assert history["loss"][-1] < history["loss"][0]
    assert history["val_accuracy"][-1] > 0.8
    values = model.evaluate(x, y, batch_size=32, verbose=0, return_dict=True)
    logits = model.predict_on_batch(x)
    expected = kc.ece(y, logits, from_logits=True)
    np.testing.assert_allclose(values["ece"], expected, rtol=1e-3)
    low, high = aurc.bounds()
    assert low <= kc.aurc(y, logits, from_logits=True) <= high
    assert low <= values["aurc"] <= high
    np.testing.assert_allclose(
        values["loss"], float(loss(y, logits)), rtol=1e-4
    )


@pytest.mark.slow
def test_a_model_saves_and_loads_without_custom_objects(tmp_path):
    x, ids = data(n=32)
    for case in LOSSES:
        model = network()
        model.compile(optimizer="sgd", loss=case.make())
        y = case.labels(ids)
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        assert type(again.loss) is type(model.loss)
        assert again.loss.get_config() == model.loss.get_config()
        values = [float(array(m.loss(y, m(x)))) for m in (model, again)]
        assert values[0] == values[1], case.name
        for name, value in case.hyperparameters.items():
            if name == "fidelity":
                expected = value().get_config()
                assert type(again.loss.fidelity) is value.func
                assert again.loss.fidelity.get_config() == expected
            else:
                assert again.loss.get_config()[name] == value


def same_after_loading(model, x, y, path):
    """Evaluates and trains on as the saved model does."""
    model.save(path)
    again = keras.models.load_model(path)
    runs = []
    for m in (model, again):
        options = {"batch_size": len(x), "verbose": 0}
        values = m.evaluate(x, y, **options)
        history = m.fit(x, y, **options).history
        runs.append([*np.ravel(values), *history["loss"]])
    np.testing.assert_allclose(runs[1], runs[0], rtol=1e-5)
    assert type(again.loss) is type(model.loss)
    assert again.loss.get_config() == model.loss.get_config()
    return again


def test_a_model_with_metrics_saves_and_loads(tmp_path):
    x, y = data()
    loss = kc.ACLS(margin=2.0, from_logits=True)
    model = compiled(loss, run_eagerly=True)
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


@pytest.mark.slow
def test_mixed_precision_trains():
    # In a graph, and without.
    mixed_precision("mixed_float16", run_eagerly=False)
    mixed_precision("mixed_bfloat16", run_eagerly=True)


def mixed_precision(policy, run_eagerly):
    x, y = data()
    keras.mixed_precision.set_dtype_policy(policy)
    try:
        model = compiled(
            kc.ACLS(margin=10.0, from_logits=True),
            [kc.ECE(from_logits=True)],
            run_eagerly=run_eagerly,
            jit_compile=False,
        )
        history = model.fit(x, y, epochs=4, batch_size=32, verbose=0).history
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    assert np.isfinite(history["loss"]).all()
    assert history["accuracy"][-1] > 0.8


def test_soft_labels_sample_and_class_weights_fit():
    x, y = data()
    metrics = [kc.ECE(from_logits=True)]
    loss = kc.LabelSmoothing(from_logits=True)
    model = compiled(loss, metrics, run_eagerly=True)
    options = {"batch_size": len(x), "verbose": 0}
    model.fit(x, y, class_weight={0: 1.0, 1: 2.0, 2: 1.0}, **options)
    model.fit(x, y, sample_weight=np.linspace(0, 1, len(y)), **options)
    soft = np.eye(3, dtype="float32")[y] * 0.8 + 0.2 / 3
    # Keras' own "accuracy" would compare soft labels, so it is left out.
    model = network()
    model.compile(
        loss=kc.MbLS(from_logits=True), metrics=metrics, run_eagerly=True
    )
    model.fit(x, soft, **options)


def test_segmentation_with_an_ignored_class_fits():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 6, 7, 3)).astype("float32")
    y = x.argmax(-1)
    y[:, 0] = 255
    model = keras.Sequential(
        [keras.Input((6, 7, 3)), keras.layers.Conv2D(3, 1)]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(2.0),
        loss=kc.ACLS(margin=6.0, from_logits=True, ignore_class=255),
        metrics=[
            kc.ECE(from_logits=True, ignore_class=255),
            kc.AURC(from_logits=True, ignore_class=255),
        ],
        run_eagerly=True,
    )
    history = model.fit(x, y, epochs=8, batch_size=8, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["aurc"][-1] < history["aurc"][0]


def test_a_sigmoid_output_trains_and_is_measured():
    x, y = data(num_classes=2)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(1, activation="sigmoid")]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(5.0),
        loss=kc.FocalLoss(gamma=1.0),
        metrics=["accuracy", kc.ECE(), kc.NLL()],
        run_eagerly=True,
    )
    options = {"batch_size": len(x), "verbose": 0}
    history = model.fit(x, y, epochs=8, **options).history
    assert history["accuracy"][-1] > 0.85
    probs = model.predict(x, **options)
    values = model.evaluate(x, y, return_dict=True, **options)
    np.testing.assert_allclose(values["ece"], kc.ece(y, probs), rtol=1e-4)
    np.testing.assert_allclose(values["nll"], kc.nll(y, probs), rtol=1e-4)


def test_early_stopping_sees_the_metrics():
    x, y = data()
    metrics = [kc.ECE(from_logits=True)]
    loss = kc.FocalLoss(from_logits=True)
    model = compiled(loss, metrics, run_eagerly=True)
    stop = keras.callbacks.EarlyStopping("val_ece", patience=0)
    options = {"batch_size": len(x), "verbose": 0, "callbacks": [stop]}
    history = model.fit(
        x, y, validation_data=(x, y), epochs=30, **options
    ).history
    assert 1 < len(history["val_ece"]) < 30


@pytest.mark.portable
def test_masked_steps_count_neither_in_losses_nor_in_metrics():
    for ignore_class in (None, 2):
        masked_steps(ignore_class)


def masked_steps(ignore_class):
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
        metrics = [kc.NLL(**options)]
        model.compile(loss=loss, metrics=metrics, run_eagerly=True)
        values.append(model.test_on_batch(x, y, return_dict=True))
    for value in values:
        np.testing.assert_allclose(value["loss"], values[1]["loss"], rtol=1e-5)
        np.testing.assert_allclose(value["nll"], values[1]["loss"], rtol=1e-5)

"""What README, reports, calibrators and metrics make of replicas.

Part of training_replicas.py.
"""

import contextlib
import os
import tempfile
import warnings

import keras
import numpy as np
import tensorflow as tf
from paths import ROOT

import keras_calib as kc
from keras_calib.predictions.batches import predict_batches


def readme(scope, end=None):
    """Weights, what was shown and what was fitted, after README.md's code.

    Args:
        scope: Where the model is made and compiled.
        end: Where the code stops; by default it exports and reports too.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    code = code.partition(end)[0] if end else code
    made, trained, rest = code.partition("model.fit(")
    space = {"__name__": "page"}
    keras.utils.set_random_seed(0)
    with scope:
        exec(made, space)
    # Keras draws the order of batches anew to build a model of replicas.
    fixed = "data=calibration, shuffle=False, verbose=0)"
    assert "data=calibration, verbose=2)" in rest
    rest = rest.replace("data=calibration, verbose=2)", fixed, 1)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        exec(trained + rest, space)
        written = sorted(os.listdir())
    assert written == ([] if end else ["report.html", "serving"]), written
    model, selector = space["model"], space["selector"]
    fitted = [space["temperature"].temperature, selector.chosen.coverage]
    return [*model.get_weights(), np.array(fitted)], model.history.history


def updated(*mirrored):
    """Whether metrics of a strategy are exact outside of its steps too."""
    rng = np.random.default_rng(0)
    alone = kc.ECE(from_logits=True)
    for _ in range(3):
        labels, logits = rng.integers(3, size=99), rng.normal(size=(99, 3))
        mirrored[0].update_state(labels, logits)
        alone.update_state(labels, logits)
    mirrored[1].merge_state(mirrored[0])
    sums = [metric.state_dict()["sums"] for metric in (alone, *mirrored)]
    same = np.array_equal(sums[0], sums[1])
    return "exact" if same and np.array_equal(sums[0], sums[2]) else sums


def read(num_replicas):
    """What consumers make of a model of replicas, and of one device.

    The last batch is uneven, and smaller than the number of replicas.
    """
    rng = np.random.default_rng(0)
    count = 32 + num_replicas - 1
    x = rng.normal(size=(count, 6)).astype("float32")
    labels = rng.integers(3, size=count)
    seen = []

    class Watched(keras.layers.Layer):
        """Notes how many rows one replica is given."""

        def call(self, inputs):
            # Masks are read outside of the replicas, of all rows.
            if not tf.distribute.in_cross_replica_context():
                seen.append(inputs.shape[0])
            return inputs

    model = keras.Sequential(
        [keras.Input((6,)), Watched(), keras.layers.Dense(3)]
    )
    model.compile(loss=kc.MbLS(from_logits=True))
    outputs = keras.ops.convert_to_numpy(model(x))
    del seen[:]
    batches = list(predict_batches(model, (x, labels)))
    options = {"risk": 0.9, "verbose": 0}
    selector = kc.SelectiveClassifier().fit_on(model, (x, labels), **options)
    page = kc.report(model, (x, labels), verbose=0)
    diagram = kc.ReliabilityDisplay(kc.Predictions.of_model(model, (x, labels)))
    # Tokens, of which layers mask the padding 0.
    inputs = keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(9, 3, mask_zero=True)
    words = keras.Model(inputs, embedding(inputs))
    table = rng.normal(size=(9, 3))
    words.set_weights([table])
    ids = rng.integers(9, size=(count, 4))
    kinds = (table + rng.normal(size=table.shape)).argmax(-1)[ids]
    pair = kinds[ids > 0], table.astype("float32")[ids[ids > 0]]
    data = ids, np.where(ids > 0, kinds, -100)
    found = {
        "outputs": np.concatenate([batch.outputs for batch in batches]),
        "temperature": kc.TemperatureScaling()
        .fit_on(model, (x, labels), verbose=0)
        .temperature,
        "masked": kc.TemperatureScaling()
        .fit_on(words, data, from_logits=True, verbose=0)
        .temperature,
        "selector": selector.chosen.coverage,
        "report": page.results["model"]["metrics"]["nll"]["value"],
        "diagram": diagram.sums.residual,
    }
    expected = {
        "outputs": outputs,
        "temperature": kc.TemperatureScaling().fit(labels, outputs).temperature,
        "masked": kc.TemperatureScaling().fit(*pair).temperature,
        "selector": kc.SelectiveClassifier()
        .fit(labels, outputs, risk=0.9)
        .chosen.coverage,
        "report": kc.nll(labels, outputs, from_logits=True),
        "diagram": kc.ReliabilityDisplay(
            kc.Predictions(labels, outputs, from_logits=True)
        ).sums.residual,
    }
    differences = {
        name: float(np.abs(found[name] - value).max())
        for name, value in expected.items()
    }
    return {"differences": differences, "rows": sorted({*seen} - {None})}


def unlike():
    """What is said of replicas with statistics of their own, then none.

    Returns:
        Warnings, before and after the replicas are made alike; and how far
        outputs then are from the first replica's.
    """
    x = np.random.default_rng(0).normal(size=(5, 6)).astype("float32")
    layer = keras.layers.BatchNormalization(name="plain")
    model = keras.Sequential([keras.Input((6,)), layer])
    model.compile(loss=kc.MMCE(from_logits=True))
    outputs = keras.ops.convert_to_numpy(model(x))
    strategy = tf.distribute.get_strategy()
    means = strategy.experimental_local_results(layer.moving_mean.value)
    for place, part in enumerate(means):
        part.assign(part + place)
    texts = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            (batch,) = predict_batches(model, (x, None))
            kc.report(model, (x, np.arange(5)), verbose=0)
        told = [str(each.message) for each in told]
        texts.append([text for text in told if "replicas" in text])
        model.set_weights(model.get_weights())
    return texts, float(np.abs(batch.outputs - outputs).max())

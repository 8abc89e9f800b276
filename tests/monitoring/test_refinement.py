"""Parts of the NLL after each epoch, and callbacks that monitor them."""

import keras
import numpy as np
import pytest
from logged_training import Step, X, Y, close, fit, logger, network, predicted

import keras_calib as kc

PARTS = ["refinement_nll", "calibration_nll"]
WEIGHT = 1.0 + np.arange(24) % 3


def drawn(n=300):
    """Inputs, and labels drawn from a softmax of `TEACHER`."""
    rng = np.random.default_rng(3)
    teacher = rng.normal(size=(4, 3)).astype("float32")
    x = rng.normal(size=(n, 4)).astype("float32")
    scores = x @ teacher + rng.gumbel(size=(n, 3))
    return teacher, x, scores.argmax(-1)


@pytest.mark.portable
def test_parts_of_the_nll_are_those_of_the_exact_functions():
    model, log = network(), logger(metrics=PARTS, batch_size=5)
    fit(model, log)
    logits, values = predicted(model), log.logged[-1].values
    refined = kc.calibrators.refinement_nll(Y, logits)
    close(values["cal_refinement_nll"], refined)
    rest = kc.nll(Y, logits, from_logits=True) - refined
    close(values["cal_calibration_nll"], rest)


@pytest.mark.parametrize("kind", ["weights", "ignored", "probs", "one", "axis"])
def test_parts_read_models_and_data_as_metrics_do(kind):
    data, exact, options = (X, Y), {}, {}
    model = network(channels=1 if kind == "one" else 3)
    labels = Y
    if kind == "weights":
        data, exact = (X, Y, WEIGHT), {"sample_weight": WEIGHT}
    elif kind == "ignored":
        data, exact = (X, Y), {"ignore_class": 2}
        options = {"ignore_class": 2}
    elif kind == "one":
        labels = Y % 2
        data, options = (X, labels), {"from_logits": True}
    elif kind == "probs":
        inputs = keras.Input((4,))
        outputs = keras.layers.Dense(3, activation="softmax")(inputs)
        model, options = keras.Model(inputs, outputs), {"from_logits": False}
    elif kind == "axis":
        inputs = keras.Input((4,))
        outputs = keras.layers.Reshape((3, 1))(keras.layers.Dense(3)(inputs))
        model = keras.Model(inputs, outputs)
        model.compile("sgd", loss=kc.MbLS(from_logits=True, axis=1))
        data = (X, Y[:, None])
    log = logger(data, metrics=["nll", *PARTS], count_flips=False, **options)
    log.set_model(model)
    log.on_train_begin()
    log.on_epoch_end(0, {})
    values = log.logged[0].values
    logits = predicted(model)
    logits = np.log(logits) if kind == "probs" else logits.reshape(24, -1)
    refined = kc.calibrators.refinement_nll(labels, logits, **exact)
    close(values["cal_refinement_nll"], refined)
    parts = sum(values[f"cal_{name}"] for name in PARTS)
    close(values["cal_nll"], parts)


def test_refinement_does_not_choose_an_underfit_epoch():
    teacher, x, y = drawn()
    # A constant is calibrated; the teacher is best, but made overconfident.
    kernels = [0.0 * teacher, 4.0 * teacher, 0.0 * teacher]
    chosen = {}
    for name in ("ece", "refinement_nll"):
        model = network(rate=0.0)
        stop = keras.callbacks.EarlyStopping(
            f"cal_{name}", mode="min", patience=5, restore_best_weights=True
        )
        log = logger((x, y), metrics=["ece", "refinement_nll"], prefix="cal_")
        fit(model, Step(kernels), log, stop, epochs=3)
        chosen[name] = stop.best_epoch
    assert chosen == {"ece": 0, "refinement_nll": 1}
    values = [entry.values["cal_refinement_nll"] for entry in log.logged]
    close(values[0], np.log(3))
    close(values[1], kc.calibrators.refinement_nll(y, x @ teacher), 1e-5)


def test_refinement_must_be_logged_before_it_is_monitored():
    stop = keras.callbacks.EarlyStopping("cal_refinement_nll", mode="min")
    log = logger(metrics=["refinement_nll"])
    with pytest.raises(ValueError, match="must come before .* monitor"):
        fit(network(), stop, log)


def test_parts_are_nan_where_the_model_predicts_nan():
    model, log = network(), logger(metrics=PARTS)
    broken = [np.full((4, 3), np.nan, "float32")] * 2
    with pytest.warns(RuntimeWarning, match="predicts NaN"):
        fit(model, Step(broken), log)
    assert np.isnan([*log.logged[0].values.values()]).any()
    assert {"cal_refinement_nll", "cal_calibration_nll"} <= set(
        log.logged[0].values
    )

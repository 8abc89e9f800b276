"""The table of metrics from one state, in one pass."""

import functools

import keras
import numpy as np
import pytest
from cases import BACKEND, TABLE, sample, softmax
from streams import predictions

import keras_calib as kc
from keras_calib.formulas import bootstrap

# XLA takes longer to compile than a graph; JAX has nothing else.
JIT = "auto" if BACKEND == "jax" else False
KERAS = tuple(map(int, keras.__version__.split(".")[:2]))


@pytest.fixture(scope="module")
def table():
    """Logits, the table of them and each single metric."""
    labels, logits = sample(n=600, num_classes=4, scale=3.0)
    metric = kc.CalibrationMetrics(list(TABLE), from_logits=True)
    singles = {
        name: case.make(from_logits=True) for name, case in TABLE.items()
    }
    for start in range(0, 600, 300):
        part = labels[start : start + 300], logits[start : start + 300]
        for each in (metric, *singles.values()):
            each.update_state(*part)
    return labels, logits, metric, singles


@pytest.mark.portable
def test_every_value_is_that_of_its_own_class(table):
    labels, logits, metric, singles = table
    values = metric.result()
    assert list(values) == list(TABLE)
    for name, value in values.items():
        single = float(singles[name].result())
        assert float(value) == pytest.approx(single, rel=1e-5, abs=1e-7), name
        case = TABLE[name]
        exact = case.exact(labels, logits, from_logits=True)
        assert case.is_close(float(value), exact), name


def test_every_bound_is_that_of_its_own_class(table):
    _, _, metric, singles = table
    bounds = metric.bounds()
    assert set(bounds) == {n for n, case in TABLE.items() if case.has_bounds}
    for name, found in bounds.items():
        assert found == pytest.approx(singles[name].bounds(), abs=1e-9), name


def test_every_interval_is_that_of_its_own_class(table, monkeypatch):
    _, _, metric, singles = table
    # The same few draws for both.
    few = functools.partial(bootstrap.poisson_interval, num_draws=40)
    monkeypatch.setattr(bootstrap, "poisson_interval", few)
    intervals = metric.interval(0.9)
    assert list(intervals) == list(metric.result())
    without = {name for name, ends in intervals.items() if np.isnan(ends).all()}
    assert without == {"overconfidence_error", "smooth_ece"}
    for name in without:
        with pytest.raises(NotImplementedError, match="has no interval"):
            singles[name].interval()
    for name, (low, high) in intervals.items():
        if name in without:
            continue
        own = singles[name].interval(0.9)
        # The table takes the values of a cell for alike.
        assert (low, high) == pytest.approx(own, abs=2e-4), name
        assert low <= high
        wider = singles[name].interval(0.99)
        assert wider[0] <= own[0] + 1e-12 and own[1] <= wider[1] + 1e-12, name


def test_bins_curve_and_decompositions_are_those_of_the_classes(table):
    labels, logits, metric, singles = table
    for ours, other in zip(
        metric.bins().parts(), singles["ece"].bins().parts(), strict=True
    ):
        np.testing.assert_allclose(ours, other, atol=1e-5)
    for name in ("coverage", "risk"):
        np.testing.assert_array_equal(
            getattr(metric.curve(), name),
            getattr(singles["aurc"].curve(), name),
        )
    for score, single in (
        ("brier_score", "ece"),
        ("brier_score", "brier_score"),
        ("nll", "nll"),
    ):
        exact = kc.functional.calibration_decomposition(
            labels, logits, score=score, from_logits=True
        )
        for other in (singles[single].decomposition(), exact):
            found = metric.decomposition(score)
            for name, wanted in vars(other).items():
                np.testing.assert_allclose(
                    getattr(found, name), wanted, atol=1e-6
                )


def test_bins_of_weighted_predictions_are_those_of_ece():
    labels, probs = predictions(n=200)
    weight = np.random.default_rng(0).gamma(2.0, size=200)
    metric, single = kc.CalibrationMetrics(["ece"]), kc.ECE()
    for each in (metric, single):
        each.update_state(labels, probs, weight)
    ours = metric.bins()
    np.testing.assert_allclose(
        ours.parts(), single.bins().parts(), rtol=1e-4, atol=1e-4
    )
    assert ours.squared_weight.sum() == pytest.approx(np.sum(weight**2))


def test_thresholds_of_the_curve_accept_what_the_curve_says(table):
    labels, logits, metric, _ = table
    curve = metric.curve()
    probs = softmax(logits.astype("float64"))
    confidence = probs.max(axis=-1)
    log_odds = np.log(confidence / (1 - confidence))
    right = probs.argmax(axis=-1) == labels
    for i in range(0, len(curve.coverage), 50):
        # Rounding may move a sample that lies on the edge.
        accepted = log_odds >= curve.threshold[i] - 1e-5
        assert abs(accepted.mean() - curve.coverage[i]) <= 1 / 600 + 1e-9
        assert abs(1 - right[accepted].mean() - curve.risk[i]) < 0.02


def test_the_default_leaves_out_what_is_slow_and_keeps_the_order():
    metric = kc.CalibrationMetrics()
    assert list(metric.result()) == [n for n in TABLE if n != "smooth_ece"]
    chosen = ["aurc", "ece"]
    for names in (chosen, np.array(chosen)):
        assert list(kc.CalibrationMetrics(names).result()) == chosen


@pytest.mark.portable
def test_a_table_keeps_only_what_its_values_need(table):
    labels, logits, metric, _ = table
    whole, size = metric.result(), metric.sums.shape[-1]
    for chosen, fewer in (
        (["ece", "aurc"], 14),
        (["brier_score"], 7),
        (["nll"], 7),
    ):
        part = kc.CalibrationMetrics(chosen, from_logits=True)
        for start in range(0, 600, 300):
            part.update_state(
                labels[start : start + 300], logits[start : start + 300]
            )
        assert part.sums.shape[-1] == size - fewer
        assert part.result() == {name: whole[name] for name in chosen}
        kc.CalibrationMetrics.from_config(part.get_config()).merge_state(part)


def test_operating_points_are_those_asked_for():
    labels, probs = predictions()
    options = {"risk": 0.2, "accuracy": 0.9, "coverage": 0.5}
    include = ["coverage_at_risk", "coverage_at_accuracy", "risk_at_coverage"]
    metric = kc.CalibrationMetrics(include, **options)
    metric.update_state(labels, probs)
    exact = [
        kc.functional.coverage_at_risk(labels, probs, risk=0.2),
        kc.functional.coverage_at_accuracy(labels, probs, accuracy=0.9),
        kc.functional.risk_at_coverage(labels, probs, coverage=0.5),
    ]
    for (low, high), value in zip(metric.bounds().values(), exact, strict=True):
        assert low <= value <= high


def test_a_table_takes_the_end_of_bins_that_the_metric_takes():
    # Confidences on edges and off them.
    confidence = np.array([0.5, 0.5, 0.6, 0.55, 0.75, 0.9, 1.0, 0.8], "float32")
    labels = [0, 1, 0, 1, 2, 0, 0, 1]
    rest = 1.0 - confidence
    thirds = (np.arange(8, dtype="float32") + 1) / 17
    probs = np.stack([confidence, rest * thirds, rest - rest * thirds], axis=-1)
    values = []
    for closed in ("right", "left"):
        options = {"num_bins": 10, "closed": closed}
        metric = kc.CalibrationMetrics(["ece", "mce"], **options)
        metric.update_state(labels, probs)
        exact = kc.ECE(**options)
        exact.update_state(labels, probs)
        for found, wanted in zip(
            metric.bins().parts(), exact.bins().parts(), strict=True
        ):
            np.testing.assert_allclose(found, wanted, atol=1e-6)
        values.append(float(metric.result()["ece"]))
        again = kc.CalibrationMetrics.from_config(metric.get_config())
        assert again.closed == closed
        again.load_state_dict(metric.state_dict())
    assert values[0] != values[1]
    # Logits of a confidence of 1/2, whose log-odds round to either side of 0.
    second = -np.linspace(0.05, 0.6, 400, dtype="float32")
    third = np.log1p(-np.exp(second))
    logits = np.stack([np.zeros_like(second), second, third], axis=-1)
    options = {"num_bins": 2, "closed": "left", "from_logits": True}
    weights = []
    for metric in (
        kc.CalibrationMetrics(["ece"], **options),
        kc.ECE(**options),
    ):
        metric.update_state(np.zeros(400, "int32"), logits)
        weights.append(metric.bins().weight)
    np.testing.assert_array_equal(*weights)
    with pytest.raises(ValueError, match="`closed` must be one of"):
        kc.CalibrationMetrics(closed="both")


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="`include` must be one of"):
        kc.CalibrationMetrics(["ece", "ece2"])
    with pytest.raises(ValueError, match="`score` must be one of"):
        kc.CalibrationMetrics().decomposition("l1")


@pytest.mark.portable
def test_fit_shows_each_value_for_callbacks_to_monitor():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 5)).astype("float32")
    y = (x @ rng.normal(size=(5, 3))).argmax(-1)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    include = ["ece", "nll"]
    options = {"from_logits": True, "resolution": 2048}
    model.compile(
        optimizer=keras.optimizers.SGD(0.5),
        loss=kc.LabelSmoothing(from_logits=True),
        metrics=[
            kc.CalibrationMetrics(include, **options),
            kc.CalibrationMetrics(["ece"], prefix="other_", **options),
        ],
        jit_compile=JIT,
    )
    stop = keras.callbacks.EarlyStopping("val_ece", patience=0)
    history = model.fit(
        x,
        y,
        validation_data=(x, y),
        batch_size=48,
        epochs=20,
        verbose=0,
        callbacks=[stop],
    ).history
    assert {f"val_{name}" for name in include} | {"other_ece"} <= set(history)
    assert 1 <= len(history["val_ece"]) < 20
    values = model.evaluate(x, y, batch_size=48, verbose=0, return_dict=True)
    logits = model.predict(x, batch_size=48, verbose=0)
    for name in include:
        exact = getattr(kc.functional, name)(y, logits, from_logits=True)
        assert values[name] == pytest.approx(exact, rel=1e-4)
    assert values["other_ece"] == values["ece"]


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_the_progress_bar_may_show_values_of_earlier_steps(jit_compile):
    if BACKEND == "torch" and jit_compile:
        pytest.skip("Keras compiles by torch.compile there")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 3)).astype("float32")
    y = np.eye(3)[rng.integers(3, size=70)]
    late = (jit_compile or BACKEND == "tensorflow") and KERAS >= (3, 15)
    # The step whose value is shown at each step, by prefix.
    steps = {
        "": range(7),
        "third_": [0, 0, 0, 3, 3, 3, 6] if late else range(7),
        "seldom_": [0, 1, 1, 3, 3, 3, 3] if late else range(7),
    }
    tables, alone = map(table_of, steps), single_of("seldom_")
    model, shown = model_with([*tables, alone], jit_compile), []

    def keep(_, logs):
        shown.append([logs[prefix + "nll"] for prefix in steps])
        # A metric of its own shows what a table shows.
        assert logs["seldom_alone"] == pytest.approx(shown[-1][-1], 1e-6)

    step = keras.callbacks.LambdaCallback(on_test_batch_end=keep)
    for _ in range(2):
        # Nothing is left over from the evaluation before.
        shown.clear()
        values = model.evaluate(
            x, y, batch_size=10, verbose=0, callbacks=[step], return_dict=True
        )
        exact, third, seldom = np.transpose(shown)
        assert len(np.unique(exact)) == 7
        for found, prefix in ((third, "third_"), (seldom, "seldom_")):
            np.testing.assert_allclose(found, exact[list(steps[prefix])], 1e-6)
        # Steps round to float32, and what is shown late does not.
        assert not late or third[[0, 3]].tolist() == seldom[[0, 3]].tolist()
        for prefix in steps:
            assert values[prefix + "brier_score"] == values["brier_score"]
            assert values[prefix + "nll"] == values["nll"]
    # What is not only shown is of the last step.
    loop = model_with(map(single_of, ("", "seldom_")), jit_compile)
    for start in range(0, 70, 10):
        batch = x[start : start + 10], y[start : start + 10]
        logs = loop.test_on_batch(*batch, return_dict=True)
        assert logs["seldom_alone"] == pytest.approx(logs["alone"], 1e-6)
    own = model_with([table_of("seldom_")], jit_compile, Doubling)
    logs = own.evaluate(x, y, batch_size=10, verbose=0, return_dict=True)
    assert float(logs["twice"]) == pytest.approx(2 * values["nll"], 1e-6)


REFRESH = {"": 1, "third_": 3, "seldom_": None}


def table_of(prefix):
    options = {"from_logits": True, "refresh_every": REFRESH[prefix]}
    return kc.CalibrationMetrics(
        ["brier_score", "nll"], prefix=prefix, name=prefix or "every", **options
    )


def single_of(prefix):
    options = {"from_logits": True, "refresh_every": REFRESH[prefix]}
    return kc.NLL(name=prefix + "alone", **options)


def model_with(metrics, jit_compile=False, cls=keras.Model):
    """A compiled model of class `cls` whose outputs are its inputs."""
    inputs = keras.Input((3,))
    model = cls(inputs, keras.layers.Flatten()(inputs))
    model.compile(loss="mse", metrics=[*metrics], jit_compile=jit_compile)
    return model


@pytest.mark.slow
@pytest.mark.portable
def test_late_values_have_the_names_that_keras_gives():
    inputs = keras.Input((2,))
    outputs = [
        keras.layers.Dense(2, name=name)(inputs) for name in ("left", "right")
    ]
    model = keras.Model(inputs, outputs)
    # Two of one name, and one for each kind of weights.
    metrics = [kc.ECE, kc.AURC, kc.AURC]
    metrics = [[make(from_logits=True) for make in metrics] for _ in outputs]
    # One metric of both outputs.
    shared = kc.NLL(from_logits=True)
    metrics = [[*each, shared] for each in metrics]
    weighted = [[kc.AURC(from_logits=True)] for _ in outputs]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=metrics, weighted_metrics=weighted)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 2)), [rng.integers(2, size=40)] * 2
    shown = []
    step = keras.callbacks.LambdaCallback(
        on_test_batch_end=lambda _, logs: shown.append(logs)
    )
    options = {"batch_size": 20, "verbose": 0, "return_dict": True}
    values = model.evaluate(x, y, callbacks=[step], **options)
    assert "left_aurc_1" in values and "right_weighted_aurc" in values
    assert "left_nll" in values
    # After two steps the values of the step are those of the epoch.
    assert [*map(set, shown)] == [set(values)] * 2
    assert shown[1] == pytest.approx(values, 1e-6)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="a loop of TensorFlow")
def test_a_loop_around_a_step_gets_numbers():
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(10, 3)), np.eye(3)[rng.integers(3, size=10)]
    model = model_with([single_of(""), single_of("seldom_")])
    model.evaluate(x, y, verbose=0)
    model.reset_metrics()

    @tf.function
    def loop(x, y):
        return 2 * model.test_step((x, y))["alone"]

    twice = loop(tf.constant(x), tf.constant(y))
    value = model.get_metrics_result()["seldom_alone"]
    assert float(twice) == pytest.approx(2 * float(value), 1e-6)
    data = iter(tf.data.Dataset.from_tensors((x, y)))
    logs = model.make_test_function()(data)
    assert float(logs["seldom_alone"]) == pytest.approx(float(value), 1e-6)


class Doubling(keras.Model):
    """A model whose own step computes with the values of a metric."""

    def test_step(self, *args):
        results = super().test_step(*args)
        logs = results[0] if isinstance(results, tuple) else results
        # Keras 3.12 has no dict for each metric.
        logs["twice"] = 2 * logs.get("seldom_", logs)["seldom_nll"]
        return results

"""What may be given as a metric, wherever one is an argument."""

import inspect

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.inputs.given_metrics import key_of
from keras_calib.metrics import get

of_keras = keras.metrics.SparseCategoricalCrossentropy
RNG = np.random.default_rng(0)
PROBS = RNG.dirichlet(np.ones(3), 60)
OTHER = RNG.dirichlet(np.ones(3), 60)
IDS = RNG.integers(0, 3, 60)
FORMS = ("nll", kc.nll, kc.NLL, kc.NLL())


def used(metric):
    metric.update_state(IDS, PROBS)
    return metric


def test_each_use_has_a_metric_of_its_own():
    for given in FORMS:
        one, two = get(given), get(given)
        assert type(one) is kc.NLL and one is not two
        assert one is not given
    assert get("ece", num_bins=4).num_bins == 4
    assert get(kc.ECE(num_bins=4, name="e")).get_config()["num_bins"] == 4
    assert type(get(keras.metrics.AUC)) is keras.metrics.AUC
    assert type(get(keras.metrics.AUC())) is keras.metrics.AUC
    assert get("eaugrc") is kc.functional.eaugrc
    assert get(float_of) is float_of


def float_of(labels, outputs, sample_weight=None, power=1):
    return float(np.average(outputs[:, 0] ** power, weights=sample_weight))


def test_every_metric_class_and_function_has_a_key():
    needs = {
        "classwise_ece": {"num_classes": 3},
        "coverage_at_accuracy": {"accuracy": 0.9},
        "coverage_at_risk": {"risk": 0.1},
        "risk_at_coverage": {"coverage": 0.5},
    }
    known = [*vars(kc.functional).values(), *vars(kc.metrics).values()]
    keys = {key_of("metric", x, ANY) for x in known if is_metric(x)}
    assert {"ece", "aece", "eaugrc", *needs} <= keys
    for key in keys:
        found = get(key, **needs.get(key, {}))
        assert isinstance(found, kc.metrics.StreamingMetric) or callable(
            found
        ), key


TWO = [kc.Predictions(IDS, x) for x in (PROBS, OTHER)]


class _Any(tuple):
    def __contains__(self, key):
        return key is not None


ANY = _Any()


def is_metric(thing):
    """Whether it is an exact function, or the class of one quantity."""
    if isinstance(thing, type):
        return (
            "_quantity" in vars(thing)
            and thing is not kc.metrics.StreamingMetric
        )
    return getattr(thing, "__annotations__", {}).get("return") is float and (
        next(iter(inspect.signature(thing).parameters)) == "labels"
    )


@pytest.mark.parametrize(
    "given", FORMS, ids=["key", "function", "class", "new"]
)
def test_comparisons_are_the_same_for_each_form_of_a_metric(given):
    options = {"num_draws": 30, "seed": 1}
    exact = kc.compare(*TWO, kc.nll, **options)
    found = kc.compare(*TWO, given, **options)
    for name in ("a", "b", "low", "high", "p_value"):
        want = getattr(exact, name)
        assert getattr(found, name) == pytest.approx(want, rel=1e-5, abs=1e-6)


def test_metrics_of_keras_and_functions_of_users_are_compared():
    metric = of_keras()
    found = kc.compare(*TWO, metric, num_draws=5)
    assert found.a == pytest.approx(kc.nll(IDS, PROBS), rel=1e-4)
    assert not any(np.any(x) for x in metric.variables)
    own = kc.compare(*TWO, float_of, num_draws=5, power=2)
    assert own.a == pytest.approx((PROBS[:, 0] ** 2).mean())


def test_errors_name_what_was_given_and_not_what_keras_calls_it():
    probs = PROBS.copy()
    probs[0] = np.nan
    p, images = kc.Predictions(IDS, probs), (IDS[None], probs[None])
    for metric in ("ece", kc.ECE):
        with pytest.raises(ValueError, match="`outputs` must not contain NaN"):
            kc.functional.per_image(metric, *images)
    for call in (
        lambda: kc.compare(p, p, kc.ECE, num_draws=2),
        lambda: kc.evaluate(p, metrics=["ece"]),
    ):
        with pytest.raises(ValueError, match="`outputs` must not contain NaN"):
            call()
    with pytest.raises(ValueError, match="`labels` must hold class ids"):
        kc.functional.per_image(kc.ECE, IDS[None] + 3, PROBS[None])
    with pytest.raises(ValueError, match="`y_pred` must not contain NaN"):
        kc.ECE().update_state(IDS, probs)


def test_per_image_says_where_its_metric_stands():
    p = kc.Predictions(IDS[None], PROBS[None])
    with pytest.raises(
        TypeError, match=r"once: `per_image\(metric, labels, ou"
    ):
        kc.functional.per_image(p, metric="ece")
    with pytest.raises(TypeError, match="`metric` must be a key such as 'ece'"):
        kc.functional.per_image(p, "ece")


def test_images_labels_tables_and_loggers_take_each_form():
    images = IDS.reshape(4, 15), PROBS.reshape(4, 15, 3)
    exact = kc.functional.per_image(kc.nll, *images)
    two = (IDS[:20] == 0).reshape(10, 2), OTHER[:20, 0].reshape(10, 2)
    wanted = None
    for given in FORMS:
        assert kc.functional.per_image(given, *images) == pytest.approx(
            exact, rel=1e-5
        )
        metric = kc.PerImage(given)
        metric.update_state(*images)
        assert float(metric.result()) == pytest.approx(exact, rel=1e-5)
        several = kc.labels.MultiLabelMetric(given)
        several.update_state(*two)
        wanted = wanted or float(several.result())
        assert float(several.result()) == wanted
        assert kc.CalibrationMetrics([given]).include == ("nll",)
        table = kc.by_group(IDS, PROBS, groups=["a"] * 60, metrics=[given])
        assert table.metrics == ("nll",)
        x = np.eye(3, dtype="float32")[IDS]
        kc.CalibrationLogger((x, IDS), metrics=[given])
    assert kc.by_group(
        IDS, PROBS, groups=["a"] * 60, metrics=kc.nll
    ).metrics == ("nll",)
    found = kc.functional.calibration_test(
        IDS, PROBS, statistic=kc.ece, num_draws=5
    )
    assert found == kc.functional.calibration_test(IDS, PROBS, num_draws=5)


def test_a_metric_with_samples_is_refused_everywhere():
    for metric in (used(kc.ECE()), used(of_keras())):
        if not isinstance(metric, kc.ECE):
            uses = [get]
        else:
            uses = [get, kc.PerImage, kc.labels.MultiLabelMetric]
            uses.append(lambda x: kc.CalibrationMetrics([x]))
            uses.append(
                lambda x: kc.by_group(IDS, PROBS, groups=IDS, metrics=[x])
            )
        uses.append(lambda x: kc.compare(*TWO, x))
        uses.append(lambda x: kc.CalibrationLogger((PROBS, IDS), metrics=[x]))
        for use in uses:
            with pytest.raises(ValueError, match="must be a metric without"):
                use(metric)
        metric.reset_state()
        assert get(metric) is not metric


def test_what_is_no_metric_is_refused_with_what_may_be_given():
    for use in (get, lambda x: kc.compare(*TWO, x)):
        with pytest.raises(ValueError, match="`metric` .*did you mean 'ece'"):
            use("eec")
        with pytest.raises(TypeError, match="a key such as 'ece', a function"):
            use(3)
    with pytest.raises(ValueError, match="`include` .*did you mean 'aurc'"):
        kc.CalibrationMetrics(["aurcc"])
    with pytest.raises(
        ValueError, match="`metrics` .*did you mean 'brier_score'"
    ):
        kc.by_group(IDS, PROBS, groups=IDS, metrics=["brierr"])
    with pytest.raises(ValueError, match="give the arguments of `ECE` beside"):
        kc.CalibrationMetrics([kc.ECE(num_bins=4)])
    with pytest.raises(TypeError, match="an object has its own"):
        get(kc.ECE(), num_bins=3)
    with pytest.raises(TypeError, match="one value, not several"):
        kc.compare(*TWO, kc.CalibrationMetrics)
    with pytest.raises(TypeError, match="cannot be streamed"):
        kc.CalibrationLogger((PROBS, IDS), metrics=[float_of])
    nameless = keras.metrics.MeanMetricWrapper(float_of)
    with pytest.raises(TypeError, match="give its class, or the function"):
        get(nameless)

"""Metrics image by image, and of pairs of class id and objectness."""

from functools import partial

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from scipy.stats import t
from streams import updated_compiled

import keras_calib as kc

OPTIONS = {"from_logits": True, "axis": 1, "ignore_class": 255}
TOLD = {"from_logits": True, "ignore_class": 255}
SLOW = pytest.mark.slow


# What the evaluator of the published tables calls them.
PUBLISHED = {
    "nll": (lambda: kc.NLL(**OPTIONS), 1e-6),
    "ece": (lambda: kc.ECE(**OPTIONS), 1e-6),
    # Of an image's few pixels: no two share a cell, and the smallest
    # confidence is left out.
    "aece": (lambda: kc.AECE(edges="interp", **OPTIONS), 1e-5),
    "cece": (lambda: kc.ClasswiseECE(5, **OPTIONS), None),
}


def dense(goldens, case):
    logits = goldens[f"in/{case}/logits"].astype("float32")
    return goldens[f"in/{case}/labels"].astype("int32"), logits


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_per_image_are_reproduced(goldens, name):
    make, tolerance = PUBLISHED[name]
    for case in ("D", "D0"):
        labels, logits = dense(goldens, case)
        metric = kc.PerImage(make(), background=0)
        for i in range(len(labels)):
            metric.update_state(labels[i : i + 1], logits[i : i + 1])
        value = float(metric.result())
        expected = goldens[f"metric/seg_mbls_{name}/{case}"]
        if name == "cece":
            # It divides by the largest label of each image, here by all
            # classes.
            z = np.moveaxis(logits, 1, -1)
            own, theirs = (
                kc.functional.per_image(
                    kc.functional.classwise_ece,
                    labels,
                    z,
                    background=0,
                    ignore_class=255,
                    from_logits=True,
                    classes=classes,
                )
                for classes in ("all", "to_largest_label")
            )
            assert theirs == pytest.approx(expected, rel=1e-6), case
            assert value == pytest.approx(own, abs=1e-6), case
        else:
            assert value == pytest.approx(expected, abs=tolerance), case


def images(seed=0, count=4, shape=(6, 5), num_classes=4):
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=(count, *shape)).astype("int32")
    labels[rng.uniform(size=labels.shape) < 0.2] = 255
    logits = 2 * rng.normal(size=(count, *shape, num_classes))
    return labels, logits.astype("float32")


OF_IMAGES = [
    (kc.ECE, kc.ece, {}, 1e-6),
    (kc.NLL, kc.nll, {}, 1e-5),
    (kc.MCE, kc.functional.mce, {}, 1e-6),
    (kc.Accuracy, None, {}, 1e-6),
    (kc.AECE, kc.functional.aece, {}, 1e-4),
    (kc.AURC, kc.aurc, {}, 1e-3),
    (kc.ClasswiseECE, kc.functional.classwise_ece, {"num_classes": 4}, 1e-6),
]


each_metric = pytest.mark.parametrize(
    ("cls", "exact", "options", "tolerance"),
    OF_IMAGES,
    ids=[cls.__name__ for cls, *_ in OF_IMAGES],
)


def right(labels, logits, from_logits=True):
    return np.mean(logits.argmax(axis=-1) == labels)


@pytest.mark.portable
@each_metric
def test_images_follow_the_exact_function(cls, exact, options, tolerance):
    labels, logits = images()
    # An image without a valid pixel counts nothing.
    labels[2] = 255
    metric = kc.PerImage(
        cls(from_logits=True, ignore_class=255, **options), background=1
    )
    expected = kc.functional.per_image(
        exact or right,
        labels,
        logits,
        background=1,
        ignore_class=255,
        from_logits=True,
    )
    metric.update_state(labels, logits)
    assert float(metric.result()) == pytest.approx(expected, abs=tolerance)
    moments = metric.summary.moments(array(metric.sums))
    valid = (labels != 255) & (labels != 1)
    assert moments.weight * 30 == pytest.approx(valid.sum())
    # One by one, from the last.
    other = kc.PerImage.from_config(metric.get_config())
    for i in reversed(range(4)):
        other.update_state(labels[i : i + 1], logits[i : i + 1])
    assert float(other.result()) == pytest.approx(float(metric.result()))
    low, high = metric.interval()
    assert low <= float(metric.result()) <= high


@pytest.mark.slow
@pytest.mark.portable
@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
def test_the_ece_of_images_is_no_smaller_than_that_of_their_pixels():
    rng = np.random.default_rng(0)
    for _ in range(20):
        logits = rng.normal(size=(4, 6, 3)) * rng.uniform(0.1, 4.0)
        labels = rng.integers(3, size=(4, 6))
        labels[rng.random(labels.shape) < 0.3] = 255
        options = {"from_logits": True, "ignore_class": 255}
        pixels = kc.ece(labels, logits, **options)
        images = kc.functional.per_image(kc.ece, labels, logits, **options)
        assert pixels <= images + 1e-12


@pytest.mark.parametrize(
    ("make", "jit"),
    [
        (kc.ECE, [False]),
        pytest.param(kc.AURC, [False, True], marks=SLOW),
        pytest.param(partial(kc.ClasswiseECE, 4), [False], marks=SLOW),
        pytest.param(partial(kc.AURC, score="gini"), [False], marks=SLOW),
        pytest.param(partial(kc.ECE, jit_compile=True), [False], marks=SLOW),
    ],
)
def test_images_in_compiled_code(make, jit):
    labels, logits = images()
    labels[2] = 255
    inner = make(from_logits=True, ignore_class=255)
    # Eager batches are read by NumPy.
    eager = kc.PerImage(inner, background=1)
    eager.update_state(labels, logits)
    metric = kc.PerImage(inner, background=1)
    for _ in updated_compiled(metric, labels, logits, jit=jit):
        assert float(metric.result()) == pytest.approx(
            float(eager.result()), rel=1e-5
        )
    assert not array(inner.sums).any()


def test_intervals_of_images_end_at_the_largest_value():
    # The surest pixels are wrong, in all images but one.
    probs = np.array([[[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]] * 9)
    labels = np.array([[1, 0, 0]] * 8 + [[1, 1, 1]])
    for metric, above in (
        (kc.NAURC(), None),
        (kc.NLL(), None),
        (kc.BrierScore(), 2.0),
        (kc.AURC(), 1.0),
    ):
        image = kc.PerImage(metric)
        image.update_state(labels, probs)
        low, high = image.interval()
        assert low <= float(image.result()) <= high, metric.name
        assert image._largest == above, metric.name
        assert high <= (above or np.inf)


def test_images_without_a_valid_pixel_give_zero():
    labels, logits = images()
    metric = kc.PerImage(kc.ECE(from_logits=True, ignore_class=255))
    assert float(metric.result()) == 0.0
    metric.update_state(np.full_like(labels, 255), logits)
    assert float(metric.result()) == 0.0
    metric.flags.assign([1, 0, 0, 0])
    with pytest.warns(RuntimeWarning, match="leaves out 1 pred"):
        assert np.isnan(float(metric.result()))


def test_images_are_merged_and_their_configuration_round_trips():
    labels, logits = images()
    inner = kc.AURC(score="gini", from_logits=True, ignore_class=255)
    metric = kc.PerImage(inner, background=2)
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert again.get_config() == metric.get_config()
    assert type(again.metric) is kc.AURC
    assert again.options == metric.options
    assert again.name == "image_aurc"
    metric.update_state(labels[:2], logits[:2])
    again.update_state(labels[2:], logits[2:])
    whole = kc.PerImage(inner, background=2)
    whole.update_state(labels, logits)
    metric.merge_state(again)
    assert float(metric.result()) == pytest.approx(
        float(whole.result()), rel=1e-6
    )
    late = kc.AURC(
        score="gini", from_logits=True, ignore_class=255, refresh_every=3
    )
    whole.merge_state(kc.PerImage(late, background=2))
    other = kc.PerImage(inner)
    with pytest.raises(ValueError, match="one configuration"):
        metric.merge_state(other)
    with pytest.raises(TypeError, match="must be PerImage metrics"):
        metric.merge_state(inner)


def test_some_pixels_of_each_image_can_be_looked_at():
    labels, logits = images(shape=(8, 8))
    options = {"from_logits": True, "ignore_class": 255}
    some = kc.PerImage(kc.Accuracy(pixels_per_image=9, **options))
    some.update_state(labels, logits)
    single = kc.Accuracy(pixels_per_image=9, **options)
    singles, counts = [], []
    for i in range(len(labels)):
        single.reset_state()
        single.update_state(labels[i : i + 1], logits[i : i + 1])
        singles.append(float(single.result()))
        counts.append(single.summary.moments(array(single.sums)).weight)
    assert set(counts) == {9.0}
    assert float(some.result()) == pytest.approx(np.mean(singles), abs=1e-6)


def test_what_is_no_image_or_no_metric_is_refused():
    labels, logits = images()
    for inner in (
        keras.metrics.Mean(),
        kc.CalibrationMetrics(),
        kc.PerImage(kc.ECE()),
    ):
        with pytest.raises(TypeError, match="`metric` must be a metric of"):
            kc.PerImage(inner)
    metric = kc.PerImage(kc.ECE(from_logits=True, ignore_class=255))
    with pytest.raises(TypeError, match="`sample_weight` must be None"):
        metric.update_state(labels, logits, np.ones(4))
    with pytest.raises(ValueError, match="`y_pred` must have"):
        metric.update_state(labels[:, 0, 0], logits[:, 0, 0])
    logits[1, 2, 3] = np.nan
    labels[1, 2, 3] = 0
    with pytest.raises(ValueError, match="must not contain NaN"):
        metric.update_state(labels, logits)
    assert not array(metric.sums).any()


def told_images(count=60, seed=0):
    """Labels and logits of images that differ, as predictions of two models."""
    rng = np.random.default_rng(seed)
    labels, logits = images(seed, count, shape=(12, 10))
    sure = 3.0 * rng.beta(2, 2, count)[:, None, None, None]
    logits = logits + sure * np.eye(4)[np.where(labels == 255, 0, labels)]
    return [kc.Predictions(labels, k * logits, **TOLD) for k in (1.0, 0.8)]


def test_the_interval_is_that_of_a_mean_over_images():
    p = told_images()[0]
    values = kc.functional.per_image("ece", p, average=False)
    metric = kc.PerImage(kc.ECE(from_logits=True, ignore_class=255))
    metric.update_state(p.labels, p.outputs)
    low, high = metric.interval(0.95)
    # Student's, but for little skewness and nearly equal weights.
    reach = t.isf(0.025, 59) * values.std(ddof=1) / np.sqrt(60)
    assert low == pytest.approx(values.mean() - reach, abs=0.2 * reach)
    assert high == pytest.approx(values.mean() + reach, abs=0.2 * reach)
    assert values.min() < low < high < values.max()


@pytest.mark.parametrize("metric", ["ece", kc.ECE])
def test_metrics_of_images_read_as_predictions_tell(metric):
    p = told_images(12)[0]
    found = kc.evaluate(
        p,
        metrics=[kc.PerImage(metric), "accuracy"],
        calibrator=kc.TemperatureScaling(temperature=2.0),
        verbose=0,
    ).results
    half = kc.Predictions(p.labels, p.outputs / 2, **TOLD)
    for name, q in (("model", p), ("model, calibrated", half)):
        value = found[name]["image_ece"]["value"]
        assert value == pytest.approx(
            kc.functional.per_image("ece", q), abs=1e-6
        )


def test_images_are_what_a_comparison_resamples():
    a, b = told_images()
    found = kc.compare(a, b, kc.PerImage("ece"), num_draws=2000)
    values = [kc.functional.per_image("ece", p, average=False) for p in (a, b)]
    assert found.value == pytest.approx(
        kc.functional.per_image("ece", a) - kc.functional.per_image("ece", b)
    )
    error = np.subtract(*values).std(ddof=1) / np.sqrt(60)
    assert found.high - found.low == pytest.approx(3.92 * error, rel=0.1)
    # Images of a patient are drawn together, and what is masked is not there.
    mask = np.arange(60)[:, None, None] % 5 > np.zeros((60, 12, 10))
    mask[1, :6] = False
    units = np.arange(60) // 6
    pairs = [
        p.with_columns({"units": units, "sample_weight": mask * 1.0})
        for p in (a, b)
    ]
    inner = kc.ECE(**TOLD)
    found = kc.compare(*pairs, kc.PerImage(inner), num_draws=20)
    ignored = np.where(mask, a.labels, 255)
    left = kc.Predictions(ignored, a.outputs, **TOLD)
    expected = kc.functional.per_image("ece", left)
    assert found.a == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="as the `Predictions` tell"):
        kc.compare(a, b, kc.PerImage(kc.ECE()))
    for use in (kc.evaluate, lambda p, metrics: kc.compare(p, p, metrics[0])):
        with pytest.raises(TypeError, match=r"`PerImage\(metric=...\)`"):
            use(a, metrics=[kc.PerImage])


def test_mean_iou_is_that_of_the_classes_that_are_there():
    p = told_images(8)[0]
    found = kc.functional.per_image("mean_iou", p, average=False)
    for i in range(8):
        valid = p.labels[i] != 255
        true, predicted = p.labels[i][valid], p.outputs[i][valid].argmax(-1)
        shares = [
            np.sum((true == k) & (predicted == k))
            / np.sum((true == k) | (predicted == k))
            for k in range(4)
        ]
        assert found[i] == pytest.approx(np.mean(shares))
    probs = np.eye(3)[[0, 0, 1]]
    # Class 2 is neither true nor predicted, weights are repeats.
    assert kc.functional.mean_iou([0, 1, 1], probs) == 0.5
    weight = [2.0, 1.0, 0.0]
    assert kc.functional.mean_iou(
        [0, 1, 1], probs, sample_weight=weight
    ) == pytest.approx((2 / 3 + 0) / 2)

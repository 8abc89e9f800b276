"""Images and other units: all that has an interval takes them alike."""

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.functional import calibration_test

METRICS = ("accuracy", "confidence_gap", "ece", "nll", "aurc")


def dense(rng, n=40, size=(6, 8), effect=1.0, temperature=1.4):
    """Predictions of images that have an effect of their own."""
    shape = (n, 1, 1, 1)
    logits = rng.normal(0.0, 1.5, (n, *size, 3))
    logits = logits * np.exp(effect * rng.normal(0.0, 0.5, shape))
    noise = rng.gumbel(size=logits.shape)
    noise = noise + effect * rng.gumbel(size=(n, 1, 1, 3))
    labels = (logits / temperature + noise).argmax(axis=-1)
    return kc.Predictions(labels, logits.astype("float32"), from_logits=True)


def flat(p, **columns):
    return kc.Predictions(
        np.reshape(p.labels, -1),
        np.reshape(p.outputs, (-1, p.outputs.shape[-1])),
        from_logits=True,
        **columns,
    )


@pytest.fixture(scope="module")
def images():
    return dense(np.random.default_rng(0))


@pytest.fixture(scope="module")
def by_image(images):
    return kc.evaluate(images, verbose=0)


def width(x):
    return x["high"] - x["low"]


def test_images_are_units_and_so_are_rows_with_the_names_of_them(
    images, by_image
):
    names = [f"image {k}" for k in range(40) for _ in range(48)]
    named = kc.evaluate(flat(images, units=names), verbose=0)
    assert named.results == by_image.results
    assert by_image.num_units == named.num_units == 40
    assert (by_image.units, named.units) == ("images", "units")
    assert "1,920 predictions of 40 images; 95 % intervals of ind" in str(
        by_image
    )


def test_intervals_of_images_are_wider_than_those_of_pixels(images, by_image):
    pixels = kc.evaluate(flat(images), verbose=0)
    for name in METRICS:
        one, other = by_image[name], pixels[name]
        assert one["value"] == pytest.approx(other["value"], rel=1e-5)
        least = 1.05 if name in ("ece", "confidence_gap") else 1.3
        assert width(one) > least * width(other), name
    assert pixels.units is None
    assert str(pixels).endswith("1,920 predictions; 95 % intervals.")


def test_a_mean_has_students_interval_over_images(images, by_image):
    right = images.outputs.argmax(axis=-1) == images.labels
    share = right.reshape(40, -1).mean(axis=-1)
    error = share.std(ddof=1) / 40**0.5
    found = by_image["accuracy"]
    assert found["value"] == pytest.approx(share.mean(), abs=1e-6)
    # Student's quantile of 39 degrees is 2.023; skewness moves both ends.
    assert width(found) == pytest.approx(2 * 2.023 * error, rel=0.03)


def test_any_metric_has_a_jackknife_of_its_own(images):
    table = kc.CalibrationMetrics(include=["accuracy", "nll"], from_logits=True)
    found = kc.evaluate(
        images, metrics=["accuracy", "nll", kc.AECE, kc.RMSCE], verbose=0
    )
    other = kc.evaluate(images, metrics=[table], verbose=0)
    for name in ("accuracy", "nll"):
        assert width(other[name]) == pytest.approx(width(found[name]), rel=0.05)
    assert found["aece"]["low"] < found["aece"]["value"] < found["aece"]["high"]


def test_groups_take_images_as_units(images):
    rng = np.random.default_rng(1)
    sites = rng.choice(["a", "b"], 40)
    groups = {"site": sites}
    one = kc.by_group(images, groups=groups)
    pixel = {"site": np.repeat(sites, 48)}
    named = flat(images, units=np.repeat(np.arange(40), 48))
    other = kc.by_group(named, groups=pixel)
    alone = kc.by_group(flat(images), groups=pixel)
    assert one.rows == other.rows
    for name in ("accuracy", "nll", "brier_score", "confidence_gap"):
        wide, narrow = (
            x.table[f"{name}_high"] - x.table[f"{name}_low"]
            for x in (one, alone)
        )
        assert np.all(wide > 1.2 * narrow), name
    # Of one group it is what `evaluate` says, but for Student's factor.
    table = kc.evaluate(images, verbose=0)
    assert one.overall["nll_low"] == pytest.approx(table["nll"]["low"], 1e-3)


def test_groups_of_masked_images_are_those_of_the_pixels_that_count(images):
    # Tests and intervals are of images on both sides.
    rng = np.random.default_rng(4)
    kept = rng.random(images.labels.shape) < 0.8
    kept[:5] = False
    masked = kc.Predictions(
        images.labels,
        images.outputs,
        from_logits=True,
        sample_weight=kept.astype("float32"),
    )
    sites = rng.choice(["a", "b"], 40)
    one = kc.by_group(masked, groups={"site": sites})
    unit = np.repeat(np.arange(40), 48)[kept.reshape(-1)]
    some = kc.Predictions(
        images.labels[kept],
        images.outputs[kept],
        from_logits=True,
        units=unit,
    )
    other = kc.by_group(some, groups={"site": sites[unit]})
    assert one.table["group"].tolist() == other.table["group"].tolist()
    for name in {*one.table} - {"attribute", "group"}:
        np.testing.assert_allclose(
            one.table[name], other.table[name], rtol=1e-6, err_msg=name
        )


def test_ranks_of_images_without_errors_have_wide_intervals():
    outputs = np.zeros((30, 2, 2, 2), "float32")
    outputs[..., 0] = np.random.default_rng(5).normal(3.0, 0.1, (30, 2, 2))
    p = kc.Predictions(np.zeros((30, 2, 2), int), outputs, from_logits=True)
    found = kc.evaluate(p, metrics=["failure_auroc", "aurc"], verbose=0)
    assert width(found["failure_auroc"]) == 1.0
    assert found["aurc"]["high"] > 0.0


def test_an_area_of_a_ranking_below_chance_lies_in_its_interval():
    rng = np.random.default_rng(6)
    score = np.abs(rng.normal(1.0, 1.0, (40, 5))) + 0.1
    labels = (rng.random((40, 5)) < 1 / (1 + np.exp(2.0 - score))).astype(int)
    outputs = np.stack([score, np.zeros_like(score)], axis=-1)
    p = kc.Predictions(labels, outputs.astype("float32"), from_logits=True)
    found = kc.evaluate(p, metrics=["naurc"], verbose=0)["naurc"]
    assert 1.0 < found["value"] < found["high"]


def test_the_report_takes_images_as_units(images, by_image, words_alone):
    calibrator = kc.TemperatureScaling().fit(images)
    found = kc.report(images, calibrator=calibrator, verbose=0)
    results = found.results["model"]
    assert results["num_units"] == 40
    for name in ("accuracy", "ece", "nll"):
        assert results["metrics"][name]["low"] == by_image[name]["low"]
    assert {*results["changes"]} >= {"nll", "ece", "aurc", "confidence_gap"}
    assert results["changes"]["nll"]["p_value"] < 1e-3
    assert results["changes"]["accuracy"]["p_value"] == 1.0


def test_several_labels_take_units_as_what_is_independent():
    rng = np.random.default_rng(7)
    probs = rng.uniform(0.1, 0.9, (200, 3))
    labels = (rng.random((200, 3)) < probs).astype(int)
    once = kc.Predictions(labels, probs, multi_label=True)
    units = np.tile(np.arange(200), 3)
    again = kc.Predictions(
        np.tile(labels, (3, 1)),
        np.tile(probs, (3, 1)),
        multi_label=True,
        units=units,
    )
    one, other = (kc.evaluate(x, verbose=0) for x in (once, again))
    for name in ("macro_nll", "micro_brier_score", "macro_accuracy"):
        # Rows that are taken as independent would give 0.58 times as much.
        assert width(other[name]) == pytest.approx(width(one[name]), rel=0.05)


def test_few_units_have_no_verdict(words_alone):
    few = dense(np.random.default_rng(2), n=4)
    results = kc.report(few, verbose=0).results["model"]
    assert results["confidence_gap"]["too_few"] == "images"
    assert results["verdict"]["answer"].startswith("These data cannot say")


@pytest.mark.parametrize(
    "statistic", ["ece", "chi2", "spiegelhalter", "ecce_range", "ecce_maximum"]
)
def test_a_calibration_test_takes_images_as_units(images, statistic):
    options = {"statistic": statistic, "num_draws": 300}
    named = flat(images, units=np.repeat(np.arange(40), 48))
    one, other = (calibration_test(x, **options) for x in (images, named))
    assert one == other
    assert one.p_value < 0.02
    # Effects of images are no fault of the confidence.
    calibrator = kc.TemperatureScaling().fit(images)
    mended = calibration_test(calibrator.calibrate(images), **options)
    assert mended.p_value > 0.02


def test_calibrated_images_are_rarely_blamed():
    # Right pixels of an image come together, as often as told.
    rng, blamed = np.random.default_rng(3), 0
    for _ in range(400):
        score = np.abs(
            rng.normal(1.5, 1.0, (40, 1)) + rng.normal(size=(40, 30))
        )
        common = rng.random((40, 1))
        drawn = np.where(
            rng.random(score.shape) < 0.5, common, rng.random(score.shape)
        )
        labels = (drawn >= 1 / (1 + np.exp(-score))).astype(int)
        outputs = np.stack([score, np.zeros_like(score)], axis=-1)
        p = kc.Predictions(labels, outputs.astype("float32"), from_logits=True)
        blamed += calibration_test(p, num_draws=100).p_value <= 0.05
    # 5 % and two standard errors.
    assert blamed <= 0.072 * 400


def test_a_metric_of_pixels_warns_of_its_interval(images):
    metric = kc.ECE(from_logits=True)
    metric.update_state(images.labels, images.outputs)
    with pytest.warns(RuntimeWarning, match="use `evaluate` with"):
        metric.interval()
    drawn = kc.ECE(from_logits=True, pixels_per_image=1)
    drawn.update_state(images.labels, images.outputs)
    drawn.interval()

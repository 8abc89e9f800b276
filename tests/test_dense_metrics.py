"""Metrics image by image, and of pairs of class id and objectness."""

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import array
from cases import softmax
from test_metrics import updated_compiled

import keras_calib as kc

pytestmark = pytest.mark.portable

OPTIONS = {"from_logits": True, "axis": 1, "ignore_class": 255}
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


@pytest.mark.parametrize("case", ["D", "D0"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_per_image_are_reproduced(goldens, name, case):
    make, tolerance = PUBLISHED[name]
    labels, logits = dense(goldens, case)
    metric = kc.PerImage(make(), background=0)
    for i in range(len(labels)):
        metric.update_state(labels[i : i + 1], logits[i : i + 1])
    expected = goldens[f"metric/seg_mbls_{name}/{case}"]
    if name == "cece":
        # It divides by the largest label of each image, here by all classes.
        z = np.moveaxis(logits, 1, -1)
        own, theirs = (
            kc.per_image(
                kc.classwise_ece,
                labels,
                z,
                background=0,
                ignore_class=255,
                from_logits=True,
                classes=classes,
            )
            for classes in ("all", "to_largest_label")
        )
        assert theirs == pytest.approx(expected, rel=1e-6)
        assert float(metric.result()) == pytest.approx(own, abs=1e-6)
        return
    assert float(metric.result()) == pytest.approx(expected, abs=tolerance)


def images(seed=0, count=4, shape=(6, 5), num_classes=4):
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=(count, *shape)).astype("int32")
    labels[rng.uniform(size=labels.shape) < 0.2] = 255
    logits = 2 * rng.normal(size=(count, *shape, num_classes))
    return labels, logits.astype("float32")


OF_IMAGES = [
    (kc.ECE, kc.ece, {}, 1e-6),
    (kc.NLL, kc.nll, {}, 1e-5),
    (kc.MCE, kc.mce, {}, 1e-6),
    (kc.Accuracy, None, {}, 1e-6),
    (kc.AECE, kc.adaptive_ece, {}, 1e-4),
    (kc.AURC, kc.aurc, {}, 1e-3),
    (kc.ClasswiseECE, kc.classwise_ece, {"num_classes": 4}, 1e-6),
]
each_metric = pytest.mark.parametrize(
    ("cls", "exact", "options", "tolerance"),
    OF_IMAGES,
    ids=[cls.__name__ for cls, *_ in OF_IMAGES],
)


def right(labels, logits, from_logits=True):
    return np.mean(logits.argmax(axis=-1) == labels)


@each_metric
def test_images_follow_the_exact_function(cls, exact, options, tolerance):
    labels, logits = images()
    # An image without a valid pixel counts nothing.
    labels[2] = 255
    metric = kc.PerImage(
        cls(from_logits=True, ignore_class=255, **options), background=1
    )
    expected = kc.per_image(
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
    assert moments.weight[0] * 30 == pytest.approx(valid.sum())
    # One by one, from the last.
    other = kc.PerImage.from_config(metric.get_config())
    for i in reversed(range(4)):
        other.update_state(labels[i : i + 1], logits[i : i + 1])
    assert float(other.result()) == pytest.approx(float(metric.result()))
    low, high = metric.interval()
    assert low <= float(metric.result()) <= high


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
@each_metric
def test_images_in_compiled_code(cls, exact, options, tolerance):
    labels, logits = images()
    labels[2] = 255
    inner = cls(from_logits=True, ignore_class=255, **options)
    eager = kc.PerImage(inner)
    eager.update_state(labels, logits)
    metric = kc.PerImage(inner)
    for _ in updated_compiled(metric, labels, logits):
        assert float(metric.result()) == pytest.approx(
            float(eager.result()), rel=1e-5
        )
    assert not array(inner.sums).any()


def test_intervals_of_images_end_at_the_largest_value():
    # The surest pixels are wrong, in all images but one.
    probs = np.array([[[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]] * 9)
    labels = np.array([[1, 0, 0]] * 8 + [[1, 1, 1]])
    for metric, above in (
        (kc.NormalizedAURC(), None),
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
    other = kc.PerImage(inner)
    with pytest.raises(ValueError, match="one configuration"):
        metric.merge_state(other)
    with pytest.raises(TypeError, match="must be PerImage metrics"):
        metric.merge_state(inner)


def test_some_pixels_of_each_image_can_be_looked_at():
    labels, logits = images(shape=(8, 8))
    options = {"from_logits": True, "ignore_class": 255}
    some = kc.PerImage(kc.ECE(pixels_per_image=9, **options))
    some.update_state(labels, logits)
    singles, counts = [], []
    for i in range(len(labels)):
        single = kc.ECE(pixels_per_image=9, **options)
        single.update_state(labels[i : i + 1], logits[i : i + 1])
        singles.append(float(single.result()))
        counts.append(single.bins().weight.sum())
    assert set(counts) == {9.0}
    assert float(some.result()) == pytest.approx(np.mean(singles), abs=1e-6)


def test_what_is_no_image_or_no_metric_is_refused():
    labels, logits = images()
    with pytest.raises(TypeError, match="`metric` must be a metric of"):
        kc.PerImage(keras.metrics.Mean())
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


# Pairs of class id and objectness.


def pairs(n=120, num_classes=4):
    rng = np.random.default_rng(0)
    ids = rng.integers(num_classes, size=n)
    share = rng.uniform(size=n)
    probs = softmax(2 * rng.normal(size=(n, num_classes))).astype("float32")
    return ids, share, probs, np.stack([ids, share], axis=-1)


@pytest.mark.parametrize("weighted", [False, True])
def test_deviation_from_objectness_follows_the_exact_function(weighted):
    ids, share, probs, y = pairs()
    weight = np.linspace(0, 2, len(y), dtype="float32") if weighted else None
    metric = kc.ObjectnessDeviation()
    metric.update_state(y, probs, weight)
    exact = kc.objectness_deviation(ids, probs, share, sample_weight=weight)
    assert float(metric.result()) == pytest.approx(exact, abs=1e-6)
    parts = [kc.ObjectnessDeviation() for _ in range(2)]
    for i, part in enumerate(parts):
        index = slice(i, None, 2)
        w = None if weight is None else weight[index]
        part.update_state(y[index], probs[index], w)
    parts[0].merge_state(parts[1])
    assert float(parts[0].result()) == pytest.approx(exact, abs=1e-6)
    low, high = metric.interval()
    assert low < exact < high
    metric.reset_state()
    assert float(metric.result()) == 0.0


def test_deviation_from_objectness_in_other_forms():
    ids, share, probs, y = pairs()
    logits = np.log(probs)
    exact = kc.objectness_deviation(ids, probs, share)
    metric = kc.ObjectnessDeviation(from_logits=True)
    metric.update_state(y, logits)
    assert float(metric.result()) == pytest.approx(exact, abs=1e-6)
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert again.get_config() == metric.get_config()
    # Ignored pairs may have any objectness.
    y[:7] = 255, 99.0
    dense = kc.ObjectnessDeviation(ignore_class=255)
    dense.update_state(y.reshape(12, 10, 2), probs.reshape(12, 10, 4))
    rest = kc.objectness_deviation(ids[7:], probs[7:], share[7:])
    assert float(dense.result()) == pytest.approx(rest, abs=1e-6)
    with pytest.raises(ValueError, match="`objectness` must be True"):
        kc.ObjectnessDeviation(objectness=False)
    with pytest.raises(ValueError, match="must be pairs"):
        kc.ObjectnessDeviation().update_state(ids, probs)


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
def test_deviation_from_objectness_in_compiled_code():
    ids, share, probs, y = pairs()
    probs[3] = np.nan
    kept = np.arange(len(y)) != 3
    exact = kc.objectness_deviation(ids[kept], probs[kept], share[kept])
    metric = kc.ObjectnessDeviation()
    for _ in updated_compiled(metric, y.astype("float32"), probs):
        assert metric.num_invalid == 1
        with pytest.warns(RuntimeWarning, match="leaves out 1"):
            assert float(metric.result()) == pytest.approx(exact, abs=1e-6)


def test_metrics_of_pairs_read_the_ids():
    ids, _, probs, y = pairs()
    for cls in (kc.Accuracy, kc.ECE, kc.AURC):
        plain, paired = cls(), cls(objectness=True)
        plain.update_state(ids, probs)
        paired.update_state(y, probs)
        np.testing.assert_array_equal(array(paired.sums), array(plain.sums))
    assert float(kc.Accuracy().result()) == 0.0

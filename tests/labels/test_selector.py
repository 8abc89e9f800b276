"""Selection with several labels: thresholds by label and by example."""

import keras
import numpy as np
import pytest
from cases import array
from ladders import ranked

import keras_calib as kc
from keras_calib.selection.thresholds import ErrorTarget


def several(n=1500, num_labels=4, seed=0):
    """Labels of one common cause, logits of their true probabilities."""
    rng = np.random.default_rng(seed)
    z = 3.0 * (rng.normal(size=(n, num_labels)) + rng.normal(size=(n, 1)))
    u = rng.random((n, 1)) if seed % 2 else rng.random(z.shape)
    return (u < 1 / (1 + np.exp(-z))).astype(int), z.astype("float32")


def test_a_label_alone_has_the_threshold_of_its_two_classes():
    y, z = several()
    for target in (
        {"risk": 0.05},
        {"coverage": 0.6},
        {"risk": 0.05, "delta": 0.1},
    ):
        alone = kc.labels.MultiLabelSelector().fit(
            y, z, at_once=False, **target
        )
        for k in range(4):
            one = kc.SelectiveClassifier().fit(y[:, k], z[:, k, None], **target)
            facts = alone.chosen
            assert abs(one.threshold - facts.threshold[k]) < 1e-6
            assert one.chosen.coverage == facts.group_coverage[k]
            assert one.chosen.risk == facts.group_risk[k]
    one = kc.labels.MultiLabelSelector().fit(
        y[:, :1], z[:, :1], risk=0.05, delta=0.1
    )
    assert (
        one.threshold[0]
        == alone.fit(y, z, risk=0.05, delta=0.1, at_once=False).threshold[0]
    )


def test_labels_share_delta_equally():
    y, z = several()
    facts = (
        kc.labels.MultiLabelSelector().fit(y, z, risk=0.08, delta=0.1).chosen
    )
    alone = kc.labels.MultiLabelSelector().fit(
        y, z, risk=0.08, delta=0.025, at_once=False
    )
    assert list(facts.threshold) == list(alone.chosen.threshold)


def test_an_example_is_right_where_all_of_its_labels_are():
    y, z = several()
    right = (z > 0) == y
    target = {"risk": 0.1, "delta": 0.1}
    worst = kc.labels.MultiLabelSelector(by="example").fit(y, z, **target)
    score = abs(z).min(axis=-1)
    expected = kc.choose_threshold(score, right.all(axis=-1), **target)
    assert worst.chosen == expected
    answers = worst(z)
    assert np.array_equal(array(answers["accept"]), score >= worst.threshold)
    assert array(answers["labels"]).shape == (1500, 4)
    mean = kc.labels.MultiLabelSelector(by="example", example="mean")
    mean.fit(y, z, **target)
    kept = array(mean(z)["accept"])
    assert (~right)[kept].mean() == pytest.approx(mean.chosen.risk)
    assert mean.chosen.method == "betting"
    assert kept.mean() > array(answers["accept"]).mean()
    free = mean.fit(y, z, risk=0.1).chosen
    assert free.coverage >= kept.mean()


def test_it_calibrates_first_and_is_saved(tmp_path):
    y, z = several()
    calibrator = kc.labels.MultiLabelCalibrator(
        kc.AffineScaling(), class_names=["a", "b", "c", "d"]
    )
    selector = kc.labels.MultiLabelSelector(calibrator=calibrator)
    with pytest.raises(RuntimeError, match="must be fitted on other data"):
        selector.fit(y, z, risk=0.05)
    selector.fit(y, z, risk=0.05, delta=0.1, tune_fraction=0.3)
    assert selector.chosen.group == ("a", "b", "c", "d")
    assert selector.chosen.group_samples == (1050,) * 4
    assert "with probability 0.9 no label has" in repr(selector.chosen)
    answers = selector(z)
    logits = array(calibrator(z))
    assert np.array_equal(array(answers["logits"]), logits)
    accepted = abs(logits) >= selector.threshold
    assert np.array_equal(array(answers["accept"]), accepted)
    model = keras.Sequential([keras.Input((4,)), selector])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for name, value in again(z).items():
        assert np.array_equal(array(value), array(answers[name])), name
    assert again.layers[-1].chosen == selector.chosen
    for one in (selector, again.layers[-1]):
        one.calibrator.fit(y, z, num_folds=0)
        with pytest.raises(RuntimeError, match="were fitted again"):
            one(z)


def test_a_selective_classifier_becomes_a_selector_of_several_labels():
    y, z = several()
    target = {"risk": 0.2, "delta": 0.1, "tune_fraction": 0.3}
    part = kc.SelectiveClassifier(calibrator=kc.AffineScaling())
    selector = kc.MultiLabel(part, by="example").fit(y, z, **target)
    calibrator = kc.labels.MultiLabelCalibrator(kc.AffineScaling())
    expected = kc.labels.MultiLabelSelector(calibrator=calibrator, by="example")
    assert selector.chosen == expected.fit(y, z, **target).chosen
    assert kc.MultiLabel(kc.SelectiveClassifier()).calibrator is None
    refused = [
        kc.SelectiveClassifier(threshold=0.5),
        kc.SelectiveClassifier(score="gini"),
        kc.SelectiveClassifier(costs=1.0 - np.eye(2)),
    ]
    for part in refused:
        with pytest.raises(ValueError, match="that is not fitted, with the"):
            kc.MultiLabel(part)


def test_missing_labels_do_not_choose_the_threshold():
    y, z = several()
    missing = np.random.default_rng(2).random(y.shape) < 0.4
    marked = np.where(missing, -1, y)
    target = {"risk": 0.05, "delta": 0.1}
    selector = kc.labels.MultiLabelSelector().fit(
        marked, z, ignore_class=-1, at_once=False, **target
    )
    for k in range(4):
        seen = ~missing[:, k]
        one = kc.SelectiveClassifier().fit(
            y[seen, k], z[seen, k, None], **target
        )
        assert abs(one.threshold - selector.threshold[k]) < 1e-6
    by_example = kc.labels.MultiLabelSelector(by="example")
    with pytest.raises(ValueError, match="all labels of an example, or none"):
        by_example.fit(marked, z, ignore_class=-1, **target)
    rows = (np.arange(1500) % 3 > 0).astype("float32")
    target["risk"] = 0.15
    found = by_example.fit(y, z, sample_weight=rows, **target).chosen
    expected = kc.labels.MultiLabelSelector(by="example").fit(
        y[rows > 0], z[rows > 0], **target
    )
    assert found == expected.chosen


def test_what_does_not_fit_is_refused():
    y, z = several()
    selector = kc.labels.MultiLabelSelector()
    with pytest.raises(ValueError, match="must be 0 or 1, as an answer"):
        selector.fit(y * 0.5, z, risk=0.1)
    with pytest.raises(ValueError, match="No label has a threshold"):
        selector.fit(y[:30], z[:30], risk=0.05, delta=0.1)
    with pytest.raises(ValueError, match="must be 1 with `delta`"):
        weight = 1.0 + np.arange(1500)
        selector.fit(y, z, risk=0.1, delta=0.1, sample_weight=weight)
    with pytest.raises(TypeError, match="must be a `MultiLabelCalibrator`"):
        kc.labels.MultiLabelSelector(calibrator=kc.TemperatureScaling())
    with pytest.raises(ValueError, match="one for each label by label"):
        kc.labels.MultiLabelSelector(threshold=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_the_guarantee_holds_however_labels_depend(at_once, alike):
    num_labels, risk, delta, runs = 12, 0.1, 0.2, 250
    rng = np.random.default_rng(3)
    broken = np.zeros((runs, num_labels), bool)
    # Most labels err at the limit everywhere, so each certificate is false.
    limit = np.where(np.arange(num_labels) < 4, 0.02, risk + 1e-9)
    target = ErrorTarget(risk, None, delta)
    for run in range(runs):
        u = rng.random((300, 1 if alike else num_labels))
        sure = rng.random((300, 1)) + 0.01 * rng.random((300, num_labels))
        right = u >= limit
        found = [ranked(s, r) for s, r in zip(sure.T, right.T, strict=True)]
        try:
            chosen = target.choose_each(range(12), found, "labels", at_once)
        except ValueError:
            # No label reaches the limit.
            continue
        broken[run] = (np.array(chosen.threshold) < np.inf) & (limit > risk)
    error = 3 * np.sqrt(delta * (1 - delta) / runs)
    rate = broken.any(axis=1).mean() if at_once else broken.mean(axis=0).max()
    assert rate <= delta + error
    # It is no smaller than it must be, unless labels err together.
    assert rate > (0.0 if at_once and alike else 0.3 * delta)


def test_names_of_the_labels_are_those_of_the_predictions():
    labels = [[1, 0], [0, 1], [1, 1], [0, 0]]
    logits = [[3.0, 1], [-2, 4], [-1, -2], [1, -3]]
    p = kc.Predictions(
        labels,
        logits,
        from_logits=True,
        multi_label=True,
        class_names=["cat", "dog"],
    )
    calibrator = kc.MultiLabel(kc.TemperatureScaling()).fit(p, num_folds=0)
    assert calibrator.of_label("dog").fitted
    selector = kc.MultiLabel(kc.SelectiveClassifier()).fit(p, risk=0.5)
    assert selector.chosen.group == ("cat", "dog") == selector.class_names
    assert "  dog  " in repr(selector.chosen)
    part = kc.MultiLabel(kc.SelectiveClassifier(), class_names=["a", "b"])
    assert part.fit(p, risk=0.5).chosen.group == ("a", "b")
    # Another fit takes those of its data, or numbers.
    told = {"from_logits": True, "multi_label": True}
    p = kc.Predictions(labels, logits, **told)
    assert calibrator.fit(p, num_folds=0).class_names is None
    assert selector.fit(p, risk=0.5).class_names is None

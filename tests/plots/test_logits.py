"""Displays of logits, classes and confidence hold what loops find."""

import warnings

import keras
import matplotlib as mpl
import numpy as np
import pytest
from noisy_predictions import noisy_predictions, softmax

import keras_calib as kc
from keras_calib.functional.classwise import classwise_bins
from keras_calib.plots.logits import slide

mpl.use("Agg")


def test_confidence_display_counts_correct_and_wrong_apart():
    labels, logits = noisy_predictions(400, num_classes=5)
    display = kc.ConfidenceDisplay.from_predictions(
        labels, logits, from_logits=True, num_bins=8, name="net"
    )
    confidence = softmax(logits.astype("float64")).max(-1)
    correct = logits.argmax(-1) == labels
    for values, rows in ((display.correct, correct), (display.wrong, ~correct)):
        counts = [
            ((confidence > i / 8) & (confidence <= (i + 1) / 8) & rows).sum()
            for i in range(8)
        ]
        np.testing.assert_allclose(values, counts, atol=1e-9)
    assert abs(display.mean_confidence - confidence.mean()) < 1e-6
    assert abs(display.accuracy - correct.mean()) < 1e-9
    display.plot()
    heights = [patch.get_height() for patch in display.ax_.patches]
    np.testing.assert_allclose(
        heights, np.concatenate([display.correct, display.wrong])
    )
    assert "net" in display.ax_.get_title()
    lines = [line.get_xdata()[0] for line in display.ax_.lines]
    assert lines == [display.mean_confidence, display.accuracy]


def test_confidence_display_is_the_same_from_metric_and_model():
    labels, logits = noisy_predictions(400, num_classes=5)
    exact = kc.ConfidenceDisplay.from_predictions(
        labels, logits, from_logits=True
    )
    metric = kc.CalibrationMetrics(["ece"], from_logits=True)
    metric.update_state(labels, logits)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Activation(None)])
    for display in (
        kc.ConfidenceDisplay.from_metric(metric, log=False),
        kc.ConfidenceDisplay.from_model(
            model, (logits, labels), from_logits=True
        ),
    ):
        np.testing.assert_allclose(display.correct, exact.correct, atol=1e-6)
        np.testing.assert_allclose(display.wrong, exact.wrong, atol=1e-6)
    with pytest.raises(TypeError, match="`metric` must be `ECE`"):
        kc.ConfidenceDisplay.from_metric(kc.AURC())


@pytest.mark.parametrize(
    ("from_logits", "weighted"), [(True, False), (False, True)]
)
def test_classwise_errors_average_to_classwise_ece(from_logits, weighted):
    labels, logits = noisy_predictions(400, num_classes=5)
    outputs = logits if from_logits else softmax(logits)
    weight = np.arange(len(labels)) % 3.0 if weighted else None
    options = {
        "num_bins": 7,
        "from_logits": from_logits,
        "sample_weight": weight,
    }
    display = kc.ClasswiseReliabilityDisplay.from_predictions(
        labels, outputs, **options
    )
    exact = kc.classwise_ece(labels, outputs, **options)
    assert abs(display.classwise_ece - exact) < 1e-12
    w = np.ones(len(labels)) if weight is None else weight
    p = softmax(logits.astype("float64")) if from_logits else outputs
    for k in range(5):
        for b in range(7):
            rows = (p[:, k] > b / 7) & (p[:, k] <= (b + 1) / 7)
            found = (
                display.bins.weight[k, b],
                display.bins.probability[k, b],
                display.bins.positive[k, b],
            )
            wanted = (
                w[rows].sum(),
                (w * p[:, k])[rows].sum(),
                w[rows & (labels == k)].sum(),
            )
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)


def test_classwise_display_draws_the_worst_or_those_asked_for():
    labels, logits = noisy_predictions(400, num_classes=5)
    make = kc.ClasswiseReliabilityDisplay.from_predictions
    display = make(labels, logits, from_logits=True, max_panels=2)
    assert display.classes == np.argsort(-display.errors)[:2].tolist()
    names = ["a", "b", "c", "d", "e"]
    display = make(
        labels, logits, from_logits=True, classes=[4, 0], class_names=names
    ).plot()
    titles = [ax.get_title() for ax in display.axes_]
    assert [title[0] for title in titles] == ["e", "a"]
    assert f"{display.classwise_ece:.4f}" in display.figure_.get_suptitle()
    for classes in ([5], []):
        with pytest.raises(ValueError, match="`classes` must be ids"):
            make(labels, logits, from_logits=True, classes=classes)
    for odd in (1.7, 3.0000001, "1", True, float("nan")):
        with pytest.raises(TypeError, match="`classes` must be an integer"):
            make(labels, logits, from_logits=True, classes=[0, odd])
    with pytest.raises(ValueError, match="`class_names` must have a name"):
        make(labels, logits, from_logits=True, class_names=names[:4])


def test_a_class_that_never_comes_has_its_probability_as_error():
    probs = np.tile([0.7, 0.2, 0.1], (10, 1))
    bins = classwise_bins(np.zeros(10, int), probs, num_bins=5)
    errors = np.abs(bins.residual).sum(-1) / bins.total
    np.testing.assert_allclose(errors, [0.3, 0.2, 0.1])
    assert bins.positive[1:].sum() == 0


def test_windows_are_means_and_deviations_of_what_is_inside():
    rng = np.random.default_rng(0)
    x, y = rng.random(200), 1e6 + rng.normal(size=200)
    centers = np.linspace(0.0, 1.0, 9)
    # Some on an end of a window, which is inside.
    x[:4] = 0.4375, 0.4375, 0.5625, 0.5625
    found = slide(x, y, centers, 0.125, at_least=3)
    for i, center in enumerate(centers):
        inside = y[(x >= center - 0.0625) & (x <= center + 0.0625)]
        assert found.count[i] == len(inside)
        np.testing.assert_allclose(found.mean[i], inside.mean(), rtol=1e-12)
        np.testing.assert_allclose(found.deviation[i], inside.std(), rtol=1e-6)
    few = slide(x[:2], y[:2], centers, 0.1, at_least=3)
    assert np.isnan(few.mean).all() and np.isnan(few.deviation).all()
    none = slide(x[:0], y[:0], centers, 0.1)
    assert np.isnan(none.mean).all() and not none.count.any()


def test_max_logit_display_parts_correct_and_wrong():
    labels, logits = noisy_predictions(4000, num_classes=5)
    display = kc.MaxLogitDisplay(labels, logits, width=0.1)
    confidence = softmax(logits.astype("float64")).max(-1)
    wrong = logits.argmax(-1) != labels
    i = int(np.argmin(np.abs(display.wrong.center - 0.6)))
    near = np.abs(confidence - display.wrong.center[i]) <= 0.05
    for windows, rows in ((display.correct, ~wrong), (display.wrong, wrong)):
        values = logits.max(-1).astype("float64")[near & rows]
        np.testing.assert_allclose(windows.mean[i], values.mean(), rtol=1e-5)
        np.testing.assert_allclose(
            windows.deviation[i], values.std(), rtol=1e-4
        )
    display.plot()
    labels_drawn = [line.get_label() for line in display.ax_.lines]
    assert labels_drawn == ["correct", "wrong"]
    with pytest.raises(ValueError, match="`width` must be in"):
        kc.MaxLogitDisplay(labels, logits, width=0.0)
    with pytest.raises(ValueError, match="NaN"):
        kc.MaxLogitDisplay([0], [[np.nan, 1.0]])


def test_normalized_logit_display_uses_the_score():
    labels, logits = noisy_predictions(3000, num_classes=5)
    display = kc.NormalizedLogitDisplay(
        labels, logits, p=3.0, edges=(0.5, 0.7, 1.0)
    )
    v = logits.astype("float64")
    v = v - v.mean(-1, keepdims=True)
    norm = (np.abs(v) ** 3).sum(-1) ** (1 / 3)
    np.testing.assert_allclose(display.normalized, v.max(-1) / norm, rtol=1e-9)
    assert list(display.lines) == [(0.5, 0.7), (0.7, 1.0)]
    confidence = softmax(logits.astype("float64")).max(-1)
    rows = (confidence > 0.7) & (confidence <= 1.0)
    line = display.lines[0.7, 1.0]
    x = display.max_logit[rows]
    width = (line.center[-1] - line.center[0]) / 8
    near = np.abs(x - line.center[20]) <= width / 2
    np.testing.assert_allclose(
        line.mean[20], display.normalized[rows][near].mean(), rtol=1e-9
    )
    assert len(display.plot().ax_.lines) == 2
    for edges in ((0.5,), (0.7, 0.5), (0.5, 1.1), (0.5, 0.5)):
        with pytest.raises(ValueError, match="`edges` must ascend"):
            kc.NormalizedLogitDisplay(labels, logits, edges=edges)


def test_sorted_logits_display_sorts_and_raises():
    labels, logits = noisy_predictions(50, num_classes=5)
    display = kc.SortedLogitsDisplay(labels, logits, p=3.0, top=4)
    wanted = np.sort(logits.astype("float64"), -1)[:, ::-1][:, :4]
    np.testing.assert_array_equal(display.sorted, wanted)
    plain, powers, exponentials = display.values().values()
    np.testing.assert_array_equal(plain, wanted)
    np.testing.assert_allclose(powers, wanted**3)
    np.testing.assert_allclose(exponentials, np.exp(wanted))
    display.plot()
    assert len(display.axes_) == 3
    logits[:, 0] = -np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kc.SortedLogitsDisplay(labels[labels > 0], logits[labels > 0]).plot()
    with pytest.raises(ValueError, match="`ax` must be 3 axes"):
        display.plot(mpl.figure.Figure().add_subplot())
    with pytest.raises(ValueError, match="`top`"):
        kc.SortedLogitsDisplay(labels, logits, top=0)


@pytest.mark.portable
def test_displays_of_logits_read_models_and_ignored_classes():
    labels, logits = noisy_predictions(60, num_classes=5)
    labels = labels.astype("int64")
    labels[:20] = 7
    model = keras.Sequential([keras.Input((5,)), keras.layers.Activation(None)])
    one = kc.MaxLogitDisplay.from_model(model, (logits, labels), ignore_class=7)
    other = kc.MaxLogitDisplay(labels[20:], logits[20:])
    np.testing.assert_allclose(one.max_logit, other.max_logit)
    np.testing.assert_array_equal(one.is_wrong, other.is_wrong)


def test_displays_draw_a_model_that_is_never_wrong():
    logits = 3.0 * np.eye(4, dtype="float32")
    for display in (
        kc.MaxLogitDisplay(range(4), logits),
        kc.NormalizedLogitDisplay(range(4), logits),
        kc.SortedLogitsDisplay(range(4), logits),
        kc.ConfidenceDisplay.from_predictions(
            range(4), logits, from_logits=True
        ),
        kc.ClasswiseReliabilityDisplay.from_predictions(
            range(4), logits, from_logits=True
        ),
    ):
        assert display.to_png(dpi=40).startswith(b"\x89PNG")


def test_logit_displays_refuse_probabilities():
    labels, logits = noisy_predictions()
    for cls in (
        kc.MaxLogitDisplay,
        kc.NormalizedLogitDisplay,
        kc.SortedLogitsDisplay,
    ):
        with pytest.raises(ValueError, match="not probabilities"):
            cls.from_predictions(labels, softmax(logits))

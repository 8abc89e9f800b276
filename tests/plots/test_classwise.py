"""Displays of classes and of confidence hold what loops find."""

import keras
import matplotlib as mpl
import numpy as np
import pytest
from noisy_predictions import noisy_predictions, softmax
from told import taking

import keras_calib as kc
from keras_calib.functional.classwise import classwise_bins

mpl.use("Agg")


def test_confidence_display_counts_correct_and_wrong_apart():
    labels, logits = noisy_predictions(400, num_classes=5)
    display = kc.plots.ConfidenceDisplay(
        kc.Predictions(labels, logits, from_logits=True), num_bins=8, name="net"
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
    steps = [patch.get_data().values for patch in display.ax_.patches]
    np.testing.assert_array_equal(steps, [display.correct, display.wrong])
    assert "net" in display.ax_.get_title()
    lines = [line.get_xdata()[0] for line in display.ax_.lines]
    assert lines == [display.mean_confidence, display.accuracy]


def test_confidence_display_is_the_same_from_metric_and_model():
    labels, logits = noisy_predictions(400, num_classes=5)
    exact = kc.plots.ConfidenceDisplay(
        kc.Predictions(labels, logits, from_logits=True)
    )
    metric = kc.CalibrationMetrics(["ece"], from_logits=True)
    metric.update_state(labels, logits)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Activation(None)])
    for display in (
        kc.plots.ConfidenceDisplay(metric, log=False),
        kc.plots.ConfidenceDisplay(
            kc.Predictions.of_model(model, (logits, labels), from_logits=True)
        ),
    ):
        np.testing.assert_allclose(display.correct, exact.correct, atol=1e-6)
        np.testing.assert_allclose(display.wrong, exact.wrong, atol=1e-6)
    with pytest.raises(TypeError, match="or an updated `ECE`"):
        kc.plots.ConfidenceDisplay(kc.AURC())


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
    display = taking(kc.plots.ClasswiseReliabilityDisplay)(
        labels, outputs, **options
    )
    exact = kc.functional.classwise_ece(labels, outputs, **options)
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
    make = taking(kc.plots.ClasswiseReliabilityDisplay)
    display = make(labels, logits, from_logits=True, max_panels=2)
    assert display.classes == np.argsort(-display.errors)[:2].tolist()
    names = ["a", "b", "c", "d", "e"]
    display = make(
        labels, logits, from_logits=True, classes=[4, 0], class_names=names
    ).plot()
    titles = [ax.get_title() for ax in display.axes_]
    assert [title[0] for title in titles] == ["e", "a"]
    assert f"{display.classwise_ece:.3f}" in display.figure_.get_suptitle()
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


def test_displays_draw_a_model_that_is_never_wrong():
    logits = 3.0 * np.eye(4, dtype="float32")
    for display in (
        kc.plots.ConfidenceDisplay(
            kc.Predictions(range(4), logits, from_logits=True)
        ),
        kc.plots.ClasswiseReliabilityDisplay(
            kc.Predictions(range(4), logits, from_logits=True)
        ),
    ):
        assert display.to_png(dpi=40).startswith(b"\x89PNG")

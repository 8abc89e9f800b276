"""Displays of losses hold what closed forms give."""

import matplotlib as mpl
import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.plots import loss_curves

mpl.use("Agg")


def smoothing(alpha=0.3):
    return kc.LabelSmoothing(alpha=alpha, from_logits=True)


def test_per_sample_losses_are_those_of_the_loss():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 4)).astype("float32")
    labels = rng.integers(0, 4, 6)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    p_y = p[np.arange(6), labels]
    loss = kc.FocalLoss(gamma=2.0, from_logits=True)
    found = np.asarray(kc.per_sample_losses(loss, labels, logits))
    np.testing.assert_allclose(
        found, -((1 - p_y) ** 2) * np.log(p_y), rtol=1e-5
    )
    # Logits are given whatever the loss takes.
    loss = kc.FocalLoss(gamma=2.0)
    again = np.asarray(kc.per_sample_losses(loss, labels, logits))
    np.testing.assert_allclose(again, found, rtol=1e-4)
    loss = kc.FocalLoss(gamma=2.0, from_logits=True, ignore_class=9)
    labels[0] = 9
    ignored = np.asarray(kc.per_sample_losses(loss, labels, logits))
    assert ignored[0] == 0.0
    np.testing.assert_allclose(ignored[1:], found[1:], rtol=1e-6)


@pytest.mark.portable
def test_effective_labels_display_has_a_bar_for_each():
    losses = {"a": smoothing(), "b": smoothing(0.0)}
    display = kc.EffectiveLabelsDisplay.from_losses(
        losses, 1, [2.0, 0.0, 1.0], class_names=["x", "y", "z"]
    )
    p = np.exp([2.0, 0.0, 1.0])
    np.testing.assert_allclose(display.probs, p / p.sum(), rtol=1e-5)
    np.testing.assert_allclose(
        display.effective["a"], [0.1, 0.8, 0.1], rtol=1e-5
    )
    np.testing.assert_allclose(display.effective["b"], [0, 1, 0], atol=1e-6)
    display.plot()
    assert len(display.ax_.patches) == 4 * 3
    heights = [patch.get_height() for patch in display.ax_.patches[:3]]
    np.testing.assert_allclose(heights, display.probs)
    ticks = [text.get_text() for text in display.ax_.get_xticklabels()]
    assert ticks == ["x", "y", "z"]
    with pytest.raises(ValueError, match="`class_names` and `probs`"):
        kc.EffectiveLabelsDisplay.from_losses(
            losses, 0, [1.0, 0.0], class_names=["x"]
        )
    with pytest.raises(ValueError, match="`logits` must have shape"):
        kc.EffectiveLabelsDisplay.from_losses(losses, 0, [[1.0, 0.0]])


def test_smoothing_profile_of_known_losses():
    margin, strength, num_classes = 6.0, 0.1, 4
    losses = {
        "LS": smoothing(0.2),
        "MbLS": kc.MbLS(margin=margin, strength=strength, from_logits=True),
        "CE": smoothing(0.0),
    }
    display = kc.SmoothingProfileDisplay.from_losses(
        losses, num_classes=num_classes, highest=12.0
    )
    away = 0.2 * (1 - 1 / num_classes)
    np.testing.assert_allclose(display.predicted["LS"], away, rtol=1e-4)
    np.testing.assert_allclose(
        display.other["LS"], 0.2 / num_classes, rtol=1e-4
    )
    np.testing.assert_allclose(display.predicted["CE"], 0.0, atol=1e-6)
    # MbLS is cross entropy up to the margin, and pulls from there on.
    inside = display.logit < margin - 0.1
    np.testing.assert_allclose(display.predicted["MbLS"][inside], 0, atol=1e-6)
    assert (display.predicted["MbLS"][display.logit > margin + 0.1] > 0).all()
    display.plot()
    assert [len(ax.lines) for ax in display.axes_] == [3, 3]
    with pytest.raises(ValueError, match="`num_classes`"):
        kc.SmoothingProfileDisplay.from_losses(losses, num_classes=1)
    with pytest.raises(ValueError, match="`highest`"):
        kc.SmoothingProfileDisplay.from_losses(losses, highest=0.0)
    with pytest.raises(ValueError, match="`ax` must be 2 axes"):
        display.plot(mpl.figure.Figure().add_subplot())


@pytest.mark.parametrize("num_classes", [2, 5])
def test_loss_curves_are_the_formulas(num_classes):
    alpha = 0.1
    losses = {
        "CE": smoothing(0.0),
        "LR": kc.LabelRelaxation(alpha=alpha),
        "focal": kc.FocalLoss(gamma=3.0, from_logits=True),
    }
    display = kc.LossCurveDisplay.from_losses(losses, num_classes=num_classes)
    p = display.probability
    np.testing.assert_allclose(
        display.losses["CE"], -np.log(p), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        display.losses["focal"],
        -((1 - p) ** 3) * np.log(p),
        rtol=1e-3,
        atol=1e-6,
    )
    # Of the relaxed label with the same spread over the other classes.
    relaxed = (1 - alpha) * np.log((1 - alpha) / p)
    relaxed += alpha * np.log(alpha / (1 - p))
    wanted = np.where(p >= 1 - alpha, 0.0, relaxed)
    np.testing.assert_allclose(
        display.losses["LR"], wanted, rtol=2e-3, atol=1e-5
    )
    display.plot()
    assert len(display.ax_.lines) == 3


def test_losses_of_a_batch_are_read_one_prediction_at_a_time(monkeypatch):
    monkeypatch.setattr(loss_curves, "_NUM_POINTS", 9)
    loss = kc.MDCA(from_logits=True)
    display = kc.LossCurveDisplay.from_losses(loss, num_classes=3)
    p = display.probability
    # |mean p_k - share of k| of a batch of one, averaged over the classes.
    alone = kc.per_sample_losses(
        loss, [0], np.log([[p[3], (1 - p[3]) / 2, (1 - p[3]) / 2]])
    )
    np.testing.assert_allclose(
        display.losses["MDCA"][3], float(np.asarray(alone)[0]), rtol=1e-5
    )


def test_regularizer_display_draws_shares():
    rng = np.random.default_rng(0)
    logits = 8.0 * rng.normal(size=(200, 3)).astype("float32")
    labels = rng.integers(0, 3, 200)
    losses = {
        "MbLS": kc.MbLS(margin=6.0, strength=0.01, from_logits=True),
        "LS": smoothing(0.1),
    }
    display = kc.RegularizerDisplay.from_predictions(
        losses, labels, logits, num_bins=10, limits=(0.0, 0.5)
    ).plot()
    for name, loss in losses.items():
        wanted = kc.regularizer_histogram(
            loss, labels, logits, num_bins=10, limits=(0.0, 0.5)
        )
        np.testing.assert_array_equal(
            display.histograms[name].counts, wanted.counts
        )
    stairs = display.ax_.patches
    assert len(stairs) == 2
    np.testing.assert_allclose(stairs[0].get_data().values.sum(), 1.0)
    share = display.histograms["MbLS"].inactive_share
    assert f"(0 for {100 * share:.1f} %)" in stairs[0].get_label()


def test_a_loss_goes_by_its_name():
    def cubic(labels, logits):
        return ops.sum((labels - logits) ** 3, axis=-1)

    for loss, name in ((smoothing(), "LabelSmoothing"), (cubic, "cubic")):
        display = kc.LossCurveDisplay.from_losses(loss)
        assert list(display.losses) == [name]

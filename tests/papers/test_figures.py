"""The papers' figures show known values."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from absl import app
from config import recipe_flags
from figures import activations, logits, losses
from nets.small_resnet import small_resnet
from noisy_predictions import noisy_predictions, softmax
from recipe_cases import PAPERS, ROOT, fake_runs

import keras_calib as kc

LABELS, LOGITS = noisy_predictions(3000, num_classes=5)


def smoothed(alpha):
    return kc.LabelSmoothing(alpha=alpha, from_logits=True)


def test_recipes_give_losses_with_the_margin_of_the_set_up():
    setup = recipe_flags.defaults()[0]._replace(margin=3.0)
    names = ["cross_entropy", "mbls", "cutmix"]
    found = losses.losses_named(names, setup)
    assert list(found) == names
    assert found["mbls"].get_config()["margin"] == 3.0
    # Each can be drawn.
    _, curves = losses.loss_curves(found, 3)
    np.testing.assert_allclose(
        curves["cutmix"], curves["cross_entropy"], rtol=1e-5
    )
    for name in ("no_such_loss", "adafocal"):
        with pytest.raises(app.UsageError, match="`--losses` must name"):
            losses.losses_named([name], setup)


@pytest.mark.parametrize("num_classes", [2, 5])
def test_loss_curves_are_the_formulas(num_classes, monkeypatch):
    monkeypatch.setattr(losses, "_NUM_POINTS", 25)
    alpha = 0.1
    given = {
        "CE": smoothed(0.0),
        "LR": kc.LabelRelaxation(alpha=alpha, from_logits=True),
        "focal": kc.FocalLoss(gamma=3.0, from_logits=True),
        "MDCA": kc.MDCA(strength=2.0, from_logits=True),
    }
    p, found = losses.loss_curves(given, num_classes)
    # Of the relaxed label with the same spread over the other classes.
    relaxed = (1 - alpha) * np.log((1 - alpha) / p)
    relaxed += alpha * np.log(alpha / (1 - p))
    expected = {
        "CE": -np.log(p),
        "LR": np.where(p >= 1 - alpha, 0.0, relaxed),
        "focal": -((1 - p) ** 3) * np.log(p),
        # Of a batch of one: |p_k - y_k|, averaged over the classes.
        "MDCA": -np.log(p) + 2.0 * 2 * (1 - p) / num_classes,
    }
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-3, atol=1e-5)
    (ax,) = losses.draw_loss_curves(given, num_classes).axes
    drawn = {line.get_label(): line.get_ydata() for line in ax.lines}
    np.testing.assert_array_equal(drawn["LR"], found["LR"])


def test_smoothing_of_known_losses():
    mbls = kc.MbLS(margin=6.0, strength=0.1, from_logits=True)
    given = {"LS": smoothed(0.2), "MbLS": mbls}
    logit, found = losses.smoothing(given, 4, highest=12.0)
    np.testing.assert_allclose(found["LS"][:, 0], 0.2 * 3 / 4, rtol=1e-4)
    np.testing.assert_allclose(found["LS"][:, 1], 0.2 / 4, rtol=1e-4)
    # It is cross entropy up to the margin, and pulls from there on.
    inside = logit < 5.9
    np.testing.assert_allclose(found["MbLS"][inside], 0.0, atol=1e-6)
    assert (found["MbLS"][logit > 6.1] > 0).all()
    axes = losses.draw_smoothing(given, 4).axes
    assert [len(ax.lines) for ax in axes] == [2, 2]


def test_effective_labels_have_a_bar_for_each_class():
    figure = losses.draw_effective_labels({"LS": smoothed(0.3)}, [2.0, 0, 1.0])
    heights = [patch.get_height() for patch in figure.axes[0].patches]
    expected = [*softmax(np.array([2.0, 0.0, 1.0])), 1, 0, 0, 0.8, 0.1, 0.1]
    np.testing.assert_allclose(heights, expected, atol=1e-6)


def test_regularizers_are_shares_of_the_samples():
    mbls = kc.MbLS(margin=6.0, strength=0.01, from_logits=True)
    figure = losses.draw_regularizers({"MbLS": mbls}, LABELS, LOGITS, 0.1)
    (stairs,) = figure.axes[0].patches
    counts = kc.losses.regularizer_histogram(mbls, LABELS, LOGITS).counts
    np.testing.assert_allclose(stairs.get_data().values, counts / 3000)
    share = kc.losses.regularizer_histogram(mbls, LABELS, LOGITS).inactive_share
    assert stairs.get_label() == f"MbLS (0 for {100 * share:.1f} %)"


def test_windows_are_means_and_deviations_of_what_is_inside():
    rng = np.random.default_rng(0)
    x, y = rng.random(200), rng.normal(size=200)
    centers = np.linspace(0.0, 1.0, 9)
    # Some on an end of a window, which is inside.
    x[:4] = 0.4375, 0.4375, 0.5625, 0.5625
    mean, deviation = logits.sliding(x, y, centers, 0.125, at_least=3)
    for i, center in enumerate(centers):
        inside = y[(x >= center - 0.0625) & (x <= center + 0.0625)]
        np.testing.assert_allclose(mean[i], inside.mean())
        np.testing.assert_allclose(deviation[i], inside.std())
    assert np.isnan(logits.sliding(x[:2], y[:2], centers, 0.1)).all()


def test_figures_of_logits_show_those_of_correct_and_of_wrong_predictions():
    wrong = LOGITS.argmax(-1) != LABELS
    confidence, highest = softmax(LOGITS).max(-1), LOGITS.max(-1)
    (ax,) = logits.draw_max_logit(LABELS, LOGITS, width=0.1).axes
    for line, rows in zip(ax.lines, (~wrong, wrong), strict=True):
        at = int(np.argmin(np.abs(line.get_xdata() - 0.6)))
        near = rows & (np.abs(confidence - line.get_xdata()[at]) <= 0.05)
        np.testing.assert_allclose(
            line.get_ydata()[at], highest[near].mean(), rtol=1e-5
        )
    centred = LOGITS - LOGITS.mean(-1, keepdims=True)
    score = centred.max(-1) / (np.abs(centred) ** 3).sum(-1) ** (1 / 3)
    (ax,) = logits.draw_normalized_logit(LOGITS, 3.0).axes
    rows = (confidence > 0.7) & (confidence <= 0.8)
    x, y = ax.lines[3].get_data()
    near = np.abs(highest[rows] - x[20]) <= (x[-1] - x[0]) / 16
    np.testing.assert_allclose(y[20], score[rows][near].mean(), rtol=1e-5)
    axes = logits.draw_sorted_logits(LABELS, LOGITS, 3.0, top=2).axes
    expected = np.sort(LOGITS[~wrong].astype(float), -1)[:, :-3:-1]
    shown = [ax.containers[0].lines[0].get_ydata() for ax in axes]
    for got, values in zip(
        shown, (expected, expected**3, np.exp(expected)), strict=True
    ):
        np.testing.assert_allclose(got, values.mean(0))


def network(pooling, kernel):
    inputs = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(2, 3, padding="same", activation="relu")(inputs)
    x = pooling(keras.layers.MaxPooling2D(2)(x))
    made = keras.Model(inputs, keras.layers.Dense(3)(x))
    made.layers[-1].set_weights([kernel, np.zeros(3)])
    # As a run's, behind what prepares its images.
    scaled = keras.layers.Rescaling(1 / 255)(inputs)
    return keras.Model(inputs, made(scaled)), made


@pytest.mark.parametrize("plus", [False, True])
def test_activation_maps_are_the_formula(plus):
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    kernel = rng.normal(size=(4 * 4 * 2, 3)).astype("float32")
    model, made = network(keras.layers.Flatten(), kernel)
    images = rng.uniform(0, 255, (3, 8, 8, 1)).astype("float32")
    maps, outputs = activations.activation_maps(model, images, plus=plus)
    np.testing.assert_allclose(outputs, model(images), rtol=1e-5)
    inner = keras.Model(made.inputs[0], made.layers[2].output)
    a = np.asarray(inner(images / 255), "float64")
    for i, k in enumerate(outputs.argmax(-1)):
        g = kernel[:, k].reshape(4, 4, 2).astype("float64")
        weight = g.mean((0, 1))
        if plus:
            share = g**2 / (2 * g**2 + g**3 * a[i].sum((0, 1)))
            weight = (share * np.maximum(g, 0)).sum((0, 1))
        small = np.maximum(a[i] @ weight, 0)[..., None].astype("float32")
        expected = np.asarray(keras.ops.image.resize(small, (8, 8)))[..., 0]
        np.testing.assert_allclose(
            maps[i], expected / expected.max(), rtol=1e-4, atol=1e-6
        )
    figure = activations.draw_activations(
        images, maps, [int(outputs[0].argmax()), 0, 0], outputs, list("abc")
    )
    text = figure.axes[3].texts[0]
    assert text.get_text()[0] == "abc"[outputs[0].argmax()]
    assert text.get_weight() == "bold"


# All in one process, whose start takes longest.
DRAWS_ALL = """
import sys
import draw_figure
from absl import flags
flags.FLAGS(sys.argv[:1])
for name in draw_figure.NEED_NO_RUN:
    draw_figure.main(["", name])
for name in draw_figure.NEED_A_RUN:
    draw_figure.main(["", name, sys.argv[1]])
"""


@pytest.mark.slow
def test_the_script_draws_each_figure(tmp_path):
    folder = fake_runs(tmp_path, {"a": 2.0})[0]
    inputs = keras.Input((8, 8, 1))
    scaled = keras.layers.Rescaling(1 / 255)(inputs)
    outputs = small_resnet((8, 8, 1), 10)(scaled)
    keras.Model(inputs, outputs).save(folder / "model.keras")
    done = subprocess.run(
        [sys.executable, "-c", DRAWS_ALL, folder],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, PAPERS))),
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    files = [tmp_path / name for name in done.stdout.splitlines()[-9:]]
    assert len({path.stem for path in files}) == 9
    assert all(path.stat().st_size > 10_000 for path in files)

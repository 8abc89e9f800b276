"""Displays of pixels and of activation maps hold the right arrays."""

import importlib
import io

import keras
import matplotlib as mpl
import numpy as np
import pytest
from keras import layers, ops
from noisy_predictions import softmax
from paths import ROOT
from scipy.stats import rankdata

import keras_calib as kc
from keras_calib.plots.display import as_picture

mpl.use("Agg")

SHAPE, CLASSES, IGNORED = (9, 12), 4, 255


def scene(seed=0, ties=False):
    """Labels, some ignored, and logits of one image that often hit them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=SHAPE)
    logits = rng.normal(size=(*SHAPE, CLASSES))
    logits += 1.5 * np.eye(CLASSES)[labels]
    if ties:
        logits = np.round(logits)
    labels[rng.random(SHAPE) < 0.2] = IGNORED
    return labels, logits


def display_of(labels, probs, image=None, from_logits=False, **options):
    images = kc.Predictions(
        np.asarray(labels)[None],
        np.asarray(probs)[None],
        from_logits=from_logits,
        ignore_class=options.pop("ignore_class", IGNORED),
    )
    return kc.SegmentationDisplay(images, image=image, **options)


def photograph(shape=SHAPE):
    return np.random.default_rng(1).integers(
        256, size=(*shape, 3), dtype="uint8"
    )


@pytest.mark.parametrize("ties", [False, True])
def test_maps_agree_with_a_loop_over_the_pixels(ties):
    labels, logits = scene(ties=ties)
    probs = softmax(logits)
    display = display_of(labels, probs)
    counted = [p for p in np.ndindex(SHAPE) if labels[p] != IGNORED]
    confidence = {p: probs[p].max() for p in np.ndindex(SHAPE)}
    assert ties == (len({confidence[p] for p in counted}) < len(counted))
    for p in np.ndindex(SHAPE):
        assert display.confidence[p] == confidence[p]
        assert display.ignored[p] == (labels[p] == IGNORED)
        wrong = p in counted and probs[p].argmax() != labels[p]
        assert display.wrong[p] == wrong
        if not wrong:
            assert np.isnan(display.rank[p])
            continue
        surer = sum(confidence[q] > confidence[p] for q in counted)
        alike = sum(confidence[q] == confidence[p] for q in counted)
        expected = (surer + alike / 2) / len(counted)
        assert abs(display.rank[p] - expected) < 1e-12
    assert 0 < display.wrong.sum() < len(counted)


def test_ties_share_the_mean_rank():
    labels, logits = scene(ties=True)
    display = display_of(labels, softmax(logits))
    known = ~display.ignored
    ranks = np.full(SHAPE, np.nan)
    least_sure_last = rankdata(-display.confidence[known], method="average")
    ranks[known] = (least_sure_last - 0.5) / known.sum()
    np.testing.assert_allclose(
        display.rank[display.wrong], ranks[display.wrong], rtol=1e-12
    )


def test_the_mean_rank_of_errors_is_the_auroc_of_failures():
    labels, logits = scene()
    display = display_of(labels, softmax(logits))
    auroc = kc.functional.failure_auroc(
        labels, softmax(logits), ignore_class=IGNORED
    )
    errors, known = display.wrong.sum(), (~display.ignored).sum()
    # Of pairs with a right pixel, and with another wrong one.
    mean = (auroc * (known - errors) + 0.5 * errors) / known
    assert abs(np.nanmean(display.rank) - mean) < 1e-9


def test_logits_and_probabilities_give_the_same_display():
    labels, logits = scene()
    one = display_of(labels, softmax(logits))
    other = display_of(labels, logits, from_logits=True)
    for name in ("confidence", "wrong", "ignored", "rank"):
        np.testing.assert_allclose(
            getattr(one, name), getattr(other, name), rtol=1e-6
        )
    # Where confidences round to 1, logits still differ.
    sure = 100.0 * logits
    assert (display_of(labels, softmax(sure)).confidence == 1.0).sum() > 2
    ranks = display_of(labels, sure, from_logits=True).rank
    assert len(np.unique(ranks[ranks == ranks])) == (ranks == ranks).sum()


def test_the_diagram_is_of_the_counted_pixels():
    labels, logits = scene()
    probs = softmax(logits)
    display = display_of(labels, probs, num_bins=10)
    known = labels != IGNORED
    value = kc.ece(labels[known], probs[known], num_bins=10)
    assert abs(display.reliability.ece - value) < 1e-12
    assert len(display.reliability.sums.weight) == 10
    share = display.wrong.sum() / known.sum()
    assert abs(display.reliability.accuracy - (1.0 - share)) < 1e-12


def test_labels_of_every_form_are_read():
    labels, logits = scene()
    labels[labels == IGNORED] = 0
    one_hot = np.eye(CLASSES)[labels]
    displays = [
        display_of(form, softmax(logits), ignore_class=None)
        for form in (labels, labels[..., None], one_hot)
    ]
    for display in displays:
        np.testing.assert_array_equal(display.rank, displays[0].rank)
        assert not display.ignored.any()
    binary = display_of(labels > 1, softmax(logits)[..., :1])
    sure = softmax(logits)[..., 0]
    np.testing.assert_allclose(binary.confidence, np.maximum(sure, 1 - sure))


def test_model_and_predictions_give_the_same_display():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((*SHAPE, 3)), layers.Conv2D(CLASSES, 3, padding="same")]
    )
    labels, image = scene()[0], photograph()
    logits = ops.convert_to_numpy(model(image[None].astype("float32")))[0]
    data = image[None], labels[None]
    images = kc.Predictions.of_model(
        model, data, from_logits=True, ignore_class=IGNORED
    )
    one = kc.SegmentationDisplay(images, name="net")
    other = display_of(labels, logits, image, from_logits=True)
    np.testing.assert_allclose(one.confidence, other.confidence, rtol=1e-5)
    np.testing.assert_array_equal(one.wrong, other.wrong)
    np.testing.assert_allclose(one.image, image / 255.0)


def test_panels_show_the_arrays():
    labels, logits = scene()
    image = photograph()
    display = display_of(labels, softmax(logits), image, name="net").plot()
    pictures, confidence, errors, ranks, bars, counts = display.axes_
    assert pictures.get_title() == "net\nimage"
    shown = [ax.images[-1].get_array() for ax in display.axes_[:4]]
    np.testing.assert_allclose(shown[0], image / 255.0)
    np.testing.assert_array_equal(shown[1], display.confidence)
    kinds = np.where(display.ignored, 2, display.wrong)
    np.testing.assert_array_equal(shown[2], kinds)
    drawn = np.ma.filled(shown[3], np.nan)
    np.testing.assert_array_equal(drawn, display.rank)
    for ax in (confidence, ranks):
        assert ax.images[-1].get_clim() == (0.0, 1.0)
    words = [text.get_text() for text in errors.get_legend().get_texts()]
    assert words == ["right", "wrong", "ignored"]
    (bar,) = confidence.child_axes
    assert bar.get_xlabel() == "probability of the predicted class"
    (bar,) = ranks.child_axes
    assert bar.get_xlabel() == "share of pixels that are surer"
    filled = (display.reliability.sums.weight > 0).sum()
    assert len(bars.patches) == filled
    assert f"{display.reliability.ece:.3f}" in bars.get_title()
    assert counts.get_ylabel() == "pixels (log)"
    # What is shared with another picture stays as it was.
    assert not hasattr(display.reliability, "axes_")


def test_a_display_without_image_has_a_panel_less():
    labels, logits = scene()
    display = display_of(labels, softmax(logits), name="net")
    assert len(display.plot().axes_) == 5
    assert display.ax_.get_title() == "net\nconfidence"
    # The counts may be left out on axes of one's own.
    axes = list(mpl.figure.Figure().subplots(1, 4))
    assert display.plot(axes).axes_ == axes
    with pytest.raises(ValueError, match="`ax` must be 4 or 5 axes"):
        display.plot(axes[:3])


def drawn(display):
    from matplotlib.image import imread

    return imread(io.BytesIO(display.to_png()))


@pytest.mark.parametrize("case", ["all right", "one pixel", "all wrong"])
def test_edge_cases_are_drawn(case):
    labels, logits = scene()
    if case == "all right":
        labels = logits.argmax(-1)
    elif case == "all wrong":
        labels = (logits.argmax(-1) + 1) % CLASSES
    else:
        labels = np.full_like(labels, IGNORED)
        labels[0, 0] = (logits[0, 0].argmax() + 1) % CLASSES
    display = display_of(labels, softmax(logits))
    expected = {"all right": 0, "one pixel": 1, "all wrong": labels.size}
    assert display.wrong.sum() == expected[case]
    if case != "all right":
        assert abs(np.nanmean(display.rank) - 0.5) < 1e-12
    assert np.ptp(drawn(display)[..., :3]) == 1.0


def test_bad_scenes_are_refused():
    labels, logits = scene()
    probs = softmax(logits)
    with pytest.raises(ValueError, match="must have outputs"):
        display_of(labels[None], probs[None])
    with pytest.raises(ValueError, match="`labels` must be class ids"):
        display_of(labels[1:], probs)
    with pytest.raises(ValueError, match="class that is not ignored"):
        display_of(np.full_like(labels, IGNORED), probs)
    with pytest.raises(ValueError, match="`outputs` must not contain NaN"):
        display_of(labels, np.where(labels[..., None] == 0, np.nan, probs))
    with pytest.raises(ValueError, match="`num_bins` must be >= 1"):
        display_of(labels, probs, num_bins=0)
    with pytest.raises(ValueError, match="`image` must have the height"):
        display_of(labels, probs, photograph((5, 5)))
    with pytest.raises(ValueError, match="`image` must have shape"):
        display_of(labels, probs, np.zeros((*SHAPE, 2)))


def test_images_of_every_range_are_shown():
    image = photograph()
    expected = image / 255.0
    for form in (image, image.astype("float32"), expected):
        np.testing.assert_allclose(as_picture("image", form), expected)
    standardized = (expected - 0.5) / 0.25
    shown = as_picture("image", standardized)
    assert (shown.min(), shown.max()) == (0.0, 1.0)
    np.testing.assert_allclose(
        shown, (expected - expected.min()) / np.ptp(expected), atol=1e-12
    )
    assert as_picture("image", image[..., :1]).shape == SHAPE
    # Integers count in 255ths, however dark the image.
    assert as_picture("image", np.ones(SHAPE, "uint8")).max() == 1 / 255
    assert as_picture("image", np.full(SHAPE, -3.0)).max() == 0.0
    with pytest.raises(ValueError, match="`image` must be finite"):
        as_picture("image", np.full(SHAPE, np.nan))


class Scenes(list):
    """What the example asks of a data set."""

    as_numpy_iterator = list.__iter__


@pytest.mark.slow
def test_the_example_draws_a_row_per_scene(tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    papers = ROOT / "examples" / "papers"
    monkeypatch.syspath_prepend(papers)
    draw = importlib.import_module("runs.scene_pictures").draw_confidence
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((*SHAPE, 3)), layers.Conv2D(CLASSES, 3, padding="same")]
    )
    labels = scene()[0][..., None]
    scenes = Scenes({"image": photograph(), "mask": labels} for _ in range(2))
    shown = []
    monkeypatch.setattr(plt, "close", shown.append)
    draw(scenes, list("abcd"), IGNORED, model, tmp_path / "scenes.png")
    monkeypatch.undo()
    (figure,) = shown
    rows = np.reshape(figure.axes, (2, 7))
    logits = model.predict_on_batch(photograph()[None].astype("float32"))[0]
    display = display_of(labels, logits, from_logits=True)
    for row in rows:
        truth, predicted, confidence = (
            np.ma.filled(ax.images[0].get_array(), np.nan) for ax in row[1:4]
        )
        np.testing.assert_array_equal(np.isnan(truth), display.ignored)
        np.testing.assert_array_equal(
            predicted != truth, display.wrong | display.ignored
        )
        np.testing.assert_allclose(confidence, display.confidence, rtol=1e-5)
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == list("abcd")
    assert (tmp_path / "scenes.png").stat().st_size > 10_000
    plt.close(figure)

"""What a report says of dense outputs by image: errors, IoU and regions."""

import base64
import io
import re

import keras
import numpy as np
import pytest
from matplotlib.image import imread
from report_pages import (
    Page,
    few_replicates,
    mistakes,
    pictures_left_out,
    report_of,
    results_alone,
)
from scipy.ndimage import gaussian_filter

import keras_calib as kc
from keras_calib.numerics.row_blocks import RowFacts
from keras_calib.reporting.segments import SegmentEvaluation

NUM_CLASSES = 5


def scenes(count, seed=0, sides=(12, 16)):
    """Labels and probabilities of images whose pixels depend on each other.

    Class 4 is never predicted. Some images are harder than others.
    """
    rng = np.random.default_rng(seed)

    def smooth(width):
        x = rng.normal(size=(count, *sides, NUM_CLASSES))
        x = gaussian_filter(x, (0, *[width] * len(sides), 0))
        return x / x.std()

    clean = smooth(3.0) - np.array([0.0, 0.0, 0.0, 0.8, 1.2])
    noise = rng.gamma(2.0, 0.2, (count, *[1] * (len(sides) + 1)))
    logits = 3.0 * (clean + noise * smooth(1.0))
    logits[..., 4] = -20.0
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    return clean.argmax(-1), probs / probs.sum(-1, keepdims=True)


def gathered(labels, probs, num_worst=12):
    """The evaluation of some images."""
    found = SegmentEvaluation(num_worst, NUM_CLASSES, False)
    predicted = probs.argmax(-1).reshape(-1)
    facts = RowFacts(predicted, probs.max(-1).reshape(-1), None)
    wrong = (predicted != labels.reshape(-1)).astype("float64")
    weight = np.ones(labels.size)
    flat = labels.reshape(-1)
    found.add(flat, wrong, facts, weight, None, labels.shape, 0)
    return found


def ious_of(labels, predicted):
    """IoU of the classes, NaN of those that are nowhere."""
    table = np.zeros((NUM_CLASSES, NUM_CLASSES))
    np.add.at(table, (labels, predicted), 1.0)
    both = np.diag(table)
    with np.errstate(invalid="ignore"):
        return both / (table.sum(0) + table.sum(1) - both)


@pytest.fixture(scope="module")
def data():
    labels, probs = scenes(40)
    labels[:, :2] = 255
    labels[7] = 255
    return labels, probs


@pytest.fixture(scope="module")
def page(data):
    labels, probs = data
    images = np.repeat(labels[..., None] % 5 / 5.0, 3, axis=-1)
    with pytest.MonkeyPatch.context() as patch:
        few_replicates(patch)
        pictures_left_out(patch)
        return report_of(
            labels,
            probs,
            ignore_class=255,
            inputs=images,
            class_names=["sky", "road", "tree", "car", "pole"],
            verbose=0,
        )


def test_numbers_of_images_are_those_of_each_image_alone(data, page):
    labels, probs = data
    found = page.results["model"]["segments"]
    rows = []
    for y, p in zip(labels, probs, strict=True):
        valid = y != 255
        if not valid.any():
            continue
        y, p = y[valid], p[valid]
        wrong = (p.argmax(-1) != y).mean()
        gap = p.max(-1).mean() - 1.0 + wrong
        rows.append((wrong, gap, np.nanmean(ious_of(y, p.argmax(-1)))))
    assert found["num_units"] == len(rows) == 39
    columns = dict(
        zip(("error", "confidence_gap", "iou"), np.transpose(rows), strict=True)
    )
    for name, x in columns.items():
        assert found[name]["value"] == pytest.approx(x.mean(), abs=1e-6)
        assert found[name]["low"] < x.mean() < found[name]["high"]
        exact = np.quantile(x, np.linspace(0, 1, 21), method="inverted_cdf")
        np.testing.assert_allclose(
            found[name]["quantiles"], exact, atol=1.01e-4
        )
    errors = [x["error"] for x in found["worst"]]
    np.testing.assert_allclose(errors, np.sort(columns["error"])[:-13:-1])
    # The image without a pixel that counts has no number of its own.
    assert 7 not in [x["place"] for x in found["worst"]]


@pytest.mark.usefixtures("words_alone")
def test_iou_is_of_the_confusions_of_all_images_and_names_all_classes(
    data, page
):
    labels, probs = data
    valid = labels != 255
    predicted = probs.argmax(-1)[valid]
    metric = keras.metrics.MeanIoU(NUM_CLASSES)
    metric.update_state(labels[valid], predicted)
    results = page.results["model"]
    mean = results["segments"]["mean_iou"]
    assert mean["value"] == pytest.approx(float(metric.result()), abs=1e-6)
    rows = {x["group"]: x for x in results["classes"]}
    assert [*rows][-1] == 4 and len(rows) == NUM_CLASSES
    ious = ious_of(labels[valid], predicted)
    for k, x in rows.items():
        assert x["iou"] == pytest.approx(ious[k])
        assert x["labels"] == np.sum(labels == k)
        assert x["weight"] == np.sum(predicted == k)
    assert rows[4]["error"] is None
    for k in range(4):
        given = predicted == k
        error = np.mean(labels[valid][given] != k)
        assert rows[k]["error"] == pytest.approx(error)
        assert rows[k]["low"] < error < rows[k]["high"]
    text = Page(page.html).text
    assert "Never predicted: pole." in text
    assert all(name in text for name in ("sky", "road", "tree", "car"))
    # Class 3 is predicted and in no label.
    unlabelled = report_of(labels % 255 % 3, probs, num_mistakes=0, verbose=0)
    row = unlabelled.results["model"]["classes"]
    assert {x["group"]: x["iou"] for x in row}[3] == 0.0
    assert "Not in the labels: class 3, class 4." in Page(unlabelled.html).text


def test_interval_of_the_mean_iou_is_that_of_a_jackknife():
    labels, probs = scenes(30, seed=3)
    predicted = probs.argmax(-1)
    without = [
        np.nanmean(ious_of(labels[kept], predicted[kept]))
        for kept in ~np.eye(30, dtype=bool)
    ]
    error = np.sqrt(29 * np.var(without))
    found = gathered(labels, probs).results()["mean_iou"]
    # Student's t of 29 degrees.
    half = (found["high"] - found["low"]) / 2
    assert half == pytest.approx(2.045 * error, rel=0.1)


def test_batches_and_masks_change_no_number(data, monkeypatch):
    results_alone(monkeypatch)
    labels, probs = data
    mask = (labels != 255).astype("float32")
    whole = report_of(labels, probs, ignore_class=255, verbose=0)
    masked = report_of(
        np.where(labels == 255, 0, labels),
        probs,
        sample_weight=mask,
        verbose=0,
    )

    def parts():
        for i in range(0, 40, 7):
            part = slice(i, i + 7)
            yield probs[part], labels[part]

    model = keras.Sequential(
        [keras.Input((12, 16, NUM_CLASSES)), keras.layers.Identity()]
    )
    streamed = kc.report(
        model, parts(), from_logits=False, ignore_class=255, verbose=0
    )
    expected = whole.results["model"]["segments"]
    for other in (masked, streamed):
        found = other.results["model"]["segments"]
        assert found.keys() == expected.keys()
        for name, x in expected.items():
            if isinstance(x, dict):
                assert found[name]["value"] == pytest.approx(
                    x["value"], abs=1e-6
                )
        places = [x["place"] for x in found["regions"]]
        assert places == [x["place"] for x in expected["regions"]]


def test_boundaries_are_between_labels_that_count(monkeypatch):
    results_alone(monkeypatch)
    labels = np.zeros((1, 9, 12), int)
    labels[0, :, 6:] = 1
    # Here a column without labels lies between the classes.
    labels = np.concatenate([labels, labels])
    labels[1, :, 4:8] = 255
    probs = np.tile([0.9, 0.1], (2, 9, 12, 1))
    found = report_of(labels, probs, ignore_class=255, verbose=0)
    found = found.results["model"]["segments"]
    # Four columns of the first image, and none of the second.
    near = 4 * 9
    assert found["boundary_share"]["value"] == pytest.approx(
        near / (9 * 12 + 9 * 8)
    )
    assert found["boundary_error"]["value"] == pytest.approx(0.5)
    gap = 0.9 - 0.5
    assert found["boundary_confidence_gap"]["value"] == pytest.approx(gap)
    inside = (4 + 4) * 9 / (8 * 9 + 8 * 9)
    assert found["inside_error"]["value"] == pytest.approx(inside)


@pytest.mark.usefixtures("words_alone")
def test_a_region_is_where_the_model_is_surely_wrong(page):
    labels = np.zeros((3, 30, 36), int)
    labels[1, 20:26, 10:16] = 2
    labels[1, 3, 3] = labels[2, 5, 5] = 1
    probs = np.tile([0.98, 0.01, 0.01], (3, 30, 36, 1))
    found = report_of(labels, probs, num_mistakes=5, verbose=0)
    regions = found.results["model"]["segments"]["regions"]
    # One of each image that has an error, the worst first.
    assert [x["place"] for x in regions] == [1, 2]
    first, second = regions
    assert first["start"] <= [20, 10] and first["stop"] >= [25, 16]
    assert (first["label"], first["predicted"]) == (2, 0)
    assert first["wrong"] == 5 * 6 and first["pixels"] == 5 * 6
    assert first["confidence"] == pytest.approx(0.98)
    assert (second["label"], second["wrong"]) == (1, 1)
    text = re.sub(r"\s+", " ", Page(found.html).text)
    rows = f"rows {first['start'][0]} to {first['stop'][0] - 1}"
    assert f"image 1, {rows}" in text
    assert "labels, predictions, and confidence" in text
    # With images there is a fourth picture, of the input.
    assert "input, labels, predictions" in Page(page.html).text
    widths = []
    for html in (found.html, page.html):
        uri = re.search(r'data:image/png;base64,([^"]+)', html)
        picture = imread(io.BytesIO(base64.b64decode(uri[1])), format="png")
        widths.append(picture.shape[1] / picture.shape[0])
        # Wrong pixels are outlined.
        assert (picture[..., :3] == [1.0, 1.0, 0.0]).all(-1).any()
    assert widths[1] > widths[0]


@pytest.mark.usefixtures("words_alone")
def test_words_fit_what_predictions_are_of():
    for sides, unit, inside in (
        ((5, 6, 7), "volume", "slices"),
        ((40,), "sequence", "positions"),
    ):
        labels, probs = scenes(31, sides=sides)
        html = report_of(labels, probs, verbose=0).html
        text = Page(html).text
        assert f"Which {unit}s are worse, and where?" in text
        assert f"On average over 31 {unit}s" in text
        assert f", {inside} " in text
        # A position has no picture, a slice of a volume has one.
        assert ("regions" in html.split("</style>")[1]) == (unit == "volume")
        assert "image" not in text.replace("imagesize", "")


@pytest.mark.usefixtures("words_alone")
def test_few_images_are_said_to_be_few_and_guarantees_are_per_image():
    labels, probs = scenes(20)
    html = report_of(labels, probs, ids=[f"scan {k}" for k in range(20)])
    text = re.sub(r"\s+", " ", Page(html.html).text)
    head = text.split("1. Can I trust")[0]
    assert "of 20 images" in head and "Only 20 images." in head
    assert f"{0.95**20:.0%}".replace("%", " %") in head
    assert "choose_threshold(predictions, units=True" in text
    worst = html.results["model"]["segments"]["worst"][0]
    assert worst["id"] == f"scan {worst['place']}"
    assert f"{worst['place']} ({worst['id']})" in text
    labels, probs = scenes(30)
    assert "Only" not in Page(report_of(labels, probs).html).text
    one = report_of(labels[:1], probs[:1])
    assert "no interval over images" in Page(one.html).text
    assert one.results["model"]["segments"]["mean_iou"]["low"] is None


@pytest.mark.usefixtures("words_alone")
def test_drawn_pixels_have_no_place_and_logs_no_images():
    labels, probs = scenes(6)
    model = keras.Sequential(
        [keras.Input((12, 16, NUM_CLASSES)), keras.layers.Identity()]
    )
    drawn = kc.report(
        model,
        (probs, labels),
        from_logits=False,
        pixels_per_image=20,
        verbose=0,
    )
    found = drawn.results["model"]["segments"]
    assert found["num_units"] == 6 and not found["regions"]
    assert "boundary_error" not in found and found["iou"]["value"] > 0.0
    assert "boundaries and regions cannot be shown" in Page(drawn.html).text
    flat = report_of(labels.reshape(-1), probs.reshape(-1, NUM_CLASSES))
    assert "segments" not in flat.results["model"]
    assert mistakes(Page(flat.html))
    table = kc.evaluate(kc.Predictions(labels, probs), verbose=0)
    assert 0.0 < table["ece"]["value"] < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("count", [20, 60])
def test_intervals_cover_what_many_images_have(count):
    labels, probs = scenes(2500, seed=1)
    truth = gathered(labels, probs, 0).results()
    names = [k for k, x in truth.items() if isinstance(x, dict)]
    rng, covered = np.random.default_rng(2), dict.fromkeys(names, 0)
    for _ in range(400):
        drawn = rng.integers(0, len(labels), count)
        found = gathered(labels[drawn], probs[drawn], 0).results()
        for name in names:
            low, high = found[name]["low"], found[name]["high"]
            covered[name] += low <= truth[name]["value"] <= high
    # Three standard errors of 400 trials are 0.04.
    assert min(covered.values()) / 400 >= (0.9 if count > 20 else 0.88)

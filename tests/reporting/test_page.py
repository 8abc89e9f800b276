"""The page is one file that shows no more than it was given."""

import base64
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from noisy_predictions import noisy_predictions, softmax
from report_pages import (
    Page,
    few_replicates,
    mistakes,
    pictures_left_out,
    report_of,
    slider,
    slider_start,
)

import keras_calib as kc
from keras_calib.predictions import predictions
from keras_calib.reporting import gathering
from keras_calib.reporting.sections import operating_points


@pytest.fixture(scope="module")
def made():
    labels, logits = noisy_predictions()
    return report_of(labels, logits, from_logits=True, verbose=0)


def test_the_slider_has_a_place_for_each_of_its_numbers(made):
    page = Page(made.html)
    (rows,) = slider(page)
    shown = {a["data-shows"] for _, a in page.tags if "data-shows" in a}
    assert shown == {key for row in rows for key in row}
    (bar,) = page.all("input")
    assert (bar["min"], bar["max"]) == ("0", str(len(rows) - 1))


@pytest.mark.usefixtures("words_alone")
def test_the_slider_is_of_calibrated_confidences():
    labels, logits = noisy_predictions(200)
    calibrator = kc.TemperatureScaling(temperature=3.0)
    made = report_of(
        labels, logits, from_logits=True, calibrator=calibrator, verbose=0
    )
    (rows,) = slider(Page(made.html))
    confidence = softmax(logits.astype("float64") / 3.0).max(-1)
    accepted = np.mean(confidence >= rows[100]["threshold"] - 1e-6)
    assert abs(accepted - rows[100]["coverage"]) < 0.006


def test_slider_rows_are_points_of_the_curve(made):
    labels, logits = noisy_predictions()
    (rows,) = slider(Page(made.html))
    metric = kc.CalibrationMetrics(["aurc"], from_logits=True)
    metric.update_state(labels, logits)
    curve = metric.curve()
    points = dict(zip(curve.coverage, curve.risk, strict=True))
    confidence = softmax(logits.astype("float64")).max(-1)
    wrong = logits.argmax(-1) != labels
    assert rows[0]["coverage"] == 1.0
    assert abs(rows[0]["risk"] - wrong.mean()) < 1e-9
    thresholds = [row["threshold"] for row in rows]
    assert thresholds == sorted(set(thresholds)) and len(rows) > 150
    for row in rows:
        assert points[row["coverage"]] == row["risk"]
        accepted = confidence >= row["threshold"] - 1e-6
        assert abs(accepted.mean() - row["coverage"]) < 0.004
        assert abs(row["accepted"] - row["coverage"] * len(labels)) < 1e-6
        odds = row["threshold"] / (1.0 - row["threshold"])
        assert abs(row["score"] - np.log(odds)) < 1e-6
        low, high = kc.formulas.intervals.clopper_pearson(
            row["risk"] * row["accepted"], row["accepted"]
        )
        assert abs(row["low"] - low) < 1e-9 and abs(row["high"] - high) < 1e-9
    # Where no selector is, the largest coverage at a round risk.
    start = slider_start(Page(made.html))
    risk = next(x for x in (0.2, 0.1, 0.05) if x <= wrong.mean() / 2)
    assert start["coverage"] == max(curve.coverage[curve.risk <= risk])
    asked = {row["rule"]: row for row in operating_points(metric, None)}
    for risk in (0.2, 0.1):
        row = asked.pop(f"Risk of at most {100 * risk:g} %")
        assert row["coverage"] == max(curve.coverage[curve.risk <= risk])
    assert asked.pop("Accept everything")["coverage"] == 1.0


@pytest.mark.usefixtures("words_alone")
@pytest.mark.parametrize(
    ("score", "on_slider"),
    [("msp", True), ("logit_margin", False)],
)
def test_the_slider_starts_at_the_choice_of_the_selector(score, on_slider):
    labels, logits = noisy_predictions(400)
    own = kc.TemperatureScaling(temperature=3.0)
    selector = kc.SelectiveClassifier(calibrator=own, score=score).fit(
        *noisy_predictions(400, seed=1), coverage=0.6
    )
    given = {"from_logits": True, "selector": selector, "verbose": 0}
    made = report_of(labels, logits, **given)
    # Its threshold is for logits of its own calibrator.
    other = kc.TemperatureScaling(temperature=2.0)
    with pytest.raises(ValueError, match="must be that of `selector`"):
        report_of(labels, logits, **given, calibrator=other)
    page, found = Page(made.html), made.results["model"]["selection"]
    start = slider_start(page)
    chosen = {
        "score": found["threshold"],
        "threshold": found["confidence"],
        "coverage": found["coverage"],
    }
    assert on_slider == (chosen == {name: start[name] for name in chosen})
    assert on_slider == ("starts at the selector's choice" in page.text)
    # What it does on these data is said in any case.
    assert "The selector accepts" in page.text
    (rows,) = slider(page)
    thresholds = [row["threshold"] for row in rows]
    assert thresholds == sorted(thresholds)


def test_report_is_one_file_that_asks_for_nothing(made):
    page = Page(made.html)
    policy = next(a for a in page.all("meta") if "http-equiv" in a)
    assert policy["content"].startswith("default-src 'none'")
    for tag, attrs in page.tags:
        for name in ("src", "href", "action", "srcset", "data", "poster"):
            assert attrs.get(name, "data:").startswith("data:"), tag
    css = re.search(r"<style>(.*?)</style>", made.html, re.DOTALL)[1]
    assert "url(" not in css and "@import" not in css
    pictures = [a for a in page.all("img") if "svg" in a["src"]]
    assert len(pictures) == 4
    for picture in pictures:
        assert picture["alt"]
        svg = base64.b64decode(picture["src"].split(",")[1]).decode()
        assert "</svg>" in svg and "<script" not in svg


@pytest.mark.usefixtures("words_alone")
def test_what_users_write_is_escaped():
    labels, logits = noisy_predictions(200)
    evil = "<script>alert('x')</script>\"&amp;"
    made = report_of(
        labels,
        {evil: logits},
        from_logits=True,
        class_names=[f"{evil}{i}" for i in range(4)],
        inputs=np.array([evil] * 200),
        title=evil,
        verbose=0,
    )
    page = Page(made.html)
    assert len(page.all("script")) == 1
    assert evil in page.text
    assert list(made.results) == [evil]
    assert (
        "alert"
        not in re.search(r"<script>(.*?)</script>", made.html, re.DOTALL)[1]
    )


def test_names_that_no_file_can_hold_are_written_with_escapes(
    tmp_path, monkeypatch
):
    few_replicates(monkeypatch)
    labels, logits = noisy_predictions(60)
    odd = "$a$_\x00\udc80\uffff"
    shown = "$a$_" + r"\x00\udc80\uffff"
    made = report_of(
        labels,
        {odd: logits},
        from_logits=True,
        class_names=[f"{odd}{i}" for i in range(4)],
        inputs=np.array([odd] * 60),
        title=odd,
        verbose=0,
    )
    html = made.save(tmp_path / "r.html").read_text(encoding="utf-8")
    assert "\x00" not in html
    assert html.count(shown) > 20
    for picture in Page(html).all("img"):
        ElementTree.fromstring(base64.b64decode(picture["src"].split(",")[1]))


@pytest.mark.usefixtures("words_alone")
def test_surest_mistakes_are_the_surest(monkeypatch):
    # Numbers are those in all data, of which 100 samples come at a time.
    monkeypatch.setattr(predictions, "_BLOCK", 400)
    monkeypatch.setattr(gathering, "_OUTPUTS", 400)
    labels, logits = noisy_predictions(300)
    images = np.zeros((300, 8, 8, 1), "uint8")
    images[:, 0, 0, 0] = np.arange(300) % 256
    report = report_of(
        labels,
        logits,
        from_logits=True,
        inputs=images,
        num_mistakes=5,
        class_names=["a", "b", "c", "d"],
        verbose=0,
    )
    confidence = softmax(logits.astype("float64")).max(-1)
    wrong = np.flatnonzero(logits.argmax(-1) != labels)
    surest = wrong[np.argsort(-confidence[wrong])][:5]
    assert mistakes(Page(report.html)) == surest.tolist()
    pictures = [a for a in Page(report.html).all("img") if "png" in a["src"]]
    assert len(pictures) == 5
    png = base64.b64decode(pictures[0]["src"].split(",")[1])
    assert png.startswith(b"\x89PNG")
    none = report_of(
        labels, logits, from_logits=True, num_mistakes=0, verbose=0
    )
    assert "surest mistakes" not in Page(none.html).text


@pytest.mark.usefixtures("words_alone")
def test_risks_that_no_threshold_has_are_said_to_be_out_of_reach():
    # The surest prediction is wrong.
    labels, logits = [1, 0, 0], [[9.0, 0.0], [1.0, 0.0], [0.5, 0.0]]
    made = report_of(labels, logits, from_logits=True, verbose=0)
    page = Page(made.html)
    assert page.text.count("no threshold reaches it") == 4
    assert slider_start(page)["coverage"] == 1.0


@pytest.fixture(scope="module")
def stages():
    """Pages without a calibrator, and with one that repairs too much."""
    labels, logits = noisy_predictions(300)
    with pytest.MonkeyPatch.context() as patch:
        pictures_left_out(patch)
        return [
            report_of(
                labels,
                logits,
                from_logits=True,
                notes={"Data <set>": "the <test> set"},
                calibrator=calibrator,
                verbose=0,
            ).html
            for calibrator in (None, kc.TemperatureScaling(temperature=20.0))
        ]


def test_colour_is_never_the_only_sign(stages):
    for html, sides in zip(stages, ({"over"}, {"over", "under"}), strict=True):
        cells = re.findall(r'<td class="number (over|under)".*?</td>', html)
        marks = re.findall(
            r'<td class="number (over|under)"[^>]*>(?:<span>)?'
            r'<span role="img" aria-label="(\w+)">(.)</span>',
            html,
        )
        assert [side for side, _, _ in marks] == cells and {*cells} == sides
        signs = {
            "over": ("overconfident", "▲"),
            "under": ("underconfident", "▼"),
        }
        assert all(signs[side] == (word, sign) for side, word, sign in marks)
        text = Page(html).text
        assert text.count("▲") + text.count("▼") == len(marks) + 4


def test_each_part_says_its_stage_and_notes_are_shown(stages):
    texts = [Page(html).text for html in stages]
    for text, stage, no_stage in zip(
        texts,
        ("no calibrator", "after calibration"),
        ("after calibration", "no calibrator"),
        strict=True,
    ):
        parts = re.split(r"\n([1-6])\. ", text)[1:]
        assert parts[::2] == [*"123456"]
        assert all(stage in part for part in parts[1:-2:2])
        assert no_stage not in text
        assert "Data <set>" in text and "the <test> set" in text
        assert "not named" not in text


def test_save_leaves_a_whole_file_or_the_old_one(made, tmp_path):
    path = made.save(tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8") == made.html
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    broken = kc.reporting.ReportPage(None, {})
    with pytest.raises(TypeError):
        broken.save(path)
    assert path.read_text(encoding="utf-8") == made.html
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    for name in ("r.pdf", "r", "r.html.zip"):
        with pytest.raises(ValueError, match="`path` must be a file that ends"):
            made.save(tmp_path / name)
    with pytest.raises(ValueError, match="`path` must be a file"):
        (tmp_path / "folder.html").mkdir()
        made.save(tmp_path / "folder.html")


@pytest.mark.usefixtures("words_alone")
@pytest.mark.parametrize(
    ("lead", "head", "place", "numbered"),
    [
        ((5, 6, 10), "pixels of 5 images", "row", "Images, rows and columns"),
        ((30, 10), "positions of 30 sequences", "pos", "Sequences and pos"),
    ],
)
def test_a_page_counts_what_predictions_are_of(lead, head, place, numbered):
    labels, logits = noisy_predictions(300)
    labels[:20] = 9
    report = report_of(
        labels.reshape(lead),
        logits.reshape(*lead, 4),
        from_logits=True,
        ignore_class=9,
        num_mistakes=1,
        verbose=0,
    )
    html, text = report.html, Page(report.html).text
    assert f"280 predictions for {head}, of 4 classes" in text
    units = head.split()[-1]
    assert re.search(rf"95 % for each number, of \d+ independent {units}", text)
    assert f"{numbered}" in text and "Samples are numbered" not in text
    # The image with most errors, and the region where it is surely wrong.
    found = report.results["model"]["segments"]
    assert mistakes(Page(html)) == [
        found["worst"][0]["place"],
        found["regions"][0]["place"],
    ]
    region = found["regions"][0]
    assert f"{region['place']}, {place}" in text
    start, stop = region["start"][-1], region["stop"][-1]
    assert f"s {start} to {stop - 1}" in text

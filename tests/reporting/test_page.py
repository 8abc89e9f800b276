"""The page is one file that shows no more than it was given."""

import base64
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from noisy_predictions import noisy_predictions
from noisy_predictions import softmax
from report_pages import Page
from report_pages import slider

import keras_calib as kc
from keras_calib.formulas.intervals import binomial_upper_bound


@pytest.fixture(scope="module")
def made():
    labels, logits = noisy_predictions()
    return kc.report_of_predictions(labels, logits, from_logits=True, verbose=0)


def test_the_slider_has_a_place_for_each_of_its_numbers(made):
    page = Page(made.html)
    (rows,) = slider(page)
    shown = {a["data-shows"] for _, a in page.tags if "data-shows" in a}
    assert shown == {key for row in rows for key in row}
    (bar,) = page.all("input")
    assert (bar["min"], bar["max"]) == ("0", str(len(rows) - 1))


def test_the_slider_is_of_calibrated_confidences():
    labels, logits = noisy_predictions(200)
    calibrator = kc.TemperatureScaling(temperature=3.0)
    made = kc.report_of_predictions(
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
    exact = kc.risk_coverage_curve(labels, logits, from_logits=True)
    confidence = softmax(logits.astype("float64")).max(-1)
    wrong = logits.argmax(-1) != labels
    assert rows[0]["risk"] == 0.0
    assert abs(rows[-1]["risk"] - wrong.mean()) < 1e-9
    for row in rows:
        risk, coverage = row["risk"] + 1e-12, row.get("coverage", 0.0)
        best = max([0.0, *curve.coverage[curve.risk <= risk]])
        assert abs(coverage - best) < 1e-12
        # Samples that share a cell are accepted together.
        assert coverage <= max([0.0, *exact.coverage[exact.risk <= risk]])
        if "threshold" not in row:
            continue
        accepted = confidence >= row["threshold"] - 1e-6
        assert abs(accepted.mean() - row["coverage"]) < 0.004
        assert row["observed"] <= row["risk"] + 1e-12
        if row["score"] is not None:
            odds = row["threshold"] / (1.0 - row["threshold"])
            assert abs(row["score"] - np.log(odds)) < 1e-6
        bound = binomial_upper_bound(
            row["observed"] * row["coverage"] * len(labels),
            row["coverage"] * len(labels),
        )
        assert abs(row["bound"] - bound) < 1e-9


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
    assert len(pictures) == 3
    for picture in pictures:
        assert picture["alt"]
        svg = base64.b64decode(picture["src"].split(",")[1]).decode()
        assert "</svg>" in svg and "<script" not in svg


def test_what_users_write_is_escaped():
    labels, logits = noisy_predictions(200)
    evil = "<script>alert('x')</script>\"&amp;"
    made = kc.report_of_predictions(
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


def test_names_that_no_file_can_hold_are_written_with_escapes(tmp_path):
    labels, logits = noisy_predictions(60)
    odd = "$a$_\x00\udc80\uffff"
    shown = "$a$_" + r"\x00\udc80\uffff"
    made = kc.report_of_predictions(
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


def test_surest_mistakes_are_the_surest(made):
    labels, logits = noisy_predictions(300)
    images = np.zeros((300, 8, 8, 1), "uint8")
    images[:, 0, 0, 0] = np.arange(300) % 256
    report = kc.report_of_predictions(
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
    shown = re.findall(r"sample (\d+)<", report.html)
    assert [int(i) for i in shown] == surest.tolist()
    pictures = [a for a in Page(report.html).all("img") if "png" in a["src"]]
    assert len(pictures) == 5
    png = base64.b64decode(pictures[0]["src"].split(",")[1])
    assert png.startswith(b"\x89PNG")
    none = kc.report_of_predictions(
        labels, logits, from_logits=True, num_mistakes=0, verbose=0
    )
    assert "surest mistakes" not in Page(none.html).text


def test_risk_steps_say_where_no_threshold_is_strict_enough():
    # The surest prediction is wrong.
    labels, logits = [1, 0, 0], [[9.0, 0.0], [1.0, 0.0], [0.5, 0.0]]
    made = kc.report_of_predictions(labels, logits, from_logits=True, verbose=0)
    (rows,) = slider(Page(made.html))
    assert "threshold" not in rows[0]
    assert rows[-1]["coverage"] == 1.0
    assert len(rows) == 201


def test_save_leaves_a_whole_file_or_the_old_one(made, tmp_path):
    path = made.save(tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8") == made.html
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    broken = kc.Report(None, {})
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

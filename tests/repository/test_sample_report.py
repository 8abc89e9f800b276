"""The sample report of the docs is what the quick start makes."""

import importlib
import re

import pytest
from paths import ROOT
from report_pages import Page, few_replicates, pictures_left_out, slider

DOCS = ROOT / "docs"


@pytest.fixture
def generator(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "generator")
    return importlib.import_module("sample_report")


@pytest.mark.slow
def test_the_quick_start_makes_the_sample_report(generator):
    (html,) = generator.sample_report().values()
    page = Page(html)
    assert "before calibration" in page.text and slider(page)
    # Its classes have names, and its mistakes are shown.
    assert "nine" in page.text and not re.search(r"class \d", page.text)
    thumbnails = [x for x in page.all("img") if "image/png" in x["src"]]
    assert len(thumbnails) == 12


def test_the_sample_report_is_that_of_the_first_blocks(
    generator, monkeypatch, tmp_path
):
    page = tmp_path / "start.md"
    monkeypatch.setattr(generator, "_PAGE", page)
    monkeypatch.chdir(tmp_path)
    few_replicates(monkeypatch)
    pictures_left_out(monkeypatch)
    blocks = [
        "import keras_calib as kc",
        "p = kc.Predictions([0, 1], [[0.9, 0.1]] * 2, class_names=['a', 'b'])",
        "report = kc.report(p, verbose=0)\nreport.save('report.html')",
        "raise RuntimeError('not run')",
    ]
    text = [f"Text.\n\n```python\n{block}\n```\n" for block in blocks]
    page.write_text("".join(text), encoding="utf-8")
    ((address, html),) = generator.sample_report().items()
    assert html.startswith("<!DOCTYPE html>") and "2 predictions" in html
    # The file that it saves is gone.
    assert [x.name for x in tmp_path.iterdir()] == ["start.md"]
    for name in ("index.md", "start.md", "seeing.md"):
        assert f"({address})" in (DOCS / name).read_text(encoding="utf-8")
    page.write_text("".join(text[:2]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"No block of start\.md makes"):
        generator.sample_report()

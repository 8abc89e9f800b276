"""The report in a real browser: headless Chromium."""

import json
import os
import re
import shutil
import subprocess
from html import unescape

import numpy as np
import pytest
from report_pages import Page, report_of, slider

import keras_calib as kc
from keras_calib.numerics.results import with_interval

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BROWSER is None and not os.environ.get("CI"),
        reason="Chromium is not installed",
    ),
]
# Around the page, for widths that no window has; keeps what the probes tell.
HOST = """
<body style="margin:0">{frames}<script>
const told = [];
window.addEventListener("message", (e) => {{
  told.push(e.data);
  if (told.length === {count}) document.title = "PROBE" + JSON.stringify(told);
}});
</script></body>
"""
FRAME = """<iframe src="page.html"
  style="width:{width}px;height:900px;border:0"></iframe>"""
# Runs in the page, moves the slider and tells what it sees.
PROBE = """
<script>
const errors = [];
window.addEventListener("error", (e) => errors.push(String(e.message)));
document.addEventListener(
  "securitypolicyviolation", (e) => errors.push(e.violatedDirective));
const numbers = (color) => color.match(/[0-9.]+/g).map(Number);
const light = (color) => {
  const [r, g, b] = numbers(color).map((x) => x / 255).map(
    (x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (x) => {
  const color = getComputedStyle(x).backgroundColor;
  const seen = numbers(color)[3] !== 0;
  return seen || !x.parentElement ? color : behind(x.parentElement);
};
const contrast = (x) => {
  const [a, b] = [getComputedStyle(x).color, behind(x)].map(light);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
const tell = () => {
  const input = document.querySelector(".slider input");
  const reached = [...document.querySelectorAll("*")].filter(
    (x) => x.tabIndex >= 0 && !x.disabled && x.checkVisibility());
  input.focus();
  const shown = {};
  for (const value of [input.value, 0, 60, input.max]) {
    input.value = value;
    input.dispatchEvent(new Event("input"));
    shown[value] = Object.fromEntries(
      [...document.querySelectorAll(".slider [data-shows]")].map(
        (x) => [x.dataset.shows, x.textContent]));
  }
  const pictures = [...document.images];
  const all = [...document.querySelectorAll("body *")];
  const texts = all.filter((x) => x.tagName !== "SCRIPT" &&
    [...x.childNodes].some((y) => y.nodeType === 3 && y.data.trim()) &&
    x.checkVisibility());
  window.parent.postMessage({
    shown, errors,
    reached: reached.map((x) => x.type),
    focused: document.activeElement === input,
    spoken: input.getAttribute("aria-valuetext"),
    contrast: Math.min(...texts.map(contrast)),
    texts: texts.length,
    paper: light(behind(document.body)),
    broken: pictures.filter((x) => !x.complete || !x.naturalWidth).length,
    pictures: pictures.length,
    width: window.innerWidth,
    wide: all.filter((x) =>
      x.getBoundingClientRect().right > window.innerWidth + 1).length,
    hidden: all.filter((x) => x.scrollWidth > x.clientWidth + 1 &&
      getComputedStyle(x).overflowX !== "visible").length,
    overlapping: [...document.querySelectorAll(".grid > *")].filter(
      (x) => x.scrollWidth > x.clientWidth + 1).length,
    scroll: document.documentElement.scrollWidth,
    asked: performance.getEntriesByType("resource")
      .map((x) => x.name).filter((x) => !x.startsWith("data:")),
  }, "*");
};
window.addEventListener("load", tell);
</script>
"""


@pytest.fixture(scope="module")
def report():
    rng = np.random.default_rng(0)
    logits = 3.0 * rng.normal(size=(500, 4)).astype("float32")
    labels = (logits + 3.0 * rng.normal(size=(500, 4))).argmax(-1)
    images = rng.integers(0, 255, (500, 120, 80, 3)).astype("uint8")
    held_out = labels[:250], logits[:250]
    return report_of(
        labels[250:],
        logits[250:],
        from_logits=True,
        inputs=images[250:],
        selector=kc.SelectiveClassifier(
            calibrator=kc.TemperatureScaling().fit(*held_out)
        ).fit(*held_out, coverage=0.5),
        class_names=["A rather long name of a class", "b", "c", "d"],
        verbose=0,
    )


def seen(report, folder, widths, *options):
    """What the probe reports from frames of these widths."""
    # Before the page's own script, so that its errors are seen.
    page = report.html.replace("</style>", "</style>" + PROBE, 1)
    (folder / "page.html").write_text(page, encoding="utf-8")
    host = folder / "host.html"
    frames = "".join(FRAME.format(width=width) for width in widths)
    host.write_text(HOST.format(frames=frames, count=len(widths)))
    run = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=5000",
            f"--user-data-dir={folder / 'profile'}",
            "--window-size=1500,900",
            *options,
            "--dump-dom",
            host.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    title = re.search(r"<title>PROBE(.*?)</title>", run.stdout, re.DOTALL)
    assert title, run.stderr[-2000:]
    found = {x["width"]: x for x in json.loads(unescape(title[1]))}
    assert sorted(found) == widths
    return found


def test_page_works_at_any_width_and_shows_the_row_of_its_slider(
    report, tmp_path
):
    page = Page(report.html)
    (rows,), (bar,) = slider(page), page.all("input")
    start = int(bar["value"])
    assert (
        rows[start]["score"]
        == (report.results["model"]["selection"]["threshold"])
    )
    for width, found in seen(report, tmp_path, [400, 800, 1160, 1400]).items():
        assert found["errors"] == []
        assert found["asked"] == []
        assert found["pictures"] == 18 and found["broken"] == 0
        assert found["scroll"] <= width
        assert found["wide"] == found["hidden"] == 0
        assert found["overlapping"] == 0
        assert found["contrast"] >= 4.5 and found["texts"] > 100
        assert found["paper"] > 0.9
        # The slider is what the keyboard comes to, and says where it is.
        assert found["reached"] == ["range"] and found["focused"]
        places = {start, 0, 60, len(rows) - 1}
        assert {*map(int, found["shown"])} == places
        for place, texts in found["shown"].items():
            row = dict(rows[int(place)])
            assert float(texts.pop("score")) == round(row.pop("score"), 4)
            assert texts.pop("accepted") == f"{row.pop('accepted'):.0f} of 250"
            ends = [row.pop(name) for name in ("risk", "low", "high")]
            shown = with_interval(*(100 * x for x in ends), digits=2)
            risk, low, high = (texts.pop(x) for x in ("risk", "low", "high"))
            assert risk == f"{shown[0]} %"
            shown = [float(x) for x in shown[1].split(" to ")]
            assert shown == [float(x.strip(" %")) for x in (low, high)]
            for name, value in row.items():
                digits = 4 if 0.9999 < value < 1.0 else 2
                shown = f"{100 * value:.{digits}f} %"
                if 0.999999 < value < 1.0:
                    shown = "> 99.9999 %"
                assert texts[name] == shown, (place, name)
        assert texts["coverage"] in found["spoken"]


def test_page_can_be_read_in_the_dark(report, tmp_path):
    dark = "--blink-settings=preferredColorScheme=0"
    (found,) = seen(report, tmp_path, [400], dark).values()
    assert found["paper"] < 0.1
    assert found["contrast"] >= 4.5 and found["texts"] > 100


def test_page_prints_on_three_sheets(report, tmp_path):
    (tmp_path / "page.html").write_text(report.html, encoding="utf-8")
    subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=5000",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--no-pdf-header-footer",
            f"--print-to-pdf={tmp_path / 'page.pdf'}",
            (tmp_path / "page.html").as_uri(),
        ],
        capture_output=True,
        check=True,
        timeout=120,
    )
    pages = re.findall(rb"/Type /Page\b", (tmp_path / "page.pdf").read_bytes())
    assert 1 <= len(pages) <= 3

"""The report in a real browser: headless Chromium."""

import json
import os
import re
import shutil
import subprocess
from html import unescape

import numpy as np
import pytest

import keras_calib as kc

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BROWSER is None and not os.environ.get("CI"),
        reason="Chromium is not installed",
    ),
]
# Around the page, for widths that no window has; keeps what the probe tells.
HOST = """
<body style="margin:0"><iframe src="page.html"
  style="width:{width}px;height:900px;border:0"></iframe><script>
window.addEventListener("message", (e) => document.title = "PROBE" + e.data);
</script></body>
"""
# Runs in the page, moves the slider and tells what it sees.
PROBE = """
<script>
const errors = [];
window.addEventListener("error", (e) => errors.push(String(e.message)));
document.addEventListener(
  "securitypolicyviolation", (e) => errors.push(e.violatedDirective));
window.addEventListener("load", () => {
  const input = document.querySelector(".slider input");
  const shown = {};
  for (const value of [0, 60, Number(input.max)]) {
    input.value = value;
    input.dispatchEvent(new Event("input"));
    shown[value] = Object.fromEntries(
      [...document.querySelectorAll(".slider [data-shows]")].map(
        (x) => [x.dataset.shows, x.textContent]));
  }
  const pictures = [...document.images];
  window.parent.postMessage(JSON.stringify({
    shown, errors,
    broken: pictures.filter((x) => !x.complete || !x.naturalWidth).length,
    pictures: pictures.length,
    width: window.innerWidth,
    wide: [...document.querySelectorAll("body *")].filter(
      (x) => !x.closest(".scroll") &&
        x.getBoundingClientRect().right > window.innerWidth + 1).length,
    scroll: document.documentElement.scrollWidth,
    asked: performance.getEntriesByType("resource")
      .map((x) => x.name).filter((x) => !x.startsWith("data:")),
  }), "*");
});
</script>
"""


@pytest.fixture(scope="module")
def report():
    rng = np.random.default_rng(0)
    logits = 3.0 * rng.normal(size=(500, 4)).astype("float32")
    labels = (logits + 3.0 * rng.normal(size=(500, 4))).argmax(-1)
    images = rng.integers(0, 255, (500, 120, 80, 3)).astype("uint8")
    held_out = labels[:250], logits[:250]
    return kc.report_of_predictions(
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


def seen(report, folder, width):
    """What the probe reports from a window of this width."""
    # Before the page's own script, so that its errors are seen.
    page = report.html.replace("</style>", "</style>" + PROBE, 1)
    (folder / "page.html").write_text(page, encoding="utf-8")
    host = folder / "host.html"
    host.write_text(HOST.format(width=width), encoding="utf-8")
    run = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=5000",
            f"--user-data-dir={folder / 'profile'}",
            "--window-size=1500,900",
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
    return json.loads(unescape(title[1]))


@pytest.mark.parametrize("width", [400, 1400])
def test_page_works_at_any_width_and_shows_the_row_of_its_slider(
    report, tmp_path, width
):
    found = seen(report, tmp_path, width)
    assert found["width"] == width
    assert found["errors"] == []
    assert found["asked"] == []
    assert found["pictures"] == 17 and found["broken"] == 0
    assert found["scroll"] <= width and found["wide"] == 0
    attribute = re.search(r'data-steps="(.*?)"', report.html)[1]
    rows = json.loads(unescape(attribute))
    assert set(found["shown"]) == {"0", "60", str(len(rows) - 1)}
    for place, texts in found["shown"].items():
        for name, value in rows[int(place)].items():
            shown = f"{100 * value:.2f} %"
            if name == "score":
                # In log-odds.
                shown = f"{value:.4f}"
            assert texts[name] == shown, (place, name)

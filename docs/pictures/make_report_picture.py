"""Draws the top of the sample report for README and guides.

    python docs/pictures/make_report_picture.py

It runs the code of the quick start, and needs Chromium.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).resolve().parents[1]
PICTURE = DOCS / "pictures" / "report.png"
# Pixels of the window, and colours of the file, of which few make it small.
WIDTH, HEIGHT, COLOURS = 1280, 1100, 128


def main():
    sys.path.insert(0, str(DOCS / "generator"))
    from sample_report import sample_report

    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is not installed")
    (html,) = sample_report().values()
    with tempfile.TemporaryDirectory() as folder:
        page, shot = (Path(folder) / x for x in ("page.html", "page.png"))
        page.write_text(html, encoding="utf-8")
        subprocess.run(
            [
                browser,
                *("--headless", "--no-sandbox", "--disable-gpu"),
                *("--hide-scrollbars", "--virtual-time-budget=3000"),
                f"--window-size={WIDTH},{HEIGHT}",
                f"--screenshot={shot}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
        image = Image.open(io.BytesIO(shot.read_bytes())).convert("RGB")
    image = image.quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(PICTURE, optimize=True)
    print(f"{PICTURE.stat().st_size:,} bytes  {PICTURE.name}")


if __name__ == "__main__":
    main()

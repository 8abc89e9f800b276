"""The documentation is whole: built without a warning, every name explained."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from paths import ROOT
from public_names import PUBLIC
from repository_files import repository_files

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
in_browser = pytest.mark.skipif(
    BROWSER is None and not os.environ.get("CI"),
    reason="Chromium is not installed",
)
# Pages of each kind.
READ = (
    *("index", "choosing_a_loss", "results", "papers"),
    *("guides/rejecting", "methods/mbls", "reference/selection"),
)


class Html(HTMLParser):
    """Addresses by attribute of a tag, and the names of places."""

    def __init__(self, path):
        super().__init__()
        self.addresses, self.places = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if key in ("src", "href") and value:
                self.addresses.append((tag, dict(attrs).get("rel"), value))
            if key in ("id", "name") and value:
                self.places.add(value)


def run(*words):
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    run(ROOT / "docs" / "generator", folder / "build" / "docs")
    said = run(
        *("-m", "mkdocs", "build", "--strict"),
        *("--config-file", folder / "mkdocs.yml"),
    )
    assert "WARNING -" not in said
    folder = folder / "build" / "site"
    pages = {p.relative_to(folder): Html(p) for p in folder.rglob("*.html")}
    return folder, pages


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site):
    _, pages = site
    places = {
        place
        for path, page in pages.items()
        if path.parts[0] == "reference"
        for place in page.places
    }
    assert {*PUBLIC} <= places


@pytest.mark.slow
def test_formulas_and_curves_are_in_the_pages_of_methods(site):
    folder, _ = site
    page = (folder / "methods" / "mbls.html").read_text(encoding="utf-8")
    assert page.count("<math") == 2
    assert 'src="mbls.svg"' in page
    assert "cross entropy" in (folder / "methods" / "mbls.svg").read_text()


def opened(address):
    """HTML of a page after its scripts have run."""
    done = subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--dump-dom"),
            *("--virtual-time-budget=15000", address),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout


@pytest.mark.slow
@in_browser
def test_search_works_in_files(site):
    folder, _ = site
    seen = opened(f"{(folder / 'index.html').as_uri()}?q=temperature")
    assert re.search(r"\d+ matching documents", seen)


@pytest.mark.slow
@in_browser
def test_text_has_contrast_and_fits_on_a_phone(site):
    """In light and dark colours, at 1,400 and 400 pixels."""
    folder, _ = site
    script = (ROOT / "tests" / "repository" / "readable.js").read_text()
    frames = ""
    for name in READ:
        page = folder / f"{name}.html"
        copy = page.with_name(f"measured_{page.name}")
        text = page.read_text(encoding="utf-8")
        script_at_end = f"<script>{script}</script></body>"
        copy.write_text(
            text.replace("</body>", script_at_end), encoding="utf-8"
        )
        for width in (1400, 400):
            frames += (
                f"<iframe src='{copy.as_uri()}' width={width} height=900 "
                "style='border: 0'></iframe>"
            )
    outer = folder / "measured.html"
    outer.write_text(
        "<pre></pre><script>onmessage = (e) => "
        "document.querySelector('pre').append(e.data, '\\n')</script>" + frames
    )
    lines = re.search("<pre>(.*?)</pre>", opened(outer.as_uri()), re.DOTALL)[1]
    found = [json.loads(x) for x in html.unescape(lines).splitlines() if x]
    assert len(found) == 2 * len(READ)
    for measured in found:
        assert measured["texts"] > 20
        assert not measured["faint"], measured["page"]
        assert measured["scrollWidth"] <= measured["clientWidth"], measured


@pytest.mark.slow
def test_pages_fetch_nothing_from_elsewhere(site):
    _, pages = site
    for path, page in pages.items():
        for tag, rel, address in page.addresses:
            fetched = tag in ("script", "img", "iframe", "source") or (
                tag == "link" and rel not in ("canonical", "next", "prev")
            )
            if fetched:
                assert not urlsplit(address).netloc, f"{path}: {address}"


def links(folder, pages):
    """Path of a page or notebook, and what it links to."""
    for path, page in pages.items():
        if path.name != "404.html":
            yield from ((path, address) for _, _, address in page.addresses)
    for path in sorted(folder.glob("notebooks/*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for address in re.findall(r"\]\(([^)\s]+)\)", cell["source"]):
                yield path.relative_to(folder), address


@pytest.mark.slow
def test_links_lead_to_places_that_are_there(site):
    folder, pages = site
    for path, address in links(folder, pages):
        parts = urlsplit(address)
        if parts.netloc or parts.scheme or not (parts.path or parts.fragment):
            continue
        target = (folder / path).parent / unquote(parts.path)
        target = (folder / path if not parts.path else target).resolve()
        if target.is_dir():
            target = target / "index.html"
        assert target.is_file(), f"{path}: {address}"
        inside = pages.get(target.relative_to(folder.resolve()))
        if parts.fragment and inside is not None:
            place = unquote(parts.fragment)
            assert place in inside.places, f"{path}: {address}"


@pytest.mark.slow
def test_every_notebook_is_offered_by_its_page(site):
    folder, pages = site
    offered = {
        Path(os.path.normpath(path.parent / address)).name: path.stem
        for path, page in pages.items()
        for _, _, address in page.addresses
        if address.endswith(".ipynb")
    }
    made = {path.name: path.stem for path in folder.rglob("*.ipynb")}
    assert made
    assert offered == made


def test_docs_and_readme_link_to_files_that_exist():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for address in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if urlsplit(address).scheme:
                continue
            generated = address.startswith(
                ("guides/", "methods/", "reference/", "sample_report")
            )
            assert generated or (page.parent / address).exists(), (
                f"{page.name}: {address}"
            )


def test_pages_name_files_that_exist():
    name = re.compile(
        r"`((?:benchmarks|docs|examples|keras_calib|tests)/[\w./-]+\.\w+)`"
    )
    pages = [page for page in repository_files() if page.suffix == ".md"]
    assert ROOT / "README.md" in pages
    for page in pages:
        parts = page.relative_to(ROOT).parts
        hidden = any(x.startswith(".") for x in parts)
        if hidden or parts[0] in ("CHANGELOG.md", "build", "work"):
            continue
        for file in name.findall(page.read_text(encoding="utf-8")):
            assert (ROOT / file).exists(), f"{page}: {file}"

"""Notebooks of the guides, made from their pages."""

import base64
import json
import os
import posixpath
import re
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from given import GIVEN
from locations import DOCS, ROOT

FOLDER = "notebooks"

# Colab opens notebooks from a branch of a public repository on GitHub.
_COLAB = "https://colab.research.google.com/github/{repository}/blob/{branch}"
_INSTALL = """\
# Does nothing where the package is installed.
import importlib.util

if importlib.util.find_spec("keras_calib") is None:
    %pip install --quiet "keras-calib[{extras}]" scikit-learn"""
_EXTRAS = {
    "after_training.md": "bayes,report,sklearn",
    "data.md": "report,tfds",
    "serving.md": "litert,onnx,report",
}
_MOST_EXTRAS = "report,tensorflow"

_MADE_UP = (
    "This page takes a network and data of yours as given. The next cell makes"
    " some up, so that the notebook runs by itself. Numbers therefore differ"
    " from those in the text."
)
_DRAWN_TWICE = (
    " Each display is drawn with these data; the picture of the page follows."
)

_FENCE = re.compile(
    r"(?P<left_out><!-- not run: [^>]+ -->\s*)?"
    r"^```(?P<kind>\w*)\n(?P<code>.*?)\n```$",
    re.DOTALL | re.MULTILINE,
)
_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: ([^>]+) -->\n*")
_SECTION = re.compile(r"^(?=#{2,} )", re.MULTILINE)
_PICTURES = re.compile(
    r"^((?:!\[[^\]]*\]\([^)]+\)(?:\{[^}\n]*\})?\n?)+)(?=\n|\Z)", re.MULTILINE
)
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)(\{[^}\n]*\})?")
_DISPLAY = re.compile(r"/displays/(\w+)\.png\)")
_ATTRIBUTES = re.compile(r" \{ ?[#.:][^}\n]*\}$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_TYPES = {".png": "image/png", ".svg": "image/svg+xml"}


def add_notebooks(pages):
    """Adds the notebooks of all guides with code to the pages of the site.

    Args:
        pages: Address to content. Pages of guides get a line that leads to
            their notebook.
    """
    import yaml

    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    for address, text in [*pages.items()]:
        folder, _, name = address.rpartition("/")
        if folder not in ("", "guides") or not name.endswith(".md"):
            continue
        made = notebook(address, text, site=config.get("site_url"))
        if made is None:
            continue
        stem = name.removesuffix(".md")
        content = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
        pages[f"{FOLDER}/{stem}.ipynb"] = content
        title, rest = text.split("\n", 1)
        line = link_line(address, **config["extra"]["notebooks"])
        pages[address] = f"{title}\n\n{line}\n{rest}"


def link_line(address, *, repository, branch):
    """Markdown that leads from a page to its notebook.

    Args:
        address: Path of the page within the site.
        repository: `OWNER/NAME` on GitHub; none has no link to Colab.
        branch: Where the site lies in the repository.
    """
    stem = PurePosixPath(address).stem
    path = f"{FOLDER}/{stem}.ipynb"
    near = os.path.relpath(path, PurePosixPath(address).parent)
    line = f"[Download this page as a notebook]({near})"
    line += f'{{ download="{stem}.ipynb" }}'
    if repository:
        colab = _COLAB.format(repository=repository, branch=branch)
        line += f" · [Open in Colab]({colab}/{path})"
    return f"{line}\n{{ .notebook }}\n"


def notebook(address, text, *, site=None):
    """A notebook without outputs; None for a page without code that runs.

    Args:
        address: Path of the page within the site.
        text: Its Markdown.
        site: Address where the site is published. Without it links lead to
            the folder above that of the notebooks.
    """
    title, _, rest = text.partition("\n")
    given = GIVEN.get(address)
    cells = [_text(title), _code(_install(address), "install")]
    if given:
        told = _MADE_UP + _DRAWN_TWICE * bool(_DISPLAY.search(text))
        cells += [_text(told), _code(given, "given")]
    end = code = 0
    pending = ""
    for fence in _FENCE.finditer(rest):
        pending += rest[end : fence.start()]
        end = fence.end()
        if fence["kind"] == "python" and not fence["left_out"]:
            cells += _texts(pending, address, site)
            cells.append(_code(fence["code"]))
            pending, code = "", code + 1
        else:
            pending += fence[0]
    if not code:
        return None
    cells += _texts(pending + rest[end:], address, site)
    for number, cell in enumerate(cells, start=1):
        cell["id"] = f"cell-{number}"
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {
                "display_name": "Python 3",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _install(address):
    return _INSTALL.format(extras=_EXTRAS.get(address, _MOST_EXTRAS))


def _text(text):
    return {"cell_type": "markdown", "metadata": {}, "source": text.strip()}


def _code(code, *tags):
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {"tags": [*tags]} if tags else {},
        "outputs": [],
        "source": code.strip("\n"),
    }


def _texts(text, address, site):
    """Cells of a text: one for each section, and pictures by themselves."""
    text = _NOT_RUN.sub(r"This block is not a cell: \1.\n\n", text)
    text = _ATTRIBUTES.sub("", _COMMENT.sub("", text))
    for section in _SECTION.split(text):
        for part in _PICTURES.split(section):
            for name in _DISPLAY.findall(part):
                yield _code(f"{name}.plot();", "drawn")
            part = _PICTURE.sub(lambda m: _picture(m, address), part)
            part = _LINK.sub(lambda m: _link(m, address, site), part)
            if part.strip():
                yield _text(part)


def _picture(match, address):
    """The picture itself: a notebook travels without the site."""
    alt, path = match[1], PurePosixPath(match[2])
    content = (DOCS / PurePosixPath(address).parent / path).read_bytes()
    content = base64.b64encode(content).decode("ascii")
    return f"![{alt}](data:{_TYPES[path.suffix]};base64,{content})"


def _link(match, address, site):
    """A link to a page of the site as one to where the page is published."""
    parts = urlsplit(match[2])
    if parts.scheme:
        return match[0]
    path = PurePosixPath(address)
    path = posixpath.normpath(path.parent / parts.path) if parts.path else path
    path = re.sub(r"\.md$", ".html", str(path))
    place = f"#{parts.fragment}" if parts.fragment else ""
    base = site.rstrip("/") if site else ".."
    return f"[{match[1]}]({base}/{path}{place})"

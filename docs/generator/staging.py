"""A folder with all pages of the site, copied and generated."""

import os
import re
import shutil

from guide_pages import guide_pages
from method_pages import method_pages
from paths import DOCS
from paths import ROOT
from reference_pages import reference_pages

__all__ = ["stage"]

_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
_OWN_LINK = re.compile(r"\[(`[^`]+`|[^\[\]]+)\]\((?!https?:)[^)]*\)")
_REPOSITORY = "repository"
# Generated pages link to these.
_ALWAYS = (
    "benchmarks/results/calibrators.md",
    "benchmarks/results/losses.md",
    "benchmarks/results/runs",
    "benchmarks/results/training.md",
)


def stage(folder):
    """Writes the folder anew.

    Files of the repository that a page links to, tables of benchmarks among
    them, become part of the site.
    """
    shutil.rmtree(folder, ignore_errors=True)
    pages, linked = {}, {*_ALWAYS}
    for file in sorted(DOCS.rglob("*")):
        address = file.relative_to(DOCS)
        if file.is_dir() or address.parts[0] in ("generator", "__pycache__"):
            continue
        content = file.read_bytes()
        if file.suffix == ".md":
            content = _inside(content.decode("utf-8"), address, linked)
        pages[address.as_posix()] = content
    pages |= guide_pages() | method_pages() | reference_pages()
    for path in sorted(linked):
        pages |= _copies(path)
    for address, content in pages.items():
        path = folder / address
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            content = content.encode("utf-8")
        path.write_bytes(content)


def _inside(text, address, linked):
    """Links out of docs lead to copies, which `linked` collects."""
    own = DOCS / address.parent

    def replaced(match):
        target = (own / match[1]).resolve()
        outside = ROOT in target.parents and DOCS not in target.parents
        if not outside or not target.exists():
            return match[0]
        path = target.relative_to(ROOT).as_posix()
        linked.add(path)
        if target.is_dir():
            path += "/index.md"
        path = os.path.relpath(f"{_REPOSITORY}/{path}", address.parent)
        return f"]({path}{match[2] or ''})"

    return _LINK.sub(replaced, text)


def _copies(path):
    """Address to content of a file of the repository, or of a folder's."""
    source = ROOT / path
    if source.is_dir():
        inside = sorted(x.name for x in source.iterdir() if x.is_file())
        lines = [f"# {path}", "", *(f"- [{x}]({x})" for x in inside), ""]
        found = {f"{_REPOSITORY}/{path}/index.md": "\n".join(lines)}
        for name in inside:
            found |= _copies(f"{path}/{name}")
        return found
    content = source.read_bytes()
    if source.suffix == ".md":
        # Its own links lead to files that are not part of the site.
        content = _OWN_LINK.sub(r"\1", content.decode("utf-8"))
    return {f"{_REPOSITORY}/{path}": content}

"""A folder with all pages of the site, copied and generated."""

import shutil

from guide_pages import guide_pages
from links import copies
from links import linked_inside
from locations import DOCS
from method_pages import method_pages
from reference_pages import reference_pages

__all__ = ["stage"]

# Generated pages link to these.
_ALWAYS = (
    "benchmarks/results/calibrators.md",
    "benchmarks/results/losses.md",
    "benchmarks/results/runs",
    "benchmarks/results/training.md",
)


def stage(folder):
    """Writes the folder anew."""
    pages, linked = {}, {*_ALWAYS}
    for file in sorted(DOCS.rglob("*")):
        address = file.relative_to(DOCS)
        if file.is_dir() or address.parts[0] == "generator":
            continue
        content = file.read_bytes()
        if file.suffix == ".md":
            text = content.decode("utf-8")
            content, found = linked_inside(text, address)
            linked |= found
        pages[address.as_posix()] = content
    pages |= guide_pages() | method_pages() | reference_pages()
    for path in sorted(linked):
        pages |= copies(path)
    shutil.rmtree(folder, ignore_errors=True)
    for address, content in pages.items():
        path = folder / address
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            content = content.encode("utf-8")
        path.write_bytes(content)

"""A folder with all pages of the site, copied and generated."""

import shutil

from links import copies
from method_pages import method_pages
from notebooks import add_notebooks
from reference_pages import reference_pages
from sample_report import sample_report
from written_pages import written_pages

# Generated pages link to these.
_ALWAYS = (
    "benchmarks/results/calibrators.md",
    "benchmarks/results/losses.md",
    "benchmarks/results/losses_pixels.md",
    "benchmarks/results/runs",
    "benchmarks/results/training.md",
)


def stage(folder):
    """Writes the folder anew."""
    pages, linked = written_pages()
    add_notebooks(pages)
    pages |= method_pages() | reference_pages() | sample_report()
    for path in sorted(linked | {*_ALWAYS}):
        pages |= copies(path)
    shutil.rmtree(folder, ignore_errors=True)
    for address, content in pages.items():
        path = folder / address
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            content = content.encode("utf-8")
        path.write_bytes(content)

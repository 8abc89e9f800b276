"""Pages that people wrote: those of `docs`, and scripts of `examples`."""

from guide_pages import guide_pages
from links import linked_inside
from locations import DOCS


def written_pages():
    """Address to content, and the paths of the repository that they link to."""
    pages, linked = {}, set()
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
    return pages | guide_pages(), linked

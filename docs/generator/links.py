"""Files of the repository that pages link to become part of the site."""

import os
import re

from locations import DOCS, ROOT

_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")
_OWN_LINK = re.compile(r"\[(`[^`]+`|[^\[\]]+)\]\((?!https?:)[^)]*\)")
_FOLDER = "repository"


def linked_inside(text, address):
    """A page whose links out of `docs` lead to copies, and their paths.

    Args:
        text: Markdown of the page.
        address: Path of the page within `docs`.
    """
    linked = set()

    def replaced(match):
        target = (DOCS / address.parent / match[1]).resolve()
        outside = ROOT in target.parents and DOCS not in target.parents
        if not outside or not target.exists():
            return match[0]
        path = target.relative_to(ROOT).as_posix()
        linked.add(path)
        if target.is_dir():
            path += "/index.md"
        path = os.path.relpath(f"{_FOLDER}/{path}", address.parent)
        return f"]({path}{match[2] or ''})"

    return _LINK.sub(replaced, text), linked


def copies(path):
    """Address to content of a file of the repository, or of a folder's."""
    source = ROOT / path
    if source.is_dir():
        inside = sorted(x.name for x in source.iterdir() if x.is_file())
        lines = [f"# {path}", "", *(f"- [{x}]({x})" for x in inside), ""]
        found = {f"{_FOLDER}/{path}/index.md": "\n".join(lines)}
        for name in inside:
            found |= copies(f"{path}/{name}")
        return found
    content = source.read_bytes()
    if source.suffix == ".md":
        # Its own links lead to files that are not part of the site.
        content = _OWN_LINK.sub(r"\1", content.decode("utf-8"))
    return {f"{_FOLDER}/{path}": content}

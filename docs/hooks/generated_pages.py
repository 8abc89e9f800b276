"""Pages of the site that are made from the package and its measurements.

mkdocs calls `on_files` and `on_page_markdown`. Files of the repository that a
page links to, tables of benchmarks among them, become part of the site.
"""

import re
import sys
from pathlib import Path

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).resolve().parent))

from guide_pages import guide_pages  # noqa: E402
from method_pages import ROOT  # noqa: E402
from method_pages import method_pages  # noqa: E402
from reference_pages import reference_pages  # noqa: E402

_LINK = re.compile(r"\]\(\.\./([^)#]+)(#[^)]*)?\)")
_OWN_LINK = re.compile(r"\[(`[^`]+`|[^\[\]]+)\]\((?!https?:)[^)]*\)")


def on_config(config):
    """Adds the generated pages to the navigation."""
    config.nav += [
        {"Guides as scripts": _listed(guide_pages())},
        {"Methods": _listed(method_pages())},
        {"Reference": _listed(reference_pages())},
    ]
    return config


def on_files(files, config):
    """Adds the generated pages, and what pages link to outside of docs."""
    pages = {**guide_pages(), **method_pages(), **reference_pages()}
    for address, text in pages.items():
        files.append(File.generated(config, address, content=text))
    linked = {"benchmarks/results/losses.md", "benchmarks/results/training.md"}
    for file in list(files):
        if file.src_uri.endswith(".md") and file.abs_src_path:
            text = Path(file.abs_src_path).read_text(encoding="utf-8")
            linked |= {match[1].rstrip("/") for match in _LINK.finditer(text)}
    for path in sorted(linked):
        _add(files, config, path)
    return files


def on_page_markdown(markdown, page, config, files):
    """Links out of docs lead to the copies inside of the site."""
    if page.file.generated_by:
        return markdown

    def inside(match):
        path = match[1].rstrip("/")
        if (ROOT / path).is_dir():
            path += "/index.md"
        return f"](repository/{path}{match[2] or ''})"

    return _LINK.sub(inside, markdown)


def _add(files, config, path):
    source = ROOT / path
    if source.is_dir():
        inside = sorted(x for x in source.iterdir() if x.is_file())
        lines = [f"# {path}", ""]
        for file in inside:
            lines.append(f"- [{file.name}]({file.name})")
            _add(files, config, f"{path}/{file.name}")
        _append(files, config, f"{path}/index.md", "\n".join(lines) + "\n")
    elif source.suffix == ".md":
        text = source.read_text(encoding="utf-8")
        # Its own links lead to files that are not part of the site.
        text = _OWN_LINK.sub(r"\1", text)
        _append(files, config, path, text)
    else:
        _append(files, config, path, source.read_bytes())


def _append(files, config, path, content):
    address = f"repository/{path}"
    if files.get_file_from_path(address) is None:
        files.append(File.generated(config, address, content=content))


def _listed(pages):
    """Entries of the navigation, by the titles of the pages."""
    return [
        {text.splitlines()[0].strip("# `"): address}
        for address, text in pages.items()
    ]

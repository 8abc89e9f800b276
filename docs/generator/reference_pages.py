"""The API reference: every public name, by what it is for."""

import inspect
from functools import cache

from docstrings import summary, text_of
from method_files import methods

import keras_calib
from keras_calib.inputs.options import ArrayOptions

__all__ = ["link_to", "reference_pages"]

# Address and title of each page to the packages whose names it has.
_GROUPS = {
    "losses": ("Losses", ["losses"]),
    "training": ("Training models and backups", ["training"]),
    "ensembles": ("Ensembles", ["ensembles"]),
    "metrics": ("Metrics", ["metrics"]),
    "functional": ("Functions of arrays", ["functional"]),
    "calibrators": ("Calibrators", ["calibrators"]),
    "selection": ("Selection", ["selection"]),
    "text": ("Text", ["text"]),
    "labels": ("Several labels", ["labels"]),
    "detection": ("Boxes", ["detection"]),
    "data": ("Data", ["data"]),
    "plots": ("Displays and reports", ["plots", "reporting"]),
    "exporting": ("Export", ["exporting"]),
    "monitoring": ("Monitoring", ["monitoring"]),
}


def reference_pages():
    """Address and Markdown of each page, and of the page that lists them."""
    pages, index = {}, ["# API reference", "", "Import from `keras_calib`.", ""]
    about = {m["names"][0]: m for found in methods().values() for m in found}
    for address, (title, _) in _GROUPS.items():
        names = [name for name, page in _pages().items() if page == address]
        things = {name: _thing(name) for name in names}
        lines = [f"# {title}", "", *_summaries(things, ""), ""]
        index += [f"## [{title}]({address}.md)", ""]
        index += [*_summaries(things, f"{address}.md"), ""]
        for name, thing in things.items():
            lines += [f"## `{name}` {{#{name}}}", ""]
            if name in about:
                own, page = about[name]["title"], about[name]["page"]
                lines.append(
                    f"About the method: [{own}](../methods/{page}.md)."
                )
            lines += ["", text_of(name, thing, level=2), ""]
        pages[f"reference/{address}.md"] = "\n".join(lines) + "\n"
    return {"reference/index.md": "\n".join(index) + "\n", **pages}


def link_to(name):
    """A link from a page in another folder."""
    return f"[`{name}`](../reference/{_pages()[name]}.md#{name})"


@cache
def _pages():
    """Each public name to the address of its page."""
    found = {
        name: address
        for address, (_, packages) in _GROUPS.items()
        for package in packages
        for name in sorted(getattr(keras_calib, package).__all__)
    }
    left = {n for n in keras_calib.__all__ if not n.startswith("__")} - {*found}
    if left:
        raise ValueError(f"no page has the names {sorted(left)}")
    return found | {"ArrayOptions": "functional"}


def _thing(name):
    return (
        ArrayOptions if name == "ArrayOptions" else getattr(keras_calib, name)
    )


def _summaries(things, page):
    """A row for each class, then for each function."""
    classes = [name for name, thing in things.items() if inspect.isclass(thing)]
    rest = [name for name in things if name not in classes]
    return [
        "| name | what it is |",
        "|---|---|",
        *(
            f"| [`{name}`]({page}#{name}) | {summary(things[name])} |"
            for name in [*classes, *rest]
        ),
    ]

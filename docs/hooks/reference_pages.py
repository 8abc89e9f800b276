"""The API reference: every public name, by what it is for."""

from docstrings import text_of

import keras_calib
from keras_calib.inputs.options import ArrayOptions

__all__ = ["GROUPS", "reference_pages"]

# Address and title of each page to the packages whose names it has.
GROUPS = {
    "losses": ("Losses", ["losses"]),
    "training": ("Training", ["training"]),
    "data": ("Data", ["data"]),
    "metrics": ("Metrics", ["metrics"]),
    "functional": ("Exact functions", ["functional"]),
    "calibrators": ("Calibrators", ["calibrators"]),
    "ensembles": ("Ensembles", ["ensembles"]),
    "selection": ("Selection", ["selection"]),
    "analysis": ("Analysis", ["analysis"]),
    "plots": ("Plots and reports", ["plots", "reporting"]),
    "monitoring": ("Monitoring", ["monitoring"]),
    "exporting": ("Export", ["exporting"]),
}


def reference_pages():
    """Address and Markdown of each page, and of the page that lists them."""
    pages, index = {}, ["# Reference", "", "Import from `keras_calib`.", ""]
    left = {n for n in keras_calib.__all__ if not n.startswith("__")}
    for address, (title, packages) in GROUPS.items():
        names = sorted(
            name
            for package in packages
            for name in getattr(keras_calib, package).__all__
        )
        left -= {*names}
        lines = [f"# {title}", ""]
        index += [f"## [{title}]({address}.md)", ""]
        for name in names:
            thing = getattr(keras_calib, name)
            lines += [f"## `{name}` {{#{name}}}", ""]
            lines += [text_of(name, thing, level=2), ""]
            index.append(f"- [`{name}`]({address}.md#{name})")
        if address == "functional":
            lines += ["## `ArrayOptions` {#ArrayOptions}", ""]
            lines += [text_of("ArrayOptions", ArrayOptions, level=2), ""]
        index.append("")
        pages[f"reference/{address}.md"] = "\n".join(lines) + "\n"
    if left:
        raise ValueError(f"no page has the names {sorted(left)}")
    return {"reference/index.md": "\n".join(index) + "\n", **pages}

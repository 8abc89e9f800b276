"""The API reference: every public name, by what it is for."""

from docstrings import text_of

import keras_calib

__all__ = ["GROUPS", "reference_pages"]

# Address and title of each page to the modules whose names it has.
GROUPS = {
    "losses": ("Losses", ["losses", "targets"]),
    "models": ("Models", ["models", "training_state", "callbacks"]),
    "data": ("Data", ["data"]),
    "metrics": ("Metrics", ["metrics"]),
    "functions": (
        "Exact functions",
        [
            "bin_errors",
            "bins",
            "calibration_error",
            "canonical",
            "classwise",
            "confidence_gaps",
            "equal_mass",
            "excess_areas",
            "failure_detection",
            "hypothesis_tests",
            "intervals",
            "proper_scores",
            "risk_coverage",
            "scores",
            "segmentation",
            "smooth_error",
        ],
    ),
    "calibrators": ("Calibrators", ["calibrators"]),
    "selection": ("Selection", ["selection"]),
    "analysis": ("Analysis", ["analysis", "activation_maps"]),
    "plots": ("Plots and reports", ["plots", "reporting"]),
    "monitoring": ("Monitoring", ["monitoring"]),
    "exporting": ("Export", ["exporting"]),
}


def reference_pages():
    """Address and Markdown of each page, and of the page that lists them."""
    by_module = {}
    for name in keras_calib.__all__:
        if not name.startswith("__"):
            module = getattr(keras_calib, name).__module__.split(".")[1]
            by_module.setdefault(module, []).append(name)
    pages, index = {}, ["# Reference", "", "Import from `keras_calib`.", ""]
    for address, (title, modules) in GROUPS.items():
        names = sorted(n for module in modules for n in by_module.pop(module))
        lines = [f"# {title}", ""]
        index += [f"## [{title}]({address}.md)", ""]
        for name in names:
            thing = getattr(keras_calib, name)
            lines += [f"## `{name}` {{#{name}}}", ""]
            lines += [text_of(name, thing, level=2), ""]
            index.append(f"- [`{name}`]({address}.md#{name})")
        index.append("")
        pages[f"reference/{address}.md"] = "\n".join(lines) + "\n"
    if by_module:
        raise ValueError(f"no page has the names of {sorted(by_module)}")
    return {"reference/index.md": "\n".join(index) + "\n", **pages}

"""A page per method: its docstring, what it costs, what was measured."""

import re
from pathlib import Path

import keras
from docstrings import text_of

import keras_calib

__all__ = ["METHODS", "method_pages"]

ROOT = Path(__file__).resolve().parents[2]

# Title of each page to public names, names in the tables of cost, and names in
# the first column of the tables of results. A loss or model that is not here
# has a page under its own name.
METHODS = {
    "Label smoothing": (
        ["LabelSmoothing"],
        ["LabelSmoothing"],
        ["label smoothing"],
    ),
    "Adaptive label smoothing": (
        ["AdaptiveLabelSmoothing", "objectness_targets"],
        ["AdaptiveLabelSmoothing"],
        [],
    ),
    "Label relaxation": (
        ["LabelRelaxation"],
        ["LabelRelaxation"],
        ["label relaxation"],
    ),
    "Focal loss": (["FocalLoss"], ["FocalLoss"], ["focal loss"]),
    "Focal schedule": (
        ["ScheduledFocalModel"],
        ["focal schedule"],
        ["focal schedule"],
    ),
    "AdaFocal": (
        ["AdaptiveFocalModel", "adaptive_focal"],
        ["AdaFocal"],
        ["AdaFocal"],
    ),
    "Inverse focal loss": (["InverseFocalLoss"], ["InverseFocalLoss"], []),
    "Confidence penalty": (
        ["ConfidencePenalty"],
        ["ConfidencePenalty"],
        ["confidence penalty"],
    ),
    "Uniformity penalty": (["UniformityPenalty"], ["UniformityPenalty"], []),
    "Brier score as a loss": (["BrierLoss"], ["BrierLoss"], []),
    "CRL": (
        ["CorrectnessRankingModel", "correctness_ranking", "CRLMargin"],
        ["CRL"],
        ["CRL"],
    ),
    "CaPE": (["CaPEModel", "cape_loss", "cape_targets"], ["CaPE"], ["CaPE"]),
    "SAM and ASAM": (["SharpnessAwareModel"], ["SAM", "ASAM"], ["SAM", "ASAM"]),
    "Pruning by confidence": (
        ["ConfidencePruningModel"],
        ["pruning"],
        ["pruning"],
    ),
    "Monte Carlo dropout": (
        ["MonteCarloDropout"],
        [],
        ["Monte Carlo dropout"],
    ),
    "Deep ensembles": (["DeepEnsemble"], [], ["ensemble of 5"]),
}
# Bases of other classes, not methods.
BASES = {"BatchCoupledLoss", "PerSampleLoss", "EpochModel", "RecordingModel"}


def method_pages():
    """Address and Markdown of each page, and of the page that lists them."""
    pages, rows = {}, []
    named = {name for names, _, _ in METHODS.values() for name in names}
    alone = sorted(exported_methods() - named)
    methods = METHODS | {name: ([name], [name], [name]) for name in alone}
    for title, (names, costs, effects) in sorted(methods.items()):
        address = re.sub(r"\W+", "_", title.lower())
        lines = [f"# {title}", "", *_formulas(names)]
        for name in names:
            thing = getattr(keras_calib, name)
            lines += [f"## `{name}` {{#{name}}}", ""]
            lines += [text_of(name, thing, level=2), ""]
        lines += ["## Measured cost", "", *_tables(_costs(), costs)]
        lines += ["## Measured effect", "", *_tables(_effects(), effects)]
        pages[f"methods/{address}.md"] = "\n".join(lines) + "\n"
        first = (getattr(keras_calib, names[0]).__doc__ or "").splitlines()[0]
        rows.append(f"| [{title}]({address}.md) | {first} |")
    lines = ["# Methods", "", "| method | in a line |", "|---|---|", *rows]
    pages["methods/index.md"] = "\n".join(lines) + "\n"
    return pages


def exported_methods():
    """Names of the losses and models that a page must be about."""
    return {
        name
        for name in keras_calib.__all__
        if isinstance(cls := getattr(keras_calib, name), type)
        and issubclass(cls, keras.losses.Loss | keras.Model)
    } - BASES


def _formulas(names):
    """The rows of the table of losses, as sentences."""
    text = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if any(line.startswith(f"| `{name}(") for name in names)
    ]
    lines = []
    for call, value, soft in (row for row in rows if len(row) == 3):
        lines += [f"{call.strip('| ')}: `{value}`", ""]
        lines += [f"Soft labels: {soft.strip('| ')}.", ""]
    if lines:
        lines += ["[Symbols, and how labels are read](../losses.md).", ""]
    return lines


def _costs():
    texts = {}
    for name in ("losses.md", "training.md"):
        path = f"benchmarks/results/{name}"
        text = (ROOT / path).read_text(encoding="utf-8")
        texts[f"[{path}](../repository/{path})"] = text
    return texts


def _effects():
    return {
        f"[{title}](../{name})": (ROOT / "docs" / name).read_text(
            encoding="utf-8"
        )
        for name, title in (
            ("results.md", "results"),
            ("training.md", "training that remembers"),
        )
    }


def _tables(texts, names):
    """The rows of some names in all tables of some texts."""
    lines = []
    for source, text in texts.items():
        for context, header, rows in _each_table(text):
            own = [row for row in rows if _is_of(row, names)]
            if own:
                lines += [f"{context} ({source}):", "", *header, *own, ""]
    return lines or ["Not measured.", ""]


def _is_of(row, names):
    first = row.strip("| ").split(" | ")[0].strip(" |*")
    return any(
        re.match(rf"{re.escape(name)}(?![\w])", first, re.IGNORECASE)
        for name in names
    )


def _each_table(text):
    """Nearest heading or line before a table, its head, and its rows."""
    heading, context, table = "", "", []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        if len(table) > 2:
            yield context or heading, table[:2], table[2:]
        table = []
        if line.startswith("#"):
            heading = context = line.strip("# ")
        elif line.endswith(":"):
            context = f"{heading}, {line.rstrip(':')}" if heading else line

"""A page for each method: when to use it, formula, picture, measurements."""

import curves
from docstrings import escaped, parts
from formulas import formula
from measurements import costs, effects_of_calibrator, effects_of_loss
from method_files import KINDS, code_of, methods
from public_things import public_things
from reference_pages import link_to

import keras_calib

_SYMBOLS = {
    "losses": "Logits are z, p is their softmax, y the true class of K, and "
    "CE is the cross entropy.",
    "training": "Logits are z, p is their softmax, y the true class, and CE "
    "is the cross entropy.",
    "calibrators": "Logits are z, p is their softmax, y the true class of K.",
}


def method_pages():
    """Address to Markdown or picture of each page, and of the list of all."""
    pages, lines = {}, ["# Methods", ""]
    for kind, found in methods().items():
        lines += [f"## {KINDS[kind]}", "", "| method | use it when |"]
        lines.append("|---|---|")
        for method in found:
            page = method["page"]
            picture = _picture(method, kind)
            if picture:
                pages[f"methods/{page}.svg"] = picture
            pages[f"methods/{page}.md"] = _page(method, kind)
            use = method["use"][0]
            lines.append(f"| [{method['title']}]({page}.md) | {use} |")
        lines.append("")
    return {"methods/index.md": "\n".join(lines), **pages}


def _page(method, kind):
    where = " ".join([_SYMBOLS[kind], method.get("where", "")]).strip()
    lines = [
        f"# {method['title']}",
        "",
        *_listed("Use it when", method["use"]),
        *_listed("Do not use it when", method["avoid"]),
        *("```python", code_of(method, kind), "```", ""),
        *("## Formula", "", formula(*method["formula"]), "", where, ""),
        *_about_picture(method, kind),
        *("## Measured effect", ""),
    ]
    if "effect" in method:
        lines += [method["effect"], ""]
    elif kind == "calibrators":
        columns, rows = method.get("columns"), method.get("rows")
        lines += effects_of_calibrator(columns, rows)
    else:
        beside = method.get("beside", "cross entropy")
        lines += effects_of_loss(method["runs"], beside)
    cost = costs(method.get("cost", []), method.get("fits"))
    price = method.get("price", "Not measured.")
    lines += ["## Cost", "", *(cost or [price, ""])]
    classes = [public_things()[n][1] for n in method["names"] if n[0].isupper()]
    differs = [*_sections(classes, "Differs"), *method.get("differs", [])]
    if differs:
        lines += ["## Differences between paper and code", ""]
        lines += [line for text in differs for line in (text, "")]
    lines += ["## Reference", "", *_sections(classes, "Reference"), ""]
    links = ", ".join(link_to(name) for name in method["names"])
    lines += [f"All arguments: {links}.", ""]
    return "\n".join(lines)


def _listed(title, sentences):
    return [f"**{title}**", "", *(f"- {text}" for text in sentences), ""]


def _sections(classes, title):
    found = [parts(cls).get(title, "") for cls in classes]
    return [escaped(" ".join(text.split())) for text in found if text]


def _picture(method, kind):
    if "no_curve" in method:
        return None
    if method.get("ranking"):
        return curves.ranking()
    if method.get("targets"):
        return curves.targets()
    space = {"keras_calib": keras_calib}
    things = {
        name: eval(expression, space)
        for name, expression in method["curves"].items()
    }
    if kind == "calibrators":
        return curves.confidence_maps(things)
    if method.get("batch"):
        return curves.pulls_of_batch(things)
    return curves.pulls(things)


def _about_picture(method, kind):
    title, about = "Gradient", _ABOUT_PULL
    if kind == "calibrators":
        title, about = "Map of probabilities", _ABOUT_MAP
    elif method.get("targets"):
        title, about = "Targets", ""
    elif method.get("batch"):
        about = _ABOUT_BATCH
    if "no_curve" in method:
        return [f"## {title}", "", method["no_curve"], ""]
    text = f"{method.get('caption', '')} {about}".strip()
    return [
        *(f"## {title}", ""),
        f"![{title} of {method['title']}]({method['page']}.svg)",
        *("", text, ""),
    ]


_ABOUT_PULL = (
    "Above 0 a training step raises the logit of the true class, below 0 it "
    "lowers it. There are 10 classes, and the other logits are equal."
)
_ABOUT_BATCH = (
    "Forty equally sure predictions of one class of 10, of which 30 are right, "
    "move together. Above 0 a training step makes them surer, below 0 less "
    "sure. All curves cross 0 at the dotted line, where the confidence is the "
    "accuracy."
)
_ABOUT_MAP = (
    "Fitted to 6,000 made-up predictions of two classes that are "
    "overconfident, more so of the first class, and shifted."
)

"""The API reference: every public name, by what it is for."""

import importlib
import inspect

from docstrings import escaped, summary, text_of
from method_files import methods
from public_things import TASKS, address_of, public_things


def reference_pages():
    """Address and Markdown of each page, and of the page that lists them."""
    pages, index = {}, ["# API reference", "", *_ABOUT, ""]
    about = {m["names"][0]: m for found in methods().values() for m in found}
    for task, spaces in TASKS.items():
        index += [f"## {task}", ""]
        for space, title in spaces.items():
            things = _things(space)
            lines = [f"# {title}", "", *_contents(space), ""]
            lines += [*_summaries(things, ""), ""]
            index += [f"### [{title}]({space}.md): `keras_calib.{space}`", ""]
            index += [*_summaries(things, f"{space}.md"), ""]
            for name, thing in things.items():
                lines += [f"## `{name}` {{#{name}}}", ""]
                lines += [*_beside(name)]
                if name in about:
                    own, page = about[name]["title"], about[name]["page"]
                    lines.append(
                        f"About the method: [{own}](../methods/{page}.md)."
                    )
                text = text_of(name, thing, level=2, address=address_of(name))
                lines += ["", text, ""]
            pages[f"reference/{space}.md"] = "\n".join(lines) + "\n"
    return {"reference/index.md": "\n".join(index) + "\n", **pages}


_ABOUT = (
    "Names are given as you write them. What most scripts use is at the top of",
    "`keras_calib`; all of it is in a namespace too. `keras_calib.config` has",
    "the settings of the library.",
)


def link_to(name):
    """A link from a page in another folder."""
    return f"[`{name}`](../reference/{public_things()[name][0]}.md#{name})"


def _things(space):
    return {
        name: thing
        for name, (place, thing) in public_things().items()
        if place == space
    }


def _contents(space):
    """The table of contents of a namespace, which its docstring is."""
    module = importlib.import_module(f"keras_calib.{space}")
    text = inspect.cleandoc(module.__doc__ or "").partition("\nLives here:")[0]
    return escaped(text.strip()).splitlines()


def _beside(name):
    """Where the other form of a quantity is: the class, or the function."""
    things = public_things()
    key = name.replace("_", "").lower()
    others = [
        x for x in things if x != name and x.replace("_", "").lower() == key
    ]
    for other in others:
        kind = (
            "As a class"
            if inspect.isclass(things[other][1])
            else "As a function"
        )
        yield f"{kind}: {link_to(other)}."
        yield ""


def _summaries(things, page):
    """A row for each, a class beside the function of its quantity."""
    return [
        "| name | what it is |",
        "|---|---|",
        *(
            f"| [`{address_of(name)}`]({page}#{name}) | {summary(thing)} |"
            for name, thing in things.items()
        ),
    ]

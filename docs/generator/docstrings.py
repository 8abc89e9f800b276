"""Docstrings of public names as Markdown."""

import inspect
import re

_SECTION = re.compile(r"([A-Z][a-z]+):")
_ITEM = re.compile(
    r" {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*|`[^`]+`)(?: \(.*?\))?:(?: |$)(.*)"
)
_LISTS = ("Args", "Attributes", "Raises")
_DERIVATION = re.compile(r"docs/derivations\.md((?:,\s+'[^']+')+)")


def parts(thing):
    """Text by section, in order; what is before the first is under ""."""
    found, title = {"": []}, ""
    for line in inspect.cleandoc(thing.__doc__ or "").splitlines():
        head = _SECTION.fullmatch(line)
        if head:
            title = head[1]
            found[title] = []
        else:
            found[title].append(line)
    return {name: "\n".join(lines).strip("\n") for name, lines in found.items()}


def summary(thing):
    """The first line, for a cell of a table."""
    return escaped(inspect.cleandoc(thing.__doc__ or "").partition("\n")[0])


def text_of(name, thing, *, level, address=None):
    """Signature, text and sections of a public name.

    Args:
        name: The name, after that of its class for methods.
        thing: Function or class.
        level: Of the headings above.
        address: As users write it, if that is another.
    """
    lines = ["```python", _signature(address or name, thing), "```", ""]
    for title, text in parts(thing).items():
        if not text.strip():
            continue
        if title:
            lines += [f"**{title}**", ""]
        if title == "Example":
            lines += ["```pycon", text.strip(), "```", ""]
        elif title in _LISTS:
            lines += [*_items(text), ""]
        else:
            text = escaped(inspect.cleandoc("\n" + text))
            lines += [_DERIVATION.sub(_links, text), ""]
    if inspect.isclass(thing) and not issubclass(thing, tuple):
        for method, function in members(thing):
            lines += [
                f"{'#' * (level + 1)} `{name}.{method}` {{#{name}.{method}}}"
            ]
            lines += ["", text_of(method, function, level=level + 1)]
    return "\n".join(lines)


def members(cls):
    """Public methods and properties that a class defines and explains."""
    for name, value in vars(cls).items():
        function = getattr(value, "__func__", value)
        if isinstance(value, property):
            function = value.fget
        known = inspect.isfunction(function) and function.__doc__
        if known and not name.startswith("_"):
            yield name, function


def _signature(name, thing):
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    text = f"{name}({', '.join(map(str, bare))})"
    if len(text) <= 88:
        return text
    rows = "".join(f"    {parameter},\n" for parameter in bare)
    return f"{name}(\n{rows})"


def _items(text):
    """A list of what an `Args:` section explains."""
    lines, rest = [], []
    for line in text.splitlines():
        item = _ITEM.fullmatch(line)
        if item:
            lines.append(f"- `{item[1].strip('`')}`: {escaped(item[2])}")
        elif lines:
            lines[-1] += " " + escaped(line.strip())
        else:
            rest.append(escaped(line.strip()))
    return [*rest, *lines]


def _links(match):
    """Links to the sections of the page of derivations."""
    titles = re.findall(r"'([^']+)'", match[1])
    return ", ".join(
        f"[{title}](../derivations.md#{title.lower().replace(' ', '-')})"
        for title in titles
    )


def escaped(text):
    """What Markdown would take for HTML or emphasis, as it was written."""
    pieces = re.split(r"(`[^`]*`|https?://\S+)", text)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"<(?=[A-Za-z/!])", "&lt;", pieces[i])
        pieces[i] = re.sub(r"(?<!\w)([*_])(?=\S)", r"\\\1", pieces[i])
        pieces[i] = re.sub(r"\|", "&#124;", pieces[i])
    for i in range(1, len(pieces), 2):
        if pieces[i].startswith("http"):
            address = pieces[i].rstrip(".,;)")
            pieces[i] = f"<{address}>{pieces[i][len(address) :]}"
    return "".join(pieces)

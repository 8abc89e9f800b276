"""Guides: scripts of `examples`, their text between the code."""

import ast
import re

from locations import ROOT

_PAGE = re.compile(r"`docs/([a-z_]+\.md)`")


def guide_pages():
    """Address to Markdown of each script that begins with a title."""
    return {
        f"guides/{script.stem}.md": _page(script)
        for script in sorted((ROOT / "examples").glob("*.py"))
        if script.read_text(encoding="utf-8").startswith('"""\n# ')
    }


def _page(script):
    """Texts that stand alone in the module, and the code between them."""
    source = script.read_text(encoding="utf-8")
    lines = source.splitlines()
    parts, begin = [], 0
    for node in ast.parse(source).body:
        if not _is_text(node):
            continue
        parts += _code(lines[begin : node.lineno - 1])
        parts.append(_PAGE.sub(r"[\1](../\1)", node.value.value.strip()))
        begin = node.end_lineno
    parts += _code(lines[begin:])
    return "\n\n".join(parts) + "\n"


def _is_text(node):
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _code(lines):
    code = "\n".join(lines).strip()
    return [f"```python\n{code}\n```"] if code else []

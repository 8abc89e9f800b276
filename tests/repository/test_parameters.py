"""Functions have few parameters: what takes more is listed, and gets fewer."""

import ast
from collections.abc import Iterator

from repository_files import MODULES, parse

MOST = 8
# Functions with more, and how many they have. A line may go or get smaller:
# options that several functions share are a TypedDict, as `ArrayOptions`.
MORE = {
    "by_group": 13,
    "plan": 10,
}


def functions(node: ast.AST, within: str = "") -> Iterator[tuple[str, int]]:
    """Functions by their qualified name, and how many parameters they have."""
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = f"{within}{child.name}."
        if isinstance(child, ast.FunctionDef):
            given = child.args
            named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            own = named[:1] and named[0].arg in ("self", "cls")
            yield name[:-1], len(named) - bool(own)
        yield from functions(child, name)


def test_no_more_functions_have_many_parameters():
    found: dict[str, int] = {}
    for path in MODULES:
        for name, count in functions(parse(path)):
            if count > MOST:
                found[name] = max(count, found.get(name, 0))
    assert found == MORE


def test_parameters_are_counted_without_the_object():
    code = "class A:\n    def f(self, a, /, b, *c, d=1, **e):\n        pass\n"
    assert list(functions(ast.parse(code))) == [("A.f", 3)]

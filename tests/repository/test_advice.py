"""What errors advise is there: their names, and the arguments they show."""

import ast
import functools
import inspect
import re
from typing import Any

import keras
import numpy as np
from public_names import PUBLIC
from repository_files import MODULES, parse

import keras_calib as kc

# What words an error, and what passes its words on.
WORDS = {
    *("RuntimeError", "TypeError", "ValueError", "bad_value", "check"),
    *("invalid", "type_error", "value_error", "warn", "wrong_file"),
}
# Where what is not of this package is found; and what is of TensorFlow.
SPACES = (keras, keras.layers, keras.losses)
FOREIGN = {"MirroredStrategy"}


def texts():
    """Texts of errors, with the file and the line; `{}` for what is put in."""
    for path in MODULES:
        for node in parse(path).body:
            # Texts that several errors share have a name.
            if isinstance(node, ast.Assign):
                yield f"{path.name}:{node.lineno}", _text(node.value)
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func
            name = getattr(called, "attr", getattr(called, "id", None))
            if name in WORDS:
                for given in node.args:
                    yield f"{path.name}:{node.lineno}", _text(given)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "{}"


@functools.cache
def advised():
    """Code between backticks that parses: `MultiLabel(part)`, `mode="x"`."""
    found = []
    for place, text in texts():
        for code in re.findall(r"`([^`]+)`", text):
            if "{" in code:
                continue
            # What is an argument is one of a call.
            is_option = re.fullmatch(r"\w+=.*", code)
            try:
                tree = ast.parse(f"_({code})" if is_option else code)
                found.append((place, tree))
            except SyntaxError:
                continue
    return found


def known(name: str) -> Any:
    """What a public name stands for; None if there is none."""
    first, *rest = name.split(".")
    thing = {"keras": keras, "keras_calib": kc, "np": np, **PUBLIC}.get(first)
    for space in SPACES:
        thing = getattr(space, first, None) if thing is None else thing
    for part in rest:
        thing = getattr(thing, part, None)
    return thing


def parameters(thing: Any) -> set[str] | None:
    """Names of its parameters; None if it takes any."""
    found = inspect.signature(thing).parameters.values()
    if any(x.kind is x.VAR_KEYWORD for x in found):
        return None
    return {x.name for x in found}


def named():
    """Classes and functions that errors name, with the keywords given."""
    for place, tree in advised():
        for node in ast.walk(tree):
            keywords = set()
            if isinstance(node, ast.Call):
                keywords = {x.arg for x in node.keywords}
                node = node.func
            elif not isinstance(node, ast.Expr):
                continue
            name = ast.unparse(node)
            of_classes = r"[A-Z][a-z]+[A-Z]\w*(\.\w+)?|(keras|np)(\.\w+)+"
            if re.fullmatch(of_classes, name) and name not in FOREIGN:
                yield place, name, keywords


def test_errors_advise_what_there_is():
    unknown = []
    for place, name, keywords in named():
        thing = known(name)
        takes = parameters(thing) if keywords and thing else None
        if thing is None or not keywords <= (takes or keywords):
            unknown.append((place, name, keywords))
    assert not unknown


def test_options_that_errors_advise_are_those_of_something():
    options = set()
    for path in MODULES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.arguments):
                every = [*node.posonlyargs, *node.args, *node.kwonlyargs]
                options |= {x.arg for x in every}
            elif isinstance(node, ast.AnnAssign):
                options.add(ast.unparse(node.target))
    unknown = {
        (place, x.arg)
        for place, tree in advised()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_"
        for x in node.keywords
        if x.arg not in options
    }
    assert not unknown


def test_what_is_advised_is_found_in_texts():
    code = 'raise value_error(f"`{name}` needs `ECE(bins=3)` " "or `a.b`")'
    (call,) = (x for x in ast.walk(ast.parse(code)) if isinstance(x, ast.Call))
    assert _text(call.args[0]) == "`{}` needs `ECE(bins=3)` or `a.b`"
    assert len([*named()]) > 50

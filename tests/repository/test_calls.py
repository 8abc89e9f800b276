"""Benchmarks and examples, most of which no test runs, call what there is."""

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paths import ROOT
from repository_files import parse

FILES = sorted(
    path
    for folder in ("benchmarks", "examples", "docs")
    for path in (ROOT / folder).rglob("*.py")
)
NEEDS_BEAM = re.compile(r"keras_calib\.beam")


def signature_of_tree(node: ast.FunctionDef) -> inspect.Signature:
    """The signature of a function, of its code alone."""
    found, kinds = node.args, inspect.Parameter
    positional = [*found.posonlyargs, *found.args]
    needed = len(positional) - len(found.defaults)
    parameters = []
    for i, one in enumerate(positional):
        alone = i < len(found.posonlyargs)
        kind = kinds.POSITIONAL_ONLY if alone else kinds.POSITIONAL_OR_KEYWORD
        default = kinds.empty if i < needed else None
        parameters.append(kinds(one.arg, kind, default=default))
    if found.vararg:
        name = found.vararg.arg
        parameters.append(kinds(name, kinds.VAR_POSITIONAL))
    for one, default in zip(found.kwonlyargs, found.kw_defaults, strict=True):
        value = kinds.empty if default is None else None
        parameters.append(kinds(one.arg, kinds.KEYWORD_ONLY, default=value))
    if found.kwarg:
        parameters.append(kinds(found.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(parameters)


@functools.cache
def functions_of(path: Path) -> dict[str, inspect.Signature]:
    """Functions at the top of a file, without decorators that change them."""
    return {
        node.name: signature_of_tree(node)
        for node in parse(path).body
        if isinstance(node, ast.FunctionDef) and not node.decorator_list
    }


def bound_names(path: Path) -> dict[str, Any]:
    """What names of a file stand for: modules, objects and signatures."""
    found: dict[str, Any] = dict(functions_of(path))
    tree = parse(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "keras_calib":
                    name = alias.name if alias.asname else "keras_calib"
                    own = alias.asname or "keras_calib"
                    found[own] = importlib.import_module(name)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            beside = path.with_name(f"{module}.py")
            for alias in node.names:
                own = alias.asname or alias.name
                if module.split(".")[0] == "keras_calib":
                    found[own] = attribute(module, alias.name)
                elif beside in FILES and alias.name in functions_of(beside):
                    found[own] = functions_of(beside)[alias.name]
    for node in ast.walk(tree):
        # A name that is also a variable may be anything.
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.pop(node.id, None)
        elif isinstance(node, ast.arg):
            found.pop(node.arg, None)
    return found


def attribute(module: str, name: str) -> Any:
    """An attribute of a module, or a module inside of it."""
    found = importlib.import_module(module)
    if not hasattr(found, name):
        return importlib.import_module(f"{module}.{name}")
    return getattr(found, name)


def resolved(node: ast.expr, names: dict[str, Any]) -> Any:
    """What a name, or an attribute of a module, stands for; None if unknown."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        holder = resolved(node.value, names)
        if inspect.ismodule(holder):
            return getattr(holder, node.attr)
    return None


def signature_of(target: Any) -> inspect.Signature | None:
    if isinstance(target, inspect.Signature):
        return target
    return inspect.signature(target) if callable(target) else None


def wrong_calls(path: Path) -> Iterator[str]:
    names = bound_names(path)
    for node in ast.walk(parse(path)):
        if not isinstance(node, ast.Call):
            continue
        signature = signature_of(resolved(node.func, names))
        if signature is None:
            continue
        starred = any(isinstance(x, ast.Starred) for x in node.args)
        known = [x for x in node.args if not isinstance(x, ast.Starred)]
        keywords = {x.arg: None for x in node.keywords if x.arg is not None}
        is_open = starred or any(x.arg is None for x in node.keywords)
        bind: Callable = signature.bind_partial if is_open else signature.bind
        try:
            # Where the starred ones stand is not known.
            bind(*([] if starred else known), **keywords)
        except TypeError as error:
            yield f"{path.name}:{node.lineno}: {error}"


def test_calls_of_the_library_and_of_each_other_fit():
    files = [x for x in FILES if not NEEDS_BEAM.search(x.read_text())]
    assert len(files) > 100
    assert not [told for path in files for told in wrong_calls(path)]


def test_a_wrong_call_is_found(tmp_path):
    path = tmp_path / "calls.py"
    path.write_text(
        "import keras_calib as kc\n"
        "from keras_calib.numerics.softmax import sigmoid\n"
        "def own(shape, *, seed=0): ...\n"
        "own()\nown((1,), seed=1)\nown(*x, sed=2)\nsigmoid(1, 2)\n"
        "kc.ECE(num_bins=3)\nkc.ACLS(margn=1)\nkc.ACLS(**kwargs)\n"
    )
    lines = [x.split(":")[1] for x in wrong_calls(path)]
    assert lines == ["4", "6", "7"]

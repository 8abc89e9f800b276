"""The package's files as the rules of the repository read them."""

import ast
import dataclasses
import functools
import inspect
import os
import re
import subprocess
import typing
from collections.abc import Iterator
from pathlib import Path

import public_names
from paths import ROOT

PACKAGE = ROOT / "keras_calib"
MODULES = sorted(PACKAGE.rglob("*.py"))
PUBLIC = list(public_names.PUBLIC.values())


def module_name(path: Path) -> str:
    """Name as in an import statement."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(name: str) -> str | None:
    """Package or module of keras_calib; None for the export list."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else None


ROOM_OF = {path: room(module_name(path)) for path in MODULES}
NAMES = {module_name(path) for path in MODULES}


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@functools.cache
def parse(path: Path) -> ast.Module:
    """The tree of a file, which many rules read and none changes."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def imports_of(path: Path) -> list[tuple[str, bool]]:
    """Each module that a file imports, and whether a function does."""
    return list(imports(parse(path)))


def imports(tree: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Each imported module, and whether a function imports it."""
    holders = (ast.stmt, ast.excepthandler, ast.match_case)
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, holders):
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, inside
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the floor"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in NAMES else node.module, inside
                late = node.module == "keras_calib.backend.late"
                if late and alias.name.startswith("tensorflow"):
                    # Imported when it is first used.
                    yield alias.name, True
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from imports(node, inside or function)


def defined_names(tree: ast.Module) -> set[str]:
    """Public functions, classes and constants of a module."""
    names = set()
    for node in tree.body:
        made = getattr(node, "value", None)
        if made and ast.unparse(made).startswith("keras_module("):
            # An import by another name.
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = getattr(node, "targets", None) or [node.target]
            for target in targets:
                names |= {
                    n.id for n in ast.walk(target) if isinstance(n, ast.Name)
                }
    return {name for name in names if not name.startswith("_")}


def export_list(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__"
            for target in node.targets
        ):
            return ast.literal_eval(node.value)
    return None


def sections(thing) -> dict[str, str]:
    """Docstring by section; the text before the first is under ""."""
    found, title = {"": ""}, ""
    for line in inspect.cleandoc(thing.__doc__ or "").splitlines():
        head = re.fullmatch(r"([A-Z][a-z]+):", line)
        if head:
            title = head[1]
            assert title not in found, f"two sections {title}"
            found[title] = ""
        else:
            found[title] += line + "\n"
    return found


def documented(section: str) -> dict[str, str]:
    """Text by argument of an `Args:` section."""
    name = r"\*{0,2}\w+"
    item = rf"^ {{4}}({name}(?:, {name})*):"
    parts = re.split(item, section, flags=re.MULTILINE)
    found = zip(parts[1::2], parts[2::2], strict=True)
    return {name: text for names, text in found for name in names.split(", ")}


def signature_names(thing) -> set[str]:
    """Names of the parameters themselves."""
    stars = ("", "*", "**")
    return {s + x for x in inspect.signature(thing).parameters for s in stars}


def parameters(thing) -> list[str]:
    """Names as documented: keyword catch-alls keep their stars.

    Options of a TypedDict are documented one by one, or as a catch-all.
    """
    stars = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    found, told = [], {}
    if thing.__module__.startswith("keras_calib"):
        # Keras has docstrings of another form.
        told = documented(sections(thing).get("Args", ""))
    for name, parameter in inspect.signature(thing).parameters.items():
        starred = stars.get(parameter.kind, "") + name
        options = options_of(parameter.annotation)
        if not options or starred in told:
            found += [*(x for x in options if x in told), starred]
        else:
            found += [x for x in options if x in told or x not in _OF_LAYERS]
    return found


# Options that Keras takes, which need no words of ours.
_OF_LAYERS = "trainable", "dtype"


def options_of(annotation) -> list[str]:
    """Those of an `Unpack`ed TypedDict, else none."""
    if typing.get_origin(annotation) is not typing.Unpack:
        return []
    return [*typing.get_args(annotation)[0].__annotations__]


def fields_of(thing) -> list[str] | None:
    """What a result or a dict of options has; None for other things."""
    told = sections(thing)
    is_result = "Attributes" in told and "Args" not in told
    if dataclasses.is_dataclass(thing) and is_result:
        return [x.name for x in dataclasses.fields(thing) if x.compare]
    if isinstance(thing, type) and issubclass(thing, tuple):
        return list(thing._fields)
    return list(thing.__annotations__) if typing.is_typeddict(thing) else None


@functools.cache
def repository_files() -> list[Path]:
    """What is in the repository, or is about to be."""
    command = ("git", "ls-files", "-co", "--exclude-standard", "-z")
    try:
        listed = subprocess.run(
            command, cwd=ROOT, capture_output=True, check=True, text=True
        ).stdout
        return [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        files = []
        for folder, folders, names in os.walk(ROOT):
            folders[:] = [f for f in folders if not f.startswith(".")]
            files += [Path(folder, name) for name in names]
        return sorted(files)


@functools.cache
def text_files() -> list[Path]:
    return [
        path
        for path in repository_files()
        if path.is_file() and b"\0" not in path.read_bytes()
    ]

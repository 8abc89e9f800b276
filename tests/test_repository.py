"""The rules of the repository, read from its files."""

import ast
import configparser
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cases
import keras
import mutants
import pytest

import keras_calib

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "keras_calib"
MAX_LINES = 400

# A package imports from lower floors: those of one floor are apart.
FLOORS = {
    "version": 0,
    "backend": 0,
    "numerics": 1,
    "inputs": 2,
    "formulas": 3,
    "predictions": 3,
    "functional": 4,
    "calibrators": 4,
    "data": 4,
    "ensembles": 4,
    "losses": 4,
    "metrics": 4,
    "analysis": 5,
    "beam": 5,
    "selection": 5,
    "training": 5,
    "exporting": 6,
    "plots": 6,
    "monitoring": 7,
    "reporting": 7,
    "__main__": 8,
}
# What users import from.
NAMESPACES = (
    "analysis",
    "calibrators",
    "data",
    "ensembles",
    "exporting",
    "functional",
    "losses",
    "metrics",
    "monitoring",
    "plots",
    "reporting",
    "selection",
    "training",
)
# Also at the top of the package: its names, its types.
MOST_ENTRIES = 24

# At the top of a module: the standard library and these.
EVERYWHERE = {"keras", "keras_calib", "numpy", "scipy", "threadpoolctl"}
# A room that only those enter who have installed what it is for.
AT_TOP_ALSO = {"beam": {"apache_beam"}}
# Inside functions also these, in the rooms named.
INSIDE_FUNCTIONS = {
    "ai_edge_litert": {"exporting"},
    "apache_beam": {"beam"},
    "jax": {"backend", "training"},
    "jinja2": {"reporting"},
    "matplotlib": {"plots", "reporting"},
    "onnxruntime": {"exporting"},
    "pyarrow": {"reporting"},
    "tensorflow": {
        "backend",
        "data",
        "ensembles",
        "exporting",
        "monitoring",
        "training",
    },
    "tensorflow_datasets": {"backend", "data"},
    "tensorflow_probability": set(),
    "tf_keras": set(),
    "tf2onnx": {"exporting"},
    "torch": {"backend", "training"},
}
# The one room for what Keras does not promise.
KERAS_INTERNALS = PACKAGE / "backend" / "keras_internals.py"
VAGUE_NAMES = {"common", "helpers", "misc", "tools", "util", "utils"}

# Put together here, so that this file does not contain what it looks for.
WORKING_PAPERS = re.compile(
    "|".join(
        (
            r"\b(HOUSE|METHODS|PLATFORM|PEERS|STYLE|SCORE_HISTOGRAM)" + r"\.md",
            r"\." + r"library\b",
            r"(?<!\w)/wo" + r"rk/[\w.]",
        )
    )
)

MODULES = sorted(PACKAGE.rglob("*.py"))
PUBLIC = [
    getattr(keras_calib, name)
    for name in keras_calib.__all__
    if not name.startswith("__")
]


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


def each_module(*, with_export_list: bool = True):
    paths = [p for p in MODULES if with_export_list or ROOM_OF[p]]
    return pytest.mark.parametrize(
        "path", paths, ids=[str(p.relative_to(PACKAGE)) for p in paths]
    )


each_public_name = pytest.mark.parametrize(
    "thing", PUBLIC, ids=[thing.__name__ for thing in PUBLIC]
)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(tree: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Each imported module, and whether a function imports it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, inside
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the floor"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in NAMES else node.module, inside
                if node.module == "keras_calib.backend.optional":
                    # Imported when it is first used.
                    yield alias.name, True
        function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        yield from imports(node, inside or isinstance(node, function))


def defined_names(tree: ast.Module) -> set[str]:
    """Public functions, classes and constants of a module."""
    names = set()
    for node in tree.body:
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
    parts = re.split(r"^ {4}(\*{0,2}\w+):", section, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def parameters(thing) -> list[str]:
    """Names as documented: keyword catch-alls keep their stars."""
    stars = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    return [
        stars.get(parameter.kind, "") + name
        for name, parameter in inspect.signature(thing).parameters.items()
    ]


def is_named_tuple(thing) -> bool:
    return isinstance(thing, type) and issubclass(thing, tuple)


def text_files() -> list[Path]:
    """What is in the repository, or is about to be."""
    command = ("git", "ls-files", "-co", "--exclude-standard", "-z")
    try:
        listed = subprocess.run(
            command, cwd=ROOT, capture_output=True, check=True, text=True
        ).stdout
        files = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        files = []
        for folder, folders, names in os.walk(ROOT):
            folders[:] = [f for f in folders if not f.startswith(".")]
            files += [Path(folder, name) for name in names]
    return [
        path
        for path in files
        if path.is_file() and b"\0" not in path.read_bytes()
    ]


# Floors and imports.


def test_every_package_has_a_floor():
    assert set(FLOORS) == set(ROOM_OF.values()) - {None}
    entries = {path.relative_to(PACKAGE).parts[0] for path in MODULES}
    assert len({*entries, "py.typed"}) <= MOST_ENTRIES


def test_every_package_says_what_lives_there():
    for path in MODULES:
        if path.name == "__init__.py" and ROOM_OF[path]:
            told = ast.get_docstring(parse(path)).replace("\n", " ")
            assert "Not here: " in told, path
            nested = path.parent.parent != PACKAGE
            assert nested or "Floor: " in told, path


@each_module(with_export_list=False)
def test_module_imports_from_lower_floors(path):
    own = ROOM_OF[path]
    for name, _ in imports(parse(path)):
        if name.split(".")[0] != "keras_calib":
            continue
        other = room(name)
        assert other is not None, "the export list is for users"
        below = FLOORS[other] < FLOORS[own]
        assert below or other == own, f"{own} imports {name}"


@each_module()
def test_module_imports_at_its_top_only_what_is_always_installed(path):
    tops = {
        name.split(".")[0]
        for name, inside in imports(parse(path))
        if not inside
    }
    also = AT_TOP_ALSO.get(ROOM_OF[path], set())
    assert tops - sys.stdlib_module_names <= EVERYWHERE | also


@pytest.mark.parametrize("name", AT_TOP_ALSO)
def test_no_module_imports_a_room_of_extras(name):
    for path in MODULES:
        if ROOM_OF[path] != name:
            assert name not in {room(m) for m, _ in imports(parse(path))}


@each_module()
def test_functions_import_extras_only_in_their_rooms(path):
    for name, _ in imports(parse(path)):
        package = name.split(".")[0]
        if package not in EVERYWHERE | sys.stdlib_module_names:
            rooms = INSIDE_FUNCTIONS.get(package, set())
            assert ROOM_OF[path] in rooms, f"imports {name}"


def private_names_of_keras() -> set[str]:
    """What its objects have beside their public interface."""
    things = [
        keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]),
        keras.callbacks.Callback(),
        keras.callbacks.CallbackList(),
        keras.losses.MeanSquaredError(),
        keras.metrics.MeanSquaredError(),
        keras.optimizers.SGD(),
        keras.utils.PyDataset(),
        keras.Variable(0.0),
    ]
    things[0].compile("sgd", loss="mse", metrics=["mae"])
    names = {name for thing in things for name in dir(thing)}
    names |= {"_direction", "_keras_mask", "_keras_history", "_initial_epoch"}
    return {n for n in names if re.match(r"_(?!_)", n)}


def private_uses(tree: ast.Module, private: set[str]) -> Iterator[str]:
    """Where a module takes what is private to Keras.

    Private names of its own objects are those that it assigns to `self`, and
    those that Keras has not.
    """
    nodes = list(ast.walk(tree))
    own = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    own |= {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
    # Of a metric of this library.
    fine = {"self.metric._value"}
    for name, _ in imports(tree):
        if name.startswith("keras.src"):
            yield name
    for node in nodes:
        if isinstance(node, ast.Attribute):
            of_self = isinstance(node.value, ast.Name)
            of_self = of_self and node.value.id == "self"
            text = ast.unparse(node)
            is_own = text in fine or (of_self and node.attr in own)
            if node.attr in private and not is_own:
                yield f"line {node.lineno}: {text}"
        if isinstance(node, ast.Constant) and node.value == "__class__":
            yield f"line {node.lineno}: another class for an object"
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("delattr", "getattr", "hasattr", "setattr")
            and isinstance(node.args[1], ast.Constant)
            and node.args[1].value in private
        ):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_private_parts_of_keras_are_used_in_one_room():
    private = private_names_of_keras()
    seen = "import keras.src.ops\nfrom keras.src import ops\n"
    seen += "model._loss_tracker\nself._tracker\ngetattr(x, '_value')\n"
    seen += "object.__setattr__(x, '__class__', y)\n"
    seen += "model._initial_epoch = 1\nx._direction = 'up'\nx._keras_mask\n"
    assert len(list(private_uses(ast.parse(seen), private))) == 9
    fine = "self._fitted = 1\nself._dtype = 2\nself._dtype\nx._replace(a=1)"
    assert not list(private_uses(ast.parse(fine), private))
    found = {
        str(path.relative_to(PACKAGE)): uses
        for path in MODULES
        if path != KERAS_INTERNALS
        and (uses := list(private_uses(parse(path), private)))
    }
    assert not found


def test_each_private_part_of_keras_has_its_reason_and_its_version():
    for node in parse(KERAS_INTERNALS).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            told = ast.get_docstring(node)
            used = list(private_uses(node, private_names_of_keras()))
            used += re.findall(r'_part\([\w.]+, "(\w+)"', ast.unparse(node))
            assert not used or re.search(
                r"Seen in Keras 3\.\d+:|See `\w+`", told
            ), node.name


@pytest.mark.portable
def test_import_loads_no_framework_but_the_backend():
    code = (
        "import sys, keras; before = set(sys.modules); import keras_calib; "
        "print(*{m.split('.')[0] for m in set(sys.modules) - before}); "
        "print(*{m.split('.')[0] for m in sys.modules})"
    )
    run = subprocess.run(
        (sys.executable, "-c", code),
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": keras.backend.backend()},
        capture_output=True,
        check=True,
        text=True,
    )
    new, loaded = map(set, map(str.split, run.stdout.splitlines()[-2:]))
    assert "keras_calib" in new
    assert not new & {"absl", *INSIDE_FUNCTIONS}
    if keras.backend.backend() != "tensorflow":
        assert "tensorflow" not in loaded


@pytest.mark.portable
def test_an_absent_extra_is_named_with_what_installs_it():
    from keras_calib.backend import optional

    absent = type(optional.tensorflow)("no_such_package", "tfds")
    with pytest.raises(ImportError, match=r"pip install 'keras-calib\[tfds\]'"):
        _ = absent.anything
    assert not hasattr(absent, "__wrapped__")


# Files.


@each_module()
def test_module_is_short_enough_to_read(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES


def test_the_lines_that_mutants_change_are_there():
    for name, mutant in mutants.MUTANTS.items():
        assert mutants.lines_of(mutant) == 1, name


@each_module()
def test_module_raises_instead_of_asserting(path):
    asserts = [
        node.lineno
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Assert)
    ]
    assert not asserts


@each_module(with_export_list=False)
def test_module_name_says_what_is_inside(path):
    assert not set(module_name(path).split(".")) & VAGUE_NAMES


@each_module(with_export_list=False)
def test_module_name_shadows_no_public_name(path):
    package, _, name = module_name(path).rpartition(".")
    exported = getattr(importlib.import_module(package), "__all__", ())
    assert name not in exported


def test_files_speak_of_the_library_alone():
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in text_files()
        for match in WORKING_PAPERS.finditer(
            path.read_text(encoding="utf-8", errors="replace")
        )
    ]
    assert not found


def test_text_files_include_this_one():
    assert Path(__file__).resolve() in text_files()


# Export lists.


@each_module()
def test_export_list_is_sorted(path):
    names = export_list(parse(path)) or []
    assert names == sorted(set(names))


@each_module()
def test_export_list_is_what_the_module_makes_public(path):
    tree = parse(path)
    if path == PACKAGE / "__init__.py":
        packages = [room(name) for name, _ in imports(tree)]
        public = {"__version__"}.union(
            *(
                getattr(keras_calib, package).__all__
                for package in packages
                if package != "version"
            )
        )
        assert set(keras_calib.__all__) == public
        assert len(keras_calib.__all__) == len(public)
        return
    if path.name == "__init__.py":
        public = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
    else:
        public = defined_names(tree)
    assert set(export_list(tree) or []) == public


@each_module()
def test_exported_names_exist(path):
    module = importlib.import_module(module_name(path))
    for name in export_list(parse(path)) or []:
        assert hasattr(module, name)


@pytest.mark.parametrize("package", NAMESPACES)
def test_what_a_subpackage_exports_is_importable_from_the_top(package):
    module = importlib.import_module(f"keras_calib.{package}")
    assert set(module.__all__) <= set(keras_calib.__all__)


# Docstrings of public names.


@each_public_name
def test_docstring_begins_with_one_short_sentence(thing):
    lines = inspect.cleandoc(thing.__doc__ or "").splitlines()
    assert lines and lines[0].endswith(".")
    assert len(lines[0]) <= 80
    assert len(lines) == 1 or not lines[1]


@each_public_name
def test_docstring_has_its_sections(thing):
    wanted = {"Args", "Reference"}
    if is_named_tuple(thing):
        wanted = {"Attributes"}
    elif inspect.isfunction(thing):
        wanted |= {"Returns"}
    found = sections(thing)
    for title in wanted:
        assert found.get(title, "").strip(), f"needs {title}:"


@each_public_name
def test_docstring_explains_every_argument(thing):
    if is_named_tuple(thing):
        explained = documented(sections(thing)["Attributes"])
        assert list(explained) == list(thing._fields)
        return
    explained = documented(sections(thing)["Args"])
    # An argument that a base class takes may be named with the others, or
    # explained as if it were an own one.
    passed_on = re.findall(r"`(\w+)`", explained.get("**kwargs", ""))
    names = [n for n in parameters(thing) if n not in passed_on]
    bases = thing.__mro__[1:-1] if isinstance(thing, type) else ()
    taken_by_bases = {n for base in bases for n in parameters(base)}
    assert [n for n in explained if n in names] == names
    assert set(explained) <= {*names, *taken_by_bases}


@each_public_name
def test_docstring_gives_shapes(thing):
    data = {"labels", "logits", "probs"}
    if inspect.isfunction(thing) and data & set(parameters(thing)):
        found = sections(thing)
        assert re.search(r"`\([^`]*\)`", found["Args"] + found["Returns"])


# Metadata of the distribution.


def requirements(text: str) -> set[str]:
    return {
        re.match(r"[\w.-]+", line.strip())[0]
        for line in text.splitlines()
        if line.strip()
    }


@pytest.fixture(scope="module")
def metadata():
    parser = configparser.ConfigParser()
    assert parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def test_python_requirement_is_3_11(metadata):
    assert metadata["options"]["python_requires"] == ">=3.11"


def test_only_small_packages_are_required_beside_keras(metadata):
    required = requirements(metadata["options"]["install_requires"])
    assert required == {"keras", "numpy", "scipy", "threadpoolctl"}


@pytest.mark.parametrize(
    "extra",
    [
        "dev",
        "examples",
        "litert",
        "onnx",
        "report",
        "serving",
        "tensorflow",
        "tfds",
        "tfp",
    ],
)
def test_extra_can_be_installed(metadata, extra):
    assert requirements(metadata["options.extras_require"][extra])


def test_the_extra_of_the_framework_brings_nothing_that_is_not_used(metadata):
    extras = metadata["options.extras_require"]
    assert requirements(extras["tensorflow"]) == {"tensorflow"}
    nowhere = {name for name, rooms in INSIDE_FUNCTIONS.items() if not rooms}
    imported = {n for path in MODULES for n, _ in imports(parse(path))}
    assert not nowhere & {name.split(".")[0] for name in imported}
    assert {name.replace("_", "-") for name in nowhere} <= requirements(
        extras["tfp"]
    )


def test_wheel_ships_the_type_marker(metadata):
    shipped = metadata["options.package_data"]["keras_calib"].split()
    assert "py.typed" in shipped
    assert (PACKAGE / "py.typed").is_file()


def test_every_exported_class_has_a_case_for_the_laws():
    bases = (
        keras.losses.Loss,
        keras.metrics.Metric,
        keras_calib.Calibrator,
    )
    exported = {
        cls
        for cls in map(vars(keras_calib).get, keras_calib.__all__)
        if isinstance(cls, type) and issubclass(cls, bases)
    }
    listed = cases.LOSSES + cases.METRICS + cases.CALIBRATORS
    covered = {case.cls for case in listed} | {*cases.OTHER_METRICS}
    assert exported == covered | set(cases.ABSTRACT)

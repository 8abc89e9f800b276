"""Packages stand on floors, import downwards, and list what is public."""

import ast
import functools
import importlib
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import keras
import pytest
from paths import ROOT
from public_names import LATE_NAMESPACES, NAMESPACES
from repository_files import (
    MODULES,
    PACKAGE,
    ROOM_OF,
    defined_names,
    export_list,
    imports,
    imports_of,
    module_name,
    parse,
    relative,
    room,
)

# A package imports from lower floors: those of one floor are apart.
FLOORS = {
    "version": 0,
    "backend": 1,
    "numerics": 2,
    "inputs": 3,
    "formulas": 4,
    "predictions": 4,
    "data": 5,
    "ensembles": 5,
    "functional": 5,
    "losses": 5,
    "metrics": 5,
    "text": 5,
    "beam": 6,
    "calibrators": 6,
    "training": 6,
    "selection": 7,
    "sklearn": 7,
    "labels": 8,
    "plots": 8,
    "detection": 9,
    "monitoring": 9,
    "exporting": 10,
    "reporting": 11,
    "__main__": 12,
}
# Subjects: what knows no more than classes imports none of them.
WINGS = {"text", "labels", "detection"}
MAY_IMPORT_WINGS = {"exporting", "reporting"}
OF_A_WING = r"detection|multi_label|label_|token|sequence"
# What has a field `confidence` or `correct` and is no row, with what it is.
OTHER_CONFIDENCES = {
    "formulas/binned_intervals.py:_Bins": "means of bins",
    "formulas/bins.py:BinSums": "sums of bins",
    "functional/hypothesis_tests.py:DrawnLabels": "labels to be drawn",
    "metrics/states/histogram.py:Cells": "sums of cells",
    "predictions/roles.py:FileOptions": "names of columns",
    "reporting/evaluation.py:Mistake": "an answer that is shown",
    "reporting/groups.py:GroupRow": "a row of a table",
    "selection/choice.py:Choice": "thresholds",
}
# Also at the top of the package: its names, its types.
MOST_ENTRIES = 26

# At the top of a module: the standard library and these.
EVERYWHERE = {"keras", "keras_calib", "numpy", "scipy", "threadpoolctl"}
# A room that only those enter who have installed what it is for.
NEEDS_BEAM = {PACKAGE / "beam.py"}
AT_TOP_ALSO = {"beam": {"apache_beam"}, "sklearn": {"sklearn"}}
# Inside functions also these, in the rooms named.
INSIDE_FUNCTIONS = {
    "ai_edge_litert": {"exporting"},
    "apache_beam": {"beam", "monitoring"},
    "jax": {"backend", "training"},
    "jinja2": {"reporting"},
    "matplotlib": {"plots", "reporting"},
    "onnxruntime": {"exporting"},
    "pandas": {"numerics"},
    "pyarrow": {"exporting", "reporting"},
    "sklearn": {"sklearn"},
    "tensorflow": {
        "backend",
        "calibrators",
        "data",
        "ensembles",
        "exporting",
        "monitoring",
        "training",
    },
    "tensorflow_datasets": {"backend", "data"},
    "tensorflow_probability": {"backend", "calibrators"},
    "tensorflow_text": {"exporting"},
    "tf_keras": set(),
    "tf2onnx": {"exporting"},
    "torch": {"backend", "training"},
}
# What packages use themselves.
LATE = {
    "TYPE_CHECKING",
    "late_names",
    "tell_functions",
}
# The one room for what Keras does not promise.
KERAS_INTERNALS = PACKAGE / "backend" / "keras_internals.py"


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


def test_modules_import_from_lower_floors():
    wrong = []
    for path, own in ROOM_OF.items():
        for name, _ in imports_of(path) if own else ():
            if name.split(".")[0] != "keras_calib":
                continue
            # The export list is for users.
            other = room(name)
            below = other and FLOORS[other] < FLOORS[own]
            if not below and other != own:
                wrong.append(f"{relative(path)} imports {name}")
    assert not wrong


def test_wings_are_imported_by_what_ships_and_shows_alone():
    found = {
        f"{relative(path)} imports {name}"
        for path, own in ROOM_OF.items()
        if own and own not in WINGS | MAY_IMPORT_WINGS
        for name, _ in imports_of(path)
        if room(name) in WINGS
    }
    assert not found


def test_a_subject_stands_in_its_wing():
    found = {
        relative(path)
        for path, own in ROOM_OF.items()
        if own not in WINGS | {"data"} and re.search(OF_A_WING, path.stem)
    }
    assert not found


def test_rows_above_the_door_are_outcomes():
    found = {
        f"{relative(path)}:{node.name}"
        for path, own in ROOM_OF.items()
        if own and FLOORS[own] > FLOORS["inputs"]
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.AnnAssign)
        and ast.unparse(part.target) in ("confidence", "correct")
    }
    assert found == set(OTHER_CONFIDENCES)


def test_modules_import_at_their_top_only_what_is_always_installed():
    wrong = []
    for path, own in ROOM_OF.items():
        found = imports_of(path)
        tops = {name.split(".")[0] for name, inside in found if not inside}
        allowed = EVERYWHERE | AT_TOP_ALSO.get(own, set())
        extra = tops - sys.stdlib_module_names - allowed
        wrong += [f"{relative(path)} imports {name}" for name in extra]
        for name, _ in found:
            # The export list is for users.
            of_extras = room(name) in AT_TOP_ALSO and own != room(name)
            if own and of_extras and name.startswith("keras_calib."):
                wrong.append(f"{relative(path)} imports {name}")
    assert not wrong


def test_functions_import_extras_only_in_their_rooms():
    wrong = [
        f"{relative(path)} imports {name}"
        for path, own in ROOM_OF.items()
        for name, _ in imports_of(path)
        if (package := name.split(".")[0])
        not in EVERYWHERE | sys.stdlib_module_names
        and own not in INSIDE_FUNCTIONS.get(package, set())
    ]
    assert not wrong


@functools.cache
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
        if isinstance(node, ast.Attribute) and node.attr in private:
            of_self = isinstance(node.value, ast.Name)
            of_self = of_self and node.value.id == "self"
            text = ast.unparse(node)
            is_own = text in fine or (of_self and node.attr in own)
            if not is_own:
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


@pytest.mark.slow
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
    assert not new & {"absl", "sklearn", *INSIDE_FUNCTIONS}
    if keras.backend.backend() != "tensorflow":
        assert "tensorflow" not in loaded


def test_an_absent_extra_is_named_with_what_installs_it():
    from keras_calib.backend import late

    absent = type(late.tensorflow)("no_such_package", "tfds")
    with pytest.raises(ImportError, match=r"pip install 'keras-calib\[tfds\]'"):
        _ = absent.anything
    assert not hasattr(absent, "__wrapped__")


def test_namespaces_have_export_lists_that_are_sorted_and_true():
    late = {PACKAGE / f"{name}.py" for name in LATE_NAMESPACES}
    spaces = {PACKAGE / name / "__init__.py" for name in ("", *NAMESPACES)}
    for path in MODULES:
        tree = parse(path)
        listed = export_list(tree)
        # A module's names without an underscore are for other modules.
        is_space = path in spaces | late
        assert (listed is not None) == is_space, path
        names = listed or []
        assert names == sorted(set(names)), path
        if path in NEEDS_BEAM and not find_spec("apache_beam"):
            continue
        module = importlib.import_module(module_name(path))
        assert not [n for n in names if not hasattr(module, n)], path
        if path == PACKAGE / "__init__.py" or not is_space:
            continue
        if path not in late:
            # What is imported late is imported for type checkers all the same.
            bodies = [
                node.body for node in tree.body if isinstance(node, ast.If)
            ]
            public = {
                alias.asname or alias.name
                for node in itertools.chain(tree.body, *bodies)
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
                if alias.name not in LATE
            }
        else:
            public = defined_names(tree)
        assert set(names) == public, path

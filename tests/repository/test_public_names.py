"""Names can be surveyed: where each stands, and what it is called."""

import ast
import inspect
import re
from collections import defaultdict

import keras
import pytest
from paths import ROOT
from public_names import HOMES, LATE_NAMESPACES, NAMESPACES, PUBLIC
from public_things import TASKS
from repository_files import PACKAGE, export_list, parse

import keras_calib

MOST_AT_THE_TOP = 110
# Of the top alone.
OWN = {"__version__", "config"}
# What no guide names, with the reason.
IN_NO_GUIDE: dict[str, str] = {}


def name_of_all_forms(name: str) -> str:
    return name.replace("_", "").lower()


def module_of(space: str) -> ast.Module:
    folder = PACKAGE / space / "__init__.py"
    return parse(folder if folder.exists() else PACKAGE / f"{space}.py")


def test_the_top_has_a_short_list():
    top = {*keras_calib.__all__}
    assert len(top) <= MOST_AT_THE_TOP
    assert top >= OWN and top - OWN <= {*PUBLIC}
    for name in top - OWN:
        assert getattr(keras_calib, name) is PUBLIC[name]
    shown = {*dir(keras_calib)}
    assert (
        top | {*NAMESPACES}
        <= shown
        <= top
        | {
            *NAMESPACES,
            *LATE_NAMESPACES,
        }
    )


def test_a_name_that_the_top_lacks_is_found_in_its_namespace():
    for name in ("mce", "match"):
        where = f"it is `keras_calib.{HOMES[name]}.{name}`"
        with pytest.raises(AttributeError, match=where):
            getattr(keras_calib, name)
    with pytest.raises(AttributeError, match="no attribute 'ec'$"):
        _ = keras_calib.ec


def test_every_name_stands_in_one_namespace_whose_docstring_lists_it():
    found = defaultdict(list)
    for space in (*NAMESPACES, *LATE_NAMESPACES):
        tree = module_of(space)
        told = ast.get_docstring(tree)
        for name in export_list(tree):
            found[name].append(space)
            assert space in LATE_NAMESPACES or f"`{name}`" in told, name
    assert not {k: x for k, x in found.items() if len(x) > 1}
    assert {*found} >= {*PUBLIC}


def test_names_that_differ_only_in_case_are_a_class_and_its_function():
    forms = defaultdict(list)
    for name in PUBLIC:
        forms[name_of_all_forms(name)].append(PUBLIC[name])
    pairs = [x for x in forms.values() if len(x) > 1]
    assert len(pairs) > 40
    kinds = keras.losses.Loss, keras.metrics.Metric
    for pair in pairs:
        classes = [x for x in pair if inspect.isclass(x)]
        assert len(pair) == 2 and len(classes) == 1, pair
        assert issubclass(classes[0], kinds), pair


def test_a_metric_has_one_name_as_class_function_and_key():
    keys = {
        name: thing._quantity
        for name, thing in vars(keras_calib.metrics).items()
        if name in HOMES and getattr(thing, "_quantity", "")
    }
    assert len(keys) > 20
    for name, key in keys.items():
        assert name_of_all_forms(name) == name_of_all_forms(key)
        assert key in HOMES or key == "accuracy", key


def guides():
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    # What is derived or reproduced there is no guide to its use.
    left_out = {"derivations.md", "papers.md", "recipes.md", "results.md"}
    return [x for x in pages if x.name not in left_out]


def test_every_name_is_in_a_guide_or_on_the_page_of_a_method():
    methods = (ROOT / "docs" / "generator" / "methods").glob("*.toml")
    words = set()
    for page in (*guides(), *methods):
        words |= {*re.findall(r"\w+", page.read_text(encoding="utf-8"))}
    assert {*PUBLIC} - words == {*IN_NO_GUIDE}


def test_a_guide_says_where_a_function_is_that_the_top_lacks():
    """There or elsewhere on the page, by its namespace."""
    functions = {
        name: space
        for name, space in HOMES.items()
        if inspect.isfunction(PUBLIC[name]) and name not in keras_calib.__all__
    }
    for page in guides():
        text = page.read_text(encoding="utf-8")
        for name in {*re.findall(r"`(\w+)[`(]", text)} & {*functions}:
            space = functions[name]
            told = rf"\b(keras_calib\.{space}|{space}\.{name})\b"
            assert re.search(told, text), (page.name, name)


def test_the_reference_has_a_page_for_each_namespace_in_order_of_tasks():
    spaces = [x for spaces in TASKS.values() for x in spaces]
    assert sorted(spaces) == sorted((*NAMESPACES, *LATE_NAMESPACES))
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.findall(r"reference/(\w+)\.md", nav) == ["index", *spaces]

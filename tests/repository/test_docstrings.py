"""Docstrings of public names are whole."""

import inspect
import re

from repository_files import (
    PUBLIC,
    documented,
    fields_of,
    parameters,
    sections,
    signature_names,
)

import keras_calib


def test_docstrings_begin_with_one_short_sentence():
    for thing in PUBLIC:
        lines = inspect.cleandoc(thing.__doc__ or "").splitlines()
        assert lines and lines[0].endswith("."), thing
        assert len(lines[0]) <= 80, thing
        assert len(lines) == 1 or not lines[1], thing


def test_docstrings_have_their_sections():
    for thing in PUBLIC:
        wanted = {"Args", "Reference"}
        if fields_of(thing) is not None:
            wanted = {"Attributes"}
        elif inspect.isfunction(thing):
            wanted |= {"Returns"}
        elif thing is keras_calib.Predictions:
            # What a model said is from no paper.
            wanted = {"Args"}
        found = sections(thing)
        for title in wanted:
            assert found.get(title, "").strip(), f"{thing} needs {title}:"


def test_docstrings_explain_every_argument():
    for thing in PUBLIC:
        if (fields := fields_of(thing)) is not None:
            explained = documented(sections(thing)["Attributes"])
            assert list(explained) == fields, thing
            continue
        explained = documented(sections(thing)["Args"])
        # An argument that a base class takes may be named with the others, or
        # explained as if it were an own one.
        passed_on = re.findall(r"`(\w+)`", explained.get("**kwargs", ""))
        names = [n for n in parameters(thing) if n not in passed_on]
        bases = thing.__mro__[1:-1] if isinstance(thing, type) else ()
        of_bases = {n for base in bases for n in parameters(base)}
        # Options stand where they belong, and other arguments in order.
        own = [n for n in names if n in signature_names(thing)]
        assert [n for n in explained if n in own] == own, thing
        assert set(names) <= set(explained), thing
        assert set(explained) <= {*names, *of_bases}, thing


def test_docstrings_give_shapes():
    data = {"labels", "logits", "probs"}
    for thing in PUBLIC:
        if inspect.isfunction(thing) and data & set(parameters(thing)):
            found = sections(thing)
            told = found["Args"] + found["Returns"]
            # Arguments may be explained where the same ones are.
            for name in re.findall(r"labels, .*: As in `(\w+)`", told):
                told += sections(getattr(keras_calib.functional, name))["Args"]
            assert re.search(r"`\([^`]*\)`", told), thing

"""Metadata of the distribution."""

import configparser
import re
from importlib import metadata as metadata_of

import cases
import keras
import pytest
from paths import ROOT
from public_names import PUBLIC
from repository_files import MODULES, PACKAGE, imports_of, repository_files

import keras_calib
from keras_calib.reporting import command_line

# What an sdist has without being named in MANIFEST.in.
ADDED = {
    "LICENSE",
    "MANIFEST.in",
    "PKG-INFO",
    "README.md",
    "keras_calib",
    "keras_calib.egg-info",
    "pyproject.toml",
    "setup.cfg",
}
# TensorFlow Probability needs it, and nothing in the package imports it.
UNUSED = {"tf-keras"}
EXTRAS = (
    "all",
    "bayes",
    "detection",
    "dev",
    "examples",
    "hub",
    "litert",
    "onnx",
    "report",
    "serving",
    "sklearn",
    "tensorflow",
    "tfds",
)


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


def test_extras_can_be_installed_and_bring_what_is_used(metadata):
    extras = metadata["options.extras_require"]
    assert all(requirements(extras[extra]) for extra in EXTRAS)
    assert requirements(extras["tensorflow"]) == {"tensorflow"}
    assert requirements(extras["bayes"]) >= {"tensorflow-probability", *UNUSED}
    imported = {n.split(".")[0] for p in MODULES for n, _ in imports_of(p)}
    assert not {name.replace("-", "_") for name in UNUSED} & imported


def test_the_script_starts_what_the_package_does(metadata):
    script = metadata["options.entry_points"]["console_scripts"].strip()
    found = metadata_of.EntryPoint(*script.split(" = "), "console_scripts")
    assert (found.name, found.load()) == ("keras-calib", command_line.main)


def test_wheel_ships_the_type_marker(metadata):
    shipped = metadata["options.package_data"]["keras_calib"].split()
    assert "py.typed" in shipped
    assert (PACKAGE / "py.typed").is_file()


def test_type_checkers_follow_editable_installs(metadata):
    # Without it setuptools installs a finder, which only Python runs.
    assert metadata["options"]["package_dir"].split() == ["=", "."]


def test_the_sdist_holds_all_but_hidden_files():
    rules = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    named = {
        name
        for rule in rules
        if rule.startswith(("graft ", "include "))
        for name in rule.split()[1:]
    }
    tops = {path.relative_to(ROOT).parts[0] for path in repository_files()}
    assert {x for x in tops - ADDED if not x.startswith(".")} == named


def test_every_exported_class_has_a_case_for_the_laws():
    bases = (
        keras.losses.Loss,
        keras.metrics.Metric,
        keras_calib.calibrators.Calibrator,
    )
    exported = {
        cls
        for cls in PUBLIC.values()
        if isinstance(cls, type) and issubclass(cls, bases)
    }
    listed = cases.LOSSES + cases.METRICS + cases.CALIBRATORS
    covered = {case.cls for case in listed}
    covered |= {*cases.OTHER_METRICS, *cases.OTHER_CALIBRATORS}
    covered |= {*cases.OTHER_LOSSES}
    assert exported == covered | set(cases.ABSTRACT)

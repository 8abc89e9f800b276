"""The examples in the docstrings run and print what they say."""

import doctest
import importlib
import importlib.util
import pkgutil

import keras
import pytest
from public_names import PUBLIC
from report_pages import few_replicates, pictures_left_out
from repository_files import fields_of

import keras_calib

OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
# Beam is installed where the TensorFlow tests run.
LEFT_OUT = ["keras_calib.__main__"]
if importlib.util.find_spec("apache_beam") is None:
    LEFT_OUT.append("keras_calib.beam")
# Only TensorFlow exports, and the example writes a LiteRT file.
if (
    keras.backend.backend() != "tensorflow"
    or importlib.util.find_spec("ai_edge_litert") is None
):
    LEFT_OUT.append("keras_calib.exporting.file_model")
# Pipelines are TensorFlow's, whatever trains on them.
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
MODULES = ["keras_calib"] + [
    info.name
    for info in pkgutil.walk_packages(keras_calib.__path__, "keras_calib.")
    if info.name not in LEFT_OUT
    and (HAS_TENSORFLOW or not info.name.startswith("keras_calib.data."))
]


def examples() -> list[doctest.DocTest]:
    """Docstrings with examples, with the names of their modules."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [
        test
        for name in MODULES
        for test in finder.find(importlib.import_module(name), name)
        if test.examples
    ]


EXAMPLES = examples()
CONCRETE = [
    thing
    for thing in PUBLIC.values()
    if isinstance(thing, type)
    and fields_of(thing) is None
    and thing.__module__ not in LEFT_OUT
    and not (thing.__doc__ or "").startswith("Abstract")
]


# One of each kind of what depends on the backend.
PORTABLE = {
    f"keras_calib.{name}"
    for name in (
        "calibrators.affine.VectorScaling",
        "calibrators.temperature.TemperatureScaling",
        "ensembles.deep_ensemble.DeepEnsemble",
        "losses.focal.FocalLoss",
        "losses.margin.ACLS",
        "losses.regularizers.effective_labels",
        "metrics.calibration_errors.ECE",
        "metrics.table.CalibrationMetrics",
        "selection.classifier.SelectiveClassifier",
        "training.crl.CorrectnessRankingModel",
    )
}


def test_portable_examples_are_there():
    assert {example.name for example in EXAMPLES} >= PORTABLE


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            example,
            id=example.name,
            marks=pytest.mark.portable if example.name in PORTABLE else (),
        )
        for example in EXAMPLES
    ],
)
def test_example_prints_what_it_says(example, monkeypatch):
    if example.name.startswith("keras_calib.reporting"):
        pictures_left_out(monkeypatch)
        few_replicates(monkeypatch)
    report = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=OPTIONS)
    result = runner.run(example, out=report.append, clear_globs=False)
    assert result.attempted
    assert not result.failed, "".join(report)


@pytest.mark.skipif(not HAS_TENSORFLOW, reason="examples with TensorFlow")
def test_every_class_shows_an_example():
    names = {f"{thing.__module__}.{thing.__name__}" for thing in CONCRETE}
    assert not names - {example.name for example in EXAMPLES}
